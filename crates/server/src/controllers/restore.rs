//! Runs restores, from `New` through `InProgress` to `Completed` or another terminal phase.
//!
//! A `RestoreRun` takes one restore from its current stage to its end, as with backups. A restore that is in progress
//! when the server starts is run again: objects that it has created are recognised, operations that it has started are
//! in its journal, and in the end every object exists exactly once.

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

use bowline_api::annotation::finalizer;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_engine::failpoint::{self, Point};
use bowline_engine::journal::Recovered;
use bowline_engine::operation::record::RunRef;
use bowline_engine::phase::{Stage, restore_stage};
use bowline_engine::restore::finalize;
use bowline_engine::restore::request::{self, Prepared};
use bowline_plugin::RestoreItemAction;
use bowline_plugin_host as plugin_host;
use bowline_store::name::RunUid;
use bowline_store::{BackupStore, RestoreName};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::bucket_wait::{BucketFailure, RunBounds};
use super::lookup::{OpenError, presume_available, recheck_location};
use super::operations::{
    CANCELED, is_canceled, publish_canceling, run_cancelable, wait_for_cancel,
};
use super::run::with_retries;
use super::run_resources::{self, RunResources};
use super::timed_plugins;
use crate::conditions::{self, CancelState};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::journal;
use crate::log::RunLog;
use crate::metrics::ObjectSource;
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

/// Reason why a restore could not be processed. It is retried.
#[derive(Debug, thiserror::Error)]
enum RestoreRunError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("the files of the restore cannot be deleted: {0}")]
    Files(String),
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
    #[error("cannot read or write the files of the restore: {0}")]
    Bucket(String),
    #[error("the bucket does not show a file, which is tried again: {0}")]
    Refused(String),
    #[error("the bucket refuses to be written, which is tried again: {0}")]
    WriteRefused(String),
    #[error("its backup and storage location are not known: {0}")]
    BackupUnknown(String),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("{0}")]
    Retryable(String),
}

impl RestoreRunError {
    /// Error for a failed read from the bucket.
    fn of_read(error: &bowline_store::Error) -> Self {
        match BucketFailure::of_read(error) {
            Some(BucketFailure::Refused | BucketFailure::WriteRefused) => {
                Self::Refused(status_message(error))
            }
            Some(BucketFailure::Unreachable) | None => Self::Bucket(status_message(error)),
        }
    }

    /// Error for a failed write to the bucket.
    fn of_write(error: &bowline_store::Error) -> Self {
        match Self::of_read(error) {
            Self::Refused(reason) => Self::WriteRefused(reason),
            other => other,
        }
    }

    /// Failure of the bucket, if that is the only thing wrong.
    fn bucket_failure(&self) -> Option<BucketFailure> {
        match self {
            Self::Bucket(_) => Some(BucketFailure::Unreachable),
            Self::Refused(_) | Self::BackupUnknown(_) => Some(BucketFailure::Refused),
            Self::WriteRefused(_) => Some(BucketFailure::WriteRefused),
            Self::Open(error) => Some(BucketFailure::of_open(error)),
            Self::Api(_) | Self::Files(_) | Self::Journal(_) | Self::Retryable(_) => None,
        }
    }
}

