//! Runs restores, from `New` through `InProgress` to `Completed` or another terminal phase.
//!
//! `run/lifecycle.rs` has the rules that restores share with backups; a `RestoreRun` is a `Run` of a Restore. A restore
//! that is in progress when the server starts is run again: objects that it has created are recognised, operations that
//! it has started are in its journal, and in the end every object exists exactly once.

mod access;
mod csi;
mod facts;
mod items;
mod outage;
pub(crate) mod permit;
mod volumes;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::annotation::finalizer;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::operation::{Counts, Operation};
use bowline_engine::phase::{self, Stage, restore_stage};
use bowline_engine::restore::finalize;
use bowline_engine::restore::request::{self, PreparedRestore};
use bowline_plugin::RestoreItemAction;
use bowline_plugin_host as plugin_host;
use bowline_store::{BackupStore, RestoreName};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::bucket_wait::{EndReason, RunBounds};
use super::lookup::{presume_available, recheck_location};
use super::operations::CANCELED;
use super::run::{
    self, BucketCause, Run, RunError, RunObject, RunStatus, cancel_token, defaulted_patch,
    reject_invalid, run_until_canceled, write_end,
};
use super::timed_plugins;
use crate::error_text::status_message;
use crate::log::RunLog;
use crate::metrics::{Metrics, ObjectSource};
use crate::patch;
use crate::run_state::{FailureReason, RunState, TerminalPhase};
use crate::runs::ActiveRuns;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

/// Maximum number of active restores, most of them waiting for operations.
const MAX_ACTIVE_RESTORES: u16 = 1000;

/// Runs restores until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Restore> = context.api();
    let stop = context.stop.clone();
    let watch = Watch::new(api)
        .concurrency(MAX_ACTIVE_RESTORES)
        .reconcile_all_on(context.restore_queue.release_notifications());
    let watched = watch.store();
    context.metrics.add_source(ObjectSource::Restores(watched.clone()));
    let work =
        move |restore: Arc<Restore>| reconcile(Arc::clone(&context), watched.clone(), restore);
    Ok(watch.run(&stop, work).await?)
}

async fn reconcile(
    context: Arc<Context>,
    watched: Store<Restore>,
    restore: Arc<Restore>,
) -> Result<Requeue, RunError> {
    if !needs_work(&restore) {
        return Ok(Requeue::OnChange);
    }
    // Waiting restores check often, and need no request to the API server for that.
    if !context.restore_queue.may_begin(&restore, || watched.state()) {
        return Ok(Requeue::After(context.restore_queue.poll_pause(&restore)));
    }
    let api: Api<Restore> = context.api();
    // The watch may be behind this server's own last write.
    let Some(restore) = api.get_opt(&restore.name_any()).await? else {
        return Ok(Requeue::OnChange);
    };
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, restore.name_any());
    let span = log.attach(tracing::info_span!("restore", restore = name));
    if restore.metadata.deletion_timestamp.is_some() {
        context.runs.clear_waiting_for_bucket(&restore.uid().unwrap_or_default());
        let finalizing = async {
            outage::end_deleted(&context, &api, &restore, &log).await?;
            finalize_deleted(&context, &api, &restore).await
        };
        finalizing.instrument(span).await?;
    } else if needs_work(&restore) {
        let Some(turn) = context.restore_queue.acquire(&restore, &watched.state()) else {
            return Ok(Requeue::After(context.restore_queue.poll_pause(&restore)));
        };
        let outcome =
            resume_or_start(&context, &api, &watched, restore, &log).instrument(span).await;
        if outcome.is_err() {
            turn.release_quietly();
        }
        outcome?;
    }
    Ok(Requeue::OnChange)
}

