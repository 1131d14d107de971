//! Runs restores: `New` → `InProgress` → `Completed`, or whatever is true.
//!
//! A restore that is found in progress when the server starts is run again: what it has created is
//! recognised, and every object is there once in the end.

mod facts;

use std::sync::Arc;

use bowline_api::annotation::finalizer;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_engine::cluster::ApiServer;
use bowline_engine::restore::request::{self, Prepared, Request};
use bowline_engine::restore::{self, Fatal, Progress, Restored, finalize};
use bowline_plugin::Encoded;
use bowline_store::{BackupStore, RestoreName};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::look::{Life, Looks};
use super::lookup::OpenError;
use super::run::{named, patiently, show_progress, until_over};
use crate::log::RunLog;
use crate::patch;
use crate::server::{Context, Error};
use crate::story::one_line;
use crate::watch::{Next, Watch};

/// How many restores run at a time.
const CONCURRENCY: u16 = 4;
/// How many requests one restore makes at a time, and how many items it works on.
const REQUESTS: usize = 32;
const ITEMS: usize = 96;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Restore> = context.api();
    let stop = context.stop.clone();
    let looks = Arc::new(Looks::default());
    let work = move |restore: Arc<Restore>| work(Arc::clone(&context), Arc::clone(&looks), restore);
    Ok(Watch::new(api).concurrency(CONCURRENCY).run(&stop, work).await?)
}

/// Why a restore could not be worked on. It is tried again.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("the files of the restore cannot be deleted: {0}")]
    Files(String),
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
}

async fn work(
    context: Arc<Context>,
    looks: Arc<Looks>,
    restore: Arc<Restore>,
) -> Result<Next, WorkError> {
    if !concerns_us(&restore) {
        return Ok(Next::Done);
    }
    let api: Api<Restore> = context.api();
    // The watch may be behind what we wrote ourselves a moment ago.
    let Some(restore) = api.get_opt(&restore.name_any()).await? else { return Ok(Next::Done) };
    if restore.metadata.deletion_timestamp.is_some() {
        forget(&context, &api, &restore).await?;
    } else if concerns_us(&restore) {
        // Runs of this process hold this object until they have ended, so this one is another's.
        if phase_of(&restore) == Some(&RestorePhase::InProgress)
            && let Life::Moves(again) = looks.look(&restore)
        {
            return Ok(Next::Again(again));
        }
        Box::pin(restore_one(&context, &api, restore)).await?;
    }
    Ok(Next::Done)
}

fn phase_of(restore: &Restore) -> Option<&RestorePhase> {
    restore.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn concerns_us(restore: &Restore) -> bool {
    let phase = phase_of(restore);
    restore.metadata.deletion_timestamp.is_some()
        || matches!(phase, None | Some(RestorePhase::New | RestorePhase::InProgress))
}

/// One restore, from beginning to end.
async fn restore_one(
    context: &Context,
    api: &Api<Restore>,
    restore: Restore,
) -> Result<(), WorkError> {
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, restore.name_any());
    let span = log.attach(tracing::info_span!("restore", restore = name));
    Box::pin(restore_logged(context, api, restore, &log)).instrument(span).await
}

async fn restore_logged(
    context: &Context,
    api: &Api<Restore>,
    restore: Restore,
    log: &RunLog,
) -> Result<(), WorkError> {
    let known = facts::gather(context, &restore).await?;
    let Prepared { restore, outcome } =
        request::prepare(&restore, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => request,
        Err(errors) => return refuse(api, &restore, &errors).await,
    };
    // Nobody waits for a restore, so that it can be tried for as long as it takes.
    let opened = match known.open(context).await {
        Err(error) if error.is_retryable() => return Err(WorkError::Open(error)),
        opened => opened,
    };
    let _held = context.runs.hold(&restore, None);
    let restore = begin(api, &restore).await?;
    tracing::info!(backup = %request.backup_name, "the restore has started");
    let status = match opened {
        Ok(store) => {
            let name = request.name.clone();
            let (restored, is_there) =
                Box::pin(take(context, api, &restore, request, store.clone())).await;
            tell(&restored);
            if !is_there || matches!(restored.fatal, Some(Fatal::Stopped)) {
                // The next server goes on with it, if it is still there.
                return Ok(());
            }
            let status = finalize::status(&restore, &restored, Timestamp::now());
            close(&store, &name, status, &restored, log).await
        }
        Err(error) => {
            failed(&restore, format!("cannot open the storage location: {}", one_line(&error)))
        }
    };
    patiently(|| patch::patch_status_of(api, &restore, json!(status))).await?;
    Ok(())
}

/// Writes what is wrong with a restore.
async fn refuse(api: &Api<Restore>, restore: &Restore, errors: &[String]) -> Result<(), WorkError> {
    tracing::warn!("the restore is not valid: {}", errors.join("; "));
    let mut change = defaulted(restore);
    change["status"]["phase"] = json!(RestorePhase::FailedValidation);
    change["status"]["validationErrors"] = json!(errors);
    patch::patch(api, &restore.name_any(), restore.resource_version().as_deref(), change).await?;
    Ok(())
}

