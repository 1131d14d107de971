//! Runs backups: `ReadyToStart` → … → `Completed`, or whatever is true.
//!
//! `back_up` is one backup from beginning to end: validated, run by the engine, written, committed
//! in the bucket, and only then said to be over in the cluster.

pub(in crate::controllers) mod facts;
mod recover;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_engine::backup::request::{self, Prepared, Request};
use bowline_engine::backup::{self, Fatal, Progress, Taken, finalize};
use bowline_engine::cluster::ApiServer;
use bowline_store::store::Committed;
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::backup_queue::reach;
use super::look::{Life, Looks};
use super::lookup::OpenError;
use super::run::{named, patiently, show_progress, until_over};
use crate::log::RunLog;
use crate::patch;
use crate::queue::Reach;
use crate::server::{Context, Error};
use crate::story::one_line;
use crate::watch::{Next, Watch};

/// How long something that others wait for is tried again.
const GIVE_UP: Duration = Duration::from_mins(5);
/// How many LISTs one backup makes at a time.
const CONNECTIONS: usize = 4;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Backup> = context.api();
    let concurrency = u16::try_from(context.options.concurrent_backups).unwrap_or(u16::MAX);
    let stop = context.stop.clone();
    let looks = Arc::new(Looks::default());
    let work = move |backup: Arc<Backup>| work(Arc::clone(&context), Arc::clone(&looks), backup);
    Ok(Watch::new(api).concurrency(concurrency).run(&stop, work).await?)
}

/// Why a backup could not be worked on. It is tried again.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("cannot look into the bucket: {0}")]
    Bucket(String),
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
    #[error("it is not known whether the record of the backup is in the bucket: {0}")]
    Commit(String),
}

async fn work(
    context: Arc<Context>,
    looks: Arc<Looks>,
    backup: Arc<Backup>,
) -> Result<Next, WorkError> {
    if !concerns_us(&backup) {
        return Ok(Next::Done);
    }
    let api: Api<Backup> = context.api();
    // The watch may be behind what we wrote ourselves a moment ago.
    let Some(backup) = api.get_opt(&backup.name_any()).await? else { return Ok(Next::Done) };
    match phase_of(&backup) {
        Some(BackupPhase::ReadyToStart) => {
            Box::pin(back_up(&context, &api, &looks, backup)).await?;
        }
        // Runs of this process hold this object until they have ended, so this one is another's.
        Some(BackupPhase::InProgress) => match looks.look(&backup) {
            Life::Moves(again) => return Ok(Next::Again(again)),
            Life::Still(still) => recover::in_progress(&context, &api, backup, still).await?,
        },
        Some(BackupPhase::Finalizing | BackupPhase::FinalizingPartiallyFailed) => {
            recover::finalizing(&context, &api, backup).await?;
        }
        _ => {}
    }
    Ok(Next::Done)
}

fn phase_of(backup: &Backup) -> Option<&BackupPhase> {
    backup.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn concerns_us(backup: &Backup) -> bool {
    matches!(
        phase_of(backup),
        Some(
            BackupPhase::ReadyToStart
                | BackupPhase::InProgress
                | BackupPhase::Finalizing
                | BackupPhase::FinalizingPartiallyFailed
        )
    )
}

/// One backup, from beginning to end.
async fn back_up(
    context: &Context,
    api: &Api<Backup>,
    looks: &Looks,
    backup: Backup,
) -> Result<(), WorkError> {
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, backup.name_any());
    let span = log.attach(tracing::info_span!("backup", backup = name));
    Box::pin(back_up_logged(context, api, looks, backup, &log)).instrument(span).await
}

