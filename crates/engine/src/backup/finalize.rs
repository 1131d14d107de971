//! The end of a backup: the files beside the archive, and the status.
//!
//! All files are written before the commit record, so that a visible backup is complete. The phase and the counts
//! derive only from the recorded outcome.

use std::collections::BTreeSet;

use bowline_api::backup::BackupProgress;
use bowline_api::hook::HookStatus;
use bowline_api::{Backup, BackupPhase, BackupStatus, PodVolumeBackup};
use bowline_store::file::{BackupOperation, BowlineBackupInfo, FreezeWindow};
use bowline_store::{BackupFile, BackupName, BackupStore, Error, Key};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{BackupOutcome, FatalError, csi};
use crate::operation::record::{self, RunRef};
use crate::operation::{Counts, Operation, State};
use crate::phase::{self, Stage};

/// Number of freeze windows in a status. All of them are in the bucket.
const SHOWN_WINDOWS: usize = 100;

/// Writes every file of a backup except its archive and its commit record.
pub async fn write(
    store: &BackupStore,
    backup: &BackupName,
    outcome: &BackupOutcome,
    run: RunRef<'_>,
    log: Bytes,
) -> Result<(), Error> {
    store.put_log(backup, Box::pin(stream::iter([Ok(log)]))).await?;
    let mut results = outcome.report.results();
    if let Err(fatal) = &outcome.archive {
        results.errors.velero.push(fatal.error_chain());
    }
    store.put(backup, &results).await?;
    let operations = operation_records(&outcome.operations, run);
    let bowline_info = bowline_info(&outcome.operations, outcome.freezes.clone());
    let Ok(archive) = &outcome.archive else {
        // Operations and snapshots must be visible nevertheless, and be deleted with the record.
        if !operations.is_empty() {
            store.put(backup, &operations).await?;
        }
        if !outcome.snapshots.is_empty() {
            store.put(backup, &outcome.snapshots).await?;
        }
        return if bowline_info == BowlineBackupInfo::default() {
            Ok(())
        } else {
            store.put(backup, &bowline_info).await
        };
    };
    if let Some(index) = &archive.index {
        let key = Key::Backup(backup.clone(), BackupFile::ArchiveIndex);
        store.put_stream(&key, index.stream()).await?;
    }
    let copies = Vec::<PodVolumeBackup>::new();
    tokio::try_join!(
        store.put(backup, &outcome.resources),
        store.put(backup, &outcome.volumes),
        store.put(backup, &operations),
        store.put(backup, &outcome.snapshots),
        store.put(backup, &copies),
        store.put(backup, &bowline_info),
    )?;
    if !outcome.csi_classes.0.is_empty() {
        store.put(backup, &outcome.csi_classes).await?;
    }
    Ok(())
}

/// The file for data that Velero has no file for.
pub fn bowline_info(
    operations: &[Operation],
    freeze_windows: Vec<FreezeWindow>,
) -> BowlineBackupInfo {
    let volume_operations = operations.iter().filter_map(record::of_volume).collect();
    BowlineBackupInfo { freeze_windows, volume_operations, ..BowlineBackupInfo::default() }
}

/// Operations on items, in Velero's format.
pub fn operation_records(operations: &[Operation], run: RunRef<'_>) -> Vec<BackupOperation> {
    let of_items = operations.iter().filter(|one| !one.kind.is_of_volume());
    of_items.map(|operation| record::of_backup(operation, run)).collect()
}

/// The counts of operations, for a status. Velero has no counts of operations on volumes: a snapshot counts as
/// completed when all its operations are.
pub fn count_operations(status: &mut BackupStatus, operations: &[Operation]) {
    let (of_volumes, of_items): (Vec<_>, Vec<_>) =
        operations.iter().partition(|one| one.kind.is_of_volume());
    let counts = Counts::of(of_items.iter().copied());
    status.backup_item_operations_attempted = count(counts.attempted);
    status.backup_item_operations_completed = count(counts.completed);
    status.backup_item_operations_failed = count(counts.failed);
    let mut unfinished = BTreeSet::new();
    let mut snapshotted_volumes = BTreeSet::new();
    for operation in of_volumes {
        snapshotted_volumes.insert(&operation.item.name);
        if operation.state != State::Completed {
            unfinished.insert(&operation.item.name);
        }
    }
    status.volume_snapshots_completed = count(snapshotted_volumes.len() - unfinished.len());
    let is_complete =
        |one: &&&Operation| csi::is_csi_operation(one) && one.state == State::Completed;
    status.csi_volume_snapshots_completed = count(of_items.iter().filter(is_complete).count());
}

/// The freeze windows that fit into a status: the longest.
fn longest(freezes: &[FreezeWindow]) -> Vec<FreezeWindow> {
    let mut longest = freezes.to_vec();
    longest.sort_by_key(|window| std::cmp::Reverse(window.milliseconds));
    longest.truncate(SHOWN_WINDOWS);
    longest
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The status of a backup whose items are done.
pub fn status(backup: &Backup, outcome: &BackupOutcome) -> BackupStatus {
    let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (attempted, hooks_failed) = outcome.hooks;
    let fatal = outcome.archive.as_ref().err();
    let counts = Counts::of(&outcome.operations);
    let stage = phase::after_items(counts.completed + counts.failed < counts.attempted);
    let is_tainted = outcome.report.error_count() > 0;
    let mut status = BackupStatus {
        phase: Some(match fatal {
            Some(_) => BackupPhase::Failed,
            None => phase::of_backup(stage, is_tainted),
        }),
        failure_reason: fatal.map(FatalError::error_chain).unwrap_or_default(),
        errors: count(outcome.report.error_count() + usize::from(fatal.is_some())),
        warnings: count(outcome.report.warning_count()),
        progress: Some(BackupProgress {
            total_items: large(outcome.found),
            // Without an archive nothing is backed up.
            items_backed_up: if fatal.is_some() { 0 } else { count(outcome.resources.count()) },
            ..BackupProgress::default()
        }),
        hook_status: Some(HookStatus {
            hooks_attempted: large(attempted),
            hooks_failed: large(hooks_failed),
            ..HookStatus::default()
        }),
        volume_snapshots_attempted: count(outcome.snapshots.len()),
        csi_volume_snapshots_attempted: count(outcome.csi_snapshots.len()),
        freeze_windows: longest(&outcome.freezes),
        ..backup.status.clone().unwrap_or_default()
    };
    count_operations(&mut status, &outcome.operations);
    status
}

/// The status of a backup that has ended.
pub fn completed_status(status: &BackupStatus, now: Timestamp) -> BackupStatus {
    let phase = match status.phase.as_ref().and_then(phase::backup_stage) {
        Some(Stage::Finalizing) => phase::of_backup(Stage::Over, status.errors > 0),
        _ => BackupPhase::Failed,
    };
    BackupStatus { phase: Some(phase), completion_timestamp: Some(Time(now)), ..status.clone() }
}
