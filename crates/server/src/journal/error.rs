//! Errors of journals.

use bowline_engine::journal;
use bowline_store::name::RunUid;

use super::page::{self, PageDefect};
use crate::error_text::status_message;
use crate::patch;

/// Reason why a journal could not be read, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record is too large.
    #[error("journal entry too large: {bytes} bytes, limit {}", page::MAX_RECORD_BYTES)]
    TooLarge {
        /// Size of the record.
        bytes: usize,
    },
    /// A record cannot be encoded as JSON.
    #[error("cannot encode a journal entry")]
    Encode(#[source] serde_json::Error),
    /// The journal is full.
    #[error(
        "the journal is full: limit {} MiB uncompressed, {} MiB compressed",
        page::MAX_UNPACKED_BYTES >> 20,
        page::MAX_BYTES >> 20
    )]
    Full,
    /// The journal has more pages than this server ever writes.
    #[error("run {run} has a journal of more than {} ConfigMaps", page::MAX_PAGES)]
    TooMany {
        /// Run of the journal.
        run: RunUid,
    },
    /// A ConfigMap has the label of a page but is not one.
    #[error(
        "ConfigMap {page} has the journal label but is not a journal page: {defect}; hint: delete \
         the ConfigMap if you do not need it"
    )]
    InvalidPage {
        /// Name of the ConfigMap.
        page: String,
        /// Defect of the page, which is part of the message.
        defect: PageDefect,
    },
    /// A page is missing although later ones exist.
    #[error("ConfigMap {page} of the journal is missing, and its entries are lost")]
    Missing {
        /// Name of the ConfigMap.
        page: String,
    },
    /// Another process has opened the journal since, or a late write of an earlier opener arrived.
    #[error("another server has taken over the journal (ConfigMap {page})")]
    TakenOver {
        /// Name of the ConfigMap.
        page: String,
    },
    /// A page was replaced or changed.
    #[error("ConfigMap {page} was changed by another writer meanwhile")]
    Changed {
        /// Name of the ConfigMap.
        page: String,
    },
    /// The API server did not answer.
    #[error("the API server did not answer in time")]
    Timeout,
    /// The API server refused a read.
    #[error("the ConfigMaps of the journal cannot be read")]
    Read(#[source] kube::Error),
    /// The API server refused a write.
    #[error("ConfigMap {page} of the journal cannot be written")]
    Write {
        /// Name of the ConfigMap.
        page: String,
        /// Cause.
        source: kube::Error,
    },
    /// The API server refused a deletion.
    #[error("ConfigMap {page} of the journal cannot be deleted")]
    Remove {
        /// Name of the ConfigMap.
        page: String,
        /// Cause.
        source: kube::Error,
    },
}

impl Error {
    /// True if a retry may succeed without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Changed { .. } | Self::Timeout => true,
            // A list that took too long starts from the beginning.
            Self::Read(kube::Error::Api(status)) if status.code == 410 => true,
            Self::Read(source) | Self::Write { source, .. } | Self::Remove { source, .. } => {
                !patch::is_permanent(source)
            }
            Self::TooLarge { .. }
            | Self::Encode(_)
            | Self::Full
            | Self::TooMany { .. }
            | Self::InvalidPage { .. }
            | Self::Missing { .. }
            | Self::TakenOver { .. } => false,
        }
    }
}

impl From<Error> for journal::Error {
    fn from(error: Error) -> Self {
        let reason = status_message(&error);
        match error {
            Error::Full => Self::Full(reason),
            _ => Self::Failed(reason),
        }
    }
}
