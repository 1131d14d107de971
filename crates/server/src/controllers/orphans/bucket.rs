//! The bucket of an orphaned journal: whether it is still the one that the run used, and what it has of the run.

use std::sync::Arc;

use bowline_api::{Backup, BackupPhase, BackupStorageLocation};
use bowline_engine::backup::request::Lookup;
use bowline_store::file::Snapshot;
use bowline_store::name::RunUid;
use bowline_store::{BackupName, BackupStore};
use kube::ResourceExt as _;

use super::CleanupError;
use crate::controllers::lookup::{OpenError, bucket_identity, lookup, open};
use crate::journal::ListedJournal;
use crate::server::Context;

/// Bucket of the run of a journal.
pub(super) enum RunBucket {
    /// The bucket that the run used, as far as the journal records it.
    Same(BackupStore),
    /// The bucket that the run used; it cannot be opened now.
    Away(Arc<BucketAway>),
    /// The bucket that the run used is not known.
    Unknown(UnknownBucket),
}

/// Reason why the bucket that a run used cannot be opened now.
#[derive(Debug, thiserror::Error)]
pub(super) enum BucketAway {
    #[error("cannot read the storage location")]
    ReadLocation(#[source] kube::Error),
    #[error(transparent)]
    Open(OpenError),
}

/// Reason why the bucket that a run used is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownBucket {
    #[error("the storage location no longer exists")]
    LocationGone,
    #[error("storage location {location} was {used} when the run started and is {now} now")]
    Moved { location: String, used: String, now: String },
}

pub(super) async fn open_bucket(
    context: &Context,
    journal: &ListedJournal,
    name: &str,
) -> RunBucket {
    let gone = || RunBucket::Unknown(UnknownBucket::LocationGone);
    if name.is_empty() {
        return gone();
    }
    let locations = context.api::<BackupStorageLocation>();
    let found = match lookup(locations.get_opt(name).await) {
        Ok(Lookup::Missing) => return gone(),
        Ok(found) => found,
        Err(error) => return RunBucket::Away(Arc::new(BucketAway::ReadLocation(error))),
    };
    if let Lookup::Found(location) = &found
        && let Some(reason) = moved(journal.bucket.as_deref(), location)
    {
        return RunBucket::Unknown(reason);
    }
    match open(context, &found).await {
        Ok(store) => RunBucket::Same(store),
        Err(error) => RunBucket::Away(Arc::new(BucketAway::Open(error))),
    }
}

/// Reason why the bucket is not known, if a location now names another bucket than the run used.
pub(super) fn moved(used: Option<&str>, location: &BackupStorageLocation) -> Option<UnknownBucket> {
    let now = bucket_identity(location);
    let used = used.filter(|used| *used != now)?;
    let (location, used) = (location.name_any(), used.to_owned());
    Some(UnknownBucket::Moved { location, used, now })
}

/// Record that the bucket has under the name of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketRecord {
    /// The record of this backup: the backup is complete, and its snapshots belong to it.
    Ours,
    Other,
    Nothing,
}

pub(super) fn classify_record(record: Option<&Backup>, run: &RunUid) -> BucketRecord {
    match record {
        None => BucketRecord::Nothing,
        Some(record) if record.uid().as_deref() == Some(run.as_str()) => BucketRecord::Ours,
        Some(_) => BucketRecord::Other,
    }
}

/// Snapshots that the files of a backup name, or the reason why they cannot be known, in which case nothing is deleted.
/// An unreachable bucket is an error: it may answer later.
pub(super) async fn recorded_in(
    bucket: &RunBucket,
    backup: &Backup,
    run: &RunUid,
) -> Result<Result<Vec<Snapshot>, UnknownBucket>, CleanupError> {
    match bucket {
        RunBucket::Same(store) => recorded(store, backup, run).await.map(Ok),
        RunBucket::Away(error) => Err(Arc::clone(error).into()),
        RunBucket::Unknown(reason) => Ok(Err(reason.clone())),
    }
}

/// Snapshots that the files of a backup name. A bucket that lacks files of a backup that was complete proves nothing:
/// it may be another bucket, or not mounted.
pub(super) async fn recorded(
    store: &BackupStore,
    backup: &Backup,
    run: &RunUid,
) -> Result<Vec<Snapshot>, CleanupError> {
    let name = BackupName::new(backup.name_any())?;
    let record = store.backup(&name).await?;
    let record = record.filter(|record| classify_record(Some(record), run) == BucketRecord::Ours);
    let found = store.get::<Vec<Snapshot>>(&name).await?;
    let is_whole = was_whole(backup) || record.as_ref().is_some_and(was_whole);
    match found {
        None if is_whole => Err(CleanupError::NoSnapshotList),
        _ if is_whole && record.is_none() => Err(CleanupError::NoRecord),
        found => Ok(found.unwrap_or_default()),
    }
}

/// True if a backup ended with all of its files in the bucket.
pub(super) fn was_whole(backup: &Backup) -> bool {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    matches!(phase, Some(BackupPhase::Completed | BackupPhase::PartiallyFailed))
}

/// Looks up the record that a bucket has under the name of a backup. A completely empty location proves nothing, unless
/// that is expected: it may not be mounted.
pub(super) async fn find_record(
    store: &BackupStore,
    name: &BackupName,
    run: &RunUid,
    may_be_empty: bool,
) -> Result<BucketRecord, CleanupError> {
    let record = store.backup(name).await?;
    if record.is_none() && !may_be_empty && store.is_empty().await? {
        return Err(CleanupError::EmptyLocation);
    }
    Ok(classify_record(record.as_ref(), run))
}
