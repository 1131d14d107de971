//! The end of a restore: its files, and the status.

use bowline_api::hook::HookStatus;
use bowline_api::restore::RestoreProgress;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_store::file::RestoreVolumeInfo;
use bowline_store::{BackupStore, Error, RestoreName};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Fatal, Restored};

/// Writes the files of a restore.
pub async fn write(
    store: &BackupStore,
    restore: &RestoreName,
    restored: &Restored,
    log: Bytes,
) -> Result<(), Error> {
    store.put_restore_log(restore, Box::pin(stream::iter([Ok(log)]))).await?;
    let mut results = restored.report.results();
    if let Some(fatal) = &restored.fatal {
        results.errors.velero.push(fatal.told());
    }
    store.put_of_restore(restore, &results).await?;
    store.put_of_restore(restore, &restored.resources).await?;
    store.put_of_restore(restore, &restored.operations).await?;
    store.put_of_restore(restore, &Vec::<RestoreVolumeInfo>::new()).await?;
    Ok(())
}

/// The status of a restore that is over.
pub fn status(restore: &Restore, restored: &Restored, now: Timestamp) -> RestoreStatus {
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let fatal = restored.fatal.as_ref();
    let errors = restored.report.errors() + usize::from(fatal.is_some());
    let (attempted, failed) = restored.hooks;
    RestoreStatus {
        phase: Some(match (fatal, errors) {
            (Some(_), _) => RestorePhase::Failed,
            (None, 0) => RestorePhase::Completed,
            (None, _) => RestorePhase::PartiallyFailed,
        }),
        failure_reason: fatal.map(Fatal::told).unwrap_or_default(),
        errors: count(errors),
        warnings: count(restored.report.warnings()),
        completion_timestamp: Some(Time(now)),
        progress: Some(RestoreProgress {
            total_items: count(restored.items),
            items_restored: count(restored.items),
            ..RestoreProgress::default()
        }),
        hook_status: Some(HookStatus {
            hooks_attempted: large(attempted),
            hooks_failed: large(failed),
            ..HookStatus::default()
        }),
        restore_item_operations_attempted: count(restored.operations.len()),
        restore_item_operations_failed: count(restored.operations.len()),
        ..restore.status.clone().unwrap_or_default()
    }
}
