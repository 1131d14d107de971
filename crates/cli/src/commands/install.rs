//! `bowline install`: the resource definitions, the server, and what it needs.

mod definitions;
mod objects;
mod server_pod;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bowline_api::access::Profile;
use bowline_api::crds;
use clap::Parser as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Discovery, ResourceExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::args::ClusterArgs;
use crate::commands::server;
use crate::exit::Exit;
use crate::flags::{self, Pairs};
use crate::installation::ANSWER_LIMIT;
use crate::{client_config, cluster, output, trust};
pub(crate) use definitions::apply;
use objects::{Location, Wish};
pub(crate) use objects::{NAME, cluster_name};
use server_pod::{Resources, ServerPod};

/// How long the server may take to be ready, with `--wait`.
const READY_LIMIT: Duration = Duration::from_mins(5);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Larger than any credentials file.
const LARGEST_SECRET: u64 = 1 << 20;

/// Install the server into a cluster, with the resource definitions that it needs
///
/// Running it again changes what is there to what is said now. A resource definition that is newer than
/// ours, Velero's or Bowline's, is never replaced by an older one: it is kept, and said so.
///
/// The server gets no more rights than it needs. With `--profile=backup-only` it reads everything and
/// writes only in its own namespace, apart from snapshots of volumes and hooks in pods. Restores need
/// `--profile=full`; as they bring back roles and bindings of any kind, that amounts to the rights of
/// an administrator.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The namespace to install into [default: `namespace` in ~/.config/velero/config.json, then
    /// $VELERO_NAMESPACE, then velero]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// What the server may do: backup-only, or full, which restores need
    #[arg(long, value_name = "PROFILE", default_value_t = Profile::BackupOnly)]
    profile: Profile,

    /// The image of the server
    #[arg(long, value_name = "IMAGE", default_value = concat!("bowline:v", env!("CARGO_PKG_VERSION")))]
    image: String,

    /// How many servers run; one works, the others stand by
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,

    /// Images of plugins to install into the server
    #[arg(long, value_name = "IMAGE,…", value_delimiter = ',', value_parser = flags::word())]
    plugins: Vec<String>,

    /// Install the resource definitions and nothing else
    #[arg(long)]
    crds_only: bool,

    /// Change nothing: say what would be done in the cluster, or, with -o, only print the objects
    #[arg(long)]
    dry_run: bool,

    /// Wait until the server is ready
    #[arg(long)]
    wait: bool,

    /// Print the objects
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    location: LocationArgs,

    #[command(flatten)]
    pod: PodArgs,

    /// Flags for the server, after `--`: such as `-- --concurrent-backups=8`
    #[arg(last = true, value_name = "SERVER FLAGS")]
    server_flags: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Where backups go")]
struct LocationArgs {
    /// Who keeps backups, and whose plugin takes snapshots: such as aws
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// The bucket of the default backup location
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,

    /// The folder in the bucket
    #[arg(long, value_name = "PATH")]
    prefix: Option<String>,

    /// Settings of the default backup location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    backup_location_config: Vec<Pairs>,

    /// A file with certificates to trust when talking to the provider
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// A file with the credentials for the provider
    #[arg(long, value_name = "FILE", conflicts_with = "no_secret")]
    secret_file: Option<PathBuf>,

    /// Install no credentials: the Secret `cloud-credentials` is used if it is there, else the pod gets
    /// them in another way
    #[arg(long)]
    no_secret: bool,

    /// Add no backup location
    #[arg(long, conflicts_with_all = ["bucket", "prefix"])]
    no_default_backup_location: bool,

    /// Add a snapshot location for the provider, if --plugins brings a plugin for it
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    use_volume_snapshots: bool,

    /// Settings of the snapshot location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    snapshot_location_config: Vec<Pairs>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The server's pod")]
struct PodArgs {
    /// CPU that it is promised; 0 is none
    #[arg(long, value_name = "QUANTITY", default_value = "500m")]
    velero_pod_cpu_request: String,

    /// Memory that it is promised; 0 is none
    #[arg(long, value_name = "QUANTITY", default_value = "128Mi")]
    velero_pod_mem_request: String,

    /// CPU that it may use; 0 is any
    #[arg(long, value_name = "QUANTITY", default_value = "1000m")]
    velero_pod_cpu_limit: String,

