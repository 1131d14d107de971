//! The VolumePluginBackups of a backup.
//!
//! One that a plugin has made is adopted: it gets the labels of the backup and the backup as its owner, and is
//! otherwise left to the plugin. For every other snapshot the server makes one, as soon as the snapshot has an id, and
//! beside the run: nothing that an application waits for waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::volume_plugin::{VolumePluginPhase, VolumePluginProgress};
use bowline_api::{
    Backup, VolumePluginBackup, VolumePluginBackupSpec, VolumePluginBackupStatus, label,
};
use bowline_engine::backup::{SnapshotProgress, csi};
use bowline_engine::csi::plugin_of;
use bowline_engine::operation::{Operation, State};
use bowline_engine::snapshotter::{hashed_object_name, object_name};
use bowline_store::file::BackupVolumeInfo;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::report::{LastWord, PluginReport, is_silent, last_word, observed};
use crate::controllers::adoption::Belonging;
use crate::patch::{self, FIELD_MANAGER};
use crate::server::Context;
use crate::story::one_line;

/// How many resources are written at a time.
const AT_ONCE: usize = 16;
/// How often it is looked whether there are new snapshots while items are collected.
const LOOK: Duration = Duration::from_secs(1);
/// How often resources are looked for that plugins have made: the first pause, which doubles, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The VolumePluginBackups of a backup.
pub(in crate::controllers::backup) struct Resources<'a> {
    context: &'a Context,
    backup: &'a Backup,
    belonging: Belonging,
    known: Mutex<BTreeMap<Key, Known>>,
    /// The snapshots of CSI drivers, by operation.
    by_csi: Mutex<HashMap<String, ByCsi>>,
    adopted: Mutex<Adopted>,
    /// Resources of plugins of which it was told that they are silent.
    silent: Mutex<BTreeSet<String>>,
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
    /// Its plugin's, under this name. Only its labels and its owner are ours.
    Plugins(String),
    /// It is left alone: somebody has deleted it, other objects have its names, or there is no such kind.
    LeftAlone,
}

/// The resources of plugins that belong to the backup.
#[derive(Debug)]
struct Adopted {
    /// Those of which it is not known yet which snapshot they are of, by name.
    unmatched: BTreeMap<String, VolumePluginBackup>,
    /// When they are looked for again, and how long the pause is then.
    next: Instant,
    pause: Duration,
    /// How many snapshots there were. More of them are a reason to look sooner.
    snapshots: usize,
    /// Whether those were listed that an earlier process has adopted.
    is_recalled: bool,
}

/// Whether resources are made that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Create,
    Leave,
}

impl<'a> Resources<'a> {
    pub(in crate::controllers::backup) fn new(context: &'a Context, backup: &'a Backup) -> Self {
        let labels = [
            (label::BACKUP_NAME, label::value(&backup.name_any()).into_owned()),
            (label::BACKUP_UID, backup.uid().unwrap_or_default()),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
        let adopted = Adopted {
            unmatched: BTreeMap::new(),
            next: Instant::now(),
            pause: FIRST_PAUSE,
            snapshots: 0,
            is_recalled: false,
        };
        Self {
            context,
            backup,
            belonging: Belonging { labels, owner: backup.owner_ref(&()) },
            known: Mutex::default(),
            by_csi: Mutex::default(),
            adopted: Mutex::new(adopted),
            silent: Mutex::default(),
        }
    }

    /// Learns from the records of volumes which snapshots of CSI drivers there are. Without that they
    /// are not shown.
    pub(in crate::controllers::backup) fn learn(&self, infos: &[BackupVolumeInfo]) {
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

    /// Shows the snapshots of a backup whose items are being collected, for as long as it is polled.
    pub(in crate::controllers::backup) async fn publish(&self, snapshots: &SnapshotProgress) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A plugin that is at its first snapshot may have made a resource for it.
            if snapshots.requested() > 0 {
                self.adopt(snapshots.requested()).await;
                self.show_all(&snapshots.operations(), Missing::Create).await;
            }
        }
    }

