//! Method and result of each volume: `-volumeinfo.json.gz`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{Unknown, is_zero, map_or_null, null_is_empty};

/// Backup of one volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupVolumeInfo {
    /// The claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pvc_name: String,
    /// The namespace of the claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pvc_namespace: String,
    /// The volume.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pv_name: String,
    /// The method of the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_method: Option<Method>,
    /// True if the data of a snapshot was copied to the bucket.
    pub snapshot_data_moved: bool,
    /// True if the snapshot is kept in the storage of the volume.
    pub preserve_local_snapshot: bool,
    /// True if the volume was not backed up.
    pub skipped: bool,
    /// The reason for that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub skipped_reason: String,
    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// End time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
    /// The snapshot of a CSI driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi_snapshot_info: Option<CsiSnapshotInfo>,
    /// The copy of a snapshot's data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_data_movement_info: Option<DataMovementInfo>,
    /// The snapshot of a plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_snapshot_info: Option<NativeSnapshotInfo>,
    /// The copy of the volume's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvb_info: Option<PodVolumeInfo>,
    /// Properties that a new volume must get back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_info: Option<PersistentVolumeInfo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Restore of one volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreVolumeInfo {
    /// The claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pvc_name: String,
    /// The namespace of the claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pvc_namespace: String,
    /// The volume.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pv_name: String,
    /// The method of the restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_method: Option<Method>,
    /// True if the data came from the bucket.
    pub snapshot_data_moved: bool,
    /// The snapshot of a CSI driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi_snapshot_info: Option<CsiSnapshotInfo>,
    /// The copy of a snapshot's data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_data_movement_info: Option<DataMovementInfo>,
    /// The snapshot of a plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_snapshot_info: Option<NativeSnapshotInfo>,
    /// The copy of the volume's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvr_info: Option<PodVolumeInfo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Method by which a volume was backed up or restored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// A snapshot of a VolumeSnapshotter.
    NativeSnapshot,
    /// A copy of the volume's files.
    PodVolumeBackup,
    /// A snapshot of a CSI driver.
    #[serde(rename = "CSISnapshot")]
    CsiSnapshot,
    /// A restore of the volume's files from a copy.
    PodVolumeRestore,
    /// A method that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// Result of the backup of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All data was backed up.
    Succeeded,
    /// Not all data was backed up.
    Failed,
    /// A result that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The snapshot of a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSnapshotInfo {
    /// The driver's id of the snapshot.
    pub snapshot_handle: String,
    /// Size in bytes.
    pub size: i64,
    /// The driver.
    pub driver: String,
    /// The VolumeSnapshotContent.
    pub vsc_name: String,
    /// The operation that waits for the snapshot.
    #[serde(rename = "operationID", skip_serializing_if = "String::is_empty")]
    pub operation_id: String,
    /// True if the snapshot can be used. Velero gave it no JSON name.
    #[serde(rename = "ReadyToUse")]
    pub ready_to_use: Option<bool>,
    /// The handle of the group snapshot that contains it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_group_snapshot_handle: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The copy of a snapshot's data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataMovementInfo {
    /// The data mover.
    pub data_mover: String,
    /// The uploader.
    pub uploader_type: String,
    /// The snapshot that was kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub retained_snapshot: String,
    /// The id of the copy in its repository.
    pub snapshot_handle: String,
    /// The operation that copied the data.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Size in bytes.
    pub size: i64,
    /// Number of new bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_size: i64,
    /// The phase of the DataUpload. Velero gave it no JSON name.
    #[serde(rename = "Phase")]
    pub phase: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The snapshot of a VolumeSnapshotter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NativeSnapshotInfo {
    /// The provider's id of the snapshot.
    pub snapshot_handle: String,
    /// The provider's type of volume.
    pub volume_type: String,
    /// The zone of the volume.
    #[serde(rename = "volumeAZ")]
    pub volume_az: String,
    /// Provisioned I/O operations per second, as text; `0` if there is no provisioned rate.
    pub iops: String,
    /// The phase of the snapshot. Velero gave it no JSON name.
    #[serde(rename = "Phase")]
    pub phase: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The copy of a volume's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolumeInfo {
    /// The id of the copy in its repository.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub snapshot_handle: String,
    /// Size in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: i64,
    /// Number of new bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_size: i64,
    /// The uploader.
    pub uploader_type: String,
    /// The name of the volume in its pod.
    pub volume_name: String,
    /// The pod.
    pub pod_name: String,
    /// The namespace of the pod.
    pub pod_namespace: String,
    /// The node that copied the data; not set for a restore.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The phase of the PodVolumeBackup. Velero gave it no JSON name.
    #[serde(rename = "Phase")]
    pub phase: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Properties that were set on a volume after its creation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeInfo {
    /// The reclaim policy.
    pub reclaim_policy: String,
    /// Its labels.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "map_or_null")]
    pub labels: BTreeMap<String, String>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
