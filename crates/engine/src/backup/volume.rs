//! What becomes of the data of volumes.
//!
//! The backup owes an answer for every volume: who wanted its data saved, by which method, and what
//! came of it. Pods, claims and volumes are noted as they are visited, and so are snapshots that were
//! taken; at the end [`Volumes::settle`] judges each volume by Velero's rules.
//!
//! | a volume policy says | or else | then |
//! |---|---|---|
//! | `skip`, `custom` | | it is left out: noted |
//! | `fs-backup` | a pod opts in to `fs-backup`, or does not opt out of it | the method is lacking: an error |
//! | `snapshot` | `snapshotVolumes` is not false | the CSI driver of the volume takes it, if it has one that can; else the plugin of the first snapshot location that knows the volume; where there is neither, it is an error for a CSI volume, and a warning for others |
//! | | `snapshotVolumes` is false | it is left out: noted |
//!
//! # Where we differ from Velero
//! Velero is silent where no method fits a volume: one of a type that nothing can snapshot, or one
//! that is to be copied file by file while no pod that runs has mounted it. We warn.

mod decide;
mod note;
mod tell;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::{
    BackupVolumeInfo, Method, NativeSnapshotInfo, Outcome, PersistentVolumeInfo, Snapshot,
    SnapshotPhase,
};

use super::csi;
use super::policy::{Policies, VolumeFacts};
use crate::item::Object;
use decide::{Case, Fate, Lacking, Mount, Without};
pub(crate) use note::PodNote;
use note::{ClaimNote, Source, VolumeNote};

/// What a run has seen of volumes, so far.
#[derive(Debug, Default)]
pub struct Volumes {
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    pods: Vec<PodNote>,
    /// Pods that are not part of the run and mount claims that are, by namespace and name. Whether they
    /// want the files of a volume copied counts as well, as to Velero
    /// (internal/volumehelper/volume_policy_helper.go).
    outside: BTreeMap<(Box<str>, Box<str>), Arc<PodNote>>,
    claims: BTreeMap<ClaimKey, ClaimNote>,
    volumes: BTreeMap<Box<str>, VolumeNote>,
    /// What could not be read, so that nothing can be said about its volumes.
    unreadable: Vec<(ResourceIdentifier, String)>,
    /// The facts of volumes of which nothing but the type is known, each once.
    plain: HashMap<&'static str, Arc<VolumeFacts>>,
    /// What came of the volumes that were to be snapshotted.
    snapshotted: BTreeMap<Box<str>, Snapshotted>,
}

/// What came of a volume that was to be snapshotted by a plugin.
#[derive(Clone, Debug, PartialEq)]
pub enum Snapshotted {
    /// A plugin was asked for a snapshot; the record says what came of that.
    Tried(Box<Snapshot>),
    /// No plugin could be asked, which was told.
    NotTried,
    /// No plugin knows the volume.
    Unmatched,
    /// Its CSI driver was asked for a snapshot; the record says what came of that.
    Csi(Box<csi::Record>),
    /// Its CSI driver cannot be asked, for this reason, and no plugin knows the volume. That was told.
    Lacking(String),
}

/// A volume that its CSI driver is to snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByCsi {
    pub(super) volume: String,
    /// The claim that it is bound to.
    pub(super) namespace: String,
    pub(super) claim: String,
    pub(super) driver: String,
}

/// The namespace and the name of a claim.
type ClaimKey = (Box<str>, Box<str>);

/// What the request says about volumes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of its own in the request")]
pub struct Wishes<'a> {
    /// Whether volumes are to be snapshotted.
    pub snapshot_volumes: bool,
    /// Whether volumes of pods are to be copied file by file unless they opt out.
    pub default_volumes_to_fs_backup: bool,
    /// What is to happen to which volume.
    pub policies: Option<&'a Policies>,
    /// Whether there is a plugin that might snapshot volumes.
    pub has_snapshot_locations: bool,
    /// Whether claims are backed up. If they are not, nor are the files in their volumes.
    pub includes_claims: bool,
}

/// What became of the data of all volumes.
#[derive(Debug, Default)]
pub struct Settled {
    /// What is known of each PersistentVolume, in the order of their names, and of claims whose
    /// volume is not in the backup.
    pub infos: Vec<BackupVolumeInfo>,
    /// Data that was to be saved and was not.
    pub errors: Vec<(ResourceIdentifier, String)>,
    /// Data that no method fits.
    pub warnings: Vec<(ResourceIdentifier, String)>,
    /// The snapshots that plugins were asked for.
    pub snapshots: Vec<Snapshot>,
    /// The snapshots that CSI drivers were asked for.
    pub csi_snapshots: Vec<csi::Record>,
}

