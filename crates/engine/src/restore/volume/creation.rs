//! Has a plugin create a volume from a snapshot.
//!
//! The call may take hours, and its state cannot be queried later: it has no id. So journal entries are written before
//! and after it, and the operation timeout bounds it. A canceled restore cancels the call and waits briefly for the
//! plugin's answer. If it is unknown whether a volume was created, that is reported.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bowline_plugin::{
    Class, Code, Item, Progress, ResourceIdentifier, SnapshotId, VolumeId, VolumeInfo,
};
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::super::Context;
use super::error::{AttachError, CreationError, Interruption, NoVolume};
use super::volume_progress::{
    ByteProgress, ProgressReportError, UnitProgress, VolumeCreation, VolumeCreationResult,
    VolumeProgressReporter,
};
use crate::failpoint::{self, Failpoint};
use crate::journal::VolumeRequested;
use crate::report::error_text;
use crate::snapshotter::{OpenError, Snapshotter, Snapshotters};

/// Retries of opening a location, and of having a plugin attach a volume to a PersistentVolume, if one may help.
const RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)).with_max_times(2);
/// Interval between progress queries.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval for a plugin that does not report progress.
const MAX_PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a progress query, and of a call to the reporter.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of consecutive errors after which progress is no longer queried.
const MAX_PROGRESS_ERRORS: u32 = 5;
/// Time that a server that shuts down waits for a volume before it cancels the call.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);
/// Timeout of the cancel call to a plugin.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that the plugin then has for its final answer. Shorter than the grace of a canceled backup: the plugin was asked
/// to stop, and has nothing to complete.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Plugins that create volumes, and the reporter of their progress.
pub(in crate::restore) struct VolumeCreator {
    snapshotters: Arc<dyn Snapshotters>,
    reporter: Arc<dyn VolumeProgressReporter>,
    /// By location. Each one is opened once.
    sessions: Mutex<HashMap<String, Arc<OnceCell<OpenResult>>>>,
}

type OpenResult = Result<Snapshotter, OpenError>;

impl VolumeCreator {
    pub(in crate::restore) fn new(
        snapshotters: Arc<dyn Snapshotters>,
        reporter: Arc<dyn VolumeProgressReporter>,
    ) -> Self {
        Self { snapshotters, reporter, sessions: Mutex::default() }
    }

    async fn open(&self, location: &str) -> OpenResult {
        let cell = {
            let mut sessions = self.sessions.lock();
            Arc::clone(sessions.entry(location.to_owned()).or_default())
        };
        cell.get_or_init(|| self.open_with_retries(location)).await.clone()
    }

    async fn open_with_retries(&self, location: &str) -> OpenResult {
        let open = || self.snapshotters.open(location);
        open.retry(RETRIES)
            .when(|error| error.is_retryable)
            .notify(|error, pause| tracing::warn!("retrying in {pause:?}: {error}"))
            .await
    }
}

/// A volume to create.
pub(super) struct VolumeRequest<'a> {
    context: &'a Context,
    creator: &'a VolumeCreator,
    /// The PersistentVolume in the backup.
    id: &'a ResourceIdentifier,
    snapshot: &'a Snapshot,
    snapshot_id: SnapshotId,
    /// Name of the PersistentVolume in the cluster.
    target: &'a str,
    /// True if a failure of the reporter has been reported already.
    is_report_failure_logged: AtomicBool,
}

/// A PersistentVolume with its volume attached.
pub(super) struct CreatedVolume {
    pub(super) volume: VolumeId,
    pub(super) plugin: String,
    pub(super) value: Value,
}

/// Answer of a plugin to the request for a volume.
enum CreateResponse {
    /// This volume was created.
    Created(VolumeId),
    /// No volume, for this reason.
    Refused(bowline_plugin::Error),
    /// The call was canceled, and no volume was created.
    Stopped(StopReason, bowline_plugin::Error),
    /// The call was canceled without an answer. A volume may exist.
    NoResponse(StopReason),
    /// The plugin has died or the connection is lost. A volume may exist.
    ConnectionLost(bowline_plugin::Error),
}

/// Why a call is canceled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The restore was canceled.
    Canceled,
    /// The operation timeout has passed.
    TimedOut,
    /// The server is shutting down. Another one resumes the restore.
    ShuttingDown,
}

