//! Configuration of a server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_engine::journal::MAX_ATTEMPTS;
use bowline_engine::restore::order::Priorities;
use bowline_engine::unpack::UnpackLimits;
use bowline_plugin_host::InheritedEnvironment;

use crate::{lease, log, metrics};

/// Configuration of a server. The defaults are those of `bowline server`, which follow Velero where
/// it has the same flag and there is no reason against it. One default differs: metrics are not
/// served, so that several servers fit into a process.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Options {
    /// Namespace whose resources the server works on.
    pub namespace: String,
    /// Directory of plugins.
    pub plugin_dir: PathBuf,
    /// Arguments of every plugin: those of the server, verbatim.
    pub plugin_arguments: Vec<OsString>,
    /// Environment variables of every plugin, in addition to the inherited ones.
    pub plugin_environment: Vec<(OsString, OsString)>,
    /// Plugins that receive one call at a time; see [`bowline_plugin_host::Options::serial`].
    pub serial_plugins: Vec<String>,
    /// Environment variables of the server that plugins inherit.
    pub plugin_inherited_environment: InheritedEnvironment,
    /// Maximum size of a message to or from a plugin, in bytes.
    pub plugin_message_limit: usize,
    /// Timeout of one call of an item action; by default 10 minutes for `Execute`, 1 for
    /// `AppliesTo`.
    pub plugin_call_timeout: Option<Duration>,
    /// Timeout of a snapshotter for one snapshot while pods are frozen.
    pub freeze_timeout: Duration,
    /// Root directory of `filesystem` locations; without it there are none.
    pub filesystem_root: Option<PathBuf>,
    /// Listen address for downloads from `filesystem` locations; port 0 means a free one.
    pub download_address: SocketAddr,
    /// URL under which clients reach the downloads, if different: `https://host/path`.
    pub download_url: Option<String>,
    /// Listen address for metrics and health checks, if they are served.
    pub metrics_address: metrics::Address,
    /// Identity of the server among those of its namespace. A server that restarts with the same
    /// identity is active again at once; two servers must not share one.
    pub identity: String,
    /// Timings of the lease, which makes one server at a time active.
    pub lease: lease::LeaseTimings,
    /// Directory for private files while the server runs.
    pub scratch_dir: PathBuf,
    /// Limits on the archive of a backup that is restored or deleted.
    pub unpack_limits: UnpackLimits,
    /// Maximum number of concurrent backups.
    pub concurrent_backups: usize,
    /// Maximum number of concurrent restores. They start in the order of their creation.
    pub concurrent_restores: usize,
    /// Number of item blocks that one backup processes concurrently.
    pub item_block_worker_count: usize,
    /// Page size of lists from the API server; zero for no paging.
    pub client_page_size: u32,
    /// Retention of a backup that specifies none.
    pub default_backup_ttl: Duration,
    /// Location of a backup that names none, if no location is marked as the default.
    pub default_backup_storage_location: String,
    /// Time that a backup or restore waits for an unavailable bucket.
    pub bucket_wait_timeout: Duration,
    /// Number of attempts at each stage of a backup or restore.
    pub run_attempts: usize,
    /// Timeout of plugin operations if the backup or restore specifies none.
    pub default_item_operation_timeout: Duration,
    /// Maximum pause between two polls of an operation.
    pub item_operation_sync_frequency: Duration,
    /// File system backup of pod volumes if the backup does not specify it.
    pub default_volumes_to_fs_backup: bool,
    /// Snapshot data movement if the backup does not specify it.
    pub default_snapshot_move_data: bool,
    /// Snapshot type (upload or not) if neither the backup nor the location specifies one.
    pub default_snapshot_type: SnapshotType,
    /// Maximum number of concurrent snapshot uploads.
    pub snapshot_upload_concurrency: usize,
    /// VolumeSnapshotLocation to use for each provider that has several.
    pub default_volume_snapshot_locations: BTreeMap<String, String>,
    /// Label that groups volumes whose snapshots are taken together.
    pub volume_group_snapshot_label_key: String,
    /// Interval of backup synchronization for locations that specify none; zero means never.
    pub backup_sync_period: Duration,
    /// Maximum number of Backups to synchronize per location; zero means all.
    pub backup_sync_limit: usize,
    /// Interval of retries of the deletion of an expired backup.
    pub garbage_collection_frequency: Duration,
    /// Maximum number of expired backups to delete per hour, or a tenth of all if that is more;
    /// zero means all.
    pub garbage_collection_limit: usize,
    /// Default of `skipImmediately` for schedules: skip the times before the schedule is first
    /// seen.
    pub schedule_skip_immediately: bool,
    /// Interval of location validation if the location specifies none; zero means once.
    pub store_validation_frequency: Duration,
    /// Timeout for resources in the cluster to reach an expected state.
    pub resource_timeout: Duration,
    /// Timeout for resources in the cluster to terminate.
    pub terminating_resource_timeout: Duration,
    /// Kinds to restore first and last.
    pub restore_resource_priorities: Priorities,
    /// Allows locations with link-local or cloud metadata addresses, which only this machine or its
    /// cloud answers.
    pub allow_link_local_s3: bool,
    /// Configuration of the log.
    pub log: log::Options,
    /// Plugins and bucket of a simulation, if the server runs in one.
    pub surroundings: Surroundings,
}

/// What a server runs in: the machine, or a simulation within the process.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    #[cfg(feature = "testing")]
    pub(crate) simulation: Option<Simulation>,
}

#[cfg(feature = "testing")]
impl From<Simulation> for Surroundings {
    fn from(simulation: Simulation) -> Self {
        Self { simulation: Some(simulation) }
    }
}

/// Plugins and bucket within the process.
#[cfg(feature = "testing")]
#[derive(Clone, Debug)]
pub struct Simulation {
    /// All plugins. No binaries are searched for.
    pub plugins: std::sync::Arc<bowline_plugin_host::InProcess>,
    /// Backend of locations with the provider `simulated`.
    pub bucket: bowline_store::backend::Simulated,
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
            unpack_limits: UnpackLimits::default(),
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
            surroundings: Surroundings::default(),
        }
    }
}

/// Host name of the machine, which in a pod is the name of the pod.
fn identity() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = read.map(|name| name.trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "bowline".to_owned() } else { name }
}
