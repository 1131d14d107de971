//! Runs restores: `New` → `InProgress` → … → `Completed`, or whatever is true.
//!
//! A `Course` is one restore on its way, as with backups. One that is found in progress when the
//! server starts is run again: what it has created is recognised, the operations that it has begun are
//! in its journal, and every object is there once in the end.

mod access;
mod csi;
mod facts;
mod items;
mod outage;
pub(crate) mod turn;
mod volumes;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::annotation::finalizer;
use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_engine::journal::Recovered;
use bowline_engine::operation::record::Of;
use bowline_engine::phase::{Stage, restore_stage};
use bowline_engine::point::{self, Point};
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
use super::kit::{self, Kit};
use super::lookup::{OpenError, check_again, presume_available};
use super::operations::{
    CANCELED, CANCELED_PREFIX, cancelable, canceled, is_canceled, tell_canceling,
};
use super::run::patiently;
use super::timed;
use crate::conditions::{self, Cancel};
use crate::end::{End, Standing};
use crate::events::Milestone;
use crate::journal;
use crate::log::RunLog;
use crate::metrics::Source;
use crate::patch;
use crate::runs::Runs;
use crate::server::{Context, Error};
use crate::story::one_line;
use crate::watch::{Next, Watch};

/// How many restores are on their way at a time, most of them waiting for operations.
const UNDER_WAY: u16 = 1000;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Restore> = context.api();
    let stop = context.stop.clone();
    let watch = Watch::new(api).concurrency(UNDER_WAY).all_on(context.restores.releases());
    let watched = watch.store();
    context.metrics.see(Source::Restores(watched.clone()));
    let work = move |restore: Arc<Restore>| work(Arc::clone(&context), watched.clone(), restore);
    Ok(watch.run(&stop, work).await?)
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
    #[error("cannot read or write the files of the restore: {0}")]
    Bucket(String),
    #[error("the bucket does not show a file, which is tried again: {0}")]
    Refused(String),
    #[error("the bucket refuses to be written, which is tried again: {0}")]
    WriteRefused(String),
    #[error("its backup and storage location are not known: {0}")]
    Hidden(String),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("{0}")]
    Note(String),
}

impl WorkError {
    /// Why something could not be read.
    fn of_read(error: &bowline_store::Error) -> Self {
        match BucketFailure::of_read(error) {
            Some(BucketFailure::Refused | BucketFailure::WriteRefused) => {
                Self::Refused(one_line(error))
            }
            Some(BucketFailure::Away) | None => Self::Bucket(one_line(error)),
        }
    }

    /// Why something could not be written.
    fn of_write(error: &bowline_store::Error) -> Self {
        match Self::of_read(error) {
            Self::Refused(reason) => Self::WriteRefused(reason),
            other => other,
        }
    }

    /// What is wrong with the bucket, if that is all that is wrong.
    fn bucket_failure(&self) -> Option<BucketFailure> {
        match self {
            Self::Bucket(_) => Some(BucketFailure::Away),
            Self::Refused(_) | Self::Hidden(_) => Some(BucketFailure::Refused),
            Self::WriteRefused(_) => Some(BucketFailure::WriteRefused),
            Self::Open(error) => Some(BucketFailure::of_open(error)),
            Self::Api(_) | Self::Files(_) | Self::Journal(_) | Self::Note(_) => None,
        }
    }
}

async fn work(
    context: Arc<Context>,
    watched: Store<Restore>,
    restore: Arc<Restore>,
) -> Result<Next, WorkError> {
    if !concerns_us(&restore) {
        return Ok(Next::Done);
    }
    // Those that wait look often, and need not ask the API server for that.
    if !context.restores.may_begin(&restore, &watched.state()) {
        return Ok(Next::Again(turn::PAUSE));
    }
    let api: Api<Restore> = context.api();
    // The watch may be behind what we wrote ourselves a moment ago.
    let Some(restore) = api.get_opt(&restore.name_any()).await? else { return Ok(Next::Done) };
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, restore.name_any());
    let span = log.attach(tracing::info_span!("restore", restore = name));
    if restore.metadata.deletion_timestamp.is_some() {
        context.runs.stop_waiting(&restore.uid().unwrap_or_default());
        let forgetting = async {
            outage::end_deleted(&context, &api, &restore, &log).await?;
            forget(&context, &api, &restore).await
        };
        forgetting.instrument(span).await?;
    } else if concerns_us(&restore) {
        let Some(turn) = context.restores.take(&restore, &watched.state()) else {
            return Ok(Next::Again(turn::PAUSE));
        };
        let carried = carry_on(&context, &api, &watched, restore, &log).instrument(span).await;
        if carried.is_err() {
            turn.give_up();
        }
        carried?;
    }
    Ok(Next::Done)
}

