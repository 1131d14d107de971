//! PodVolumeBackup: the files of one pod's volume, on their way into a repository.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema,
    serde_help::{is_false, is_zero, null_is_empty, spec_may_be_absent},
    transfer::{TransferPhase, TransferProgress, UploaderType},
    unknown::Unknown,
};

/// Settings of the file-system backup.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeBackup",
    doc = "A file-system backup of one pod volume.",
    namespaced,
    status = "PodVolumeBackupStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "pvb",
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
    // Velero's own column; the status has no such field, so it stays empty.
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node"),
    printcolumn(name = "Uploader", type_ = "string", json_path = ".spec.uploaderType")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = [
    "backupStorageLocation", "node", "pod", "repoIdentifier", "volume"
]))]
pub struct PodVolumeBackupSpec {
    /// Node that the pod runs on.
    pub node: String,

    /// Pod.
    #[schemars(schema_with = "schema::object_reference")]
    pub pod: ObjectReference,

    /// Name of the volume within the pod.
    pub volume: String,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Address of the repository.
    pub repo_identifier: String,

    /// Uploader type.
    pub uploader_type: UploaderType,

    /// Tags for the snapshot in the repository.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,

    /// Settings of the uploader.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub uploader_settings: BTreeMap<String, String>,

    /// Cancel the operation.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(PodVolumeBackupSpec);

/// Status of the copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolumeBackupStatus {
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

    /// Bytes that are new since the last file-system backup.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_bytes: i64,

    /// Time when a node accepted the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
