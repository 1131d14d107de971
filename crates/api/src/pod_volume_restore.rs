//! PodVolumeRestore: the files of one pod's volume, on their way back.

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

/// Settings of the file-system restore.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeRestore",
    doc = "A file-system restore of one pod volume.",
    namespaced,
    status = "PodVolumeRestoreStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "pvr",
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
        name = "Storage Location",
        type_ = "string",
        json_path = ".spec.backupStorageLocation"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node"),
    printcolumn(name = "Uploader Type", type_ = "string", json_path = ".spec.uploaderType")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = [
    "backupStorageLocation", "pod", "repoIdentifier", "snapshotID", "sourceNamespace", "volume"
]))]
pub struct PodVolumeRestoreSpec {
    /// Restored pod.
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

    /// Snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,

    /// Source namespace of the volume.
    pub source_namespace: String,

    /// Settings of the uploader.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub uploader_settings: BTreeMap<String, String>,

    /// Cancel the operation.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// Size of the snapshot in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub snapshot_size: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(PodVolumeRestoreSpec);

/// Status of the copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolumeRestoreStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TransferPhase")]
    pub phase: Option<TransferPhase>,

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

    /// Time when a node accepted the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,

    /// Node that runs the data mover.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