async fn back_up_logged(
    context: &Context,
    api: &Api<Backup>,
    looks: &Looks,
    backup: Backup,
    log: &RunLog,
) -> Result<(), WorkError> {
    let known = facts::gather(context, &backup).await?;
    let waits = looks.look(&backup);
    let Prepared { backup, outcome } =
        request::prepare(&backup, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => request,
        Err(errors) => return refuse(api, &backup, &errors).await,
    };
    let opened = match known.open(context).await {
        Err(error) if error.is_retryable() && has_time(waits) => {
            return Err(WorkError::Open(error));
        }
        opened => opened,
    };
    let reach = known.facts.namespaces.as_ref().map_or(Reach::All, |live| reach(&backup, live));
    let _held = context.runs.hold(&backup, Some(reach));
    let backup = begin(api, &backup).await?;
    tracing::info!("the backup has started");
    let status = match opened {
        Ok(store) => {
            let (taken, is_there) =
                Box::pin(take(context, api, &backup, request, store.clone())).await;
            tell(&taken);
            if !is_there {
                clean(&store, &backup, &taken).await;
                return Ok(());
            }
            let status = finalize::status(&backup, &taken);
            close(api, &store, &backup, status, &taken, log).await?
        }
        Err(error) => Some(failed(
            &backup.status.clone().unwrap_or_default(),
            format!("cannot open the storage location: {}", one_line(&error)),
        )),
    };
    if let Some(status) = status {
        let written = patiently(|| patch::patch_status_of(api, &backup, json!(status))).await?;
        if written.is_none() {
            tracing::info!("it was deleted at its end; the sync brings back what is in the bucket");
        }
    }
    Ok(())
}

/// Whether something that fails may be tried again, and not for ever: others wait for this backup.
fn has_time(waits: Life) -> bool {
    matches!(waits, Life::Moves(_)) || matches!(waits, Life::Still(still) if still < GIVE_UP)
}

/// Writes what is wrong with a backup.
async fn refuse(api: &Api<Backup>, backup: &Backup, errors: &[String]) -> Result<(), WorkError> {
    tracing::warn!("the backup is not valid: {}", errors.join("; "));
    let mut change = defaulted(backup);
    change["status"]["phase"] = json!(BackupPhase::FailedValidation);
    change["status"]["validationErrors"] = json!(errors);
    patch::patch(api, &backup.name_any(), backup.resource_version().as_deref(), change).await?;
    Ok(())
}

/// Writes that a backup has begun, and what was filled in.
async fn begin(api: &Api<Backup>, backup: &Backup) -> Result<Backup, WorkError> {
    let mut change = defaulted(backup);
    change["status"]["phase"] = json!(BackupPhase::InProgress);
    change["status"]["startTimestamp"] = json!(Time(Timestamp::now()));
    let version = backup.resource_version();
    Ok(patch::patch(api, &backup.name_any(), version.as_deref(), change).await?)
}

/// What the validation filled in, as a change.
fn defaulted(backup: &Backup) -> Value {
    json!({
        "metadata": {
            "uid": backup.uid(),
            "labels": backup.labels(),
            "annotations": backup.annotations(),
        },
        "spec": backup.spec,
        "status": backup.status.clone().unwrap_or_default(),
    })
}

/// Lets the engine take the backup, and shows how far it is meanwhile. Returns as well whether the
/// Backup is still there.
async fn take(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
    request: Request,
    store: BackupStore,
) -> (Taken, bool) {
    let stop = context.stop.child_token();
    let plugins = context.host.run();
    let progress = Arc::new(Progress::default());
    let request = Request { backup: bowline_plugin::Encoded::new(backup.clone()), ..request };
    let run = backup::Run {
        request,
        cluster: Arc::new(ApiServer::new(context.client.clone(), context.options.client_page_size)),
        store,
        backup_item_actions: named(plugins.backup_item_actions()),
        item_block_actions: named(plugins.item_block_actions()),
        options: backup::Options {
            connections: CONNECTIONS,
            block_workers: context.options.item_block_worker_count.max(1),
            scratch: context.options.scratch_dir.clone(),
        },
        progress: Arc::clone(&progress),
        stop: stop.clone(),
    };
    let shown = show_progress(
        api,
        backup,
        || json!({ "totalItems": progress.total(), "itemsBackedUp": progress.backed_up() }),
    );
    let taken = until_over(backup::run(run, Timestamp::now()), shown, &stop).await;
    plugins.end().await;
    taken
}