impl<'a> VolumeRequest<'a> {
    pub(super) fn new(
        context: &'a Context,
        creator: &'a VolumeCreator,
        id: &'a ResourceIdentifier,
        snapshot: &'a Snapshot,
        target: &'a str,
    ) -> Result<Self, CreationError> {
        let snapshot_id = SnapshotId::new(&snapshot.status.provider_snapshot_id)
            .ok_or(CreationError::NoSnapshotId)?;
        let is_report_failure_logged = AtomicBool::new(false);
        Ok(Self { context, creator, id, snapshot, snapshot_id, target, is_report_failure_logged })
    }

    /// Attaches a volume to a PersistentVolume: the one that an earlier process created for it, otherwise a new one.
    pub(super) async fn create_and_attach(
        &self,
        value: Value,
        earlier_volume: Option<VolumeId>,
    ) -> Result<CreatedVolume, CreationError> {
        let snapshotter = self.creator.open(&self.snapshot.spec.location).await?;
        let volume = match earlier_volume {
            Some(volume) => {
                // The process that created the volume may have ended before it could publish that.
                let end = VolumeCreationResult::Completed(volume.clone());
                self.report_or_warn(
                    self.creator
                        .reporter
                        .creation_ended(&self.describe_creation(&snapshotter), &end),
                )
                .await;
                volume
            }
            None => self.create_volume(&snapshotter).await?,
        };
        let plugin = snapshotter.plugin.to_string();
        match self.attach_volume(&snapshotter, value, &volume).await {
            Ok(value) => Ok(CreatedVolume { volume, plugin, value }),
            Err(source) => {
                let snapshot = self.snapshot_id.clone();
                Err(CreationError::Attach { plugin, volume, snapshot, source: Box::new(source) })
            }
        }
    }

    fn describe_creation(&self, snapshotter: &Snapshotter) -> VolumeCreation {
        VolumeCreation {
            persistent_volume: self.id.name.clone(),
            target: self.target.to_owned(),
            snapshot: self.snapshot_id.clone(),
            plugin: snapshotter.plugin.to_string(),
            started_at: Timestamp::now(),
        }
    }

    /// Has a volume created, and publishes the progress.
    async fn create_volume(&self, snapshotter: &Snapshotter) -> Result<VolumeId, CreationError> {
        let creation = self.describe_creation(snapshotter);
        let deadline = Instant::now() + self.context.request.timeouts.item_operation;
        let answer = self.request_volume(snapshotter, &creation, deadline).await?;
        let answer = match answer {
            CreateResponse::ConnectionLost(error) if error.code() == Code::Unavailable => {
                self.retry_request(snapshotter, &creation, deadline, error).await?
            }
            answer => answer,
        };
        let created = self.created_volume(&creation, answer);
        let end = match &created {
            Ok(volume) => VolumeCreationResult::Completed(volume.clone()),
            // The process that resumes the run publishes the end.
            Err(CreationError::Stopped) => return created,
            Err(error) if error.is_canceled() => VolumeCreationResult::Canceled(error_text(error)),
            Err(error) => VolumeCreationResult::Failed(error_text(error)),
        };
        self.report_or_warn(self.creator.reporter.creation_ended(&creation, &end)).await;
        created
    }

    /// The created volume, or why there is none.
    fn created_volume(
        &self,
        creation: &VolumeCreation,
        answer: CreateResponse,
    ) -> Result<VolumeId, CreationError> {
        let limit = self.context.request.timeouts.item_operation;
        let interruption = |reason| match reason {
            StopReason::Canceled => Ok(Interruption::Canceled),
            StopReason::TimedOut => Ok(Interruption::TimedOut(limit)),
            StopReason::ShuttingDown => Err(CreationError::Stopped),
        };
        let source = match answer {
            CreateResponse::Created(volume) => return Ok(volume),
            CreateResponse::Refused(error) => NoVolume::Refused(error),
            CreateResponse::ConnectionLost(error) => NoVolume::ConnectionLost(error),
            CreateResponse::Stopped(reason, source) => {
                NoVolume::Interrupted { reason: interruption(reason)?, source }
            }
            CreateResponse::NoResponse(reason) => NoVolume::NoResponse(interruption(reason)?),
        };
        let (plugin, snapshot) = (creation.plugin.clone(), creation.snapshot.clone());
        Err(CreationError::Create { plugin, snapshot, source: Box::new(source) })
    }

