//! Runs backups: `ReadyToStart` → … → `Completed`, or whatever is true.
//!
//! A `Course` is one backup on its way, from wherever it is to its end. Each stage begins from what
//! the cluster and the bucket say, so that it makes no difference whether the stage before was run by
//! this process or by one that is gone:
//!
//! | phase | file | what happens |
//! |---|---|---|
//! | `InProgress` | `items` | the engine takes the backup; all files but the commit record are written |
//! | `WaitingForPluginOperations…` | `wait` | operations of plugins are followed to their ends |
//! | `Finalizing…` | `finish` | items that operations changed are stored again; the commit record is written |

pub(in crate::controllers) mod clean;
mod commit;
mod csi;
pub(in crate::controllers) mod facts;
mod finish;
pub(in crate::controllers) mod gone;
mod items;
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
use bowline_engine::journal::Recovered;
use bowline_engine::operation::record::Of;
use bowline_engine::phase::{Stage, backup_stage};
use bowline_engine::point::{self, Point};
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
use super::kit::{self, Kit};
use super::look::{Life, Looks};
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
use crate::queue::Reach;
use crate::runs::Held;
use crate::server::{Context, Error};
use crate::story::one_line;
use crate::watch::{Next, Watch};

/// How long something that others wait for is tried again.
const GIVE_UP: Duration = Duration::from_mins(5);
/// How many backups are on their way at a time, most of them waiting for operations. How many of them
/// are in progress is decided by the queue.
const UNDER_WAY: u16 = 1000;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Backup> = context.api();
    let stop = context.stop.clone();
    let looks = Arc::new(Looks::default());
    let watch = Watch::new(api).concurrency(UNDER_WAY);
    let watched = watch.store();
    context.metrics.see(Source::Backups(watched.clone()));
    let work = move |backup: Arc<Backup>| {
        work(Arc::clone(&context), Arc::clone(&looks), watched.clone(), backup)
    };
    Ok(watch.run(&stop, work).await?)
}

/// Why a backup could not be worked on. It is tried again.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("cannot look into the bucket: {0}")]
    Bucket(String),
    #[error("the bucket does not show a file of the backup, which is tried again: {0}")]
    Refused(String),
    #[error("the bucket refuses to be written, which is tried again: {0}")]
    WriteRefused(String),
    #[error("what the bucket holds of it is not known: {reason}")]
    Unseen { reason: String, failure: BucketFailure },
    #[error("it waits until fewer backups run, and none that reaches into the same namespaces")]
    Met,
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
    #[error("its storage location has not been checked yet")]
    Unchecked,
    #[error("it is not known whether the record of the backup is in the bucket: {0}")]
    Commit(String),
    #[error("{0}")]
    Thaw(String),
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

impl WorkError {
    /// Why something could not be written.
    fn of_write(error: &bowline_store::Error) -> Option<Self> {
        let reason = one_line(error);
        BucketFailure::of_write(error).map(|failure| match failure {
            BucketFailure::Away => Self::Bucket(reason),
            BucketFailure::Refused | BucketFailure::WriteRefused => Self::WriteRefused(reason),
        })
    }

    /// What is wrong with the bucket, if that is all that is wrong.
    fn bucket_failure(&self) -> Option<BucketFailure> {
        match self {
            Self::Bucket(_) | Self::Commit(_) => Some(BucketFailure::Away),
            Self::Refused(_) => Some(BucketFailure::Refused),
            Self::WriteRefused(_) => Some(BucketFailure::WriteRefused),
            Self::Unseen { failure, .. } => Some(*failure),
            Self::Open(error) => Some(BucketFailure::of_open(error)),
            Self::Api(_) | Self::Unchecked | Self::Met | Self::Thaw(_) | Self::Journal(_) => None,
        }
    }
}

