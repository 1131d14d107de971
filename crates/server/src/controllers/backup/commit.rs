//! The last write to the bucket: a backup exists once its record does.

use std::sync::atomic::{AtomicBool, Ordering};

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::finalize;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_store::store::CommitOutcome;
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{RunError, RunStatus as _, recover};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::run::{BucketCause, BucketError, with_retries};
use crate::error_text::status_message;

/// Outcome of a backup.
pub(super) struct CommitResult {
    pub(super) status: BackupStatus,
    pub(super) recorded: RecordState,
    /// Refusal of the record by the bucket, if it refuses. This may be temporary.
    pub(super) refusal: Option<bowline_store::Error>,
}

/// State of the record of a backup in the bucket. Only without a record may its snapshots be
/// deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordState {
    Yes,
    No,
    /// An attempt may have written it, though no answer came.
    Unknown,
}

/// Writes the commit record of a backup whose files are written. Returns the resulting state. If
/// that is not known but can be found out, returns an error, and the bucket is asked later.
pub(super) async fn commit(
    store: &BackupStore,
    backup: &Backup,
    status: &BackupStatus,
) -> Result<CommitResult, RunError> {
    let end = finalize::completed_status(status, Timestamp::now());
    let record = Backup { status: Some(end.clone()), ..backup.clone() };
    failpoint::hit(Failpoint::Commit);
    // An attempt without an answer may have written it, whatever the next ones return.
    let is_unclear = AtomicBool::new(false);
    let committed = with_retries(|| async {
        let committed = store.commit(&record).await;
        if committed.as_ref().is_err_and(bowline_store::Error::is_retryable) {
            is_unclear.store(true, Ordering::Relaxed);
        }
        committed
    });
    let committed = committed.await;
    failpoint::hit(Failpoint::Committed);
    let error = match committed {
        Ok(CommitOutcome::AlreadyCommitted(found)) => {
            let status = found.status.unwrap_or(end);
            return Ok(CommitResult { status, recorded: RecordState::Yes, refusal: None });
        }
        Ok(CommitOutcome::Created(_) | CommitOutcome::Replaced) => {
            return Ok(CommitResult { status: end, recorded: RecordState::Yes, refusal: None });
        }
        Err(error) if error.is_retryable() => {
            return Err(commit_unknown(error));
        }
        Err(error) => error,
    };
    let name = BackupName::new(backup.name_any()).map_err(commit_unknown)?;
    let (explanation, recorded) =
        match store.backup(&name).await.map(|found| recover::terminal_status(backup, found)) {
            Ok(Some(status)) => {
                return Ok(CommitResult { status, recorded: RecordState::Yes, refusal: None });
            }
            Ok(None) if !is_unclear.into_inner() => (
                "the backup is not in the bucket, because velero-backup.json cannot be written",
                RecordState::No,
            ),
            Ok(None) | Err(_) => (
                "the bucket did not confirm the write of velero-backup.json, so the backup may or \
                 may not exist",
                RecordState::Unknown,
            ),
        };
    let status = status.failed(format!("{explanation}: {}", status_message(&error)));
    let refusal = BucketFailure::of_write(&error).is_some().then_some(error);
    Ok(CommitResult { status, recorded, refusal })
}

/// Error for a commit whose outcome the bucket has to be asked for.
pub(super) fn commit_unknown(cause: impl Into<BucketCause>) -> RunError {
    RunError::Bucket(BucketError {
        step: "the bucket did not confirm whether velero-backup.json exists",
        failure: BucketFailure::Unreachable,
        source: Box::new(cause.into()),
    })
}

#[cfg(test)]
mod tests;