    /// Retries after the plugin has died, possibly because of another volume: exclusively, so that a volume that
    /// kills the plugin again affects no other retry.
    async fn retry_request(
        &self,
        snapshotter: &Snapshotter,
        creation: &VolumeCreation,
        deadline: Instant,
        error: bowline_plugin::Error,
    ) -> Result<CreateResponse, CreationError> {
        let context = self.context;
        let _exclusive = context.claimed_items.exclusive_retry().await;
        if context.has_stopped() || Instant::now() >= deadline {
            return Ok(CreateResponse::ConnectionLost(error));
        }
        let VolumeCreation { plugin, snapshot, .. } = creation;
        let text = format!(
            "plugin {plugin} is called again for a volume from snapshot {snapshot}; a volume of \
             the first call may be left over: {error}"
        );
        context.report.warn(self.id, text);
        self.request_volume(snapshotter, creation, deadline).await
    }

    /// Requests a volume, with journal entries before and after.
    async fn request_volume(
        &self,
        snapshotter: &Snapshotter,
        creation: &VolumeCreation,
        deadline: Instant,
    ) -> Result<CreateResponse, CreationError> {
        let context = self.context;
        if context.has_stopped() {
            return Err(CreationError::Stopped);
        }
        let started = VolumeRequested {
            block: 0,
            plugin: creation.plugin.clone(),
            snapshot: creation.snapshot.to_string(),
            item: self.id.clone().into(),
            name: self.target.to_owned(),
        };
        let entry = match &context.item_journal {
            Some(journal) => Some((journal, journal.journal_volume_start(started).await?)),
            None => None,
        };
        let done = CancellationToken::new();
        let call_and_journal = async {
            failpoint::hit(Failpoint::CreateVolume);
            let answer = self.call_plugin(snapshotter, deadline).await;
            failpoint::hit(Failpoint::VolumeCreated);
            if let Some((journal, number)) = entry {
                match &answer {
                    CreateResponse::Created(volume) => {
                        journal.journal_volume_end(number, Some(volume)).await;
                    }
                    CreateResponse::Refused(_) | CreateResponse::Stopped(..) => {
                        journal.journal_volume_end(number, None).await;
                    }
                    // The result is unknown.
                    CreateResponse::NoResponse(_) | CreateResponse::ConnectionLost(_) => {}
                }
            }
            done.cancel();
            answer
        };
        let (answer, ()) =
            tokio::join!(call_and_journal, self.report_progress(snapshotter, creation, &done));
        Ok(answer)
    }

    async fn call_plugin(&self, snapshotter: &Snapshotter, deadline: Instant) -> CreateResponse {
        let spec = &self.snapshot.spec;
        let info = VolumeInfo { volume_type: spec.volume_type.clone(), iops: spec.volume_iops };
        let call = snapshotter.calls.create_volume_from_snapshot(
            &self.snapshot_id,
            &info,
            &spec.volume_az,
        );
        let mut call = std::pin::pin!(call);
        let reason = tokio::select! {
            biased;
            made = &mut call => return classify_response(made, None),
            reason = self.wait_for_stop_reason(deadline) => reason,
        };
        tracing::warn!(
            item = %self.id,
            "canceling the call of plugin {}: {reason:?}",
            snapshotter.plugin
        );
        let stopping = async {
            let canceled =
                timeout(CANCEL_TIMEOUT, snapshotter.calls.cancel(&self.snapshot_id)).await;
            if !matches!(canceled, Ok(Ok(()))) {
                tracing::warn!(
                    item = %self.id,
                    "the cancellation did not reach plugin {}",
                    snapshotter.plugin
                );
            }
            sleep(CANCEL_GRACE).await;
        };
        tokio::select! {
            biased;
            made = &mut call => classify_response(made, Some(reason)),
            () = stopping => CreateResponse::NoResponse(reason),
        }
    }

    /// Waits until there is a reason to stop waiting for the plugin.
    async fn wait_for_stop_reason(&self, deadline: Instant) -> StopReason {
        let shutdown = async {
            self.context.stop.cancelled().await;
            sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            biased;
            () = self.context.cancel.cancelled() => StopReason::Canceled,
            () = sleep_until(deadline) => StopReason::TimedOut,
            () = shutdown => StopReason::ShuttingDown,
        }
    }