async fn work(
    context: Arc<Context>,
    looks: Arc<Looks>,
    watched: Store<Backup>,
    backup: Arc<Backup>,
) -> Result<Next, WorkError> {
    if !concerns_us(&backup) {
        return Ok(Next::Done);
    }
    let api: Api<Backup> = context.api();
    // The watch may be behind what we wrote ourselves a moment ago.
    let Some(backup) = api.get_opt(&backup.name_any()).await? else { return Ok(Next::Done) };
    if !concerns_us(&backup) {
        return Ok(Next::Done);
    }
    if is_canceled(&backup) && phase_of(&backup).is_none_or(|phase| backup_stage(phase).is_none()) {
        refuse_canceled(&context, &api, &backup).await?;
        return Ok(Next::Done);
    }
    let log = RunLog::new();
    let name = format!("{}/{}", context.options.namespace, backup.name_any());
    let span = log.attach(tracing::info_span!("backup", backup = name));
    carry_on(&context, &api, &looks, &watched, backup, &log).instrument(span).await?;
    Ok(Next::Done)
}

fn phase_of(backup: &Backup) -> Option<&BackupPhase> {
    backup.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn concerns_us(backup: &Backup) -> bool {
    match phase_of(backup) {
        // The queue has it, unless it is to be cancelled.
        None | Some(BackupPhase::New | BackupPhase::Queued) => is_canceled(backup),
        Some(BackupPhase::ReadyToStart) => true,
        Some(phase) => backup_stage(phase).is_some(),
    }
}

/// A backup on its way to its end.
struct Course<'a> {
    context: &'a Context,
    api: &'a Api<Backup>,
    /// As it was last read or written.
    backup: Backup,
    name: BackupName,
    kit: Kit<'a>,
    /// The items to store again that the journal knows of.
    noted: Mutex<BTreeSet<ResourceIdentifier>>,
    /// What the journal says, if it was opened after all items were taken, so that it knows all of them.
    recovered: Option<Recovered>,
}

/// What follows a stage.
enum Then {
    /// The next one. The Backup says which.
    Stage(Box<Backup>),
    /// Nothing: it is over, with this status.
    Over(Box<BackupStatus>),
    /// Nothing: its Backup is gone, and so is what it had put into the bucket.
    Gone,
    /// Another process goes on with it.
    Left,
}

/// Brings a backup from wherever it is to its end.
fn carry_on<'a>(
    context: &'a Context,
    api: &'a Api<Backup>,
    looks: &'a Looks,
    watched: &'a Store<Backup>,
    backup: Backup,
    log: &'a RunLog,
) -> BoxFuture<'a, Result<(), WorkError>> {
    Box::pin(async move {
        let cancel = CancellationToken::new();
        let watched_backup = backup.clone();
        let going = async {
            match phase_of(&backup) {
                Some(BackupPhase::ReadyToStart) => {
                    Box::pin(start(context, api, looks, backup, log, &cancel)).await
                }
                _ => Box::pin(take_up(context, api, backup, log, &cancel)).await,
            }
        };
        let conditions = |backup: &Backup| {
            phase_of(backup).and_then(backup_stage)?;
            let status = backup.status.clone().unwrap_or_default();
            Some(with_conditions(&status, true).conditions)
        };
        let told = tell_canceling(context, api, &watched_backup, conditions);
        cancelable(going, canceled(watched, &watched_backup), &cancel, Box::pin(told)).await
    })
}

