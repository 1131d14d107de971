//! Messages about the data of volumes.

use bowline_api::annotation::{BACKUP_VOLUMES, BACKUP_VOLUMES_EXCLUDES};

use super::decide::{FsBackupCause, NoMethod, SkipCause, UnsupportedMethod, VolumeDecision};
use super::volume_facts::{CopyProblem, Obstacle};

/// Reason why a volume was not saved, for the volume info: the method, and the cause.
pub(super) fn skipped_reason(decision: &VolumeDecision<'_>) -> String {
    let (approach, reason) = match decision {
        VolumeDecision::Skipped(SkipCause::PolicySkip) => {
            ("any", "excluded by a volume policy (skip)".to_owned())
        }
        VolumeDecision::Skipped(SkipCause::PolicyCustom) => {
            ("any", "excluded by a volume policy (custom)".to_owned())
        }
        VolumeDecision::Skipped(SkipCause::SnapshotsOff) => {
            ("volumeSnapshot", "snapshotVolumes is false".to_owned())
        }
        VolumeDecision::Unsupported(UnsupportedMethod::FsBackup { .. }) => {
            ("podvolume", "file-system backup is not supported".to_owned())
        }
        VolumeDecision::Unsupported(UnsupportedMethod::CsiSnapshot { .. }) => {
            ("csiSnapshot", "no snapshot was created".to_owned())
        }
        VolumeDecision::Snapshot { .. } => ("volumeSnapshot", "no plugin was available".to_owned()),
        VolumeDecision::Unsupported(UnsupportedMethod::AnySnapshot) => {
            ("any", "this snapshot method is not supported".to_owned())
        }
        VolumeDecision::NoMethod(no_method @ NoMethod::NoSnapshotter { .. }) => {
            ("volumeSnapshot", no_method_reason(no_method))
        }
        VolumeDecision::NoMethod(no_method) => ("podvolume", no_method_reason(no_method)),
    };
    format!("{approach}: {reason};")
}

/// A volume that needs a method that is not supported.
pub(super) fn unsupported(volume: &str, lacking: &UnsupportedMethod<'_>) -> String {
    let prefix = format!("the data of volume {volume} is not in the backup");
    let snapshots_off = "use a volume policy with `skip` for it, or set snapshotVolumes to false";
    match lacking {
        UnsupportedMethod::FsBackup { cause, pod } => {
            let of_pod = pod.map(|pod| format!(" of the pod {pod}")).unwrap_or_default();
            format!(
                "{prefix}: file-system backup is requested, which this version does not support; \
                 {}",
                opt_out_hint(*cause, "it", &of_pod)
            )
        }
        UnsupportedMethod::CsiSnapshot { driver } => {
            format!("{prefix}: no CSI snapshot was created (driver {driver}); {snapshots_off}")
        }
        UnsupportedMethod::AnySnapshot => format!(
            "{prefix}: the PersistentVolume is not in the backup, so Bowline cannot snapshot the \
             volume; include persistentvolumes, {snapshots_off}"
        ),
    }
}

/// A volume selected for a snapshot that was never requested.
pub(super) fn never_requested(volume: &str) -> String {
    format!(
        "the data of volume {volume} is not in the backup: no snapshot was requested, which is a \
         bug"
    )
}

/// Volumes of a pod selected for `fs-backup`.
pub(super) fn unsupported_in_pod(volumes: &[&str], cause: FsBackupCause) -> String {
    let (volumes, them) = match volumes {
        [one] => (format!("volume {one} is"), "it"),
        all => (format!("volumes {} are", all.join(", ")), "them"),
    };
    format!(
        "the data of {volumes} not in the backup: file-system backup of {them} is requested, \
         which this version does not support; {}",
        opt_out_hint(cause, them, "")
    )
}

/// Hint for files that cannot be copied.
fn opt_out_hint(cause: FsBackupCause, them: &str, of_pod: &str) -> String {
    let policy = format!("use a volume policy with `skip` for {them}");
    match cause {
        FsBackupCause::Policy => policy,
        FsBackupCause::OptedIn => {
            format!("remove {them} from the annotation {BACKUP_VOLUMES}{of_pod}, or {policy}")
        }
        FsBackupCause::NotOptedOut => {
            format!("add {them} to the annotation {BACKUP_VOLUMES_EXCLUDES}{of_pod}, or {policy}")
        }
    }
}

/// A volume that no method fits.
pub(super) fn no_method(volume: &str, reason: &NoMethod<'_>) -> String {
    format!("the data of volume {volume} is not in the backup: {}", no_method_reason(reason))
}

fn no_method_reason(no_method: &NoMethod<'_>) -> String {
    match no_method {
        NoMethod::NoSnapshotter { volume_type } => {
            let volume_type = volume_type.unwrap_or("unknown");
            format!("no snapshotter supports volumes of the type {volume_type}")
        }
        NoMethod::Unreachable { pod, obstacle } => {
            let because = match obstacle {
                Obstacle::NotRunning => "is not running",
                Obstacle::NotMounted => "does not mount the volume",
                Obstacle::BlockDevice => "uses the volume as a block device",
            };
            format!("the files of the volume cannot be copied, because pod {pod} {because}")
        }
        NoMethod::HostPath => "file-system backup does not support hostPath volumes".to_owned(),
        NoMethod::NoClaims => {
            "file-system backup is requested, but claims are not backed up".to_owned()
        }
    }
}

/// A volume that a pod opts in to `fs-backup`, and that can never be copied.
pub(super) fn uncopyable(volume: &str, problem: CopyProblem) -> String {
    let reason = match problem {
        CopyProblem::Missing => "which the pod does not have",
        CopyProblem::HostPath => "but file-system backup does not support hostPath volumes",
    };
    format!("the annotation {BACKUP_VOLUMES} of the pod names the volume {volume}, {reason}")
}
