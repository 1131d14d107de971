//! BackupRepository: where the files of one namespace's volumes are kept.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    serde_help::{null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Settings of the repository.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupRepository",
    plural = "backuprepositories",
    doc = "A repository for the file-system backups of one namespace.",
    namespaced,
    status = "BackupRepositoryStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "repo",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Repository Type", type_ = "string", json_path = ".spec.repositoryType")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = [
    "backupStorageLocation", "maintenanceFrequency", "volumeNamespace"
]))]
pub struct BackupRepositorySpec {
    /// Namespace of the volumes.
    pub volume_namespace: String,

    /// BackupStorageLocation of the repository.
    pub backup_storage_location: String,

    /// Repository type.
    pub repository_type: RepositoryType,

    /// Full address of a restic repository.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub restic_identifier: String,

    /// Maintenance frequency.
    pub maintenance_frequency: Duration,

    /// Settings of the repository.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub repository_config: BTreeMap<String, String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(BackupRepositorySpec);

/// Status of the repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupRepositoryStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupRepositoryPhase")]
    pub phase: Option<BackupRepositoryPhase>,

    /// Reason if not ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// Time of the last maintenance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_maintenance_time: Option<Time>,

    /// Recent maintenance runs.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub recent_maintenance: Vec<Maintenance>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A maintenance run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Maintenance {
    /// Result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MaintenanceResult")]
    pub result: Option<MaintenanceResult>,

    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// Completion time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_timestamp: Option<Time>,

    /// Error message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// The format of a repository.
    #[derive(Default)]
    checked RepositoryType {
        /// Kopia's.
        Kopia = "kopia",
        /// Restic's.
        Restic = "restic",
        /// Not set.
        #[default]
        Unset = "",
    }
}

string_set! {
    /// Phase of a repository.
    checked BackupRepositoryPhase {
        /// Created, not processed yet.
        New = "New",
        /// Ready for use.
        Ready = "Ready",
        /// Not ready; the message has the reason.
        NotReady = "NotReady",
    }
}

string_set! {
    /// Result of a maintenance run.
    checked MaintenanceResult {
        /// Succeeded.
        Succeeded = "Succeeded",
        /// Failed.
        Failed = "Failed",
    }
}
