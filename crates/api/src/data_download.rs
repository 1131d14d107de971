//! DataDownload: a snapshot's data, on its way back into a volume.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    serde_help::{is_false, is_zero, null_is_empty, spec_may_be_absent},
    transfer::{NodeOs, TransferPhase, TransferProgress},
    unknown::Unknown,
};

/// Settings of the download.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataDownload",
    doc = "A download of snapshot data from a storage location by a data mover.",
    namespaced,
    status = "DataDownloadStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "dd",
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
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = [
    "backupStorageLocation", "operationTimeout", "snapshotID", "sourceNamespace", "targetVolume"
]))]
pub struct DataDownloadSpec {
    /// Target volume.
    pub target_volume: TargetVolume,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Data mover. Empty: the built-in data mover.
    #[serde(rename = "datamover", skip_serializing_if = "String::is_empty")]
    pub data_mover: String,

    /// Snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,

    /// Source namespace of the volume.
    pub source_namespace: String,

    /// Settings of the data mover.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub data_mover_config: BTreeMap<String, String>,

    /// Cancel the operation.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// Time limit for the internal steps of the data mover.
    pub operation_timeout: Duration,

    /// Operating system of the node that writes the volume.
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NodeOs")]
    pub node_os: Option<NodeOs>,

    /// Size of the snapshot in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub snapshot_size: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(DataDownloadSpec);

/// Target volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["namespace", "pv", "pvc"]))]
pub struct TargetVolume {
    /// PersistentVolumeClaim.
    pub pvc: String,

    /// PersistentVolume. Empty until it exists.
    pub pv: String,

    /// Namespace of the claim.
    pub namespace: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of the data mover.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DataDownloadStatus {
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

    /// Node that runs the data mover.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,

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
