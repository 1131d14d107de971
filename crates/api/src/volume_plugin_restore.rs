//! VolumePluginRestore: what a plugin reports of the restore of a volume.
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

/// Which snapshot is restored, of which backup, and by whom.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "VolumePluginRestore",
    doc = "The progress of a plugin in restoring a volume.",
    namespaced,
    status = "VolumePluginRestoreStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "vpr",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Backup", type_ = "string", json_path = ".spec.backup"),
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.plugin"),
    printcolumn(name = "Snapshot", type_ = "string", json_path = ".spec.snapshotID"),
    printcolumn(name = "Volume", type_ = "string", json_path = ".status.volumeID", priority = 1),
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
#[schemars(extend("required" = ["backup", "plugin", "snapshotID"]))]
pub struct VolumePluginRestoreSpec {
    /// The snapshot, exactly as the plugin names it.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,

    /// Name of the backup.
    pub backup: String,

    /// Name of the plugin, such as `velero.io/aws`.
    pub plugin: String,

    /// What the plugin wants to tell users.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub plugin_specific: BTreeMap<String, String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(VolumePluginRestoreSpec);

/// How far the plugin is with a volume's restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumePluginRestoreStatus {
    /// Where the work is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "VolumePluginPhase")]
    pub phase: Option<VolumePluginPhase>,

    /// The volume that was made.
    #[serde(rename = "volumeID")]
    pub volume_id: String,

    /// What went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// When the work began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When the work ended, however it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Bytes moved and to move.
    pub progress: VolumePluginProgress,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
