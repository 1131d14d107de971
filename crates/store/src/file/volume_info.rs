//! How each volume was saved or restored: `-volumeinfo.json.gz`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{Unknown, is_zero, map_or_null, null_is_empty};

/// How one volume was saved.
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
    /// How it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_method: Option<Method>,
    /// Whether the data of a snapshot was copied to the bucket.
    pub snapshot_data_moved: bool,
    /// Whether the snapshot stays where the volume is.
    pub preserve_local_snapshot: bool,
    /// Whether it was not saved.
    pub skipped: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub skipped_reason: String,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    /// How it ended.
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
    /// The copy of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvb_info: Option<PodVolumeInfo>,
    /// What a new volume must get back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_info: Option<PersistentVolumeInfo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How one volume was restored.
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
    /// How it was restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_method: Option<Method>,
    /// Whether the data came from the bucket.
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
    /// The copy of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvr_info: Option<PodVolumeInfo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// By what means a volume was saved or restored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// A snapshot of a VolumeSnapshotter.
    NativeSnapshot,
    /// A copy of its files.
    PodVolumeBackup,
    /// A snapshot of a CSI driver.
    #[serde(rename = "CSISnapshot")]
    CsiSnapshot,
    /// Its files were copied back.
    PodVolumeRestore,
    /// One that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// How the saving of a volume ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All its data is saved.
    Succeeded,
    /// It is not.
    Failed,
    /// One that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The snapshot of a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSnapshotInfo {
    /// The snapshot in the words of the driver.
    pub snapshot_handle: String,
    /// Bytes.
    pub size: i64,
    /// The driver.
    pub driver: String,
    /// The VolumeSnapshotContent.
    pub vsc_name: String,
    /// The operation that waits for it.
    #[serde(rename = "operationID", skip_serializing_if = "String::is_empty")]
    pub operation_id: String,
    /// Whether it can be used. Velero gave it no JSON name.
    #[serde(rename = "ReadyToUse")]
    pub ready_to_use: Option<bool>,
    /// The group that it was taken in.
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
    /// What copied it.
    pub data_mover: String,
    /// With which uploader.
    pub uploader_type: String,
    /// The snapshot that was kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub retained_snapshot: String,
    /// The copy in its repository.
    pub snapshot_handle: String,
    /// The operation that copied it.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Bytes.
    pub size: i64,
    /// Bytes that were new.
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
    /// The snapshot in the words of its provider.
    pub snapshot_handle: String,
    /// The provider's type of volume.
    pub volume_type: String,
    /// The zone of the volume.
    #[serde(rename = "volumeAZ")]
    pub volume_az: String,
    /// Operations per second, as text; `0` if the volume is made for no number.
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
    /// The copy in its repository.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub snapshot_handle: String,
    /// Bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: i64,
    /// Bytes that were new.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_size: i64,
    /// With which uploader.
    pub uploader_type: String,
    /// The volume as its pod names it.
    pub volume_name: String,
    /// The pod.
    pub pod_name: String,
    /// The namespace of the pod.
    pub pod_namespace: String,
    /// The node that copied; not on restore.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The phase of the PodVolumeBackup. Velero gave it no JSON name.
    #[serde(rename = "Phase")]
    pub phase: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What was set on a volume after it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeInfo {
    /// What happens to it when its claim goes.
    pub reclaim_policy: String,
    /// Its labels.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "map_or_null")]
    pub labels: BTreeMap<String, String>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
