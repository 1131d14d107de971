//! Outcome for the data of volumes.
//!
//! The backup must account for every volume: the request for its data, the method, and the outcome. Pods, claims and
//! volumes are recorded as they are visited, and so are snapshots; at the end [`Volumes::decide_all`] decides on each
//! volume by Velero's rules.
//!
//! | volume policy | without a policy | result |
//! |---|---|---|
//! | `skip`, `custom` | | the volume is skipped, which is recorded |
//! | `fs-backup` | a pod opts in to `fs-backup`, or does not opt out of it | the method is not supported: an error |
//! | `snapshot` | `snapshotVolumes` is not false | the volume's CSI driver takes the snapshot, if it can; else the plugin of the first snapshot location that supports the volume; without either, an error for a CSI volume, and a warning for others |
//! | | `snapshotVolumes` is false | the volume is skipped, which is recorded |
//!
//! # Where we differ from Velero
//! Velero is silent where no method fits a volume: one of a type that nothing can snapshot, or one that is selected
//! for `fs-backup` while no running pod mounts it. Bowline warns.

mod decide;
mod messages;
#[cfg(test)]
mod tests;
mod volume_facts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::{
    BackupVolumeInfo, Method, NativeSnapshotInfo, Outcome, PersistentVolumeInfo, Snapshot,
    SnapshotPhase,
};
use parking_lot::Mutex;

use super::csi;
use super::policy::{Policies, VolumeFacts};
use crate::item::Object;
use decide::{Case, Mount, SnapshotFallback, UnsupportedMethod, VolumeDecision};
pub(crate) use volume_facts::PodFacts;
use volume_facts::{ClaimFacts, PersistentVolumeFacts, Source};

/// The volumes that a run has seen so far.
#[derive(Debug, Default)]
pub struct Volumes {
    recorded: Mutex<RecordedFacts>,
}

#[derive(Debug, Default)]
struct RecordedFacts {
    pods: Vec<PodFacts>,
    /// Pods that are not part of the run and mount claims that are, by namespace and name. Their opt-in to
    /// `fs-backup` counts as well, as in Velero (internal/volumehelper/volume_policy_helper.go).
    outside: BTreeMap<(Box<str>, Box<str>), Arc<PodFacts>>,
    claims: BTreeMap<ClaimKey, ClaimFacts>,
    volumes: BTreeMap<Box<str>, PersistentVolumeFacts>,
    /// Objects that could not be parsed, so that nothing is known about their volumes.
    unreadable: Vec<(ResourceIdentifier, String)>,
    /// The facts of volumes of which only the type is known, each once.
    shared_facts: HashMap<&'static str, Arc<VolumeFacts>>,
    /// Outcomes of the volumes selected for a snapshot.
    snapshotted: BTreeMap<Box<str>, SnapshotOutcome>,
}

/// Outcome of a volume selected for a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotOutcome {
    /// A snapshot was requested from a plugin; the record holds the outcome.
    PluginSnapshot(Box<Snapshot>),
    /// No plugin could be asked, which was reported.
    NotAttempted,
    /// No plugin supports the volume.
    Unmatched,
    /// A snapshot was requested from the CSI driver; the record holds the outcome.
    CsiSnapshot(Box<csi::CsiSnapshotRecord>),
    /// The CSI driver cannot be asked, for this reason, and no plugin supports the volume. That was reported.
    Unsupported(String),
}

/// A volume for a snapshot by its CSI driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CsiCandidate {
    pub(super) volume: String,
    /// The claim that it is bound to.
    pub(super) namespace: String,
    pub(super) claim: String,
    pub(super) driver: String,
}

/// The namespace and the name of a claim.
type ClaimKey = (Box<str>, Box<str>);

/// Options of the request for volumes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of its own in the request")]
pub struct VolumeOptions<'a> {
    /// True if volumes are snapshotted.
    pub snapshot_volumes: bool,
    /// True if volumes of pods are backed up with `fs-backup` unless they opt out.
    pub default_volumes_to_fs_backup: bool,
    /// The volume policies.
    pub policies: Option<&'a Policies>,
    /// True if there is a plugin that might snapshot volumes.
    pub has_snapshot_locations: bool,
    /// True if claims are backed up. If they are not, the files in their volumes are not either.
    pub includes_claims: bool,
}

