//! Decision on the method for a volume, and its result.

use super::VolumeOptions;
use super::volume_facts::{Obstacle, PodVolume};
use crate::backup::policy::{Method, VolumeFacts};

/// A PersistentVolume to decide on.
pub(super) struct Case<'a> {
    pub(super) facts: &'a VolumeFacts,
    /// True if the volume is in the backup, so that its facts are known.
    pub(super) has_volume: bool,
    /// True if its claim is in the backup.
    pub(super) has_claim: bool,
    /// The volumes of pods that refer to it.
    pub(super) mounts: &'a [Mount<'a>],
}

/// A volume of a pod.
#[derive(Clone, Copy)]
pub(super) struct Mount<'a> {
    pub(super) pod: &'a str,
    pub(super) volume: &'a PodVolume,
}

/// Decision on the data of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VolumeDecision<'a> {
    /// The data is not wanted.
    Skipped(SkipCause),
    /// A plugin is to snapshot the volume.
    Snapshot {
        /// Fallback if no plugin supports it.
        fallback: SnapshotFallback,
    },
    /// The volume needs a method that this version does not support.
    Unsupported(UnsupportedMethod<'a>),
    /// The data is wanted, but no method fits the volume.
    NoMethod(NoMethod<'a>),
}

/// Fallback for a volume that no plugin can snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SnapshotFallback {
    /// A snapshot by its CSI driver.
    Csi { driver: String },
    /// No fallback.
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

/// Reason why the data of a volume is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipCause {
    PolicySkip,
    PolicyCustom,
    SnapshotsOff,
}

/// A method that this version does not support.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnsupportedMethod<'a> {
    FsBackup {
        cause: FsBackupCause,
        pod: Option<&'a str>,
    },
    CsiSnapshot {
        driver: String,
    },
    /// The kind of snapshot is unknown, since the volume is not in the backup.
    AnySnapshot,
}

/// Reason for a file system backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FsBackupCause {
    Policy,
    OptedIn,
    NotOptedOut,
}

/// Reason why no method fits a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoMethod<'a> {
    /// Nothing can snapshot it.
    NoSnapshotter { volume_type: Option<&'static str> },
    /// Its files cannot be read through the pod that mounts it.
    Unreachable { pod: &'a str, obstacle: Obstacle },
    /// It is a folder of a node.
    HostPath,
    /// It is selected for `fs-backup`, but claims are not backed up.
    NoClaims,
}

/// Decides on the data of a PersistentVolume.
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

/// Reason for a file system backup of a pod's volume that is not a claim, if any.
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

/// Reason for a file system backup of a pod's volume that is a claim of which nothing is known, if any.
pub(super) fn wants_copy_of_claim(
    volume: &PodVolume,
    options: &VolumeOptions<'_>,
) -> Option<FsBackupCause> {
    opt_in_cause(volume, options).filter(|_| options.includes_claims && volume.obstacle.is_none())
}

/// The method that a policy sets for a volume.
fn method(facts: &VolumeFacts, options: &VolumeOptions<'_>) -> Option<Method> {
    options.policies?.action_for(facts).map(|action| action.method)
}

/// Reason for a file system backup of a pod's volume where no policy decides.
fn opt_in_cause(volume: &PodVolume, options: &VolumeOptions<'_>) -> Option<FsBackupCause> {
    if options.default_volumes_to_fs_backup {
        (!volume.is_opted_out).then_some(FsBackupCause::NotOptedOut)
    } else {
        volume.is_opted_in.then_some(FsBackupCause::OptedIn)
    }
}