    /// Publishes the progress until the call has ended. A call to the reporter that has begun is completed, so that it
    /// cannot overlap the next one.
    async fn report_progress(
        &self,
        snapshotter: &Snapshotter,
        creation: &VolumeCreation,
        done: &CancellationToken,
    ) {
        let reporter = &self.creator.reporter;
        self.report_or_warn(reporter.creation_started(creation)).await;
        let (mut errors, mut last_reported) = (0, None);
        // A plugin without progress queries may publish its progress in another way.
        let (mut polls_progress, mut interval) = (true, PROGRESS_INTERVAL);
        loop {
            let poll = async {
                sleep(interval).await;
                if !polls_progress {
                    return None;
                }
                Some(timeout(PROGRESS_TIMEOUT, snapshotter.calls.progress(&self.snapshot_id)).await)
            };
            let Some(polled) = done.run_until_cancelled(poll).await else { return };
            match polled {
                None => interval = (interval * 2).min(MAX_PROGRESS_INTERVAL),
                Some(Ok(Ok(progress))) => {
                    errors = 0;
                    self.report_amount(creation, &progress, &mut last_reported).await;
                }
                Some(Ok(Err(error)))
                    if matches!(error.class(), Class::Unimplemented | Class::Permanent) =>
                {
                    tracing::debug!(item = %self.id, "no progress is reported: {error}");
                    polls_progress = false;
                }
                Some(Ok(Err(_)) | Err(_)) => {
                    errors += 1;
                    polls_progress = errors < MAX_PROGRESS_ERRORS;
                }
            }
            self.report_or_warn(reporter.report_running(creation)).await;
        }
    }

    /// Passes the progress of a plugin to the reporter, if it has changed.
    async fn report_amount(
        &self,
        creation: &VolumeCreation,
        progress: &Progress,
        last_reported: &mut Option<(i64, i64)>,
    ) {
        let reporter = &self.creator.reporter;
        let (bytes, units) = (ByteProgress::of(progress), UnitProgress::of(progress));
        let amount = bytes.map(|bytes| (bytes.done, bytes.total));
        let amount = amount.or(units.as_ref().map(|units| (units.done, units.total)));
        if amount.is_none() || amount == *last_reported {
            return;
        }
        *last_reported = amount;
        if let Some(bytes) = bytes {
            self.report_or_warn(reporter.report_bytes(creation, bytes)).await;
        } else if let Some(units) = units {
            self.report_or_warn(reporter.report_units(creation, &units)).await;
        }
    }

    /// Calls the reporter. A failure is reported once per volume.
    async fn report_or_warn(&self, call: impl Future<Output = Result<(), ProgressReportError>>) {
        let error = match timeout(PROGRESS_TIMEOUT, call).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PROGRESS_TIMEOUT.as_secs()),
        };
        if self.is_report_failure_logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(item = %self.id, "the VolumePluginRestore cannot be written: {error}");
            return;
        }
        let text = format!("the VolumePluginRestore cannot be written: {error}");
        self.context.report.warn(self.id, text);
    }

    /// Attaches a volume to a PersistentVolume. Idempotent.
    async fn attach_volume(
        &self,
        snapshotter: &Snapshotter,
        value: Value,
        volume: &VolumeId,
    ) -> Result<Value, AttachError> {
        let item = Item::from_value(&value)?;
        let set_volume_id = || snapshotter.calls.set_volume_id(&item, volume);
        let set = set_volume_id
            .retry(RETRIES)
            .when(|error| error.class() == Class::Transient)
            .notify(|error, pause| {
                tracing::warn!(item = %self.id, "retrying in {pause:?}: {error}");
            })
            .await?;
        let changed: Value = set.parse()?;
        // The result is written with the permissions of the server.
        let is_same = |field: &str| changed.get(field) == value.get(field);
        if is_same("kind") && is_same("apiVersion") {
            Ok(changed)
        } else {
            Err(AttachError::OtherKind)
        }
    }
}

fn classify_response(
    result: bowline_plugin::Result<VolumeId>,
    stop_reason: Option<StopReason>,
) -> CreateResponse {
    match (result, stop_reason) {
        (Ok(volume), _) => CreateResponse::Created(volume),
        (Err(error), None) if is_connection_lost(&error) => CreateResponse::ConnectionLost(error),
        (Err(error), Some(reason)) if is_connection_lost(&error) => {
            CreateResponse::NoResponse(reason)
        }
        (Err(error), None) => CreateResponse::Refused(error),
        (Err(error), Some(reason)) => CreateResponse::Stopped(reason, error),
    }
}

/// True if an error means that there was no answer from the plugin. A request that never reached the plugin does not
/// count.
fn is_connection_lost(error: &bowline_plugin::Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) && !error.is_undelivered()
}
