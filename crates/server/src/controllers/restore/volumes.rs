//! VolumePluginRestores: how plugins make the volumes of a restore, where everybody can see it.
//!
//! The server writes one for every volume that a plugin is asked for. Where a plugin writes its own for
//! the same volume, that one stays, and belongs to the restore from the moment on at which it is seen.
//!
//! They only show what goes on: nothing is read back from them, and what cannot be written is told and
//! holds up nothing. One that somebody else writes to is left to them for good.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase, VolumePluginProgress};
use bowline_api::volume_plugin_restore::{VolumePluginRestoreSpec, VolumePluginRestoreStatus};
use bowline_api::{Restore, VolumePluginRestore, label};
use bowline_engine::restore::volume::{self, Bytes, End, Making, Units};
use bowline_engine::snapshotter::{hashed_object_name, object_name};
use bowline_plugin::{Name, VolumeId};
use bowline_store::BackupName;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::controllers::adoption::Belonging;
use crate::patch;
use crate::server::Context;
use crate::story::{one_line, shorten};

/// How often a change is tried that somebody else's change comes before.
const TRIES: u32 = 3;
/// How many are asked for at once, and how often at most.
const PAGE: u32 = 250;
const MOST_PAGES: u32 = 40;

/// How long a list of resources that plugins have made serves all volumes.
const LIST_AGE: Duration = Duration::from_secs(1);

/// Shows how plugins make the volumes of a restore.
pub(super) struct Witness {
    api: Api<VolumePluginRestore>,
    restore: String,
    uid: String,
    created: Option<Time>,
    belonging: Belonging,
    backup: String,
    /// By PersistentVolume.
    known: Mutex<HashMap<String, Known>>,
    /// Resources that belong to no restore yet, and when they were listed.
    unclaimed: tokio::sync::Mutex<Option<(Instant, Vec<VolumePluginRestore>)>>,
    /// Resources of plugins that were there when this process resumed the restore.
    earlier: Mutex<Vec<VolumePluginRestore>>,
}

/// What is known of the resource for a volume.
#[derive(Clone, Debug)]
enum Known {
    /// It is ours, and was last seen like this.
    Ours(Box<VolumePluginRestore>),
    /// It is its plugin's, under this name. Only its labels and its owner are ours.
    Plugins(String),
    /// It is left alone: somebody else writes it, or it is gone, or there is no such kind.
    HandsOff,
}

