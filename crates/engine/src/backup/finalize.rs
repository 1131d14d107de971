//! The end of a backup: the files beside the archive, and the status.
//!
//! All files are written before the commit record, so that a backup that can be seen is whole. The
//! phase and the counts come from what was recorded and from nothing else.

use bowline_api::backup::BackupProgress;
use bowline_api::hook::HookStatus;
use bowline_api::{Backup, BackupPhase, BackupStatus, PodVolumeBackup};
use bowline_store::file::{OperationPhase, Snapshot};
use bowline_store::{BackupName, BackupStore, Error};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Fatal, Taken};

/// Writes every file of a backup but its archive and its commit record.
pub async fn write(
    store: &BackupStore,
    backup: &BackupName,
    taken: &Taken,
    log: Bytes,
) -> Result<(), Error> {
    store.put_log(backup, Box::pin(stream::iter([Ok(log)]))).await?;
    let mut results = taken.report.results();
    if let Err(fatal) = &taken.archive {
        results.errors.velero.push(fatal.told());
    }
    store.put(backup, &results).await?;
    if taken.archive.is_err() {
        return Ok(());
    }
    let (snapshots, copies) = (Vec::<Snapshot>::new(), Vec::<PodVolumeBackup>::new());
    tokio::try_join!(
        store.put(backup, &taken.resources),
        store.put(backup, &taken.volumes),
        store.put(backup, &taken.operations),
        store.put(backup, &snapshots),
        store.put(backup, &copies),
    )?;
    Ok(())
}

/// Whether a backup that has got this far is without fault.
pub fn is_tainted(taken: &Taken) -> bool {
    taken.report.errors() > 0
}

/// The status of a backup whose items are done.
pub fn status(backup: &Backup, taken: &Taken) -> BackupStatus {
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let failed = |operation: &&_| is_failed(operation);
    let (attempted, hooks_failed) = taken.hooks;
    let fatal = taken.archive.as_ref().err();
    BackupStatus {
        phase: Some(match (fatal, is_tainted(taken)) {
            (Some(_), _) => BackupPhase::Failed,
            (None, true) => BackupPhase::FinalizingPartiallyFailed,
            (None, false) => BackupPhase::Finalizing,
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
        backup_item_operations_attempted: count(taken.operations.len()),
        backup_item_operations_failed: count(taken.operations.iter().filter(failed).count()),
        ..backup.status.clone().unwrap_or_default()
    }
}

fn is_failed(operation: &bowline_store::file::BackupOperation) -> bool {
    operation.status.phase == Some(OperationPhase::Failed)
}

/// The status of a backup that is over.
pub fn conclude(status: &BackupStatus, now: Timestamp) -> BackupStatus {
    let phase = match &status.phase {
        Some(BackupPhase::Finalizing) => BackupPhase::Completed,
        Some(BackupPhase::FinalizingPartiallyFailed) => BackupPhase::PartiallyFailed,
        _ => BackupPhase::Failed,
    };
    BackupStatus { phase: Some(phase), completion_timestamp: Some(Time(now)), ..status.clone() }
}
