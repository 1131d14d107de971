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

/// Which snapshot to move, and into which volume.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataDownload",
    doc = "The move of a snapshot's data out of a storage location.",
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
    /// Volume to write to.
    pub target_volume: TargetVolume,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Who moves the data; empty means the built-in data mover.
    #[serde(rename = "datamover", skip_serializing_if = "String::is_empty")]
    pub data_mover: String,

    /// The snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,

    /// Namespace that the volume was backed up from.
    pub source_namespace: String,

    /// Settings of the data mover.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub data_mover_config: BTreeMap<String, String>,

    /// Whether it is to be stopped.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// How long the data mover's own steps may take.
    pub operation_timeout: Duration,

    /// Operating system of the node that can write the volume.
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

/// The volume that data is moved into.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["namespace", "pv", "pvc"]))]
pub struct TargetVolume {
    /// Its claim.
    pub pvc: String,

    /// Its PersistentVolume; empty until there is one.
    pub pv: String,

    /// Namespace of the claim.
    pub namespace: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How far the move is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DataDownloadStatus {
    /// Where the move is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TransferPhase")]
    pub phase: Option<TransferPhase>,

    /// What went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// When the move began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When the move ended, however it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Bytes moved and to move.
    pub progress: TransferProgress,

    /// Node that does it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,

    /// Node that took it first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub accepted_by_node: String,

    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