async fn reconcile(
    context: Arc<Context>,
    watched: Store<Restore>,
    restore: Arc<Restore>,
) -> Result<Requeue, RestoreRunError> {
    if !needs_work(&restore) {
        return Ok(Requeue::OnChange);
    }
    // Waiting restores check often, and need no request to the API server for that.
    if !context.restore_queue.may_begin(&restore, &watched.state()) {
        return Ok(Requeue::After(permit::QUEUE_POLL_INTERVAL));
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
            return Ok(Requeue::After(permit::QUEUE_POLL_INTERVAL));
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

fn stage_of(restore: &Restore) -> Option<Stage> {
    phase_of(restore).and_then(restore_stage)
}

fn needs_work(restore: &Restore) -> bool {
    restore.metadata.deletion_timestamp.is_some()
        || matches!(phase_of(restore), None | Some(RestorePhase::New))
        || stage_of(restore).is_some()
}

/// A restore on its way to its end.
struct RestoreRun<'a> {
    context: &'a Arc<Context>,
    api: &'a Api<Restore>,
    /// The Restore as last read or written.
    restore: Restore,
    name: RestoreName,
    resources: RunResources<'a>,
}

enum NextStage {
    /// The next stage, as the phase of the Restore says.
    Continue(Box<Restore>),
    /// No stage: the restore has ended with this status.
    Finished(Box<RestoreStatus>),
    /// No stage: the Restore is gone.
    ObjectGone,
    /// Another process resumes the run.
    HandedOver,
}

/// Takes a restore from its current stage to its end.
fn resume_or_start<'a>(
    context: &'a Arc<Context>,
    api: &'a Api<Restore>,
    watched: &'a Store<Restore>,
    restore: Restore,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), RestoreRunError>> {
    Box::pin(async move {
        let cancel = CancellationToken::new();
        if is_canceled(&restore) {
            cancel.cancel();
        }
        let watched_restore = restore.clone();
        let running = Box::pin(begin_or_resume(context, api, restore, log, &cancel));
        let conditions = |restore: &Restore| {
            stage_of(restore)?;
            let status = restore.status.clone().unwrap_or_default();
            Some(with_conditions(&status, true).conditions)
        };
        let publishing_cancel = publish_canceling(context, api, &watched_restore, conditions);
        run_cancelable(
            running,
            wait_for_cancel(watched, &watched_restore),
            &cancel,
            Box::pin(publishing_cancel),
        )
        .await
    })
}

async fn begin_or_resume(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: Restore,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RestoreRunError> {
    let stage = stage_of(&restore);
    if stage.is_none() && cancel.is_cancelled() {
        let status = canceled_status(&restore.status.clone().unwrap_or_default());
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
) -> Result<(), RestoreRunError> {
    recheck_location(context, &mut known.facts.location).await;
    let Prepared { restore: filled, outcome } =
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
            return Err(RestoreRunError::Open(error));
        }
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", status_message(&error));
            let status = failed_status(&restore, reason);
            context.metrics.restore_began(&filled);
            return write_end(context, api, &filled, &status, cancel.is_cancelled()).await;
        }
    };
    let restore = mark_in_progress(api, &filled).await?;
    context.metrics.restore_began(&restore);
    failpoint::hit(Point::RestoreInProgress);
    let (name, uid) = (request.name.clone(), request.uid.clone());
    let location = request.backup.spec.storage_location.clone();
    let opening = RestoreRun::open(context, api, restore, (name, uid), &location, log, cancel);
    let Some((run, recovered)) = opening.await? else { return Ok(()) };
    let next_stage = run.run_items(request, recovered, &store).await?;
    run.drive(next_stage, Some(store), None).await
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
) -> Result<(), RestoreRunError> {
    presume_available(&mut known.facts.location);
    let (name, uid) = match (
        RestoreName::new(restore.name_any()),
        RunUid::new(restore.uid().unwrap_or_default()),
    ) {
        (Ok(name), Ok(uid)) => (name, uid),
        (Err(error), _) | (_, Err(error)) => {
            let status = failed_status(&restore, error.to_string());
            return write_end(context, api, &restore, &status, cancel.is_cancelled()).await;
        }
    };
    failpoint::hit(Point::RestoreInProgress);
    let location = known.location_name();
    let opening = RestoreRun::open(context, api, restore, (name, uid), &location, log, cancel);
    let Some((run, recovered)) = opening.await? else { return Ok(()) };
    let (next_stage, store) = Box::pin(run.resume(stage, &known, &recovered)).await?;
    let recovered = (stage > Stage::Items).then_some(recovered);
    run.drive(next_stage, store, recovered).await
}

impl<'a> RestoreRun<'a> {
    /// Opens the journal of a restore and returns its contents as well. Returns nothing if the journal is damaged,
    /// which has ended the restore.
    async fn open(
        context: &'a Arc<Context>,
        api: &'a Api<Restore>,
        restore: Restore,
        (name, uid): (RestoreName, RunUid),
        location: &str,
        log: &'a RunLog,
        cancel: &CancellationToken,
    ) -> Result<Option<(Self, Recovered)>, RestoreRunError> {
        let of = ("Restore", name.as_str(), uid.clone());
        let stage = stage_of(&restore);
        match RunResources::open(context, of, location, stage, log, cancel.clone()).await {
            Err(error) if run_resources::is_damaged(&error) => {
                let status =
                    failed_status(&restore, run_resources::damaged_journal_message(&error, &uid));
                write_end(context, api, &restore, &status, cancel.is_cancelled()).await?;
                volumes::end_open_resources(context, &restore).await;
                Ok(None)
            }
            Err(error) => Err(error.into()),
            Ok((resources, recovered)) => {
                Ok(Some((Self { context, api, restore, name, resources }, recovered)))
            }
        }
    }
}

