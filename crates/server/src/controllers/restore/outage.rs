//! Restores whose buckets cannot be used: they wait, and end by what their journals know if that does not help.

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

use super::facts::Known;
use super::{Course, Then, WorkError, canceled_status, failed, stage_of};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, RunBounds, unless_canceled,
};
use crate::controllers::kit::NotNoted;
use crate::events::Milestone;
use crate::log::RunLog;
use crate::server::Context;

/// How many volumes that may be left over are named in a status.
const VOLUMES_NAMED: usize = 5;
/// How long the object of a deleted restore stays at most for files that cannot be deleted.
const DELETED: Duration = Duration::from_mins(5);

impl Course<'_> {
    /// Goes on at a stage, in a store that is returned as well, if the bucket can be used.
    pub(super) async fn resume(
        &self,
        stage: Stage,
        known: &Known,
        recovered: &Recovered,
    ) -> Result<(Then, Option<BackupStore>), WorkError> {
        let Prepared { outcome, .. } =
            request::prepare(&self.restore, &known.facts, &known.defaults, Timestamp::now());
        let request = match (outcome, known.hidden(&self.restore)) {
            (Ok(request), _) => request,
            (Err(_), Some(refusal)) => {
                let hidden = Err(WorkError::Hidden(refusal));
                return Ok((self.unless_bucket_fails(stage, hidden, Some(recovered)).await?, None));
            }
            (Err(errors), None) => {
                let reason = format!("it is not valid any more: {}", errors.join("; "));
                return Ok((self.give_up(&reason, recovered).await, None));
            }
        };
        let looked = self.ask(async {
            let store = known.open(self.context.as_ref()).await.map_err(WorkError::Open)?;
            // The stages behind the items begin with reading what they need.
            if stage == Stage::Items {
                let found = store.exists(&request.backup_name).await;
                found.map_err(|error| WorkError::of_read(&error))?;
            }
            Ok(store)
        });
        let store = match looked.await {
            Ok(store) => store,
            Err(error) => {
                let failed = self.unless_bucket_fails(stage, Err(error), Some(recovered)).await?;
                return Ok((failed, None));
            }
        };
        if stage == Stage::Items {
            self.kit.note_bucket_back(self.context).await;
            let then = self.items(request, recovered.clone(), &store).await?;
            return Ok((then, Some(store)));
        }
        let attempts = recovered.attempts_at(stage);
        if attempts >= self.bounds().attempts {
            let reason = EndReason::TooManyAttempts(attempts).to_string();
            return Ok((self.give_up(&reason, recovered).await, Some(store)));
        }
        match self.kit.note_stage_attempt(self.context, stage).await {
            Err(NotNoted { reason, is_for_good: false }) => return Err(WorkError::Note(reason)),
            // A journal that is full does not keep a restore from its end.
            Err(NotNoted { reason, is_for_good: true }) => tracing::warn!("{reason}"),
            Ok(()) => {}
        }
        Ok((Then::Stage(Box::new(self.restore.clone())), Some(store)))
    }

    /// What follows a stage. If all that is wrong is the bucket, the restore waits for it, or ends by what its journal
    /// knows. Without what that knows it is tried once more, which opens the journal.
    pub(super) async fn unless_bucket_fails(
        &self,
        stage: Stage,
        outcome: Result<Then, WorkError>,
        recovered: Option<&Recovered>,
    ) -> Result<Then, WorkError> {
        let error = match outcome {
            Ok(then) => {
                if matches!(then, Then::Stage(_)) {
                    self.kit.note_bucket_back(self.context).await;
                }
                return Ok(then);
            }
            Err(error) => error,
        };
        let Some(failure) = error.bucket_failure() else { return Err(error) };
        let attempts = recovered.map_or(0, |recovered| recovered.attempts_at(stage));
        let reason = error.to_string();
        match (self.outage(stage, failure, attempts, &reason).await, recovered) {
            (BucketDecision::End(EndReason::Canceled), Some(recovered)) => {
                let told = format!("its files in the bucket were not read: {reason}");
                Ok(self.give_up(&told, recovered).await)
            }
            (BucketDecision::End(why), Some(recovered)) => {
                Ok(self.give_up(&format!("{why}: {reason}"), recovered).await)
            }
            (BucketDecision::End(_) | BucketDecision::Retry, _) => {
                self.kit.leave_stage_attempt(self.context, stage).await;
                Err(error)
            }
        }
    }

    /// Notes that the bucket cannot be used, and decides what follows.
    pub(super) async fn outage(
        &self,
        stage: Stage,
        failure: BucketFailure,
        attempts: usize,
        reason: &str,
    ) -> BucketDecision {
        let is_canceled = self.is_canceled();
        let deciding = self.kit.decide_outage(self.context, stage, failure, attempts, is_canceled);
        let (decision, begins_to_wait) = deciding.await;
        if begins_to_wait {
            tracing::warn!("the restore waits for its bucket: {reason}");
            self.tell(Milestone::BucketLost).await;
        }
        decision
    }

    /// Waits for an answer of the bucket; not for long once the restore was canceled.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, WorkError>>,
    ) -> Result<T, WorkError> {
        let given_up = || Err(WorkError::Bucket("no answer since the restore was canceled".into()));
        unless_canceled(&self.kit.cancel, call, given_up).await
    }

    /// Ends a restore that is not taken up again: what its journal says that it has begun is told to stop.
    pub(super) async fn give_up(&self, reason: &str, recovered: &Recovered) -> Then {
        let mut operations = restore::begun_before(recovered, self.timeout(), Timestamp::now());
        self.stop_operations(&mut operations).await;
        if self.context.stop.is_cancelled() {
            return Then::Left;
        }
        let is_open = |state: &State| !matches!(state, State::Completed | State::Failed(_));
        let open = operations.iter().filter(|one| is_open(&one.state)).count();
        let mut reason = reason.to_owned();
        if open > 0 {
            reason = format!("{reason}; {open} operations may go on");
        }
        let left = restore::volumes_left(recovered);
        for (id, text) in &left {
            tracing::error!(volume = id.name, "{text}");
        }
        if !left.is_empty() {
            // The status may be gone with its Restore, and does not name all of them.
            self.kit.abandon(stage_of(&self.restore).unwrap_or(Stage::Items)).await;
        }
        let volumes: Vec<String> =
            left.into_iter().map(|(id, text)| format!("; {}: {text}", id.name)).collect();
        reason.extend(volumes.iter().take(VOLUMES_NAMED).map(String::as_str));
        if let more @ 1.. = volumes.len().saturating_sub(VOLUMES_NAMED) {
            reason = format!("{reason}; and {more} more volumes");
        }
        Then::Over(Box::new(self.ended(&reason)))
    }

    /// The status of a restore that ends for a reason, or because it was canceled.
    pub(super) fn ended(&self, reason: &str) -> RestoreStatus {
        if !self.is_canceled() {
            return failed(&self.restore, reason.to_owned());
        }
        let mut status = canceled_status(&self.status());
        status.failure_reason.push_str("; ");
        status.failure_reason.push_str(reason);
        status
    }
}