impl Witness {
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
            belonging: Belonging { labels, owner: restore.owner_ref(&()) },
            backup: backup.as_str().to_owned(),
            known: Mutex::default(),
            unclaimed: tokio::sync::Mutex::default(),
            earlier: Mutex::default(),
        }
    }

    /// Learns what plugins wrote for an earlier process of the server. Call it before any volume is asked for: what
    /// is written later is of this process.
    pub(super) async fn resume(&self) {
        match self.written_by_plugins().await {
            Ok(found) => {
                *self.earlier.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            Err(error) if patch::is_missing(&error) => {}
            Err(error) => {
                let error = one_line(&error);
                tracing::warn!(
                    "VolumePluginRestores of before may look as if they went on: {error}"
                );
            }
        }
    }

    async fn written_by_plugins(&self) -> kube::Result<Vec<VolumePluginRestore>> {
        let selector = format!("!{}", label::MANAGED);
        let mut found = list(&self.api, ListParams::default().labels(&selector)).await?;
        found.retain(|one| one.labels().get(label::RESTORE_UID).is_none_or(|uid| *uid == self.uid));
        Ok(found)
    }

    /// Ends the resources of plugins that an earlier process of the server had asked for a volume, which is made
    /// again: that process is gone, and so is what it was told.
    async fn end_earlier(&self, making: &Making) -> kube::Result<()> {
        let is_it = |found: &mut VolumePluginRestore| {
            is_of_making(found, &self.backup, making, self.created.as_ref())
        };
        let of_making: Vec<VolumePluginRestore> = {
            let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            earlier.extract_if(.., is_it).collect()
        };
        for found in of_making {
            let Some(found) = self.belonging.adopt(&self.api, found).await? else { continue };
            if !has_failed(&found) {
                let message =
                    "the server ended before it heard of this volume, and has another made";
                let status = ended(&VolumePluginPhase::Failed, Some(message));
                patch::patch_status_of(&self.api, &found, status).await?;
            }
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn know(&self, making: &Making, known: Known) {
        self.known().insert(making.persistent_volume.clone(), known);
    }

    /// A resource of ours, as it is created.
    fn resource(&self, name: &str, making: &Making) -> VolumePluginRestore {
        let spec = VolumePluginRestoreSpec {
            snapshot_id: making.snapshot.to_string(),
            backup: self.backup.clone(),
            plugin: making.plugin.clone(),
            ..VolumePluginRestoreSpec::default()
        };
        let mut resource = VolumePluginRestore::new(name, spec);
        resource.labels_mut().extend(self.belonging.labels.iter().cloned());
        resource.labels_mut().insert(label::MANAGED.to_owned(), "true".to_owned());
        resource.metadata.owner_references = self.belonging.owner.clone().map(|owner| vec![owner]);
        resource.status = Some(VolumePluginRestoreStatus {
            phase: Some(VolumePluginPhase::InProgress),
            volume_id: making.target.clone(),
            start_timestamp: Some(patch::to_the_second(making.began)),
            ..VolumePluginRestoreStatus::default()
        });
        resource
    }

    /// Whether a resource is the one that this restore has made for a volume.
    fn is_ours(&self, found: &VolumePluginRestore, making: &Making) -> bool {
        let labels = found.labels();
        labels.contains_key(label::MANAGED)
            && self.belonging.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && found.spec.snapshot_id == making.snapshot.as_str()
    }

    /// What the resource for a volume is called, and what if another is called so.
    fn names(&self, making: &Making) -> [String; 2] {
        let volume = &making.persistent_volume;
        let plain = format!("{}-{volume}", self.restore);
        let other = hashed_object_name(&plain, &format!("{}/{volume}", self.uid));
        [object_name(&plain), other]
    }

    /// Begins to show a volume, maybe for the second time, after its plugin has died.
    async fn begin(&self, making: &Making) -> kube::Result<()> {
        let of_before = match self.known().get(&making.persistent_volume) {
            Some(Known::Plugins(name)) => Some(name.clone()),
            Some(Known::Ours(_) | Known::HandsOff) | None => None,
        };
        if let Some(name) = of_before {
            let end = End::Failed("the plugin has died, and is asked again".to_owned());
            self.end_of_plugin(&name, &end).await?;
        }
        self.end_earlier(making).await?;
        self.create(making).await
    }

    /// Creates the resource for a volume. An earlier process may have done so.
    async fn create(&self, making: &Making) -> kube::Result<()> {
        for name in self.names(making) {
            let wanted = self.resource(&name, making);
            match self.api.create(&patch::post_params(), &wanted).await {
                Ok(created) => {
                    self.know(making, Known::Ours(Box::new(created)));
                    return Ok(());
                }
                // What was told once, when the server started.
                Err(error) if patch::is_missing(&error) => {
                    self.know(making, Known::HandsOff);
                    return Ok(());
                }
                Err(error) if patch::is_taken(&error) => {}
                Err(error) => return Err(error),
            }
            let found = self.api.get_opt(&name).await?;
            if let Some(found) = found.filter(|found| self.is_ours(found, making)) {
                self.know(making, Known::Ours(Box::new(found)));
                let again = json!({
                    "phase": VolumePluginPhase::InProgress, "volumeID": making.target,
                    "message": null, "completionTimestamp": null,
                });
                return self.change(making, again).await;
            }
        }
        let volume = &making.persistent_volume;
        tracing::warn!(volume, "its VolumePluginRestore is not made: its names are taken");
        self.know(making, Known::HandsOff);
        Ok(())
    }

    /// Changes the status of the resource for a volume, as long as it is ours.
    async fn change(&self, making: &Making, status: Value) -> kube::Result<()> {
        let mut tries = 1;
        loop {
            let known = self.known().get(&making.persistent_volume).cloned();
            let Some(Known::Ours(current)) = known else { return Ok(()) };
            if is_written_by_others(&current) {
                tracing::info!(name = current.name_any(), "somebody else writes it now");
                self.know(making, Known::HandsOff);
                return Ok(());
            }
            let (name, version) = (current.name_any(), current.resource_version());
            let changed =
                patch::patch_status(&self.api, &name, version.as_deref(), status.clone()).await;
            match changed {
                Ok(changed) => {
                    self.know(making, Known::Ours(Box::new(changed)));
                    return Ok(());
                }
                Err(error) if patch::is_missing(&error) => {
                    self.know(making, Known::HandsOff);
                    return Ok(());
                }
                Err(error) if patch::is_conflict(&error) && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
            let found = self.api.get_opt(&name).await?;
            let same = found.filter(|found| found.uid() == current.uid());
            self.know(making, same.map_or(Known::HandsOff, |found| Known::Ours(Box::new(found))));
        }
    }

    async fn end(&self, making: &Making, end: &End) -> kube::Result<()> {
        let plugins = match self.known().get(&making.persistent_volume) {
            Some(Known::Plugins(name)) => Some(name.clone()),
            Some(Known::Ours(_) | Known::HandsOff) | None => None,
        };
        if let Some(name) = plugins {
            match self.end_of_plugin(&name, end).await? {
                Ended::Yes => return Ok(()),
                // The plugin has deleted it.
                Ended::Gone => drop(self.known().remove(&making.persistent_volume)),
            }
        } else if let End::Completed(volume) = end {
            match self.of_plugin(making, volume).await {
                Ok(Some(own)) => {
                    let name = own.name_any();
                    self.leave_to(making, own).await?;
                    return self.end_of_plugin(&name, end).await.map(drop);
                }
                Ok(None) => {}
                // Then there may be two.
                Err(error) => tracing::debug!("cannot look for it: {}", one_line(&error)),
            }
        }
        let is_known = self.known().contains_key(&making.persistent_volume);
        if !is_known {
            self.create(making).await?;
        }
        let (phase, message) = phase_of(end);
        let mut status = ended(&phase, message.as_deref());
        status["volumeID"] = making.target.as_str().into();
        if let (End::Completed(_), Some(total)) = (end, self.total(making)) {
            status["progress"] = json!(VolumePluginProgress {
                total_bytes: total,
                bytes_done: total,
                ..VolumePluginProgress::default()
            });
        }
        self.change(making, status).await
    }

    /// Sees to it that a plugin's resource does not say for ever that it goes on: a plugin that has died does not
    /// write its end. What the plugin has said of the end itself stays.
    async fn end_of_plugin(&self, name: &str, end: &End) -> kube::Result<Ended> {
        let Some(found) = self.api.get_opt(name).await? else { return Ok(Ended::Gone) };
        let said = found.status.as_ref().and_then(|status| status.phase.as_ref());
        let has_said = said.is_some_and(VolumePluginPhase::is_terminal);
        // After a success it may have said so in its own words.
        if is_open(said) || (!has_said && !matches!(end, End::Completed(_))) {
            let (phase, message) = phase_of(end);
            let status = ended(&phase, message.as_deref());
            patch::patch_status_of(&self.api, &found, status).await?;
        }
        Ok(Ended::Yes)
    }

    /// Looks whether a plugin writes a resource of its own for a volume that it is making.
    async fn look_for_plugins(&self, making: &Making) -> kube::Result<()> {
        if !matches!(self.known().get(&making.persistent_volume), Some(Known::Ours(_))) {
            return Ok(());
        }
        let mut unclaimed = self.unclaimed.lock().await;
        if unclaimed.as_ref().is_none_or(|(listed, _)| listed.elapsed() >= LIST_AGE) {
            let selector = format!("!{},!{}", label::MANAGED, label::RESTORE_UID);
            // From the API server's memory: what it misses now is there the next time.
            let params = ListParams::default().labels(&selector).match_any();
            let found = match self.api.list(&params).await {
                Ok(found) => found.items,
                Err(error) if patch::is_missing(&error) => Vec::new(),
                Err(error) => return Err(error),
            };
            *unclaimed = Some((Instant::now(), found));
        }
        let Some((_, found)) = unclaimed.as_mut() else { return Ok(()) };
        let is_it = |found: &VolumePluginRestore| {
            is_of_making(found, &self.backup, making, self.created.as_ref())
        };
        let Some(place) = found.iter().position(is_it) else { return Ok(()) };
        // It is of this volume, so of no other.
        let own = found.swap_remove(place);
        drop(unclaimed);
        self.leave_to(making, own).await
    }

    /// How many bytes there were to move, if that was told.
    fn total(&self, making: &Making) -> Option<i64> {
        match self.known().get(&making.persistent_volume) {
            Some(Known::Ours(current)) => {
                let total = current.status.as_ref()?.progress.total_bytes;
                Some(total).filter(|total| *total > 0)
            }
            Some(Known::Plugins(_) | Known::HandsOff) | None => None,
        }
    }

    /// The resource that a plugin has written itself for a volume that it has made.
    async fn of_plugin(
        &self,
        making: &Making,
        volume: &VolumeId,
    ) -> kube::Result<Option<VolumePluginRestore>> {
        let params = ListParams::default().labels(&format!("!{}", label::MANAGED));
        let found = list(&self.api, params).await?;
        Ok(found.into_iter().find(|found| is_about(found, &self.backup, making, volume)))
    }

    /// Leaves it to a plugin to show how a volume was made.
    async fn leave_to(&self, making: &Making, own: VolumePluginRestore) -> kube::Result<()> {
        self.know(making, Known::Plugins(own.name_any()));
        self.belonging.adopt(&self.api, own).await?;
        // By name, since an answer to its creation may have been lost.
        for name in self.names(making) {
            let found = self.api.get_opt(&name).await?;
            if let Some(ours) = found.filter(|found| self.is_ours(found, making)) {
                patch::remove(&self.api, &ours).await?;
            }
        }
        Ok(())
    }
}

/// Whether a plugin's resource has its last word.
enum Ended {
    Yes,
    /// It is not there.
    Gone,
}

#[async_trait]
impl volume::Witness for Witness {
    async fn began(&self, making: &Making) -> Result<(), String> {
        self.begin(making).await.map_err(|error| one_line(&error))
    }

    async fn progressed(&self, making: &Making, bytes: Bytes) -> Result<(), String> {
        let progress = VolumePluginProgress {
            total_bytes: bytes.total,
            bytes_done: bytes.done,
            ..VolumePluginProgress::default()
        };
        let changed = self.change(making, json!({ "progress": progress })).await;
        changed.map_err(|error| one_line(&error))
    }

    async fn counted(&self, making: &Making, units: &Units) -> Result<(), String> {
        let progress = VolumePluginProgress {
            units: units.name.clone(),
            units_done: units.done,
            total_units: units.total,
            ..VolumePluginProgress::default()
        };
        let changed = self.change(making, json!({ "progress": progress })).await;
        changed.map_err(|error| one_line(&error))
    }

    async fn goes_on(&self, making: &Making) -> Result<(), String> {
        self.look_for_plugins(making).await.map_err(|error| one_line(&error))
    }

    async fn ended(&self, making: &Making, end: &End) -> Result<(), String> {
        self.end(making, end).await.map_err(|error| one_line(&error))
    }
}

/// Ends the resources of a restore that has ended, where that could not be shown before: a server was
/// killed, and the restore is not taken up again.
pub(super) async fn close(context: &Context, restore: &Restore) {
    if let Err(error) = close_open(context, restore).await
        && !patch::is_missing(&error)
    {
        tracing::warn!("VolumePluginRestores may look as if they went on: {}", one_line(&error));
    }
}

async fn close_open(context: &Context, restore: &Restore) -> kube::Result<()> {
    let api: Api<VolumePluginRestore> = context.api();
    let uid = restore.uid().unwrap_or_default();
    let selector = format!("{}={}", label::RESTORE_UID, label::value(&uid));
    let found = list(&api, ListParams::default().labels(&selector)).await?;
    let status =
        ended(&VolumePluginPhase::Failed, Some("the restore ended before this was known to end"));
    for open in found.iter().filter(|found| is_left_open(found)) {
        patch::patch_status_of(&api, open, status.clone()).await?;
    }
    Ok(())
}

/// Whether a resource says that its volume is not there.
fn has_failed(found: &VolumePluginRestore) -> bool {
    let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
    let outcome = phase.and_then(VolumePluginPhase::outcome);
    outcome.is_some_and(|outcome| outcome != VolumePluginOutcome::Completed)
}

/// Whether nobody will write the end of a resource of a restore that is over.
fn is_left_open(found: &VolumePluginRestore) -> bool {
    let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
    if found.labels().contains_key(label::MANAGED) {
        return !phase.is_some_and(VolumePluginPhase::is_terminal) && !is_written_by_others(found);
    }
    // A plugin may have another word for the end.
    is_open(phase)
}

/// Whether a phase says in our words that the work goes on.
fn is_open(phase: Option<&VolumePluginPhase>) -> bool {
    match phase {
        None | Some(VolumePluginPhase::New | VolumePluginPhase::InProgress) => true,
        Some(VolumePluginPhase::Other(word)) => word.is_empty(),
        Some(
            VolumePluginPhase::Completed | VolumePluginPhase::Failed | VolumePluginPhase::Canceled,
        ) => false,
    }
}

/// The phase at the end, and its reason.
fn phase_of(end: &End) -> (VolumePluginPhase, Option<String>) {
    match end {
        End::Completed(_) => (VolumePluginPhase::Completed, None),
        End::Failed(reason) => (VolumePluginPhase::Failed, Some(shorten(reason.clone()))),
        End::Canceled(reason) => (VolumePluginPhase::Canceled, Some(shorten(reason.clone()))),
    }
}

/// The status of something that has ended.
fn ended(phase: &VolumePluginPhase, message: Option<&str>) -> Value {
    json!({
        "phase": phase,
        "message": message,
        "completionTimestamp": patch::to_the_second(Timestamp::now()),
    })
}

/// All resources, page by page.
async fn list(
    api: &Api<VolumePluginRestore>,
    params: ListParams,
) -> kube::Result<Vec<VolumePluginRestore>> {
    let (mut params, mut found) = (params.limit(PAGE), Vec::new());
    for _ in 0..MOST_PAGES {
        let page = api.list(&params).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => break,
        }
    }
    Ok(found)
}

/// Whether a resource that a plugin has written is about a volume. Plugins know the volume by their
/// own word for it; the description of these resources asks for the PersistentVolume.
fn is_about(found: &VolumePluginRestore, backup: &str, making: &Making, volume: &VolumeId) -> bool {
    let VolumePluginRestoreSpec { snapshot_id, backup: of, plugin, .. } = &found.spec;
    let told = found.status.as_ref().map(|status| status.volume_id.as_str()).unwrap_or_default();
    snapshot_id == making.snapshot.as_str()
        && of == backup
        && Name::of_provider(plugin).is_ok_and(|plugin| plugin.as_str() == making.plugin)
        && [volume.as_str(), &making.target].contains(&told)
}

/// Whether a resource that a plugin has written is about a volume that is being made, whose name only the plugin
/// knows: it is of the same snapshot, and not older than the restore.
fn is_of_making(
    found: &VolumePluginRestore,
    backup: &str,
    making: &Making,
    restore_created: Option<&Time>,
) -> bool {
    let VolumePluginRestoreSpec { snapshot_id, backup: of, plugin, .. } = &found.spec;
    let made = found.creation_timestamp();
    let is_new = made.zip(restore_created).is_none_or(|(made, since)| made.0 >= since.0);
    let is_of_plugin =
        Name::of_provider(plugin).is_ok_and(|plugin| plugin.as_str() == making.plugin);
    // One without a status is not about work that goes on.
    let has_begun = found.status.is_some();
    is_new && has_begun && is_of_plugin && snapshot_id == making.snapshot.as_str() && of == backup
}

/// Whether somebody else has written to the status of a resource.
fn is_written_by_others(found: &VolumePluginRestore) -> bool {
    let entries = found.metadata.managed_fields.iter().flatten();
    let mut others = entries.filter(|entry| entry.manager.as_deref() != Some(patch::FIELD_MANAGER));
    others.any(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.get("f:status").is_some())
    })
}