impl Volumes {
    /// Notes an object that is visited, if it has to do with volumes.
    pub fn note(&self, object: &Object) {
        if !object.resource.id.group.is_empty() {
            return;
        }
        match object.resource.id.resource.as_str() {
            "pods" => self.note_pod(object),
            "persistentvolumeclaims" => self.note_claim(object),
            "persistentvolumes" => self.note_volume(object),
            _ => {}
        }
    }

    /// Notes what came of a volume that was to be snapshotted.
    pub fn note_snapshotted(&self, volume: &str, outcome: Snapshotted) {
        self.lock().snapshotted.insert(volume.into(), outcome);
    }

    /// The volumes that a plugin is to snapshot, of those that were noted.
    pub fn to_snapshot(&self, wishes: &Wishes<'_>) -> Vec<Box<str>> {
        let mut wanted = Vec::new();
        self.lock().each_volume(wishes, |name, _, _, fate| {
            if matches!(fate, Fate::Snapshot { .. }) {
                wanted.push(name.clone());
            }
        });
        wanted
    }

    /// The volumes that CSI drivers are to snapshot if they can, of those that were noted.
    pub(super) fn to_snapshot_by_csi(&self, wishes: &Wishes<'_>) -> Vec<ByCsi> {
        let mut wanted = Vec::new();
        self.lock().each_volume(wishes, |name, volume, _, fate| {
            if let (
                Fate::Snapshot { without: Without::Csi { driver } }
                | Fate::Lacking(Lacking::CsiSnapshot { driver }),
                Some((namespace, claim)),
            ) = (fate, volume.bound_to())
            {
                let (volume, namespace) = (name.to_string(), namespace.to_string());
                wanted.push(ByCsi { volume, namespace, claim: claim.to_string(), driver });
            }
        });
        wanted
    }

    /// Notes a pod that is visited.
    pub fn note_pod(&self, pod: &Object) {
        match note::read_pod(pod) {
            Ok(read) => self.lock().add_pod(pod, read),
            Err(error) => self.cannot_read(pod, &error),
        }
    }

    /// Notes a pod that is not part of the run and mounts a claim that is.
    pub(super) fn note_outside(&self, pod: &Arc<PodNote>) {
        let key = (pod.namespace.clone(), pod.name.clone());
        self.lock().outside.insert(key, Arc::clone(pod));
    }

    /// Whether a pod was noted as one that is visited.
    pub(super) fn has_pod(&self, pod: &PodNote) -> bool {
        let notes = self.lock();
        notes.pods.iter().any(|one| one.namespace == pod.namespace && one.name == pod.name)
    }

    /// The claims that were noted, and those that volumes say they are bound to.
    pub(super) fn claims(&self) -> BTreeSet<(String, String)> {
        let notes = self.lock();
        let bound = notes.volumes.values().filter_map(VolumeNote::bound_to);
        let keys = notes.claims.keys().chain(bound);
        keys.map(|(namespace, name)| (namespace.to_string(), name.to_string())).collect()
    }

    /// Notes a claim that is visited.
    pub fn note_claim(&self, claim: &Object) {
        match ClaimNote::read(claim) {
            Ok(note) => {
                let key = (claim.namespace.as_str().into(), claim.name.as_str().into());
                self.lock().claims.insert(key, note);
            }
            Err(error) => self.cannot_read(claim, &error),
        }
    }

    /// Notes a PersistentVolume that is visited.
    pub fn note_volume(&self, volume: &Object) {
        match VolumeNote::read(volume) {
            Ok(note) => {
                self.lock().volumes.insert(volume.name.as_str().into(), note);
            }
            Err(error) => self.cannot_read(volume, &error),
        }
    }

