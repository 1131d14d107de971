//! The custom resources of Bowline: those of Velero, unchanged, and two of our own.
//!
//! A cluster can be switched from Velero to Bowline and back. So every kind, field, phase, label and
//! annotation is spelled as in Velero 1.18, and the tests compare each with Velero's own types and
//! CRDs (`golden/` has the program that reads them).
//!
//! | group version | kinds |
//! |---|---|
//! | `velero.io/v1` | [`Backup`], [`Restore`], [`Schedule`], [`BackupStorageLocation`], [`VolumeSnapshotLocation`], [`BackupRepository`], [`PodVolumeBackup`], [`PodVolumeRestore`], [`DeleteBackupRequest`], [`DownloadRequest`], [`ServerStatusRequest`] |
//! | `velero.io/v2alpha1` | [`DataUpload`], [`DataDownload`] |
//! | `velero.io/v1`, ours | [`VolumePluginBackup`], [`VolumePluginRestore`] |
//!
//! # Rules for all kinds
//!
//! - **Unknown values are kept.** An unknown field is in [`Unknown`] and is written back; an unknown
//!   phase is an `Other(String)`. Kubernetes' types inside them (selectors, references, conditions)
//!   are those of this version.
//! - **Reading is as lenient as in Go.** A missing field has its empty value, even if the CRD requires
//!   it, and so has a `null` list or map. Only a value of the wrong type is an error.
//! - **Writing is as in Go.** A field that Velero omits when empty is omitted; a field that Velero
//!   always writes (`ttl: 0s`, `hooks: {}`) is always written.
//! - **Unset and empty differ only if Velero distinguishes them**; then the field is an `Option`.
//! - **There is no status subresource**, as in Velero: status is a field like any other. Use the CRDs
//!   of [`crds::all`], not those of kube's `Backup::crd()`, which would add one.
//! - Fields of ours in Velero's kinds are marked "Bowline only"; see [`condition`] for
//!   `status.conditions`.

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

/// The default namespace of an installation.
pub const DEFAULT_NAMESPACE: &str = "velero";
