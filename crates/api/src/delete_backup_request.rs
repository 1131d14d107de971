//! DeleteBackupRequest: remove a backup and its data.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    serde_help::{null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Backup to delete.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DeleteBackupRequest",
    doc = "A request to delete a backup with its files, snapshots and restores.",
    namespaced,
    status = "DeleteBackupRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "dbr",
    printcolumn(name = "BackupName", type_ = "string", json_path = ".spec.backupName"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["backupName"]))]
pub struct DeleteBackupRequestSpec {
    /// Name of the backup.
    pub backup_name: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(DeleteBackupRequestSpec);

/// Status of the deletion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DeleteBackupRequestStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DeleteBackupRequestPhase")]
    pub phase: Option<DeleteBackupRequestPhase>,

    /// Errors.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub errors: Vec<String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Phase of a deletion.
    checked DeleteBackupRequestPhase {
        /// Created, not processed yet.
        New = "New",
        /// In progress.
        InProgress = "InProgress",
        /// Processed, with or without errors.
        Processed = "Processed",
    }
}

impl DeleteBackupRequestPhase {
    /// Returns true if the request is processed, with or without errors.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New | Self::InProgress | Self::Other(_) => false,
            Self::Processed => true,
        }
    }
}
