//! Snapshots of volumes by the plugins of VolumeSnapshotLocations.
//!
//! The work has two halves, for the sake of the application. `plan_snapshots` does everything that can be done before the
//! freeze: select the volumes, find the plugin that supports each, read its properties. `create_snapshots` does the
//! rest inside the freeze window, for all volumes of a block concurrently: it fixes the point in time and nothing
//! else. Completing a snapshot and uploading it are operations that continue after the backup's items.

mod progress;
mod reclaim;
mod results;
mod zone;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{
    Class, Error, InvalidItem, Item, Name, OperationId, ResourceIdentifier, SnapshotId, VolumeId,
    VolumeInfo,
};
use bowline_store::file::{Snapshot, SnapshotPhase, SnapshotSpec, SnapshotStatus};
use futures::StreamExt as _;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::block_journal::IntentsInJournal;
use super::item::Sink;
use super::volume::{SnapshotOutcome, Volumes};
use super::{CANCEL_GRACE, Context, outside_pods};
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::journal::{Intent, SnapshotIntent};
use crate::operation::{Kind, Operation, VolumeDetails};
use crate::snapshotter::{OpenError, Snapshotter, Snapshotters, volume_id};
pub use progress::SnapshotProgress;
use reclaim::RequestOrigin;
pub use reclaim::{ReclaimError, ReclaimOutcome, discard, reclaim};
pub(super) use reclaim::{reclaim_before_repeat, warn_all_leftovers};
pub use results::{apply_operation_results, clear_discarded_ids, warn_not_uploaded};

/// Number of volumes prepared concurrently.
const MAX_CONCURRENT_VOLUMES: usize = 16;

/// The snapshotters of a run, each opened on first use.
pub(super) struct Locations {
    port: Arc<dyn Snapshotters>,
    snapshotters: Vec<(String, OnceCell<Result<Snapshotter, OpenError>>)>,
    /// Volumes that a block has reserved.
    reserved: Mutex<HashSet<Box<str>>>,
}

impl Locations {
    pub(super) fn new(port: Arc<dyn Snapshotters>, names: &[String]) -> Self {
        let snapshotters = names.iter().map(|name| (name.clone(), OnceCell::new())).collect();
        Self { port, snapshotters, reserved: Mutex::default() }
    }

    pub(super) fn port(&self) -> &dyn Snapshotters {
        &*self.port
    }

    /// Claims a volume; true if the caller now has it.
    pub(super) fn reserve_volume(&self, volume: &str) -> bool {
        self.reserved.lock().insert(volume.into())
    }

    /// True if no block has reserved a volume.
    pub(super) fn is_unreserved(&self, volume: &str) -> bool {
        let reserved = self.reserved.lock();
        !self.snapshotters.is_empty() && !reserved.contains(volume)
    }
}

/// A volume to snapshot.
pub(super) struct PlannedPluginSnapshot {
    volume: String,
    plan: PluginPlan,
}

impl PlannedPluginSnapshot {
    /// True for the plan of this volume.
    pub(super) fn is_of(&self, volume: &str) -> bool {
        self.volume == volume
    }

    /// Intent to write to the journal; none if no plugin is asked.
    fn intent(&self) -> Option<Intent> {
        match &self.plan {
            PluginPlan::Failed(_) | PluginPlan::Unmatched => None,
            PluginPlan::Ready(ready) => Some(intent(&self.volume, ready)),
        }
    }

    /// The snapshot, which fails unless its intent is in the journal.
    pub(super) fn with_proof(self, proof: &IntentsInJournal) -> JournaledPluginSnapshot {
        let is_missing = self.intent().is_some_and(|intent| !proof.include(&intent));
        let Self { volume, plan } = self;
        let plan =
            if is_missing { PluginPlan::Failed(PluginPlanError::NotJournaled) } else { plan };
        JournaledPluginSnapshot(Self { volume, plan })
    }

    /// True if a plugin supports the volume, or may.
    pub(super) fn is_matched(&self) -> bool {
        !matches!(self.plan, PluginPlan::Unmatched)
    }
}

/// A volume whose snapshot may be requested: its intent is in the journal. Made by [`PlannedPluginSnapshot::with_proof`]
/// alone.
pub(super) struct JournaledPluginSnapshot(PlannedPluginSnapshot);

