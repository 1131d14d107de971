//! Runs backups, from `ReadyToStart` to `Completed` or another terminal phase.
//!
//! `run/lifecycle.rs` has the rules that backups share with restores; a `BackupRun` is a `Run` of a Backup. The stages:
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

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_engine::backup::request::{self, PreparedBackup, Request, ValidationErrors};
use bowline_engine::backup::{Recovery, finalize};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::operation::Operation;
use bowline_engine::phase::{self, Stage, backup_stage};
use bowline_plugin::BackupItemAction;
use bowline_plugin_host as plugin_host;
use bowline_store::{BackupName, BackupStore};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::bucket_wait::EndReason;
use super::lookup::{presume_available, recheck_location};
use super::operations::{CANCELED, is_canceled};
use super::run::{
    self, Run, RunError, RunObject, RunStatus, cancel_token, defaulted_patch, reject_invalid,
    run_until_canceled, with_conditions, write_end,
};
use super::staleness::{Staleness, StalenessTracker};
use super::timed_plugins;
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::log::RunLog;
use crate::metrics::{Metrics, ObjectSource};
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

async fn reconcile(
    context: Arc<Context>,
    staleness_tracker: Arc<StalenessTracker>,
    watched: Store<Backup>,
    backup: Arc<Backup>,
) -> Result<Requeue, RunError> {
    if !needs_work(&backup) {
        return Ok(Requeue::OnChange);
    }
    let api: Api<Backup> = context.api();
    // The watch may be behind this server's own last write.
    let Some(backup) = api.get_opt(&backup.name_any()).await? else { return Ok(Requeue::OnChange) };
    if !needs_work(&backup) {
        return Ok(Requeue::OnChange);
    }
    if is_canceled(&backup) && backup.stage().is_none() {
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
        Some(_) => backup.stage().is_some(),
    }
}

type BackupRun<'a> = Run<'a, Backup>;
type NextStage = run::NextStage<Backup>;

#[async_trait]
impl RunObject for Backup {
    type Name = BackupName;
    const NOUN: &'static str = "backup";
    const OVER: Failpoint = Failpoint::BackupOver;
    const BUCKET_UNREACHABLE: &'static str = "cannot read the bucket";
    const FILE_REFUSED: &'static str =
        "a file of the backup cannot be read from the bucket; retrying";

    fn stage(&self) -> Option<Stage> {
        phase_of(self).and_then(backup_stage)
    }

    fn operation_timeout(&self) -> Option<Duration> {
        self.spec.item_operation_timeout.to_std()
    }

    fn record_end(&self, metrics: &Metrics, status: &BackupStatus, end: TerminalPhase) {
        metrics.backup_ended(self, status, end);
    }

    async fn open_store(run: &BackupRun<'_>) -> Result<BackupStore, RunError> {
        recover::open_store(run.context, &run.object).await
    }

    async fn run_stage(run: &BackupRun<'_>, stage: Stage) -> Result<NextStage, RunError> {
        match stage {
            Stage::Waiting => run.wait_for_operations().await,
            _ => run.finish().await,
        }
    }

    async fn end_from_journal(
        run: &BackupRun<'_>,
        stage: Stage,
        end_reason: EndReason,
        failure: &str,
        recovered: &RecoveredRun,
    ) -> Result<NextStage, RunError> {
        run.end_from_journal(stage, end_reason, failure, recovered).await
    }
}

impl RunStatus for BackupStatus {
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
        self.phase = Some(phase::of_backup(stage, is_tainted));
    }

    fn count_operations(&mut self, operations: &[Operation]) {
        finalize::count_operations(self, operations);
    }

    fn set_invalid(&mut self, errors: &[String]) {
        self.phase = Some(BackupPhase::FailedValidation);
        self.validation_errors = errors.to_vec();
    }

    fn failed(&self, reason: String) -> Self {
        tracing::error!("the backup failed: {reason}");
        Self {
            // A backup that had failed before has counted that error already.
            errors: self.errors.saturating_add(i64::from(self.failure_reason.is_empty())),
            failure_reason: match self.failure_reason.as_str() {
                "" => reason,
                first => format!("{first}; {reason}"),
            },
            ..finalize::completed_status(&Self { phase: None, ..self.clone() }, Timestamp::now())
        }
    }

    fn canceled(&self) -> Self {
        let reason = canceled_reason();
        // Everything else about it is in the results.
        Self { failure_reason: reason.clone(), ..self.failed(reason) }
    }
}

/// Takes a backup from its current stage to its end.
fn resume_or_start<'a>(
    context: &'a Arc<Context>,
    api: &'a Api<Backup>,
    staleness_tracker: &'a StalenessTracker,
    watched: &'a Store<Backup>,
    backup: Backup,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), RunError>> {
    Box::pin(async move {
        let cancel = cancel_token(&backup);
        let watched_backup = backup.clone();
        let running = async {
            match phase_of(&backup) {
                Some(BackupPhase::ReadyToStart) => {
                    Box::pin(start(context, api, staleness_tracker, backup, log, &cancel)).await
                }
                _ => Box::pin(resume(context, api, backup, log, &cancel)).await,
            }
        };
        run_until_canceled(context, api, watched, &watched_backup, &cancel, running).await
    })
}