    /// Shows how snapshots go. What cannot be shown is told in the log, and is no failure.
    pub(in crate::controllers::backup) async fn show(&self, operations: &[Operation]) {
        let by_plugins = operations.iter().filter(|one| one.kind.is_of_volume()).count();
        if by_plugins > 0 {
            self.adopt(by_plugins).await;
        }
        self.show_all(operations, Missing::Create).await;
    }

    /// The same where a backup ends early: resources that are there say so, and no others are made.
    pub(in crate::controllers::backup) async fn update(&self, operations: &[Operation]) {
        self.show_all(operations, Missing::Leave).await;
    }

    async fn show_all(&self, operations: &[Operation], missing: Missing) {
        let mut each = Vec::new();
        for (key, of) in self.snapshots(operations) {
            each.push(self.show_or_tell(key, of, missing).boxed());
        }
        futures::stream::iter(each).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn show_or_tell(&self, key: Key, of: Vec<&Operation>, missing: Missing) {
        if let Err(error) = self.show_one(&key, &of, missing).await {
            let (volume, snapshot) = &key;
            // The kind is not installed, or not ours to write: it will not be otherwise in a second.
            if patch::is_missing(&error) || patch::is_refused(&error) {
                self.known().insert(key.clone(), Known::LeftAlone);
            }
            tracing::warn!(volume, snapshot, "it cannot be shown: {}", one_line(&error));
        }
    }

    async fn show_one(&self, key: &Key, of: &[&Operation], missing: Missing) -> kube::Result<()> {
        let Some(first) = of.first() else { return Ok(()) };
        let known = self.known().get(key).cloned();
        let known = match known {
            Some(known) => known,
            None => match self.find(key).await? {
                Found::There(known) => known,
                Found::Absent(name) if missing == Missing::Create => {
                    self.create(name, key, first).await?
                }
                Found::Absent(_) => return Ok(()),
            },
        };
        let next = match &known {
            Known::Plugins(_) | Known::LeftAlone => known,
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
        let mut change = json!(status);
        // A patch leaves what it does not name.
        if status.progress.units.is_empty() {
            for field in ["units", "unitsDone", "totalUnits"] {
                change["progress"][field] = serde_json::Value::Null;
            }
        }
        let written = patch::patch_status_of(&self.api(), resource, change).await?;
        Ok(match written {
            Some(written) if has_other_writer(&written) => {
                tracing::info!(name = written.name_any(), "its plugin writes it from now on");
                Known::Plugins(written.name_any())
            }
            Some(written) => Known::Ours(Box::new(written)),
            // Somebody has deleted it, and does not want it back.
            None => Known::LeftAlone,
        })
    }

    /// Looks for the resource of a snapshot: by its name, which is the snapshot's, and among those that plugins have
    /// made under other names.
    async fn find(&self, (volume, snapshot): &Key) -> kube::Result<Found> {
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
                Some(found) if self.is_of(&found, volume, snapshot) => {
                    return self.take_in(found).await.map(Found::There);
                }
                // It is of another snapshot.
                Some(_) => {}
            }
        }
        let adopted = {
            let adopted = self.adopted();
            let mut unmatched = adopted.unmatched.values();
            unmatched.find(|one| self.is_of(one, volume, snapshot)).cloned()
        };
        if let Some(found) = adopted {
            return self.take_in(found).await.map(Found::There);
        }
        let Some(name) = free else {
            tracing::warn!(volume, snapshot, "there are other VolumePluginBackups of that name");
            return Ok(Found::There(Known::LeftAlone));
        };
        Ok(Found::Absent(name))
    }

    /// What a resource is that was found for a snapshot. One of a plugin belongs to the backup from now on.
    async fn take_in(&self, found: VolumePluginBackup) -> kube::Result<Known> {
        if is_plugins(&found) {
            let name = found.name_any();
            self.belonging.adopt(&self.api(), found).await?;
            self.adopted().unmatched.remove(&name);
            return Ok(Known::Plugins(name));
        }
        Ok(Known::Ours(Box::new(found)))
    }

    async fn create(
        &self,
        name: String,
        (volume, snapshot): &Key,
        of: &Operation,
    ) -> kube::Result<Known> {
        let resource = self.resource(name, volume, snapshot, of);
        let created = self.api().create(&patch::post_params(), &resource).await?;
        Ok(Known::Ours(Box::new(created)))
    }