/// Begins a backup whose turn it is.
async fn start(
    context: &Context,
    api: &Api<Backup>,
    looks: &Looks,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), WorkError> {
    let mut known = facts::gather(context, &backup).await?;
    let waits = looks.look(&backup);
    let uid = backup.uid().unwrap_or_default();
    // As right after an installation. Velero refuses the backup then.
    if known.awaits_first_check() && has_time(waits) {
        return Err(WorkError::Unchecked);
    }
    check_again(context, &mut known.facts.storage_location).await;
    let Prepared { backup, outcome } =
        request::prepare(&backup, &known.facts, &known.defaults, Timestamp::now());
    let request = match outcome {
        Ok(request) => request,
        Err(errors) => return refuse(context, api, &backup, &errors).await,
    };
    let opened = match known.open(context).await {
        Err(error) if error.is_retryable() && has_time(waits) => {
            context.runs.wait_for_bucket(&uid, Timestamp::now());
            return Err(WorkError::Open(error));
        }
        opened => opened,
    };
    context.runs.stop_waiting(&uid);
    let reach = known.reach(&backup);
    let held = hold(context, &backup, &reach)?;
    let (name, uid) = (request.name.clone(), request.uid.clone());
    let backup = begin(api, &backup).await?;
    context.metrics.backup_began(&backup);
    point::pass(Point::BackupInProgress);
    tracing::info!("the backup has started");
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            let reason = format!("cannot open the storage location: {}", one_line(&error));
            let status = failed(&backup.status.clone().unwrap_or_default(), reason);
            write_end(context, api, &backup, &status, is_canceled(&backup)).await?;
            return Ok(());
        }
    };
    let opened = Course::open(context, api, backup, name, uid, log, cancel.clone()).await?;
    let Some((course, _)) = opened else { return Ok(()) };
    let then = Box::pin(course.items(request, held, store, Recovery::default())).await?;
    course.go_on(then).await
}

/// Notes that a backup runs, unless it would meet one that does: a queue that has just begun, or that let
/// others go while this one waited for its bucket, does not know that.
fn hold(context: &Context, backup: &Backup, reach: &Reach) -> Result<Held, WorkError> {
    let limit = context.options.concurrent_backups.max(1);
    context.runs.hold_apart(backup, reach, limit).ok_or(WorkError::Met)
}

/// Goes on with a backup that another process has begun.
async fn take_up(
    context: &Context,
    api: &Api<Backup>,
    backup: Backup,
    log: &RunLog,
    cancel: &CancellationToken,
) -> Result<(), WorkError> {
    let (name, uid) =
        match (BackupName::new(backup.name_any()), RunUid::new(backup.uid().unwrap_or_default())) {
            (Ok(name), Ok(uid)) => (name, uid),
            (Err(error), _) | (_, Err(error)) => {
                let status = failed(&backup.status.clone().unwrap_or_default(), error.to_string());
                write_end(context, api, &backup, &status, is_canceled(&backup)).await?;
                return Ok(());
            }
        };
    let opened = Course::open(context, api, backup, name, uid, log, cancel.clone()).await?;
    let Some((mut course, recovered)) = opened else { return Ok(()) };
    let then = if phase_of(&course.backup).and_then(backup_stage) == Some(Stage::Items) {
        Box::pin(course.resume(recovered)).await?
    } else {
        course.recovered = Some(recovered);
        course.begin_stage().await?
    };
    course.go_on(then).await
}

