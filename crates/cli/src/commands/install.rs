//! `bowline install`: the custom resource definitions, the server, and the objects it needs.

mod apply;
mod definitions;
mod existing_installation;
mod existing_velero;
mod objects;
mod plugins;
mod server_flags;
mod server_pod;
mod velero_flags;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::access::Profile;
use bowline_api::crds;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::Value;
use tokio::time::Instant;

use crate::args::{ClusterArgs, InstallationArgs};
use crate::commands::recovery;
use crate::exit::Exit;
use crate::flags::{self, InvalidValue, Pairs};
use crate::installation::Installation;
use crate::velero_flags::IgnoredFlags;
use crate::{client_config, output, tls_trust};
#[cfg(feature = "demo")]
pub(crate) use definitions::apply;
use objects::{InstallPlan, Location};
pub(crate) use objects::{MANAGED_BY_LABEL, NAME, cluster_name};
pub(crate) use server_pod::SECRET as CREDENTIALS_SECRET;
use server_pod::{Resources, ServerPod};
use velero_flags::{IgnoredInstallFlags, ServerFlags};

/// Default image of the server, unless one is given or already in use.
const DEFAULT_IMAGE: &str = concat!("bowline:v", env!("CARGO_PKG_VERSION"));
/// Longest wait for the server to be ready, with `--wait`.
const READY_TIMEOUT: Duration = Duration::from_mins(5);
/// Interval of checks during that wait.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Larger than any credentials file.
const MAX_SECRET_BYTES: u64 = 1 << 20;

/// Install the server and its custom resource definitions into a cluster
///
/// Running it again changes the installation to the given flags. A custom resource definition that
/// is newer than this program's, Velero's or Bowline's, is never replaced by an older one: it is
/// kept and reported. Before anything is changed, the API server validates all objects.
///
/// The server is never bound to `cluster-admin`, but anyone who controls the server can become a
/// cluster administrator with either profile. With `--profile=backup-only`, it writes only in its
/// own namespace, apart from volume snapshots and hooks in pods, but it reads all Secrets and can
/// execute commands in every pod. Restores need `--profile=full`, because they create objects of
/// every kind, including roles and bindings.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// Namespace to install into [default: `namespace` in ~/.config/velero/config.json, then
    /// $VELERO_NAMESPACE, then velero]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Permissions of the server: backup-only, or full, which restores need [default: the profile
    /// of the existing server, otherwise backup-only]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,

    /// Image of the server; needed for the first installation, because no image is published
    /// [default: the image of the existing server]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Number of server replicas: one is active, the others are on standby
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,

    /// Images of plugins to add to the server
    #[arg(long, value_name = "IMAGE,…", value_delimiter = ',', value_parser = flags::non_empty_string())]
    plugins: Vec<String>,

    /// Install only the custom resource definitions
    #[arg(long)]
    crds_only: bool,

    /// Change nothing: print the changes that would be made in the cluster or, with -o, only the
    /// objects
    #[arg(long)]
    dry_run: bool,

    /// Install even if Velero runs in another namespace; use separate buckets or prefixes for the
    /// two
    #[arg(long)]
    beside_velero: bool,

    /// Wait until the server is ready
    #[arg(long)]
    wait: bool,

    /// Print the objects in this format
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    location: LocationArgs,

    #[command(flatten)]
    pod: PodArgs,

    #[command(flatten)]
    for_server: ServerFlags,

    #[command(flatten)]
    ignored: IgnoredFlags<IgnoredInstallFlags>,

    /// Any flags of `bowline server`, after `--`, such as `-- --concurrent-restores=8`
    #[arg(last = true, value_name = "SERVER FLAGS", help_heading = velero_flags::SERVER_FLAGS_HEADING)]
    server_flags: Vec<String>,

    #[command(flatten, next_help_heading = "Cluster")]
    cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Storage")]
struct LocationArgs {
    /// Provider of the backup storage and of the snapshot plugin, such as aws
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// Bucket of the default backup location
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,