    /// Adopts resources that plugins have made for this backup, if it is time to look for them.
    async fn adopt(&self, snapshots: usize) {
        let is_recalled = {
            let mut adopted = self.adopted();
            if adopted.snapshots != snapshots {
                adopted.snapshots = snapshots;
                adopted.pause = FIRST_PAUSE;
                adopted.next = adopted.next.min(Instant::now() + FIRST_PAUSE);
            }
            if Instant::now() < adopted.next {
                return;
            }
            adopted.next = Instant::now() + adopted.pause;
            adopted.pause = (adopted.pause * 2).min(LONGEST_PAUSE);
            adopted.is_recalled
        };
        match self.adopt_listed(is_recalled).await {
            Ok(()) => self.adopted().is_recalled = true,
            Err(error) if patch::is_missing(&error) => {}
            Err(error) => {
                tracing::debug!("VolumePluginBackups cannot be looked for: {}", one_line(&error));
            }
        }
    }

    async fn adopt_listed(&self, is_recalled: bool) -> kube::Result<()> {
        let api = self.api();
        let unclaimed = format!("!{}", label::BACKUP_UID);
        // From the API server's memory: what it misses now is there the next time.
        let list = async |selector: &str| {
            api.list(&ListParams::default().labels(selector).match_any()).await
        };
        for found in list(&unclaimed).await? {
            if self.is_new_of_backup(&found) {
                let adopted = self.belonging.adopt(&api, found).await?;
                self.adopted().unmatched.extend(adopted.map(|one| (one.name_any(), one)));
            }
        }
        if !is_recalled {
            let uid = self.backup.uid().unwrap_or_default();
            let ours = format!("{}={uid},!{}", label::BACKUP_UID, label::MANAGED);
            let found = list(&ours).await?.into_iter().map(|one| (one.name_any(), one));
            self.adopted().unmatched.extend(found);
        }
        self.yield_to_plugins().await
    }

    /// Removes resources of ours for which a plugin has made one under another name.
    async fn yield_to_plugins(&self) -> kube::Result<()> {
        let unmatched = self.adopted().unmatched.clone();
        for (name, found) in unmatched {
            let ours = self.known().iter().find_map(|(key, known)| match known {
                Known::Ours(ours) if self.is_of(&found, &key.0, &key.1) => {
                    Some((key.clone(), ours.clone()))
                }
                Known::Ours(_) | Known::Plugins(_) | Known::LeftAlone => None,
            });
            if let Some((key, ours)) = ours {
                if ours.uid() != found.uid() {
                    patch::remove(&self.api(), &*ours).await?;
                }
                self.adopted().unmatched.remove(&name);
                self.known().insert(key, Known::Plugins(name));
            }
        }
        Ok(())
    }

    /// Whether a resource without labels is of this backup, and not of an earlier one of the same name.
    fn is_new_of_backup(&self, found: &VolumePluginBackup) -> bool {
        let (made, since) = (found.creation_timestamp(), self.backup.creation_timestamp());
        let is_new = made.zip(since).is_none_or(|(made, since)| made.0 >= since.0);
        found.spec.backup == self.backup.name_any() && is_new && is_plugins(found)
    }

    /// Whether a resource is about a snapshot of this backup.
    fn is_of(&self, found: &VolumePluginBackup, volume: &str, snapshot: &str) -> bool {
        let of = found.status.as_ref().map(|status| status.snapshot_id.as_str());
        self.is_of_backup(found)
            && found.spec.volume == volume
            && of.is_none_or(|of| of.is_empty() || of == snapshot)
    }

    fn is_of_backup(&self, found: &VolumePluginBackup) -> bool {
        let uid = found.labels().get(label::BACKUP_UID);
        found.spec.backup == self.backup.name_any()
            && uid.is_none_or(|uid| Some(uid) == self.backup.uid().as_ref())
    }

