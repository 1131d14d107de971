//! The last write to the bucket: a backup is there once its record is.

use std::sync::atomic::{AtomicBool, Ordering};

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::finalize;
use bowline_engine::failpoint::{self, Point};
use bowline_store::store::CommitOutcome;
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{BackupRunError, failed_status, recover};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::run::with_retries;
use crate::error_text::status_message;

/// How a backup has ended.
pub(super) struct Conclusion {
    pub(super) status: BackupStatus,
    pub(super) recorded: RecordState,
    /// Why the bucket refuses to have the record written, if it does. It may not for ever.
    pub(super) refusal: Option<String>,
}

/// Whether the bucket has the record of a backup. Only without one may its snapshots go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordState {
    Yes,
    No,
    /// A try may have written it, though no answer came.
    Unknown,
}

/// Writes the commit record of a backup whose files are written. Returns what is true then. Where
/// that is not known but can be found out it is an error, and the bucket is asked later.
pub(super) async fn commit(
    store: &BackupStore,
    backup: &Backup,
    status: &BackupStatus,
) -> Result<Conclusion, BackupRunError> {
    let end = finalize::completed_status(status, Timestamp::now());
    let record = Backup { status: Some(end.clone()), ..backup.clone() };
    failpoint::hit(Point::Commit);
    // A try without an answer may have written it, whatever the next ones say.
    let is_unclear = AtomicBool::new(false);
    let committed = with_retries(|| async {
        let committed = store.commit(&record).await;
        if committed.as_ref().is_err_and(bowline_store::Error::is_retryable) {
            is_unclear.store(true, Ordering::Relaxed);
        }
        committed
    });
    let committed = committed.await;
    failpoint::hit(Point::Committed);
    let error = match committed {
        Ok(CommitOutcome::AlreadyCommitted(found)) => {
            let status = found.status.unwrap_or(end);
            return Ok(Conclusion { status, recorded: RecordState::Yes, refusal: None });
        }
        Ok(CommitOutcome::Created(_) | CommitOutcome::Replaced) => {
            return Ok(Conclusion { status: end, recorded: RecordState::Yes, refusal: None });
        }
        Err(error) if error.is_retryable() => {
            return Err(BackupRunError::Commit(status_message(&error)));
        }
        Err(error) => error,
    };
    let name = BackupName::new(backup.name_any())
        .map_err(|error| BackupRunError::Commit(status_message(&error)))?;
    let (explanation, recorded) = match store
        .backup(&name)
        .await
        .map(|found| recover::terminal_status(backup, found))
    {
        Ok(Some(status)) => {
            return Ok(Conclusion { status, recorded: RecordState::Yes, refusal: None });
        }
        Ok(None) if !is_unclear.into_inner() => (
            "the backup is not in the bucket, because its record cannot be written",
            RecordState::No,
        ),
        Ok(None) | Err(_) => (
            "it is not known whether the backup is in the bucket, because the answer to the writing \
              of its record is not",
            RecordState::Unknown,
        ),
    };
    let refusal = BucketFailure::of_write(&error).map(|_| status_message(&error));
    let status = failed_status(status, format!("{explanation}: {}", status_message(&error)));
    Ok(Conclusion { status, recorded, refusal })
}

#[cfg(test)]
mod tests;
