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

/// What to restore, from which backup, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Restore",
    doc = "The application of a backup to the cluster.",
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
    /// Backup to restore; this or `scheduleName`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backup_name: String,

    /// Schedule whose latest successful backup is restored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub schedule_name: String,

    /// Namespaces to restore; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_namespaces: Vec<String>,

    /// Namespaces to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_namespaces: Vec<String>,

    /// Resources to restore; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources to leave out.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Namespaces to restore into, by namespace in the backup.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_mapping: BTreeMap<String, String>,

    /// Restores only objects with these labels; not together with `orLabelSelectors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub label_selector: Option<LabelSelector>,

    /// Restores only objects that one of these selects; not together with `labelSelector`.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub or_label_selectors: Vec<LabelSelector>,

    /// Whether volumes are restored from snapshots; unset means yes.
    #[serde(rename = "restorePVs", skip_serializing_if = "Option::is_none")]
    pub restore_pvs: Option<bool>,

    /// Resources whose status is restored too; unset means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_status: Option<RestoreStatusSpec>,

    /// Whether services keep their node ports; unset means no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_node_ports: Option<bool>,

    /// Whether cluster-scoped objects are restored; unset means those that are needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,

    /// Commands and init containers to run in restored pods.
    pub hooks: RestoreHooks,

    /// What happens to objects that are there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing_resource_policy: Option<ExistingResourcePolicy>,

    /// How long an operation of a plugin may take; zero means the server's default.
    pub item_operation_timeout: Duration,

    /// ConfigMap with changes to make to objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::nullable_local_reference")]
    pub resource_modifier: Option<TypedLocalObjectReference>,

    /// ConfigMap with rules for volumes and resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::nullable_local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,

    /// Settings for copying files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<RestoreUploaderConfig>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(RestoreSpec);

/// How files are fetched and written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreUploaderConfig {
    /// Whether holes in files stay holes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_sparse_files: Option<bool>,

    /// How many files are fetched at once; zero means as many as there are CPUs.
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
    /// Resources to restore the status of; empty means all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub included_resources: Vec<String>,

    /// Resources not to restore the status of.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub excluded_resources: Vec<String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What to run in restored pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreHooks {
    /// Hooks, each with the objects it is for.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<RestoreResourceHooks>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Hooks for the objects that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct RestoreResourceHooks {
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

    /// Run once the pod is there.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub post_hooks: Vec<RestoreResourceHook>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One hook: a command or init containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreResourceHook {
    /// A command to run in a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ExecRestoreHook")]
    pub exec: Option<ExecRestoreHook>,

    /// Containers to run before the pod's own.
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
    /// Container to run in; empty means the pod's first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,

    /// The program and its arguments.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(length(min = 1))]
    pub command: Vec<String>,

    /// What a failure means; unset means `Continue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,

    /// How long it may run; zero means the server's default.
    pub exec_timeout: Duration,

    /// How long to wait for the container; zero means without limit.
    pub wait_timeout: Duration,

    /// Whether to wait until the container is ready, not just running.
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
    /// The containers, as in a pod's spec.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(schema_with = "schema::raw_objects")]
    pub init_containers: Vec<Value>,

    /// How long they may take; zero means without limit.
    pub timeout: Duration,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How far a restore is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreStatus {
    /// Where the run is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RestorePhase")]
    pub phase: Option<RestorePhase>,

    /// Why the spec was refused.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub validation_errors: Vec<String>,

    /// Number of warnings; they are in the results file.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub warnings: i64,

    /// Number of errors; they are in the results file.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub errors: i64,

    /// Why the whole run failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,

    /// When the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When the run ended, however it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,

    /// Objects done and known of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<RestoreProgress>,

    /// Plugin operations begun.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_attempted: i64,

    /// Plugin operations that succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_completed: i64,

    /// Plugin operations that failed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub restore_item_operations_failed: i64,

    /// Hooks run and failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,

    /// What the phase has no word for; see [`crate::condition`]. Not one of Velero's fields.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How many objects were restored so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreProgress {
    /// Objects known of; grows while plugins add more.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub total_items: i64,

    /// Objects restored.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub items_restored: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// What to do with an object that is in the cluster already, and differs.
    open ExistingResourcePolicy {
        /// Leave it and warn.
        None = "none",
        /// Make it like the one in the backup.
        Update = "update",
    }
}

string_set! {
    /// Where a restore's run is.
    checked RestorePhase {
        /// Created, not looked at.
        New = "New",
        /// The spec was refused.
        FailedValidation = "FailedValidation",
        /// Objects are being restored.
        InProgress = "InProgress",
        /// All objects are restored; plugins still work.
        WaitingForPluginOperations = "WaitingForPluginOperations",
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed = "WaitingForPluginOperationsPartiallyFailed",
        /// Everything was restored.
        Completed = "Completed",
        /// Restored, with errors.
        PartiallyFailed = "PartiallyFailed",
        /// The run broke off.
        Failed = "Failed",
        /// Plugins are done; volumes and hooks are being finished.
        Finalizing = "Finalizing",
        /// The same, and something has failed.
        FinalizingPartiallyFailed = "FinalizingPartiallyFailed",
    }
}

impl RestorePhase {
    /// Whether the run is over.
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