    fn resource(
        &self,
        name: String,
        volume: &str,
        snapshot: &str,
        of: &Operation,
    ) -> VolumePluginBackup {
        let mut labels: BTreeMap<String, String> = self.belonging.labels.iter().cloned().collect();
        labels.insert(label::MANAGED.to_owned(), "true".to_owned());
        VolumePluginBackup {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(labels),
                owner_references: self.belonging.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: VolumePluginBackupSpec {
                volume: volume.to_owned(),
                backup: self.backup.name_any(),
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

    /// What a plugin says of a snapshot in a resource of its own.
    pub(super) async fn plugin_report(&self, operation: &Operation) -> PluginReport {
        let (volume, snapshot) = key(operation);
        let known = match self.known().get(&(volume.clone(), snapshot.clone())) {
            Some(Known::Ours(_) | Known::LeftAlone) => return PluginReport::Absent,
            Some(Known::Plugins(name)) => Some(name.clone()),
            None => None,
        };
        let is_known = known.is_some();
        let name = known.unwrap_or_else(|| object_name(&snapshot));
        match self.api().get_opt(&name).await {
            Ok(Some(found)) if is_plugins(&found) && self.is_of(&found, &volume, &snapshot) => {
                let now = Timestamp::now();
                let told = observed(&found, now);
                self.tell_silence(&found, now);
                self.known().insert((volume, snapshot), Known::Plugins(name));
                // One that was deleted and made again has lost them.
                if let Err(error) = self.belonging.adopt(&self.api(), found).await {
                    tracing::debug!("its labels cannot be added: {}", one_line(&error));
                }
                PluginReport::Told(told)
            }
            Ok(_) if is_known => {
                PluginReport::Unheard(format!("the VolumePluginBackup {name} is gone"))
            }
            Ok(_) => PluginReport::Absent,
            // Nobody here will ever read one.
            Err(error) if patch::is_refused(&error) => PluginReport::Absent,
            Err(error) => {
                let error = one_line(&error);
                PluginReport::Unheard(format!(
                    "the VolumePluginBackup {name} cannot be read: {error}"
                ))
            }
        }
    }

    /// Tells once that a plugin has stopped to write a resource, and once that it writes it again.
    fn tell_silence(&self, found: &VolumePluginBackup, now: Timestamp) {
        let name = found.name_any();
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_silent(found, now) {
            silent.remove(&name);
        } else if silent.insert(name.clone()) {
            tracing::warn!(
                name,
                "its plugin has not written this VolumePluginBackup for long; waiting until the operation times out"
            );
        }
    }

    /// Ends resources that say that they go on, when all operations have ended.
    pub(in crate::controllers::backup) async fn end(&self, operations: &[Operation]) {
        let found = match self.listed().await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("VolumePluginBackups cannot be listed: {}", one_line(&error));
                return;
            }
        };
        let snapshots = self.snapshots(operations);
        for resource in found {
            let of = snapshots.iter().find(|((volume, id), _)| {
                // A plugin may write an id in another form. By its name it is of the snapshot all the same.
                let is_named = resource.spec.volume == *volume;
                self.is_of(&resource, volume, id)
                    || (is_named && resource.name_any() == object_name(id))
            });
            let of = of.map(|(_, of)| of.as_slice()).unwrap_or_default();
            let ended = match last_word(&resource, !is_plugins(&resource), of) {
                LastWord::Keep => Ok(()),
                LastWord::Remove => patch::remove(&self.api(), &resource).await,
                LastWord::End(phase, message) => {
                    let message = Some(message).filter(|message| !message.is_empty());
                    let status = json!({
                        "phase": phase, "message": message,
                        "completionTimestamp": patch::to_the_second(Timestamp::now()),
                    });
                    patch::patch_status_of(&self.api(), &resource, status).await.map(drop)
                }
            };
            if let Err(error) = ended {
                let name = resource.name_any();
                tracing::warn!(name, "it cannot be ended: {}", one_line(&error));
            }
        }
    }

    /// The resources of the backup as they are kept with it, whoever made them.
    pub(in crate::controllers::backup) async fn all(
        &self,
    ) -> kube::Result<Vec<VolumePluginBackup>> {
        let kept = |one: VolumePluginBackup| VolumePluginBackup {
            metadata: ObjectMeta {
                name: one.metadata.name,
                labels: one.metadata.labels,
                annotations: one.metadata.annotations,
                ..ObjectMeta::default()
            },
            ..one
        };
        Ok(self.listed().await?.into_iter().map(kept).collect())
    }

    /// All resources of the backup.
    async fn listed(&self) -> kube::Result<Vec<VolumePluginBackup>> {
        let listed = match self.api().list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            // On the definitions of Velero there is no such kind.
            Err(error) if patch::is_missing(&error) || patch::is_refused(&error) => {
                tracing::warn!("VolumePluginBackups cannot be kept: {}", one_line(&error));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        Ok(listed.into_iter().filter(|one| self.is_of_backup(one)).collect())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopted(&self) -> MutexGuard<'_, Adopted> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the resource of a snapshot is there.
enum Found {
    There(Known),
    /// It is not, and would have this name.
    Absent(String),
}

fn key(operation: &Operation) -> Key {
    (operation.item.name.clone(), operation.id.to_string())
}

/// Whether a resource is its plugin's: the plugin has made it, or writes into it.
fn is_plugins(resource: &VolumePluginBackup) -> bool {
    !resource.labels().contains_key(label::MANAGED) || has_other_writer(resource)
}

/// Whether somebody but us has written the status of a resource.
fn has_other_writer(resource: &VolumePluginBackup) -> bool {
    resource.managed_fields().iter().any(|entry| {
        let writes_status =
            entry.fields_v1.as_ref().is_some_and(|set| set.0.get("f:status").is_some());
        writes_status && entry.manager.as_deref() != Some(FIELD_MANAGER)
    })
}

/// What the resource of a snapshot says, given the operations on it. `before` is what it said.
fn status(
    before: &VolumePluginBackupStatus,
    of: &[&Operation],
    now: Timestamp,
) -> VolumePluginBackupStatus {
    let failure = of.iter().find_map(|operation| match &operation.state {
        State::Failed(reason) => Some((reason, operation.state.is_canceled())),
        State::New | State::InProgress | State::Completed => None,
    });
    let has_ended = of.iter().all(|operation| operation.state.is_terminal());
    let phase = match failure {
        _ if !has_ended && of.iter().all(|one| one.state == State::New) => VolumePluginPhase::New,
        _ if !has_ended => VolumePluginPhase::InProgress,
        Some((_, true)) => VolumePluginPhase::Canceled,
        Some((_, false)) => VolumePluginPhase::Failed,
        None => VolumePluginPhase::Completed,
    };
    // The upload tells more than the creation, once it tells anything.
    let telling = of.iter().rev().find(|one| one.progress.done > 0 || one.progress.total > 0);
    let (mut done, total) = telling
        .map_or((0, 0), |Operation { progress, .. }| (progress.done.max(0), progress.total.max(0)));
    // A snapshot that is complete says how much there is to upload, and that nothing of it is. One whose
    // upload ended without a word about itself has not uploaded all of it.
    let is_of_creation = telling.is_some_and(|operation| match operation.state {
        State::Completed => phase != VolumePluginPhase::Completed,
        _ => !has_ended && operation.state.is_terminal(),
    });
    if is_of_creation {
        done = 0;
    }
    // What a plugin tells last may be from shortly before the end.
    if phase == VolumePluginPhase::Completed && total > 0 {
        done = total;
    }
    let nothing = VolumePluginProgress {
        unknown: before.progress.unknown.clone(),
        ..VolumePluginProgress::default()
    };
    let progress = match telling.map(|operation| operation.progress.units.as_str()) {
        Some(units) if !is_bytes(units) => VolumePluginProgress {
            units: units.to_owned(),
            total_units: total,
            units_done: done,
            ..nothing
        },
        Some(_) | None => VolumePluginProgress { total_bytes: total, bytes_done: done, ..nothing },
    };
    let message = match failure {
        Some((reason, _)) => reason.clone(),
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
        progress,
        ..before.clone()
    }
}

/// Whether a plugin counts bytes, which is what it does unless it says otherwise.
fn is_bytes(units: &str) -> bool {
    units.is_empty() || units.eq_ignore_ascii_case("bytes")
}

#[cfg(test)]
mod tests;
