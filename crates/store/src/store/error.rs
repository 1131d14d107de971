//! Errors of bucket operations.

use bowline_plugin::Class;

use super::commit::CommitRefusal;
use crate::layout::InvalidDownload;
use crate::{decode, encode};

/// An error of a bucket operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend failed.
    #[error("cannot {action} {key:?}")]
    Backend {
        /// The action that failed.
        action: &'static str,
        /// The object or folder concerned.
        key: String,
        /// The error of the backend.
        source: bowline_plugin::Error,
    },
    /// A file is invalid.
    #[error("{key:?} cannot be used")]
    Unreadable {
        /// The key of the file.
        key: String,
        /// The reason.
        source: decode::Error,
    },
    /// A value cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] encode::Error),
    /// A backup cannot be committed.
    #[error("the backup cannot be committed")]
    Commit(#[from] CommitRefusal),
    /// The location contains foreign folders, named as in Velero's message.
    #[error("Backup store contains {}", strange(.0))]
    UnexpectedFolders(Vec<String>),
    /// No such file to download.
    #[error(transparent)]
    Download(#[from] InvalidDownload),
    /// Some of several objects could not be deleted.
    #[error("{failed} of {all} objects could not be deleted")]
    Delete {
        /// Number of objects that could not be deleted.
        failed: usize,
        /// Number of objects to delete.
        all: usize,
        /// Error of the first object that could not be deleted.
        #[source]
        first: Box<Self>,
    },
    /// The process is ending.
    #[error("the request was aborted")]
    TaskAborted,
}

impl Error {
    /// True if a retry may succeed.
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

/// At most three names, in the wording of Velero.
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
