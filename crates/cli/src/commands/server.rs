//! `bowline server`: the server, in the cluster or outside of it.

mod lease_times;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bowline_api::snapshot_type::SnapshotType;
use bowline_engine::unpack::UnpackLimits;
use bowline_plugin_host::InheritedEnvironment;
use bowline_server::{Options, Priorities, log, metrics};
use kube::Client;

use crate::args::ClusterArgs;
use crate::exit::{Exit, shutdown_signal};
use crate::flags::InvalidValue;
use crate::velero_flags::{Flag, FlagEffect, IgnoredFlagSet, IgnoredFlags, NO_FILE_BACKUP};
use crate::{cluster, flags};
use lease_times::LeaseTimes;

/// Longest silence on a connection to the API server. Watches are asked to end a little sooner.
const READ_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest number of bytes that a flag sets.
const MAX_QUANTITY: u64 = 1 << 50;

/// The flags of a server by themselves, for those who check what a server will be told.
#[derive(Debug, clap::Parser)]
pub(crate) struct ServerCommandLine {
    #[command(flatten)]
    args: Args,
}

impl ServerCommandLine {
    /// Messages about flags of Velero that change nothing here.
    pub(crate) fn warnings(&self) -> &[String] {
        self.args.ignored.warnings()
    }

    /// Parent folder of storage locations of the provider `filesystem`, if they are allowed.
    pub(crate) fn filesystem_root(&self) -> Option<&Path> {
        self.args.filesystem_root.as_deref()
    }
}

/// Flags of Velero's server without use here.
#[derive(Debug)]
struct IgnoredServerFlags;

impl IgnoredFlagSet for IgnoredServerFlags {
    fn flags() -> Vec<Flag> {
        const NO_LIMIT: FlagEffect = FlagEffect::NoEffect(
            "the server limits its concurrency, and the API server applies Priority and Fairness",
        );
        const ALL_CONTROLLERS: FlagEffect = FlagEffect::ByValue(|value| match value {
            "" => FlagEffect::Implied,
            _ => FlagEffect::Unsupported(
                "no controller of the server can be disabled; pause schedules, or make backup \
                 locations read-only",
            ),
        });
        const NO_POLICIES: FlagEffect = FlagEffect::ByValue(|value| match value {
            "" => FlagEffect::Implied,
            _ => FlagEffect::Unsupported(
                "set the policies in each backup and schedule with --resource-policies-configmap",
            ),
        });
        let mut flags = vec![
            Flag::RESTORE_ONLY,
            Flag::UPLOADER,
            Flag::FEATURES,
            Flag::CACHE,
            Flag::value("fs-backup-timeout", FlagEffect::NoEffect(NO_FILE_BACKUP)),
            Flag::value("client-qps", NO_LIMIT),
            Flag::value("client-burst", NO_LIMIT),
            Flag::value("max-concurrent-k8s-connections", NO_LIMIT),
            Flag::value("profiler-address", FlagEffect::NoEffect("this version has no profiler")),
            Flag::value("disable-controllers", ALL_CONTROLLERS),
            Flag::value("global-backup-volume-policies-configmap", NO_POLICIES),
        ];
        flags.extend(Flag::REPOSITORIES);
        flags
    }
}

