//! Facts about pods, claims and volumes: names and properties, no objects.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bowline_api::annotation::{BACKUP_VOLUMES, BACKUP_VOLUMES_EXCLUDES};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};
use serde::Deserialize;

use super::ClaimKey;
use crate::backup::policy::VolumeFacts;
use crate::item::Object;

/// Name prefix of the volume that once held a ServiceAccount's token.
const TOKEN_VOLUME_PREFIX: &str = "default-token";

/// A pod with volumes that can hold data.
#[derive(Debug)]
pub(crate) struct PodFacts {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) volumes: Vec<PodVolume>,
    /// Volumes that it opts in to `fs-backup`, and the reason why they can never be copied.
    pub(super) uncopyable: Vec<(Box<str>, CopyProblem)>,
}

/// A volume of a pod.
#[derive(Debug)]
pub(super) struct PodVolume {
    pub(super) name: Box<str>,
    pub(super) source: Source,
    /// True if the pod opts the volume in to `fs-backup`.
    pub(super) is_opted_in: bool,
    /// True if the pod opts the volume out of `fs-backup`.
    pub(super) is_opted_out: bool,
    /// Reason why its files cannot be read through this pod, if any.
    pub(super) obstacle: Option<Obstacle>,
}

/// Source of a pod's volume.
#[derive(Debug)]
pub(super) enum Source {
    /// A claim.
    Claim(Box<str>),
    /// A volume of the pod's own.
    Inline(Arc<VolumeFacts>),
}

/// Reason why the files of a volume cannot be read through a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    NotRunning,
    NotMounted,
    BlockDevice,
}

/// Reason why a volume that a pod names cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyProblem {
    Missing,
    HostPath,
}

/// Facts about a claim.
#[derive(Debug)]
pub(super) struct ClaimFacts {
    /// The volume that it is bound to.
    pub(super) volume: Option<Box<str>>,
    pub(super) facts: VolumeFacts,
}

/// Facts about a PersistentVolume.
#[derive(Debug)]
pub(super) struct PersistentVolumeFacts {
    /// The claim that it is or was bound to.
    pub(super) claim: Option<ClaimKey>,
    is_bound: bool,
    pub(super) reclaim_policy: Box<str>,
    pub(super) labels: BTreeMap<String, String>,
    facts: VolumeFacts,
}

/// Fields read of a pod.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PodObject {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    volumes: Option<Vec<Volume>>,
    containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    volume_mounts: Option<Vec<VolumeUse>>,
    volume_devices: Option<Vec<VolumeUse>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeUse {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

pub(super) fn read_pod(pod: &Object) -> serde_json::Result<PodObject> {
    serde_json::from_slice(pod.item.json())
}

impl PodFacts {
    pub(super) fn new(
        object: &Object,
        pod: PodObject,
        mut share: impl FnMut(VolumeFacts) -> Arc<VolumeFacts>,
    ) -> Self {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let listed = |key: &str| -> HashSet<&str> {
            annotations.get(key).into_iter().flat_map(|list| list.split(',')).collect()
        };
        let (opted_in, opted_out) = (listed(BACKUP_VOLUMES), listed(BACKUP_VOLUMES_EXCLUDES));
        let containers = pod.spec.containers.unwrap_or_default();
        let names = |of: fn(&Container) -> &Option<Vec<VolumeUse>>| -> HashSet<&str> {
            containers.iter().flat_map(of).flatten().map(|used| used.name.as_str()).collect()
        };
        let mounted = names(|container| &container.volume_mounts);
        let devices = names(|container| &container.volume_devices);
        let is_running = pod.status.phase.as_deref() == Some("Running") && !object.is_being_deleted;

        let all = pod.spec.volumes.unwrap_or_default();
        let mut uncopyable = Vec::new();
        for name in opted_in.iter().copied().filter(|name| !name.is_empty()) {
            match all.iter().find(|volume| volume.name == name) {
                None => uncopyable.push((name.into(), CopyProblem::Missing)),
                Some(volume) if volume.host_path.is_some() => {
                    uncopyable.push((name.into(), CopyProblem::HostPath));
                }
                Some(_) => {}
            }
        }
        uncopyable.sort_unstable_by(|(one, _), (other, _): &(Box<str>, _)| one.cmp(other));
        let mut volumes = Vec::new();
        for volume in all.iter().filter(|volume| can_hold_data(volume)) {
            let name = volume.name.as_str();
            let obstacle = if !is_running {
                Some(Obstacle::NotRunning)
            } else if devices.contains(name) {
                Some(Obstacle::BlockDevice)
            } else {
                (!mounted.contains(name)).then_some(Obstacle::NotMounted)
            };
            let source = match claim_of(volume, &object.name) {
                Some(claim) => Source::Claim(claim),
                // A pod's own volume does not outlive it, and does not exist before it.
                None if obstacle.is_some() => continue,
                None => Source::Inline(share(VolumeFacts::of_pod_volume(volume, None))),
            };
            volumes.push(PodVolume {
                name: name.into(),
                source,
                is_opted_in: opted_in.contains(name),
                is_opted_out: opted_out.contains(name),
                obstacle,
            });
        }
        let (namespace, name) = (object.namespace.as_str().into(), object.name.as_str().into());
        Self { namespace, name, volumes, uncopyable }
    }

    /// Parses a pod that is not part of the run.
    pub(crate) fn read(object: &Object) -> serde_json::Result<Self> {
        Ok(Self::new(object, read_pod(object)?, Arc::new))
    }

    /// The name of the pod.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// True if there is nothing to record about it.
    pub(super) fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.uncopyable.is_empty()
    }
}

