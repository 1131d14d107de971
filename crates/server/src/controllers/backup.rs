//! Runs backups, from `ReadyToStart` to `Completed` or another terminal phase.
//!
//! A `BackupRun` takes one backup from its current stage to its end. Each stage starts from the state of the cluster
//! and the bucket, so it makes no difference if the previous stage was run by this process or by one that is gone:
//!
//! | phase | file | work |
//! |---|---|---|
//! | `InProgress` | `items` | the engine collects the items; all files but the commit record are written |
//! | `WaitingForPluginOperations…` | `wait` | operations of plugins are followed to their ends |
//! | `Finalizing…` | `finish` | items that operations changed are stored again; the commit record is written |

mod commit;
mod csi;
pub(in crate::controllers) mod facts;
mod finish;
mod items;
pub(in crate::controllers) mod journal_cleanup;
pub(in crate::controllers) mod leftovers;
mod outage;
mod recover;
mod volumes;
mod wait;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_engine::backup::request::{self, Prepared, Request};
use bowline_engine::backup::{Recovery, finalize, replace};
use bowline_engine::failpoint::{self, Point};
use bowline_engine::journal::Recovered;
use bowline_engine::operation::record::RunRef;
use bowline_engine::phase::{Stage, backup_stage};
use bowline_plugin::{BackupItemAction, ResourceIdentifier};
use bowline_plugin_host as plugin_host;
use bowline_store::BackupName;
use bowline_store::name::RunUid;
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
use super::staleness::{Staleness, StalenessTracker};
use super::timed_plugins;
use crate::conditions::{self, CancelState};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::journal;
use crate::log::RunLog;
use crate::metrics::ObjectSource;
use crate::patch;
use crate::queue::NamespaceScope;
use crate::run_state::{FailureReason, RunState, TerminalPhase};
use crate::runs::RunGuard;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

/// Time limit for retries of a start, during which other backups wait.
const START_RETRY_LIMIT: Duration = Duration::from_mins(5);
/// Maximum number of active backups, most of them waiting for operations. The queue decides how many of them are in
/// progress.
const MAX_ACTIVE_BACKUPS: u16 = 1000;

/// Runs backups until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Backup> = context.api();
    let stop = context.stop.clone();
    let staleness_tracker = Arc::new(StalenessTracker::default());
    let watch = Watch::new(api).concurrency(MAX_ACTIVE_BACKUPS);
    let watched = watch.store();
    context.metrics.add_source(ObjectSource::Backups(watched.clone()));
    let work = move |backup: Arc<Backup>| {
        reconcile(Arc::clone(&context), Arc::clone(&staleness_tracker), watched.clone(), backup)
    };
    Ok(watch.run(&stop, work).await?)
}

/// Reason why a backup could not be processed. It is retried.
#[derive(Debug, thiserror::Error)]
enum BackupRunError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("cannot look into the bucket: {0}")]
    Bucket(String),
    #[error("the bucket does not show a file of the backup, which is tried again: {0}")]
    Refused(String),
    #[error("the bucket refuses to be written, which is tried again: {0}")]
    WriteRefused(String),
    #[error("what the bucket holds of it is not known: {reason}")]
    BucketStateUnknown { reason: String, failure: BucketFailure },
    #[error("it waits until fewer backups run, and none that reaches into the same namespaces")]
    NotAdmitted,
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
    #[error("its storage location has not been checked yet")]
    Unchecked,
    #[error("it is not known whether the record of the backup is in the bucket: {0}")]
    Commit(String),
    #[error("{0}")]
    Retryable(String),
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

impl BackupRunError {
    /// Error for a failed write to the bucket.
    fn of_write(error: &bowline_store::Error) -> Option<Self> {
        let reason = status_message(error);
        BucketFailure::of_write(error).map(|failure| match failure {
            BucketFailure::Unreachable => Self::Bucket(reason),
            BucketFailure::Refused | BucketFailure::WriteRefused => Self::WriteRefused(reason),
        })
    }

    /// Failure of the bucket, if that is the only thing wrong.
    fn bucket_failure(&self) -> Option<BucketFailure> {
        match self {
            Self::Bucket(_) | Self::Commit(_) => Some(BucketFailure::Unreachable),
            Self::Refused(_) => Some(BucketFailure::Refused),
            Self::WriteRefused(_) => Some(BucketFailure::WriteRefused),
            Self::BucketStateUnknown { failure, .. } => Some(*failure),
            Self::Open(error) => Some(BucketFailure::of_open(error)),
            Self::Api(_)
            | Self::Unchecked
            | Self::NotAdmitted
            | Self::Retryable(_)
            | Self::Journal(_) => None,
        }
    }
}