impl<'a> Course<'a> {
    /// Opens the journal of a backup. Returns as well what it says; nothing if it is damaged, which has ended
    /// the backup.
    async fn open(
        context: &'a Context,
        api: &'a Api<Backup>,
        backup: Backup,
        name: BackupName,
        uid: RunUid,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<Option<(Self, Recovered)>, WorkError> {
        let stage = phase_of(&backup).and_then(backup_stage);
        let (of, location) =
            (("Backup", name.as_str(), uid.clone()), &backup.spec.storage_location);
        let is_asked = cancel.is_cancelled() || is_canceled(&backup);
        let (kit, recovered) = match Kit::open(context, of, location, stage, log, cancel).await {
            Err(error) if kit::is_damaged(&error) => {
                let reason = kit::told_damaged(&error, &uid);
                let status = failed(&backup.status.clone().unwrap_or_default(), reason);
                write_end(context, api, &backup, &status, is_asked).await?;
                return Ok(None);
            }
            opened => opened?,
        };
        let noted = Mutex::new(replace::noted(&recovered));
        let course = Self { context, api, backup, name, kit, noted, recovered: None };
        Ok(Some((course, recovered)))
    }

    /// Goes through the stages that are left.
    async fn go_on(mut self, mut then: Then) -> Result<(), WorkError> {
        loop {
            then = match then {
                Then::Stage(backup) => {
                    self.backup = *backup;
                    match phase_of(&self.backup).and_then(backup_stage) {
                        Some(stage @ Stage::Waiting) => {
                            let waited = Box::pin(self.wait()).await;
                            let recovered = self.recovered.as_ref();
                            Box::pin(self.unless_bucket_fails(stage, waited, recovered)).await?
                        }
                        Some(stage @ Stage::Finalizing) => {
                            let finished = Box::pin(self.finish()).await;
                            let recovered = self.recovered.as_ref();
                            Box::pin(self.unless_bucket_fails(stage, finished, recovered)).await?
                        }
                        _ => return Ok(()),
                    }
                }
                Then::Over(status) => {
                    let is_asked = self.is_canceled();
                    write_end(self.context, self.api, &self.backup, &status, is_asked).await?;
                    point::pass(Point::BackupOver);
                    return self.forget().await;
                }
                Then::Gone => return self.forget().await,
                Then::Left => {
                    self.kit.leave().await;
                    return Ok(());
                }
            };
        }
    }

    /// The actions of plugins.
    fn actions(&self) -> Vec<plugin_host::Named<dyn BackupItemAction>> {
        timed::backup_item_actions(&self.kit.plugins, &self.context.calls)
    }

    /// Tells a milestone.
    async fn tell(&self, milestone: Milestone) {
        self.context.events.tell(&self.backup, milestone).await;
    }

    /// Removes what was kept for the case that the server ends.
    async fn forget(self) -> Result<(), WorkError> {
        let store = recover::store(self.context, &self.backup).await;
        let store = store.as_ref().map_err(ToString::to_string);
        Ok(self.kit.forget(self.context, store).await?)
    }

    /// Whether the Backup is still there.
    async fn is_there(&self) -> Result<bool, WorkError> {
        let found = self.api.get_opt(&self.backup.name_any()).await?;
        Ok(found.is_some_and(|found| found.uid() == self.backup.uid()))
    }

    /// Whether somebody wants it to stop.
    fn is_canceled(&self) -> bool {
        self.kit.cancel.is_cancelled() || is_canceled(&self.backup)
    }

    /// The run, as its operations name it.
    fn of(&self) -> Of<'_> {
        Of { name: self.name.as_str(), uid: self.kit.uid.as_str() }
    }

    /// How long its operations may take.
    fn timeout(&self) -> Duration {
        let timeout = self.backup.spec.item_operation_timeout.to_std();
        timeout.unwrap_or(self.context.options.default_item_operation_timeout)
    }

    fn status(&self) -> BackupStatus {
        self.backup.status.clone().unwrap_or_default()
    }

    /// What the engine needs to know of the backup, looked up anew.
    async fn request(&self) -> Result<Result<(Request, Reach), String>, WorkError> {
        let mut known = facts::gather(self.context, &self.backup).await?;
        presume_available(&mut known.facts.storage_location);
        let Prepared { outcome, .. } =
            request::prepare(&self.backup, &known.facts, &known.defaults, Timestamp::now());
        let reach = known.reach(&self.backup);
        Ok(outcome.map(|request| (request, reach)).map_err(|errors| errors.join("; ")))
    }

    /// For how long, and how often, it is tried.
    fn bounds(&self) -> RunBounds {
        RunBounds::of(&self.context.options)
    }
}