/// Starts a backup whose turn has come.
async fn start(
    context: &Arc<Context>,
    api: &Api<Backup>,
    staleness_tracker: &StalenessTracker,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let mut known = facts::gather_facts(context, &backup).await?;
    let staleness = staleness_tracker.observe(&backup);
    let uid = backup.uid().unwrap_or_default();
    // This is the state right after an installation. Velero refuses the backup then.
    if known.awaits_first_check() && has_time_to_retry(staleness) {
        return Err(RunError::Unchecked);
    }
    recheck_location(context, &mut known.facts.storage_location).await;
    let PreparedBackup { backup, outcome } =
        request::prepare(&backup, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => request,
        Err(errors) => return reject_invalid(context, api, &backup, &errors).await,
    };
    let opened = match known.open(context).await {
        Err(error) if error.is_retryable() && has_time_to_retry(staleness) => {
            context.runs.mark_waiting_for_bucket(&uid, Timestamp::now());
            return Err(RunError::Open(error));
        }
        opened => opened,
    };
    context.runs.clear_waiting_for_bucket(&uid);
    let scope = known.scope_of(&backup);
    let guard = register_run(context, &backup, &scope)?;
    let backup = mark_in_progress(api, &backup).await?;
    context.metrics.backup_began(&backup);
    failpoint::hit(Failpoint::BackupInProgress);
    tracing::info!("backup started");
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", status_message(&error));
            let status = run::status_of(&backup).failed(reason);
            return write_end(context, api, &backup, &status, is_canceled(&backup)).await;
        }
    };
    let location = backup.spec.storage_location.clone();
    let opened = BackupRun::open(context, api, backup, &location, log, cancel).await?;
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
) -> Result<RunGuard, RunError> {
    let limit = context.options.concurrent_backups.max(1);
    context.runs.try_register(backup, scope, limit).ok_or(RunError::NotAdmitted)
}

/// Resumes a backup that another process has started.
async fn resume(
    context: &Arc<Context>,
    api: &Api<Backup>,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), RunError> {
    let location = backup.spec.storage_location.clone();
    let opened = BackupRun::open(context, api, backup, &location, log, cancel).await?;
    let Some((mut run, recovered)) = opened else { return Ok(()) };
    let next_stage = match (run.object.stage(), recovered.ended_without_bucket) {
        (None, _) => return Ok(()),
        (Some(_), Some(stage)) => Box::pin(run.resume_end(stage, &recovered)).await?,
        (Some(Stage::Items), None) => Box::pin(run.resume_items(recovered)).await?,
        (Some(stage), None) => {
            let next_stage = run.resume_stage(stage, &recovered).await?;
            run.recovered = Some(recovered);
            next_stage
        }
    };
    run.drive(next_stage).await
}

impl BackupRun<'_> {
    fn actions(&self) -> Vec<plugin_host::Named<dyn BackupItemAction>> {
        timed_plugins::backup_item_actions(&self.resources.plugins, &self.context.calls)
    }

    /// Request for the engine, with facts looked up anew.
    async fn prepare_request(
        &self,
    ) -> Result<Result<(Request, NamespaceScope), ValidationErrors>, RunError> {
        let mut known = facts::gather_facts(self.context, &self.object).await?;
        presume_available(&mut known.facts.storage_location);
        let PreparedBackup { outcome, .. } =
            request::prepare(&self.object, &known.facts, &known.defaults, Timestamp::now());
        let scope = known.scope_of(&self.object);
        Ok(outcome.map(|request| (request, scope)))
    }
}

async fn end_canceled_before_start(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
) -> Result<(), RunError> {
    let status = run::status_of(backup).canceled();
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

/// Failure reason of a backup that was canceled.
fn canceled_reason() -> String {
    FailureReason::Canceled(CANCELED).to_string()
}

/// Status of a canceled backup whose results have been counted, including the cancellation.
fn canceled_status_with_results(status: &BackupStatus) -> BackupStatus {
    BackupStatus { errors: status.errors, ..status.canceled() }
}

/// True if a failure may still be retried. Retries are limited because others wait for this backup.
fn has_time_to_retry(staleness: Staleness) -> bool {
    matches!(staleness, Staleness::Changing(_))
        || matches!(staleness, Staleness::Unchanged(still) if still < START_RETRY_LIMIT)
}

/// Writes that a backup has started, with the defaults that were filled in.
async fn mark_in_progress(api: &Api<Backup>, backup: &Backup) -> Result<Backup, RunError> {
    let status = BackupStatus {
        phase: Some(BackupPhase::InProgress),
        start_timestamp: Some(Time(Timestamp::now())),
        ..backup.status.clone().unwrap_or_default()
    };
    let change = defaulted_patch(backup, &status);
    let version = backup.resource_version();
    Ok(patch::patch(api, &backup.name_any(), version.as_deref(), change).await?)
}

#[cfg(test)]
mod tests;