fn phase_of(restore: &Restore) -> Option<&RestorePhase> {
    restore.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn stage_of(restore: &Restore) -> Option<Stage> {
    phase_of(restore).and_then(restore_stage)
}

fn concerns_us(restore: &Restore) -> bool {
    restore.metadata.deletion_timestamp.is_some()
        || matches!(phase_of(restore), None | Some(RestorePhase::New))
        || stage_of(restore).is_some()
}

/// A restore on its way to its end.
struct Course<'a> {
    context: &'a Arc<Context>,
    api: &'a Api<Restore>,
    /// As it was last read or written.
    restore: Restore,
    name: RestoreName,
    kit: Kit<'a>,
}

/// What follows a stage.
enum Then {
    /// The next one. The Restore says which.
    Stage(Box<Restore>),
    /// Nothing: it is over, with this status.
    Over(Box<RestoreStatus>),
    /// Nothing: its Restore is gone.
    Gone,
    /// Another process goes on with it.
    Left,
}

/// Brings a restore from wherever it is to its end.
fn carry_on<'a>(
    context: &'a Arc<Context>,
    api: &'a Api<Restore>,
    watched: &'a Store<Restore>,
    restore: Restore,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), WorkError>> {
    Box::pin(async move {
        let cancel = CancellationToken::new();
        if is_canceled(&restore) {
            cancel.cancel();
        }
        let watched_restore = restore.clone();
        let going = Box::pin(go(context, api, restore, log, &cancel));
        let conditions = |restore: &Restore| {
            stage_of(restore)?;
            let status = restore.status.clone().unwrap_or_default();
            Some(with_conditions(&status, true).conditions)
        };
        let told = tell_canceling(context, api, &watched_restore, conditions);
        cancelable(going, canceled(watched, &watched_restore), &cancel, Box::pin(told)).await
    })
}

async fn go(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: Restore,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), WorkError> {
    let stage = stage_of(&restore);
    if stage.is_none() && cancel.is_cancelled() {
        let status = canceled_status(&restore.status.clone().unwrap_or_default());
        return write_end(context, api, &restore, &status, true).await;
    }
    let known = facts::gather(context, &restore).await?;
    match stage {
        None => Box::pin(start(context, api, restore, known, log, cancel)).await,
        Some(stage) => Box::pin(resume(context, api, (restore, stage), known, log, cancel)).await,
    }
}

/// Begins a restore.
async fn start(
    context: &Arc<Context>,
    api: &Api<Restore>,
    restore: Restore,
    mut known: facts::Known,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), WorkError> {
    check_again(context, &mut known.facts.location).await;
    let Prepared { restore: filled, outcome } =
        request::prepare(&restore, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => {
            let (own, backup) = (&context.options.namespace, &request.backup.spec);
            match access::refusal(&context.client, own, &filled.spec, backup).await {
                None => request,
                Some(reason) => return refuse(context, api, &filled, &[reason]).await,
            }
        }
        Err(errors) => return refuse(context, api, &filled, &errors).await,
    };
    let uid = restore.uid().unwrap_or_default();
    // Nobody waits for a restore, so that it has as much time as one that has begun.
    let bounds = RunBounds::of(&context.options);
    let store = match known.open(context).await {
        Ok(store) => {
            context.runs.stop_waiting(&uid);
            store
        }
        Err(error)
            if error.is_retryable()
                && may_wait_for_bucket(&context.runs, &uid, bounds, Timestamp::now()) =>
        {
            return Err(WorkError::Open(error));
        }
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", one_line(&error));
            let status = failed(&restore, reason);
            context.metrics.restore_began(&filled);
            return write_end(context, api, &filled, &status, cancel.is_cancelled()).await;
        }
    };
    let restore = begin(api, &filled).await?;
    context.metrics.restore_began(&restore);
    point::pass(Point::RestoreInProgress);
    let (name, uid) = (request.name.clone(), request.uid.clone());
    let location = request.backup.spec.storage_location.clone();
    let opening = Course::open(context, api, restore, (name, uid), &location, log, cancel);
    let Some((course, recovered)) = opening.await? else { return Ok(()) };
    let then = course.items(request, recovered, &store).await?;
    course.go_on(then, Some(store), None).await
}

