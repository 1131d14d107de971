//! Backups whose server is gone: found in the middle of something when ours starts.
//!
//! The bucket knows best: where the commit record is terminal, the backup is over, and only the
//! cluster has not heard of it.

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_store::{BackupName, BackupStore};
use kube::ResourceExt as _;

use super::{BackupRunError, facts};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::lookup::open;
use crate::error_text::status_message;
use crate::server::Context;

/// The store of a backup.
pub(super) async fn open_store(
    context: &Context,
    backup: &Backup,
) -> Result<BackupStore, BackupRunError> {
    let location = facts::location(context, backup).await?;
    open(context, &location.found).await.map_err(BackupRunError::Open)
}

pub(super) enum CommitState {
    /// It is over, with this status.
    Yes(Box<BackupStatus>),
    /// It is not, in this store.
    No(BackupStore),
}

/// What the bucket says of a backup.
pub(super) async fn commit_state(
    context: &Context,
    backup: &Backup,
) -> Result<CommitState, BackupRunError> {
    let no = |error: &(dyn std::error::Error + 'static), failure| {
        BackupRunError::BucketStateUnknown { reason: status_message(error), failure }
    };
    let location = facts::location(context, backup).await?;
    let opened = open(context, &location.found).await;
    let store = opened.map_err(|error| no(&error, BucketFailure::of_open(&error)))?;
    let refused = BucketFailure::Refused;
    let name = BackupName::new(backup.name_any()).map_err(|error| no(&error, refused))?;
    let read = store.backup(&name).await;
    let record =
        read.map_err(|error| no(&error, BucketFailure::of_read(&error).unwrap_or(refused)))?;
    Ok(match terminal_status(backup, record) {
        Some(status) => CommitState::Yes(Box::new(status)),
        None => CommitState::No(store),
    })
}

/// How a backup has ended, if a record under its name is its own.
pub(super) fn terminal_status(backup: &Backup, record: Option<Backup>) -> Option<BackupStatus> {
    let status = record.filter(|record| record.uid() == backup.uid())?.status?;
    status.phase.as_ref().is_some_and(BackupPhase::is_terminal).then_some(status)
}
