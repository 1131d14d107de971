//! VolumePluginRestores: progress of plugins that create the volumes of a restore, visible in the cluster.
//!
//! The server writes a resource for every volume that a plugin is asked for. Where a plugin writes its own resource for
//! the same volume, that one stays, and belongs to the restore as soon as the server sees it.
//!
//! These resources are for display only: nothing is read back from them, and a failure to write one is logged and
//! delays nothing. A resource that another writer changes is left to that writer for good.

mod resources;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::volume_plugin::{VolumePluginPhase, VolumePluginProgress};
use bowline_api::volume_plugin_restore::{VolumePluginRestoreSpec, VolumePluginRestoreStatus};
use bowline_api::{Restore, VolumePluginRestore, label};
use bowline_engine::restore::volume::{
    self, ByteProgress, ProgressReportError, UnitProgress, VolumeCreation, VolumeCreationResult,
};
use bowline_engine::snapshotter::{hashed_object_name, object_name};
use bowline_plugin::VolumeId;
use bowline_store::BackupName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::controllers::adoption::{RunOwnership, has_other_writer};
use crate::error_text::status_message;
use crate::patch;
use crate::server::Context;
pub(super) use resources::end_open_resources;
use resources::{
    ended_status, has_failed, is_about_creation, is_open, latest_about_volume, list,
    phase_and_message,
};

/// Number of attempts for a change that conflicts with another writer's.
const MAX_ATTEMPTS: u32 = 3;
/// Time for which a list of resources created by plugins serves all volumes.
const LIST_CACHE_TTL: Duration = Duration::from_secs(1);

pub(super) struct VolumePluginRestoreReporter {
    api: Api<VolumePluginRestore>,
    restore: String,
    uid: String,
    created: Option<Time>,
    ownership: RunOwnership,
    backup: String,
    /// Owners by PersistentVolume.
    owners: Mutex<HashMap<String, ResourceOwner>>,
    /// Resources that belong to no restore yet, with the time of the list.
    unclaimed: tokio::sync::Mutex<Option<(Instant, Vec<VolumePluginRestore>)>>,
    /// Resources of plugins that existed when this process resumed the restore.
    earlier: Mutex<Vec<VolumePluginRestore>>,
}

/// Owner of the resource for a volume.
#[derive(Clone, Debug)]
enum ResourceOwner {
    /// The server, with the resource as last seen.
    Server(Box<VolumePluginRestore>),
    /// The plugin, under this resource name. The server manages only its labels and its owner reference.
    Plugin(String),
    /// Left alone: another writer has changed it, it is gone, or the kind does not exist.
    Unmanaged,
}

impl VolumePluginRestoreReporter {
    pub(super) fn new(context: &Context, restore: &Restore, backup: &BackupName) -> Self {
        let (name, uid) = (restore.name_any(), restore.uid().unwrap_or_default());
        let labels = vec![
            (label::RESTORE_NAME.to_owned(), label::value(&name).into_owned()),
            (label::RESTORE_UID.to_owned(), label::value(&uid).into_owned()),
        ];
        Self {
            api: context.api(),
            restore: name,
            uid,
            created: restore.creation_timestamp(),
            ownership: RunOwnership { labels, owner: restore.owner_ref(&()) },
            backup: backup.as_str().to_owned(),
            owners: Mutex::default(),
            unclaimed: tokio::sync::Mutex::default(),
            earlier: Mutex::default(),
        }
    }

    /// Loads resources that plugins wrote for an earlier process of the server. Call this before any volume is
    /// requested: later resources are of this process.
    pub(super) async fn resume(&self) {
        match self.written_by_plugins().await {
            Ok(found) => {
                *self.earlier.lock() = found;
            }
            Err(error) if patch::is_not_found(&error) => {}
            Err(error) => {
                let error = status_message(&error);
                tracing::warn!("cannot update VolumePluginRestores of earlier attempts: {error}");
            }
        }
    }

    /// Resources that plugins have written, except for those that belong to other restores.
    async fn written_by_plugins(&self) -> kube::Result<Vec<VolumePluginRestore>> {
        let selector = format!("!{}", label::MANAGED);
        let mut found = list(&self.api, ListParams::default().labels(&selector)).await?;
        found.retain(|one| one.labels().get(label::RESTORE_UID).is_none_or(|uid| *uid == self.uid));
        Ok(found)
    }

