//! Backups whose server is gone: found unfinished when this server starts.
//!
//! The bucket is authoritative: where the commit record is terminal, the backup has ended, and only
//! the Backup in the cluster does not show it yet.

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_store::{BackupName, BackupStore};
use kube::ResourceExt as _;

use super::{RunError, facts};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::lookup::open;
use crate::controllers::run::{BucketCause, BucketError};
use crate::server::Context;

pub(super) async fn open_store(
    context: &Context,
    backup: &Backup,
) -> Result<BackupStore, RunError> {
    let location = facts::location(context, backup).await?;
    open(context, &location.found).await.map_err(RunError::Open)
}

pub(super) enum CommitState {
    /// Ended, with this status.
    Committed(Box<BackupStatus>),
    /// Not ended; its store.
    Uncommitted(BackupStore),
}

/// State of a backup according to the bucket.
pub(super) async fn commit_state(
    context: &Context,
    backup: &Backup,
) -> Result<CommitState, RunError> {
    fn unknown(failure: BucketFailure, cause: impl Into<BucketCause>) -> RunError {
        let step = "the files of the backup in the bucket cannot be read";
        RunError::Bucket(BucketError { step, failure, source: Box::new(cause.into()) })
    }
    let location = facts::location(context, backup).await?;
    let opened = open(context, &location.found).await;
    let store = opened.map_err(|error| unknown(BucketFailure::of_open(&error), error))?;
    let name = BackupName::new(backup.name_any())
        .map_err(|error| unknown(BucketFailure::Refused, error))?;
    let read = store.backup(&name).await;
    let record = read.map_err(|error| {
        unknown(BucketFailure::of_read(&error).unwrap_or(BucketFailure::Refused), error)
    })?;
    Ok(match terminal_status(backup, record) {
        Some(status) => CommitState::Committed(Box::new(status)),
        None => CommitState::Uncommitted(store),
    })
}

/// Final status of a backup, if the record under its name is its own.
pub(super) fn terminal_status(backup: &Backup, record: Option<Backup>) -> Option<BackupStatus> {
    let status = record.filter(|record| record.uid() == backup.uid())?.status?;
    status.phase.as_ref().is_some_and(BackupPhase::is_terminal).then_some(status)
}
