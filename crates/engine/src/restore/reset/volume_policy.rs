//! What becomes of a volume.
//!
//! The rules are Velero's: a volume whose data was saved gets it back, one without data is made
//! anew if it would have gone with its claim, and any other is created as it was. This version
//! brings back what is in the snapshots of plugins and of CSI drivers. Where Velero would bring back
//! data by other means, or from a snapshot that is not whole, the volume is [`VolumeDecision::DataUnavailable`]: an
//! application must not come up with an empty volume and nobody knowing.

use bowline_store::file::{BackupVolumeInfo, Method, Outcome, Snapshot, SnapshotPhase};
use serde_json::Value;

/// What becomes of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeDecision<'a> {
    /// It is created as it was. Its data is where it always was.
    AsIs,
    /// A plugin makes it from this snapshot.
    FromSnapshot(&'a Snapshot),
    /// It is not created: its claim gets a new one with its data, from a CSI snapshot. The reason is
    /// for the user.
    FromClaim(String),
    /// It is not created: its claim gets a new one, which is empty. The reason is for the user.
    Reprovision(String),
    /// Its data cannot be brought back, and why. Neither it nor its claim is created.
    DataUnavailable(String),
}

/// What is known of a volume's data.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedData<'a> {
    /// What the backup says of it, if it says anything. By what else is there it is judged only if
    /// it does not.
    pub info: Option<&'a BackupVolumeInfo>,
    /// The snapshot that a plugin took of it.
    pub snapshot: Option<&'a Snapshot>,
    /// Whether its files were copied.
    pub has_pod_volume_backup: bool,
    /// Whether a CSI driver took a snapshot of it.
    pub has_csi_snapshot: bool,
    /// Whether the data of such a snapshot was copied.
    pub has_data_upload: bool,
}

/// What a user wants to happen with volumes.
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// Whether volumes are made from the snapshots of plugins. If not, they are created as they
    /// were.
    pub restore_pvs: bool,
    /// Whether a volume whose data cannot be brought back may come up empty.
    pub allow_empty: bool,
}

/// Decides what becomes of a PersistentVolume.
pub fn decide_volume<'a>(
    volume: &Value,
    saved: SavedData<'a>,
    options: VolumeOptions,
) -> VolumeDecision<'a> {
    let reason = match save_method(saved) {
        Some(SaveMethod::Snapshot) if !options.restore_pvs => return VolumeDecision::AsIs,
        Some(SaveMethod::Snapshot) => match usable_snapshot(saved) {
            Ok(snapshot) => return VolumeDecision::FromSnapshot(snapshot),
            Err(reason) => reason,
        },
        // What the claim cannot be made from is told there.
        Some(SaveMethod::Csi) if !has_failed(saved.info) => {
            let handle = detail(saved.info);
            return VolumeDecision::FromClaim(format!(
                "its claim gets a new one from a CSI snapshot{handle}"
            ));
        }
        Some(method) => data_unavailable_reason(method, saved.info),
        None if is_deleted_with_claim(volume) => {
            return VolumeDecision::Reprovision(not_saved(saved.info));
        }
        None => return VolumeDecision::AsIs,
    };
    if options.allow_empty {
        VolumeDecision::Reprovision(reason)
    } else {
        VolumeDecision::DataUnavailable(reason)
    }
}

/// The snapshot of a volume that was saved by one, if a volume can be made from it. Velero takes any,
/// and without one creates the volume as it was.
fn usable_snapshot(saved: SavedData<'_>) -> Result<&Snapshot, String> {
    if has_failed(saved.info) {
        return Err(FAILED.to_owned());
    }
    let Some(snapshot) = saved.snapshot else {
        let handle = detail(saved.info);
        return Err(format!(
            "its data cannot be brought back: it is in a snapshot of a plugin{handle}, but the \
             backup does not say where"
        ));
    };
    let id = &snapshot.status.provider_snapshot_id;
    let phase = match &snapshot.status.phase {
        Some(SnapshotPhase::Completed) if !id.is_empty() => return Ok(snapshot),
        Some(SnapshotPhase::Completed) => {
            return Err("its data is not in the backup: its snapshot has no id".to_owned());
        }
        Some(SnapshotPhase::Failed) => return Err(FAILED.to_owned()),
        Some(SnapshotPhase::New) => "New",
        Some(SnapshotPhase::Other(phase)) => phase,
        None => "not known",
    };
    let detail = if id.is_empty() { String::new() } else { format!(" {id}") };
    Err(format!("its data is not in the backup: the phase of its snapshot{detail} is {phase}"))
}

/// By what means data was saved.
#[derive(Clone, Copy, Debug)]
enum SaveMethod {
    Snapshot,
    Files,
    Csi,
    DataMover,
    Unknown,
}

fn save_method(saved: SavedData<'_>) -> Option<SaveMethod> {
    match saved {
        SavedData { info: Some(info), .. } if info.skipped => None,
        SavedData { info: Some(info), .. } => Some(match info.backup_method.as_ref()? {
            Method::NativeSnapshot => SaveMethod::Snapshot,
            Method::PodVolumeBackup | Method::PodVolumeRestore => SaveMethod::Files,
            Method::CsiSnapshot if info.snapshot_data_moved => SaveMethod::DataMover,
            Method::CsiSnapshot => SaveMethod::Csi,
            Method::Other(_) => SaveMethod::Unknown,
        }),
        SavedData { snapshot: Some(_), .. } => Some(SaveMethod::Snapshot),
        SavedData { has_pod_volume_backup: true, .. } => Some(SaveMethod::Files),
        SavedData { has_data_upload: true, .. } => Some(SaveMethod::DataMover),
        SavedData { has_csi_snapshot: true, .. } => Some(SaveMethod::Csi),
        _ => None,
    }
}

const FAILED: &str = "its data is not in the backup: saving it had failed";

fn has_failed(info: Option<&BackupVolumeInfo>) -> bool {
    info.is_some_and(|info| info.result == Some(Outcome::Failed))
}

fn data_unavailable_reason(method: SaveMethod, info: Option<&BackupVolumeInfo>) -> String {
    if has_failed(info) {
        return FAILED.to_owned();
    }
    let place = match method {
        SaveMethod::Snapshot => "it is in a snapshot of a plugin",
        SaveMethod::Files => "it is in a copy of its files",
        SaveMethod::Csi => "it is in a snapshot of a CSI driver",
        SaveMethod::DataMover => "a data mover copied it into the store",
        SaveMethod::Unknown => "it was saved by means that it does not know",
    };
    format!("its data cannot be brought back by this version: {place}{}", detail(info))
}

/// What the backup says beyond that.
fn detail(info: Option<&BackupVolumeInfo>) -> String {
    match info.map(|info| (&info.backup_method, handle(info))) {
        Some((Some(Method::Other(method)), _)) => format!(" ({method})"),
        Some((_, handle)) if !handle.is_empty() => format!(" ({handle})"),
        _ => String::new(),
    }
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
fn is_deleted_with_claim(volume: &Value) -> bool {
    volume.pointer("/spec/persistentVolumeReclaimPolicy").and_then(Value::as_str) == Some("Delete")
}