/// Stops what a restore has begun that is deleted while no process works on it.
pub(super) async fn end_deleted(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: &Restore,
    log: &RunLog,
) -> Result<(), WorkError> {
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
    let opening = Course::open(context, api, restore.clone(), (name, uid), "", log, &cancel);
    // A journal that is damaged cannot say more than was told already.
    let Some((course, recovered)) = opening.await? else { return Ok(()) };
    match course.give_up("it was deleted", &recovered).await {
        Then::Left => {
            course.kit.leave().await;
            Ok(())
        }
        _ => course.forget(None).await,
    }
}

/// Whether a deleted restore stays until its files can be deleted.
pub(super) fn keeps_deleted(deleted: Option<Timestamp>, bounds: RunBounds, now: Timestamp) -> bool {
    let bounds = RunBounds { bucket_wait: bounds.bucket_wait.min(DELETED), ..bounds };
    bounds.has_time(deleted, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_restore_does_not_wait_for_its_bucket_for_ever() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let bounds = |seconds| RunBounds { bucket_wait: Duration::from_secs(seconds), attempts: 4 };
        for (waited, bound, expected) in
            [(0, 9000, true), (299, 9000, true), (300, 9000, false), (7, 8, true), (8, 8, false)]
        {
            let keeps = keeps_deleted(Some(at(1000)), bounds(bound), at(1000 + waited));
            assert_eq!(keeps, expected, "{waited} of {bound}");
        }
    }
}