enum PluginPlan {
    /// Snapshot by this plugin.
    Ready(Box<ReadyVolume>),
    /// No snapshot is possible, for this reason.
    Failed(PluginPlanError),
    /// No plugin supports the volume.
    Unmatched,
}

/// Reason why a volume cannot be snapshotted by any plugin.
#[derive(Debug, thiserror::Error)]
enum PluginPlanError {
    #[error(transparent)]
    Volume(#[from] InvalidItem),
    #[error(transparent)]
    Open(OpenError),
    #[error("{plugin} cannot determine whether it supports the volume: {error}")]
    VolumeId { plugin: Name, error: Error },
    #[error("{plugin} returned no information about volume {id}: {error}")]
    VolumeInfo { plugin: Name, id: VolumeId, error: Error },
    /// The intent could not be written to the journal: a snapshot without a record could be left behind.
    #[error("the journal of the backup cannot be written")]
    NotJournaled,
}

/// A volume whose snapshot can be taken at once.
struct ReadyVolume {
    snapshotter: Snapshotter,
    id: VolumeId,
    info: VolumeInfo,
    zone: String,
    /// Unique ID of this request.
    request: String,
}

/// Prepares the volumes of a block. No pod is frozen yet.
pub(super) async fn plan_snapshots<'a>(
    context: &Context,
    objects: impl IntoIterator<Item = &'a Object>,
) -> Vec<PlannedPluginSnapshot> {
    if context.snapshots.snapshotters.is_empty() {
        return Vec::new();
    }
    let (facts, mut found) = (Volumes::default(), BTreeMap::new());
    for object in objects {
        facts.record(object);
        // Decided once, here: later visitors of the volume know less about its pods and claim.
        if object.resource.is_core("persistentvolumes")
            && context.snapshots.reserve_volume(&object.name)
        {
            found.insert(object.name.clone(), object.item.clone());
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let volume_options = context.volume_options();
    if !facts.volumes_to_snapshot(&volume_options).is_empty() {
        outside_pods::record_outside_pods(context, &facts).await;
    }
    let names = facts.volumes_to_snapshot(&volume_options);
    let volumes = names.into_iter().filter_map(|name| found.remove_entry(&*name));
    let planned = volumes.map(|(volume, item)| async move {
        let plan = plan(context, &volume, &item).await.unwrap_or_else(PluginPlan::Failed);
        PlannedPluginSnapshot { volume, plan }
    });
    futures::stream::iter(planned).buffer_unordered(MAX_CONCURRENT_VOLUMES).collect().await
}

/// Finds the plugin that supports a volume: the first one of the locations, in their order.
async fn plan(context: &Context, volume: &str, item: &Item) -> Result<PluginPlan, PluginPlanError> {
    let parsed: PersistentVolume = item.parse()?;
    let zone = zone::zone_of(&parsed);
    // Error of the first plugin that could not be asked.
    let mut first_error = None;
    for (name, snapshotter_cell) in &context.snapshots.snapshotters {
        let snapshotter = snapshotter_cell.get_or_init(|| context.snapshots.port.open(name)).await;
        let snapshotter = match snapshotter {
            Ok(snapshotter) => snapshotter,
            // Another plugin may support the volume.
            Err(error) => {
                first_error.get_or_insert_with(|| PluginPlanError::Open(error.clone()));
                continue;
            }
        };
        let plugin = &snapshotter.plugin;
        let id = match retry_if_plugin_died(|| snapshotter.calls.get_volume_id(item)).await {
            Ok(Some(id)) => id,
            Ok(None) => continue,
            // As in Velero (pkg/backup/item_backupper.go, takePVSnapshot), another plugin may support the volume.
            Err(error) => {
                let error = PluginPlanError::VolumeId { plugin: plugin.clone(), error };
                tracing::warn!(volume, "{error}");
                first_error.get_or_insert(error);
                continue;
            }
        };
        let info = retry_if_plugin_died(|| snapshotter.calls.get_volume_info(&id, &zone)).await;
        let info = info.map_err(|error| {
            let (plugin, id) = (plugin.clone(), id.clone());
            PluginPlanError::VolumeInfo { plugin, id, error }
        })?;
        let request = request_id(context, volume);
        let snapshotter = snapshotter.clone();
        return Ok(PluginPlan::Ready(Box::new(ReadyVolume {
            snapshotter,
            id,
            info,
            zone,
            request,
        })));
    }
    first_error.map_or(Ok(PluginPlan::Unmatched), Err)
}

/// Repeats a call without side effects if the plugin has died meanwhile.
async fn retry_if_plugin_died<T, F>(call: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    match call().await {
        Err(error) if error.class() == Class::Transient => call().await,
        answer => answer,
    }
}

/// Request ID: the same for a volume within one attempt at a backup, and never reused.
pub(super) fn request_id(context: &Context, volume: &str) -> String {
    // An earlier process that made requests has a block in the journal.
    let blocks = context.recovery.recovered.next_block;
    let attempt = context.started.as_nanosecond();
    let text = format!("{}/{blocks}/{attempt}/{volume}", context.request.uid);
    crate::journal::digest(text.as_bytes())[..32].to_owned()
}

/// Intents to write to the journal before snapshots are taken.
pub(super) fn intents(planned: &[PlannedPluginSnapshot]) -> Vec<Intent> {
    planned.iter().filter_map(PlannedPluginSnapshot::intent).collect()
}

fn intent(volume: &str, ready: &ReadyVolume) -> Intent {
    Intent {
        plugin: ready.snapshotter.plugin.to_string(),
        item: volume_id(volume).into(),
        snapshot: Some(SnapshotIntent {
            location: ready.snapshotter.location.clone(),
            volume: ready.id.to_string(),
            zone: ready.zone.clone(),
            request: ready.request.clone(),
            created: None,
        }),
        csi: None,
    }
}

/// Takes the snapshots of all volumes of a block concurrently, and records each outcome.
pub(super) async fn create_snapshots(
    context: &Context,
    journaled: Vec<JournaledPluginSnapshot>,
    sink: &Sink<'_>,
) {
    let all = journaled.into_iter().map(|JournaledPluginSnapshot(planned)| async move {
        let PlannedPluginSnapshot { volume, plan } = planned;
        let id = volume_id(&volume);
        match plan {
            PluginPlan::Unmatched => {
                sink.results(context).record_snapshot(&volume, SnapshotOutcome::Unmatched);
            }
            PluginPlan::Failed(error) => {
                sink.report(context).error(&id, format!("no snapshot was created: {error}"));
                sink.results(context).record_snapshot(&volume, SnapshotOutcome::NotAttempted);
            }
            PluginPlan::Ready(ready) => create_one(context, &volume, &id, *ready, sink).await,
        }
    });
    join_all(all).await;
}

async fn create_one(
    context: &Context,
    volume: &str,
    id: &ResourceIdentifier,
    ready: ReadyVolume,
    sink: &Sink<'_>,
) {
    let (plugin, location) = (&ready.snapshotter.plugin, &ready.snapshotter.location);
    failpoint::hit(Failpoint::CreateSnapshot);
    let called_at = Timestamp::now();
    context.progress.snapshots.count_request();
    let created = create(context, volume, &ready, sink.results(context).freezes_pods()).await;
    failpoint::hit(Failpoint::SnapshotCreated);
    let record =
        |phase, snapshot: Option<&SnapshotId>| record(context, volume, &ready, phase, snapshot);
    let snapshot = match created {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let text =
                format!("{plugin} could not create a snapshot of volume {}: {error}", ready.id);
            sink.report(context).error(id, text);
            if error.may_exist() {
                let intent = intent(volume, &ready);
                reclaim::warn_leftover(sink.report(context), &intent, RequestOrigin::ThisAttempt);
                // A plugin that can be asked for the snapshot again is asked when the backup has ended.
                if ready.snapshotter.is_v2 {
                    sink.results(context).record_in_flight(intent);
                }
            }
            let record = record(SnapshotPhase::Failed, None);
            return sink
                .results(context)
                .record_snapshot(volume, SnapshotOutcome::PluginSnapshot(Box::new(record)));
        }
    };
    tracing::info!(volume, %plugin, location, %snapshot, "snapshot created");
    let completed = record(SnapshotPhase::Completed, Some(&snapshot));
    sink.results(context)
        .record_snapshot(volume, SnapshotOutcome::PluginSnapshot(Box::new(completed)));
    let Some(operation) = OperationId::new(snapshot.as_str()) else { return };
    let snapshot_type = context.request.snapshot_type(ready.snapshotter.snapshot_type);
    let started_operation = |kind, created| Operation {
        volume: Some(VolumeDetails { location: location.clone(), snapshot_type }),
        ..Operation::started(
            kind,
            plugin.clone(),
            id.clone(),
            operation.clone(),
            created,
            context.request.item_operation_timeout(),
        )
    };
    let publish = |operation: Operation| {
        context.progress.snapshots.record_operation(&operation);
        sink.results(context).record_operation(operation);
    };
    // A plugin of version 1 may have spent hours within the call.
    publish(started_operation(Kind::SnapshotCreation, called_at));
    if snapshot_type != SnapshotType::Local {
        publish(started_operation(Kind::SnapshotUpload, Timestamp::now()));
    }
}

/// Failure to take a snapshot.
#[derive(Debug, thiserror::Error)]
enum PluginCreateError {
    #[error(transparent)]
    Plugin(#[from] Error),
    #[error(
        "the plugin did not answer within {} s while pods were frozen, so they are thawed; if the \
         plugin needs longer, increase --freeze-timeout of the server", .0.as_secs()
    )]
    FreezeTimeout(Duration),
    #[error("the plugin has not answered in time")]
    NoAnswer,
}