    /// Prefix in the bucket
    #[arg(long, value_name = "PATH")]
    prefix: Option<String>,

    /// Settings of the default backup location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    backup_location_config: Vec<Pairs>,

    /// CA certificate file to trust for connections to the provider
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// File with the credentials for the provider
    #[arg(long, value_name = "FILE", conflicts_with = "no_secret")]
    secret_file: Option<PathBuf>,

    /// Install no credentials: use the Secret `cloud-credentials` if it exists, otherwise
    /// credentials that the pod gets in another way
    #[arg(long)]
    no_secret: bool,

    /// Create no backup location
    #[arg(long, conflicts_with_all = ["bucket", "prefix"])]
    no_default_backup_location: bool,

    /// Create a snapshot location for the provider if --plugins includes a plugin for it
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    use_volume_snapshots: bool,

    /// Settings of the snapshot location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    snapshot_location_config: Vec<Pairs>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server pod")]
struct PodArgs {
    /// CPU request; 0 for none
    #[arg(long, value_name = "QUANTITY", default_value = "500m")]
    velero_pod_cpu_request: String,

    /// Memory request; 0 for none
    #[arg(long, value_name = "QUANTITY", default_value = "128Mi")]
    velero_pod_mem_request: String,

    /// CPU limit; 0 for none
    #[arg(long, value_name = "QUANTITY", default_value = "1000m")]
    velero_pod_cpu_limit: String,

    /// Memory limit; 0 for none
    #[arg(long, value_name = "QUANTITY", default_value = "512Mi")]
    velero_pod_mem_limit: String,

    /// Disk space for temporary files, in whole GiB, including unpacked archives during restores; 0
    /// for no limit
    #[arg(long, value_name = "QUANTITY", default_value = "10Gi", value_parser = gibibytes)]
    scratch_size_limit: u32,

    /// Annotations to add to the pod
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    pod_annotations: Vec<Pairs>,

    /// Labels to add to the pod
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    pod_labels: Vec<Pairs>,

    /// Annotations to add to the service account, such as the name of a cloud IAM role
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    sa_annotations: Vec<Pairs>,

    /// Existing service account to use [default: a new one is created]
    #[arg(long, value_name = "NAME", conflicts_with = "sa_annotations")]
    service_account_name: Option<String>,

