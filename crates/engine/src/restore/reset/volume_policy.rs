//! Treatment of volumes.
//!
//! The rules are Velero's: a volume whose data was saved gets the data back, one without data is provisioned anew if it
//! would have been deleted with its claim, and any other is created unchanged. This version restores data from plugin
//! snapshots and CSI snapshots. If Velero would restore data by other means, or from an incomplete snapshot, the
//! volume is [`VolumeDecision::DataUnavailable`]: an application must not silently come up with an empty volume.

use std::fmt;

use bowline_store::file::{BackupVolumeInfo, Method, Outcome, Snapshot, SnapshotPhase};
use serde_json::Value;

/// Treatment of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeDecision<'a> {
    /// Created unchanged. The data is still where it was.
    AsIs,
    /// A plugin creates the volume from this snapshot.
    FromSnapshot(&'a Snapshot),
    /// Not created: its claim gets a new volume with the data, from a CSI snapshot.
    FromClaim {
        /// The handle of the snapshot; empty if unknown.
        snapshot: String,
    },
    /// Not created: its claim gets a new, empty volume, for this reason.
    Reprovision(MissingData),
    /// The data cannot be restored, for this reason. Neither the volume nor its claim is created.
    DataUnavailable(MissingData),
}

/// Why the data of a volume is not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingData {
    /// The backup has not saved it, for this reason; empty if the backup does not say.
    NotSaved(String),
    /// The backup could not save it.
    SaveFailed,
    /// It is in a plugin snapshot whose location is unknown.
    SnapshotUnknown {
        /// The handle that the backup names; empty if none.
        detail: String,
    },
    /// Its plugin snapshot has no id.
    SnapshotWithoutId,
    /// Its plugin snapshot is not complete.
    SnapshotIncomplete {
        /// The id; empty if it has none.
        id: String,
        /// The phase, if known.
        phase: Option<SnapshotPhase>,
    },
    /// This version cannot restore from where it is.
    Unsupported {
        /// How it was saved.
        method: SaveMethod,
        /// The handle or the unknown method that the backup names; empty if none.
        detail: String,
    },
}

impl fmt::Display for MissingData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSaved(reason) if reason.is_empty() => {
                f.write_str("the data of the volume is not in the backup")
            }
            Self::NotSaved(reason) => {
                write!(f, "the data of the volume is not in the backup: {reason}")
            }
            Self::SaveFailed => f.write_str(
                "the data of the volume is not in the backup: its snapshot or copy failed",
            ),
            Self::SnapshotUnknown { detail } => write!(
                f,
                "the data of the volume cannot be restored: the backup does not name the \
                 location of the plugin snapshot{}",
                in_brackets(detail)
            ),
            Self::SnapshotWithoutId => {
                f.write_str("the data of the volume is not in the backup: the snapshot has no id")
            }
            Self::SnapshotIncomplete { id, phase } => {
                let phase = match phase {
                    Some(SnapshotPhase::New) => "New",
                    Some(SnapshotPhase::Completed) => "Completed",
                    Some(SnapshotPhase::Failed) => "Failed",
                    Some(SnapshotPhase::Other(phase)) => phase,
                    None => "unknown",
                };
                let space = if id.is_empty() { "" } else { " " };
                write!(
                    f,
                    "the data of the volume is not in the backup: the phase of \
                     snapshot{space}{id} is {phase}"
                )
            }
            Self::Unsupported { method, detail } => {
                let place = match method {
                    SaveMethod::Snapshot => "was saved as a plugin snapshot",
                    SaveMethod::Files => "was saved by file-system backup",
                    SaveMethod::Csi => "was saved as a CSI snapshot",
                    SaveMethod::DataMover => "was saved by a data mover",
                    SaveMethod::Unknown => "was saved by an unknown method",
                };
                let detail = in_brackets(detail);
                write!(
                    f,
                    "this version cannot restore the data of the volume, which {place}{detail}"
                )
            }
        }
    }
}

/// A detail of a message, if there is one.
pub(in crate::restore) fn in_brackets(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
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
            return VolumeDecision::FromClaim { snapshot: detail(saved.info) };
        }
        Some(_) if has_failed(saved.info) => MissingData::SaveFailed,
        Some(method) => MissingData::Unsupported { method, detail: detail(saved.info) },
        None if is_deleted_with_claim(volume) => {
            let reason = saved.info.map(|info| info.skipped_reason.clone());
            return VolumeDecision::Reprovision(MissingData::NotSaved(reason.unwrap_or_default()));
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
fn usable_snapshot(saved: SavedData<'_>) -> Result<&Snapshot, MissingData> {
    if has_failed(saved.info) {
        return Err(MissingData::SaveFailed);
    }
    let Some(snapshot) = saved.snapshot else {
        return Err(MissingData::SnapshotUnknown { detail: detail(saved.info) });
    };
    let id = &snapshot.status.provider_snapshot_id;
    match &snapshot.status.phase {
        Some(SnapshotPhase::Completed) if !id.is_empty() => Ok(snapshot),
        Some(SnapshotPhase::Completed) => Err(MissingData::SnapshotWithoutId),
        Some(SnapshotPhase::Failed) => Err(MissingData::SaveFailed),
        phase => Err(MissingData::SnapshotIncomplete { id: id.clone(), phase: phase.clone() }),
    }
}

/// How the data of a volume was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveMethod {
    /// Snapshot of a plugin.
    Snapshot,
    /// File system backup.
    Files,
    /// Snapshot of a CSI driver.
    Csi,
    /// CSI snapshot whose data was moved to the bucket.
    DataMover,
    /// A method of a later version.
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

fn has_failed(info: Option<&BackupVolumeInfo>) -> bool {
    info.is_some_and(|info| info.result == Some(Outcome::Failed))
}

/// Further information of the backup: its unknown method, or the handle.
fn detail(info: Option<&BackupVolumeInfo>) -> String {
    match info {
        Some(BackupVolumeInfo { backup_method: Some(Method::Other(method)), .. }) => method.clone(),
        Some(info) => handle(info).to_owned(),
        None => String::new(),
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

/// True if the volume is deleted with its claim. Then it does not exist any more.
fn is_deleted_with_claim(volume: &Value) -> bool {
    volume.pointer("/spec/persistentVolumeReclaimPolicy").and_then(Value::as_str) == Some("Delete")
}
