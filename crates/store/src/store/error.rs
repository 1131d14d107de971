//! Why a bucket did not do what was asked of it.

use bowline_plugin::Class;

use super::commit::CommitRefusal;
use crate::layout::InvalidDownload;
use crate::{decode, encode};

/// Why a bucket did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend failed.
    #[error("cannot {action} {key:?}")]
    Backend {
        /// What was being done.
        action: &'static str,
        /// With which object, or folder.
        key: String,
        /// What the backend says.
        source: bowline_plugin::Error,
    },
    /// A file is not what it should be.
    #[error("{key:?} cannot be used")]
    Unreadable {
        /// The file.
        key: String,
        /// What is wrong with it.
        source: decode::Error,
    },
    /// Something cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] encode::Error),
    /// A backup cannot be committed.
    #[error("the backup cannot be committed")]
    Commit(#[from] CommitRefusal),
    /// There are folders of somebody else, named as Velero names them.
    #[error("Backup store contains {}", strange(.0))]
    UnexpectedFolders(Vec<String>),
    /// There is no such file to download.
    #[error(transparent)]
    Download(#[from] InvalidDownload),
    /// Some of several objects could not be deleted.
    #[error("{failed} of {all} objects could not be deleted")]
    Delete {
        /// How many were left.
        failed: usize,
        /// Of how many.
        all: usize,
        /// Why the first of them.
        #[source]
        first: Box<Self>,
    },
    /// The process is ending.
    #[error("the work was given up")]
    TaskAborted,
}

impl Error {
    /// Whether it may be otherwise the next time.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Backend { source, .. } => {
                matches!(source.class(), Class::Transient | Class::Unclear)
            }
            Self::Delete { first, .. } => first.is_retryable(),
            Self::Unreadable { source, .. } => matches!(source, decode::Error::Damaged(_)),
            Self::TaskAborted => true,
            Self::Encode(_) | Self::Commit(_) | Self::UnexpectedFolders(_) | Self::Download(_) => {
                false
            }
        }
    }
}

/// At most three names, in Velero's words.
fn strange(folders: &[String]) -> String {
    match folders {
        [a, b, c, _, ..] => {
            format!("{} invalid top-level directories: [{a} {b} {c} ...]", folders.len())
        }
        few => format!("invalid top-level directories: [{}]", few.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_folders_are_reported_with_veleros_text() {
        let error = |names: &[&str]| {
            Error::UnexpectedFolders(names.iter().map(|name| (*name).to_owned()).collect())
                .to_string()
        };
        assert_eq!(
            error(&["a", "b"]),
            "Backup store contains invalid top-level directories: [a b]"
        );
        assert_eq!(
            error(&["a", "b", "c", "d"]),
            "Backup store contains 4 invalid top-level directories: [a b c ...]"
        );
    }
}
