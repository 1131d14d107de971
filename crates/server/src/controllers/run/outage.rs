//! Runs whose buckets cannot be used: they wait, and if that does not help, end based on their journals.

use bowline_engine::journal::{self, RecoveredRun};
use bowline_engine::phase::Stage;
use bytes::Bytes;

use super::error::{BucketCause, RunError};
use super::lifecycle::{NextStage, Run, RunObject};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, with_cancel_grace,
};
use crate::error_text::status_message;
use crate::events::Milestone;

impl<K: RunObject> Run<'_, K> {
    /// Resumes a stage after the items that another process has left. A stage that has ended the server too often ends
    /// the run here.
    pub(in crate::controllers) async fn resume_stage(
        &self,
        stage: Stage,
        recovered: &RecoveredRun,
    ) -> Result<NextStage<K>, RunError> {
        let attempts = recovered.attempts_at(stage);
        if attempts >= self.bounds().attempts {
            let end_reason = EndReason::TooManyAttempts(attempts);
            return K::end_from_journal(self, stage, end_reason, "", recovered).await;
        }
        match self.resources.journal_stage_attempt(self.context, stage).await {
            // A full journal does not keep a run from ending.
            Err(error @ journal::Error::Full(_)) => tracing::warn!("{error}"),
            journaled => journaled?,
        }
        Ok(NextStage::Continue(Box::new(self.object.clone())))
    }

    /// Next stage after a failure. If only the bucket is the problem, the run waits for it, or ends based on its
    /// journal. If the contents of the journal are not known, the run is retried once more, which opens the journal.
    pub(in crate::controllers) async fn handle_bucket_failure(
        &self,
        stage: Stage,
        outcome: Result<NextStage<K>, RunError>,
        recovered: Option<&RecoveredRun>,
    ) -> Result<NextStage<K>, RunError> {
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
        let reason = status_message(&error);
        match (self.journal_outage(stage, failure, attempts, &reason).await, recovered) {
            (BucketDecision::End(end_reason), Some(recovered)) => {
                K::end_from_journal(self, stage, end_reason, &reason, recovered).await
            }
            (BucketDecision::End(_) | BucketDecision::Retry, _) => {
                self.resources.journal_stage_attempt_left(self.context, stage).await;
                Err(error)
            }
        }
    }

    /// Journals that the bucket cannot be used, and decides what follows.
    pub(in crate::controllers) async fn journal_outage(
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
            tracing::warn!("the {} waits for the bucket: {reason}", K::NOUN);
            self.publish_milestone(Milestone::BucketLost).await;
        }
        decision
    }

    /// Waits for an answer of the bucket; after a cancellation, only for a short time.
    pub(in crate::controllers) async fn wait_for_bucket<T>(
        &self,
        call: impl Future<Output = Result<T, RunError>>,
    ) -> Result<T, RunError> {
        let given_up = || {
            let cause = BucketCause::Canceled(K::NOUN);
            Err(RunError::of_bucket::<K>(BucketFailure::Unreachable, cause))
        };
        with_cancel_grace(&self.resources.cancel, call, given_up).await
    }

    /// Makes the log continue what an earlier process has written to the bucket.
    pub(in crate::controllers) async fn load_earlier_log(
        &self,
        read: impl Future<Output = Result<Option<Bytes>, RunError>>,
    ) -> Result<(), RunError> {
        if self.resources.take_needs_earlier_log()
            && let Some(log) = self.wait_for_bucket(read).await?
        {
            self.resources.log.prepend(&log);
        }
        Ok(())
    }
}