/// Outcome for the data of all volumes.
#[derive(Debug, Default)]
pub struct VolumeResults {
    /// Records of the PersistentVolumes, in the order of their names, and of claims whose volume is not in the
    /// backup.
    pub infos: Vec<BackupVolumeInfo>,
    /// Data that was to be saved and was not.
    pub errors: Vec<(ResourceIdentifier, String)>,
    /// Data that no method fits.
    pub warnings: Vec<(ResourceIdentifier, String)>,
    /// Snapshots requested from plugins.
    pub snapshots: Vec<Snapshot>,
    /// Snapshots requested from CSI drivers.
    pub csi_snapshots: Vec<csi::CsiSnapshotRecord>,
}

impl Volumes {
    /// Records a visited object, if it concerns volumes.
    pub fn record(&self, object: &Object) {
        if !object.resource.id.group.is_empty() {
            return;
        }
        match object.resource.id.resource.as_str() {
            "pods" => self.record_pod(object),
            "persistentvolumeclaims" => self.record_claim(object),
            "persistentvolumes" => self.record_volume(object),
            _ => {}
        }
    }

    /// Records the outcome of a volume selected for a snapshot.
    pub fn record_snapshot(&self, volume: &str, outcome: SnapshotOutcome) {
        self.recorded.lock().snapshotted.insert(volume.into(), outcome);
    }

    /// The recorded volumes that a plugin is to snapshot.
    pub fn volumes_to_snapshot(&self, options: &VolumeOptions<'_>) -> Vec<Box<str>> {
        let mut names = Vec::new();
        self.recorded.lock().for_each_volume(options, |name, _, _, decision| {
            if matches!(decision, VolumeDecision::Snapshot { .. }) {
                names.push(name.clone());
            }
        });
        names
    }

    /// The recorded volumes that CSI drivers are to snapshot if they can.
    pub(super) fn csi_candidates(&self, options: &VolumeOptions<'_>) -> Vec<CsiCandidate> {
        let mut candidates = Vec::new();
        self.recorded.lock().for_each_volume(options, |name, volume, _, decision| {
            if let (
                VolumeDecision::Snapshot { fallback: SnapshotFallback::Csi { driver } }
                | VolumeDecision::Unsupported(UnsupportedMethod::CsiSnapshot { driver }),
                Some((namespace, claim)),
            ) = (decision, volume.bound_to())
            {
                let (volume, namespace) = (name.to_string(), namespace.to_string());
                candidates.push(CsiCandidate {
                    volume,
                    namespace,
                    claim: claim.to_string(),
                    driver,
                });
            }
        });
        candidates
    }

    /// Records a visited pod.
    pub fn record_pod(&self, pod: &Object) {
        match volume_facts::read_pod(pod) {
            Ok(read) => self.recorded.lock().add_pod(pod, read),
            Err(error) => self.record_unreadable(pod, &error),
        }
    }

    /// Records a pod that is not part of the run and mounts a claim that is.
    pub(super) fn record_outside_pod(&self, pod: &Arc<PodFacts>) {
        let key = (pod.namespace.clone(), pod.name.clone());
        self.recorded.lock().outside.insert(key, Arc::clone(pod));
    }

    /// True if a pod was recorded as visited.
    pub(super) fn has_pod(&self, pod: &PodFacts) -> bool {
        let recorded = self.recorded.lock();
        recorded.pods.iter().any(|one| one.namespace == pod.namespace && one.name == pod.name)
    }

    /// The recorded claims, and those that volumes are bound to.
    pub(super) fn claims(&self) -> BTreeSet<(String, String)> {
        let recorded = self.recorded.lock();
        let bound = recorded.volumes.values().filter_map(PersistentVolumeFacts::bound_to);
        let keys = recorded.claims.keys().chain(bound);
        keys.map(|(namespace, name)| (namespace.to_string(), name.to_string())).collect()
    }

    /// Records a visited claim.
    pub fn record_claim(&self, claim: &Object) {
        match ClaimFacts::read(claim) {
            Ok(facts) => {
                let key = (claim.namespace.as_str().into(), claim.name.as_str().into());
                self.recorded.lock().claims.insert(key, facts);
            }
            Err(error) => self.record_unreadable(claim, &error),
        }
    }

