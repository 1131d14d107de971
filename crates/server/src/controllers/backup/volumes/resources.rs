//! The VolumePluginBackups of a backup.
//!
//! A resource that a plugin has created is adopted: it gets the labels of the backup and the backup as its owner, and
//! is otherwise left to the plugin. For every other snapshot the server creates a resource as soon as the snapshot has
//! an id. This happens concurrently with the run, so that it never delays anything an application waits for.

mod adoption;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{
    Backup, VolumePluginBackup, VolumePluginBackupSpec, VolumePluginBackupStatus, label,
};
use bowline_engine::backup::{SnapshotProgress, csi};
use bowline_engine::csi::plugin_name;
use bowline_engine::operation::Operation;
use bowline_engine::snapshotter::{hashed_object_name, object_name};
use bowline_store::file::BackupVolumeInfo;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use adoption::{AdoptedResources, is_owned_by_plugin};
use status::resource_status;

use super::report::{PluginReport, ResourceEnd, is_stale, reported_progress, resource_end};
use crate::controllers::adoption::{RunOwnership, has_other_writer};
use crate::error_text::status_message;
use crate::patch;
use crate::server::Context;

const CONCURRENT_WRITES: usize = 16;
/// Interval between checks for new snapshots while items are collected.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
pub(in crate::controllers::backup) struct SnapshotResources<'a> {
    context: &'a Context,
    backup: &'a Backup,
    ownership: RunOwnership,
    owners: Mutex<BTreeMap<SnapshotKey, ResourceOwner>>,
    /// Snapshots of CSI drivers, by operation.
    csi_snapshots: Mutex<HashMap<String, ShownSnapshot>>,
    adopted: Mutex<AdoptedResources>,
    /// Resources of plugins that were reported as stale.
    stale: Mutex<BTreeSet<String>>,
}

/// Snapshot of a CSI driver, as shown in its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShownSnapshot {
    key: SnapshotKey,
    plugin: String,
}

/// Volume and snapshot id.
type SnapshotKey = (String, String);

/// Owner of the resource of a snapshot.
#[derive(Clone, Debug)]
enum ResourceOwner {
    /// The server, with the resource as last written.
    Server(Box<VolumePluginBackup>),
    /// The plugin, under this resource name. The server manages only its labels and its owner reference.
    Plugin(String),
    /// Left alone: the resource was deleted by someone else, its names are taken, or the kind does not exist.
    Unmanaged,
}

/// Handling of resources that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingResource {
    Create,
    Ignore,
}

