//! Snapshots that plugins took: `-volumesnapshots.json.gz`.

use serde::{Deserialize, Serialize};

use super::Unknown;

/// A snapshot of one volume, taken by a VolumeSnapshotter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Of what.
    pub spec: SnapshotSpec,
    /// What became of it.
    pub status: SnapshotStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What was snapshotted.
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
    /// The volume in the words of its provider.
    #[serde(rename = "providerVolumeID")]
    pub provider_volume_id: String,
    /// The provider's type of volume.
    pub volume_type: String,
    /// The zone of the volume.
    #[serde(rename = "volumeAZ", skip_serializing_if = "String::is_empty")]
    pub volume_az: String,
    /// Operations per second that the volume is made for.
    #[serde(rename = "volumeIOPS", skip_serializing_if = "Option::is_none")]
    pub volume_iops: Option<i64>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What became of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The snapshot in the words of its provider.
    #[serde(rename = "providerSnapshotID", skip_serializing_if = "String::is_empty")]
    pub provider_snapshot_id: String,
    /// Whether it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SnapshotPhase>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Whether a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SnapshotPhase {
    /// Not yet.
    New,
    /// It was.
    Completed,
    /// It could not be.
    Failed,
    /// A phase that this version does not know.
    #[serde(untagged)]
    Other(String),
}