/// Says in the log how it went. The counts come from the report.
fn tell(taken: &Taken) {
    let (errors, warnings) = (taken.report.errors(), taken.report.warnings());
    match &taken.archive {
        Ok(archive) => tracing::info!(
            items = archive.items,
            bytes = archive.bytes,
            errors,
            warnings,
            "all items are in the archive"
        ),
        Err(fatal) => {
            tracing::error!(errors, warnings, "the backup has failed: {}", fatal.told());
        }
    }
}

/// Writes the files of a backup, and last the record that makes it one. Returns what is true then;
/// none if the Backup was deleted, and nothing is left of it.
async fn close(
    api: &Api<Backup>,
    store: &BackupStore,
    backup: &Backup,
    status: BackupStatus,
    taken: &Taken,
    log: &RunLog,
) -> Result<Option<BackupStatus>, WorkError> {
    if is_of_another(taken) {
        return Ok(Some(finalize::conclude(&status, Timestamp::now())));
    }
    let name = match BackupName::new(backup.name_any()) {
        Ok(name) => name,
        Err(error) => return Ok(Some(failed(&status, error.to_string()))),
    };
    let gzip = log.finish();
    let written = patiently(|| finalize::write(store, &name, taken, gzip.clone())).await;
    if let Err(error) = written {
        let reason = format!("cannot write the files of the backup: {}", one_line(&error));
        return Ok(Some(failed(&status, reason)));
    }
    if taken.archive.is_ok() {
        // From here on, whoever finds the Backup can end it.
        let shown = patiently(|| patch::patch_status_of(api, backup, json!(status))).await;
        match shown {
            Ok(Some(_)) => {}
            Ok(None) => {
                clean(store, backup, taken).await;
                return Ok(None);
            }
            // The record counts, which is in the bucket.
            Err(error) => tracing::warn!("the phase cannot be shown: {}", one_line(&error)),
        }
    }
    commit(store, backup, &status).await.map(Some)
}

/// Whether what lies in the bucket under this name is, or may be, another backup, and so not ours to
/// touch.
fn is_of_another(taken: &Taken) -> bool {
    matches!(taken.archive, Err(Fatal::Exists | Fatal::Look(_)))
}

/// Takes out of the bucket what a run has put there whose Backup was deleted.
async fn clean(store: &BackupStore, backup: &Backup, taken: &Taken) {
    let Ok(name) = BackupName::new(backup.name_any()) else { return };
    if is_of_another(taken) {
        return;
    }
    let cleaned = async {
        // A record would be somebody else's: this run has written none.
        if !store.exists(&name).await? {
            store.delete_backup(&name).await?;
        }
        Ok::<_, bowline_store::Error>(())
    };
    if let Err(error) = cleaned.await {
        tracing::warn!("files of a deleted backup may be left: {}", one_line(&error));
    }
}

/// Writes the commit record of a backup whose files are written. Returns what is true then. Where
/// that is not known it is an error, and [`recover`] asks the bucket later.
async fn commit(
    store: &BackupStore,
    backup: &Backup,
    status: &BackupStatus,
) -> Result<BackupStatus, WorkError> {
    let end = finalize::conclude(status, Timestamp::now());
    let record = Backup { status: Some(end.clone()), ..backup.clone() };
    match patiently(|| store.commit(&record)).await {
        Ok(Committed::Before(found)) => Ok(found.status.unwrap_or(end)),
        Ok(Committed::Created(_) | Committed::Replaced) => Ok(end),
        Err(error) if error.is_retryable() => Err(WorkError::Commit(one_line(&error))),
        Err(error) => {
            let reason = one_line(&error);
            let told = "the backup is not in the bucket, because its record cannot be written";
            Ok(failed(status, format!("{told}: {reason}")))
        }
    }
}

/// The status of a backup that has failed for a reason, with what is known of it so far.
fn failed(status: &BackupStatus, reason: String) -> BackupStatus {
    tracing::error!("the backup has failed: {reason}");
    BackupStatus {
        // One that had failed before has counted that.
        errors: status.errors.saturating_add(i64::from(status.failure_reason.is_empty())),
        failure_reason: match status.failure_reason.as_str() {
            "" => reason,
            first => format!("{first}; {reason}"),
        },
        ..finalize::conclude(&BackupStatus { phase: None, ..status.clone() }, Timestamp::now())
    }
}

#[cfg(test)]
mod tests;
