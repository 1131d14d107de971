//! What the journal of a run says of its bucket, and of its stages while the bucket is away.

use bowline_engine::journal::{self, Journal as _, JournalEntry};
use bowline_engine::phase::Stage;
use jiff::Timestamp;

use super::RunResources;
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, BucketOutage, RunBounds, decide,
};
use crate::error_text::status_message;
use crate::server::Context;

impl RunResources<'_> {
    /// Journals that the bucket of the run cannot be used. Returns since when, and true if this is new.
    async fn journal_bucket_lost(&self, context: &Context, stage: Stage) -> (Timestamp, bool) {
        let journaled = self.bucket_lost_since();
        let uid = self.uid.as_str();
        let since =
            journaled.or(context.runs.bucket_lost_since(uid)).unwrap_or_else(Timestamp::now);
        context.runs.mark_waiting_for_bucket(uid, since);
        if journaled.is_none() {
            let lost = JournalEntry::BucketLost { at: since, stage: Some(stage) };
            match self.journal.append(&lost).await {
                Ok(()) => self.set_bucket_lost_since(Some(since)),
                // This process remembers it regardless.
                Err(error) => tracing::warn!("{error}"),
            }
        }
        (since, journaled.is_none())
    }

    /// Journals that the bucket of the run cannot be used, and decides what follows. Also returns true if the run
    /// starts to wait for it.
    pub(in crate::controllers) async fn decide_outage(
        &self,
        context: &Context,
        stage: Stage,
        failure: BucketFailure,
        attempts: usize,
        is_canceled: bool,
    ) -> (BucketDecision, bool) {
        let (since, is_news) = self.journal_bucket_lost(context, stage).await;
        let outage = BucketOutage { stage, is_canceled, failure, since, attempts };
        let decision = decide(&outage, RunBounds::of(&context.options), Timestamp::now());
        (decision, is_news && decision == BucketDecision::Retry)
    }

    /// Journals that the bucket of the run can be used again, if it could not before.
    pub(in crate::controllers) async fn journal_bucket_back(&self, context: &Context) {
        context.runs.clear_waiting_for_bucket(self.uid.as_str());
        if self.bucket_lost_since().is_none() {
            return;
        }
        match self.journal.append(&JournalEntry::BucketBack { at: Timestamp::now() }).await {
            Ok(()) => {
                tracing::info!("the bucket is available again");
                self.set_bucket_lost_since(None);
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Journals that this process has resumed the run at a stage after the items: once, however often it then has to
    /// retry its bucket.
    pub(in crate::controllers) async fn journal_stage_attempt(
        &self,
        context: &Context,
        stage: Stage,
    ) -> Result<(), journal::Error> {
        if !context.runs.record_stage_attempt(self.uid.as_str(), stage) {
            return Ok(());
        }
        let record = JournalEntry::StageAttempt { stage, at: Timestamp::now() };
        self.journal.append(&record).await
    }

    /// Journals that an attempt at a stage after the items has ended cleanly, since only its bucket is missing.
    pub(in crate::controllers) async fn journal_stage_attempt_left(
        &self,
        context: &Context,
        stage: Stage,
    ) {
        if context.runs.end_stage_attempt_cleanly(self.uid.as_str(), stage)
            && let Err(error) =
                self.journal.append(&JournalEntry::AttemptLeft { at: Timestamp::now() }).await
        {
            tracing::warn!("{error}; this attempt counts as failed");
        }
    }

    /// Journals that the run ends at a stage without its bucket, before anything that it created is deleted: a server
    /// that resumes it meanwhile ends it as well, and does not rely on what is gone.
    pub(in crate::controllers) async fn journal_ending(
        &self,
        stage: Stage,
    ) -> Result<(), crate::journal::Error> {
        self.journal.end_without_bucket(stage).await
    }

    /// Keeps the journal of a run that ends at a stage without its bucket, and that has leftovers which only the
    /// journal knows of.
    pub(in crate::controllers) async fn journal_end_without_bucket(&self, stage: Stage) {
        self.keep_journal();
        if let Err(error) = self.journal.end_without_bucket(stage).await {
            tracing::error!(
                "{}; to clean up leftovers, delete the Backup or Restore",
                status_message(&error)
            );
        }
    }
}
