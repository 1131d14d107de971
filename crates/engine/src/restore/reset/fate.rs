//! What becomes of a volume.
//!
//! The rules are Velero's: a volume whose data was saved gets it back, one without data is made
//! anew if it would have gone with its claim, and any other is created as it was. This version can
//! bring back data by no method yet, so where Velero would, the volume is [`Fate::Lacking`]: an
//! application must not come up with an empty volume and nobody knowing.

use bowline_store::file::{BackupVolumeInfo, Method, Outcome};
use serde_json::Value;

/// What becomes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is created as it was. Its data is where it always was.
    AsIs,
    /// It is not created: its claim gets a new one, which is empty. The reason is for the user.
    Reprovision(String),
    /// Its data cannot be brought back, and why. Neither it nor its claim is created.
    Lacking(String),
}

/// What is known of a volume's data.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a finding of its own")]
pub struct Saved<'a> {
    /// What the backup says of it, if it says anything. The rest counts only if it does not.
    pub info: Option<&'a BackupVolumeInfo>,
    /// Whether a plugin took a snapshot of it.
    pub has_snapshot: bool,
    /// Whether its files were copied.
    pub has_pod_volume_backup: bool,
    /// Whether a CSI driver took a snapshot of it.
    pub has_csi_snapshot: bool,
    /// Whether the data of such a snapshot was copied.
    pub has_data_upload: bool,
}

/// What a user wants to happen with volumes.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Whether volumes are made from the snapshots of plugins. If not, they are created as they
    /// were.
    pub restore_pvs: bool,
    /// Whether a volume whose data cannot be brought back may come up empty.
    pub allow_empty: bool,
}

/// Decides what becomes of a PersistentVolume.
pub fn fate(volume: &Value, saved: Saved<'_>, wishes: Wishes) -> Fate {
    match means(saved) {
        Some(Means::Snapshot) if !wishes.restore_pvs => Fate::AsIs,
        Some(means) => {
            let reason = lacking(means, saved.info);
            if wishes.allow_empty { Fate::Reprovision(reason) } else { Fate::Lacking(reason) }
        }
        None if would_go_with_its_claim(volume) => Fate::Reprovision(not_saved(saved.info)),
        None => Fate::AsIs,
    }
}

/// By what means data was saved.
#[derive(Clone, Copy, Debug)]
enum Means {
    Snapshot,
    Files,
    Csi,
    DataMover,
    Unknown,
}

fn means(saved: Saved<'_>) -> Option<Means> {
    match saved {
        Saved { info: Some(info), .. } if info.skipped => None,
        Saved { info: Some(info), .. } => Some(match info.backup_method.as_ref()? {
            Method::NativeSnapshot => Means::Snapshot,
            Method::PodVolumeBackup | Method::PodVolumeRestore => Means::Files,
            Method::CsiSnapshot if info.snapshot_data_moved => Means::DataMover,
            Method::CsiSnapshot => Means::Csi,
            Method::Other(_) => Means::Unknown,
        }),
        Saved { has_snapshot: true, .. } => Some(Means::Snapshot),
        Saved { has_pod_volume_backup: true, .. } => Some(Means::Files),
        Saved { has_data_upload: true, .. } => Some(Means::DataMover),
        Saved { has_csi_snapshot: true, .. } => Some(Means::Csi),
        _ => None,
    }
}

fn lacking(means: Means, info: Option<&BackupVolumeInfo>) -> String {
    if info.is_some_and(|info| info.result == Some(Outcome::Failed)) {
        return "its data is not in the backup: saving it had failed".to_owned();
    }
    let what = match means {
        Means::Snapshot => "it is in a snapshot of a plugin",
        Means::Files => "it is in a copy of its files",
        Means::Csi => "it is in a snapshot of a CSI driver",
        Means::DataMover => "a data mover copied it into the store",
        Means::Unknown => "it was saved by means that it does not know",
    };
    let detail = match info.map(|info| (&info.backup_method, handle(info))) {
        Some((Some(Method::Other(method)), _)) => format!(" ({method})"),
        Some((_, handle)) if !handle.is_empty() => format!(" ({handle})"),
        _ => String::new(),
    };
    format!("its data cannot be brought back by this version: {what}{detail}")
}

/// What its owner needs in order to find the data.
fn handle(info: &BackupVolumeInfo) -> &str {
    let moved = info.snapshot_data_movement_info.as_ref().map(|moved| &moved.snapshot_handle);
    let native = info.native_snapshot_info.as_ref().map(|native| &native.snapshot_handle);
    let files = info.pvb_info.as_ref().map(|files| &files.snapshot_handle);
    let csi = info.csi_snapshot_info.as_ref().map(|csi| &csi.snapshot_handle);
    moved.or(native).or(files).or(csi).map(String::as_str).unwrap_or_default()
}

fn not_saved(info: Option<&BackupVolumeInfo>) -> String {
    match info {
        Some(info) if !info.skipped_reason.is_empty() => {
            format!("its data is not in the backup: {}", info.skipped_reason)
        }
        _ => "its data is not in the backup".to_owned(),
    }
}

/// Whether the volume is deleted when its claim is. Then it does not exist any more.
fn would_go_with_its_claim(volume: &Value) -> bool {
    volume.pointer("/spec/persistentVolumeReclaimPolicy").and_then(Value::as_str) == Some("Delete")
}