fn phase_of(restore: &Restore) -> Option<&RestorePhase> {
    restore.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn needs_work(restore: &Restore) -> bool {
    restore.metadata.deletion_timestamp.is_some()
        || matches!(phase_of(restore), None | Some(RestorePhase::New))
        || restore.stage().is_some()
}

type RestoreRun<'a> = Run<'a, Restore>;
type NextStage = run::NextStage<Restore>;

#[async_trait]
impl RunObject for Restore {
    type Name = RestoreName;
    const NOUN: &'static str = "restore";
    const OVER: Failpoint = Failpoint::RestoreOver;
    const BUCKET_UNREACHABLE: &'static str = "cannot read or write the files of the restore";
    const FILE_REFUSED: &'static str = "a file cannot be read from the bucket; retrying";

    fn stage(&self) -> Option<Stage> {
        phase_of(self).and_then(restore_stage)
    }

    fn operation_timeout(&self) -> Option<Duration> {
        self.spec.item_operation_timeout.to_std()
    }

    fn record_end(&self, metrics: &Metrics, _: &RestoreStatus, end: TerminalPhase) {
        if end == TerminalPhase::FailedValidation {
            // A refused restore counts as attempted, and no other place counts it.
            metrics.restore_began(self);
        }
        metrics.restore_ended(self, end);
    }

    async fn open_store(run: &RestoreRun<'_>) -> Result<BackupStore, RunError> {
        run.store.clone().ok_or(RunError::NoStore)
    }

    async fn run_stage(run: &RestoreRun<'_>, stage: Stage) -> Result<NextStage, RunError> {
        let store = Self::open_store(run).await?;
        match stage {
            Stage::Waiting => run.wait_for_operations(&store).await,
            _ => run.finish(&store).await,
        }
    }

    async fn end_from_journal(
        run: &RestoreRun<'_>,
        _: Stage,
        end_reason: EndReason,
        failure: &str,
        recovered: &RecoveredRun,
    ) -> Result<NextStage, RunError> {
        Ok(run.end_given_up(&end_reason.message(failure), recovered).await)
    }

    async fn clean_up_after_end(&self, context: &Context) {
        volumes::end_open_resources(context, self).await;
    }
}

impl RunStatus for RestoreStatus {
    fn state(&self) -> RunState<'_> {
        RunState::from(self.phase.as_ref())
    }

    fn failure_reason(&self) -> &str {
        &self.failure_reason
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }

    fn set_stage(&mut self, stage: Stage, is_tainted: bool) {
        self.phase = Some(phase::of_restore(stage, is_tainted));
    }

    fn count_operations(&mut self, operations: &[Operation]) {
        finalize::set_operation_counts(self, Counts::of(operations));
    }

    fn set_invalid(&mut self, errors: &[String]) {
        self.phase = Some(RestorePhase::FailedValidation);
        self.validation_errors = errors.to_vec();
    }

    fn failed(&self, reason: String) -> Self {
        tracing::error!("the restore failed: {reason}");
        Self {
            phase: Some(RestorePhase::Failed),
            failure_reason: reason,
            errors: 1,
            completion_timestamp: Some(Time(Timestamp::now())),
            ..self.clone()
        }
    }

    fn canceled(&self) -> Self {
        Self {
            errors: self.errors.saturating_add(i64::from(self.failure_reason.is_empty())),
            failure_reason: FailureReason::Canceled(CANCELED).to_string(),
            ..finalize::completed_status(&Self { phase: None, ..self.clone() }, Timestamp::now())
        }
    }
}

/// Takes a restore from its current stage to its end.
fn resume_or_start<'a>(
    context: &'a Arc<Context>,
    api: &'a Api<Restore>,
    watched: &'a Store<Restore>,
    restore: Restore,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), RunError>> {
    Box::pin(async move {
        let cancel = cancel_token(&restore);
        let watched_restore = restore.clone();
        let running = Box::pin(begin_or_resume(context, api, restore, log, &cancel));
        run_until_canceled(context, api, watched, &watched_restore, &cancel, running).await
    })
}

async fn begin_or_resume(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: Restore,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let stage = restore.stage();
    if stage.is_none() && cancel.is_cancelled() {
        let status = run::status_of(&restore).canceled();
        return write_end(context, api, &restore, &status, true).await;
    }
    let known = facts::gather_facts(context, &restore).await?;
    match stage {
        None => Box::pin(start(context, api, restore, known, log, cancel)).await,
        Some(stage) => Box::pin(resume(context, api, (restore, stage), known, log, cancel)).await,
    }
}

async fn start(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: Restore,
    mut known: facts::RestoreFacts,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    recheck_location(context, &mut known.facts.location).await;
    let PreparedRestore { restore: filled, outcome } =
        request::prepare(&restore, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => {
            let (own, backup) = (&context.options.namespace, &request.backup.spec);
            match access::refusal(&context.client, own, &filled.spec, backup).await {
                None => request,
                Some(reason) => return reject_invalid(context, api, &filled, &[reason]).await,
            }
        }
        Err(invalid) => return reject_invalid(context, api, &filled, &invalid.messages()).await,
    };
    let uid = restore.uid().unwrap_or_default();
    // No other run waits for a restore, so it has as much time as one that has started.
    let bounds = RunBounds::of(&context.options);
    let store = match known.open(context).await {
        Ok(store) => {
            context.runs.clear_waiting_for_bucket(&uid);
            store
        }
        Err(error)
            if error.is_retryable()
                && may_wait_for_bucket(&context.runs, &uid, bounds, Timestamp::now()) =>
        {
            return Err(RunError::Open(error));
        }
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", status_message(&error));
            let status = run::status_of(&restore).failed(reason);
            context.metrics.restore_began(&filled);
            return write_end(context, api, &filled, &status, cancel.is_cancelled()).await;
        }
    };
    let restore = mark_in_progress(api, &filled).await?;
    context.metrics.restore_began(&restore);
    failpoint::hit(Failpoint::RestoreInProgress);
    let location = request.backup.spec.storage_location.clone();
    let opening = RestoreRun::open(context, api, restore, &location, log, cancel);
    let Some((mut run, recovered)) = opening.await? else { return Ok(()) };
    run.store = Some(store.clone());
    let next_stage = run.run_items(request, recovered, &store).await?;
    run.drive(next_stage).await
}

