//! Information for which Velero has no file: `-bowline.json.gz`.

use serde::{Deserialize, Serialize};

use super::{OperationStatus, Unknown};

pub use bowline_api::backup::FreezeWindow;

/// Information about a backup beyond Velero's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BowlineBackupInfo {
    /// The freeze window of each pod.
    pub freeze_windows: Vec<FreezeWindow>,
    /// Operations of plugins on volume snapshots.
    pub volume_operations: Vec<VolumeOperation>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A background operation of a plugin on the snapshot of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeOperation {
    /// The kind of operation.
    pub kind: VolumeOperationKind,
    /// The plugin.
    pub plugin: String,
    /// The VolumeSnapshotLocation.
    pub location: String,
    /// The PersistentVolume.
    pub volume: String,
    /// The snapshot.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// The snapshot type, which says whether to upload, in the annotation's spelling.
    pub snapshot_type: String,
    /// The status.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Kind of a volume operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VolumeOperationKind {
    /// Completes the snapshot.
    #[default]
    Creation,
    /// Copies the snapshot to storage that outlives its volume.
    Upload,
    /// A kind that this version does not know.
    #[serde(untagged)]
    Other(String),
}
