//! The first stage: the engine restores the items, and the files of the restore are written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_engine::cluster::ApiServer;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::{self, RecoveredRun};
use bowline_engine::operation::Operation;
use bowline_engine::phase::Stage;
use bowline_engine::restore::request::Request;
use bowline_engine::restore::{self, FatalError, Progress, RestoreOutcome, finalize};
use bowline_plugin::Encoded;
use bowline_store::BackupStore;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::volumes::VolumePluginRestoreReporter;
use super::{NextStage, RestoreRun, RunError, RunStatus as _};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, retry_bucket_call,
};
use crate::controllers::operations::{cancel_operations, report_failed};
use crate::controllers::run::{
    ItemProgress, engine_plugins, run_until_gone, show_progress, with_retries,
};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::unlisted_plugins;

/// Number of concurrent requests of one restore, and of items that it works on.
const MAX_REQUESTS: usize = 32;
const MAX_ITEMS: usize = 96;
/// Time limit for writing the files of a restore, and the pause between attempts.
const WRITE_TIMEOUT: Duration = Duration::from_mins(5);
const WRITE_RETRY_PAUSE: Duration = Duration::from_secs(10);

impl RestoreRun<'_> {
    /// Runs the engine on the restore.
    pub(super) async fn run_items(
        &self,
        request: Request,
        recovered: RecoveredRun,
        store: &BackupStore,
    ) -> Result<NextStage, RunError> {
        if self.context.stop.is_cancelled() {
            return Ok(NextStage::HandedOver);
        }
        let _guard = self.context.runs.register(&self.object, None);
        if recovered.attempts >= self.bounds().attempts {
            let reason = EndReason::TooManyAttempts(recovered.attempts).to_string();
            return Ok(self.end_given_up(&reason, &recovered).await);
        }
        match self.resources.journal_attempt().await {
            Err(error @ journal::Error::Full(_)) => {
                let reason = format!("the restore cannot continue: {error}");
                return Ok(self.end_given_up(&reason, &recovered).await);
            }
            journaled => journaled?,
        }
        tracing::info!(
            backup = %request.backup_name,
            attempt = recovered.attempts + 1,
            "restore started"
        );
        let attempts = recovered.attempts + 1;
        self.stop_abandoned_operations(&recovered).await;
        let (mut restored, is_there) =
            Box::pin(self.run_engine(request, recovered, store.clone())).await;
        // Restores that wait for operations hold no permit.
        self.context.restore_queue.release(&self.object.uid().unwrap_or_default());
        unlisted_plugins::report_unlisted(
            self.context.host.registry().unlisted(),
            &restored.report,
        );
        log_outcome(&restored);
        match &restored.fatal {
            _ if !is_there => {
                self.stop_operations(&mut restored.operations).await;
                return Ok(NextStage::ObjectGone);
            }
            Some(FatalError::Stopped) => return Ok(NextStage::HandedOver),
            Some(_) => {
                self.stop_operations(&mut restored.operations).await;
                report_failed(&restored.operations, &restored.report);
            }
            None => {}
        }
        self.write_files(&restored, attempts, store).await
    }

    /// Runs the engine on the restore, and shows the progress meanwhile. Also returns true if the Restore still exists.
    async fn run_engine(
        &self,
        request: Request,
        recovered: RecoveredRun,
        store: BackupStore,
    ) -> (RestoreOutcome, bool) {
        let context = self.context;
        let progress = Arc::new(Progress::default());
        let options = &context.options;
        let reporter =
            VolumePluginRestoreReporter::new(context, &self.object, &request.backup_name);
        if recovered.attempts > 0 {
            reporter.resume().await;
        }
        let run = restore::Run {
            request: Request { restore: Encoded::new(self.object.clone()), ..request },
            cluster: Arc::new(ApiServer::new(context.client.clone(), options.client_page_size)),
            store,
            actions: engine_plugins(self.actions()),
            snapshotters: Arc::clone(context) as _,
            volume_reporter: Arc::new(reporter),
            options: restore::Options {
                requests: MAX_REQUESTS,
                items: MAX_ITEMS,
                scratch: options.scratch_dir.clone(),
                unpack_limits: options.unpack_limits,
                namespace: options.namespace.clone(),
                priorities: options.restore_resource_priorities.clone(),
                resource_timeout: options.resource_timeout,
                terminating_timeout: options.terminating_resource_timeout,
            },
            progress: Arc::clone(&progress),
            journal: Arc::clone(&self.resources.journal) as _,
            recovered,
            stop: context.stop.child_token(),
            cancel: self.resources.cancel.clone(),
        };
        let waiting_progress = Arc::clone(&progress);
        let items = || ItemProgress {
            done: progress.restored(),
            total: progress.total(),
            is_total_known: true,
        };
        // Boxed because both futures call the API server.
        let shown = Box::pin(async {
            tokio::select! {
                () = show_progress(context, self.api, &self.object, "itemsRestored", items) => {}
                () = self.publish_waiting_namespaces(&waiting_progress) => {}
            }
        });
        run_until_gone(Box::pin(restore::run(run, Timestamp::now())), shown, &self.resources.cancel)
            .await
    }

    /// Publishes namespaces that must be gone before anything is restored there. Never returns.
    async fn publish_waiting_namespaces(&self, progress: &Progress) {
        let mut known = BTreeSet::new();
        loop {
            known = progress.changed_terminating_namespaces(&known).await;
            if !known.is_empty() {
                self.publish_milestone(Milestone::WaitingForNamespaces { count: known.len() })
                    .await;
            }
        }
    }

    /// Cancels the operations of items that this attempt repeats, before their actions are called again. The report
    /// warns about those actions, so it does not name the operations.
    async fn stop_abandoned_operations(&self, recovered: &RecoveredRun) {
        let mut operations =
            restore::abandoned_operations(recovered, self.timeout(), Timestamp::now());
        if !operations.is_empty() {
            let count = operations.len();
            tracing::info!(operations = count, "canceling the operations of repeated items");
            self.stop_operations(&mut operations).await;
        }
    }

    /// Cancels operations that the run will not wait for, and journals the outcome.
    pub(super) async fn stop_operations(&self, operations: &mut Vec<Operation>) {
        if operations.is_empty() {
            return;
        }
        let clients = self.operation_clients(operations).await;
        let (uid, open) = (self.resources.uid.as_str(), std::mem::take(operations));
        *operations = cancel_operations(self.context, uid, open, &clients).await;
    }

    /// Writes the files of a restore, with the number of its attempts.
    async fn write_files(
        &self,
        restored: &RestoreOutcome,
        attempts: usize,
        store: &BackupStore,
    ) -> Result<NextStage, RunError> {
        let status = finalize::status(&self.object, restored);
        let log = self.resources.log.snapshot();
        let write = || finalize::write(store, &self.name, restored, self.run_ref(), log.clone());
        let cancel = &self.resources.cancel;
        let longest = WRITE_TIMEOUT.min(self.bounds().bucket_wait);
        let given_up = async {
            tokio::select! {
                () = self.context.stop.cancelled() => {}
                () = self.resources.cancel.cancelled() => {}
            }
        };
        let written =
            write_with_retries(|| retry_bucket_call(cancel, write), given_up, longest).await;
        if let Err(error) = written {
            let reason = status_message(&error);
            // The journal has all of it but the hooks, so the stage can be repeated.
            if let Some(failure) = BucketFailure::of_write(&error)
                && BucketDecision::Retry
                    == self.journal_outage(Stage::Items, failure, attempts, &reason).await
            {
                return Err(RunError::of_bucket::<Restore>(BucketFailure::Unreachable, error));
            }
            self.stop_operations(&mut restored.operations.clone()).await;
            let reason = format!("the log and results of the restore cannot be written: {reason}");
            if self.is_canceled() {
                let mut status = self.ended_status(&reason);
                status.errors += i64::try_from(restored.report.error_count()).unwrap_or(i64::MAX);
                return Ok(NextStage::finished(status));
            }
            return Ok(NextStage::finished(unrecorded(&status, reason, Timestamp::now())));
        }
        self.resources.journal_bucket_back(self.context).await;
        failpoint::hit(Failpoint::RestoreFilesWritten);
        match &restored.fatal {
            Some(FatalError::Canceled) => return Ok(NextStage::finished(status.canceled())),
            Some(_) => {
                return Ok(NextStage::finished(finalize::completed_status(
                    &status,
                    Timestamp::now(),
                )));
            }
            None => {}
        }
        let shown = with_retries(|| self.write_status(&status)).await?;
        failpoint::hit(Failpoint::RestoreCollected);
        Ok(NextStage::of_written(shown))
    }
}

