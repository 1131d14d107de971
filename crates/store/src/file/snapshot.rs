//! Snapshots that plugins took: `-volumesnapshots.json.gz`.

use serde::{Deserialize, Serialize};

use super::Unknown;

/// A snapshot of one volume, taken by a VolumeSnapshotter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The specification.
    pub spec: SnapshotSpec,
    /// The status.
    pub status: SnapshotStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Specification of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// The backup.
    pub backup_name: String,
    /// Its uid.
    #[serde(rename = "backupUID")]
    pub backup_uid: String,
    /// The VolumeSnapshotLocation.
    pub location: String,
    /// The PersistentVolume.
    pub persistent_volume_name: String,
    /// The provider's id of the volume.
    #[serde(rename = "providerVolumeID")]
    pub provider_volume_id: String,
    /// The provider's type of volume.
    pub volume_type: String,
    /// The zone of the volume.
    #[serde(rename = "volumeAZ", skip_serializing_if = "String::is_empty")]
    pub volume_az: String,
    /// Provisioned I/O operations per second of the volume.
    #[serde(rename = "volumeIOPS", skip_serializing_if = "Option::is_none")]
    pub volume_iops: Option<i64>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The provider's id of the snapshot.
    #[serde(rename = "providerSnapshotID", skip_serializing_if = "String::is_empty")]
    pub provider_snapshot_id: String,
    /// The phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SnapshotPhase>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Phase of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SnapshotPhase {
    /// Not taken yet.
    New,
    /// Taken.
    Completed,
    /// Failed.
    Failed,
    /// A phase that this version does not know.
    #[serde(untagged)]
    Other(String),
}
