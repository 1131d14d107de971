//! What becomes of the data of volumes.
//!
//! This version stores objects and no data. So it owes an answer for every volume: who wanted its
//! data saved, and by which method. Pods, claims and volumes are noted as they are visited; at the
//! end [`Volumes::settle`] judges each volume by Velero's rules.
//!
//! | a volume policy says | or else | then |
//! |---|---|---|
//! | `skip`, `custom` | | it is left out: noted |
//! | `fs-backup` | a pod opts in to `fs-backup`, or does not opt out of it | the method is lacking: an error |
//! | `snapshot` | `snapshotVolumes` is not false | for a CSI volume, or if there are snapshot locations, the method is lacking: an error; else there is none: a warning |
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

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::{BackupVolumeInfo, PersistentVolumeInfo};

use super::policy::{Policies, VolumeFacts};
use crate::item::Object;
use decide::{Case, Fate, Mount};
use note::{ClaimNote, PodNote, Source, VolumeNote};

/// What a run has seen of volumes, so far.
#[derive(Debug, Default)]
pub struct Volumes {
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    pods: Vec<PodNote>,
    claims: BTreeMap<ClaimKey, ClaimNote>,
    volumes: BTreeMap<Box<str>, VolumeNote>,
    /// What could not be read, so that nothing can be said about its volumes.
    unreadable: Vec<(ResourceIdentifier, String)>,
    /// The facts of volumes of which nothing but the type is known, each once.
    plain: HashMap<&'static str, Arc<VolumeFacts>>,
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
}

impl Volumes {
    /// Notes a pod that is visited.
    pub fn note_pod(&self, pod: &Object) {
        match note::read_pod(pod) {
            Ok(read) => self.lock().add_pod(pod, read),
            Err(error) => self.cannot_read(pod, &error),
        }
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
        for (name, volume) in &notes.volumes {
            let claim = volume.bound_to();
            let note = claim.and_then(|key| notes.claims.get(key));
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
            let fate = decide::fate(&case, wishes);
            settled.add(&id, name, volume.claim.as_ref(), Some(volume), &fate);
            seen.extend(claim);
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
            settled.add(&id, volume, Some(key), None, &decide::fate(&case, wishes));
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

    /// The volumes of pods that are claims, by claim.
    fn mounts(&self) -> HashMap<ClaimKey, Vec<Mount<'_>>> {
        let mut mounts: HashMap<ClaimKey, Vec<Mount<'_>>> = HashMap::new();
        for pod in &self.pods {
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
    ) {
        let (namespace, claim) = claim.map_or(("", ""), |(namespace, claim)| (namespace, claim));
        self.infos.push(BackupVolumeInfo {
            pvc_name: claim.to_owned(),
            pvc_namespace: namespace.to_owned(),
            pv_name: name.to_owned(),
            skipped: true,
            skipped_reason: tell::skipped_reason(fate),
            pv_info: volume.map(|volume| PersistentVolumeInfo {
                reclaim_policy: volume.reclaim_policy.to_string(),
                labels: volume.labels.clone(),
                ..PersistentVolumeInfo::default()
            }),
            ..BackupVolumeInfo::default()
        });
        match fate {
            Fate::LeftOut(_) => {}
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

fn id(resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