/// Run the server, in a pod or on any machine with a kubeconfig
///
/// Exits cleanly on SIGTERM and Ctrl-C. Flags shared with Velero's server have the same meaning.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// Namespace whose resources the server processes
    #[arg(short, long, value_name = "NAME", env = "VELERO_NAMESPACE",
          default_value = bowline_api::DEFAULT_NAMESPACE)]
    namespace: String,

    /// Directory with the plugins
    #[arg(long, value_name = "DIR", default_value = "/plugins")]
    plugin_dir: PathBuf,

    /// Time limit for one call of a plugin's item action, in backups, restores and deletions
    /// [default: 10m, and 1m for the selection of items]
    #[arg(long, value_name = "DURATION", value_parser = flags::timeout)]
    plugin_call_timeout: Option<Duration>,

    /// Item actions to call one at a time, by name (example.io/my-action) or binary; `*` for all.
    /// Others get up to 32 parallel calls
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    serial_plugin: Vec<String>,

    /// Environment variables to pass to plugins, in addition to those that Velero's plugins are
    /// known to read; `*` may start or end a name; `all` for the server's whole environment
    /// [default: none]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = flags::non_empty_string())]
    plugin_env: Vec<String>,

    /// Maximum size of a message to or from a plugin; one plugin may use up to 32 times as much memory
    #[arg(long, value_name = "QUANTITY", default_value = "8Mi", value_parser = mebibytes)]
    plugin_message_limit: usize,

    /// Allow core dumps and debuggers. Insecure: plugins can then read the server's memory
    #[arg(long)]
    core_dumps: bool,

    /// Time limit for a plugin snapshot while hooks freeze pods; then the pods are thawed
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = flags::timeout)]
    freeze_timeout: Duration,

    /// Parent directory of `filesystem` storage locations [default: none; `filesystem` locations are rejected]
    #[arg(long, value_name = "DIR")]
    filesystem_root: Option<PathBuf>,

    /// Address to serve downloads from `filesystem` locations on; port 0 for a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    download_address: SocketAddr,

    /// URL at which clients reach --download-address
    #[arg(long, value_name = "URL")]
    download_url: Option<String>,

    /// Address for metrics and health checks: IP:PORT, or :PORT for all addresses; 0 to disable
    #[arg(long, value_name = "ADDRESS", default_value = ":8085")]
    metrics_address: metrics::Address,

    /// Directory for private temporary files [default: the system's temporary directory]
    #[arg(long, value_name = "DIR", env = "VELERO_SCRATCH_DIR")]
    scratch_dir: Option<PathBuf>,

    /// Maximum uncompressed size of the archive of a backup to restore or delete
    #[arg(long, value_name = "QUANTITY", default_value = "16Gi", value_parser = bytes)]
    archive_size_limit: u64,

    /// Maximum space for the items of one archive in --scratch-dir, during a restore or deletion.
    /// Each parallel restore and deletion needs its own; see also `bowline install
    /// --scratch-size-limit`
    #[arg(long, value_name = "QUANTITY", default_value = "8Gi", value_parser = bytes)]
    archive_scratch_limit: u64,

    /// Maximum memory for the index of one archive, during a restore or deletion: about 200 bytes
    /// for each item. Raise the memory limit of the pod as well
    #[arg(long, value_name = "QUANTITY", default_value = "192Mi", value_parser = bytes)]
    archive_index_limit: u64,

    /// Number of backups to run in parallel
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = positive_count)]
    concurrent_backups: usize,

    /// Number of restores to run in parallel; they start in order of creation
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = positive_count)]
    concurrent_restores: usize,

    /// Number of item blocks (pods with their volumes and hooks) that one backup processes in
    /// parallel
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = positive_count)]
    item_block_worker_count: usize,

    /// Number of objects per list request to the API server; 0 for all
    #[arg(long, value_name = "COUNT", default_value = "500")]
    client_page_size: u32,

    /// Time to keep backups that do not set a TTL
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = flags::timeout)]
    default_backup_ttl: Duration,

    /// Storage location for backups that name none, if no location is marked as the default
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_backup_storage_location: String,

    /// Snapshot location to use per provider if there are several: PROVIDER:NAME,PROVIDER:NAME
    #[arg(long, value_name = "LIST", value_parser = by_provider)]
    default_volume_snapshot_locations: Option<LocationsByProvider>,

    /// Time that a backup or restore waits for a bucket that does not respond or denies access
    #[arg(long, value_name = "DURATION", default_value = "4h", value_parser = flags::timeout)]
    bucket_wait_timeout: Duration,

    /// Attempts at each stage of a backup or restore before it fails
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = positive_count)]
    run_attempts: usize,

    /// Time limit for a plugin operation, unless set in the backup or restore
    #[arg(long, value_name = "DURATION", default_value = "4h", value_parser = flags::timeout)]
    default_item_operation_timeout: Duration,

    /// Maximum interval between status checks of a plugin operation
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = flags::timeout)]
    item_operation_sync_frequency: Duration,

    /// Identity of this server in the Lease; a server that restarts with the same identity takes
    /// its Lease back immediately [default: the host name or pod name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,

    #[command(flatten)]
    lease: LeaseTimes,

    /// Back up pod volumes with file-system backup, unless set in the backup; not supported yet
    #[arg(long, value_name = "BOOL", default_value = "false", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    default_volumes_to_fs_backup: bool,

    /// Move snapshot data to the storage location, unless set in the backup; not supported yet
    #[arg(long, value_name = "BOOL", default_value = "false", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    default_snapshot_move_data: bool,

    /// Upload policy for volume snapshots, unless set in the backup or the snapshot location
    #[arg(long, value_name = "TYPE", default_value = "auto",
          value_parser = flags::snapshot_type())]
    default_snapshot_type: SnapshotType,

    /// Number of volume snapshots to upload in parallel; at least one per location
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = positive_count)]
    snapshot_upload_concurrency: usize,

    /// Label key that groups volumes to be snapshotted together
    #[arg(long, value_name = "LABEL", default_value = bowline_api::label::VOLUME_GROUP)]
    volume_group_snapshot_label_key: String,

    /// Interval at which backups in a storage location are synced into the cluster, unless set in
    /// the location; 0 for never
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    backup_sync_period: Duration,

    /// Maximum number of Backups that one storage location syncs into the cluster, from other
    /// clusters or after a loss; 0 for no limit
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    backup_sync_limit: usize,

    /// Interval at which the deletion of an expired backup is retried after it was refused or failed;
    /// 0 for 60m
    #[arg(long, value_name = "DURATION", default_value = "60m", value_parser = duration)]
    garbage_collection_frequency: Duration,

    /// Maximum number of expired backups to delete per hour, or a tenth of all backups if that is
    /// more; 0 for no limit
    #[arg(long, value_name = "COUNT", default_value = "100")]
    garbage_collection_limit: usize,

    /// Skip the backup that is due when a schedule is first processed, or after `schedule unpause`,
    /// unless set in the schedule
    #[arg(long, value_name = "BOOL", default_value = "false", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    schedule_skip_immediately: bool,

    /// Interval at which a storage location is validated, unless set in the location; 0 to validate
    /// it only when a server starts and when the location changes
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    store_validation_frequency: Duration,

    /// Time that a restore waits for each of these: a CustomResourceDefinition to be served,
    /// additional items of an action to be ready, a container with a hook to start, a restored claim
    /// to be bound
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = flags::timeout)]
    resource_timeout: Duration,

    /// Time that a restore waits for a terminating resource to be deleted
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = flags::timeout)]
    terminating_resource_timeout: Duration,

    /// Order of resources to restore, such as a,b,-,c: those before `-` first, those after it last
    /// [default: Velero's: customresourcedefinitions, namespaces, storageclasses,
    /// volumesnapshotclass.snapshot.storage.k8s.io, volumesnapshotcontents.snapshot.storage.k8s.io,
    /// volumesnapshots.snapshot.storage.k8s.io, datauploads.velero.io, persistentvolumes,
    /// persistentvolumeclaims, clusterroles, roles, serviceaccounts, clusterrolebindings,
    /// rolebindings, secrets, configmaps, limitranges, priorityclasses, pods, replicasets.apps,
    /// clusterclasses.cluster.x-k8s.io, endpoints, services, -,
    /// clusterbootstraps.run.tanzu.vmware.com, clusters.cluster.x-k8s.io,
    /// clusterresourcesets.addons.cluster.x-k8s.io, apps.kappctrl.k14s.io,
    /// packageinstalls.packaging.carvel.dev]
    #[arg(long, value_name = "RESOURCES")]
    restore_resource_priorities: Option<Priorities>,

    /// Allow storage locations with link-local or cloud metadata addresses. Insecure: anyone who can
    /// create a location can then obtain the server's own credentials
    #[arg(long)]
    allow_link_local_s3: bool,

    /// Log level: trace, debug, info, warning, error, fatal, panic
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: log::Level,

    /// Log format: text, json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,

    #[command(flatten)]
    ignored: IgnoredFlags<IgnoredServerFlags>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    if !args.core_dumps {
        // Plugins run as the same user, and could otherwise read the memory of the server.
        nix::sys::prctl::set_dumpable(false)
            .context("cannot protect the server's memory from plugins")?;
    }
    let asked_to_end = shutdown_signal()?;
    let mut config = cluster::config(&args.cluster).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // A connection that was idle before a request is not silent.
    config.reset_reader_on_write = true;
    let client = Client::try_from(config).context("cannot create a client from the kubeconfig")?;
    let warnings = args.ignored.warnings().to_vec();
    let options = options(args);
    let traces = log::init(options.log).context("cannot start logging")?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let shutdown = async {
        asked_to_end.await;
    };
    let outcome = bowline_server::run(client, options, shutdown).await;
    if let Some(traces) = traces {
        // This waits for the collector, and the runtime may have other work.
        tokio::task::spawn_blocking(|| traces.shut_down())
            .await
            .context("cannot flush the traces")?;
    }
    outcome?;
    Ok(Exit::Success)
}