/// Writes that a restore has begun, and what was filled in.
async fn begin(api: &Api<Restore>, restore: &Restore) -> Result<Restore, WorkError> {
    let mut change = defaulted(restore);
    change["status"]["phase"] = json!(RestorePhase::InProgress);
    let mut finalizers = restore.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == finalizer::RESTORE) {
        finalizers.push(finalizer::RESTORE.to_owned());
    }
    change["metadata"]["finalizers"] = json!(finalizers);
    let version = restore.resource_version();
    Ok(patch::patch(api, &restore.name_any(), version.as_deref(), change).await?)
}

/// What the validation filled in, as a change.
fn defaulted(restore: &Restore) -> Value {
    json!({
        "metadata": {
            "uid": restore.uid(),
            "labels": restore.labels(),
            "annotations": restore.annotations(),
        },
        "spec": restore.spec,
        "status": restore.status.clone().unwrap_or_default(),
    })
}

/// Lets the engine restore, and shows how far it is meanwhile. Returns as well whether the Restore is
/// still there.
async fn take(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
    request: Request,
    store: BackupStore,
) -> (Restored, bool) {
    let stop = context.stop.child_token();
    let plugins = context.host.run();
    let progress = Arc::new(Progress::default());
    let options = &context.options;
    let run = restore::Run {
        request: Request { restore: Encoded::new(restore.clone()), ..request },
        cluster: Arc::new(ApiServer::new(context.client.clone(), options.client_page_size)),
        store,
        actions: named(plugins.restore_item_actions()),
        options: restore::Options {
            requests: REQUESTS,
            items: ITEMS,
            scratch: options.scratch_dir.clone(),
            namespace: options.namespace.clone(),
            priorities: options.restore_resource_priorities.clone(),
            resource_timeout: options.resource_timeout,
            terminating_timeout: options.terminating_resource_timeout,
        },
        progress: Arc::clone(&progress),
        stop: stop.clone(),
    };
    let shown = show_progress(
        api,
        restore,
        || json!({ "totalItems": progress.total(), "itemsRestored": progress.restored() }),
    );
    let restored = until_over(restore::run(run, Timestamp::now()), shown, &stop).await;
    plugins.end().await;
    restored
}

/// Says in the log how it went. The counts come from the report.
fn tell(restored: &Restored) {
    let (errors, warnings) = (restored.report.errors(), restored.report.warnings());
    match &restored.fatal {
        None => tracing::info!(items = restored.items, errors, warnings, "all items are through"),
        Some(fatal) => {
            tracing::error!(errors, warnings, "the restore has failed: {}", fatal.told());
        }
    }
}

/// Writes the files of a restore. Returns what is true then.
async fn close(
    store: &BackupStore,
    name: &RestoreName,
    status: RestoreStatus,
    restored: &Restored,
    log: &RunLog,
) -> RestoreStatus {
    let gzip = log.finish();
    match patiently(|| finalize::write(store, name, restored, gzip.clone())).await {
        Ok(()) => status,
        // The objects are there all the same; what is missing are the log and the results.
        Err(error) => {
            let reason = format!("its log and results cannot be written: {}", one_line(&error));
            tracing::error!("{reason}");
            RestoreStatus {
                phase: Some(match status.phase {
                    Some(RestorePhase::Failed) => RestorePhase::Failed,
                    _ => RestorePhase::PartiallyFailed,
                }),
                errors: status.errors + 1,
                failure_reason: match status.failure_reason {
                    first if first.is_empty() => reason,
                    first => format!("{first}; {reason}"),
                },
                ..status
            }
        }
    }
}

/// The status of a restore that has failed for a reason.
fn failed(restore: &Restore, reason: String) -> RestoreStatus {
    tracing::error!("the restore has failed: {reason}");
    RestoreStatus {
        phase: Some(RestorePhase::Failed),
        failure_reason: reason,
        errors: 1,
        ..restore.status.clone().unwrap_or_default()
    }
}

/// Deletes the files of a restore that is deleted, and lets it go.
async fn forget(context: &Context, api: &Api<Restore>, restore: &Restore) -> Result<(), WorkError> {
    let ours = |finalizer: &&String| finalizer.as_str() == finalizer::RESTORE;
    if !restore.finalizers().iter().any(|finalizer| ours(&finalizer)) {
        return Ok(());
    }
    // Without a backup or location there is nowhere that files could be.
    let known = facts::gather(context, restore).await?;
    if known.has_location() {
        let no = |error: &(dyn std::error::Error + 'static)| WorkError::Files(one_line(error));
        let store = known.open(context).await.map_err(|error| no(&error))?;
        let name = RestoreName::new(restore.name_any()).map_err(|error| no(&error))?;
        store.delete_restore(&name).await.map_err(|error| no(&error))?;
    }
    let kept: Vec<_> = restore.finalizers().iter().filter(|finalizer| !ours(finalizer)).collect();
    let change = json!({ "metadata": { "finalizers": kept } });
    let version = restore.resource_version();
    match patch::patch(api, &restore.name_any(), version.as_deref(), change).await {
        Err(error) if patch::is_missing(&error) => Ok(()),
        changed => Ok(changed.map(drop)?),
    }
}
