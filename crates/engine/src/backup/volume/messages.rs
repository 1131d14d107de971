//! Messages about the data of volumes.

use bowline_api::annotation::{BACKUP_VOLUMES, BACKUP_VOLUMES_EXCLUDES};

use super::decide::{FsBackupCause, NoMethod, SkipCause, UnsupportedMethod, VolumeDecision};
use super::volume_facts::{CopyProblem, Obstacle};

/// Reason why a volume was not saved, for the volume info: the method, and the cause.
pub(super) fn skipped_reason(decision: &VolumeDecision<'_>) -> String {
    let (approach, reason) = match decision {
        VolumeDecision::Skipped(SkipCause::PolicySkip) => {
            ("any", "a volume policy says skip".to_owned())
        }
        VolumeDecision::Skipped(SkipCause::PolicyCustom) => {
            ("any", "a volume policy leaves it to another tool".to_owned())
        }
        VolumeDecision::Skipped(SkipCause::SnapshotsOff) => {
            ("volumeSnapshot", "snapshotVolumes is false".to_owned())
        }
        VolumeDecision::Unsupported(UnsupportedMethod::FsBackup { .. }) => {
            ("podvolume", "this version cannot copy files".to_owned())
        }
        VolumeDecision::Unsupported(UnsupportedMethod::CsiSnapshot { .. }) => {
            ("csiSnapshot", "no snapshot was taken".to_owned())
        }
        VolumeDecision::Snapshot { .. } => {
            ("volumeSnapshot", "no plugin could be asked".to_owned())
        }
        VolumeDecision::Unsupported(UnsupportedMethod::AnySnapshot) => {
            ("any", "this version takes no snapshots".to_owned())
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
    let prefix = format!("the data of its volume {volume} is not in the backup");
    let snapshots_off = "let a volume policy say `skip` for it, or set snapshotVolumes to false";
    match lacking {
        UnsupportedMethod::FsBackup { cause, pod } => {
            let of_pod = pod.map(|pod| format!(" of the pod {pod}")).unwrap_or_default();
            format!(
                "{prefix}: it is to be copied file by file (fs-backup), which this version cannot do; \
                 {}",
                opt_out_hint(*cause, "it", &of_pod)
            )
        }
        UnsupportedMethod::CsiSnapshot { driver } => format!(
            "{prefix}: it wants a CSI snapshot (driver {driver}), and nobody has taken one; \
             {snapshots_off}"
        ),
        UnsupportedMethod::AnySnapshot => format!(
            "{prefix}: it wants a snapshot, which this version cannot take, and the volume itself is \
             not in the backup, either; {snapshots_off}"
        ),
    }
}

/// A volume selected for a snapshot that was never requested.
pub(super) fn never_requested(volume: &str) -> String {
    format!(
        "the data of its volume {volume} is not in the backup: no snapshot was asked for, which is a \
         defect"
    )
}

/// Volumes of a pod selected for `fs-backup`.
pub(super) fn unsupported_in_pod(volumes: &[&str], cause: FsBackupCause) -> String {
    let (volumes, them) = match volumes {
        [one] => (format!("volume {one} is"), "it"),
        all => (format!("volumes {} are", all.join(", ")), "them"),
    };
    format!(
        "the data of its {volumes} not in the backup: fs-backup is to copy {them} file by file, \
         which this version cannot do; {}",
        opt_out_hint(cause, them, "")
    )
}

/// Hint for files that cannot be copied.
fn opt_out_hint(cause: FsBackupCause, them: &str, of_pod: &str) -> String {
    let policy = format!("let a volume policy say `skip` for {them}");
    match cause {
        FsBackupCause::Policy => policy,
        FsBackupCause::OptedIn => {
            format!("take {them} out of the annotation {BACKUP_VOLUMES}{of_pod}, or {policy}")
        }
        FsBackupCause::NotOptedOut => {
            format!("add {them} to the annotation {BACKUP_VOLUMES_EXCLUDES}{of_pod}, or {policy}")
        }
    }
}

/// A volume that no method fits.
pub(super) fn no_method(volume: &str, reason: &NoMethod<'_>) -> String {
    format!("the data of its volume {volume} is not in the backup: {}", no_method_reason(reason))
}

fn no_method_reason(no_method: &NoMethod<'_>) -> String {
    match no_method {
        NoMethod::NoSnapshotter { volume_type } => {
            let volume_type = volume_type.unwrap_or("unknown");
            format!("nothing can snapshot a volume of the type {volume_type} here")
        }
        NoMethod::Unreachable { pod, obstacle } => {
            let because = match obstacle {
                Obstacle::NotRunning => "does not run",
                Obstacle::NotMounted => "has it in no container",
                Obstacle::BlockDevice => "uses it as a block device",
            };
            format!("its files cannot be copied, since the pod {pod} {because}")
        }
        NoMethod::HostPath => "the files of a hostPath volume are never copied".to_owned(),
        NoMethod::NoClaims => "its files are to be copied, but claims are not backed up".to_owned(),
    }
}

/// A volume that a pod opts in to `fs-backup`, and that can never be copied.
pub(super) fn uncopyable(volume: &str, problem: CopyProblem) -> String {
    let reason = match problem {
        CopyProblem::Missing => "which it does not have",
        CopyProblem::HostPath => "which is a hostPath: those are never copied",
    };
    format!("its annotation {BACKUP_VOLUMES} names the volume {volume}, {reason}")
}
