//! Backups whose server is gone: found in the middle of something when ours starts.
//!
//! The bucket knows best: where the commit record is terminal, the backup is over, and only the
//! cluster has not heard of it.

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_store::{BackupName, BackupStore};
use kube::ResourceExt as _;

use super::{WorkError, facts};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::lookup::open;
use crate::server::Context;
use crate::story::one_line;

/// The store of a backup.
pub(super) async fn store(context: &Context, backup: &Backup) -> Result<BackupStore, WorkError> {
    let location = facts::location(context, backup).await?;
    open(context, &location.found).await.map_err(WorkError::Open)
}

pub(super) enum Committed {
    /// It is over, with this status.
    Yes(Box<BackupStatus>),
    /// It is not, in this store.
    No(BackupStore),
}

/// What the bucket says of a backup.
pub(super) async fn committed(context: &Context, backup: &Backup) -> Result<Committed, WorkError> {
    let no = |error: &(dyn std::error::Error + 'static), failure| WorkError::Unseen {
        reason: one_line(error),
        failure,
    };
    let location = facts::location(context, backup).await?;
    let opened = open(context, &location.found).await;
    let store = opened.map_err(|error| no(&error, BucketFailure::of_open(&error)))?;
    let refused = BucketFailure::Refused;
    let name = BackupName::new(backup.name_any()).map_err(|error| no(&error, refused))?;
    let read = store.backup(&name).await;
    let record =
        read.map_err(|error| no(&error, BucketFailure::of_read(&error).unwrap_or(refused)))?;
    Ok(match end_of(backup, record) {
        Some(status) => Committed::Yes(Box::new(status)),
        None => Committed::No(store),
    })
}

/// How a backup has ended, if a record under its name is its own.
pub(super) fn end_of(backup: &Backup, record: Option<Backup>) -> Option<BackupStatus> {
    let status = record.filter(|record| record.uid() == backup.uid())?.status?;
    status.phase.as_ref().is_some_and(BackupPhase::is_terminal).then_some(status)
}