/// Status of a restore whose items are done, but whose log and results could not be stored. The objects exist
/// nevertheless, so a restore that succeeded becomes partially failed.
fn unrecorded(status: &RestoreStatus, reason: String, now: Timestamp) -> RestoreStatus {
    tracing::error!("{reason}");
    let (phase, failure_reason) = match status.failure_reason.as_str() {
        "" => (RestorePhase::PartiallyFailed, reason),
        fatal => (RestorePhase::Failed, format!("{fatal}; {reason}")),
    };
    RestoreStatus {
        phase: Some(phase),
        failure_reason,
        errors: status.errors.saturating_add(1),
        completion_timestamp: Some(Time(now)),
        ..status.clone()
    }
}

/// Retries writing the files of a restore for some minutes: running the restore again instead would run its hooks
/// again. Stops after an error that a retry would repeat, and once `given_up` completes.
async fn write_with_retries<F>(
    attempt: impl Fn() -> F,
    given_up: impl Future<Output = ()>,
    longest: Duration,
) -> Result<(), bowline_store::Error>
where
    F: Future<Output = Result<(), bowline_store::Error>>,
{
    let deadline = Instant::now() + longest;
    let mut given_up = std::pin::pin!(given_up);
    loop {
        let error = match attempt().await {
            Err(error) if error.is_retryable() => error,
            written => return written,
        };
        let pause = WRITE_RETRY_PAUSE.min(deadline.saturating_duration_since(Instant::now()));
        if pause.is_zero() {
            return Err(error);
        }
        tracing::warn!(
            "cannot write the files of the restore; retrying in {pause:?}: {}",
            status_message(&error)
        );
        tokio::select! {
            () = &mut given_up => return Err(error),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Logs the outcome. The counts come from the report.
fn log_outcome(restored: &RestoreOutcome) {
    let (errors, warnings) = (restored.report.error_count(), restored.report.warning_count());
    match &restored.fatal {
        None => tracing::info!(items = restored.items, errors, warnings, "all items processed"),
        Some(FatalError::Stopped) => {
            tracing::info!("the server is stopping; the next server resumes the restore");
        }
        Some(fatal) => {
            tracing::error!(errors, warnings, "the restore failed: {}", fatal.error_chain());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use bowline_plugin::Code;
    use bowline_store::Error;

    use super::*;

    fn failure(code: Code) -> Error {
        let source = bowline_plugin::Error::new(code, "no");
        Error::Backend { action: "write", key: "restores/r".to_owned(), source }
    }

    /// Number of attempts until the end, the result, and true if it took longer than allowed.
    async fn attempts_made(
        given_up: impl Future<Output = ()>,
        answer: impl Fn(u32) -> Result<(), Error>,
    ) -> (u32, bool) {
        let (begin, count) = (Instant::now(), Cell::new(0));
        let attempt = || {
            count.set(count.get() + 1);
            ready(answer(count.get()))
        };
        let written = write_with_retries(attempt, given_up, WRITE_TIMEOUT).await;
        assert!(begin.elapsed() <= WRITE_TIMEOUT, "{:?}", begin.elapsed());
        (count.get(), written.is_ok())
    }

    #[test]
    fn a_restore_that_went_well_has_not_failed_because_its_log_cannot_be_written() {
        let now = Timestamp::from_second(9).unwrap();
        for (failure, errors, phase, reason) in [
            ("", 0, RestorePhase::PartiallyFailed, "no log"),
            ("", 2, RestorePhase::PartiallyFailed, "no log"),
            ("no backup", 1, RestorePhase::Failed, "no backup; no log"),
        ] {
            let status = RestoreStatus {
                phase: Some(RestorePhase::Finalizing),
                failure_reason: failure.to_owned(),
                errors,
                ..RestoreStatus::default()
            };
            let status = unrecorded(&status, "no log".to_owned(), now);
            assert_eq!(status.phase, Some(phase), "{failure} {errors}");
            assert_eq!((status.failure_reason.as_str(), status.errors), (reason, errors + 1));
            assert_eq!(status.completion_timestamp, Some(Time(now)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writing_files_is_retried_before_the_restore_is_rerun() {
        let away = |_| Err(failure(Code::Unavailable));
        let back = |number| if number < 12 { away(number) } else { Ok(()) };
        assert_eq!(attempts_made(pending(), back).await, (12, true));
        assert_eq!(attempts_made(pending(), away).await, (31, false), "not for ever");
        assert_eq!(attempts_made(ready(()), away).await, (1, false), "the server is stopping");
        let refused = |_| Err(failure(Code::PermissionDenied));
        assert_eq!(attempts_made(pending(), refused).await, (1, false), "it would be the same");
    }
}