async fn reconcile(
    context: Arc<Context>,
    staleness_tracker: Arc<StalenessTracker>,
    watched: Store<Backup>,
    backup: Arc<Backup>,
) -> Result<Requeue, BackupRunError> {
    if !needs_work(&backup) {
        return Ok(Requeue::OnChange);
    }
    let api: Api<Backup> = context.api();
    // The watch may be behind this server's own last write.
    let Some(backup) = api.get_opt(&backup.name_any()).await? else { return Ok(Requeue::OnChange) };
    if !needs_work(&backup) {
        return Ok(Requeue::OnChange);
    }
    if is_canceled(&backup) && phase_of(&backup).is_none_or(|phase| backup_stage(phase).is_none()) {
        end_canceled_before_start(&context, &api, &backup).await?;
        return Ok(Requeue::OnChange);
    }
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, backup.name_any());
    let span = log.attach(tracing::info_span!("backup", backup = name));
    resume_or_start(&context, &api, &staleness_tracker, &watched, backup, &log)
        .instrument(span)
        .await?;
    Ok(Requeue::OnChange)
}

fn phase_of(backup: &Backup) -> Option<&BackupPhase> {
    backup.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn needs_work(backup: &Backup) -> bool {
    match phase_of(backup) {
        // Left to the queue, unless it is to be canceled.
        None | Some(BackupPhase::New | BackupPhase::Queued) => is_canceled(backup),
        Some(BackupPhase::ReadyToStart) => true,
        Some(phase) => backup_stage(phase).is_some(),
    }
}

/// A backup on its way to its end.
struct BackupRun<'a> {
    context: &'a Context,
    api: &'a Api<Backup>,
    /// The Backup as last read or written.
    backup: Backup,
    name: BackupName,
    resources: RunResources<'a>,
    /// Items to store again that are in the journal.
    journaled_items: Mutex<BTreeSet<ResourceIdentifier>>,
    /// Contents of the journal, if it was opened after all items were collected, so that it has all of them.
    recovered: Option<Recovered>,
}

enum NextStage {
    /// The next stage, as the phase of the Backup says.
    Continue(Box<Backup>),
    /// No stage: the backup has ended with this status.
    Finished(Box<BackupStatus>),
    /// No stage: the Backup is gone, and so are its files in the bucket.
    ObjectGone,
    /// Another process resumes the run.
    HandedOver,
}

/// Takes a backup from its current stage to its end.
fn resume_or_start<'a>(
    context: &'a Context,
    api: &'a Api<Backup>,
    staleness_tracker: &'a StalenessTracker,
    watched: &'a Store<Backup>,
    backup: Backup,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), BackupRunError>> {
    Box::pin(async move {
        let cancel = CancellationToken::new();
        let watched_backup = backup.clone();
        let running = async {
            match phase_of(&backup) {
                Some(BackupPhase::ReadyToStart) => {
                    Box::pin(start(context, api, staleness_tracker, backup, log, &cancel)).await
                }
                _ => Box::pin(resume(context, api, backup, log, &cancel)).await,
            }
        };
        let conditions = |backup: &Backup| {
            phase_of(backup).and_then(backup_stage)?;
            let status = backup.status.clone().unwrap_or_default();
            Some(with_conditions(&status, true).conditions)
        };
        let publishing_cancel = publish_canceling(context, api, &watched_backup, conditions);
        run_cancelable(
            running,
            wait_for_cancel(watched, &watched_backup),
            &cancel,
            Box::pin(publishing_cancel),
        )
        .await
    })
}