/// Records that the bucket of a restore that has not started cannot be used. Returns true if the restore waits for it.
/// The time counts from the first failure, not from the creation of the restore, which may have waited in the queue.
fn may_wait_for_bucket(runs: &ActiveRuns, uid: &str, bounds: RunBounds, now: Timestamp) -> bool {
    let since = runs.bucket_lost_since(uid).unwrap_or(now);
    runs.mark_waiting_for_bucket(uid, since);
    bounds.has_time(Some(since), now)
}

/// Resumes a restore that another process has started, or that this one left because its bucket was unreachable.
async fn resume(
    context: &Arc<Context>,
    api: &Api<Restore>,
    (restore, stage): (Restore, Stage),
    mut known: facts::RestoreFacts,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    presume_available(&mut known.facts.location);
    failpoint::hit(Failpoint::RestoreInProgress);
    let location = known.location_name();
    let opening = RestoreRun::open(context, api, restore, &location, log, cancel);
    let Some((mut run, recovered)) = opening.await? else { return Ok(()) };
    let next_stage = Box::pin(run.resume(stage, &known, &recovered)).await?;
    run.recovered = (stage > Stage::Items).then_some(recovered);
    run.drive(next_stage).await
}

impl RestoreRun<'_> {
    fn actions(&self) -> Vec<plugin_host::Named<dyn RestoreItemAction>> {
        timed_plugins::restore_item_actions(&self.resources.plugins, &self.context.calls)
    }
}

/// Writes that a restore has started, with the defaults that were filled in.
async fn mark_in_progress(api: &Api<Restore>, restore: &Restore) -> Result<Restore, RunError> {
    let status = RestoreStatus {
        phase: Some(RestorePhase::InProgress),
        ..restore.status.clone().unwrap_or_default()
    };
    let mut change = defaulted_patch(restore, &status);
    let mut finalizers = restore.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == finalizer::RESTORE) {
        finalizers.push(finalizer::RESTORE.to_owned());
    }
    change["metadata"]["finalizers"] = json!(finalizers);
    let version = restore.resource_version();
    Ok(patch::patch(api, &restore.name_any(), version.as_deref(), change).await?)
}

/// Deletes the files of a restore that is being deleted, and removes its finalizer.
async fn finalize_deleted(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
) -> Result<(), RunError> {
    let is_own = |finalizer: &&String| finalizer.as_str() == finalizer::RESTORE;
    if !restore.finalizers().iter().any(|finalizer| is_own(&finalizer)) {
        return Ok(());
    }
    if let Err(error) = delete_files(context, restore).await {
        let deleted = restore.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        if outage::should_keep_deleted(deleted, RunBounds::of(&context.options), Timestamp::now()) {
            return Err(error);
        }
        tracing::warn!(
            "{}; the files stay in the bucket, and the Restore is deleted nevertheless",
            status_message(&error)
        );
    }
    let remaining: Vec<_> =
        restore.finalizers().iter().filter(|finalizer| !is_own(finalizer)).collect();
    let change = json!({ "metadata": { "finalizers": remaining } });
    let version = restore.resource_version();
    match patch::patch(api, &restore.name_any(), version.as_deref(), change).await {
        Err(error) if patch::is_not_found(&error) => Ok(()),
        changed => Ok(changed.map(drop)?),
    }
}

async fn delete_files(context: &Context, restore: &Restore) -> Result<(), RunError> {
    // Without a backup or a location there is no place for files.
    let known = facts::gather_facts(context, restore).await?;
    if !known.has_location() {
        return Ok(());
    }
    let deleting = async {
        let store = known.open(context).await?;
        let name = RestoreName::new(restore.name_any())?;
        Ok::<_, BucketCause>(store.delete_restore(&name).await?)
    };
    deleting.await.map_err(|cause| RunError::DeleteFiles(Box::new(cause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_waits_for_its_bucket_from_the_first_failure_on() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (runs, wait) = (ActiveRuns::default(), Duration::from_mins(1));
        let bounds = RunBounds { bucket_wait: wait, attempts: 4 };
        let may_wait = |second| may_wait_for_bucket(&runs, "u", bounds, at(second));
        // The time in the queue does not count.
        assert!(may_wait(90_000) && may_wait(90_059));
        assert!(!may_wait(90_060), "a minute is over");
        runs.clear_waiting_for_bucket("u");
        assert!(may_wait(90_070), "another failure, after the bucket was back");
    }
}
