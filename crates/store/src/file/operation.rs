//! Operations of item actions: `-itemoperations.json.gz`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{Unknown, is_zero, list_or_null, null_is_empty};

/// A background operation that an item action of a backup started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupOperation {
    /// The specification.
    pub spec: BackupOperationSpec,
    /// The status.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Specification of an operation of a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupOperationSpec {
    /// The backup.
    pub backup_name: String,
    /// Its uid.
    #[serde(rename = "backupUID")]
    pub backup_uid: String,
    /// The plugin.
    pub backup_item_action: String,
    /// The item of the operation.
    pub resource_identifier: ResourceIdentifier,
    /// The plugin's id of the operation.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Items to store again when all operations have ended.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "list_or_null")]
    pub post_operation_items: Vec<ResourceIdentifier>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A background operation that an item action of a restore started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreOperation {
    /// The specification.
    pub spec: RestoreOperationSpec,
    /// The status.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Specification of an operation of a restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestoreOperationSpec {
    /// The restore.
    pub restore_name: String,
    /// Its uid.
    #[serde(rename = "restoreUID")]
    pub restore_uid: String,
    /// The plugin.
    pub restore_item_action: String,
    /// The item of the operation.
    pub resource_identifier: ResourceIdentifier,
    /// The plugin's id of the operation.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationStatus {
    /// The phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// The error of a failed operation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Work done.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_completed: i64,
    /// Total work.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_total: i64,
    /// Unit of the counts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation_units: String,
    /// The plugin's description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Time at which the operation was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// Time at which the plugin began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// Time of the plugin's last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<Time>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Phase of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationPhase {
    /// The plugin has not begun.
    New,
    /// The plugin is working on it.
    InProgress,
    /// Succeeded.
    Completed,
    /// Failed.
    Failed,
    /// A phase that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl OperationPhase {
    /// True if the operation has ended.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New | Self::InProgress | Self::Other(_) => false,
            Self::Completed | Self::Failed => true,
        }
    }
}

/// Names one item. Velero gave its fields no JSON names, so they are written with capitals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ResourceIdentifier {
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, plural.
    pub resource: String,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl From<bowline_plugin::ResourceIdentifier> for ResourceIdentifier {
    fn from(id: bowline_plugin::ResourceIdentifier) -> Self {
        let bowline_plugin::ResourceIdentifier { group, resource, namespace, name } = id;
        Self { group, resource, namespace, name }
    }
}

impl From<ResourceIdentifier> for bowline_plugin::ResourceIdentifier {
    fn from(id: ResourceIdentifier) -> Self {
        let ResourceIdentifier { group, resource, namespace, name } = id;
        Self { group, resource, namespace, name }
    }
}