/// Starts a backup whose turn has come.
async fn start(
    context: &Context,
    api: &Api<Backup>,
    staleness_tracker: &StalenessTracker,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), BackupRunError> {
    let mut known = facts::gather_facts(context, &backup).await?;
    let staleness = staleness_tracker.observe(&backup);
    let uid = backup.uid().unwrap_or_default();
    // This is the state right after an installation. Velero refuses the backup then.
    if known.awaits_first_check() && has_time_to_retry(staleness) {
        return Err(BackupRunError::Unchecked);
    }
    recheck_location(context, &mut known.facts.storage_location).await;
    let Prepared { backup, outcome } =
        request::prepare(&backup, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => request,
        Err(errors) => return reject_invalid(context, api, &backup, &errors).await,
    };
    let opened = match known.open(context).await {
        Err(error) if error.is_retryable() && has_time_to_retry(staleness) => {
            context.runs.mark_waiting_for_bucket(&uid, Timestamp::now());
            return Err(BackupRunError::Open(error));
        }
        opened => opened,
    };
    context.runs.clear_waiting_for_bucket(&uid);
    let scope = known.scope_of(&backup);
    let guard = register_run(context, &backup, &scope)?;
    let (name, uid) = (request.name.clone(), request.uid.clone());
    let backup = mark_in_progress(api, &backup).await?;
    context.metrics.backup_began(&backup);
    failpoint::hit(Point::BackupInProgress);
    tracing::info!("the backup has started");
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", status_message(&error));
            let status = failed_status(&backup.status.clone().unwrap_or_default(), reason);
            write_end(context, api, &backup, &status, is_canceled(&backup)).await?;
            return Ok(());
        }
    };
    let opened = BackupRun::open(context, api, backup, name, uid, log, cancel.clone()).await?;
    let Some((run, _)) = opened else { return Ok(()) };
    let next_stage = Box::pin(run.run_items(request, guard, store, Recovery::default())).await?;
    run.drive(next_stage).await
}

/// Registers a backup as running, unless it conflicts with a running one. The queue may not know of the conflict: it
/// may have just started, or have let others start while this backup waited for its bucket.
fn register_run(
    context: &Context,
    backup: &Backup,
    scope: &NamespaceScope,
) -> Result<RunGuard, BackupRunError> {
    let limit = context.options.concurrent_backups.max(1);
    context.runs.try_register(backup, scope, limit).ok_or(BackupRunError::NotAdmitted)
}

/// Resumes a backup that another process has started.
async fn resume(
    context: &Context,
    api: &Api<Backup>,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), BackupRunError> {
    let (name, uid) =
        match (BackupName::new(backup.name_any()), RunUid::new(backup.uid().unwrap_or_default())) {
            (Ok(name), Ok(uid)) => (name, uid),
            (Err(error), _) | (_, Err(error)) => {
                let status =
                    failed_status(&backup.status.clone().unwrap_or_default(), error.to_string());
                write_end(context, api, &backup, &status, is_canceled(&backup)).await?;
                return Ok(());
            }
        };
    let opened = BackupRun::open(context, api, backup, name, uid, log, cancel.clone()).await?;
    let Some((mut run, recovered)) = opened else { return Ok(()) };
    let next_stage = if phase_of(&run.backup).and_then(backup_stage) == Some(Stage::Items) {
        Box::pin(run.resume(recovered)).await?
    } else {
        run.recovered = Some(recovered);
        run.resume_stage().await?
    };
    run.drive(next_stage).await
}

