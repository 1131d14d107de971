//! Inputs of a request besides the Backup.

use std::collections::BTreeMap;

use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{BackupStorageLocation, Duration, VolumeSnapshotLocation, label};

use crate::backup::filter::namespaces::Namespace;
use crate::lookup::{ListRefused, Lookup};

/// Objects that the server looked up for a Backup.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The location that [`storage_location_name`](super::storage_location_name) names.
    pub storage_location: Lookup<BackupStorageLocation>,
    /// The name of the location that is marked as the default.
    pub default_storage_location: Option<String>,
    /// All BackupStorageLocations, or the reason why they could not be listed.
    pub storage_locations: Result<Vec<BackupStorageLocation>, ListRefused>,
    /// All VolumeSnapshotLocations, or the reason why they could not be listed.
    pub snapshot_locations: Result<Vec<VolumeSnapshotLocation>, ListRefused>,
    /// All namespaces of the cluster, or the reason why they could not be listed.
    pub namespaces: Result<Vec<Namespace>, ListRefused>,
    /// The data of the ConfigMap that `spec.resourcePolicy` names. Not looked up if it names none.
    pub policy: Lookup<BTreeMap<String, String>>,
}

/// Configuration of the server. The defaults are Velero's.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// Time a backup is kept.
    pub ttl: Duration,
    /// The storage location, if none is marked as the default.
    pub storage_location: String,
    /// Time an operation of a plugin may take.
    pub item_operation_timeout: Duration,
    /// Time a CSI snapshot may take to become ready.
    pub csi_snapshot_timeout: Duration,
    /// Time to wait for anything else.
    pub resource_timeout: Duration,
    /// True if volumes of pods are backed up with `fs-backup` unless they opt out.
    pub volumes_to_fs_backup: bool,
    /// True if the data of snapshots is moved to the storage location.
    pub snapshot_move_data: bool,
    /// The label whose value groups volumes that must be snapshotted together.
    pub volume_group_label_key: String,
    /// The VolumeSnapshotLocation to use for a provider that has several.
    pub snapshot_locations: BTreeMap<String, String>,
    /// Upload of snapshots, where neither the Backup nor the location sets it.
    pub snapshot_type: SnapshotType,
    /// The version of the cluster.
    pub cluster_version: ClusterVersion,
}

/// The version of a cluster, as its API server reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterVersion {
    /// `v1.36.1`
    pub git_version: String,
    /// `1`
    pub major: String,
    /// `36`
    pub minor: String,
}

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

impl Default for Defaults {
    fn default() -> Self {
        Self {
            ttl: Duration::from_seconds(720 * HOUR),
            storage_location: "default".to_owned(),
            item_operation_timeout: Duration::from_seconds(4 * HOUR),
            csi_snapshot_timeout: Duration::from_seconds(10 * MINUTE),
            resource_timeout: Duration::from_seconds(10 * MINUTE),
            volumes_to_fs_backup: false,
            snapshot_move_data: false,
            volume_group_label_key: label::VOLUME_GROUP.to_owned(),
            snapshot_locations: BTreeMap::new(),
            snapshot_type: SnapshotType::default(),
            cluster_version: ClusterVersion::default(),
        }
    }
}
