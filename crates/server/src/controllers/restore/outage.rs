//! Restores whose buckets cannot be used: they wait, and if that does not help, end based on their journals.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, RestoreStatus};
use bowline_engine::journal::Recovered;
use bowline_engine::operation::State;
use bowline_engine::phase::Stage;
use bowline_engine::restore;
use bowline_engine::restore::request::{self, Prepared};
use bowline_store::name::RunUid;
use bowline_store::{BackupStore, RestoreName};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::facts::RestoreFacts;
use super::{NextStage, RestoreRun, RestoreRunError, canceled_status, failed_status, stage_of};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, RunBounds, with_cancel_grace,
};
use crate::controllers::run_resources::AttemptNotJournaled;
use crate::events::Milestone;
use crate::log::RunLog;
use crate::server::Context;

/// Maximum number of leftover volumes named in a status.
const MAX_NAMED_VOLUMES: usize = 5;
/// Maximum time for which a deleted Restore stays because its files cannot be deleted.
const MAX_DELETED_WAIT: Duration = Duration::from_mins(5);

impl RestoreRun<'_> {
    /// Resumes a stage if the bucket can be used. Returns its store as well.
    pub(super) async fn resume(
        &self,
        stage: Stage,
        known: &RestoreFacts,
        recovered: &Recovered,
    ) -> Result<(NextStage, Option<BackupStore>), RestoreRunError> {
        let Prepared { outcome, .. } =
            request::prepare(&self.restore, &known.facts, &known.defaults, Timestamp::now());
        let request = match (outcome, known.unknown_reason(&self.restore)) {
            (Ok(request), _) => request,
            (Err(_), Some(refusal)) => {
                let hidden = Err(RestoreRunError::BackupUnknown(refusal));
                return Ok((
                    self.handle_bucket_failure(stage, hidden, Some(recovered)).await?,
                    None,
                ));
            }
            (Err(invalid), None) => {
                let errors = invalid.messages().join("; ");
                let reason = format!("it is not valid any more: {errors}");
                return Ok((self.end_given_up(&reason, recovered).await, None));
            }
        };
        let opening = self.wait_for_bucket(async {
            let store = known.open(self.context.as_ref()).await.map_err(RestoreRunError::Open)?;
            // The stages after the items start by reading their input.
            if stage == Stage::Items {
                let found = store.exists(&request.backup_name).await;
                found.map_err(|error| RestoreRunError::of_read(&error))?;
            }
            Ok(store)
        });
        let store = match opening.await {
            Ok(store) => store,
            Err(error) => {
                let failed = self.handle_bucket_failure(stage, Err(error), Some(recovered)).await?;
                return Ok((failed, None));
            }
        };
        if stage == Stage::Items {
            self.resources.journal_bucket_back(self.context).await;
            let next_stage = self.run_items(request, recovered.clone(), &store).await?;
            return Ok((next_stage, Some(store)));
        }
        let attempts = recovered.attempts_at(stage);
        if attempts >= self.bounds().attempts {
            let reason = EndReason::TooManyAttempts(attempts).to_string();
            return Ok((self.end_given_up(&reason, recovered).await, Some(store)));
        }
        match self.resources.journal_stage_attempt(self.context, stage).await {
            Err(AttemptNotJournaled { reason, is_for_good: false }) => {
                return Err(RestoreRunError::Retryable(reason));
            }
            // A full journal does not keep a restore from ending.
            Err(AttemptNotJournaled { reason, is_for_good: true }) => tracing::warn!("{reason}"),
            Ok(()) => {}
        }
        Ok((NextStage::Continue(Box::new(self.restore.clone())), Some(store)))
    }

    /// Next stage after a failure. If only the bucket is the problem, the restore waits for it, or ends based on its
    /// journal. If the contents of the journal are not known, the restore is retried once more, which opens the
    /// journal.
    pub(super) async fn handle_bucket_failure(
        &self,
        stage: Stage,
        outcome: Result<NextStage, RestoreRunError>,
        recovered: Option<&Recovered>,
    ) -> Result<NextStage, RestoreRunError> {
        let error = match outcome {
            Ok(next_stage) => {
                if matches!(next_stage, NextStage::Continue(_)) {
                    self.resources.journal_bucket_back(self.context).await;
                }
                return Ok(next_stage);
            }
            Err(error) => error,
        };
        let Some(failure) = error.bucket_failure() else { return Err(error) };
        let attempts = recovered.map_or(0, |recovered| recovered.attempts_at(stage));
        let reason = error.to_string();
        match (self.journal_outage(stage, failure, attempts, &reason).await, recovered) {
            (BucketDecision::End(EndReason::Canceled), Some(recovered)) => {
                let message = format!("its files in the bucket were not read: {reason}");
                Ok(self.end_given_up(&message, recovered).await)
            }
            (BucketDecision::End(end_reason), Some(recovered)) => {
                Ok(self.end_given_up(&format!("{end_reason}: {reason}"), recovered).await)
            }
            (BucketDecision::End(_) | BucketDecision::Retry, _) => {
                self.resources.journal_stage_attempt_left(self.context, stage).await;
                Err(error)
            }
        }
    }

    /// Journals that the bucket cannot be used, and decides what follows.
    pub(super) async fn journal_outage(
        &self,
        stage: Stage,
        failure: BucketFailure,
        attempts: usize,
        reason: &str,
    ) -> BucketDecision {
        let is_canceled = self.is_canceled();
        let deciding =
            self.resources.decide_outage(self.context, stage, failure, attempts, is_canceled);
        let (decision, begins_to_wait) = deciding.await;
        if begins_to_wait {
            tracing::warn!("the restore waits for its bucket: {reason}");
            self.publish_milestone(Milestone::BucketLost).await;
        }
        decision
    }

    /// Waits for an answer of the bucket; after a cancellation, only for a short time.
    pub(super) async fn wait_for_bucket<T>(
        &self,
        call: impl Future<Output = Result<T, RestoreRunError>>,
    ) -> Result<T, RestoreRunError> {
        let given_up =
            || Err(RestoreRunError::Bucket("no answer since the restore was canceled".into()));
        with_cancel_grace(&self.resources.cancel, call, given_up).await
    }

    /// Ends a restore that is not resumed: the operations in its journal are canceled.
    pub(super) async fn end_given_up(&self, reason: &str, recovered: &Recovered) -> NextStage {
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
            reason = format!("{reason}; {open} operations may go on");
        }
        let left = restore::leftover_volumes(recovered);
        for (id, text) in &left {
            tracing::error!(volume = id.name, "{text}");
        }
        if !left.is_empty() {
            // The status may be gone with its Restore, and does not name all of them.
            self.resources.journal_abandoned(stage_of(&self.restore).unwrap_or(Stage::Items)).await;
        }
        let volumes: Vec<String> =
            left.into_iter().map(|(id, text)| format!("; {}: {text}", id.name)).collect();
        reason.extend(volumes.iter().take(MAX_NAMED_VOLUMES).map(String::as_str));
        if let more @ 1.. = volumes.len().saturating_sub(MAX_NAMED_VOLUMES) {
            reason = format!("{reason}; and {more} more volumes");
        }
        NextStage::Finished(Box::new(self.ended_status(&reason)))
    }

    /// Status of a restore that ends for a reason, or because it was canceled.
    pub(super) fn ended_status(&self, reason: &str) -> RestoreStatus {
        if !self.is_canceled() {
            return failed_status(&self.restore, reason.to_owned());
        }
        let mut status = canceled_status(&self.status());
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
) -> Result<(), RestoreRunError> {
    if stage_of(restore).is_none() {
        return Ok(());
    }
    let (Ok(name), Ok(uid)) =
        (RestoreName::new(restore.name_any()), RunUid::new(restore.uid().unwrap_or_default()))
    else {
        return Ok(());
    };
    let cancel = CancellationToken::new();
    cancel.cancel();
    let opening = RestoreRun::open(context, api, restore.clone(), (name, uid), "", log, &cancel);
    // A damaged journal has nothing to add to what was reported.
    let Some((run, recovered)) = opening.await? else { return Ok(()) };
    match run.end_given_up("it was deleted", &recovered).await {
        NextStage::HandedOver => {
            run.resources.hand_over().await;
            Ok(())
        }
        _ => run.remove_journal(None).await,
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
