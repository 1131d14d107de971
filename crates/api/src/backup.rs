//! Backup: take a copy of objects and their volumes.

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

/// What to back up, where to, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Backup",
    doc = "A copy of Kubernetes objects and their volumes at a point in time.",
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
    /// Labels for the backups that a Schedule makes.
    pub metadata: BackupMetadata,

    /// Namespaces to take; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources to take; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Cluster-scoped resources to take; empty means those that belong to what is taken.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_cluster_scoped_resources: Vec<String>,

    /// Cluster-scoped resources to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_cluster_scoped_resources: Vec<String>,

    /// Namespaced resources to take; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespace_scoped_resources: Vec<String>,

    /// Namespaced resources to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespace_scoped_resources: Vec<String>,

    /// Takes only objects with these labels; not together with `orLabelSelectors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Takes only objects that one of these selects; not together with `labelSelector`.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub or_label_selectors: Vec<LabelSelector>,

    /// Whether volumes are snapshotted; unset means yes where there is a snapshot location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<bool>,

    /// How long the backup is kept; zero means the server's default.
    pub ttl: Duration,

    /// Label whose value groups volumes that must be snapshotted together.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_group_snapshot_label_key: String,

    /// Whether cluster-scoped objects are taken; unset means those that belong to what is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,

    /// Commands to run in pods around the backup of their volumes.
    pub hooks: BackupHooks,

    /// BackupStorageLocation to write to; empty means the default one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub storage_location: String,

    /// VolumeSnapshotLocations, at most one for each provider.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub volume_snapshot_locations: Vec<String>,

    /// Old name of `defaultVolumesToFsBackup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_restic: Option<bool>,

    /// Whether pod volumes are copied file by file unless they opt out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_fs_backup: Option<bool>,

    /// Objects to take first, as comma-separated names by resource.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub ordered_resources: BTreeMap<String, String>,

    /// How long a CSI snapshot may take to become ready; zero means ten minutes.
    #[serde(rename = "csiSnapshotTimeout")]
    pub csi_snapshot_timeout: Duration,

    /// How long an operation of a plugin may take; zero means the server's default.
    pub item_operation_timeout: Duration,

    /// ConfigMap with rules for volumes and resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,

    /// Whether the data of snapshots is moved into the storage location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_move_data: Option<bool>,

    /// Who moves the data; empty means the built-in data mover.
    #[serde(rename = "datamover", skip_serializing_if = "String::is_empty")]
    pub data_mover: String,

    /// Settings for copying files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<BackupUploaderConfig>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(BackupSpec);

/// Metadata for backups made from a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupMetadata {
    /// Labels to put on the backup.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How files are read and sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupUploaderConfig {
    /// How many files are sent at once; zero means as many as there are CPUs.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub parallel_files_upload: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Commands to run during a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupHooks {
    /// Hooks, each with the objects it is for.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub resources: Vec<BackupResourceHooks>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks for the objects that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct BackupResourceHooks {
    /// Name, for messages.
    pub name: String,

    /// Namespaces it is for; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces it is not for.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources it is for; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources it is not for.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Labels of the objects it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Run before the object is taken.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pre: Vec<BackupResourceHook>,

    /// Run after the object and what belongs to it were taken.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<BackupResourceHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One hook.
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
    /// Container to run in; empty means the pod's first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,

    /// The program and its arguments.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(length(min = 1))]
    pub command: Vec<String>,

    /// What a failure means; unset means `Fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,

    /// How long it may run; zero means the server's default.
    pub timeout: Duration,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How far a backup is.
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

    /// When the backup may be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,

    /// Where the run is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupPhase")]
    pub phase: Option<BackupPhase>,

    /// Place in the queue, from one.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub queue_position: i64,

    /// Why the spec was refused.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub validation_errors: Vec<String>,

    /// When the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When the run ended, however it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Volume snapshots begun.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub volume_snapshots_attempted: i64,

    /// Volume snapshots that succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub volume_snapshots_completed: i64,

    /// Why the whole run failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,

    /// Number of warnings; they are in the results file.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub warnings: i64,

    /// Number of errors; they are in the results file.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub errors: i64,

    /// Objects done and known of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<BackupProgress>,

    /// CSI snapshots begun.
    #[serde(rename = "csiVolumeSnapshotsAttempted", skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub csi_volume_snapshots_attempted: i64,

    /// CSI snapshots that succeeded.
    #[serde(rename = "csiVolumeSnapshotsCompleted", skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub csi_volume_snapshots_completed: i64,

    /// Plugin operations begun.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_attempted: i64,

    /// Plugin operations that succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_completed: i64,

    /// Plugin operations that failed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub backup_item_operations_failed: i64,

    /// Hooks run and failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,

    /// What the phase has no word for; see [`crate::condition`]. Not one of Velero's fields.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// For how long pods were frozen, the longest first, and not more than a hundred of them. Not one
    /// of Velero's fields.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub freeze_windows: Vec<FreezeWindow>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How many objects were taken so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupProgress {
    /// Objects known of; grows while plugins add more.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub total_items: i64,

    /// Objects written.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub items_backed_up: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// For how long a pod was frozen: from its first pre-hook to the end of its last post-hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FreezeWindow {
    /// The namespace of the pod.
    pub namespace: String,

    /// The pod.
    pub pod: String,

    /// When its first pre-hook was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<MicroTime>,

    /// How long it lasted.
    #[schemars(schema_with = "schema::count")]
    pub milliseconds: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Where a backup's run is.
    checked BackupPhase {
        /// Created, not looked at.
        New = "New",
        /// Waits for its turn.
        Queued = "Queued",
        /// May start.
        ReadyToStart = "ReadyToStart",
        /// The spec was refused.
        FailedValidation = "FailedValidation",
        /// Objects are being taken.
        InProgress = "InProgress",
        /// All objects are taken; plugins still work.
        WaitingForPluginOperations = "WaitingForPluginOperations",
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed = "WaitingForPluginOperationsPartiallyFailed",
        /// Plugins are done; the last objects are being rewritten.
        Finalizing = "Finalizing",
        /// The same, and something has failed.
        FinalizingPartiallyFailed = "FinalizingPartiallyFailed",
        /// Everything is in the store.
        Completed = "Completed",
        /// Usable, with errors.
        PartiallyFailed = "PartiallyFailed",
        /// Not usable.
        Failed = "Failed",
        /// The backup and its data are being removed.
        Deleting = "Deleting",
    }
}

impl BackupPhase {
    /// Whether the run is over. That includes a backup that is being deleted.
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