/// Notes that the bucket of a restore that has not begun cannot be used. Whether it waits: its time counts from the
/// first failure, not from when it was created, since it may have waited for its turn.
fn may_wait_for_bucket(runs: &Runs, uid: &str, bounds: RunBounds, now: Timestamp) -> bool {
    let since = runs.bucket_lost(uid).unwrap_or(now);
    runs.wait_for_bucket(uid, since);
    bounds.has_time(Some(since), now)
}

/// Goes on with a restore that another process has begun, or this one before its bucket went away.
async fn resume(
    context: &Arc<Context>,
    api: &Api<Restore>,
    (restore, stage): (Restore, Stage),
    mut known: facts::Known,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), WorkError> {
    presume_available(&mut known.facts.location);
    let (name, uid) = match (
        RestoreName::new(restore.name_any()),
        RunUid::new(restore.uid().unwrap_or_default()),
    ) {
        (Ok(name), Ok(uid)) => (name, uid),
        (Err(error), _) | (_, Err(error)) => {
            let status = failed(&restore, error.to_string());
            return write_end(context, api, &restore, &status, cancel.is_cancelled()).await;
        }
    };
    point::pass(Point::RestoreInProgress);
    let location = known.location_name();
    let opening = Course::open(context, api, restore, (name, uid), &location, log, cancel);
    let Some((course, recovered)) = opening.await? else { return Ok(()) };
    let (then, store) = Box::pin(course.resume(stage, &known, &recovered)).await?;
    let recovered = (stage > Stage::Items).then_some(recovered);
    course.go_on(then, store, recovered).await
}

impl<'a> Course<'a> {
    /// Opens the journal of a restore. Returns as well what it says; nothing if it is damaged, which has ended
    /// the restore.
    async fn open(
        context: &'a Arc<Context>,
        api: &'a Api<Restore>,
        restore: Restore,
        (name, uid): (RestoreName, RunUid),
        location: &str,
        log: &'a RunLog,
        cancel: &CancellationToken,
    ) -> Result<Option<(Self, Recovered)>, WorkError> {
        let of = ("Restore", name.as_str(), uid.clone());
        let stage = stage_of(&restore);
        match Kit::open(context, of, location, stage, log, cancel.clone()).await {
            Err(error) if kit::is_damaged(&error) => {
                let status = failed(&restore, kit::told_damaged(&error, &uid));
                write_end(context, api, &restore, &status, cancel.is_cancelled()).await?;
                volumes::close(context, &restore).await;
                Ok(None)
            }
            Err(error) => Err(error.into()),
            Ok((kit, recovered)) => {
                Ok(Some((Self { context, api, restore, name, kit }, recovered)))
            }
        }
    }
}

