//! The end of a backup: the files beside the archive, and the status.
//!
//! All files are written before the commit record, so that a backup that can be seen is whole. The
//! phase and the counts come from what was recorded and from nothing else.

use bowline_api::backup::BackupProgress;
use bowline_api::hook::HookStatus;
use bowline_api::{Backup, BackupPhase, BackupStatus, PodVolumeBackup};
use bowline_store::file::{BackupOperation, Snapshot};
use bowline_store::{BackupName, BackupStore, Error};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Fatal, Taken};
use crate::operation::record::{self, Of};
use crate::operation::{Counts, Operation};
use crate::phase::{self, Stage};

/// Writes every file of a backup but its archive and its commit record.
pub async fn write(
    store: &BackupStore,
    backup: &BackupName,
    taken: &Taken,
    run: Of<'_>,
    log: Bytes,
) -> Result<(), Error> {
    store.put_log(backup, Box::pin(stream::iter([Ok(log)]))).await?;
    let mut results = taken.report.results();
    if let Err(fatal) = &taken.archive {
        results.errors.velero.push(fatal.told());
    }
    store.put(backup, &results).await?;
    let operations = records(&taken.operations, run);
    if taken.archive.is_err() {
        // What was begun is to be seen all the same.
        return if operations.is_empty() { Ok(()) } else { store.put(backup, &operations).await };
    }
    let (snapshots, copies) = (Vec::<Snapshot>::new(), Vec::<PodVolumeBackup>::new());
    tokio::try_join!(
        store.put(backup, &taken.resources),
        store.put(backup, &taken.volumes),
        store.put(backup, &operations),
        store.put(backup, &snapshots),
        store.put(backup, &copies),
    )?;
    Ok(())
}

/// Operations, as they are kept.
pub fn records(operations: &[Operation], run: Of<'_>) -> Vec<BackupOperation> {
    operations.iter().map(|operation| record::of_backup(operation, run)).collect()
}

/// The counts of operations, for a status.
pub fn counted(status: &mut BackupStatus, counts: Counts) {
    status.backup_item_operations_attempted = count(counts.attempted);
    status.backup_item_operations_completed = count(counts.completed);
    status.backup_item_operations_failed = count(counts.failed);
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The status of a backup whose items are done.
pub fn status(backup: &Backup, taken: &Taken) -> BackupStatus {
    let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (attempted, hooks_failed) = taken.hooks;
    let fatal = taken.archive.as_ref().err();
    let counts = Counts::of(&taken.operations);
    let stage = phase::after_items(counts.completed + counts.failed < counts.attempted);
    let is_tainted = taken.report.errors() > 0;
    let mut status = BackupStatus {
        phase: Some(match fatal {
            Some(_) => BackupPhase::Failed,
            None => phase::of_backup(stage, is_tainted),
        }),
        failure_reason: fatal.map(Fatal::told).unwrap_or_default(),
        errors: count(taken.report.errors() + usize::from(fatal.is_some())),
        warnings: count(taken.report.warnings()),
        progress: Some(BackupProgress {
            total_items: large(taken.found),
            // Without an archive nothing is backed up.
            items_backed_up: if fatal.is_some() { 0 } else { count(taken.resources.count()) },
            ..BackupProgress::default()
        }),
        hook_status: Some(HookStatus {
            hooks_attempted: large(attempted),
            hooks_failed: large(hooks_failed),
            ..HookStatus::default()
        }),
        ..backup.status.clone().unwrap_or_default()
    };
    counted(&mut status, counts);
    status
}

/// The status of a backup that is over.
pub fn conclude(status: &BackupStatus, now: Timestamp) -> BackupStatus {
    let phase = match status.phase.as_ref().and_then(phase::backup_stage) {
        Some(Stage::Finalizing) => phase::of_backup(Stage::Over, status.errors > 0),
        _ => BackupPhase::Failed,
    };
    BackupStatus { phase: Some(phase), completion_timestamp: Some(Time(now)), ..status.clone() }
}