    /// Priority class of the pod
    #[arg(long, value_name = "NAME")]
    server_priority_class_name: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut plan = if args.crds_only { None } else { Some(install_plan(&args)?) };
    for warning in plan.iter().flat_map(|plan| &plan.warnings) {
        output::print_message(warning);
    }
    // Objects that are only printed are the same for every cluster.
    let is_printed_only = args.dry_run && args.output.is_some();
    let mut installation = None;
    if !is_printed_only {
        let (namespace, cluster) = (args.namespace.clone(), args.cluster.clone());
        let connected = Installation::connect(&InstallationArgs { namespace, cluster }).await?;
        if let Some(plan) = &mut plan {
            existing_velero::refuse_beside_velero(&connected, args.beside_velero).await?;
            existing_installation::keep_existing_installation(&connected, &args, plan).await?;
        }
        installation = Some(connected);
    }
    let objects = plan.as_ref().map(objects::all).unwrap_or_default();
    if let Some(installation) = installation {
        install_all(&installation, &objects, args.dry_run).await?;
        if let Some(plan) = &plan {
            if args.wait && !args.dry_run {
                wait_until_ready(&installation).await?;
            }
            for line in next_steps(plan) {
                output::print_message(line);
            }
            if !args.dry_run
                && let Some(reminder) = recovery::reminder(&installation).await
            {
                output::print_message(reminder);
            }
        }
    }
    if let Some(format) = args.output {
        output::print_data(print(&objects, format)?)?;
    }
    Ok(Exit::Success)
}

/// Applies definitions and objects to the cluster, or only reports the changes.
async fn install_all(
    installation: &Installation,
    objects: &[Value],
    dry_run: bool,
) -> anyhow::Result<()> {
    let client = installation.client();
    let outcomes = definitions::check(&client).await?;
    let outcomes = [outcomes, apply::check(installation, objects).await?].concat();
    if dry_run {
        outcomes.into_iter().for_each(output::print_message);
        return Ok(());
    }
    let installed = definitions::install(&client).await;
    installed.map_err(|error| {
        apply::partial_install_error(&error, &["the custom resource definitions before it"])
    })?;
    apply::apply_all(installation, objects, "the custom resource definitions").await
}

/// Objects to install, after a check of the flags.
fn install_plan(args: &Args) -> anyhow::Result<InstallPlan> {
    let LocationArgs { provider, bucket, prefix, cacert, secret_file, no_secret, .. } =
        &args.location;
    let provider = provider.as_deref();
    let server_flags = [args.for_server.0.as_slice(), &args.server_flags].concat();
    let server = server_flags::parse(&server_flags)?;
    server_flags::refuse_identity(&server_flags)?;
    if !*no_secret && secret_file.is_none() {
        bail!("provider credentials are missing; add --secret-file, or --no-secret");
    }
    let backups = match (args.location.no_default_backup_location, provider, bucket) {
        (true, _, _) => None,
        (false, Some(provider), Some(bucket)) => {
            let prefix = prefix.clone().unwrap_or_default();
            bowline_store::Prefix::new(&prefix)?;
            Some(Location {
                provider: provider.to_owned(),
                bucket: bucket.clone(),
                prefix,
                certificates: cacert.as_deref().map(tls_trust::read_file).transpose()?,
                config: flags::merged(&args.location.backup_location_config),
            })
        }
        (false, _, _) => bail!(
            "backup storage is missing; add --provider and --bucket, or \
             --no-default-backup-location"
        ),
    };
    // Without a plugin no snapshots can be taken, and every backup would report that.
    let has_snapshotter = args.location.use_volume_snapshots && !args.plugins.is_empty();
    let snapshots = provider.filter(|_| has_snapshotter).map(|provider| {
        (provider.to_owned(), flags::merged(&args.location.snapshot_location_config))
    });
    if let Some(Location { provider, .. }) = &backups {
        refuse_unknown_provider(provider, &args.plugins, server.filesystem_root())?;
    }
    let PodArgs { service_account_name, server_priority_class_name, .. } = &args.pod;
    let annotations = flags::merged(&args.pod.sa_annotations);
    Ok(InstallPlan {
        namespace: client_config::namespace(args.namespace.as_deref())?,
        profile: args.profile.unwrap_or_default(),
        secret: secret_file.as_deref().map(read_secret).transpose()?,
        backups,
        snapshots,
        service_account: service_account_name.clone(),
        service_account_annotations: annotations,
        warnings: [args.ignored.warnings(), server.warnings()].concat(),
        pod: ServerPod {
            image: args.image.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
            replicas: args.replicas,
            plugins: plugins::plugin_containers(&args.plugins, &[])?,
            filesystem_root: server.filesystem_root().map(Path::to_owned),
            flags: server_flags,
            resources: Resources {
                cpu: [&args.pod.velero_pod_cpu_request, &args.pod.velero_pod_cpu_limit]
                    .map(String::clone),
                memory: [&args.pod.velero_pod_mem_request, &args.pod.velero_pod_mem_limit]
                    .map(String::clone),
            },
            scratch_gib: args.pod.scratch_size_limit,
            annotations: flags::merged(&args.pod.pod_annotations),
            labels: flags::merged(&args.pod.pod_labels),
            priority_class: server_priority_class_name.clone(),
            has_credentials: secret_file.is_some(),
        },
    })
}

fn read_secret(path: &Path) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot read the credentials in {}", path.display());
    let size = std::fs::metadata(path).with_context(cannot)?.len();
    if size > MAX_SECRET_BYTES {
        bail!("{} has {size} bytes, but a Secret holds at most {MAX_SECRET_BYTES}", path.display());
    }
    std::fs::read(path).with_context(cannot)
}

