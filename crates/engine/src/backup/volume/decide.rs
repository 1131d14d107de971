//! Which method a volume is to be saved by, and what comes of it.

use super::Wishes;
use super::note::{Obstacle, PodVolume};
use crate::backup::policy::{Method, VolumeFacts};

/// A PersistentVolume to judge.
pub(super) struct Case<'a> {
    pub(super) facts: &'a VolumeFacts,
    /// Whether the volume is in the backup, so that its facts are known.
    pub(super) has_volume: bool,
    /// Whether its claim is in the backup.
    pub(super) has_claim: bool,
    /// The volumes of pods that it is.
    pub(super) mounts: &'a [Mount<'a>],
}

/// A volume of a pod.
#[derive(Clone, Copy)]
pub(super) struct Mount<'a> {
    pub(super) pod: &'a str,
    pub(super) volume: &'a PodVolume,
}

/// What becomes of the data of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate<'a> {
    /// Nobody wants it saved.
    LeftOut(LeftOut),
    /// It is to be snapshotted by a plugin.
    Snapshot {
        /// What is left if no plugin knows it.
        without: Without,
    },
    /// It is to be saved by a method that this version does not have.
    Lacking(Lacking<'a>),
    /// It is to be saved, but nothing fits it.
    NoMethod(NoMethod<'a>),
}

/// What is left for a volume that no plugin can snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Without {
    /// A snapshot by its CSI driver.
    Csi { driver: String },
    /// Nothing.
    Nothing { volume_type: Option<&'static str> },
}

impl From<&Without> for Fate<'_> {
    fn from(without: &Without) -> Self {
        match without.clone() {
            Without::Csi { driver } => Self::Lacking(Lacking::CsiSnapshot { driver }),
            Without::Nothing { volume_type } => {
                Self::NoMethod(NoMethod::NoSnapshotter { volume_type })
            }
        }
    }
}

/// Who does not want the data of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    PolicySkip,
    PolicyCustom,
    SnapshotsOff,
}

/// The method that this version does not have.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lacking<'a> {
    FsBackup {
        why: Why,
        pod: Option<&'a str>,
    },
    CsiSnapshot {
        driver: String,
    },
    /// What kind of snapshot it takes is not known, since the volume is not in the backup.
    AnySnapshot,
}

/// Why files are to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    Policy,
    OptedIn,
    NotOptedOut,
}

/// Why no method fits a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoMethod<'a> {
    /// Nothing can snapshot it.
    NoSnapshotter { volume_type: Option<&'static str> },
    /// Its files cannot be read through the pod that has it.
    Unreachable { pod: &'a str, obstacle: Obstacle },
    /// It is a folder of a node.
    HostPath,
    /// Its files are to be copied, but claims are not backed up.
    NoClaims,
}

/// What becomes of the data of a PersistentVolume.
pub(super) fn fate<'a>(case: &Case<'a>, wishes: &Wishes<'_>) -> Fate<'a> {
    match method(case.facts, wishes) {
        Some(Method::Skip) => return Fate::LeftOut(LeftOut::PolicySkip),
        Some(Method::Custom) => return Fate::LeftOut(LeftOut::PolicyCustom),
        Some(Method::FsBackup) => return copied(case, Why::Policy, None, wishes),
        Some(Method::Snapshot) => return snapshotted(case, wishes),
        None => {}
    }
    let mut wanting = case.mounts.iter().filter_map(|mount| {
        let why = opted(mount.volume, wishes)?;
        Some((why, mount))
    });
    // One pod through which the files can be read is enough.
    let by_reachable = wanting.clone().find(|(_, mount)| mount.volume.obstacle.is_none());
    match by_reachable.or_else(|| wanting.next()) {
        Some((why, mount)) => copied(case, why, Some(mount), wishes),
        None if wishes.snapshot_volumes => snapshotted(case, wishes),
        None => Fate::LeftOut(LeftOut::SnapshotsOff),
    }
}

fn copied<'a>(
    case: &Case<'a>,
    why: Why,
    mount: Option<&Mount<'a>>,
    wishes: &Wishes<'_>,
) -> Fate<'a> {
    if !wishes.includes_claims {
        return Fate::NoMethod(NoMethod::NoClaims);
    }
    if case.facts.volume_type == Some("hostPath") {
        return Fate::NoMethod(NoMethod::HostPath);
    }
    let obstacle = mount.and_then(|mount| Some((mount.pod, mount.volume.obstacle?)));
    match obstacle {
        Some((pod, obstacle)) => Fate::NoMethod(NoMethod::Unreachable { pod, obstacle }),
        None => Fate::Lacking(Lacking::FsBackup { why, pod: mount.map(|mount| mount.pod) }),
    }
}

fn snapshotted<'a>(case: &Case<'a>, wishes: &Wishes<'_>) -> Fate<'a> {
    if !case.has_volume {
        return Fate::Lacking(Lacking::AnySnapshot);
    }
    let without = match &case.facts.csi {
        // Velero takes a CSI snapshot of a claim, never of a volume alone.
        Some(csi) if case.has_claim => Without::Csi { driver: csi.driver.clone() },
        _ => Without::Nothing { volume_type: case.facts.volume_type },
    };
    if wishes.has_snapshot_locations { Fate::Snapshot { without } } else { (&without).into() }
}

/// Whether the files in a volume of a pod are to be copied that is no claim.
pub(super) fn wants_copy(
    volume: &PodVolume,
    facts: &VolumeFacts,
    wishes: &Wishes<'_>,
) -> Option<Why> {
    match method(facts, wishes) {
        Some(Method::FsBackup) => Some(Why::Policy),
        Some(Method::Skip | Method::Snapshot | Method::Custom) => None,
        None => opted(volume, wishes),
    }
}

/// Whether the files in a volume of a pod are to be copied that is a claim of which nothing is known.
pub(super) fn wants_copy_of_claim(volume: &PodVolume, wishes: &Wishes<'_>) -> Option<Why> {
    opted(volume, wishes).filter(|_| wishes.includes_claims && volume.obstacle.is_none())
}

/// What a policy says about a volume.
fn method(facts: &VolumeFacts, wishes: &Wishes<'_>) -> Option<Method> {
    wishes.policies?.action_for(facts).map(|action| action.method)
}

/// Whether a pod wants a volume of it copied, where no policy says otherwise.
fn opted(volume: &PodVolume, wishes: &Wishes<'_>) -> Option<Why> {
    if wishes.default_volumes_to_fs_backup {
        (!volume.is_opted_out).then_some(Why::NotOptedOut)
    } else {
        volume.is_opted_in.then_some(Why::OptedIn)
    }
}