    /// Records a visited PersistentVolume.
    pub fn record_volume(&self, volume: &Object) {
        match PersistentVolumeFacts::read(volume) {
            Ok(facts) => {
                self.recorded.lock().volumes.insert(volume.name.as_str().into(), facts);
            }
            Err(error) => self.record_unreadable(volume, &error),
        }
    }

    /// Decides on all recorded volumes.
    pub fn decide_all(&self, options: &VolumeOptions<'_>) -> VolumeResults {
        let recorded = self.recorded.lock();
        let mut results =
            VolumeResults { errors: recorded.unreadable.clone(), ..VolumeResults::default() };
        let mounts = recorded.mounts();
        let mut decided_claims = Vec::new();
        recorded.for_each_volume(options, |name, volume, id, decision| {
            let outcome = recorded.snapshotted.get(name);
            results.add(&id, name, volume.claim.as_ref(), Some(volume), &decision, outcome);
            decided_claims.extend(volume.bound_to());
        });
        // A snapshot that was taken counts, even where the run was aborted before it visited the volume.
        for (name, outcome) in &recorded.snapshotted {
            let is_known = || {
                let mut claims = recorded.claims.values();
                recorded.volumes.contains_key(name)
                    || claims.any(|claim| claim.volume.as_ref() == Some(name))
            };
            match outcome {
                SnapshotOutcome::PluginSnapshot(snapshot) if !is_known() => {
                    let info = BackupVolumeInfo { pv_name: name.to_string(), ..Default::default() };
                    results.infos.push(snapshot_info(info, snapshot));
                    results.snapshots.push((**snapshot).clone());
                }
                SnapshotOutcome::CsiSnapshot(record) if !is_known() => {
                    let info = BackupVolumeInfo {
                        pvc_name: record.claim.clone(),
                        pvc_namespace: record.namespace.clone(),
                        pv_name: name.to_string(),
                        ..Default::default()
                    };
                    results.infos.push(record.info(info));
                    results.csi_snapshots.push((**record).clone());
                }
                _ => {}
            }
        }
        decided_claims.sort_unstable();
        let is_decided = |key: &ClaimKey| decided_claims.binary_search(&key).is_ok();
        for (key, claim) in recorded.claims.iter().filter(|(key, _)| !is_decided(key)) {
            // A claim without a volume holds no data.
            let Some(volume) = &claim.volume else { continue };
            let case = Case {
                facts: &claim.facts,
                has_volume: false,
                has_claim: true,
                mounts: mounts.get(key).map_or(&[], Vec::as_slice),
            };
            let id = id("persistentvolumeclaims", &key.0, &key.1);
            let outcome = recorded.snapshotted.get(volume);
            results.add(&id, volume, Some(key), None, &decide::decide(&case, options), outcome);
        }
        for pod in &recorded.pods {
            let is_decided = |claim: &str| {
                let key = (pod.namespace.clone(), claim.into());
                is_decided(&key) || recorded.claims.contains_key(&key)
            };
            results.add_pod(pod, options, is_decided);
        }
        results
    }

    fn record_unreadable(&self, object: &Object, error: &serde_json::Error) {
        let text = format!(
            "the volumes of the pod are not known, because the pod cannot be read: {error}"
        );
        self.recorded.lock().unreadable.push((object.id(), text));
    }
}

impl RecordedFacts {
    fn add_pod(&mut self, object: &Object, read: volume_facts::PodObject) {
        let pod = PodFacts::new(object, read, |facts| {
            // Most are an `emptyDir`; those share one set of facts.
            match facts.volume_type {
                Some(plain) if facts.csi.is_none() && facts.nfs.is_none() => {
                    Arc::clone(self.shared_facts.entry(plain).or_insert_with(|| Arc::new(facts)))
                }
                _ => Arc::new(facts),
            }
        });
        if !pod.is_empty() {
            self.pods.push(pod);
        }
    }

