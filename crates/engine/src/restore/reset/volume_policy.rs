//! Treatment of volumes.
//!
//! The rules are Velero's: a volume whose data was saved gets the data back, one without data is provisioned anew if it
//! would have been deleted with its claim, and any other is created unchanged. This version restores data from plugin
//! snapshots and CSI snapshots. If Velero would restore data by other means, or from an incomplete snapshot, the
//! volume is [`VolumeDecision::DataUnavailable`]: an application must not silently come up with an empty volume.

use bowline_store::file::{BackupVolumeInfo, Method, Outcome, Snapshot, SnapshotPhase};
use serde_json::Value;

/// Treatment of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeDecision<'a> {
    /// Created unchanged. The data is still where it was.
    AsIs,
    /// A plugin creates the volume from this snapshot.
    FromSnapshot(&'a Snapshot),
    /// Not created: its claim gets a new volume with the data, from a CSI snapshot. The reason is for the user.
    FromClaim(String),
    /// Not created: its claim gets a new, empty volume. The reason is for the user.
    Reprovision(String),
    /// The data cannot be restored, for this reason. Neither the volume nor its claim is created.
    DataUnavailable(String),
}

/// Information about the saved data of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedData<'a> {
    /// Volume information of the backup, if any. The other fields count only if it is missing.
    pub info: Option<&'a BackupVolumeInfo>,
    /// The plugin snapshot of the volume.
    pub snapshot: Option<&'a Snapshot>,
    /// True if there is a file system backup.
    pub has_pod_volume_backup: bool,
    /// True if there is a CSI snapshot.
    pub has_csi_snapshot: bool,
    /// True if the data of the CSI snapshot was moved.
    pub has_data_upload: bool,
}

/// User options for volumes.
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// True if volumes are created from plugin snapshots. Otherwise they are created unchanged.
    pub restore_pvs: bool,
    /// True if a volume whose data cannot be restored may be created empty.
    pub allow_empty: bool,
}

/// Decides on the treatment of a PersistentVolume.
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
        // Problems with the claim's source are reported there.
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

/// The snapshot of a volume that was saved by one, if a volume can be created from it. Velero accepts any snapshot, and
/// without one creates the volume unchanged.
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

/// Backup method of the data.
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

/// Further information of the backup.
fn detail(info: Option<&BackupVolumeInfo>) -> String {
    match info.map(|info| (&info.backup_method, handle(info))) {
        Some((Some(Method::Other(method)), _)) => format!(" ({method})"),
        Some((_, handle)) if !handle.is_empty() => format!(" ({handle})"),
        _ => String::new(),
    }
}

/// The handle that the owner needs to find the data.
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

/// True if the volume is deleted with its claim. Then it does not exist any more.
fn is_deleted_with_claim(volume: &Value) -> bool {
    volume.pointer("/spec/persistentVolumeReclaimPolicy").and_then(Value::as_str) == Some("Delete")
}
