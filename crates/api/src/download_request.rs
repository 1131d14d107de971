//! DownloadRequest: get a link to a file of a backup or restore.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{serde_help::spec_may_be_absent, string_set::string_set, unknown::Unknown};

/// Requested file.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DownloadRequest",
    doc = "A request for a download link to a file of a backup or restore.",
    namespaced,
    status = "DownloadRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "dreq",
    printcolumn(name = "Target Kind", type_ = "string", json_path = ".spec.target.kind"),
    printcolumn(name = "Target Name", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["target"]))]
pub struct DownloadRequestSpec {
    /// Requested file.
    pub target: DownloadTarget,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(DownloadRequestSpec);

/// A file of a backup or restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["kind", "name"]))]
pub struct DownloadTarget {
    /// Kind of file.
    pub kind: DownloadTargetKind,

    /// Name of the backup or restore.
    pub name: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Response of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DownloadRequestStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DownloadRequestPhase")]
    pub phase: Option<DownloadRequestPhase>,

    /// Download link.
    #[serde(rename = "downloadURL", skip_serializing_if = "String::is_empty")]
    pub download_url: String,

    /// Expiration time of the request and the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Kind of file.
    checked DownloadTargetKind {
        /// A backup's log.
        BackupLog = "BackupLog",
        /// A backup's archive.
        BackupContents = "BackupContents",
        /// The plugin snapshots of a backup.
        BackupVolumeSnapshots = "BackupVolumeSnapshots",
        /// A backup's plugin operations.
        BackupItemOperations = "BackupItemOperations",
        /// The names of a backup's objects.
        BackupResourceList = "BackupResourceList",
        /// A backup's errors and warnings.
        BackupResults = "BackupResults",
        /// A restore's log.
        RestoreLog = "RestoreLog",
        /// A restore's errors and warnings.
        RestoreResults = "RestoreResults",
        /// The names of a restore's objects.
        RestoreResourceList = "RestoreResourceList",
        /// A restore's plugin operations.
        RestoreItemOperations = "RestoreItemOperations",
        /// A backup's VolumeSnapshots.
        CsiBackupVolumeSnapshots = "CSIBackupVolumeSnapshots",
        /// A backup's VolumeSnapshotContents.
        CsiBackupVolumeSnapshotContents = "CSIBackupVolumeSnapshotContents",
        /// A backup's volume information.
        BackupVolumeInfos = "BackupVolumeInfos",
        /// A restore's volume information.
        RestoreVolumeInfo = "RestoreVolumeInfo",
    }
}

/// Not set; Go writes the empty string.
impl Default for DownloadTargetKind {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

string_set! {
    /// Phase of a request.
    checked DownloadRequestPhase {
        /// Not processed yet.
        New = "New",
        /// The status has the link.
        Processed = "Processed",
    }
}

impl DownloadRequestPhase {
    /// Returns true if the request is processed.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New | Self::Other(_) => false,
            Self::Processed => true,
        }
    }
}