/// Number of whole GiB: `10Gi`, or `0`.
fn gibibytes(text: &str) -> Result<u32, InvalidValue> {
    match text.strip_suffix("Gi").unwrap_or(if text == "0" { text } else { "" }).parse() {
        Ok(count @ 0..=100_000) => Ok(count),
        _ => Err(InvalidValue::Gibibytes),
    }
}

/// Refuses a provider that has no implementation: each backup would report that.
fn refuse_unknown_provider(
    provider: &str,
    plugins: &[String],
    filesystem_root: Option<&Path>,
) -> anyhow::Result<()> {
    // Velero's providers are `aws` or, in full, `velero.io/aws`.
    match provider.strip_prefix("velero.io/").unwrap_or(provider) {
        "aws" => Ok(()),
        _ if !plugins.is_empty() => Ok(()),
        "filesystem" if filesystem_root.is_some() => Ok(()),
        "filesystem" => bail!(
            "the provider `filesystem` stores backups in a directory of the server's pods: set it \
             with `-- --filesystem-root=DIR`, and mount a volume there that all pods share"
        ),
        other => bail!(
            "no plugin serves the provider `{other}`: add the image of one with --plugins, such as \
             velero/velero-plugin-for-{}; aws and filesystem are built in",
            if other == "azure" { "microsoft-azure" } else { other },
        ),
    }
}

/// Messages for the user after the installation.
fn next_steps(wish: &InstallPlan) -> Vec<String> {
    let namespace = &wish.namespace;
    let mut lines = Vec::new();
    match wish.profile {
        Profile::BackupOnly => lines.push(
            "the server can back up but not restore; to allow restores, install again with the \
             same flags and --profile=full"
                .to_owned(),
        ),
        Profile::Full => lines.push(format!(
            "the server can restore roles of any kind, so anyone who can write to namespace \
             {namespace} has administrator permissions"
        )),
    }
    if wish.backups.is_none() {
        lines.push(
            "no backup location is configured; add one with `bowline backup-location create`"
                .to_owned(),
        );
    }
    if let Some(root) = &wish.pod.filesystem_root {
        lines.push(format!(
            "mount a volume that all pods of the server share at {} in Deployment {NAME}: without \
             one, backups of the provider `filesystem` are lost with the pod",
            root.display()
        ));
    }
    lines
}

/// Waits until the server is ready.
async fn wait_until_ready(installation: &Installation) -> anyhow::Result<()> {
    let (api, namespace): (Api<Deployment>, _) = (installation.api(), installation.namespace());
    let deadline = Instant::now() + READY_TIMEOUT;
    output::print_message("waiting for the server to become ready");
    loop {
        let deployment =
            installation.call_api("read the server's Deployment", api.get(NAME)).await?;
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
        let status = deployment.status.as_ref();
        let ready = status.and_then(|status| status.updated_replicas).unwrap_or_default();
        let ready = ready.min(status.and_then(|one| one.available_replicas).unwrap_or_default());
        if observed == deployment.metadata.generation && ready >= wanted {
            output::print_message("the server is ready");
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{ready}/{wanted} server pods are ready after {} s; see `kubectl describe pods -n \
                 {namespace} -l {}={NAME}`",
                READY_TIMEOUT.as_secs(),
                objects::NAME_LABEL,
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print(objects: &[Value], format: Format) -> anyhow::Result<String> {
    let definitions = crds::all();
    match format {
        Format::Yaml => {
            let mut text = crds::to_yaml(&definitions)?;
            for object in objects {
                text.push_str("---\n");
                text.push_str(&serde_saphyr::to_string(object)?);
            }
            Ok(text)
        }
        Format::Json => {
            let definitions = definitions.iter().map(serde_json::to_value);
            let mut items = definitions.collect::<Result<Vec<_>, _>>()?;
            items.extend(objects.iter().cloned());
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
            Ok(format!("{list:#}\n"))
        }
    }
}

#[cfg(test)]
mod tests;
