//! Backups whose buckets cannot be used: they wait, and if that does not help, end based on their journals.

use bowline_api::BackupStatus;
use bowline_engine::journal::Recovered;
use bowline_engine::phase::{Stage, backup_stage};

use super::leftovers::leftovers_message;
use super::{
    BackupRun, BackupRunError, NextStage, canceled_status, failed_status, journal_cleanup, phase_of,
};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, with_cancel_grace,
};
use crate::controllers::run_resources::AttemptNotJournaled;
use crate::events::Milestone;

impl BackupRun<'_> {
    /// Resumes a stage after the items that another process has left. A stage that has ended the server too often ends
    /// the backup here.
    pub(super) async fn resume_stage(&self) -> Result<NextStage, BackupRunError> {
        let next = NextStage::Continue(Box::new(self.backup.clone()));
        let (Some(stage), Some(recovered)) =
            (phase_of(&self.backup).and_then(backup_stage), &self.recovered)
        else {
            return Ok(next);
        };
        let attempts = recovered.attempts_at(stage);
        if attempts >= self.bounds().attempts {
            let end_reason = EndReason::TooManyAttempts(attempts);
            return self.end_from_journal(stage, end_reason, "", recovered).await;
        }
        match self.resources.journal_stage_attempt(self.context, stage).await {
            Err(AttemptNotJournaled { reason, is_for_good: false }) => {
                Err(BackupRunError::Retryable(reason))
            }
            // A full journal does not keep a backup from ending.
            Err(AttemptNotJournaled { reason, is_for_good: true }) => {
                tracing::warn!("{reason}");
                Ok(next)
            }
            Ok(()) => Ok(next),
        }
    }

    /// Next stage after a failure. If only the bucket is the problem, the backup waits for it, or ends based on its
    /// journal. If the contents of the journal are not known, the backup is retried once more, which opens the journal.
    pub(super) async fn handle_bucket_failure(
        &self,
        stage: Stage,
        outcome: Result<NextStage, BackupRunError>,
        recovered: Option<&Recovered>,
    ) -> Result<NextStage, BackupRunError> {
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
            (BucketDecision::End(end_reason), Some(recovered)) => {
                self.end_from_journal(stage, end_reason, &reason, recovered).await
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
            tracing::warn!("the backup waits for its bucket: {reason}");
            self.publish_milestone(Milestone::BucketLost).await;
        }
        decision
    }

    /// Waits for an answer of the bucket; after a cancellation, only for a short time.
    pub(super) async fn wait_for_bucket<T>(
        &self,
        call: impl Future<Output = Result<T, BackupRunError>>,
    ) -> Result<T, BackupRunError> {
        let given_up =
            || Err(BackupRunError::Bucket("no answer since the backup was canceled".into()));
        with_cancel_grace(&self.resources.cancel, call, given_up).await
    }

    /// Ends a backup without its bucket: operations in its journal are canceled, and snapshots deleted. After the
    /// operations, the bucket may have the record of the backup, and the snapshots then belong to it: they are kept
    /// until that is known. Leftovers are named, and the journal is kept for them.
    async fn end_from_journal(
        &self,
        stage: Stage,
        end_reason: EndReason,
        reason: &str,
        recovered: &Recovered,
    ) -> Result<NextStage, BackupRunError> {
        let may_be_recorded = stage >= Stage::Finalizing;
        let leftovers = if may_be_recorded {
            journal_cleanup::created_objects(recovered)
        } else {
            journal_cleanup::delete_created(self.context, &self.backup, recovered).await
        };
        if self.context.stop.is_cancelled() {
            return Ok(NextStage::HandedOver);
        }
        if !self.object_exists().await? {
            for one in &leftovers {
                tracing::error!("of a backup that is gone there is left over: {one}");
            }
            if !leftovers.is_empty() {
                self.resources.keep_journal();
            }
            return Ok(NextStage::ObjectGone);
        }
        if !leftovers.is_empty() {
            self.resources.journal_abandoned(stage).await;
        }
        let message =
            if may_be_recorded { kept_message(&leftovers) } else { leftovers_message(&leftovers) };
        Ok(NextStage::Finished(Box::new(ended_without_bucket(
            &self.status(),
            end_reason,
            reason,
            &message,
        ))))
    }
}

/// Status of a backup that ended without its bucket.
fn ended_without_bucket(
    status: &BackupStatus,
    end_reason: EndReason,
    reason: &str,
    leftovers: &str,
) -> BackupStatus {
    if end_reason == EndReason::Canceled {
        let mut status = canceled_status(status);
        let message = format!("; its files in the bucket were not read: {reason}{leftovers}");
        status.failure_reason.push_str(&message);
        return status;
    }
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    failed_status(status, format!("{end_reason}{reason}{leftovers}"))
}

/// Names the first few objects that are kept, for a status that is the only place to report them.
fn kept_message(leftovers: &[String]) -> String {
    if leftovers.is_empty() {
        return String::new();
    }
    let named = leftovers_message(leftovers);
    let named = named.trim_start_matches("; and ").trim_end_matches(" could not be deleted");
    format!(
        "; the bucket may have the whole backup, so {named} will be kept until it says that it has not"
    )
}

#[cfg(test)]
mod tests {
    use bowline_api::BackupPhase;
    use std::time::Duration;

    use super::*;

    #[test]
    fn failure_reason_names_the_cause_and_the_leftovers() {
        let status = BackupStatus::default();
        let leftovers = ["the snapshot snap-1 of the volume pv-1 at east".to_owned()];
        let end_reason = EndReason::WaitedTooLong(Duration::from_secs(7));
        let end =
            ended_without_bucket(&status, end_reason, "it is away", &leftovers_message(&leftovers));
        assert_eq!(end.phase, Some(BackupPhase::Failed));
        assert_eq!(
            end.failure_reason,
            "the bucket could not be used for 7 s: it is away; and the snapshot snap-1 of the volume pv-1 at \
             east could not be deleted"
        );
        let end = ended_without_bucket(
            &status,
            EndReason::Canceled,
            "it is away",
            &kept_message(&leftovers),
        );
        assert!(end.failure_reason.starts_with("canceled: "), "{}", end.failure_reason);
        assert!(
            end.failure_reason.ends_with(
                "; the bucket may have the whole backup, so the snapshot snap-1 of the volume pv-1 at east \
                 will be kept until it says that it has not"
            ),
            "{}",
            end.failure_reason
        );
    }
}
