//! Operations on snapshots: who asks plugins about them, and the VolumePluginBackups that show them.
//!
//! Every snapshot of every plugin has a VolumePluginBackup. A plugin that can reach the API server
//! makes its own, which is then an observation like any other; for all others the server does, and
//! stops for good if anybody else writes into one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase, VolumePluginProgress};
use bowline_api::{
    Backup, VolumePluginBackup, VolumePluginBackupSpec, VolumePluginBackupStatus, label,
};
use bowline_engine::backup::csi;
use bowline_engine::csi::plugin_of;
use bowline_engine::operation::{Asker, Kind, Operation, State};
use bowline_engine::snapshotter::{
    Snapshotter, Snapshotters as _, hashed_object_name, object_name,
};
use bowline_plugin::{
    BackupItemAction, Class, Code, Error, Progress, Result, SnapshotId, State as Told,
};
use bowline_store::file::BackupVolumeInfo;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{ListParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::controllers::operations::Actions;
use crate::patch::{self, FIELD_MANAGER};
use crate::server::Context;
use crate::story::one_line;

/// How long a plugin's own resource may be silent before it says nothing any more.
const SILENCE: Duration = Duration::from_mins(10);
/// How many resources are written at a time.
const AT_ONCE: usize = 16;

/// Asks about all operations of a backup: item actions about those on items, snapshotters about those
/// on snapshots.
pub(super) struct Askers<'a> {
    actions: Actions<dyn BackupItemAction, Backup>,
    csi: csi::Follower,
    context: &'a Context,
    resources: &'a Resources<'a>,
    /// The snapshotters that were needed so far, by location.
    opened: Mutex<HashMap<String, Arc<OnceCell<Snapshotter>>>>,
}

impl<'a> Askers<'a> {
    pub(super) fn new(
        actions: Actions<dyn BackupItemAction, Backup>,
        csi: csi::Follower,
        context: &'a Context,
        resources: &'a Resources<'a>,
    ) -> Self {
        Self { actions, csi, context, resources, opened: Mutex::default() }
    }

    async fn snapshotter(&self, operation: &Operation) -> Result<(Snapshotter, SnapshotId)> {
        let location = operation.volume.as_ref().map(|volume| volume.location.as_str());
        let location = location.unwrap_or_default();
        let id = SnapshotId::new(operation.id.as_str());
        let id = id.ok_or_else(|| Error::new(Code::InvalidArgument, "the snapshot has no id"))?;
        // Each has a cell of its own: one that is slow to open keeps no other waiting.
        let cell = {
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(opened.entry(location.to_owned()).or_default())
        };
        let open = async || {
            self.context.snapshotters.open(location).await.map_err(|error| {
                let code = if error.is_retryable { Code::Unavailable } else { Code::NotFound };
                Error::new(code, error.to_string())
            })
        };
        let snapshotter = cell.get_or_try_init(open).await?.clone();
        Ok((snapshotter, id))
    }
}

#[async_trait]
impl Asker for Askers<'_> {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        if csi::is_of_csi(operation) {
            return self.csi.progress(operation).await;
        }
        if !operation.kind.is_of_volume() {
            return self.actions.progress(operation).await;
        }
        let told = self.resources.told(operation).await;
        if let Some(told) = told.as_ref().filter(|told| told.state != Told::Running) {
            return Ok(told.clone());
        }
        // What a plugin shows may be of creation and upload as one; what it answers is of the first.
        let (snapshotter, id) = self.snapshotter(operation).await?;
        match (snapshotter.calls.progress(&id).await, told) {
            (Err(error), Some(told)) if error.class() == Class::Unimplemented => Ok(told),
            (answer, _) => answer,
        }
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        if csi::is_of_csi(operation) {
            return self.csi.cancel(operation);
        }
        if !operation.kind.is_of_volume() {
            return self.actions.cancel(operation).await;
        }
        let (snapshotter, id) = self.snapshotter(operation).await?;
        snapshotter.calls.cancel(&id).await
    }

    async fn upload(&self, operation: &Operation) -> Result<()> {
        let (snapshotter, id) = self.snapshotter(operation).await?;
        snapshotter.calls.upload_snapshot(&id).await
    }
}

/// The VolumePluginBackups of a backup.
pub(super) struct Resources<'a> {
    context: &'a Context,
    backup: &'a Backup,
    known: Mutex<BTreeMap<Key, Known>>,
    /// The snapshots of CSI drivers, by operation.
    by_csi: Mutex<HashMap<String, ByCsi>>,
}