    /// Decides on each PersistentVolume, which is identified by its claim where that is in the backup.
    fn for_each_volume<'a>(
        &'a self,
        options: &VolumeOptions<'_>,
        mut visit: impl FnMut(
            &'a Box<str>,
            &'a PersistentVolumeFacts,
            ResourceIdentifier,
            VolumeDecision<'_>,
        ),
    ) {
        let mounts = self.mounts();
        for (name, volume) in &self.volumes {
            let claim = volume.bound_to();
            let claim_facts = claim.and_then(|key| self.claims.get(key));
            let claim_facts = claim_facts.filter(|claim| claim.volume.as_ref() == Some(name));
            let facts = volume.facts_with(claim_facts);
            let case = Case {
                facts: &facts,
                has_volume: true,
                has_claim: claim_facts.is_some(),
                mounts: claim.and_then(|key| mounts.get(key)).map_or(&[], Vec::as_slice),
            };
            let id = match claim.filter(|_| claim_facts.is_some()) {
                Some((namespace, name)) => id("persistentvolumeclaims", namespace, name),
                None => id("persistentvolumes", "", name),
            };
            visit(name, volume, id, decide::decide(&case, options));
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

impl VolumeResults {
    /// Adds the outcome of a PersistentVolume, or of one that only its claim refers to.
    fn add(
        &mut self,
        id: &ResourceIdentifier,
        name: &str,
        claim: Option<&ClaimKey>,
        volume: Option<&PersistentVolumeFacts>,
        decision: &VolumeDecision<'_>,
        outcome: Option<&SnapshotOutcome>,
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
        let decision = match (decision, outcome) {
            // The current options do not matter: the snapshot was wanted when it was taken.
            (_, Some(SnapshotOutcome::PluginSnapshot(snapshot))) => {
                self.infos.push(snapshot_info(info, snapshot));
                self.snapshots.push((**snapshot).clone());
                return;
            }
            (_, Some(SnapshotOutcome::CsiSnapshot(record))) => {
                self.infos.push(record.info(info));
                self.csi_snapshots.push((**record).clone());
                return;
            }
            (_, Some(SnapshotOutcome::Unsupported(reason))) => {
                let skipped_reason = format!("csiSnapshot: {reason};");
                self.infos.push(BackupVolumeInfo { skipped: true, skipped_reason, ..info });
                return;
            }
            (VolumeDecision::Snapshot { fallback }, Some(SnapshotOutcome::Unmatched)) => {
                &fallback.into()
            }
            (decision, _) => decision,
        };
        let skipped_reason = messages::skipped_reason(decision);
        self.infos.push(BackupVolumeInfo { skipped: true, skipped_reason, ..info });
        match decision {
            VolumeDecision::Skipped(_) => {}
            // The failed request was reported when it was made.
            VolumeDecision::Snapshot { .. } if outcome.is_some() => {}
            VolumeDecision::Snapshot { .. } => {
                self.errors.push((id.clone(), messages::never_requested(name)));
            }
            VolumeDecision::Unsupported(method) => {
                self.errors.push((id.clone(), messages::unsupported(name, method)));
            }
            VolumeDecision::NoMethod(reason) => {
                self.warnings.push((id.clone(), messages::no_method(name, reason)));
            }
        }
    }

    /// Adds the outcome of a pod's volumes that are not PersistentVolumes, or whose PersistentVolumes and claims are
    /// both not in the backup.
    fn add_pod(
        &mut self,
        pod: &PodFacts,
        options: &VolumeOptions<'_>,
        is_decided: impl Fn(&str) -> bool,
    ) {
        let id = id("pods", &pod.namespace, &pod.name);
        let mut unsupported: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for volume in &pod.volumes {
            let cause = match &volume.source {
                Source::Claim(claim) if is_decided(claim) => continue,
                Source::Claim(_) => decide::wants_copy_of_claim(volume, options),
                Source::Inline(facts) => decide::wants_copy(volume, facts, options),
            };
            if let Some(cause) = cause {
                unsupported.entry(cause).or_default().push(&volume.name);
            }
        }
        for (cause, names) in unsupported {
            self.errors.push((id.clone(), messages::unsupported_in_pod(&names, cause)));
        }
        if !options.default_volumes_to_fs_backup {
            for (name, problem) in &pod.uncopyable {
                self.warnings.push((id.clone(), messages::uncopyable(name, *problem)));
            }
        }
    }
}

/// Record of a volume whose snapshot was requested from a plugin.
fn snapshot_info(info: BackupVolumeInfo, snapshot: &Snapshot) -> BackupVolumeInfo {
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