/// True if a volume holds more than other objects, or the files of a node. Those are never copied.
fn can_hold_data(volume: &Volume) -> bool {
    volume.host_path.is_none()
        && volume.secret.is_none()
        && volume.config_map.is_none()
        && volume.projected.is_none()
        && volume.downward_api.is_none()
        && !volume.name.starts_with(TOKEN_VOLUME_PREFIX)
}

/// The claim of a volume: its own or one that Kubernetes creates for the pod.
fn claim_of(volume: &Volume, pod: &str) -> Option<Box<str>> {
    let given = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let generated = || volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name));
    given.or_else(generated).map(Into::into)
}

impl ClaimFacts {
    pub(super) fn read(claim: &Object) -> serde_json::Result<Self> {
        let claim: PersistentVolumeClaim = serde_json::from_slice(claim.item.json())?;
        let facts = VolumeFacts::of_claim(&claim);
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        let is_bound = facts.pvc_phase == "Bound";
        let volume = volume.filter(|name| is_bound && !name.is_empty()).map(Into::into);
        Ok(Self { volume, facts })
    }
}

impl PersistentVolumeFacts {
    pub(super) fn read(volume: &Object) -> serde_json::Result<Self> {
        let volume: PersistentVolume = serde_json::from_slice(volume.item.json())?;
        let facts = VolumeFacts::of_persistent_volume(&volume, None);
        let status = volume.status.unwrap_or_default();
        let spec = volume.spec.unwrap_or_default();
        let claim = spec.claim_ref.and_then(|claim| Some((claim.namespace?, claim.name?)));
        Ok(Self {
            claim: claim.map(|(namespace, name)| (namespace.into(), name.into())),
            is_bound: status.phase.as_deref() == Some("Bound"),
            reclaim_policy: spec.persistent_volume_reclaim_policy.unwrap_or_default().into(),
            labels: volume.metadata.labels.unwrap_or_default(),
            facts,
        })
    }

    /// The claim that it is bound to now. A released volume keeps the name of its claim, and there may be another
    /// claim of that name.
    pub(super) fn bound_to(&self) -> Option<&ClaimKey> {
        self.claim.as_ref().filter(|_| self.is_bound)
    }

    /// Facts that a policy can test, given its claim.
    pub(super) fn facts_with(&self, claim: Option<&ClaimFacts>) -> VolumeFacts {
        let of_volume = self.facts.clone();
        let Some(ClaimFacts { facts: of_claim, .. }) = claim else { return of_volume };
        let of_claim = of_claim.clone();
        VolumeFacts {
            pvc_labels: of_claim.pvc_labels,
            pvc_phase: of_claim.pvc_phase,
            pvc_volume_mode: of_claim.pvc_volume_mode,
            pvc_access_modes: of_claim.pvc_access_modes,
            ..of_volume
        }
    }
}