fn options(args: Args) -> Options {
    let defaults = Options::default();
    Options {
        namespace: args.namespace,
        plugin_dir: args.plugin_dir,
        // Velero's plugins receive and parse the flags of the server.
        plugin_arguments: std::env::args_os().skip(2).collect(),
        plugin_environment: plugin_environment(args.cluster.kubeconfig.as_deref()),
        serial_plugins: args.serial_plugin,
        plugin_inherited_environment: InheritedEnvironment::from_patterns(&args.plugin_env),
        plugin_message_limit: args.plugin_message_limit,
        plugin_call_timeout: args.plugin_call_timeout,
        freeze_timeout: args.freeze_timeout,
        filesystem_root: args.filesystem_root,
        download_address: args.download_address,
        download_url: args.download_url,
        metrics_address: args.metrics_address,
        scratch_dir: args.scratch_dir.unwrap_or_else(std::env::temp_dir),
        unpack_limits: UnpackLimits {
            total: args.archive_size_limit,
            spool: args.archive_scratch_limit,
            index: args.archive_index_limit,
            ..defaults.unpack_limits
        },
        concurrent_backups: args.concurrent_backups,
        concurrent_restores: args.concurrent_restores,
        item_block_worker_count: args.item_block_worker_count,
        client_page_size: args.client_page_size,
        default_backup_ttl: args.default_backup_ttl,
        default_backup_storage_location: args.default_backup_storage_location,
        bucket_wait_timeout: args.bucket_wait_timeout,
        run_attempts: args.run_attempts,
        default_item_operation_timeout: args.default_item_operation_timeout,
        item_operation_sync_frequency: args.item_operation_sync_frequency,
        surroundings: defaults.surroundings,
        identity: args.identity.unwrap_or(defaults.identity),
        default_volumes_to_fs_backup: args.default_volumes_to_fs_backup,
        default_snapshot_move_data: args.default_snapshot_move_data,
        default_snapshot_type: args.default_snapshot_type,
        snapshot_upload_concurrency: args.snapshot_upload_concurrency,
        default_volume_snapshot_locations: args
            .default_volume_snapshot_locations
            .map(|LocationsByProvider(locations)| locations)
            .unwrap_or_default(),
        volume_group_snapshot_label_key: args.volume_group_snapshot_label_key,
        backup_sync_period: args.backup_sync_period,
        backup_sync_limit: args.backup_sync_limit,
        garbage_collection_limit: args.garbage_collection_limit,
        garbage_collection_frequency: match args.garbage_collection_frequency {
            Duration::ZERO => defaults.garbage_collection_frequency,
            frequency => frequency,
        },
        schedule_skip_immediately: args.schedule_skip_immediately,
        store_validation_frequency: args.store_validation_frequency,
        resource_timeout: args.resource_timeout,
        terminating_resource_timeout: args.terminating_resource_timeout,
        restore_resource_priorities: args.restore_resource_priorities.unwrap_or_default(),
        allow_link_local_s3: args.allow_link_local_s3,
        log: log::Options { level: args.log_level, format: args.log_format },
        lease: args.lease.0,
    }
}