    /// Judges all volumes that were noted.
    pub fn settle(&self, wishes: &Wishes<'_>) -> Settled {
        let notes = self.lock();
        let mut settled = Settled { errors: notes.unreadable.clone(), ..Settled::default() };
        let mounts = notes.mounts();
        let mut seen = Vec::new();
        notes.each_volume(wishes, |name, volume, id, fate| {
            let outcome = notes.snapshotted.get(name);
            settled.add(&id, name, volume.claim.as_ref(), Some(volume), &fate, outcome);
            seen.extend(volume.bound_to());
        });
        // One that was taken counts, also where the run was broken off before it came to the volume.
        for (name, outcome) in &notes.snapshotted {
            let is_known = || {
                let mut claims = notes.claims.values();
                notes.volumes.contains_key(name)
                    || claims.any(|claim| claim.volume.as_ref() == Some(name))
            };
            match outcome {
                Snapshotted::Tried(snapshot) if !is_known() => {
                    let info = BackupVolumeInfo { pv_name: name.to_string(), ..Default::default() };
                    settled.infos.push(snapshotted(info, snapshot));
                    settled.snapshots.push((**snapshot).clone());
                }
                Snapshotted::Csi(record) if !is_known() => {
                    let info = BackupVolumeInfo {
                        pvc_name: record.claim.clone(),
                        pvc_namespace: record.namespace.clone(),
                        pv_name: name.to_string(),
                        ..Default::default()
                    };
                    settled.infos.push(record.info(info));
                    settled.csi_snapshots.push((**record).clone());
                }
                _ => {}
            }
        }
        seen.sort_unstable();
        let is_settled = |key: &ClaimKey| seen.binary_search(&key).is_ok();
        for (key, claim) in notes.claims.iter().filter(|(key, _)| !is_settled(key)) {
            // Nothing is in a claim that has no volume.
            let Some(volume) = &claim.volume else { continue };
            let case = Case {
                facts: &claim.facts,
                has_volume: false,
                has_claim: true,
                mounts: mounts.get(key).map_or(&[], Vec::as_slice),
            };
            let id = id("persistentvolumeclaims", &key.0, &key.1);
            let outcome = notes.snapshotted.get(volume);
            settled.add(&id, volume, Some(key), None, &decide::fate(&case, wishes), outcome);
        }
        for pod in &notes.pods {
            let is_settled = |claim: &str| {
                let key = (pod.namespace.clone(), claim.into());
                is_settled(&key) || notes.claims.contains_key(&key)
            };
            settled.add_pod(pod, wishes, is_settled);
        }
        settled
    }

    fn cannot_read(&self, object: &Object, error: &serde_json::Error) {
        let text = format!("nothing can be said about its volumes, for it cannot be read: {error}");
        self.lock().unreadable.push((object.id(), text));
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    fn add_pod(&mut self, object: &Object, read: note::ReadPod) {
        let pod = PodNote::new(object, read, |facts| {
            // Most are an `emptyDir`; those share one set of facts.
            match facts.volume_type {
                Some(plain) if facts.csi.is_none() && facts.nfs.is_none() => {
                    Arc::clone(self.plain.entry(plain).or_insert_with(|| Arc::new(facts)))
                }
                _ => Arc::new(facts),
            }
        });
        if !pod.is_empty() {
            self.pods.push(pod);
        }
    }

    /// Judges each PersistentVolume, which is told by its claim where that is in the backup.
    fn each_volume<'a>(
        &'a self,
        wishes: &Wishes<'_>,
        mut judged: impl FnMut(&'a Box<str>, &'a VolumeNote, ResourceIdentifier, Fate<'_>),
    ) {
        let mounts = self.mounts();
        for (name, volume) in &self.volumes {
            let claim = volume.bound_to();
            let note = claim.and_then(|key| self.claims.get(key));
            let note = note.filter(|note| note.volume.as_ref() == Some(name));
            let facts = volume.facts_with(note);
            let case = Case {
                facts: &facts,
                has_volume: true,
                has_claim: note.is_some(),
                mounts: claim.and_then(|key| mounts.get(key)).map_or(&[], Vec::as_slice),
            };
            let id = match claim.filter(|_| note.is_some()) {
                Some((namespace, name)) => id("persistentvolumeclaims", namespace, name),
                None => id("persistentvolumes", "", name),
            };
            judged(name, volume, id, decide::fate(&case, wishes));
        }
    }

    /// The volumes of pods that are claims, by claim.
    fn mounts(&self) -> HashMap<ClaimKey, Vec<Mount<'_>>> {
        let mut mounts: HashMap<ClaimKey, Vec<Mount<'_>>> = HashMap::new();
        let outside = self.outside.values().map(|pod| &**pod);
        for pod in self.pods.iter().chain(outside) {
            for volume in &pod.volumes {
                if let Source::Claim(claim) = &volume.source {
                    let key = (pod.namespace.clone(), claim.clone());
                    mounts.entry(key).or_default().push(Mount { pod: &pod.name, volume });
                }
            }
        }
        mounts
    }
}

