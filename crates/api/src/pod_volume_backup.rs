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

/// Which volume to copy, and where to.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeBackup",
    doc = "The copy of a pod volume's files into a repository.",
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

    /// The pod.
    #[schemars(schema_with = "schema::object_reference")]
    pub pod: ObjectReference,

    /// Name of the volume within the pod.
    pub volume: String,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Address of the repository.
    pub repo_identifier: String,

    /// What copies the files.
    pub uploader_type: UploaderType,

    /// Tags for the snapshot in the repository.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,

    /// Settings of the uploader.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub uploader_settings: BTreeMap<String, String>,

    /// Whether it is to be stopped.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(PodVolumeBackupSpec);

/// How far the copy is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolumeBackupStatus {
    /// Where the copy is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TransferPhase")]
    pub phase: Option<TransferPhase>,

    /// Directory on the node that is copied.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,

    /// The snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "String::is_empty")]
    pub snapshot_id: String,

    /// What went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// When the copy began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When the copy ended, however it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Bytes copied and to copy.
    pub progress: TransferProgress,

    /// Bytes that were new since the last copy.
    #[serde(skip_serializing_if = "is_zero")]
    pub incremental_bytes: i64,

    /// When a node took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
