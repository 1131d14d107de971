//! `bowline debug`: a support bundle, without Secrets.

mod bundle;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use bowline_api::{Backup, Restore, crds};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, LogParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::bundle::Bundle;
use super::version;
use crate::args::{InstallationArgs, TrustArgs};
use crate::describe::{self, DescribableRun};
use crate::download::Downloads;
use crate::exit::{Exit, shutdown_signal};
use crate::installation::Installation;
use crate::pages::ListEnd;
use crate::server_deployment::SERVER_CONTAINERS;
use crate::{listing, logs, output, pages, server_status};

/// Longest wait for each answer of the server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
const FILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest number of pages of one kind.
const MAX_PAGES: usize = 40;
/// Largest number of pods, and longest part of the log of a container and of a run.
const MAX_PODS: usize = 20;
/// Number of problems printed; the file has all.
const MAX_PROBLEMS: usize = 20;
const MAX_LOG_LINES: i64 = 50_000;
const MAX_LOG_BYTES: i64 = 32 << 20;
const MAX_RUN_LOG_BYTES: u64 = 64 << 20;
/// Container of Velero's pods on nodes, whose log is included, too.
const NODE_CONTAINER: &str = "node-agent";

/// Create a support bundle
///
/// The archive contains the resources of the installation, versions, and the logs of the server's
/// pods; with --backup or --restore, also the details and the log of that run. Secrets are never
/// read, and values with names like those of credentials are removed from everything else. Review
/// the bundle before you share it: it contains the names of your namespaces and objects.
///
/// Anything that cannot be collected is reported with the reason, on standard error and in
/// `problems.txt` in the bundle. The rest is still written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Include the details of this backup
    #[arg(long, value_name = "NAME")]
    backup: Option<String>,

    /// Include the details of this restore
    #[arg(long, value_name = "NAME")]
    restore: Option<String>,

    /// File to write [default: bundle-TIME.tar.gz in the current directory]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print what is being collected
    #[arg(long)]
    verbose: bool,

    #[command(flatten)]
    trust: TrustArgs,

    #[command(flatten)]
    installation: InstallationArgs,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Exit> {
    let now = Timestamp::now();
    let target = args.output.clone().unwrap_or_else(|| {
        PathBuf::from(format!("bundle-{}.tar.gz", now.strftime("%Y-%m-%d-%H-%M-%S")))
    });
    if target.symlink_metadata().is_ok() {
        bail!("{} already exists; choose another file with --output", target.display());
    }
    let installation = Installation::connect(&args.installation).await?;
    // Wrong names are reported before anything is collected.
    let backup: Option<Backup> = get_if_named(&installation, args.backup.as_deref()).await?;
    let restore: Option<Restore> = get_if_named(&installation, args.restore.as_deref()).await?;
    let mut bundle = Bundle::new(&target, now, args.verbose)?;
    let asked_to_end = shutdown_signal()?;
    let collected = async {
        add_versions(&installation, &mut bundle).await?;
        add_objects(&installation, &mut bundle).await?;
        add_workloads(&installation, &mut bundle).await?;
        if let Some(backup) = &backup {
            // Boxed, since the future is large.
            Box::pin(add_run(&installation, backup, &args.trust, &mut bundle)).await?;
        }
        if let Some(restore) = &restore {
            // Boxed, since the future is large.
            Box::pin(add_run(&installation, restore, &args.trust, &mut bundle)).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        collected = Box::pin(collected) => collected?,
        // An incomplete bundle is discarded.
        exit = asked_to_end => return Ok(exit),
    }
    let problems = bundle.finish()?;
    print_bundle_location(&target, &problems);
    Ok(Exit::Success)
}

fn print_bundle_location(target: &Path, problems: &[String]) {
    for problem in problems.iter().take(MAX_PROBLEMS) {
        output::print_message(format_args!(
            "not collected: {}",
            output::strip_control_chars(problem)
        ));
    }
    if let more @ 1.. = problems.len().saturating_sub(MAX_PROBLEMS) {
        output::print_message(format_args!("not collected: {more} more"));
    }
    output::print_message(format_args!("support bundle written to {}", target.display()));
    if !problems.is_empty() {
        output::print_message(
            "problems.txt in the bundle also lists everything that could not be collected",
        );
    }
    output::print_message("the bundle contains no Secrets; review it before you share it");
}

async fn get_if_named<R: DescribableRun>(
    installation: &Installation,
    name: Option<&str>,
) -> anyhow::Result<Option<R>> {
    match name {
        Some(name) => listing::get(installation, name).await.map(Some),
        None => Ok(None),
    }
}

/// Versions of the client, the server and the cluster.
async fn add_versions(installation: &Installation, bundle: &mut Bundle) -> anyhow::Result<()> {
    const FILE: &str = "versions.json";
    let server = match server_status::request_status(installation, SERVER_TIMEOUT).await {
        Ok(answer) => json!(answer.status),
        Err(error) => {
            bundle.record_problem(&format!("{FILE}, the server"), &error);
            json!({"error": output::error_chain(&error)})
        }
    };
    let client = installation.client();
    let cluster = match installation.call_api("read the version", client.apiserver_version()).await
    {
        Ok(version) => json!(version.git_version),
        Err(error) => {
            bundle.record_problem(&format!("{FILE}, the cluster"), &error);
            json!({"error": output::error_chain(&error)})
        }
    };
    let versions = json!({
        "client": version::CLIENT_VERSION, "server": server, "kubernetes": cluster,
        "namespace": installation.namespace(),
    });
    bundle.add_object(FILE, versions)
}

/// All resources of Bowline and Velero in the namespace.
async fn add_objects(installation: &Installation, bundle: &mut Bundle) -> anyhow::Result<()> {
    for definition in crds::all() {
        let names = &definition.spec.names;
        let versions = &definition.spec.versions;
        let Some(version) = versions.iter().find(|version| version.storage) else { continue };
        let kind = GroupVersionKind::gvk(&definition.spec.group, &version.name, &names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
        let api: Api<DynamicObject> =
            Api::namespaced_with(installation.client(), installation.namespace(), &resource);
        let file = format!("objects/{}.json", names.plural);
        add_list(installation, &api, &names.plural, &file, bundle, |_| true).await?;
    }
    Ok(())
}

/// Writes the wanted objects into a file, as far as they can be listed.
async fn add_list<K>(
    installation: &Installation,
    api: &Api<K>,
    plural: &str,
    file: &str,
    bundle: &mut Bundle,
    is_wanted: impl Fn(&K) -> bool,
) -> anyhow::Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let mut found = Vec::new();
    let doing = format!("list {plural}");
    let request = async |params: &ListParams| api.list(params).await;
    let visit = |object| found.extend(is_wanted(&object).then_some(object));
    let params = ListParams::default();
    match pages::visit_pages(installation, &doing, params, MAX_PAGES, request, visit).await {
        Ok(ListEnd::Complete) => {}
        Ok(ListEnd::Truncated) => bundle.record_problem(
            file,
            &anyhow!("truncated: there are more objects than these {}", found.len()),
        ),
        Ok(ListEnd::UnknownKind(_)) => {
            bundle.record_problem(file, &anyhow!("the cluster does not serve this resource"));
            return Ok(Vec::new());
        }
        Err(error) => bundle.record_problem(file, &error),
    }
    let items: Vec<Value> = found.iter().map(|object| json!(object)).collect();
    bundle.add_object(file, json!({"items": items}))?;
    Ok(found)
}

/// Deployments and pods of the server, with their logs. Other workloads in the namespace are none of the bundle's
/// business.
async fn add_workloads(installation: &Installation, bundle: &mut Bundle) -> anyhow::Result<()> {
    let api = installation.api::<Deployment>();
    let is_wanted = |deployment: &Deployment| {
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        !log_containers(pod).is_empty()
    };
    let file = "server/deployments.json";
    add_list(installation, &api, "Deployments", file, bundle, is_wanted).await?;
    let api = installation.api::<Pod>();
    let is_wanted = |pod: &Pod| !log_containers(pod.spec.as_ref()).is_empty();
    let pods = add_list(installation, &api, "Pods", "server/pods.json", bundle, is_wanted).await?;
    if pods.is_empty() {
        let namespace = installation.namespace();
        bundle.record_problem("logs", &anyhow!("no server pod found in namespace `{namespace}`"));
    }
    if let more @ 1.. = pods.len().saturating_sub(MAX_PODS) {
        bundle.record_problem("logs", &anyhow!("{more} more pods were not collected"));
    }
    for pod in pods.iter().take(MAX_PODS) {
        for container in log_containers(pod.spec.as_ref()) {
            let name = pod.name_any();
            add_log(installation, &api, &name, &container, false, bundle).await?;
            if was_restarted(pod, &container) {
                add_log(installation, &api, &name, &container, true, bundle).await?;
            }
        }
    }
    Ok(())
}

/// True if a container has a log from before its last restart.
fn was_restarted(pod: &Pod, container: &str) -> bool {
    let Some(status) = &pod.status else { return false };
    let all = [&status.container_statuses, &status.init_container_statuses];
    let mut all = all.into_iter().flatten().flatten();
    all.any(|one| one.name == container && one.restart_count > 0)
}

/// Containers of a server's pod whose logs are of interest; none of another pod.
fn log_containers(spec: Option<&PodSpec>) -> Vec<String> {
    let Some(spec) = spec else { return Vec::new() };
    let names: Vec<String> = spec.containers.iter().map(|one| one.name.clone()).collect();
    let is_server =
        |name: &String| SERVER_CONTAINERS.contains(&name.as_str()) || name == NODE_CONTAINER;
    if !names.iter().any(is_server) {
        return Vec::new();
    }
    let plugins = spec.init_containers.iter().flatten().map(|one| one.name.clone());
    names.into_iter().filter(is_server).chain(plugins).collect()
}

async fn add_log(
    installation: &Installation,
    api: &Api<Pod>,
    pod: &str,
    container: &str,
    previous: bool,
    bundle: &mut Bundle,
) -> anyhow::Result<()> {
    let params = LogParams {
        container: Some(container.to_owned()),
        previous,
        tail_lines: Some(MAX_LOG_LINES),
        limit_bytes: Some(MAX_LOG_BYTES),
        ..LogParams::default()
    };
    let file = format!("logs/{pod}/{container}{}.log", if previous { ".previous" } else { "" });
    match installation.call_api("read the log", api.logs(pod, &params)).await {
        Ok(text) => bundle.add_text(&file, &text),
        Err(error) => {
            bundle.record_problem(&file, &error);
            Ok(())
        }
    }
}

/// Full description of a run, and its log.
async fn add_run<R: DescribableRun>(
    installation: &Installation,
    run: &R,
    trust: &TrustArgs,
    bundle: &mut Bundle,
) -> anyhow::Result<()> {
    let (noun, name) = (R::NOUN, run.name_any());
    let (description, file) = (format!("{noun}_describe_{name}.txt"), format!("{noun}_{name}.log"));
    let downloads = async {
        let location = run.location(installation).await?;
        Downloads::new(installation, &location, trust, FILE_TIMEOUT).await
    };
    let downloads = match downloads.await {
        Ok(downloads) => downloads,
        Err(error) => {
            bundle.record_problem(&description, &error);
            bundle.record_problem(&file, &error);
            return Ok(());
        }
    };
    let text = describe::full_text(installation, run, &downloads).await;
    bundle.add_text(&description, &text)?;
    if let Err(error) = run.has_files() {
        bundle.record_problem(&file, &error.into());
        return Ok(());
    }
    match logs::read_log::<R>(&downloads, &name, MAX_RUN_LOG_BYTES).await {
        Ok(log) => bundle.add_text(&file, &String::from_utf8_lossy(&log)),
        Err(error) => {
            bundle.record_problem(&file, &error);
            Ok(())
        }
    }
}