impl Settled {
    /// Adds what became of a PersistentVolume, or of one that only its claim tells of.
    fn add(
        &mut self,
        id: &ResourceIdentifier,
        name: &str,
        claim: Option<&ClaimKey>,
        volume: Option<&VolumeNote>,
        fate: &Fate<'_>,
        outcome: Option<&Snapshotted>,
    ) {
        let (namespace, claim) = claim.map_or(("", ""), |(namespace, claim)| (namespace, claim));
        let info = BackupVolumeInfo {
            pvc_name: claim.to_owned(),
            pvc_namespace: namespace.to_owned(),
            pv_name: name.to_owned(),
            pv_info: volume.map(|volume| PersistentVolumeInfo {
                reclaim_policy: volume.reclaim_policy.to_string(),
                labels: volume.labels.clone(),
                ..PersistentVolumeInfo::default()
            }),
            ..BackupVolumeInfo::default()
        };
        let fate = match (fate, outcome) {
            // Whatever is wanted now: it was wanted when it was taken.
            (_, Some(Snapshotted::Tried(snapshot))) => {
                self.infos.push(snapshotted(info, snapshot));
                self.snapshots.push((**snapshot).clone());
                return;
            }
            (_, Some(Snapshotted::Csi(record))) => {
                self.infos.push(record.info(info));
                self.csi_snapshots.push((**record).clone());
                return;
            }
            (_, Some(Snapshotted::Lacking(reason))) => {
                let skipped_reason = format!("csiSnapshot: {reason};");
                self.infos.push(BackupVolumeInfo { skipped: true, skipped_reason, ..info });
                return;
            }
            (Fate::Snapshot { without }, Some(Snapshotted::Unmatched)) => &without.into(),
            (fate, _) => fate,
        };
        let skipped_reason = tell::skipped_reason(fate);
        self.infos.push(BackupVolumeInfo { skipped: true, skipped_reason, ..info });
        match fate {
            Fate::LeftOut(_) => {}
            // That it could not be asked for was told when that was tried.
            Fate::Snapshot { .. } if outcome.is_some() => {}
            Fate::Snapshot { .. } => self.errors.push((id.clone(), tell::forgotten(name))),
            Fate::Lacking(lacking) => self.errors.push((id.clone(), tell::lacking(name, lacking))),
            Fate::NoMethod(why) => self.warnings.push((id.clone(), tell::no_method(name, why))),
        }
    }

    /// Adds what became of the volumes of a pod that are not PersistentVolumes, or are, but neither
    /// they nor their claims are in the backup.
    fn add_pod(&mut self, pod: &PodNote, wishes: &Wishes<'_>, is_settled: impl Fn(&str) -> bool) {
        let id = id("pods", &pod.namespace, &pod.name);
        let mut lacking: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for volume in &pod.volumes {
            let why = match &volume.source {
                Source::Claim(claim) if is_settled(claim) => continue,
                Source::Claim(_) => decide::wants_copy_of_claim(volume, wishes),
                Source::Own(facts) => decide::wants_copy(volume, facts, wishes),
            };
            if let Some(why) = why {
                lacking.entry(why).or_default().push(&volume.name);
            }
        }
        for (why, names) in lacking {
            self.errors.push((id.clone(), tell::lacking_in_pod(&names, why)));
        }
        if !wishes.default_volumes_to_fs_backup {
            for (name, problem) in &pod.unanswerable {
                self.warnings.push((id.clone(), tell::unanswerable(name, *problem)));
            }
        }
    }
}

/// What is known of a volume whose snapshot a plugin was asked for.
fn snapshotted(info: BackupVolumeInfo, snapshot: &Snapshot) -> BackupVolumeInfo {
    let Snapshot { spec, status, .. } = snapshot;
    let is_taken = status.phase == Some(SnapshotPhase::Completed);
    BackupVolumeInfo {
        backup_method: Some(Method::NativeSnapshot),
        result: Some(if is_taken { Outcome::Succeeded } else { Outcome::Failed }),
        native_snapshot_info: Some(NativeSnapshotInfo {
            snapshot_handle: status.provider_snapshot_id.clone(),
            volume_type: spec.volume_type.clone(),
            volume_az: spec.volume_az.clone(),
            iops: spec.volume_iops.unwrap_or_default().to_string(),
            phase: if is_taken { "Completed" } else { "Failed" }.to_owned(),
            ..NativeSnapshotInfo::default()
        }),
        ..info
    }
}

fn id(resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