/// Writes that a backup was cancelled before it began.
async fn refuse_canceled(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
) -> Result<(), WorkError> {
    let status = canceled_status(&backup.status.clone().unwrap_or_default());
    let version = backup.resource_version();
    let mut change = json!(with_conditions(&status, true));
    change["queuePosition"] = Value::Null;
    match patch::patch_status(api, &backup.name_any(), version.as_deref(), change).await {
        Err(error) if patch::is_missing(&error) => return Ok(()),
        written => written.map(drop)?,
    }
    context.metrics.backup_ended(backup, &status, End::Failed);
    context.events.tell(backup, Milestone::Canceled).await;
    Ok(())
}

/// The status of a backup that was cancelled.
fn canceled_status(status: &BackupStatus) -> BackupStatus {
    let reason = canceled_reason();
    // What else there is to say of it is in the results.
    BackupStatus { failure_reason: reason.clone(), ..failed(status, reason) }
}

/// Why a backup that was cancelled has failed.
fn canceled_reason() -> String {
    format!("{CANCELED_PREFIX}{CANCELED}")
}

/// The status of a backup that was cancelled and whose results have been counted, the cancel among them.
fn canceled_with_results(status: &BackupStatus) -> BackupStatus {
    BackupStatus { errors: status.errors, ..canceled_status(status) }
}

/// A status, with the conditions that follow from it, and from whether somebody asked for a cancel.
fn with_conditions(status: &BackupStatus, is_asked: bool) -> BackupStatus {
    let run = conditions::Run {
        standing: Standing::from(status.phase.as_ref()),
        cancel: Cancel::of(&status.failure_reason, is_asked),
        message: &status.failure_reason,
    };
    let conditions = conditions::next(&status.conditions, run, Timestamp::now());
    BackupStatus { conditions, ..status.clone() }
}

/// Writes the end of a backup.
async fn write_end(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
    status: &BackupStatus,
    is_asked: bool,
) -> Result<(), WorkError> {
    let status = with_conditions(status, is_asked);
    let written = patiently(|| patch::patch_status_of(api, backup, json!(status))).await?;
    if written.is_none() {
        tracing::info!("it was deleted at its end; the sync brings back what is in the bucket");
    }
    if let Standing::Ended(end) = Standing::from(status.phase.as_ref()) {
        context.metrics.backup_ended(backup, &status, end);
        context.events.tell(backup, Milestone::of_end(end, &status.failure_reason)).await;
    }
    Ok(())
}

/// Whether something that fails may be tried again, and not for ever: others wait for this backup.
fn has_time(waits: Life) -> bool {
    matches!(waits, Life::Moves(_)) || matches!(waits, Life::Still(still) if still < GIVE_UP)
}

/// Writes what is wrong with a backup.
async fn refuse(
    context: &Context,
    api: &Api<Backup>,
    backup: &Backup,
    errors: &[String],
) -> Result<(), WorkError> {
    tracing::warn!("the backup is not valid: {}", errors.join("; "));
    let status = BackupStatus {
        phase: Some(BackupPhase::FailedValidation),
        validation_errors: errors.to_vec(),
        ..backup.status.clone().unwrap_or_default()
    };
    let change = defaulted(backup, &status);
    patch::patch(api, &backup.name_any(), backup.resource_version().as_deref(), change).await?;
    let end = End::FailedValidation;
    context.metrics.backup_ended(backup, &status, end);
    context.events.tell(backup, Milestone::Ended { phase: end }).await;
    Ok(())
}

/// Writes that a backup has begun, and what was filled in.
async fn begin(api: &Api<Backup>, backup: &Backup) -> Result<Backup, WorkError> {
    let status = BackupStatus {
        phase: Some(BackupPhase::InProgress),
        start_timestamp: Some(Time(Timestamp::now())),
        ..backup.status.clone().unwrap_or_default()
    };
    let change = defaulted(backup, &status);
    let version = backup.resource_version();
    Ok(patch::patch(api, &backup.name_any(), version.as_deref(), change).await?)
}

/// What the validation filled in, with a status, as a change.
fn defaulted(backup: &Backup, status: &BackupStatus) -> Value {
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
