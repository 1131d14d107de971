//! DataUpload: a snapshot's data, on its way into a storage location.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    serde_help::{is_false, is_zero, null_is_empty, spec_may_be_absent},
    string_set::string_set,
    transfer::{NodeOs, TransferPhase, TransferProgress},
    unknown::Unknown,
};

/// Settings of the upload.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataUpload",
    doc = "An upload of snapshot data to a storage location by a data mover.",
    namespaced,
    status = "DataUploadStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "du",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startTimestamp"),
    printcolumn(
        name = "Bytes Done",
        type_ = "integer",
        format = "int64",
        json_path = ".status.progress.bytesDone"
    ),
    printcolumn(
        name = "Total Bytes",
        type_ = "integer",
        format = "int64",
        json_path = ".status.progress.totalBytes"
    ),
    printcolumn(
        name = "Incremental Bytes",
        type_ = "integer",
        format = "int64",
        json_path = ".status.incrementalBytes",
        priority = 10
    ),
    printcolumn(
        name = "Storage Location",
        type_ = "string",
        json_path = ".spec.backupStorageLocation"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = [
    "backupStorageLocation", "operationTimeout", "snapshotType", "sourceNamespace", "sourcePVC"
]))]
pub struct DataUploadSpec {
    /// Type of the snapshot.
    pub snapshot_type: DataUploadSnapshotType,

    /// CSI snapshot.
    pub csi_snapshot: Option<CsiSnapshot>,

    /// PersistentVolumeClaim of the snapshot.
    #[serde(rename = "sourcePVC")]
    pub source_pvc: String,

    /// Data mover. Empty: the built-in data mover.
    #[serde(rename = "datamover", skip_serializing_if = "String::is_empty")]
    pub data_mover: String,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Namespace of the claim.
    pub source_namespace: String,

    /// Settings of the data mover.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub data_mover_config: BTreeMap<String, String>,

    /// Cancel the operation.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// Time limit for the internal steps of the data mover.
    pub operation_timeout: Duration,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(DataUploadSpec);

/// A CSI snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["storageClass", "volumeSnapshot"]))]
pub struct CsiSnapshot {
    /// Name of the VolumeSnapshot.
    pub volume_snapshot: String,

    /// StorageClass of the claim.
    pub storage_class: String,

    /// VolumeSnapshotClass of the snapshot.
    pub snapshot_class: String,

    /// CSI driver of the snapshot.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of the data mover.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DataUploadStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TransferPhase")]
    pub phase: Option<TransferPhase>,

    /// Path of the data on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,

    /// Snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "String::is_empty")]
    pub snapshot_id: String,

    /// Result data that the data mover needs for the restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_mover_result: Option<BTreeMap<String, String>>,

    /// Message about the outcome or a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// Completion time, whatever the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Progress.
    pub progress: TransferProgress,

    /// Bytes that are new since the last upload.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_bytes: i64,

    /// Node that runs the data mover.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,

    /// Operating system of the node.
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NodeOs")]
    pub node_os: Option<NodeOs>,

    /// Node that accepted the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub accepted_by_node: String,

    /// Time of acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Type of the snapshot that a DataUpload moves.
    open DataUploadSnapshotType {
        /// A CSI snapshot.
        Csi = "CSI",
    }
}

/// Not set; Go writes the empty string.
impl Default for DataUploadSnapshotType {
    fn default() -> Self {
        Self::Other(String::new())
    }
}