impl RestoreRun<'_> {
    /// Runs the remaining stages. The contents of the journal are known if it was opened after all items were restored.
    async fn drive(
        mut self,
        mut next_stage: NextStage,
        store: Option<BackupStore>,
        recovered: Option<Recovered>,
    ) -> Result<(), RestoreRunError> {
        loop {
            next_stage = match next_stage {
                NextStage::Continue(restore) => {
                    self.restore = *restore;
                    let (Some(stage), Some(store)) = (stage_of(&self.restore), &store) else {
                        return Ok(());
                    };
                    let recovered = recovered.as_ref();
                    let outcome = match stage {
                        Stage::Waiting => {
                            Box::pin(self.wait_for_operations(store, recovered)).await
                        }
                        Stage::Finalizing => Box::pin(self.finish(store)).await,
                        Stage::Items | Stage::Over => return Ok(()),
                    };
                    Box::pin(self.handle_bucket_failure(stage, outcome, recovered)).await?
                }
                NextStage::Finished(status) => {
                    let is_cancel_requested = self.is_canceled();
                    write_end(self.context, self.api, &self.restore, &status, is_cancel_requested)
                        .await?;
                    failpoint::hit(Point::RestoreOver);
                    volumes::end_open_resources(self.context, &self.restore).await;
                    return self.remove_journal(store.as_ref()).await;
                }
                NextStage::ObjectGone => return self.remove_journal(store.as_ref()).await,
                NextStage::HandedOver => {
                    self.resources.hand_over().await;
                    return Ok(());
                }
            };
        }
    }

    fn actions(&self) -> Vec<plugin_host::Named<dyn RestoreItemAction>> {
        timed_plugins::restore_item_actions(&self.resources.plugins, &self.context.calls)
    }

    async fn publish_milestone(&self, milestone: Milestone) {
        self.context.events.publish(&self.restore, milestone).await;
    }

    /// Removes the journal and the scratch files, which were kept in case the server ended.
    async fn remove_journal(self, store: Option<&BackupStore>) -> Result<(), RestoreRunError> {
        let store = store.ok_or_else(|| "its bucket cannot be used".to_owned());
        Ok(self.resources.clean_up(self.context, store).await?)
    }

    /// Limits on retries of the run.
    fn bounds(&self) -> RunBounds {
        RunBounds::of(&self.context.options)
    }

    fn is_canceled(&self) -> bool {
        self.resources.cancel.is_cancelled() || is_canceled(&self.restore)
    }

    /// Reference to the run, as used by its operations.
    fn run_ref(&self) -> RunRef<'_> {
        RunRef { name: self.name.as_str(), uid: self.resources.uid.as_str() }
    }

    /// Timeout of its operations.
    fn timeout(&self) -> Duration {
        let timeout = self.restore.spec.item_operation_timeout.to_std();
        timeout.unwrap_or(self.context.options.default_item_operation_timeout)
    }

    fn status(&self) -> RestoreStatus {
        self.restore.status.clone().unwrap_or_default()
    }

    /// Writes the status. None if the Restore is gone.
    async fn write_status(&self, status: &RestoreStatus) -> kube::Result<Option<Restore>> {
        let status = with_conditions(status, self.is_canceled());
        patch::patch_status_of(self.api, &self.restore, json!(status)).await
    }
}

/// Writes the final status of a restore.
async fn write_end(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
    status: &RestoreStatus,
    is_cancel_requested: bool,
) -> Result<(), RestoreRunError> {
    context.runs.clear_waiting_for_bucket(&restore.uid().unwrap_or_default());
    let status = with_conditions(status, is_cancel_requested);
    with_retries(|| patch::patch_status_of(api, restore, json!(status))).await?;
    if let RunState::Ended(end) = RunState::from(status.phase.as_ref()) {
        context.metrics.restore_ended(restore, end);
        context
            .events
            .publish(restore, Milestone::from_terminal_phase(end, &status.failure_reason))
            .await;
    }
    Ok(())
}

