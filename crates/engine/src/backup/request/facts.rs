//! What a request is made of besides the Backup.

use std::collections::BTreeMap;

use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{BackupStorageLocation, Duration, VolumeSnapshotLocation, label};

use crate::backup::filter::namespaces::Namespace;

/// What came of looking for something.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lookup<T> {
    /// It is there.
    Found(T),
    /// It is not there.
    #[default]
    Missing,
    /// It is not known whether it is there, and why.
    Failed(String),
}

/// What the server looked up for a Backup.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The location that [`storage_location_name`](super::storage_location_name) names.
    pub storage_location: Lookup<BackupStorageLocation>,
    /// The name of the location that says that it is the default one.
    pub default_storage_location: Option<String>,
    /// All BackupStorageLocations, or why they could not be listed.
    pub storage_locations: Result<Vec<BackupStorageLocation>, String>,
    /// All VolumeSnapshotLocations, or why they could not be listed.
    pub snapshot_locations: Result<Vec<VolumeSnapshotLocation>, String>,
    /// All namespaces of the cluster, or why they could not be listed.
    pub namespaces: Result<Vec<Namespace>, String>,
    /// The data of the ConfigMap that `spec.resourcePolicy` names. Not looked at if it names none.
    pub policy: Lookup<BTreeMap<String, String>>,
}

/// What the server is configured with. The defaults are Velero's.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// How long a backup is kept.
    pub ttl: Duration,
    /// Where it goes, if no location says that it is the default one.
    pub storage_location: String,
    /// How long an operation of a plugin may take.
    pub item_operation_timeout: Duration,
    /// How long a CSI snapshot may take to become ready.
    pub csi_snapshot_timeout: Duration,
    /// How long anything else may take that is waited for.
    pub resource_timeout: Duration,
    /// Whether volumes of pods are copied file by file unless they opt out.
    pub volumes_to_fs_backup: bool,
    /// Whether the data of snapshots is moved into the storage location.
    pub snapshot_move_data: bool,
    /// The label whose value groups volumes that must be snapshotted together.
    pub volume_group_label_key: String,
    /// The VolumeSnapshotLocation to use for a provider that has several.
    pub snapshot_locations: BTreeMap<String, String>,
    /// Whether snapshots are uploaded, where nothing else says so.
    pub snapshot_type: SnapshotType,
    /// The version of the cluster.
    pub cluster_version: ClusterVersion,
}

/// The version of a cluster, as its API server tells it.
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