impl Course<'_> {
    /// Goes through the stages that are left. What the journal said is known if it was opened after all items were
    /// through.
    async fn go_on(
        mut self,
        mut then: Then,
        store: Option<BackupStore>,
        recovered: Option<Recovered>,
    ) -> Result<(), WorkError> {
        loop {
            then = match then {
                Then::Stage(restore) => {
                    self.restore = *restore;
                    let (Some(stage), Some(store)) = (stage_of(&self.restore), &store) else {
                        return Ok(());
                    };
                    let recovered = recovered.as_ref();
                    let outcome = match stage {
                        Stage::Waiting => Box::pin(self.wait(store, recovered)).await,
                        Stage::Finalizing => Box::pin(self.finish(store)).await,
                        Stage::Items | Stage::Over => return Ok(()),
                    };
                    Box::pin(self.unless_bucket_fails(stage, outcome, recovered)).await?
                }
                Then::Over(status) => {
                    let is_asked = self.is_canceled();
                    write_end(self.context, self.api, &self.restore, &status, is_asked).await?;
                    point::pass(Point::RestoreOver);
                    volumes::close(self.context, &self.restore).await;
                    return self.forget(store.as_ref()).await;
                }
                Then::Gone => return self.forget(store.as_ref()).await,
                Then::Left => {
                    self.kit.leave().await;
                    return Ok(());
                }
            };
        }
    }

    /// The actions of plugins.
    fn actions(&self) -> Vec<plugin_host::Named<dyn RestoreItemAction>> {
        timed::restore_item_actions(&self.kit.plugins, &self.context.calls)
    }

    /// Tells a milestone.
    async fn tell(&self, milestone: Milestone) {
        self.context.events.tell(&self.restore, milestone).await;
    }

    /// Removes what was kept for the case that the server ends.
    async fn forget(self, store: Option<&BackupStore>) -> Result<(), WorkError> {
        let store = store.ok_or_else(|| "its bucket cannot be used".to_owned());
        Ok(self.kit.forget(self.context, store).await?)
    }

    /// For how long, and how often, it is tried.
    fn bounds(&self) -> RunBounds {
        RunBounds::of(&self.context.options)
    }

    /// Whether somebody wants it to stop.
    fn is_canceled(&self) -> bool {
        self.kit.cancel.is_cancelled() || is_canceled(&self.restore)
    }

    /// The run, as its operations name it.
    fn of(&self) -> Of<'_> {
        Of { name: self.name.as_str(), uid: self.kit.uid.as_str() }
    }

    /// How long its operations may take.
    fn timeout(&self) -> Duration {
        let timeout = self.restore.spec.item_operation_timeout.to_std();
        timeout.unwrap_or(self.context.options.default_item_operation_timeout)
    }

    fn status(&self) -> RestoreStatus {
        self.restore.status.clone().unwrap_or_default()
    }

    /// Writes the status. None if the Restore is gone.
    async fn show(&self, status: &RestoreStatus) -> kube::Result<Option<Restore>> {
        let status = with_conditions(status, self.is_canceled());
        patch::patch_status_of(self.api, &self.restore, json!(status)).await
    }
}

/// Writes the end of a restore.
async fn write_end(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
    status: &RestoreStatus,
    is_asked: bool,
) -> Result<(), WorkError> {
    context.runs.stop_waiting(&restore.uid().unwrap_or_default());
    let status = with_conditions(status, is_asked);
    patiently(|| patch::patch_status_of(api, restore, json!(status))).await?;
    if let Standing::Ended(end) = Standing::from(status.phase.as_ref()) {
        context.metrics.restore_ended(restore, end);
        context.events.tell(restore, Milestone::of_end(end, &status.failure_reason)).await;
    }
    Ok(())
}

/// A status, with the conditions that follow from it, and from whether somebody asked for a cancel.
fn with_conditions(status: &RestoreStatus, is_asked: bool) -> RestoreStatus {
    let run = conditions::Run {
        standing: Standing::from(status.phase.as_ref()),
        cancel: Cancel::of(&status.failure_reason, is_asked),
        message: &status.failure_reason,
    };
    let conditions = conditions::next(&status.conditions, run, Timestamp::now());
    RestoreStatus { conditions, ..status.clone() }
}

/// The status of a restore that was cancelled.
fn canceled_status(status: &RestoreStatus) -> RestoreStatus {
    RestoreStatus {
        errors: status.errors.saturating_add(i64::from(status.failure_reason.is_empty())),
        failure_reason: format!("{CANCELED_PREFIX}{CANCELED}"),
        ..finalize::conclude(&RestoreStatus { phase: None, ..status.clone() }, Timestamp::now())
    }
}

