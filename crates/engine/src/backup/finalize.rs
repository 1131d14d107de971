//! The end of a backup: the files beside the archive, and the status.
//!
//! All files are written before the commit record, so that a backup that can be seen is whole. The
//! phase and the counts come from what was recorded and from nothing else.

use std::collections::BTreeSet;

use bowline_api::backup::BackupProgress;
use bowline_api::hook::HookStatus;
use bowline_api::{Backup, BackupPhase, BackupStatus, PodVolumeBackup};
use bowline_store::file::{BackupOperation, FreezeWindow, Own};
use bowline_store::{BackupName, BackupStore, Error};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Fatal, Taken, csi};
use crate::operation::record::{self, Of};
use crate::operation::{Counts, Operation, State};
use crate::phase::{self, Stage};

/// How many freeze windows a status shows. All of them are in the bucket.
const SHOWN_WINDOWS: usize = 100;

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
    let own = own(&taken.operations, taken.freezes.clone());
    if taken.archive.is_err() {
        // What was begun and taken is to be seen all the same, and deleted with the record.
        if !operations.is_empty() {
            store.put(backup, &operations).await?;
        }
        if !taken.snapshots.is_empty() {
            store.put(backup, &taken.snapshots).await?;
        }
        return if own == Own::default() { Ok(()) } else { store.put(backup, &own).await };
    }
    let copies = Vec::<PodVolumeBackup>::new();
    tokio::try_join!(
        store.put(backup, &taken.resources),
        store.put(backup, &taken.volumes),
        store.put(backup, &operations),
        store.put(backup, &taken.snapshots),
        store.put(backup, &copies),
        store.put(backup, &own),
    )?;
    if !taken.csi_classes.0.is_empty() {
        store.put(backup, &taken.csi_classes).await?;
    }
    Ok(())
}

/// What Velero has no file for.
pub fn own(operations: &[Operation], freeze_windows: Vec<FreezeWindow>) -> Own {
    let volume_operations = operations.iter().filter_map(record::of_volume).collect();
    Own { freeze_windows, volume_operations, ..Own::default() }
}

/// Operations on items, as Velero keeps them.
pub fn records(operations: &[Operation], run: Of<'_>) -> Vec<BackupOperation> {
    let of_items = operations.iter().filter(|one| !one.kind.is_of_volume());
    of_items.map(|operation| record::of_backup(operation, run)).collect()
}

/// The counts of operations, for a status. Velero has no counts of operations on volumes: a snapshot
/// counts as completed when all that was to be done with it is.
pub fn counted(status: &mut BackupStatus, operations: &[Operation]) {
    let (of_volumes, of_items): (Vec<_>, Vec<_>) =
        operations.iter().partition(|one| one.kind.is_of_volume());
    let counts = Counts::of(of_items.iter().copied());
    status.backup_item_operations_attempted = count(counts.attempted);
    status.backup_item_operations_completed = count(counts.completed);
    status.backup_item_operations_failed = count(counts.failed);
    let mut unfinished = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for operation in of_volumes {
        taken.insert(&operation.item.name);
        if operation.state != State::Completed {
            unfinished.insert(&operation.item.name);
        }
    }
    status.volume_snapshots_completed = count(taken.len() - unfinished.len());
    let is_complete = |one: &&&Operation| csi::is_of_csi(one) && one.state == State::Completed;
    status.csi_volume_snapshots_completed = count(of_items.iter().filter(is_complete).count());
}

/// What of the freeze windows fits into a status: the longest.
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
        volume_snapshots_attempted: count(taken.snapshots.len()),
        csi_volume_snapshots_attempted: count(taken.csi_snapshots.len()),
        freeze_windows: longest(&taken.freezes),
        ..backup.status.clone().unwrap_or_default()
    };
    counted(&mut status, &taken.operations);
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