impl<'a> SnapshotResources<'a> {
    pub(in crate::controllers::backup) fn new(context: &'a Context, backup: &'a Backup) -> Self {
        let labels = [
            (label::BACKUP_NAME, label::value(&backup.name_any()).into_owned()),
            (label::BACKUP_UID, backup.uid().unwrap_or_default()),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
        Self {
            context,
            backup,
            ownership: RunOwnership { labels, owner: backup.owner_ref(&()) },
            owners: Mutex::default(),
            csi_snapshots: Mutex::default(),
            adopted: Mutex::new(AdoptedResources::new()),
            stale: Mutex::default(),
        }
    }

    /// Learns the snapshots of CSI drivers from the volume infos. CSI snapshots are not shown before that.
    pub(in crate::controllers::backup) fn learn_csi_snapshots(&self, infos: &[BackupVolumeInfo]) {
        let mut by_csi = self.csi_snapshots.lock();
        for info in infos {
            let Some(csi) = &info.csi_snapshot_info else { continue };
            // A snapshot that was not taken has nothing to show; one without a volume has no place.
            if !csi.operation_id.is_empty() && !csi.snapshot_handle.is_empty() {
                let key = (info.pv_name.clone(), csi.snapshot_handle.clone());
                let plugin = plugin_name(&csi.driver);
                by_csi.insert(csi.operation_id.clone(), ShownSnapshot { key, plugin });
            }
        }
    }

    /// The CSI snapshot of an operation, or else the volume, snapshot and plugin that the operation names.
    fn shown_snapshot(&self, operation: &Operation) -> Option<ShownSnapshot> {
        if csi::is_csi_operation(operation) {
            let by_csi = self.csi_snapshots.lock();
            return by_csi.get(operation.id.as_str()).cloned();
        }
        let plugin = operation.plugin.to_string();
        operation
            .kind
            .is_of_volume()
            .then(|| ShownSnapshot { key: snapshot_key(operation), plugin })
    }

    /// Operations on each snapshot, in their order.
    fn operations_by_snapshot<'b>(
        &self,
        operations: &'b [Operation],
    ) -> BTreeMap<SnapshotKey, Vec<&'b Operation>> {
        let mut snapshots: BTreeMap<SnapshotKey, Vec<&'b Operation>> = BTreeMap::new();
        for operation in operations {
            if let Some(ShownSnapshot { key, .. }) = self.shown_snapshot(operation) {
                snapshots.entry(key).or_default().push(operation);
            }
        }
        snapshots
    }

    fn api(&self) -> Api<VolumePluginBackup> {
        self.context.api()
    }

    /// Shows the snapshots of a backup whose items are being collected, for as long as the future is polled.
    pub(in crate::controllers::backup) async fn publish(&self, snapshots: &SnapshotProgress) {
        let mut ticks = interval(PUBLISH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A plugin may have created a resource for its first snapshot already.
            if snapshots.requested() > 0 {
                self.adopt(snapshots.requested()).await;
                self.show_all(&snapshots.operations(), MissingResource::Create).await;
            }
        }
    }

    /// Shows the progress of snapshots. A failure to do so is only logged.
    pub(in crate::controllers::backup) async fn show(&self, operations: &[Operation]) {
        let by_plugins = operations.iter().filter(|one| one.kind.is_of_volume()).count();
        if by_plugins > 0 {
            self.adopt(by_plugins).await;
        }
        self.show_all(operations, MissingResource::Create).await;
    }

    /// Like [`Self::show`] for a backup that ends early: updates existing resources and creates none.
    pub(in crate::controllers::backup) async fn update(&self, operations: &[Operation]) {
        self.show_all(operations, MissingResource::Ignore).await;
    }

    async fn show_all(&self, operations: &[Operation], missing: MissingResource) {
        let mut each = Vec::new();
        for (key, snapshot_operations) in self.operations_by_snapshot(operations) {
            each.push(self.show_or_log(key, snapshot_operations, missing).boxed());
        }
        futures::stream::iter(each).buffer_unordered(CONCURRENT_WRITES).collect::<()>().await;
    }

    async fn show_or_log(
        &self,
        key: SnapshotKey,
        operations: Vec<&Operation>,
        missing: MissingResource,
    ) {
        if let Err(error) = self.show_one(&key, &operations, missing).await {
            let (volume, snapshot) = &key;
            // The kind is not installed, or the server may not write it: a retry will not help.
            if patch::is_not_found(&error) || patch::is_permanent(&error) {
                self.owners.lock().insert(key.clone(), ResourceOwner::Unmanaged);
            }
            tracing::warn!(
                volume,
                snapshot,
                "the VolumePluginBackup of the snapshot cannot be written: {}",
                status_message(&error)
            );
        }
    }

    async fn show_one(
        &self,
        key: &SnapshotKey,
        operations: &[&Operation],
        missing: MissingResource,
    ) -> kube::Result<()> {
        let Some(first) = operations.first() else { return Ok(()) };
        let known = self.owners.lock().get(key).cloned();
        let known = match known {
            Some(known) => known,
            None => match self.find_resource(key).await? {
                FoundResource::Exists(known) => known,
                FoundResource::Absent(name) if missing == MissingResource::Create => {
                    self.create(name, key, first).await?
                }
                FoundResource::Absent(_) => return Ok(()),
            },
        };
        let next = match &known {
            ResourceOwner::Plugin(_) | ResourceOwner::Unmanaged => known,
            ResourceOwner::Server(resource) => {
                let before = resource.status.clone().unwrap_or_default();
                let status = resource_status(&before, operations, Timestamp::now());
                if status == before { known } else { self.write(resource, &status).await? }
            }
        };
        self.owners.lock().insert(key.clone(), next);
        Ok(())
    }

    /// Writes the status of a resource of the server, unless another writer has taken it over.
    async fn write(
        &self,
        resource: &VolumePluginBackup,
        status: &VolumePluginBackupStatus,
    ) -> kube::Result<ResourceOwner> {
        let mut change = json!(status);
        // A merge patch keeps the fields that it does not name.
        if status.progress.units.is_empty() {
            for field in ["units", "unitsDone", "totalUnits"] {
                change["progress"][field] = serde_json::Value::Null;
            }
        }
        let written = patch::patch_status_of(&self.api(), resource, change).await?;
        Ok(match written {
            Some(written) if has_other_writer(&written) => {
                tracing::info!(
                    name = written.name_any(),
                    "the plugin updates this VolumePluginBackup from now on"
                );
                ResourceOwner::Plugin(written.name_any())
            }
            Some(written) => ResourceOwner::Server(Box::new(written)),
            // Deleted by someone else, so it is not created again.
            None => ResourceOwner::Unmanaged,
        })
    }

    /// Looks for the resource of a snapshot: by the name derived from the snapshot, and among those that plugins have
    /// created under other names.
    async fn find_resource(&self, (volume, snapshot): &SnapshotKey) -> kube::Result<FoundResource> {
        let api = self.api();
        let uid = self.backup.uid().unwrap_or_default();
        let other = hashed_object_name(snapshot, &format!("{uid}/{volume}/{snapshot}"));
        let mut free = None;
        for name in [object_name(snapshot), other] {
            match api.get_opt(&name).await? {
                None => {
                    free = Some(name);
                    break;
                }
                Some(found) if self.is_about_snapshot(&found, volume, snapshot) => {
                    return self.adopt_found(found).await.map(FoundResource::Exists);
                }
                // The resource is for another snapshot.
                Some(_) => {}
            }
        }
        let adopted = {
            let adopted = self.adopted.lock();
            let mut unmatched = adopted.unmatched.values();
            unmatched.find(|one| self.is_about_snapshot(one, volume, snapshot)).cloned()
        };
        if let Some(found) = adopted {
            return self.adopt_found(found).await.map(FoundResource::Exists);
        }
        let Some(name) = free else {
            tracing::warn!(volume, snapshot, "other VolumePluginBackups of that name exist");
            return Ok(FoundResource::Exists(ResourceOwner::Unmanaged));
        };
        Ok(FoundResource::Absent(name))
    }

    /// Owner of a resource found for a snapshot. A plugin's resource belongs to the backup from now on.
    async fn adopt_found(&self, found: VolumePluginBackup) -> kube::Result<ResourceOwner> {
        if is_owned_by_plugin(&found) {
            let name = found.name_any();
            self.ownership.adopt(&self.api(), found).await?;
            self.adopted.lock().unmatched.remove(&name);
            return Ok(ResourceOwner::Plugin(name));
        }
        Ok(ResourceOwner::Server(Box::new(found)))
    }

    async fn create(
        &self,
        name: String,
        (volume, snapshot): &SnapshotKey,
        operation: &Operation,
    ) -> kube::Result<ResourceOwner> {
        let resource = self.new_resource(name, volume, snapshot, operation);
        let created = self.api().create(&patch::post_params(), &resource).await?;
        Ok(ResourceOwner::Server(Box::new(created)))
    }

    fn new_resource(
        &self,
        name: String,
        volume: &str,
        snapshot: &str,
        operation: &Operation,
    ) -> VolumePluginBackup {
        let mut labels: BTreeMap<String, String> = self.ownership.labels.iter().cloned().collect();
        labels.insert(label::MANAGED.to_owned(), "true".to_owned());
        VolumePluginBackup {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(labels),
                owner_references: self.ownership.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: VolumePluginBackupSpec {
                volume: volume.to_owned(),
                backup: self.backup.name_any(),
                plugin: self
                    .shown_snapshot(operation)
                    .map(|shown| shown.plugin)
                    .unwrap_or_default(),
                ..VolumePluginBackupSpec::default()
            },
            status: Some(VolumePluginBackupStatus {
                phase: Some(VolumePluginPhase::New),
                snapshot_id: snapshot.to_owned(),
                start_timestamp: Some(Time(operation.created)),
                ..VolumePluginBackupStatus::default()
            }),
        }
    }

    /// Report of a plugin on a snapshot, from a resource of its own.
    pub(super) async fn plugin_report(&self, operation: &Operation) -> PluginReport {
        let (volume, snapshot) = snapshot_key(operation);
        let known = match self.owners.lock().get(&(volume.clone(), snapshot.clone())) {
            Some(ResourceOwner::Server(_) | ResourceOwner::Unmanaged) => {
                return PluginReport::Absent;
            }
            Some(ResourceOwner::Plugin(name)) => Some(name.clone()),
            None => None,
        };
        let is_known = known.is_some();
        let name = known.unwrap_or_else(|| object_name(&snapshot));
        match self.api().get_opt(&name).await {
            Ok(Some(found))
                if is_owned_by_plugin(&found)
                    && self.is_about_snapshot(&found, &volume, &snapshot) =>
            {
                let now = Timestamp::now();
                let progress = reported_progress(&found, now);
                self.log_stale(&found, now);
                self.owners.lock().insert((volume, snapshot), ResourceOwner::Plugin(name));
                // A resource that was deleted and created again has lost its labels and owner.
                if let Err(error) = self.ownership.adopt(&self.api(), found).await {
                    tracing::debug!(
                        "the labels of the VolumePluginBackup cannot be set: {}",
                        status_message(&error)
                    );
                }
                PluginReport::Reported(progress)
            }
            Ok(_) if is_known => {
                PluginReport::Unreadable(format!("VolumePluginBackup {name} no longer exists"))
            }
            Ok(_) => PluginReport::Absent,
            // The server will never be able to read one.
            Err(error) if patch::is_permanent(&error) => PluginReport::Absent,
            Err(error) => {
                let error = status_message(&error);
                PluginReport::Unreadable(format!(
                    "VolumePluginBackup {name} cannot be read: {error}"
                ))
            }
        }
    }

    /// Logs once that a plugin has stopped writing a resource, and once that it has resumed.
    fn log_stale(&self, found: &VolumePluginBackup, now: Timestamp) {
        let name = found.name_any();
        let mut silent = self.stale.lock();
        if !is_stale(found, now) {
            silent.remove(&name);
        } else if silent.insert(name.clone()) {
            tracing::warn!(
                name,
                "the plugin has not updated this VolumePluginBackup for ten minutes; waiting until \
                 the operation times out"
            );
        }
    }

    /// Ends resources that still show work in progress when all operations have ended.
    pub(in crate::controllers::backup) async fn end_resources(&self, operations: &[Operation]) {
        let found = match self.list_resources().await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("VolumePluginBackups cannot be listed: {}", status_message(&error));
                return;
            }
        };
        let snapshots = self.operations_by_snapshot(operations);
        for resource in found {
            let of = snapshots.iter().find(|((volume, id), _)| {
                // A plugin may write the id in another form. The name still identifies the snapshot.
                let is_named = resource.spec.volume == *volume;
                self.is_about_snapshot(&resource, volume, id)
                    || (is_named && resource.name_any() == object_name(id))
            });
            let of = of.map(|(_, of)| of.as_slice()).unwrap_or_default();
            let ended = match resource_end(&resource, !is_owned_by_plugin(&resource), of) {
                ResourceEnd::Keep => Ok(()),
                ResourceEnd::Remove => patch::delete_by_uid(&self.api(), &resource).await,
                ResourceEnd::End(phase, message) => {
                    let message = Some(message).filter(|message| !message.is_empty());
                    let status = json!({
                        "phase": phase, "message": message,
                        "completionTimestamp": patch::truncate_to_second(Timestamp::now()),
                    });
                    patch::patch_status_of(&self.api(), &resource, status).await.map(drop)
                }
            };
            if let Err(error) = ended {
                let name = resource.name_any();
                tracing::warn!(
                    name,
                    "the final phase of the VolumePluginBackup cannot be written: {}",
                    status_message(&error)
                );
            }
        }
    }

    /// Resources of the backup as they are stored with it, whether the server or a plugin created them.
    pub(in crate::controllers::backup) async fn stored_resources(
        &self,
    ) -> kube::Result<Vec<VolumePluginBackup>> {
        let stored = |one: VolumePluginBackup| VolumePluginBackup {
            metadata: ObjectMeta {
                name: one.metadata.name,
                labels: one.metadata.labels,
                annotations: one.metadata.annotations,
                ..ObjectMeta::default()
            },
            ..one
        };
        Ok(self.list_resources().await?.into_iter().map(stored).collect())
    }

    async fn list_resources(&self) -> kube::Result<Vec<VolumePluginBackup>> {
        let listed = match self.api().list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            // Velero's CRDs do not include this kind.
            Err(error) if patch::is_not_found(&error) || patch::is_permanent(&error) => {
                tracing::warn!(
                    "VolumePluginBackups cannot be stored with the backup: {}",
                    status_message(&error)
                );
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        Ok(listed.into_iter().filter(|one| self.is_of_backup(one)).collect())
    }
}

/// Result of looking for the resource of a snapshot.
enum FoundResource {
    Exists(ResourceOwner),
    /// Not found; it would have this name.
    Absent(String),
}

fn snapshot_key(operation: &Operation) -> SnapshotKey {
    (operation.item.name.clone(), operation.id.to_string())
}

#[cfg(test)]
mod tests;
