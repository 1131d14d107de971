//! What a server is told.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_engine::journal::MAX_ATTEMPTS;
use bowline_engine::restore::order::Priorities;
use bowline_plugin_host::InheritedEnvironment;

use crate::{lease, log, metrics};

/// What a server is told. The defaults are those of `bowline server`, which are Velero's where it
/// has the same flag and nothing speaks against them. One differs: metrics are not served, so that
/// several servers fit into a process.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Options {
    /// The namespace whose resources are worked on.
    pub namespace: String,
    /// The folder that plugins are looked for in.
    pub plugin_dir: PathBuf,
    /// What every plugin gets as arguments: those of the server, word for word.
    pub plugin_arguments: Vec<OsString>,
    /// Variables that every plugin gets beside what it inherits.
    pub plugin_environment: Vec<(OsString, OsString)>,
    /// The plugins that get one call at a time; see [`bowline_plugin_host::Options::serial`].
    pub serial_plugins: Vec<String>,
    /// Which variables of the server's environment plugins get.
    pub plugin_inherited_environment: InheritedEnvironment,
    /// How large a message to or from a plugin may be, in bytes.
    pub plugin_message_limit: usize,
    /// How long one call of an item action may take; without it `Execute` 10 minutes, `AppliesTo` one.
    pub plugin_call_timeout: Option<Duration>,
    /// How long a snapshotter may take for a snapshot while pods are frozen.
    pub freeze_timeout: Duration,
    /// What `filesystem` locations lie below; without it there are none.
    pub filesystem_root: Option<PathBuf>,
    /// Where downloads from `filesystem` locations are served; port 0 means a free one.
    pub download_address: SocketAddr,
    /// The address under which clients reach that, if it is another: `https://host/path`.
    pub download_url: Option<String>,
    /// Where metrics and health checks are served, if they are.
    pub metrics_address: metrics::Address,
    /// What the server is called among those that may work in its namespace. One that is started
    /// again under the same name goes on at once; two must not have the same.
    pub identity: String,
    /// How long the lease lasts by which one server at a time works.
    pub lease: lease::LeaseTimings,
    /// Where private files may lie while the server runs.
    pub scratch_dir: PathBuf,
    /// How many backups run at a time.
    pub concurrent_backups: usize,
    /// How many restores run at a time. They begin in the order in which they were created.
    pub concurrent_restores: usize,
    /// How many blocks of items one backup works on at a time.
    pub item_block_worker_count: usize,
    /// How many objects the API server is asked for at once; zero means all.
    pub client_page_size: u32,
    /// How long a backup is kept that does not say.
    pub default_backup_ttl: Duration,
    /// The location of a backup that names none, if no location is marked as the default.
    pub default_backup_storage_location: String,
    /// How long a backup or restore waits for a bucket that cannot be used.
    pub bucket_wait_timeout: Duration,
    /// How often each stage of a backup or restore is attempted.
    pub run_attempts: usize,
    /// How long an operation of a plugin may take if the backup or restore does not say.
    pub default_item_operation_timeout: Duration,
    /// The longest pause between two looks at an operation.
    pub item_operation_sync_frequency: Duration,
    /// Whether pod volumes are copied file by file if the backup does not say.
    pub default_volumes_to_fs_backup: bool,
    /// Whether the data of snapshots is moved into the location if the backup does not say.
    pub default_snapshot_move_data: bool,
    /// Whether snapshots of volumes are uploaded if neither the backup nor the location says so.
    pub default_snapshot_type: SnapshotType,
    /// How many snapshots are uploaded at a time.
    pub snapshot_upload_concurrency: usize,
    /// For each provider the VolumeSnapshotLocation to use where there are several.
    pub default_volume_snapshot_locations: BTreeMap<String, String>,
    /// The label that groups volumes whose snapshots are taken together.
    pub volume_group_snapshot_label_key: String,
    /// How often backups of a location are brought into the cluster if it does not say; zero means
    /// never.
    pub backup_sync_period: Duration,
    /// How many Backups of a location are brought into the cluster at most; zero means all.
    pub backup_sync_limit: usize,
    /// How often the deletion of a backup that has expired is tried again.
    pub garbage_collection_frequency: Duration,
    /// How many expired backups are deleted in an hour at most, or a tenth of all if that is more; zero means
    /// all.
    pub garbage_collection_limit: usize,
    /// Whether schedules that do not say so leave out the time until they are first seen.
    pub schedule_skip_immediately: bool,
    /// How often a location is checked if it does not say; zero means once.
    pub store_validation_frequency: Duration,
    /// How long to wait for something in the cluster to become as it should be.
    pub resource_timeout: Duration,
    /// How long to wait for something in the cluster to go away.
    pub terminating_resource_timeout: Duration,
    /// Which kinds are restored first and which last.
    pub restore_resource_priorities: Priorities,
    /// Whether locations may name addresses that only this machine or its cloud answers.
    pub allow_link_local_s3: bool,
    /// What is logged, and how.
    pub log: log::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: bowline_api::DEFAULT_NAMESPACE.to_owned(),
            plugin_dir: PathBuf::from("/plugins"),
            plugin_arguments: Vec::new(),
            plugin_environment: Vec::new(),
            serial_plugins: Vec::new(),
            plugin_inherited_environment: InheritedEnvironment::default(),
            plugin_message_limit: bowline_plugin_host::Options::default().message_limit,
            plugin_call_timeout: None,
            freeze_timeout: Duration::from_mins(10),
            filesystem_root: None,
            download_address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            download_url: None,
            metrics_address: metrics::Address::Off,
            identity: identity(),
            lease: lease::LeaseTimings::default(),
            scratch_dir: std::env::temp_dir(),
            concurrent_backups: 1,
            concurrent_restores: 1,
            item_block_worker_count: 1,
            client_page_size: 500,
            default_backup_ttl: Duration::from_hours(720),
            default_backup_storage_location: "default".to_owned(),
            bucket_wait_timeout: Duration::from_hours(4),
            run_attempts: MAX_ATTEMPTS,
            default_item_operation_timeout: Duration::from_hours(4),
            item_operation_sync_frequency: Duration::from_secs(10),
            default_volumes_to_fs_backup: false,
            default_snapshot_move_data: false,
            default_snapshot_type: SnapshotType::default(),
            snapshot_upload_concurrency: 4,
            default_volume_snapshot_locations: BTreeMap::new(),
            volume_group_snapshot_label_key: bowline_api::label::VOLUME_GROUP.to_owned(),
            backup_sync_period: Duration::from_mins(1),
            backup_sync_limit: 10_000,
            garbage_collection_frequency: Duration::from_hours(1),
            garbage_collection_limit: 100,
            schedule_skip_immediately: false,
            store_validation_frequency: Duration::from_mins(1),
            resource_timeout: Duration::from_mins(10),
            terminating_resource_timeout: Duration::from_mins(10),
            restore_resource_priorities: Priorities::default(),
            allow_link_local_s3: false,
            log: log::Options::default(),
        }
    }
}

/// The name of the machine, which for a pod is that of the pod.
fn identity() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = read.map(|name| name.trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "bowline".to_owned() } else { name }
}