    /// Ends the resources of plugins that an earlier process of the server had asked for a volume, which is now created
    /// again: that process is gone, and so are the plugin's answers to it.
    async fn end_earlier_resources(&self, creation: &VolumeCreation) -> kube::Result<()> {
        let is_it = |found: &mut VolumePluginRestore| {
            is_about_creation(found, &self.backup, creation, self.created.as_ref())
        };
        let of_making: Vec<VolumePluginRestore> = {
            let mut earlier = self.earlier.lock();
            earlier.extract_if(.., is_it).collect()
        };
        for found in of_making {
            let Some(found) = self.ownership.adopt(&self.api, found).await? else { continue };
            if !has_failed(&found) {
                let message = "the server stopped before the plugin reported this volume; another \
                               volume is created";
                let status = ended_status(&VolumePluginPhase::Failed, Some(message));
                patch::patch_status_of(&self.api, &found, status).await?;
            }
        }
        Ok(())
    }

    fn set_owner(&self, creation: &VolumeCreation, known: ResourceOwner) {
        self.owners.lock().insert(creation.persistent_volume.clone(), known);
    }

    /// A new resource of the server.
    fn new_resource(&self, name: &str, creation: &VolumeCreation) -> VolumePluginRestore {
        let spec = VolumePluginRestoreSpec {
            snapshot_id: creation.snapshot.to_string(),
            backup: self.backup.clone(),
            plugin: creation.plugin.clone(),
            ..VolumePluginRestoreSpec::default()
        };
        let mut resource = VolumePluginRestore::new(name, spec);
        resource.labels_mut().extend(self.ownership.labels.iter().cloned());
        resource.labels_mut().insert(label::MANAGED.to_owned(), "true".to_owned());
        resource.metadata.owner_references = self.ownership.owner.clone().map(|owner| vec![owner]);
        resource.status = Some(VolumePluginRestoreStatus {
            phase: Some(VolumePluginPhase::InProgress),
            volume_id: creation.target.clone(),
            start_timestamp: Some(patch::truncate_to_second(creation.started_at)),
            ..VolumePluginRestoreStatus::default()
        });
        resource
    }

    /// True if a resource is the one that this restore has created for a volume.
    fn is_owned_by_restore(&self, found: &VolumePluginRestore, creation: &VolumeCreation) -> bool {
        let labels = found.labels();
        labels.contains_key(label::MANAGED)
            && self.ownership.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && found.spec.snapshot_id == creation.snapshot.as_str()
    }

    /// Name of the resource for a volume, and the alternative if that name is taken.
    fn resource_names(&self, creation: &VolumeCreation) -> [String; 2] {
        let volume = &creation.persistent_volume;
        let plain = format!("{}-{volume}", self.restore);
        let other = hashed_object_name(&plain, &format!("{}/{volume}", self.uid));
        [object_name(&plain), other]
    }

    /// Starts to show a volume; for the second time if its plugin has crashed.
    async fn show_begin(&self, creation: &VolumeCreation) -> kube::Result<()> {
        let of_before = match self.owners.lock().get(&creation.persistent_volume) {
            Some(ResourceOwner::Plugin(name)) => Some(name.clone()),
            Some(ResourceOwner::Server(_) | ResourceOwner::Unmanaged) | None => None,
        };
        if let Some(name) = of_before {
            let end = VolumeCreationResult::Failed("the plugin crashed; retrying".to_owned());
            self.end_plugin_resource(&name, &end).await?;
        }
        self.end_earlier_resources(creation).await?;
        self.create(creation).await
    }

    /// Creates the resource for a volume, unless an earlier process has done so.
    async fn create(&self, creation: &VolumeCreation) -> kube::Result<()> {
        for name in self.resource_names(creation) {
            let wanted = self.new_resource(&name, creation);
            match self.api.create(&patch::post_params(), &wanted).await {
                Ok(created) => {
                    self.set_owner(creation, ResourceOwner::Server(Box::new(created)));
                    return Ok(());
                }
                // The missing kind was reported once, when the server started.
                Err(error) if patch::is_not_found(&error) => {
                    self.set_owner(creation, ResourceOwner::Unmanaged);
                    return Ok(());
                }
                Err(error) if patch::is_already_exists(&error) => {}
                Err(error) => return Err(error),
            }
            let found = self.api.get_opt(&name).await?;
            if let Some(found) = found.filter(|found| self.is_owned_by_restore(found, creation)) {
                self.set_owner(creation, ResourceOwner::Server(Box::new(found)));
                let again = json!({
                    "phase": VolumePluginPhase::InProgress, "volumeID": creation.target,
                    "message": null, "completionTimestamp": null,
                });
                return self.change(creation, again).await;
            }
        }
        let volume = &creation.persistent_volume;
        tracing::warn!(
            volume,
            "no VolumePluginRestore is created for the volume: all its names are in use"
        );
        self.set_owner(creation, ResourceOwner::Unmanaged);
        Ok(())
    }

