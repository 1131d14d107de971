//! Backups whose buckets cannot be used: they wait, and end by what their journals know if that does not help.

use bowline_api::BackupStatus;
use bowline_engine::journal::Recovered;
use bowline_engine::phase::{Stage, backup_stage};

use super::clean::told_left;
use super::{Course, Then, WorkError, canceled_status, failed, gone, phase_of};
use crate::controllers::bucket_wait::{BucketDecision, BucketFailure, EndReason, unless_canceled};
use crate::controllers::kit::NotNoted;
use crate::events::Milestone;

impl Course<'_> {
    /// Begins with a stage behind the items that another process has left. One that has ended the server too often
    /// ends here.
    pub(super) async fn begin_stage(&self) -> Result<Then, WorkError> {
        let next = Then::Stage(Box::new(self.backup.clone()));
        let (Some(stage), Some(recovered)) =
            (phase_of(&self.backup).and_then(backup_stage), &self.recovered)
        else {
            return Ok(next);
        };
        let attempts = recovered.attempts_at(stage);
        if attempts >= self.bounds().attempts {
            let why = EndReason::TooManyAttempts(attempts);
            return self.end_by_journal(stage, why, "", recovered).await;
        }
        match self.kit.note_stage_attempt(self.context, stage).await {
            Err(NotNoted { reason, is_for_good: false }) => Err(WorkError::Thaw(reason)),
            // A journal that is full does not keep a backup from its end.
            Err(NotNoted { reason, is_for_good: true }) => {
                tracing::warn!("{reason}");
                Ok(next)
            }
            Ok(()) => Ok(next),
        }
    }

    /// What follows a stage. If all that is wrong is the bucket, the backup waits for it, or ends by what its journal
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
            (BucketDecision::End(why), Some(recovered)) => {
                self.end_by_journal(stage, why, &reason, recovered).await
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
            tracing::warn!("the backup waits for its bucket: {reason}");
            self.tell(Milestone::BucketLost).await;
        }
        decision
    }

    /// Waits for an answer of the bucket; not for long once the backup was canceled.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, WorkError>>,
    ) -> Result<T, WorkError> {
        let given_up = || Err(WorkError::Bucket("no answer since the backup was canceled".into()));
        unless_canceled(&self.kit.cancel, call, given_up).await
    }

    /// Ends a backup without its bucket: operations that its journal names are told to stop, and snapshots deleted.
    /// Behind the operations the bucket may have the record of the backup, and the snapshots belong to it then: they
    /// stay until that is known. What is left is named, and the journal is kept for it.
    async fn end_by_journal(
        &self,
        stage: Stage,
        why: EndReason,
        reason: &str,
        recovered: &Recovered,
    ) -> Result<Then, WorkError> {
        let may_be_recorded = stage >= Stage::Finalizing;
        let left = if may_be_recorded {
            gone::made(recovered)
        } else {
            gone::take_away(self.context, &self.backup, recovered).await
        };
        if self.context.stop.is_cancelled() {
            return Ok(Then::Left);
        }
        if !self.is_there().await? {
            for one in &left {
                tracing::error!("of a backup that is gone there is left over: {one}");
            }
            if !left.is_empty() {
                self.kit.keep_journal();
            }
            return Ok(Then::Gone);
        }
        if !left.is_empty() {
            self.kit.abandon(stage).await;
        }
        let told = if may_be_recorded { told_kept(&left) } else { told_left(&left) };
        Ok(Then::Over(Box::new(ended(&self.status(), why, reason, &told))))
    }
}

/// The status of a backup that ended without its bucket.
fn ended(status: &BackupStatus, why: EndReason, reason: &str, left: &str) -> BackupStatus {
    if why == EndReason::Canceled {
        let mut status = canceled_status(status);
        let told = format!("; its files in the bucket were not read: {reason}{left}");
        status.failure_reason.push_str(&told);
        return status;
    }
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    failed(status, format!("{why}{reason}{left}"))
}

/// Names the first few of what is kept, for a status that is the only place to tell it.
fn told_kept(left: &[String]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let named = told_left(left);
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
    fn the_reason_says_why_it_ended_and_what_is_left() {
        let status = BackupStatus::default();
        let left = ["the snapshot snap-1 of the volume pv-1 at east".to_owned()];
        let why = EndReason::WaitedTooLong(Duration::from_secs(7));
        let end = ended(&status, why, "it is away", &told_left(&left));
        assert_eq!(end.phase, Some(BackupPhase::Failed));
        assert_eq!(
            end.failure_reason,
            "the bucket could not be used for 7 s: it is away; and the snapshot snap-1 of the volume pv-1 at \
             east could not be deleted"
        );
        let end = ended(&status, EndReason::Canceled, "it is away", &told_kept(&left));
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