/// What is shown of the snapshot of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByCsi {
    key: Key,
    plugin: String,
}

/// A volume, and the id of its snapshot.
type Key = (String, String);

/// Whose the resource of a snapshot is.
#[derive(Clone, Debug)]
enum Known {
    /// Ours, with what it says.
    Ours(Box<VolumePluginBackup>),
    /// Its plugin's, under this name. It is not written to.
    Theirs(String),
}

impl<'a> Resources<'a> {
    pub(super) fn new(context: &'a Context, backup: &'a Backup) -> Self {
        Self { context, backup, known: Mutex::default(), by_csi: Mutex::default() }
    }

    /// Learns from the records of volumes which snapshots of CSI drivers there are. Without that they
    /// are not shown.
    pub(super) fn learn(&self, infos: &[BackupVolumeInfo]) {
        let mut by_csi = self.by_csi.lock().unwrap_or_else(PoisonError::into_inner);
        for info in infos {
            let Some(csi) = &info.csi_snapshot_info else { continue };
            // One that was not taken has nothing to show, and one without a volume no place.
            if !csi.operation_id.is_empty() && !csi.snapshot_handle.is_empty() {
                let key = (info.pv_name.clone(), csi.snapshot_handle.clone());
                let plugin = plugin_of(&csi.driver);
                by_csi.insert(csi.operation_id.clone(), ByCsi { key, plugin });
            }
        }
    }

    /// What stands for the snapshot of an operation, and the plugin that takes it.
    fn shown_as(&self, operation: &Operation) -> Option<ByCsi> {
        if csi::is_of_csi(operation) {
            let by_csi = self.by_csi.lock().unwrap_or_else(PoisonError::into_inner);
            return by_csi.get(operation.id.as_str()).cloned();
        }
        let plugin = operation.plugin.to_string();
        operation.kind.is_of_volume().then(|| ByCsi { key: key(operation), plugin })
    }

