//! Operations of item actions: `-itemoperations.json.gz`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{Unknown, is_zero, list_or_null, null_is_empty};

/// Something that an item action of a backup started and that goes on behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupOperation {
    /// What was started.
    pub spec: BackupOperationSpec,
    /// How far it is.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What an item action of a backup started.
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
    /// The item that it was started for.
    pub resource_identifier: ResourceIdentifier,
    /// The plugin's name for it.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Items to store again when all operations have ended.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "list_or_null")]
    pub post_operation_items: Vec<ResourceIdentifier>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Something that an item action of a restore started and that goes on behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreOperation {
    /// What was started.
    pub spec: RestoreOperationSpec,
    /// How far it is.
    pub status: OperationStatus,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What an item action of a restore started.
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
    /// The item that it was started for.
    pub resource_identifier: ResourceIdentifier,
    /// The plugin's name for it.
    #[serde(rename = "operationID")]
    pub operation_id: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How far an operation is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationStatus {
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// How much is done.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_completed: i64,
    /// Of how much.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_total: i64,
    /// In which unit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation_units: String,
    /// In the plugin's words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it was noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// When the plugin began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When the plugin last told something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<Time>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Where an operation is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationPhase {
    /// The plugin has not begun.
    New,
    /// The plugin is at it.
    InProgress,
    /// It has succeeded.
    Completed,
    /// It has failed.
    Failed,
    /// A phase that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl OperationPhase {
    /// Whether nothing more will happen.
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
    /// The namespace; empty for what lives in none.
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
