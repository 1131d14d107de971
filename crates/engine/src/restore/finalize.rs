//! The end of a restore: its files and its status. Updates of the new volumes are in [`volumes`].

pub mod volumes;

use bowline_api::hook::HookStatus;
use bowline_api::restore::RestoreProgress;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_store::file::RestoreOperation;
use bowline_store::{BackupStore, Error, RestoreName};
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{FatalError, RestoreOutcome};
use crate::operation::record::{self, RunRef};
use crate::operation::{Counts, Operation};
use crate::phase::{self, Stage};

/// Writes the files of a restore.
pub async fn write(
    store: &BackupStore,
    restore: &RestoreName,
    outcome: &RestoreOutcome,
    run: RunRef<'_>,
    log: Bytes,
) -> Result<(), Error> {
    store.put_restore_log(restore, Box::pin(stream::iter([Ok(log)]))).await?;
    let mut results = outcome.report.results();
    if let Some(fatal) = &outcome.fatal {
        results.errors.velero.push(fatal.error_chain());
    }
    store.put_restore_file(restore, &results).await?;
    store.put_restore_file(restore, &outcome.resources).await?;
    store.put_restore_file(restore, &operation_records(&outcome.operations, run)).await?;
    store.put_restore_file(restore, &outcome.volumes).await?;
    Ok(())
}

/// Operations in their stored form.
pub fn operation_records(operations: &[Operation], run: RunRef<'_>) -> Vec<RestoreOperation> {
    operations.iter().map(|operation| record::of_restore(operation, run)).collect()
}

/// The status of a restore whose items have been processed.
pub fn status(restore: &Restore, outcome: &RestoreOutcome) -> RestoreStatus {
    let large = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let fatal = outcome.fatal.as_ref();
    let errors = outcome.report.error_count() + usize::from(fatal.is_some());
    let (attempted, failed) = outcome.hooks;
    let counts = Counts::of(&outcome.operations);
    let stage = phase::after_items(counts.completed + counts.failed < counts.attempted);
    let mut status = RestoreStatus {
        phase: Some(match fatal {
            Some(_) => RestorePhase::Failed,
            None => phase::of_restore(stage, errors > 0),
        }),
        failure_reason: fatal.map(FatalError::error_chain).unwrap_or_default(),
        errors: count(errors),
        warnings: count(outcome.report.warning_count()),
        progress: Some(RestoreProgress {
            total_items: count(outcome.total),
            items_restored: count(outcome.items),
            ..RestoreProgress::default()
        }),
        hook_status: Some(HookStatus {
            hooks_attempted: large(attempted),
            hooks_failed: large(failed),
            ..HookStatus::default()
        }),
        ..restore.status.clone().unwrap_or_default()
    };
    set_operation_counts(&mut status, counts);
    status
}

/// Sets the operation counts of a status.
pub fn set_operation_counts(status: &mut RestoreStatus, counts: Counts) {
    status.restore_item_operations_attempted = count(counts.attempted);
    status.restore_item_operations_completed = count(counts.completed);
    status.restore_item_operations_failed = count(counts.failed);
}

/// The status of a restore that has ended.
pub fn completed_status(status: &RestoreStatus, now: Timestamp) -> RestoreStatus {
    let phase = match status.phase.as_ref().and_then(phase::restore_stage) {
        Some(Stage::Finalizing) => phase::of_restore(Stage::Over, status.errors > 0),
        _ => RestorePhase::Failed,
    };
    RestoreStatus { phase: Some(phase), completion_timestamp: Some(Time(now)), ..status.clone() }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
