//! Why an archive, or a part of it, cannot be used.

use std::io;
use std::sync::Arc;

use super::check::Unreadable;
use crate::item::InvalidObject;

/// Why an item of an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The archive does not contain the item.
    #[error("the item is not in the backup")]
    Missing,
    /// The temporary file could not be read.
    #[error("the item cannot be read from the scratch directory: {0}")]
    Scratch(#[from] io::Error),
    /// The item is not a valid object.
    #[error("the file of the item in the backup is not an object: {0}")]
    Object(#[from] InvalidObject),
    /// The object declares a different identity.
    #[error("the file of the item in the backup contains {0}")]
    Mismatch(String),
}

/// Why an archive cannot be unpacked at all.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The temporary file could not be written.
    #[error("cannot use the scratch directory: {0}")]
    Scratch(io::Error),
    /// The archive exceeds a limit.
    #[error("the archive is refused: {0}")]
    TooLarge(ExceededLimit),
    /// The download failed.
    #[error("the archive cannot be read from the bucket: {0}")]
    Source(io::Error),
}

/// The limit that an archive exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExceededLimit {
    /// Number of entries.
    #[error("the archive has more than {0} entries")]
    Entries(u64),
    /// Memory for the index.
    #[error("the index of the archive needs more than {0} bytes of memory")]
    Index(u64),
    /// Bytes kept on disk.
    #[error("the items need more than {0} bytes of the scratch directory")]
    Spool(u64),
    /// Bytes of all entries.
    #[error("the archive contains more than {0} bytes, uncompressed")]
    Total(u64),
    /// Ratio of expanded to compressed size.
    #[error("the archive expands to more than {0} times its size")]
    Ratio(u64),
}

impl ExceededLimit {
    /// Flag of the server that sets the limit, if there is one.
    #[must_use]
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::Total(_) => Some("--archive-size-limit"),
            Self::Spool(_) => Some("--archive-scratch-limit"),
            Self::Index(_) => Some("--archive-index-limit"),
            Self::Entries(_) | Self::Ratio(_) => None,
        }
    }
}

/// Defect of an archive as a whole, or of an entry, whose path is shown as it is displayed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Defect {
    /// The archive does not end properly.
    #[error("{0}")]
    Break(ArchiveBreak),
    /// The archive goes on after its end.
    #[error("data follows the end of the archive")]
    TrailingData,
    /// The entry is a link or a device.
    #[error("{path} is not a file")]
    NotAFile {
        /// The path.
        path: String,
    },
    /// The path is invalid or unknown.
    #[error("{path}: {reason}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The entry is larger than any object.
    #[error("{path} is larger than {limit} bytes")]
    TooLarge {
        /// The path.
        path: String,
        /// The limit.
        limit: u64,
    },
    /// Two versions of a kind say that they are the preferred one.
    #[error("{path}: conflicts with preferred version {preferred}")]
    PreferredVersion {
        /// The path.
        path: String,
        /// The version that counts.
        preferred: String,
    },
    /// The item occurs a second time.
    #[error("{path} occurs twice; the first one is used")]
    Duplicate {
        /// The path.
        path: String,
    },
    /// The content is not the item that the path names.
    #[error("{path}: {reason}")]
    Item {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: Arc<Unreadable>,
    },
    /// Further refusals that are not listed.
    #[error("and {0} more entries were refused")]
    More(usize),
}

/// Where and why the rest of an archive cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ArchiveBreak {
    /// Between two entries.
    #[error("the archive ends early after {entries} entries: {cause}")]
    Between {
        /// Number of entries before the break.
        entries: u64,
        /// The cause.
        cause: BreakCause,
    },
    /// In an entry.
    #[error("the archive ends early in {path}: {cause}")]
    InEntry {
        /// The path, as it is displayed.
        path: String,
        /// The cause.
        cause: BreakCause,
    },
    /// After the entries.
    #[error("the archive ends early: {0}")]
    AtEnd(BreakCause),
}

/// Why the rest of an archive cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BreakCause {
    /// There is no rest.
    #[error("the end is missing")]
    EndMissing,
    /// The data is no archive, or is damaged.
    #[error("{0}")]
    Read(Arc<io::Error>),
}

impl From<io::Error> for BreakCause {
    fn from(error: io::Error) -> Self {
        Self::Read(Arc::new(error))
    }
}
