//! Restore: bring objects and their volumes back from a backup.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::TypedLocalObjectReference,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    duration::Duration,
    hook::{HookErrorMode, HookStatus},
    schema,
    serde_help::{is_zero, null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Settings of the restore.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Restore",
    doc = "A restore of a backup into the cluster.",
    namespaced,
    status = "RestoreStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "rst",
    printcolumn(name = "Backup", type_ = "string", json_path = ".spec.backupName"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Errors", type_ = "integer", json_path = ".status.errors"),
    printcolumn(name = "Warnings", type_ = "integer", json_path = ".status.warnings"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startTimestamp"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
pub struct RestoreSpec {
    /// Backup to restore. Cannot be combined with `scheduleName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backup_name: String,

    /// Schedule whose latest completed backup is restored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub schedule_name: String,

    /// Namespaces to restore. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources to restore. Empty: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources to exclude.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Target namespaces by source namespace.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_mapping: BTreeMap<String, String>,

    /// Restore only objects that match this selector. Cannot be combined with `orLabelSelectors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Restore only objects that match one of these selectors. Cannot be combined with `labelSelector`.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub or_label_selectors: Vec<LabelSelector>,

    /// Restore volumes from snapshots. Default: true.
    #[serde(rename = "restorePVs", skip_serializing_if = "Option::is_none")]
    pub restore_pvs: Option<bool>,

    /// Resources whose status is restored. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_status: Option<RestoreStatusSpec>,

    /// Keep all node ports of Services. Default: only those that users set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_node_ports: Option<bool>,

    /// Restore cluster-scoped resources. Default: all with all namespaces, otherwise those that restored items need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,

    /// Commands and init containers to run in restored pods.
    pub hooks: RestoreHooks,

    /// Policy for existing objects: `none` (default) or `update`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing_resource_policy: Option<ExistingResourcePolicy>,

    /// Time limit for a plugin operation. Zero: the server's default.
    pub item_operation_timeout: Duration,

    /// ConfigMap with resource modifiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::nullable_local_reference")]
    pub resource_modifier: Option<TypedLocalObjectReference>,

    /// ConfigMap with resource policies. Not supported for restores.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::nullable_local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,

    /// Settings of file-system backups and restores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<RestoreUploaderConfig>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(RestoreSpec);

/// Settings of file-system restores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreUploaderConfig {
    /// Write sparse files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_sparse_files: Option<bool>,

    /// Number of files to download in parallel. Zero: the number of CPUs.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub parallel_files_download: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Resources whose status is restored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreStatusSpec {
    /// Resources whose status is restored. Empty list in a set `restoreStatus`: all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources whose status is not restored.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks of a restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreHooks {
    /// Hooks, each with the objects that it applies to.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<RestoreResourceHooks>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks for matching objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct RestoreResourceHooks {
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

    /// Hooks to run after the pod is restored.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub post_hooks: Vec<RestoreResourceHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A hook: a command or init containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreResourceHook {
    /// A command to run in a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ExecRestoreHook")]
    pub exec: Option<ExecRestoreHook>,

    /// Init containers to run before those of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "InitRestoreHook")]
    pub init: Option<InitRestoreHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A command to run in a container of the restored pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["command"]))]
pub struct ExecRestoreHook {
    /// Container that runs the command. Empty: the first container of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,

    /// Command and arguments.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(length(min = 1))]
    pub command: Vec<String>,

    /// Reaction to a failure: `Continue` (default) or `Fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,

    /// Time limit for the command. Zero: 30s.
    pub exec_timeout: Duration,

    /// Time limit for the container to start. Zero: the server's `--resource-timeout`.
    pub wait_timeout: Duration,

    /// Wait until the container is ready, not only running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_for_ready: Option<bool>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Init containers to add to the restored pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct InitRestoreHook {
    /// Init containers, as in the spec of a pod.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(schema_with = "schema::raw_objects")]
    pub init_containers: Vec<Value>,

    /// Time limit for the init containers. Accepted without effect.
    pub timeout: Duration,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of the restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RestorePhase")]
    pub phase: Option<RestorePhase>,

    /// Validation errors.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub validation_errors: Vec<String>,

    /// Number of warnings (listed in the results file).
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub warnings: i64,

    /// Number of errors (listed in the results file).
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub errors: i64,

    /// Reason of a failed restore.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,

    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// Completion time, whatever the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Progress in items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<RestoreProgress>,

    /// Number of attempted plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_attempted: i64,

    /// Number of completed plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_completed: i64,

    /// Number of failed plugin operations.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_failed: i64,

    /// Number of attempted and failed hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,

    /// Conditions. Bowline only.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Progress of a restore in items.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreProgress {
    /// Total number of items. May grow during the run.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub total_items: i64,

    /// Number of items restored.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub items_restored: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Policy for an object that exists in the cluster and differs.
    open ExistingResourcePolicy {
        /// Keep the object and report a warning.
        None = "none",
        /// Change the object to its state in the backup.
        Update = "update",
    }
}

string_set! {
    /// Phase of a restore.
    checked RestorePhase {
        /// Created, not processed yet.
        New = "New",
        /// The spec is invalid.
        FailedValidation = "FailedValidation",
        /// Objects are being restored.
        InProgress = "InProgress",
        /// All objects are restored; plugin operations are in progress.
        WaitingForPluginOperations = "WaitingForPluginOperations",
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed = "WaitingForPluginOperationsPartiallyFailed",
        /// Everything was restored.
        Completed = "Completed",
        /// Restored, with errors.
        PartiallyFailed = "PartiallyFailed",
        /// The run failed.
        Failed = "Failed",
        /// Plugin operations have ended; volumes and hooks are being completed.
        Finalizing = "Finalizing",
        /// The same, and something has failed.
        FinalizingPartiallyFailed = "FinalizingPartiallyFailed",
    }
}

impl RestorePhase {
    /// Returns true if the run has ended.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New
            | Self::InProgress
            | Self::WaitingForPluginOperations
            | Self::WaitingForPluginOperationsPartiallyFailed
            | Self::Finalizing
            | Self::FinalizingPartiallyFailed
            | Self::Other(_) => false,
            Self::FailedValidation | Self::Completed | Self::PartiallyFailed | Self::Failed => true,
        }
    }
}
