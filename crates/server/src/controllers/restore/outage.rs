//! Restores that are resumed, and those that end based on their journals. `run/outage.rs` decides when a restore whose
//! bucket is away does.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, RestoreStatus};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::operation::State;
use bowline_engine::phase::Stage;
use bowline_engine::restore;
use bowline_engine::restore::request::{self, PreparedRestore};
use jiff::Timestamp;
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::facts::RestoreFacts;
use super::{NextStage, RestoreRun, RunError, RunObject as _, RunStatus as _};
use crate::controllers::bucket_wait::{BucketFailure, RunBounds};
use crate::controllers::run::{BucketCause, BucketError, identity};
use crate::log::RunLog;
use crate::server::Context;

/// Maximum number of leftover volumes named in a status.
const MAX_NAMED_VOLUMES: usize = 5;
/// Maximum time for which a deleted Restore stays because its files cannot be deleted.
const MAX_DELETED_WAIT: Duration = Duration::from_mins(5);

impl RestoreRun<'_> {
    /// Resumes a stage if the bucket can be used.
    pub(super) async fn resume(
        &mut self,
        stage: Stage,
        known: &RestoreFacts,
        recovered: &RecoveredRun,
    ) -> Result<NextStage, RunError> {
        let PreparedRestore { outcome, .. } =
            request::prepare(&self.object, &known.facts, &known.defaults, Timestamp::now());
        let request = match (outcome, known.unknown_reason(&self.object)) {
            (Ok(request), _) => request,
            (Err(_), Some(refusal)) => {
                let hidden = Err(RunError::Bucket(BucketError {
                    step: "the backup and storage location of the restore cannot be read",
                    failure: BucketFailure::Refused,
                    source: Box::new(BucketCause::LocationUnknown(refusal)),
                }));
                return self.handle_bucket_failure(stage, hidden, Some(recovered)).await;
            }
            (Err(invalid), None) => {
                let errors = invalid.messages().join("; ");
                let reason = format!("the restore is no longer valid: {errors}");
                return Ok(self.end_given_up(&reason, recovered).await);
            }
        };
        let opening = self.wait_for_bucket(async {
            let store = known.open(self.context.as_ref()).await.map_err(RunError::Open)?;
            // The stages after the items start by reading their input.
            if stage == Stage::Items {
                let found = store.exists(&request.backup_name).await;
                found.map_err(RunError::of_read::<Restore>)?;
            }
            Ok(store)
        });
        let store = match opening.await {
            Ok(store) => store,
            Err(error) => {
                return self.handle_bucket_failure(stage, Err(error), Some(recovered)).await;
            }
        };
        self.store = Some(store.clone());
        if stage == Stage::Items {
            self.resources.journal_bucket_back(self.context).await;
            return self.run_items(request, recovered.clone(), &store).await;
        }
        self.resume_stage(stage, recovered).await
    }

    /// Ends a restore that is not resumed: the operations in its journal are canceled.
    pub(super) async fn end_given_up(&self, reason: &str, recovered: &RecoveredRun) -> NextStage {
        let mut operations =
            restore::operations_before_restart(recovered, self.timeout(), Timestamp::now());
        self.stop_operations(&mut operations).await;
        if self.context.stop.is_cancelled() {
            return NextStage::HandedOver;
        }
        let is_open = |state: &State| !matches!(state, State::Completed | State::Failed(_));
        let open = operations.iter().filter(|one| is_open(&one.state)).count();
        let mut reason = reason.to_owned();
        if open > 0 {
            reason = format!("{reason}; {open} operations may continue to run");
        }
        let leftovers = restore::leftover_volumes(recovered);
        for (id, text) in &leftovers {
            tracing::error!(volume = id.name, "{text}");
        }
        if !leftovers.is_empty() {
            // The status may be gone with its Restore, and does not name all of them.
            self.resources
                .journal_end_without_bucket(self.object.stage().unwrap_or(Stage::Items))
                .await;
        }
        let volumes: Vec<String> =
            leftovers.into_iter().map(|(id, text)| format!("; {}: {text}", id.name)).collect();
        reason.extend(volumes.iter().take(MAX_NAMED_VOLUMES).map(String::as_str));
        if let more @ 1.. = volumes.len().saturating_sub(MAX_NAMED_VOLUMES) {
            reason = format!("{reason}; and {more} more volumes");
        }
        NextStage::finished(self.ended_status(&reason))
    }

    /// Status of a restore that ends for a reason, or because it was canceled.
    pub(super) fn ended_status(&self, reason: &str) -> RestoreStatus {
        if !self.is_canceled() {
            return self.status().failed(reason.to_owned());
        }
        let mut status = self.status().canceled();
        status.failure_reason.push_str("; ");
        status.failure_reason.push_str(reason);
        status
    }
}

/// Stops the operations of a restore that is deleted while no process works on it.
pub(super) async fn end_deleted(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: &Restore,
    log: &RunLog,
) -> Result<(), RunError> {
    if restore.stage().is_none() || identity(restore).is_err() {
        return Ok(());
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    let opening = RestoreRun::open(context, api, restore.clone(), "", log, &cancel);
    // A damaged journal has nothing to add to what was reported.
    let Some((run, recovered)) = opening.await? else { return Ok(()) };
    match run.end_given_up("the restore was deleted", &recovered).await {
        NextStage::HandedOver => {
            run.resources.hand_over().await;
            Ok(())
        }
        _ => run.remove_journal().await,
    }
}

/// True if a deleted restore stays until its files can be deleted.
pub(super) fn should_keep_deleted(
    deleted: Option<Timestamp>,
    bounds: RunBounds,
    now: Timestamp,
) -> bool {
    let bounds = RunBounds { bucket_wait: bounds.bucket_wait.min(MAX_DELETED_WAIT), ..bounds };
    bounds.has_time(deleted, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_restore_waits_for_its_bucket_for_a_limited_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let bounds = |seconds| RunBounds { bucket_wait: Duration::from_secs(seconds), attempts: 4 };
        for (waited, bound, expected) in
            [(0, 9000, true), (299, 9000, true), (300, 9000, false), (7, 8, true), (8, 8, false)]
        {
            let keeps = should_keep_deleted(Some(at(1000)), bounds(bound), at(1000 + waited));
            assert_eq!(keeps, expected, "{waited} of {bound}");
        }
    }
}