impl<'a> BackupRun<'a> {
    /// Opens the journal of a backup and returns its contents as well. Returns nothing if the journal is damaged, which
    /// has ended the backup.
    async fn open(
        context: &'a Context,
        api: &'a Api<Backup>,
        backup: Backup,
        name: BackupName,
        uid: RunUid,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<Option<(Self, Recovered)>, BackupRunError> {
        let stage = phase_of(&backup).and_then(backup_stage);
        let (of, location) =
            (("Backup", name.as_str(), uid.clone()), &backup.spec.storage_location);
        let is_cancel_requested = cancel.is_cancelled() || is_canceled(&backup);
        let (resources, recovered) =
            match RunResources::open(context, of, location, stage, log, cancel).await {
                Err(error) if run_resources::is_damaged(&error) => {
                    let reason = run_resources::damaged_journal_message(&error, &uid);
                    let status = failed_status(&backup.status.clone().unwrap_or_default(), reason);
                    write_end(context, api, &backup, &status, is_cancel_requested).await?;
                    return Ok(None);
                }
                opened => opened?,
            };
        let journaled_items = Mutex::new(replace::journaled_items(&recovered));
        let run = Self { context, api, backup, name, resources, journaled_items, recovered: None };
        Ok(Some((run, recovered)))
    }

    /// Runs the remaining stages.
    async fn drive(mut self, mut next_stage: NextStage) -> Result<(), BackupRunError> {
        loop {
            next_stage = match next_stage {
                NextStage::Continue(backup) => {
                    self.backup = *backup;
                    match phase_of(&self.backup).and_then(backup_stage) {
                        Some(stage @ Stage::Waiting) => {
                            let waited = Box::pin(self.wait_for_operations()).await;
                            let recovered = self.recovered.as_ref();
                            Box::pin(self.handle_bucket_failure(stage, waited, recovered)).await?
                        }
                        Some(stage @ Stage::Finalizing) => {
                            let finished = Box::pin(self.finish()).await;
                            let recovered = self.recovered.as_ref();
                            Box::pin(self.handle_bucket_failure(stage, finished, recovered)).await?
                        }
                        _ => return Ok(()),
                    }
                }
                NextStage::Finished(status) => {
                    let is_cancel_requested = self.is_canceled();
                    write_end(self.context, self.api, &self.backup, &status, is_cancel_requested)
                        .await?;
                    failpoint::hit(Point::BackupOver);
                    return self.remove_journal().await;
                }
                NextStage::ObjectGone => return self.remove_journal().await,
                NextStage::HandedOver => {
                    self.resources.hand_over().await;
                    return Ok(());
                }
            };
        }
    }

    fn actions(&self) -> Vec<plugin_host::Named<dyn BackupItemAction>> {
        timed_plugins::backup_item_actions(&self.resources.plugins, &self.context.calls)
    }

    async fn publish_milestone(&self, milestone: Milestone) {
        self.context.events.publish(&self.backup, milestone).await;
    }

    /// Removes the journal and the scratch files, which were kept in case the server ended.
    async fn remove_journal(self) -> Result<(), BackupRunError> {
        let store = recover::open_store(self.context, &self.backup).await;
        let store = store.as_ref().map_err(ToString::to_string);
        Ok(self.resources.clean_up(self.context, store).await?)
    }

    async fn object_exists(&self) -> Result<bool, BackupRunError> {
        let found = self.api.get_opt(&self.backup.name_any()).await?;
        Ok(found.is_some_and(|found| found.uid() == self.backup.uid()))
    }

    fn is_canceled(&self) -> bool {
        self.resources.cancel.is_cancelled() || is_canceled(&self.backup)
    }

    /// Reference to the run, as used by its operations.
    fn run_ref(&self) -> RunRef<'_> {
        RunRef { name: self.name.as_str(), uid: self.resources.uid.as_str() }
    }

    /// Timeout of its operations.
    fn timeout(&self) -> Duration {
        let timeout = self.backup.spec.item_operation_timeout.to_std();
        timeout.unwrap_or(self.context.options.default_item_operation_timeout)
    }

    fn status(&self) -> BackupStatus {
        self.backup.status.clone().unwrap_or_default()
    }

    /// Request for the engine, with facts looked up anew.
    async fn prepare_request(
        &self,
    ) -> Result<Result<(Request, NamespaceScope), String>, BackupRunError> {
        let mut known = facts::gather_facts(self.context, &self.backup).await?;
        presume_available(&mut known.facts.storage_location);
        let Prepared { outcome, .. } =
            request::prepare(&self.backup, &known.facts, &known.defaults, Timestamp::now());
        let scope = known.scope_of(&self.backup);
        Ok(outcome.map(|request| (request, scope)).map_err(|errors| errors.join("; ")))
    }

    /// Limits on retries of the run.
    fn bounds(&self) -> RunBounds {
        RunBounds::of(&self.context.options)
    }
}

async fn end_canceled_before_start(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
) -> Result<(), BackupRunError> {
    let status = canceled_status(&backup.status.clone().unwrap_or_default());
    let version = backup.resource_version();
    let mut change = json!(with_conditions(&status, true));
    change["queuePosition"] = Value::Null;
    match patch::patch_status(api, &backup.name_any(), version.as_deref(), change).await {
        Err(error) if patch::is_not_found(&error) => return Ok(()),
        written => written.map(drop)?,
    }
    context.metrics.backup_ended(backup, &status, TerminalPhase::Failed);
    context.events.publish(backup, Milestone::Canceled).await;
    Ok(())
}