    /// Memory that it may use; 0 is any
    #[arg(long, value_name = "QUANTITY", default_value = "512Mi")]
    velero_pod_mem_limit: String,

    /// Annotations to put on it
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    pod_annotations: Vec<Pairs>,

    /// Labels to put on it
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    pod_labels: Vec<Pairs>,

    /// Annotations to put on its service account, such as the name of a role in a cloud
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    sa_annotations: Vec<Pairs>,

    /// Its service account, which must be there [default: one that is made]
    #[arg(long, value_name = "NAME", conflicts_with = "sa_annotations")]
    service_account_name: Option<String>,

    /// Its priority class
    #[arg(long, value_name = "NAME")]
    server_priority_class_name: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut wish = if args.crds_only { None } else { Some(wish(&args)?) };
    // Objects that are only printed are the same for every cluster.
    let is_printed_only = args.dry_run && args.output.is_some();
    let client = if is_printed_only { None } else { Some(cluster::client(&args.cluster).await?) };
    if let (Some(client), Some(wish)) = (&client, &mut wish) {
        use_credentials_that_are_there(client, wish).await?;
    }
    let objects = wish.as_ref().map(objects::all).unwrap_or_default();
    if let Some(client) = client {
        definitions::install(&client, args.dry_run).await?;
        for object in &objects {
            let done = put(&client, object, args.dry_run).await?;
            output::say(format_args!("{}: {done}", objects::title(object)));
        }
        if let Some(wish) = &wish {
            if args.wait && !args.dry_run {
                until_ready(&client, &wish.namespace).await?;
            }
            for word in advice(wish) {
                output::say(word);
            }
        }
    }
    if let Some(format) = args.output {
        output::data(print(&objects, format)?)?;
    }
    Ok(Exit::Success)
}

/// What is to be installed, and whether that can work.
fn wish(args: &Args) -> anyhow::Result<Wish> {
    let LocationArgs { provider, bucket, prefix, cacert, secret_file, no_secret, .. } =
        &args.location;
    let provider = provider.as_deref();
    if !*no_secret && secret_file.is_none() {
        bail!("name the provider's credentials with --secret-file, or say --no-secret");
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
                certificates: cacert.as_deref().map(trust::read_file).transpose()?,
                config: flags::merged(&args.location.backup_location_config),
            })
        }
        (false, _, _) => bail!(
            "say where backups go with --provider and --bucket, or --no-default-backup-location"
        ),
    };
    // Without a plugin nobody could take them, and every backup would tell so.
    let has_snapshotter = args.location.use_volume_snapshots && !args.plugins.is_empty();
    let snapshots = provider.filter(|_| has_snapshotter).map(|provider| {
        (provider.to_owned(), flags::merged(&args.location.snapshot_location_config))
    });
    // A flag that the server would refuse is told now, not by a pod that does not start.
    let words = std::iter::once("server".to_owned()).chain(args.server_flags.iter().cloned());
    server::Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        anyhow!("the server does not take these flags: {what}; see `bowline server --help`")
    })?;
    let PodArgs { service_account_name, server_priority_class_name, .. } = &args.pod;
    let annotations = flags::merged(&args.pod.sa_annotations);
    Ok(Wish {
        namespace: client_config::namespace(args.namespace.as_deref())?,
        profile: args.profile,
        secret: secret_file.as_deref().map(read_secret).transpose()?,
        backups,
        snapshots,
        service_account: service_account_name.clone(),
        service_account_annotations: annotations,
        pod: ServerPod {
            image: args.image.clone(),
            replicas: args.replicas,
            plugins: args.plugins.clone(),
            flags: args.server_flags.clone(),
            resources: Resources {
                cpu: [&args.pod.velero_pod_cpu_request, &args.pod.velero_pod_cpu_limit]
                    .map(String::clone),
                memory: [&args.pod.velero_pod_mem_request, &args.pod.velero_pod_mem_limit]
                    .map(String::clone),
            },
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
    if size > LARGEST_SECRET {
        bail!("{} has {size} bytes: a Secret holds at most {LARGEST_SECRET}", path.display());
    }
    std::fs::read(path).with_context(cannot)
}

/// Mounts the Secret of an installation that was here before, Velero's or ours.
async fn use_credentials_that_are_there(client: &Client, wish: &mut Wish) -> anyhow::Result<()> {
    if wish.pod.has_credentials {
        return Ok(());
    }
    let (name, key) = (server_pod::SECRET, server_pod::SECRET_KEY);
    let api: Api<Secret> = Api::namespaced(client.clone(), &wish.namespace);
    let cannot = || format!("cannot look for the Secret {name}");
    let found = timeout(ANSWER_LIMIT, api.get_opt(name)).await.with_context(cannot)?;
    let data = found.with_context(cannot)?.and_then(|secret| secret.data).unwrap_or_default();
    if data.contains_key(key) {
        wish.pod.has_credentials = true;
        output::say(format_args!(
            "Secret {name}: kept, and the server uses what is in its `{key}`"
        ));
    }
    Ok(())
}

/// What the user should know once it is done.
fn advice(wish: &Wish) -> Vec<String> {
    let namespace = &wish.namespace;
    let mut words = Vec::new();
    match wish.profile {
        Profile::BackupOnly => words.push(
            "the server may back up and not restore; install again with --profile=full when it \
             is to"
                .to_owned(),
        ),
        Profile::Full => words.push(format!(
            "the server may restore roles of any kind, so that whoever can write to the namespace \
             {namespace} has the rights of an administrator"
        )),
    }
    if wish.backups.is_none() {
        words.push("say where backups go with `bowline backup-location create`".to_owned());
    }
    words
}

/// What became of an object.
async fn put(client: &Client, object: &Value, dry_run: bool) -> anyhow::Result<String> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let types = object.types.clone().unwrap_or_default();
    let kind = GroupVersionKind::try_from(&types)?;
    let title = || format!("cannot install {} {}", kind.kind, object.name_any());
    // Of kinds that are installed at this moment nothing can be learnt in a dry run.
    let group = Discovery::new(client.clone()).filter(&[kind.group.as_str()]).run().await?;
    let Some((resource, _)) = group.resolve_gvk(&kind) else {
        if dry_run {
            return Ok("would be created".to_owned());
        }
        bail!("the cluster does not serve {}.{}", kind.kind, kind.group);
    };
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let before = api.get_opt(&object.name_any()).await.with_context(title)?;
    // Others may run pods in it that our labels would keep out, Velero's among them.
    if let (Some(before), "Namespace") = (&before, kind.kind.as_str()) {
        return Ok(objects::kept_namespace(before.labels()));
    }
    if dry_run {
        let done = if before.is_some() { "would be updated" } else { "would be created" };
        return Ok(done.to_owned());
    }
    // What others have set and we do not say stays as it is. What both say is ours for the server, and
    // a conflict for what belongs to the user.
    let params = PatchParams {
        force: !objects::is_of_user(&kind.kind),
        field_manager: Some("bowline".to_owned()),
        ..PatchParams::default()
    };
    let after = api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await;
    let after = after.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 409 => anyhow!(
            "{0} {1} is there and says otherwise ({2}); change it by hand with `kubectl edit {0} \
             {1}{3}`",
            kind.kind,
            object.name_any(),
            status.message,
            object.namespace().map(|name| format!(" -n {name}")).unwrap_or_default(),
        ),
        error => anyhow::Error::new(error).context(title()),
    })?;
    let done = match before {
        None => "created",
        Some(before) if before.resource_version() == after.resource_version() => "up to date",
        Some(_) => "updated",
    };
    Ok(done.to_owned())
}

/// Waits until the server is ready.
async fn until_ready(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deadline = Instant::now() + READY_LIMIT;
    output::say("waiting for the server to be ready");
    loop {
        let deployment = api.get(NAME).await.context("cannot look at the server")?;
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
        let status = deployment.status.as_ref();
        let ready = status.and_then(|status| status.updated_replicas).unwrap_or_default();
        let ready = ready.min(status.and_then(|one| one.available_replicas).unwrap_or_default());
        if observed == deployment.metadata.generation && ready >= wanted {
            output::say("the server is ready");
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{ready} of {wanted} pods of the server are ready after {} s; see \
                 `kubectl describe pods -n {namespace} -l {}={NAME}`",
                READY_LIMIT.as_secs(),
                objects::NAME_LABEL,
            );
        }
        tokio::time::sleep(LOOK).await;
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
