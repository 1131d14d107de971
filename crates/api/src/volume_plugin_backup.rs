//! VolumePluginBackup: report of a plugin on the snapshot of a volume.
//!
//! A plugin that can reach the API server creates and updates its own; for all others the server
//! does. Not one of Velero's kinds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    serde_help::{null_is_empty, spec_may_be_absent},
    unknown::Unknown,
    volume_plugin::{VolumePluginPhase, VolumePluginProgress},
};

/// Volume, backup and plugin.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "VolumePluginBackup",
    doc = "Progress of a volume snapshot and its upload.",
    namespaced,
    status = "VolumePluginBackupStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "vpb",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Backup", type_ = "string", json_path = ".spec.backup"),
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.plugin"),
    printcolumn(name = "Volume", type_ = "string", json_path = ".spec.volume"),
    printcolumn(
        name = "Snapshot",
        type_ = "string",
        json_path = ".status.snapshotID",
        priority = 1
    ),
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
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startTimestamp"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["backup", "plugin", "volume"]))]
pub struct VolumePluginBackupSpec {
    /// Name of the PersistentVolume.
    pub volume: String,

    /// Name of the backup.
    pub backup: String,

    /// Name of the plugin, such as `velero.io/aws`.
    pub plugin: String,

    /// Additional information from the plugin.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub plugin_specific: BTreeMap<String, String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(VolumePluginBackupSpec);

/// Status of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumePluginBackupStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "VolumePluginPhase")]
    pub phase: Option<VolumePluginPhase>,

    /// Id of the snapshot, as the plugin returned it.
    #[serde(rename = "snapshotID")]
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
    pub progress: VolumePluginProgress,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