    /// Changes the status of the resource for a volume, as long as it is the server's.
    async fn change(&self, creation: &VolumeCreation, status: Value) -> kube::Result<()> {
        let mut attempts = 1;
        loop {
            let known = self.owners.lock().get(&creation.persistent_volume).cloned();
            let Some(ResourceOwner::Server(current)) = known else { return Ok(()) };
            if has_other_writer(&*current) {
                tracing::info!(
                    name = current.name_any(),
                    "another client updates this VolumePluginRestore; the server no longer does"
                );
                self.set_owner(creation, ResourceOwner::Unmanaged);
                return Ok(());
            }
            let (name, version) = (current.name_any(), current.resource_version());
            let changed =
                patch::patch_status(&self.api, &name, version.as_deref(), status.clone()).await;
            match changed {
                Ok(changed) => {
                    self.set_owner(creation, ResourceOwner::Server(Box::new(changed)));
                    return Ok(());
                }
                Err(error) if patch::is_not_found(&error) => {
                    self.set_owner(creation, ResourceOwner::Unmanaged);
                    return Ok(());
                }
                Err(error) if patch::is_conflict(&error) && attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
            let found = self.api.get_opt(&name).await?;
            let same = found.filter(|found| found.uid() == current.uid());
            self.set_owner(
                creation,
                same.map_or(ResourceOwner::Unmanaged, |found| {
                    ResourceOwner::Server(Box::new(found))
                }),
            );
        }
    }

    async fn show_end(
        &self,
        creation: &VolumeCreation,
        end: &VolumeCreationResult,
    ) -> kube::Result<()> {
        let plugins = match self.owners.lock().get(&creation.persistent_volume) {
            Some(ResourceOwner::Plugin(name)) => Some(name.clone()),
            Some(ResourceOwner::Server(_) | ResourceOwner::Unmanaged) | None => None,
        };
        if let Some(name) = plugins {
            match self.end_plugin_resource(&name, end).await? {
                PluginResourceEnd::Ended => return Ok(()),
                // The plugin has deleted it.
                PluginResourceEnd::Gone => {
                    drop(self.owners.lock().remove(&creation.persistent_volume));
                }
            }
        } else if let VolumeCreationResult::Completed(volume) = end {
            match self.plugin_resource(creation, volume).await {
                Ok(Some(own)) => {
                    let name = own.name_any();
                    self.hand_over_to_plugin(creation, own).await?;
                    return self.end_plugin_resource(&name, end).await.map(drop);
                }
                Ok(None) => {}
                // There may be two resources then.
                Err(error) => tracing::debug!(
                    "cannot search for the VolumePluginRestore of the plugin: {}",
                    status_message(&error)
                ),
            }
        }
        let is_known = self.owners.lock().contains_key(&creation.persistent_volume);
        if !is_known {
            self.create(creation).await?;
        }
        let (phase, message) = phase_and_message(end);
        let mut status = ended_status(&phase, message.as_deref());
        status["volumeID"] = creation.target.as_str().into();
        if let (VolumeCreationResult::Completed(_), Some(total)) = (end, self.total_bytes(creation))
        {
            status["progress"] = json!(VolumePluginProgress {
                total_bytes: total,
                bytes_done: total,
                ..VolumePluginProgress::default()
            });
        }
        self.change(creation, status).await
    }

    /// Ensures that a plugin's resource does not show work in progress forever: a plugin that has crashed does not
    /// write its end. An end that the plugin has written stays.
    async fn end_plugin_resource(
        &self,
        name: &str,
        end: &VolumeCreationResult,
    ) -> kube::Result<PluginResourceEnd> {
        let Some(found) = self.api.get_opt(name).await? else { return Ok(PluginResourceEnd::Gone) };
        let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
        let has_ended = phase.is_some_and(VolumePluginPhase::is_terminal);
        // After a success the plugin may have used its own word for the phase.
        if is_open(phase) || (!has_ended && !matches!(end, VolumeCreationResult::Completed(_))) {
            let (phase, message) = phase_and_message(end);
            let status = ended_status(&phase, message.as_deref());
            patch::patch_status_of(&self.api, &found, status).await?;
        }
        Ok(PluginResourceEnd::Ended)
    }

    /// Checks if a plugin writes a resource of its own for a volume that it is creating.
    async fn find_plugin_resource(&self, creation: &VolumeCreation) -> kube::Result<()> {
        if !matches!(
            self.owners.lock().get(&creation.persistent_volume),
            Some(ResourceOwner::Server(_))
        ) {
            return Ok(());
        }
        let mut unclaimed = self.unclaimed.lock().await;
        if unclaimed.as_ref().is_none_or(|(listed, _)| listed.elapsed() >= LIST_CACHE_TTL) {
            let selector = format!("!{},!{}", label::MANAGED, label::RESTORE_UID);
            // Served from the API server's cache: anything missing now is there the next time.
            let params = ListParams::default().labels(&selector).match_any();
            let found = match self.api.list(&params).await {
                Ok(found) => found.items,
                Err(error) if patch::is_not_found(&error) => Vec::new(),
                Err(error) => return Err(error),
            };
            *unclaimed = Some((Instant::now(), found));
        }
        let Some((_, found)) = unclaimed.as_mut() else { return Ok(()) };
        let is_it = |found: &VolumePluginRestore| {
            is_about_creation(found, &self.backup, creation, self.created.as_ref())
        };
        let Some(index) = found.iter().position(is_it) else { return Ok(()) };
        // The resource is for this volume, so for no other.
        let own = found.swap_remove(index);
        drop(unclaimed);
        self.hand_over_to_plugin(creation, own).await
    }

    /// Number of bytes to move, if reported.
    fn total_bytes(&self, creation: &VolumeCreation) -> Option<i64> {
        match self.owners.lock().get(&creation.persistent_volume) {
            Some(ResourceOwner::Server(current)) => {
                let total = current.status.as_ref()?.progress.total_bytes;
                Some(total).filter(|total| *total > 0)
            }
            Some(ResourceOwner::Plugin(_) | ResourceOwner::Unmanaged) | None => None,
        }
    }

    /// The resource that a plugin has written for a volume that it has created.
    async fn plugin_resource(
        &self,
        creation: &VolumeCreation,
        volume: &VolumeId,
    ) -> kube::Result<Option<VolumePluginRestore>> {
        let found = self.written_by_plugins().await?;
        Ok(latest_about_volume(found, &self.backup, creation, volume))
    }

    /// Leaves the resource for a volume to its plugin, and removes the server's.
    async fn hand_over_to_plugin(
        &self,
        creation: &VolumeCreation,
        own: VolumePluginRestore,
    ) -> kube::Result<()> {
        self.set_owner(creation, ResourceOwner::Plugin(own.name_any()));
        self.ownership.adopt(&self.api, own).await?;
        // By name, because the response to its creation may have been lost.
        for name in self.resource_names(creation) {
            let found = self.api.get_opt(&name).await?;
            if let Some(own_resource) =
                found.filter(|found| self.is_owned_by_restore(found, creation))
            {
                patch::delete_by_uid(&self.api, &own_resource).await?;
            }
        }
        Ok(())
    }
}

/// Result of ending a plugin's resource.
enum PluginResourceEnd {
    Ended,
    /// The resource does not exist.
    Gone,
}

#[async_trait]
impl volume::VolumeProgressReporter for VolumePluginRestoreReporter {
    async fn creation_started(&self, creation: &VolumeCreation) -> Result<(), ProgressReportError> {
        self.show_begin(creation).await.map_err(|error| report_error(&error))
    }

