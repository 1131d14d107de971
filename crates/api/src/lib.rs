//! The custom resources of Bowline: Velero's, word for word, and two of our own.
//!
//! A cluster that ran Velero yesterday must be able to run Bowline today, and Velero again
//! tomorrow. So every kind, field, phase, label and annotation here is spelled as in Velero 1.18,
//! and the tests compare each with what Velero's own types and CRDs say (`golden/` holds the
//! program that asks them).
//!
//! | group version | kinds |
//! |---|---|
//! | `velero.io/v1` | [`Backup`], [`Restore`], [`Schedule`], [`BackupStorageLocation`], [`VolumeSnapshotLocation`], [`BackupRepository`], [`PodVolumeBackup`], [`PodVolumeRestore`], [`DeleteBackupRequest`], [`DownloadRequest`], [`ServerStatusRequest`] |
//! | `velero.io/v2alpha1` | [`DataUpload`], [`DataDownload`] |
//! | `velero.io/v1`, ours | [`VolumePluginBackup`], [`VolumePluginRestore`] |
//!
//! # Rules that hold for all of them
//!
//! - **Nothing of Velero's is lost.** A field that we do not know lands in [`Unknown`] and is written
//!   back; a phase that we do not know is an `Other(String)`. Types of Kubernetes' own inside them
//!   (selectors, references, conditions) are those of this version.
//! - **Reading is generous, as Go's is.** A missing field is its empty value, also where the CRD
//!   requires it, and so is a `null` list or map. Only a value of the wrong type is an error.
//! - **Writing is what Go writes.** A field that Velero leaves out when empty is left out; one that
//!   it always writes (`ttl: 0s`, `hooks: {}`) is always written.
//! - **Unset and empty differ only where Velero tells them apart**; there the field is an `Option`.
//! - **No status subresource**, since Velero has none: status is a field like any other. Take CRDs
//!   from [`crds::all`], not from kube's `Backup::crd()`, which would add one.
//! - The one field of ours in Velero's kinds is `status.conditions` of [`Backup`] and [`Restore`];
//!   see [`condition`].

pub mod access;
pub mod annotation;
pub mod backup;
pub mod backup_repository;
pub mod backup_storage_location;
pub mod condition;
pub mod crds;
pub mod data_download;
pub mod data_upload;
pub mod delete_backup_request;
pub mod download_request;
pub mod duration;
pub mod hook;
pub mod label;
pub mod location;
pub mod pod_volume_backup;
pub mod pod_volume_restore;
pub mod restore;
pub mod schedule;
pub mod server_status_request;
pub mod snapshot_type;
pub mod transfer;
pub mod unknown;
pub mod volume_plugin;
pub mod volume_plugin_backup;
pub mod volume_plugin_restore;
pub mod volume_snapshot_location;

mod schema;
mod serde_help;
mod string_set;

pub use backup::{Backup, BackupPhase, BackupSpec, BackupStatus};
pub use backup_repository::{BackupRepository, BackupRepositorySpec, BackupRepositoryStatus};
pub use backup_storage_location::{
    BackupStorageLocation, BackupStorageLocationSpec, BackupStorageLocationStatus,
};
pub use data_download::{DataDownload, DataDownloadSpec, DataDownloadStatus};
pub use data_upload::{DataUpload, DataUploadSpec, DataUploadStatus};
pub use delete_backup_request::{
    DeleteBackupRequest, DeleteBackupRequestSpec, DeleteBackupRequestStatus,
};
pub use download_request::{DownloadRequest, DownloadRequestSpec, DownloadRequestStatus};
pub use duration::Duration;
pub use pod_volume_backup::{PodVolumeBackup, PodVolumeBackupSpec, PodVolumeBackupStatus};
pub use pod_volume_restore::{PodVolumeRestore, PodVolumeRestoreSpec, PodVolumeRestoreStatus};
pub use restore::{Restore, RestorePhase, RestoreSpec, RestoreStatus};
pub use schedule::{Schedule, ScheduleSpec, ScheduleStatus};
pub use server_status_request::{
    ServerStatusRequest, ServerStatusRequestSpec, ServerStatusRequestStatus,
};
pub use unknown::Unknown;
pub use volume_plugin_backup::{
    VolumePluginBackup, VolumePluginBackupSpec, VolumePluginBackupStatus,
};
pub use volume_plugin_restore::{
    VolumePluginRestore, VolumePluginRestoreSpec, VolumePluginRestoreStatus,
};
pub use volume_snapshot_location::{
    VolumeSnapshotLocation, VolumeSnapshotLocationSpec, VolumeSnapshotLocationStatus,
};

/// The API group of all kinds.
pub const GROUP: &str = "velero.io";

/// The namespace that Velero is installed in unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "velero";
