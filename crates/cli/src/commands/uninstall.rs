//! `bowline uninstall`

mod lease;
mod others;
mod restores;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::crds;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::install::{MANAGED_BY, NAME, cluster_name};
use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::{ANSWER_LIMIT, Installation, is_not_found};
use crate::{open_runs, output};

/// How long something may take to go away.
const GONE_LIMIT: Duration = Duration::from_mins(2);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Remove the server from a cluster
///
/// Removes what `bowline install` has made for the server: its Deployment, roles and service account.
/// Backups, schedules, locations and credentials stay, so that it can be installed again, or Velero.
/// Backups in buckets are never touched. Exits with 2 if nothing is installed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove the namespace with all that is in it, and the resource definitions unless other
    /// namespaces need them, as Velero's `uninstall` does. Backups stay in their buckets and can be
    /// brought back from there; logs of restores go
    #[arg(long)]
    purge: bool,

    /// Do not ask, and do not wait for runs that are open
    #[arg(long)]
    force: bool,

    /// Do not ask
    #[arg(long)]
    confirm: bool,

    #[command(flatten)]
    installation: InstallationArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let installation = Installation::connect(&args.installation).await?;
    let namespace = installation.namespace().to_owned();
    if !is_there(&installation, args.purge).await? {
        bail!(
            "nothing is installed in namespace `{namespace}`; name the server's with --namespace{}",
            if args.purge { "" } else { ", or say --purge to remove records that are left" }
        );
    }
    if !args.force {
        refuse_while_open(&installation).await?;
    }
    let what = if args.purge {
        format!("The server, the namespace `{namespace}` and all records of backups are removed.")
    } else {
        format!("The server in the namespace `{namespace}` is removed.")
    };
    if !confirm(args.force || args.confirm, &what)? {
        output::say("nothing is removed");
        return Ok(Exit::Success);
    }
    // Nothing is removed before it is known what others need.
    let mut others = BTreeSet::new();
    if args.purge {
        others = others::find(&installation).await?;
        restores::let_go(&installation).await?;
    }
    remove_ours(&installation.api::<Deployment>(), NAME).await?;
    remove_ours(&installation.api::<RoleBinding>(), NAME).await?;
    remove_ours(&installation.api::<Role>(), NAME).await?;
    let outside = cluster_name(&namespace);
    remove_ours(&installation.cluster_api::<ClusterRoleBinding>(), &outside).await?;
    remove_ours(&installation.cluster_api::<ClusterRole>(), &outside).await?;
    remove_ours(&installation.api::<ServiceAccount>(), NAME).await?;
    if let Some(holder) = lease::remove(&installation).await? {
        if args.purge && !args.force {
            bail!(
                "the server `{holder}`, which is not of `bowline install`, still works in namespace \
                 `{namespace}`; stop it before its records go, or say --force"
            );
        }
        output::say(format_args!(
            "Lease {}: kept, the server `{holder}`, which is not of `bowline install`, works under it",
            bowline_server::lease::NAME
        ));
    }
    if args.purge {
        purge(&installation, &others).await?;
    } else {
        output::say(format_args!(
            "backups, schedules and locations in the namespace `{namespace}` are kept; --purge \
             removes them, too"
        ));
    }
    Ok(Exit::Success)
}

/// Whether there is anything to remove.
async fn is_there(installation: &Installation, purge: bool) -> anyhow::Result<bool> {
    let outside = cluster_name(installation.namespace());
    let is_installed = is_ours(&installation.api::<Deployment>(), NAME).await?
        || is_ours(&installation.cluster_api::<ClusterRole>(), &outside).await?
        || is_ours(&installation.cluster_api::<ClusterRoleBinding>(), &outside).await?
        || is_ours(&installation.api::<Role>(), NAME).await?
        || is_ours(&installation.api::<RoleBinding>(), NAME).await?
        || is_ours(&installation.api::<ServiceAccount>(), NAME).await?;
    if is_installed || !purge {
        return Ok(is_installed);
    }
    let namespaces = installation.cluster_api::<Namespace>();
    if metadata(&namespaces, installation.namespace()).await?.is_some() {
        return Ok(true);
    }
    let definitions = installation.cluster_api::<CustomResourceDefinition>();
    for definition in crds::all() {
        if metadata(&definitions, &definition.name_any()).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an object is there and one that `bowline install` made.
async fn is_ours<K>(api: &Api<K>, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let is_ours =
        |object: PartialObjectMeta<K>| object.labels().get(MANAGED_BY).is_some_and(|by| by == NAME);
    Ok(metadata(api, name).await?.is_some_and(is_ours))
}

async fn metadata<K>(api: &Api<K>, name: &str) -> anyhow::Result<Option<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let cannot = || format!("cannot look for {} {name}", K::kind(&()));
    timeout(ANSWER_LIMIT, api.get_metadata_opt(name))
        .await
        .with_context(cannot)?
        .with_context(cannot)
}

/// Deletes an object that `bowline install` made. One of the same name that somebody else made stays.
async fn remove_ours<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if is_ours(api, name).await? {
        return remove(api, name).await;
    }
    if metadata(api, name).await?.is_some() {
        output::say(format_args!("{} {name}: kept, it is not of `bowline install`", K::kind(&())));
    }
    Ok(())
}

/// A run that is open would stay so, with what its plugins have begun.
async fn refuse_while_open(installation: &Installation) -> anyhow::Result<()> {
    let open = open_runs::find(installation).await?;
    if !open.is_empty() {
        bail!(
            "{} would be left open; wait for them, cancel them, or say --force",
            open_runs::named(&open)
        );
    }
    Ok(())
}

/// Removes the namespace, and the definitions unless these namespaces need them.
async fn purge(installation: &Installation, others: &BTreeSet<String>) -> anyhow::Result<()> {
    remove(&installation.cluster_api::<Namespace>(), installation.namespace()).await?;
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
        output::say(format_args!(
            "the resource definitions are kept: objects or servers in {} need them",
            open_runs::named(&names)
        ));
        return Ok(());
    }
    let definitions: Api<CustomResourceDefinition> = installation.cluster_api();
    for definition in crds::all() {
        remove(&definitions, &definition.name_any()).await?;
    }
    Ok(())
}

/// Deletes an object and waits until it is gone.
async fn remove<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    let cannot = || format!("cannot remove {kind} {name}");
    match api.delete(name, &DeleteParams::foreground()).await {
        Err(kube::Error::Api(status)) if is_not_found(&kube::Error::Api(status.clone())) => {
            return Ok(());
        }
        deleted => drop(deleted.with_context(cannot)?),
    }
    let deadline = Instant::now() + GONE_LIMIT;
    while api.get_metadata_opt(name).await.with_context(cannot)?.is_some() {
        if Instant::now() >= deadline {
            bail!(
                "{kind} {name} is being deleted and still there after {} s; something holds it, \
                 see `kubectl get {kind} {name} -o yaml`",
                GONE_LIMIT.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    output::say(format_args!("{kind} {name}: removed"));
    Ok(())
}
