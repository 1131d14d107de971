//! Backup: a copy of objects and their volumes.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::TypedLocalObjectReference,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, MicroTime, Time},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    hook::{HookErrorMode, HookStatus},
    schema,
    serde_help::{is_zero, null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Settings of the backup.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Backup",
    doc = "A backup of Kubernetes objects and volumes.",
    namespaced,
    status = "BackupStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "bak",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Errors", type_ = "integer", json_path = ".status.errors"),
    printcolumn(name = "Warnings", type_ = "integer", json_path = ".status.warnings"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startTimestamp"),
    // A string, since kubectl prints a date in the future as <invalid>.
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiration"),
    printcolumn(name = "Storage Location", type_ = "string", json_path = ".spec.storageLocation"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
pub struct BackupSpec {
    /// Metadata for backups that a Schedule creates.
    pub metadata: BackupMetadata,

    /// Namespaces to include. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources to include. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Cluster-scoped resources to include. Default: all in a full backup, otherwise those that included items need.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_cluster_scoped_resources: Vec<String>,

    /// Cluster-scoped resources to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_cluster_scoped_resources: Vec<String>,

    /// Namespaced resources to include. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespace_scoped_resources: Vec<String>,

    /// Namespaced resources to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespace_scoped_resources: Vec<String>,

    /// Include only objects that match this selector. Cannot be combined with `orLabelSelectors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Include only objects that match one of these selectors. Cannot be combined with `labelSelector`.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub or_label_selectors: Vec<LabelSelector>,

    /// Create volume snapshots. Default: CSI volumes, and other volumes if a VolumeSnapshotLocation exists for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<bool>,

    /// Retention time. Zero: the server's default.
    pub ttl: Duration,

    /// Label key that groups volumes to be snapshotted together.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_group_snapshot_label_key: String,

    /// Include cluster-scoped resources. Default: all with all namespaces, otherwise those that included items need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,

    /// Hooks to run in pods before and after their backup.
    pub hooks: BackupHooks,

    /// BackupStorageLocation to write to. Empty: the default location.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub storage_location: String,

    /// VolumeSnapshotLocations, at most one per provider.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub volume_snapshot_locations: Vec<String>,

    /// Old name of `defaultVolumesToFsBackup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_restic: Option<bool>,

    /// Use file-system backup for pod volumes unless they opt out. Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_fs_backup: Option<bool>,

    /// Objects to back up first: comma-separated names by resource.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub ordered_resources: BTreeMap<String, String>,

    /// Time limit for the driver to create a CSI snapshot. Zero: 10m.
    #[serde(rename = "csiSnapshotTimeout")]
    pub csi_snapshot_timeout: Duration,

    /// Time limit for a plugin operation. Zero: the server's default.
    pub item_operation_timeout: Duration,

    /// ConfigMap with resource policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,

    /// Move snapshot data to the storage location. Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_move_data: Option<bool>,

    /// Data mover. Empty: the built-in data mover.
    #[serde(rename = "datamover", skip_serializing_if = "String::is_empty")]
    pub data_mover: String,

    /// Settings of file-system backups and restores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<BackupUploaderConfig>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(BackupSpec);

/// Metadata for backups that a Schedule creates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupMetadata {
    /// Labels of the backups.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Settings of file-system backups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupUploaderConfig {
    /// Number of files to upload in parallel. Zero: the number of CPUs.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub parallel_files_upload: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks of a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupHooks {
    /// Hooks, each with the objects that it applies to.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub resources: Vec<BackupResourceHooks>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks for matching objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct BackupResourceHooks {
    /// Name of the hook in messages.
    pub name: String,

    /// Namespaces that the hook applies to. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces that the hook does not apply to.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources that the hook applies to. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources that the hook does not apply to.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Label selector of the objects that the hook applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Hooks to run before the item block is backed up.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pre: Vec<BackupResourceHook>,

    /// Hooks to run after the item block is backed up.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<BackupResourceHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["exec"]))]
pub struct BackupResourceHook {
    /// A command to run in a container.
    #[schemars(with = "ExecHook")]
    pub exec: Option<ExecHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A command to run in a container of the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["command"]))]
pub struct ExecHook {
    /// Container that runs the command. Empty: the first container of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,

    /// Command and arguments.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(length(min = 1))]
    pub command: Vec<String>,

    /// Reaction to a failure: `Fail` (default) or `Continue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,

    /// Time limit for the command. Zero: 30s.
    pub timeout: Duration,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of the backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupStatus {
    /// Major version of the backup format.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub version: i64,

    /// Version of the backup format, with minor and patch.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format_version: String,

    /// Expiration time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,

    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupPhase")]
    pub phase: Option<BackupPhase>,

    /// Position in the queue, starting at 1.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub queue_position: i64,

    /// Validation errors.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub validation_errors: Vec<String>,

    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// Completion time, whatever the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Number of attempted volume snapshots.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub volume_snapshots_attempted: i64,

    /// Number of completed volume snapshots.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub volume_snapshots_completed: i64,

    /// Reason of a failed backup.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,

    /// Number of warnings (listed in the results file).
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub warnings: i64,

    /// Number of errors (listed in the results file).
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub errors: i64,

    /// Progress in items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<BackupProgress>,

    /// Number of attempted CSI snapshots.
    #[serde(rename = "csiVolumeSnapshotsAttempted", skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub csi_volume_snapshots_attempted: i64,

    /// Number of completed CSI snapshots.
    #[serde(rename = "csiVolumeSnapshotsCompleted", skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub csi_volume_snapshots_completed: i64,

    /// Number of attempted plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_attempted: i64,

    /// Number of completed plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_completed: i64,

    /// Number of failed plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_failed: i64,

    /// Number of attempted and failed hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,

    /// Conditions. Bowline only.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Longest freeze windows of pods, at most 100. Bowline only.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub freeze_windows: Vec<FreezeWindow>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Progress of a backup in items.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupProgress {
    /// Total number of items. May grow during the run.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub total_items: i64,

    /// Number of items backed up.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub items_backed_up: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Freeze window of a pod, from the start of its first pre-hook to the end of its last post-hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FreezeWindow {
    /// Namespace of the pod.
    pub namespace: String,

    /// Name of the pod.
    pub pod: String,

    /// Start time of the first pre-hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<MicroTime>,

    /// Duration in milliseconds.
    #[schemars(schema_with = "schema::count")]
    pub milliseconds: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Phase of a backup.
    checked BackupPhase {
        /// Created, not processed yet.
        New = "New",
        /// Waits in the queue.
        Queued = "Queued",
        /// Next in the queue.
        ReadyToStart = "ReadyToStart",
        /// The spec is invalid.
        FailedValidation = "FailedValidation",
        /// Items are being collected.
        InProgress = "InProgress",
        /// All items are stored; plugin operations are in progress.
        WaitingForPluginOperations = "WaitingForPluginOperations",
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed = "WaitingForPluginOperationsPartiallyFailed",
        /// All operations have ended; changed items are stored again.
        Finalizing = "Finalizing",
        /// The same, and something has failed.
        FinalizingPartiallyFailed = "FinalizingPartiallyFailed",
        /// Complete in the storage location.
        Completed = "Completed",
        /// Usable, with errors.
        PartiallyFailed = "PartiallyFailed",
        /// Not usable.
        Failed = "Failed",
        /// The backup and its data are being deleted.
        Deleting = "Deleting",
    }
}

impl BackupPhase {
    /// Returns true if the run has ended. That includes a backup that is being deleted.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New
            | Self::Queued
            | Self::ReadyToStart
            | Self::InProgress
            | Self::WaitingForPluginOperations
            | Self::WaitingForPluginOperationsPartiallyFailed
            | Self::Finalizing
            | Self::FinalizingPartiallyFailed
            | Self::Other(_) => false,
            Self::FailedValidation
            | Self::Completed
            | Self::PartiallyFailed
            | Self::Failed
            | Self::Deleting => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_terminal_or_not() {
        let over: Vec<_> = BackupPhase::KNOWN
            .iter()
            .filter(|text| BackupPhase::from(**text).is_terminal())
            .collect();
        assert_eq!(
            over,
            [&"FailedValidation", &"Completed", &"PartiallyFailed", &"Failed", &"Deleting"]
        );
        assert!(!BackupPhase::from("Teleporting").is_terminal());
    }
}