    async fn report_bytes(
        &self,
        creation: &VolumeCreation,
        bytes: ByteProgress,
    ) -> Result<(), ProgressReportError> {
        let progress = VolumePluginProgress {
            total_bytes: bytes.total,
            bytes_done: bytes.done,
            ..VolumePluginProgress::default()
        };
        let changed = self.change(creation, json!({ "progress": progress })).await;
        changed.map_err(|error| report_error(&error))
    }

    async fn report_units(
        &self,
        creation: &VolumeCreation,
        units: &UnitProgress,
    ) -> Result<(), ProgressReportError> {
        let progress = VolumePluginProgress {
            units: units.name.clone(),
            units_done: units.done,
            total_units: units.total,
            ..VolumePluginProgress::default()
        };
        let changed = self.change(creation, json!({ "progress": progress })).await;
        changed.map_err(|error| report_error(&error))
    }

    async fn report_running(&self, creation: &VolumeCreation) -> Result<(), ProgressReportError> {
        self.find_plugin_resource(creation).await.map_err(|error| report_error(&error))
    }

    async fn creation_ended(
        &self,
        creation: &VolumeCreation,
        end: &VolumeCreationResult,
    ) -> Result<(), ProgressReportError> {
        self.show_end(creation, end).await.map_err(|error| report_error(&error))
    }
}

fn report_error(error: &kube::Error) -> ProgressReportError {
    ProgressReportError(status_message(error))
}