fn canceled_status(status: &BackupStatus) -> BackupStatus {
    let reason = canceled_reason();
    // Everything else about it is in the results.
    BackupStatus { failure_reason: reason.clone(), ..failed_status(status, reason) }
}

/// Failure reason of a backup that was canceled.
fn canceled_reason() -> String {
    FailureReason::Canceled(CANCELED).to_string()
}

/// Status of a canceled backup whose results have been counted, including the cancellation.
fn canceled_status_with_results(status: &BackupStatus) -> BackupStatus {
    BackupStatus { errors: status.errors, ..canceled_status(status) }
}

/// Adds the conditions that follow from a status and from a request to cancel.
fn with_conditions(status: &BackupStatus, is_cancel_requested: bool) -> BackupStatus {
    let run = conditions::RunSummary {
        state: RunState::from(status.phase.as_ref()),
        cancel: CancelState::of(&status.failure_reason, is_cancel_requested),
        message: &status.failure_reason,
    };
    let conditions = conditions::update(&status.conditions, run, Timestamp::now());
    BackupStatus { conditions, ..status.clone() }
}

/// Writes the final status of a backup.
async fn write_end(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
    status: &BackupStatus,
    is_cancel_requested: bool,
) -> Result<(), BackupRunError> {
    let status = with_conditions(status, is_cancel_requested);
    let written = with_retries(|| patch::patch_status_of(api, backup, json!(status))).await?;
    if written.is_none() {
        tracing::info!("it was deleted at its end; the sync brings back what is in the bucket");
    }
    if let RunState::Ended(end) = RunState::from(status.phase.as_ref()) {
        context.metrics.backup_ended(backup, &status, end);
        context
            .events
            .publish(backup, Milestone::from_terminal_phase(end, &status.failure_reason))
            .await;
    }
    Ok(())
}

/// True if a failure may still be retried. Retries are limited because others wait for this backup.
fn has_time_to_retry(staleness: Staleness) -> bool {
    matches!(staleness, Staleness::Changing(_))
        || matches!(staleness, Staleness::Unchanged(still) if still < START_RETRY_LIMIT)
}

/// Writes the validation errors of a backup.
async fn reject_invalid(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
    errors: &[String],
) -> Result<(), BackupRunError> {
    tracing::warn!("the backup is not valid: {}", errors.join("; "));
    let status = BackupStatus {
        phase: Some(BackupPhase::FailedValidation),
        validation_errors: errors.to_vec(),
        ..backup.status.clone().unwrap_or_default()
    };
    let change = defaulted_patch(backup, &status);
    patch::patch(api, &backup.name_any(), backup.resource_version().as_deref(), change).await?;
    let end = TerminalPhase::FailedValidation;
    context.metrics.backup_ended(backup, &status, end);
    context.events.publish(backup, Milestone::Ended { phase: end }).await;
    Ok(())
}

/// Writes that a backup has started, with the defaults that were filled in.
async fn mark_in_progress(api: &Api<Backup>, backup: &Backup) -> Result<Backup, BackupRunError> {
    let status = BackupStatus {
        phase: Some(BackupPhase::InProgress),
        start_timestamp: Some(Time(Timestamp::now())),
        ..backup.status.clone().unwrap_or_default()
    };
    let change = defaulted_patch(backup, &status);
    let version = backup.resource_version();
    Ok(patch::patch(api, &backup.name_any(), version.as_deref(), change).await?)
}

/// Patch with a status and the defaults that the validation filled in.
fn defaulted_patch(backup: &Backup, status: &BackupStatus) -> Value {
    json!({
        "metadata": {
            "uid": backup.uid(),
            "labels": backup.labels(),
            "annotations": backup.annotations(),
        },
        "spec": backup.spec,
        "status": with_conditions(status, is_canceled(backup)),
    })
}

/// Status of a backup that has failed for a reason, based on its status so far.
fn failed_status(status: &BackupStatus, reason: String) -> BackupStatus {
    tracing::error!("the backup has failed: {reason}");
    BackupStatus {
        // A backup that had failed before has counted that error already.
        errors: status.errors.saturating_add(i64::from(status.failure_reason.is_empty())),
        failure_reason: match status.failure_reason.as_str() {
            "" => reason,
            first => format!("{first}; {reason}"),
        },
        ..finalize::completed_status(
            &BackupStatus { phase: None, ..status.clone() },
            Timestamp::now(),
        )
    }
}

#[cfg(test)]
mod tests;