/// Writes what is wrong with a restore.
async fn refuse(
    context: &Context,
    api: &Api<Restore>,
    restore: &Restore,
    errors: &[String],
) -> Result<(), WorkError> {
    tracing::warn!("the restore is not valid: {}", errors.join("; "));
    let status = RestoreStatus {
        phase: Some(RestorePhase::FailedValidation),
        validation_errors: errors.to_vec(),
        ..restore.status.clone().unwrap_or_default()
    };
    let change = defaulted(restore, &status);
    patch::patch(api, &restore.name_any(), restore.resource_version().as_deref(), change).await?;
    let end = End::FailedValidation;
    context.metrics.restore_began(restore);
    context.metrics.restore_ended(restore, end);
    context.events.tell(restore, Milestone::Ended { phase: end }).await;
    Ok(())
}

/// Writes that a restore has begun, and what was filled in.
async fn begin(api: &Api<Restore>, restore: &Restore) -> Result<Restore, WorkError> {
    let status = RestoreStatus {
        phase: Some(RestorePhase::InProgress),
        ..restore.status.clone().unwrap_or_default()
    };
    let mut change = defaulted(restore, &status);
    let mut finalizers = restore.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == finalizer::RESTORE) {
        finalizers.push(finalizer::RESTORE.to_owned());
    }
    change["metadata"]["finalizers"] = json!(finalizers);
    let version = restore.resource_version();
    Ok(patch::patch(api, &restore.name_any(), version.as_deref(), change).await?)
}

/// What the validation filled in, with a status, as a change.
fn defaulted(restore: &Restore, status: &RestoreStatus) -> Value {
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

/// The status of a restore that has failed for a reason.
fn failed(restore: &Restore, reason: String) -> RestoreStatus {
    tracing::error!("the restore has failed: {reason}");
    RestoreStatus {
        phase: Some(RestorePhase::Failed),
        failure_reason: reason,
        errors: 1,
        completion_timestamp: Some(Time(Timestamp::now())),
        ..restore.status.clone().unwrap_or_default()
    }
}

/// Deletes the files of a restore that is deleted, and lets it go.
async fn forget(context: &Context, api: &Api<Restore>, restore: &Restore) -> Result<(), WorkError> {
    let ours = |finalizer: &&String| finalizer.as_str() == finalizer::RESTORE;
    if !restore.finalizers().iter().any(|finalizer| ours(&finalizer)) {
        return Ok(());
    }
    if let Err(error) = delete_files(context, restore).await {
        let deleted = restore.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        if outage::keeps_deleted(deleted, RunBounds::of(&context.options), Timestamp::now()) {
            return Err(error);
        }
        tracing::warn!("{error}; they stay in the bucket, and the restore goes all the same");
    }
    let kept: Vec<_> = restore.finalizers().iter().filter(|finalizer| !ours(finalizer)).collect();
    let change = json!({ "metadata": { "finalizers": kept } });
    let version = restore.resource_version();
    match patch::patch(api, &restore.name_any(), version.as_deref(), change).await {
        Err(error) if patch::is_missing(&error) => Ok(()),
        changed => Ok(changed.map(drop)?),
    }
}

/// Deletes the files of a restore.
async fn delete_files(context: &Context, restore: &Restore) -> Result<(), WorkError> {
    // Without a backup or location there is nowhere that files could be.
    let known = facts::gather(context, restore).await?;
    if !known.has_location() {
        return Ok(());
    }
    let no = |error: &(dyn std::error::Error + 'static)| WorkError::Files(one_line(error));
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
        let (runs, wait) = (Runs::default(), Duration::from_mins(1));
        let bounds = RunBounds { bucket_wait: wait, attempts: 4 };
        let may_wait = |second| may_wait_for_bucket(&runs, "u", bounds, at(second));
        // However long it was in the queue before.
        assert!(may_wait(90_000) && may_wait(90_059));
        assert!(!may_wait(90_060), "a minute is over");
        runs.stop_waiting("u");
        assert!(may_wait(90_070), "another failure, after the bucket was back");
    }
}
