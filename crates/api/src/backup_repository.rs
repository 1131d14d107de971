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

/// Whose files it holds, where it lies, and how it is looked after.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupRepository",
    plural = "backuprepositories",
    doc = "A repository with the files of one namespace's volumes.",
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
    /// Namespace whose volumes it holds.
    pub volume_namespace: String,

    /// BackupStorageLocation it lies in.
    pub backup_storage_location: String,

    /// Its format.
    pub repository_type: RepositoryType,

    /// Full address, for restic.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub restic_identifier: String,

    /// How often it is cleaned up.
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

/// What is known of a repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupRepositoryStatus {
    /// Whether it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupRepositoryPhase")]
    pub phase: Option<BackupRepositoryPhase>,

    /// Why it cannot be used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// When it was last cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_maintenance_time: Option<Time>,

    /// How the last clean-ups went.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub recent_maintenance: Vec<Maintenance>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One clean-up of a repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Maintenance {
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MaintenanceResult")]
    pub result: Option<MaintenanceResult>,

    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,

    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_timestamp: Option<Time>,

    /// Why it failed.
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
    /// Whether a repository can be used.
    checked BackupRepositoryPhase {
        /// Created, not looked at.
        New = "New",
        /// Can be used.
        Ready = "Ready",
        /// Cannot be used; the message says why.
        NotReady = "NotReady",
    }
}

string_set! {
    /// How a clean-up ended.
    checked MaintenanceResult {
        /// Well.
        Succeeded = "Succeeded",
        /// Not well.
        Failed = "Failed",
    }
}