impl PluginCreateError {
    /// True if the snapshot may exist nevertheless.
    fn may_exist(&self) -> bool {
        match self {
            Self::Plugin(error) => error.class() == Class::Transient && !error.is_undelivered(),
            Self::FreezeTimeout(_) | Self::NoAnswer => true,
        }
    }
}

/// Requests a snapshot. A plugin that has died is asked once more if that cannot create a second snapshot. While pods
/// are frozen the timeout is shorter: an application must not wait for a plugin that hangs.
async fn create(
    context: &Context,
    volume: &str,
    ready: &ReadyVolume,
    freezes_pods: bool,
) -> Result<SnapshotId, PluginCreateError> {
    let labels = context.request.backup.metadata.labels.as_ref();
    let tags = zone::tags(labels, context.request.name.as_str(), volume, &ready.request);
    let calls = &ready.snapshotter.calls;
    let limit = context.request.item_operation_timeout();
    let window = context.options.freeze_timeout.filter(|&window| freezes_pods && window < limit);
    let deadline = Instant::now() + window.unwrap_or(limit);
    let request_snapshot = || async {
        let mut call = std::pin::pin!(calls.create_snapshot(&ready.id, &ready.zone, &tags));
        let canceled = async {
            context.cancel.cancelled().await;
            tokio::time::sleep(CANCEL_GRACE).await;
        };
        tokio::select! {
            answer = timeout_at(deadline, &mut call) => answer.ok(),
            () = canceled => None,
        }
    };
    let mut answer = request_snapshot().await;
    if let Some(Err(error)) = &answer
        && error.class() == Class::Transient
        && (ready.snapshotter.is_v2 || error.is_undelivered())
        && !context.is_aborted()
    {
        tracing::info!(volume, "retrying CreateSnapshot: {error}");
        answer = request_snapshot().await;
    }
    match (answer, window) {
        (Some(answer), _) => Ok(answer?),
        (None, Some(window)) if Instant::now() >= deadline => {
            Err(PluginCreateError::FreezeTimeout(window))
        }
        (None, _) => Err(PluginCreateError::NoAnswer),
    }
}

/// A snapshot, in Velero's format.
fn record(
    context: &Context,
    volume: &str,
    ready: &ReadyVolume,
    phase: SnapshotPhase,
    snapshot: Option<&SnapshotId>,
) -> Snapshot {
    Snapshot {
        spec: SnapshotSpec {
            backup_name: context.request.name.to_string(),
            backup_uid: context.request.uid.to_string(),
            location: ready.snapshotter.location.clone(),
            persistent_volume_name: volume.to_owned(),
            provider_volume_id: ready.id.to_string(),
            volume_type: ready.info.volume_type.clone(),
            volume_az: ready.zone.clone(),
            volume_iops: ready.info.iops,
            ..SnapshotSpec::default()
        },
        status: SnapshotStatus {
            provider_snapshot_id: snapshot.map(SnapshotId::to_string).unwrap_or_default(),
            phase: Some(phase),
            ..SnapshotStatus::default()
        },
        ..Snapshot::default()
    }
}
