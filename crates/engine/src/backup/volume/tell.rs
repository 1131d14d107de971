//! What became of the data of volumes, in words.

use bowline_api::annotation::{BACKUP_VOLUMES, BACKUP_VOLUMES_EXCLUDES};

use super::decide::{Fate, Lacking, LeftOut, NoMethod, Why};
use super::note::{Obstacle, Problem};

/// Why a volume was not saved, as the volume info says it: the method, and the reason.
pub(super) fn skipped_reason(fate: &Fate<'_>) -> String {
    let (approach, reason) = match fate {
        Fate::LeftOut(LeftOut::PolicySkip) => ("any", "a volume policy says skip".to_owned()),
        Fate::LeftOut(LeftOut::PolicyCustom) => {
            ("any", "a volume policy leaves it to another tool".to_owned())
        }
        Fate::LeftOut(LeftOut::SnapshotsOff) => {
            ("volumeSnapshot", "snapshotVolumes is false".to_owned())
        }
        Fate::Lacking(Lacking::FsBackup { .. }) => {
            ("podvolume", "this version cannot copy files".to_owned())
        }
        Fate::Lacking(Lacking::CsiSnapshot { .. }) => {
            ("csiSnapshot", "no snapshot was taken".to_owned())
        }
        Fate::Snapshot { .. } => ("volumeSnapshot", "no plugin could be asked".to_owned()),
        Fate::Lacking(Lacking::AnySnapshot) => {
            ("any", "this version takes no snapshots".to_owned())
        }
        Fate::NoMethod(why @ NoMethod::NoSnapshotter { .. }) => ("volumeSnapshot", reason(why)),
        Fate::NoMethod(why) => ("podvolume", reason(why)),
    };
    format!("{approach}: {reason};")
}

/// A volume that was to be saved by a method that is lacking.
pub(super) fn lacking(volume: &str, lacking: &Lacking<'_>) -> String {
    let lost = format!("the data of its volume {volume} is not in the backup");
    let snapshots_off = "let a volume policy say `skip` for it, or set snapshotVolumes to false";
    match lacking {
        Lacking::FsBackup { why, pod } => {
            let of_pod = pod.map(|pod| format!(" of the pod {pod}")).unwrap_or_default();
            format!(
                "{lost}: it is to be copied file by file (fs-backup), which this version cannot do; \
                 {}",
                opt_out(*why, "it", &of_pod)
            )
        }
        Lacking::CsiSnapshot { driver } => format!(
            "{lost}: it wants a CSI snapshot (driver {driver}), and nobody has taken one; \
             {snapshots_off}"
        ),
        Lacking::AnySnapshot => format!(
            "{lost}: it wants a snapshot, which this version cannot take, and the volume itself is \
             not in the backup, either; {snapshots_off}"
        ),
    }
}

/// A volume that was to be snapshotted, and that nobody has seen to.
pub(super) fn forgotten(volume: &str) -> String {
    format!(
        "the data of its volume {volume} is not in the backup: no snapshot was asked for, which is a \
         defect"
    )
}

/// Volumes of a pod that were to be copied.
pub(super) fn lacking_in_pod(volumes: &[&str], why: Why) -> String {
    let (volumes, them) = match volumes {
        [one] => (format!("volume {one} is"), "it"),
        all => (format!("volumes {} are", all.join(", ")), "them"),
    };
    format!(
        "the data of its {volumes} not in the backup: fs-backup is to copy {them} file by file, \
         which this version cannot do; {}",
        opt_out(why, them, "")
    )
}

/// What to do about files that cannot be copied.
fn opt_out(why: Why, them: &str, of_pod: &str) -> String {
    let policy = format!("let a volume policy say `skip` for {them}");
    match why {
        Why::Policy => policy,
        Why::OptedIn => {
            format!("take {them} out of the annotation {BACKUP_VOLUMES}{of_pod}, or {policy}")
        }
        Why::NotOptedOut => {
            format!("add {them} to the annotation {BACKUP_VOLUMES_EXCLUDES}{of_pod}, or {policy}")
        }
    }
}

/// A volume that nothing fits.
pub(super) fn no_method(volume: &str, why: &NoMethod<'_>) -> String {
    format!("the data of its volume {volume} is not in the backup: {}", reason(why))
}

fn reason(why: &NoMethod<'_>) -> String {
    match why {
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

/// A volume that a pod wants copied, and that can never be.
pub(super) fn unanswerable(volume: &str, problem: Problem) -> String {
    let reason = match problem {
        Problem::Missing => "which it does not have",
        Problem::HostPath => "which is a hostPath: those are never copied",
    };
    format!("its annotation {BACKUP_VOLUMES} names the volume {volume}, {reason}")
}
