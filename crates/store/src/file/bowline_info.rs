//! What Velero has no file for: `-bowline.json.gz`.

use serde::{Deserialize, Serialize};

use super::{OperationStatus, Unknown};

pub use bowline_api::backup::FreezeWindow;

/// What is kept of a backup beside Velero's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BowlineBackupInfo {
    /// For how long each pod was frozen.
    pub freeze_windows: Vec<FreezeWindow>,
    /// What plugins do with snapshots of volumes.
    pub volume_operations: Vec<VolumeOperation>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a plugin does with the snapshot of a volume, behind the backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeOperation {
    /// What it does.
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
    /// Whether the snapshot is to be uploaded, as the annotation spells it.
    pub snapshot_type: String,
    /// How far it is.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a plugin does with a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VolumeOperationKind {
    /// Completes it.
    #[default]
    Creation,
    /// Brings it to where it outlives its volume.
    Upload,
    /// Something that this version does not know.
    #[serde(untagged)]
    Other(String),
}