/// Variables for plugins besides the server's environment: the kubeconfig of the cluster. Plugins find it by this
/// variable, as every program does, and not by the server's flags.
fn plugin_environment(kubeconfig: Option<&Path>) -> Vec<(OsString, OsString)> {
    let absolute = |file: &Path| std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let variable = |file| (OsString::from("KUBECONFIG"), absolute(file).into_os_string());
    kubeconfig.map(variable).into_iter().collect()
}

/// Number of parallel tasks: at least one.
fn positive_count(text: &str) -> Result<usize, InvalidValue> {
    match text.parse() {
        Ok(count @ 1..=1000) => Ok(count),
        _ => Err(InvalidValue::TaskCount),
    }
}

/// Number of bytes, in whole mebibytes: `8Mi`.
fn mebibytes(text: &str) -> Result<usize, InvalidValue> {
    match text.strip_suffix("Mi").map(str::parse) {
        Some(Ok(count @ 1..=1024)) => Ok(count << 20),
        _ => Err(InvalidValue::Mebibytes),
    }
}

/// Number of bytes, in whole mebibytes or gibibytes: `192Mi`, `16Gi`.
fn bytes(text: &str) -> Result<u64, InvalidValue> {
    let unit = |suffix: &str, shift: u32| -> Option<u64> {
        let count: u64 = text.strip_suffix(suffix)?.parse().ok()?;
        (count > 0).then(|| count.checked_mul(1 << shift)).flatten()
    };
    let bytes = unit("Mi", 20).or_else(|| unit("Gi", 30));
    bytes.filter(|bytes| *bytes <= MAX_QUANTITY).ok_or(InvalidValue::Bytes)
}