    /// The operations on each snapshot, in their order.
    fn snapshots<'b>(&self, operations: &'b [Operation]) -> BTreeMap<Key, Vec<&'b Operation>> {
        let mut snapshots: BTreeMap<Key, Vec<&'b Operation>> = BTreeMap::new();
        for operation in operations {
            if let Some(ByCsi { key, .. }) = self.shown_as(operation) {
                snapshots.entry(key).or_default().push(operation);
            }
        }
        snapshots
    }

    fn api(&self) -> Api<VolumePluginBackup> {
        self.context.api()
    }

    /// Shows how snapshots go. What cannot be shown is told in the log, and is no failure.
    pub(super) async fn show(&self, operations: &[Operation]) {
        let mut each = Vec::new();
        for (key, of) in self.snapshots(operations) {
            each.push(self.show_or_tell(key, of).boxed());
        }
        futures::stream::iter(each).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn show_or_tell(&self, key: Key, of: Vec<&Operation>) {
        if let Err(error) = self.show_one(&key, &of).await {
            let (volume, snapshot) = &key;
            // The kind is not installed, or not ours to write: it will not be otherwise in a second.
            if patch::is_missing(&error) || patch::is_refused(&error) {
                self.known().insert(key.clone(), Known::Theirs(String::new()));
            }
            tracing::warn!(volume, snapshot, "it cannot be shown: {}", one_line(&error));
        }
    }

    async fn show_one(&self, key: &Key, of: &[&Operation]) -> kube::Result<()> {
        let Some(first) = of.first() else { return Ok(()) };
        let known = self.known().get(key).cloned();
        let known = match known {
            Some(known) => known,
            None => self.find_or_create(key, first).await?,
        };
        let next = match &known {
            Known::Theirs(_) => known,
            Known::Ours(resource) => {
                let before = resource.status.clone().unwrap_or_default();
                let status = status(&before, of, Timestamp::now());
                if status == before { known } else { self.write(resource, &status).await? }
            }
        };
        self.known().insert(key.clone(), next);
        Ok(())
    }

    /// Writes the status of a resource of ours, unless somebody else does.
    async fn write(
        &self,
        resource: &VolumePluginBackup,
        status: &VolumePluginBackupStatus,
    ) -> kube::Result<Known> {
        let written = patch::patch_status_of(&self.api(), resource, json!(status)).await?;
        Ok(match written {
            Some(written) if has_other_writer(&written) => {
                tracing::info!(name = written.name_any(), "its plugin writes it from now on");
                Known::Theirs(written.name_any())
            }
            Some(written) => Known::Ours(Box::new(written)),
            // Somebody has deleted it, and does not want it back.
            None => Known::Theirs(resource.name_any()),
        })
    }

    async fn find_or_create(
        &self,
        (volume, snapshot): &Key,
        of: &Operation,
    ) -> kube::Result<Known> {
        let api = self.api();
        let uid = self.backup.uid().unwrap_or_default();
        let taken = hashed_object_name(snapshot, &format!("{uid}/{volume}/{snapshot}"));
        for name in [object_name(snapshot), taken] {
            match api.get_opt(&name).await? {
                None => {
                    let resource = self.resource(name, volume, snapshot, of);
                    let params = PostParams {
                        field_manager: Some(FIELD_MANAGER.to_owned()),
                        ..PostParams::default()
                    };
                    return Ok(Known::Ours(Box::new(api.create(&params, &resource).await?)));
                }
                Some(found) if self.is_of(&found, volume, snapshot) => {
                    let is_ours =
                        found.labels().contains_key(label::MANAGED) && !has_other_writer(&found);
                    return Ok(if is_ours {
                        Known::Ours(Box::new(found))
                    } else {
                        Known::Theirs(found.name_any())
                    });
                }
                // It is of another snapshot.
                Some(_) => {}
            }
        }
        tracing::warn!(volume, snapshot, "there are other VolumePluginBackups of that name");
        Ok(Known::Theirs(String::new()))
    }

    /// Whether a resource is about a snapshot of this backup.
    fn is_of(&self, found: &VolumePluginBackup, volume: &str, snapshot: &str) -> bool {
        let uid = found.labels().get(label::BACKUP_UID);
        let of = found.status.as_ref().map(|status| status.snapshot_id.as_str());
        found.spec.backup == self.backup.name_any()
            && found.spec.volume == volume
            && uid.is_none_or(|uid| Some(uid) == self.backup.uid().as_ref())
            && of.is_none_or(|of| of.is_empty() || of == snapshot)
    }

    fn resource(
        &self,
        name: String,
        volume: &str,
        snapshot: &str,
        of: &Operation,
    ) -> VolumePluginBackup {
        let backup = self.backup.name_any();
        let labels = [
            (label::BACKUP_NAME, label::value(&backup).into_owned()),
            (label::BACKUP_UID, self.backup.uid().unwrap_or_default()),
            (label::MANAGED, "true".to_owned()),
        ];
        VolumePluginBackup {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
                owner_references: self.backup.owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: VolumePluginBackupSpec {
                volume: volume.to_owned(),
                backup,
                plugin: self.shown_as(of).map(|shown| shown.plugin).unwrap_or_default(),
                ..VolumePluginBackupSpec::default()
            },
            status: Some(VolumePluginBackupStatus {
                phase: Some(VolumePluginPhase::New),
                snapshot_id: snapshot.to_owned(),
                start_timestamp: Some(Time(of.created)),
                ..VolumePluginBackupStatus::default()
            }),
        }
    }

    /// What a plugin tells of the creation of a snapshot in a resource of its own. None if it has
    /// none, or that says nothing.
    async fn told(&self, operation: &Operation) -> Option<Progress> {
        if operation.kind != Kind::SnapshotCreation {
            return None;
        }
        let (volume, snapshot) = key(operation);
        let name = match self.known().get(&(volume.clone(), snapshot.clone())) {
            Some(Known::Ours(_)) => return None,
            Some(Known::Theirs(name)) => name.clone(),
            None => object_name(&snapshot),
        };
        let found = self.api().get_opt(&name).await.ok()??;
        let is_theirs = !found.labels().contains_key(label::MANAGED) || has_other_writer(&found);
        let is_meant = is_theirs && self.is_of(&found, &volume, &snapshot);
        is_meant.then(|| observed(&found, Timestamp::now())).flatten()
    }

    /// The resources of the backup as they are kept with it, whoever made them.
    pub(super) async fn all(&self) -> kube::Result<Vec<VolumePluginBackup>> {
        let name = self.backup.name_any();
        let listed = match self.api().list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            // On the definitions of Velero there is no such kind.
            Err(error) if patch::is_missing(&error) || patch::is_refused(&error) => {
                tracing::warn!("VolumePluginBackups cannot be kept: {}", one_line(&error));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let ours = listed.into_iter().filter(|one| {
            let uid = one.labels().get(label::BACKUP_UID);
            one.spec.backup == name && uid.is_none_or(|uid| Some(uid) == self.backup.uid().as_ref())
        });
        let kept = |one: VolumePluginBackup| VolumePluginBackup {
            metadata: ObjectMeta {
                name: one.metadata.name,
                labels: one.metadata.labels,
                annotations: one.metadata.annotations,
                ..ObjectMeta::default()
            },
            ..one
        };
        Ok(ours.map(kept).collect())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(operation: &Operation) -> Key {
    (operation.item.name.clone(), operation.id.to_string())
}

/// Whether somebody but us has written the status of a resource.
fn has_other_writer(resource: &VolumePluginBackup) -> bool {
    resource.managed_fields().iter().any(|entry| {
        let writes_status =
            entry.fields_v1.as_ref().is_some_and(|set| set.0.get("f:status").is_some());
        writes_status && entry.manager.as_deref() != Some(FIELD_MANAGER)
    })
}

/// What a plugin's own resource tells; none if it says nothing.
fn observed(resource: &VolumePluginBackup, now: Timestamp) -> Option<Progress> {
    let status = resource.status.as_ref()?;
    let phase = status.phase.as_ref()?;
    let state = match phase.outcome() {
        Some(VolumePluginOutcome::Completed) => Told::Succeeded,
        Some(VolumePluginOutcome::Failed) => Told::Failed(status.message.clone()),
        Some(VolumePluginOutcome::Canceled) => Told::Failed(format!("canceled {}", status.message)),
        None => Told::Running,
    };
    let written = resource.managed_fields().iter().filter_map(|entry| entry.time.as_ref());
    let updated = written.map(|time| time.0).max();
    let silent = updated.map(|updated| now.duration_since(updated).unsigned_abs());
    if state == Told::Running && silent.is_none_or(|silent| silent >= SILENCE) {
        return None;
    }
    let VolumePluginProgress { total_bytes, bytes_done, .. } = &status.progress;
    Some(Progress {
        state,
        done: (*bytes_done).max(0),
        total: (*total_bytes).max(0),
        units: "Bytes".to_owned(),
        description: status.message.clone(),
        started: status.start_timestamp.as_ref().map(|time| time.0),
        updated,
    })
}

/// What the resource of a snapshot says, given the operations on it. `before` is what it said.
fn status(
    before: &VolumePluginBackupStatus,
    of: &[&Operation],
    now: Timestamp,
) -> VolumePluginBackupStatus {
    let failure = of.iter().find_map(|operation| match &operation.state {
        State::Failed(reason) => Some(reason),
        State::New | State::InProgress | State::Completed => None,
    });
    let has_ended = of.iter().all(|operation| operation.state.is_terminal());
    let phase = match failure {
        _ if !has_ended && of.iter().all(|one| one.state == State::New) => VolumePluginPhase::New,
        _ if !has_ended => VolumePluginPhase::InProgress,
        Some(reason) if reason.starts_with("canceled") => VolumePluginPhase::Canceled,
        Some(_) => VolumePluginPhase::Failed,
        None => VolumePluginPhase::Completed,
    };
    // The upload tells more than the creation, once it tells anything.
    let in_bytes = of.iter().rev().find(|Operation { progress, .. }| {
        progress.units.eq_ignore_ascii_case("bytes") && (progress.done > 0 || progress.total > 0)
    });
    let (mut bytes_done, total_bytes) = in_bytes
        .map_or((0, 0), |Operation { progress, .. }| (progress.done.max(0), progress.total.max(0)));
    // A snapshot that is complete says how much there is to upload, and that nothing of it is. One whose
    // upload ended without a word about itself has not uploaded all of it.
    let is_of_creation = in_bytes.is_some_and(|operation| match operation.state {
        State::Completed => phase != VolumePluginPhase::Completed,
        _ => !has_ended && operation.state.is_terminal(),
    });
    if is_of_creation {
        bytes_done = 0;
    }
    // What a plugin tells last may be from shortly before the end.
    if phase == VolumePluginPhase::Completed && total_bytes > 0 {
        bytes_done = total_bytes;
    }
    let message = match failure {
        Some(reason) => reason.clone(),
        None => of
            .iter()
            .rev()
            .map(|one| &one.progress.description)
            .find(|text| !text.is_empty())
            .cloned()
            .unwrap_or_default(),
    };
    VolumePluginBackupStatus {
        phase: Some(phase),
        message,
        completion_timestamp: has_ended
            .then(|| before.completion_timestamp.clone().unwrap_or(Time(now))),
        progress: VolumePluginProgress { total_bytes, bytes_done, ..before.progress.clone() },
        ..before.clone()
    }
}

#[cfg(test)]
mod tests;
