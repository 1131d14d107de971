//! Which method a volume is to be saved by, and what comes of it.

use super::VolumeOptions;
use super::volume_facts::{Obstacle, PodVolume};
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
pub(super) enum VolumeDecision<'a> {
    /// Nobody wants it saved.
    Skipped(SkipCause),
    /// It is to be snapshotted by a plugin.
    Snapshot {
        /// What is left if no plugin knows it.
        fallback: SnapshotFallback,
    },
    /// It is to be saved by a method that this version does not have.
    Unsupported(UnsupportedMethod<'a>),
    /// It is to be saved, but nothing fits it.
    NoMethod(NoMethod<'a>),
}

/// What is left for a volume that no plugin can snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SnapshotFallback {
    /// A snapshot by its CSI driver.
    Csi { driver: String },
    /// Nothing.
    Nothing { volume_type: Option<&'static str> },
}

impl From<&SnapshotFallback> for VolumeDecision<'_> {
    fn from(fallback: &SnapshotFallback) -> Self {
        match fallback.clone() {
            SnapshotFallback::Csi { driver } => {
                Self::Unsupported(UnsupportedMethod::CsiSnapshot { driver })
            }
            SnapshotFallback::Nothing { volume_type } => {
                Self::NoMethod(NoMethod::NoSnapshotter { volume_type })
            }
        }
    }
}

/// Who does not want the data of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipCause {
    PolicySkip,
    PolicyCustom,
    SnapshotsOff,
}

/// The method that this version does not have.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnsupportedMethod<'a> {
    FsBackup {
        cause: FsBackupCause,
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
pub(super) enum FsBackupCause {
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
pub(super) fn decide<'a>(case: &Case<'a>, options: &VolumeOptions<'_>) -> VolumeDecision<'a> {
    match method(case.facts, options) {
        Some(Method::Skip) => return VolumeDecision::Skipped(SkipCause::PolicySkip),
        Some(Method::Custom) => return VolumeDecision::Skipped(SkipCause::PolicyCustom),
        Some(Method::FsBackup) => {
            return decide_fs_backup(case, FsBackupCause::Policy, None, options);
        }
        Some(Method::Snapshot) => return decide_snapshot(case, options),
        None => {}
    }
    let mut wanting = case.mounts.iter().filter_map(|mount| {
        let cause = opt_in_cause(mount.volume, options)?;
        Some((cause, mount))
    });
    // One pod through which the files can be read is enough.
    let by_reachable = wanting.clone().find(|(_, mount)| mount.volume.obstacle.is_none());
    match by_reachable.or_else(|| wanting.next()) {
        Some((cause, mount)) => decide_fs_backup(case, cause, Some(mount), options),
        None if options.snapshot_volumes => decide_snapshot(case, options),
        None => VolumeDecision::Skipped(SkipCause::SnapshotsOff),
    }
}

fn decide_fs_backup<'a>(
    case: &Case<'a>,
    cause: FsBackupCause,
    mount: Option<&Mount<'a>>,
    options: &VolumeOptions<'_>,
) -> VolumeDecision<'a> {
    if !options.includes_claims {
        return VolumeDecision::NoMethod(NoMethod::NoClaims);
    }
    if case.facts.volume_type == Some("hostPath") {
        return VolumeDecision::NoMethod(NoMethod::HostPath);
    }
    let obstacle = mount.and_then(|mount| Some((mount.pod, mount.volume.obstacle?)));
    match obstacle {
        Some((pod, obstacle)) => VolumeDecision::NoMethod(NoMethod::Unreachable { pod, obstacle }),
        None => VolumeDecision::Unsupported(UnsupportedMethod::FsBackup {
            cause,
            pod: mount.map(|mount| mount.pod),
        }),
    }
}

fn decide_snapshot<'a>(case: &Case<'a>, options: &VolumeOptions<'_>) -> VolumeDecision<'a> {
    if !case.has_volume {
        return VolumeDecision::Unsupported(UnsupportedMethod::AnySnapshot);
    }
    let fallback = match &case.facts.csi {
        // Velero takes a CSI snapshot of a claim, never of a volume alone.
        Some(csi) if case.has_claim => SnapshotFallback::Csi { driver: csi.driver.clone() },
        _ => SnapshotFallback::Nothing { volume_type: case.facts.volume_type },
    };
    if options.has_snapshot_locations {
        VolumeDecision::Snapshot { fallback }
    } else {
        (&fallback).into()
    }
}

/// Whether the files in a volume of a pod are to be copied that is no claim.
pub(super) fn wants_copy(
    volume: &PodVolume,
    facts: &VolumeFacts,
    options: &VolumeOptions<'_>,
) -> Option<FsBackupCause> {
    match method(facts, options) {
        Some(Method::FsBackup) => Some(FsBackupCause::Policy),
        Some(Method::Skip | Method::Snapshot | Method::Custom) => None,
        None => opt_in_cause(volume, options),
    }
}

/// Whether the files in a volume of a pod are to be copied that is a claim of which nothing is known.
pub(super) fn wants_copy_of_claim(
    volume: &PodVolume,
    options: &VolumeOptions<'_>,
) -> Option<FsBackupCause> {
    opt_in_cause(volume, options).filter(|_| options.includes_claims && volume.obstacle.is_none())
}

/// What a policy says about a volume.
fn method(facts: &VolumeFacts, options: &VolumeOptions<'_>) -> Option<Method> {
    options.policies?.action_for(facts).map(|action| action.method)
}

/// Whether a pod wants a volume of it copied, where no policy says otherwise.
fn opt_in_cause(volume: &PodVolume, options: &VolumeOptions<'_>) -> Option<FsBackupCause> {
    if options.default_volumes_to_fs_backup {
        (!volume.is_opted_out).then_some(FsBackupCause::NotOptedOut)
    } else {
        volume.is_opted_in.then_some(FsBackupCause::OptedIn)
    }
}