/// Duration that may be zero.
fn duration(text: &str) -> Result<Duration, InvalidValue> {
    flags::duration(text).map(|duration| duration.to_std().unwrap_or_default())
}

/// Names by provider.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LocationsByProvider(BTreeMap<String, String>);

/// `aws:default,azure:other`.
fn by_provider(text: &str) -> Result<LocationsByProvider, InvalidValue> {
    let pair = |pair: &str| match pair.split_once(':') {
        Some((provider, name)) if !provider.is_empty() && !name.is_empty() => {
            Ok((provider.to_owned(), name.to_owned()))
        }
        _ => Err(InvalidValue::LocationOfProvider(pair.to_owned())),
    };
    text.split(',').map(pair).collect::<Result<_, _>>().map(LocationsByProvider)
}

#[cfg(test)]
mod tests {
    use bowline_engine::unpack::ExceededLimit;
    use clap::Parser;

    use super::*;
    use crate::velero_flags::UnsupportedFlag;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    fn parse_options(words: &[&str]) -> Options {
        let words = ["server"].iter().chain(words);
        options(TestCommand::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).args)
    }

    #[test]
    fn flag_defaults_equal_the_server_defaults() {
        // The one that differs: tests and demos must not conflict with each other.
        let port = metrics::Address::AllInterfaces(8085);
        assert_eq!(parse_options(&[]).metrics_address, port);
        let (from_flags, defaults) = (parse_options(&["--metrics-address=0"]), Options::default());
        let comparable = |mut options: Options| {
            options.plugin_arguments.clear();
            format!("{options:#?}")
        };
        assert_eq!(comparable(from_flags), comparable(defaults));
    }

    /// `pkg/cmd/server/config/config.go` of Velero 1.18, and one restore after the other.
    #[test]
    fn concurrency_defaults_match_velero() {
        let Options { concurrent_backups, concurrent_restores, item_block_worker_count, .. } =
            parse_options(&[]);
        assert_eq!([concurrent_backups, concurrent_restores, item_block_worker_count], [1, 1, 1]);
        let options = parse_options(&["--concurrent-restores=3", "--concurrent-backups=2"]);
        assert_eq!((options.concurrent_restores, options.concurrent_backups), (3, 2));
    }

    #[test]
    fn plugins_get_the_kubeconfig_and_serial_plugins_are_set() {
        let options = parse_options(&[
            "--kubeconfig=some/config",
            "--serial-plugin=example.io/a,example.io/b",
            "--serial-plugin=*",
        ]);
        let absolute_path = std::env::current_dir().unwrap().join("some/config").into_os_string();
        assert_eq!(options.plugin_environment, [(OsString::from("KUBECONFIG"), absolute_path)]);
        assert_eq!(options.serial_plugins, ["example.io/a", "example.io/b", "*"]);
        assert!(parse_options(&[]).plugin_environment.is_empty());
    }

    #[test]
    fn flags_are_spelled_as_in_velero() {
        let options = parse_options(&[
            "--default-backup-ttl=48h",
            "--default-volumes-to-fs-backup",
            "--default-snapshot-move-data=false",
            "--default-volume-snapshot-locations=aws:a,example.io/b:c",
            "--default-snapshot-type=local",
            "--snapshot-upload-concurrency=9",
            "--plugin-call-timeout=2h",
            "--plugin-env=ACME_*,TOKEN",
            "--plugin-message-limit=64Mi",
            "--archive-size-limit=64Gi",
            "--archive-scratch-limit=20Gi",
            "--archive-index-limit=512Mi",
            "--freeze-timeout=90s",
            "--default-item-operation-timeout=6h",
            "--backup-sync-period",
            "0s",
            "--metrics-address=127.0.0.1:9000",
            "--log-level=WARNING",
            "--log-format=json",
            "--leader-elect-lease-duration=30s",
            "--leader-elect-renew-deadline=20s",
            "--leader-elect-retry-period=1500ms",
        ]);
        let bowline_server::lease::LeaseTimings {
            duration,
            renew_interval: renew,
            renew_deadline: give_up,
        } = options.lease;
        assert_eq!([duration, give_up].map(|time| time.as_secs()), [30, 20]);
        assert_eq!(renew, Duration::from_millis(1500));
        assert_eq!(options.default_backup_ttl, Duration::from_hours(48));
        assert!(options.default_volumes_to_fs_backup && !options.default_snapshot_move_data);
        let locations = &options.default_volume_snapshot_locations;
        assert_eq!((locations["aws"].as_str(), locations["example.io/b"].as_str()), ("a", "c"));
        assert_eq!(options.default_snapshot_type, SnapshotType::Local);
        assert_eq!(options.snapshot_upload_concurrency, 9);
        assert!(options.backup_sync_period.is_zero());
        assert_eq!(options.plugin_call_timeout, Some(Duration::from_hours(2)));
        assert!(options.plugin_inherited_environment.allows("ACME_URL".as_ref()));
        let all = parse_options(&["--plugin-env=all"]).plugin_inherited_environment;
        assert_eq!(all, InheritedEnvironment::All);
        assert_eq!(options.plugin_message_limit, 64 << 20);
        let UnpackLimits { total, spool, index, .. } = options.unpack_limits;
        assert_eq!([total, spool, index], [64 << 30, 20 << 30, 512 << 20]);
        assert_eq!(options.freeze_timeout, Duration::from_secs(90));
        assert_eq!(options.default_item_operation_timeout, Duration::from_hours(6));
        assert_eq!(options.metrics_address.to_string(), "127.0.0.1:9000");
        assert_eq!(parse_options(&["--metrics-address="]).metrics_address, metrics::Address::Off);
        let level = "warning".parse().unwrap();
        assert_eq!(options.log, log::Options { level, format: log::Format::Json });
    }

    #[test]
    fn help_lists_the_default_restore_priorities() {
        let command = <TestCommand as clap::CommandFactory>::command();
        let mut arguments = command.get_arguments();
        let argument = arguments.find(|one| one.get_id() == "restore_resource_priorities").unwrap();
        let help = argument.get_help().unwrap().to_string().replace(' ', "");
        let default = Priorities::default().to_string();
        assert!(help.ends_with(&format!("[default:Velero's:{default}]")), "{help}");
    }

    #[test]
    fn flags_that_errors_about_archives_name_exist() {
        for limit in [ExceededLimit::Total(1), ExceededLimit::Spool(1), ExceededLimit::Index(1)] {
            let flag = limit.flag().unwrap();
            let UnpackLimits { total, spool, index, .. } =
                parse_options(&[&format!("{flag}=3Mi")]).unpack_limits;
            let changed = match limit {
                ExceededLimit::Total(_) => total,
                ExceededLimit::Spool(_) => spool,
                _ => index,
            };
            assert_eq!(changed, 3 << 20, "{flag}");
        }
    }

    #[test]
    fn all_flags_of_veleros_server_are_known() {
        let warning_count = |words: &[&str]| {
            let words = ["server"].iter().chain(words);
            ServerCommandLine::try_parse_from(words)
                .unwrap_or_else(|error| panic!("{error}"))
                .warnings()
                .len()
        };
        for idle in [
            "--fs-backup-timeout=4h",
            "--client-qps=100",
            "--client-burst=100",
            "--max-concurrent-k8s-connections=30",
            "--profiler-address=localhost:6060",
            "--disable-informer-cache",
            "--default-repo-maintain-frequency=1h",
            "--backup-repository-configmap=c",
            "--repo-maintenance-job-configmap=c",
        ] {
            assert_eq!(warning_count(&[idle]), 1, "{idle}");
        }
        for done in ["--uploader-type=kopia", "--features=EnableCSI", "--restore-only=false"] {
            assert_eq!(warning_count(&[done]), 0, "{done}");
        }
        for refused in [
            "--restore-only",
            "--disable-controllers=gc",
            "--global-backup-volume-policies-configmap=c",
            "--features=EnableAPIGroupVersions",
            "--uploader-type=restic",
        ] {
            let error = ServerCommandLine::try_parse_from(["server", refused]).unwrap_err();
            assert!(UnsupportedFlag::find_in(&error).is_some(), "{error}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for words in [
            "--concurrent-backups=0",
            "--concurrent-restores=0",
            "--default-backup-ttl=30d",
            "--default-backup-ttl=0s",
            "--backup-sync-period=-1s",
            "--plugin-call-timeout=0s",
            "--plugin-message-limit=0Mi",
            "--plugin-message-limit=8388608",
            "--archive-size-limit=0Gi",
            "--archive-scratch-limit=8589934592",
            "--archive-index-limit=99999999999999999Gi",
            "--plugin-env=",
            "--freeze-timeout=0s",
            "--default-volume-snapshot-locations=aws",
            "--default-snapshot-type=remote",
            "--snapshot-upload-concurrency=0",
            "--log-level=loud",
            "--log-format=xml",
            "--download-address=here",
            "--metrics-address=here",
        ] {
            assert!(TestCommand::try_parse_from(["server", words]).is_err(), "{words}");
        }
    }
}