/// Adds the conditions that follow from a status and from a request to cancel.
fn with_conditions(status: &RestoreStatus, is_asked: bool) -> RestoreStatus {
    let run = conditions::RunSummary {
        state: RunState::from(status.phase.as_ref()),
        cancel: CancelState::of(&status.failure_reason, is_asked),
        message: &status.failure_reason,
    };
    let conditions = conditions::update(&status.conditions, run, Timestamp::now());
    RestoreStatus { conditions, ..status.clone() }
}

fn canceled_status(status: &RestoreStatus) -> RestoreStatus {
    RestoreStatus {
        errors: status.errors.saturating_add(i64::from(status.failure_reason.is_empty())),
        failure_reason: FailureReason::Canceled(CANCELED).to_string(),
        ..finalize::conclude(&RestoreStatus { phase: None, ..status.clone() }, Timestamp::now())
    }
}

/// Writes the validation errors of a restore.
async fn reject_invalid(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
    errors: &[String],
) -> Result<(), RestoreRunError> {
    tracing::warn!("the restore is not valid: {}", errors.join("; "));
    let status = RestoreStatus {
        phase: Some(RestorePhase::FailedValidation),
        validation_errors: errors.to_vec(),
        ..restore.status.clone().unwrap_or_default()
    };
    let change = defaulted_patch(restore, &status);
    patch::patch(api, &restore.name_any(), restore.resource_version().as_deref(), change).await?;
    let end = TerminalPhase::FailedValidation;
    context.metrics.restore_began(restore);
    context.metrics.restore_ended(restore, end);
    context.events.publish(restore, Milestone::Ended { phase: end }).await;
    Ok(())
}

/// Writes that a restore has started, with the defaults that were filled in.
async fn mark_in_progress(
    api: &Api<Restore>,
    restore: &Restore,
) -> Result<Restore, RestoreRunError> {
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

/// Patch with a status and the defaults that the validation filled in.
fn defaulted_patch(restore: &Restore, status: &RestoreStatus) -> Value {
    json!({
        "metadata": {
            "uid": restore.uid(),
            "labels": restore.labels(),
            "annotations": restore.annotations(),
        },
        "spec": restore.spec,
        "status": with_conditions(status, is_canceled(restore)),
    })
}

fn failed_status(restore: &Restore, reason: String) -> RestoreStatus {
    tracing::error!("the restore has failed: {reason}");
    RestoreStatus {
        phase: Some(RestorePhase::Failed),
        failure_reason: reason,
        errors: 1,
        completion_timestamp: Some(Time(Timestamp::now())),
        ..restore.status.clone().unwrap_or_default()
    }
}

/// Deletes the files of a restore that is being deleted, and removes its finalizer.
async fn finalize_deleted(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
) -> Result<(), RestoreRunError> {
    let is_own = |finalizer: &&String| finalizer.as_str() == finalizer::RESTORE;
    if !restore.finalizers().iter().any(|finalizer| is_own(&finalizer)) {
        return Ok(());
    }
    if let Err(error) = delete_files(context, restore).await {
        let deleted = restore.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        if outage::should_keep_deleted(deleted, RunBounds::of(&context.options), Timestamp::now()) {
            return Err(error);
        }
        tracing::warn!("{error}; they stay in the bucket, and the restore goes all the same");
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

async fn delete_files(context: &Context, restore: &Restore) -> Result<(), RestoreRunError> {
    // Without a backup or a location there is no place for files.
    let known = facts::gather_facts(context, restore).await?;
    if !known.has_location() {
        return Ok(());
    }
    let no =
        |error: &(dyn std::error::Error + 'static)| RestoreRunError::Files(status_message(error));
    let store = known.open(context).await.map_err(|error| no(&error))?;
    let name = RestoreName::new(restore.name_any()).map_err(|error| no(&error))?;
    store.delete_restore(&name).await.map_err(|error| no(&error))
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
