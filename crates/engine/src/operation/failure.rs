//! Reason why an operation failed.
//!
//! Velero's operations file, a resource of a plugin and the answer of a plugin have only a text for it. The text is
//! made here (`Display`) and read here (`From`), and compared nowhere else.

use std::time::Duration;

use super::{Operation, StopCause, StopRequest, duration_between};

const CANCELED: &str = "canceled";
const CANCELED_PREFIX: &str = "canceled: ";
const TIMED_OUT_PREFIX: &str = "timed out: ";
const SNAPSHOT_NOT_COMPLETED: &str =
    "the upload was not started, because the snapshot was not completed";

/// Reason why an operation failed. The text of a plugin may be any of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationFailure {
    /// The run was canceled.
    #[error("{CANCELED_PREFIX}{0}")]
    Canceled(String),
    /// The plugin ended the operation as canceled, without a request to stop. The text is the plugin's.
    #[error("{0}")]
    CanceledByPlugin(String),
    /// The deadline has passed.
    #[error("{TIMED_OUT_PREFIX}{0}")]
    TimedOut(String),
    /// An upload was not started, because its snapshot was not completed.
    #[error("{SNAPSHOT_NOT_COMPLETED}")]
    SnapshotNotCompleted,
    /// The plugin reported a failure, or could not be polled for too long.
    #[error("{0}")]
    Plugin(String),
}

impl OperationFailure {
    /// True if the run, or the plugin itself, canceled the operation.
    pub fn is_canceled(&self) -> bool {
        matches!(self, Self::Canceled(_) | Self::CanceledByPlugin(_))
    }

    /// Failure of an operation that has ended by itself. After a stop request, the request is the cause.
    pub(super) fn ended(stop_request: Option<&StopRequest>, reason: &str) -> Self {
        let reason = match reason.trim() {
            "" => "the plugin gave no reason",
            reason => reason,
        };
        match stop_request.map(|request| &request.cause) {
            Some(StopCause::Canceled(_)) => Self::Canceled(reason.to_owned()),
            Some(StopCause::Deadline) => Self::TimedOut(reason.to_owned()),
            None => reason.into(),
        }
    }

    /// Failure of an operation that has not confirmed a stop request. `detail` is what is known besides.
    pub(super) fn not_stopped(operation: &Operation, request: &StopRequest, detail: &str) -> Self {
        let answer = match &request.answer {
            Some(Ok(())) => {
                "the plugin accepted the cancellation but has not confirmed that the operation \
                 stopped"
                    .to_owned()
            }
            Some(Err(error)) => {
                format!("the plugin could not cancel the operation, which may continue: {error}")
            }
            None => {
                "the plugin did not respond to the cancellation, and the operation may continue"
                    .to_owned()
            }
        };
        let colon = if detail.is_empty() { "" } else { ": " };
        match &request.cause {
            StopCause::Canceled(reason) => {
                Self::Canceled(format!("{reason}; {answer}{colon}{detail}"))
            }
            StopCause::Deadline => {
                let limit = duration_between(operation.created, operation.deadline).as_secs();
                Self::TimedOut(format!(
                    "the operation has not ended within {limit} s; {answer}{colon}{detail}"
                ))
            }
        }
    }
}

impl From<&str> for OperationFailure {
    fn from(text: &str) -> Self {
        if let Some(reason) = text.strip_prefix(CANCELED_PREFIX) {
            Self::Canceled(reason.to_owned())
        } else if text.starts_with(CANCELED) {
            Self::CanceledByPlugin(text.to_owned())
        } else if let Some(reason) = text.strip_prefix(TIMED_OUT_PREFIX) {
            Self::TimedOut(reason.to_owned())
        } else if text == SNAPSHOT_NOT_COMPLETED {
            Self::SnapshotNotCompleted
        } else {
            Self::Plugin(text.to_owned())
        }
    }
}

impl From<String> for OperationFailure {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

/// Failure to request a stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The plugin returned an error.
    #[error(transparent)]
    Plugin(#[from] bowline_plugin::Error),
    /// The plugin has not answered in this time.
    #[error("the plugin has not answered within {} s", .0.as_secs())]
    NoAnswer(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_failure_is_read_back_as_the_same_failure() {
        use OperationFailure::{
            Canceled, CanceledByPlugin, Plugin, SnapshotNotCompleted, TimedOut,
        };
        for (text, failure, is_canceled) in [
            ("canceled: stopped", Canceled("stopped".into()), true),
            ("canceled", CanceledByPlugin("canceled".into()), true),
            ("canceled by the vendor", CanceledByPlugin("canceled by the vendor".into()), true),
            ("timed out: too slow", TimedOut("too slow".into()), false),
            (SNAPSHOT_NOT_COMPLETED, SnapshotNotCompleted, false),
            ("disk full", Plugin("disk full".into()), false),
            ("", Plugin(String::new()), false),
        ] {
            assert_eq!(OperationFailure::from(text), failure);
            assert_eq!(failure.to_string(), text);
            assert_eq!(failure.is_canceled(), is_canceled, "{text}");
        }
    }
}
