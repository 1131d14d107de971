//! `bowline uninstall`

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::crds;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::install::{NAME, cluster_name};
use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::{Installation, is_not_found};
use crate::{open_runs, output};

/// How long something may take to go away.
const GONE_LIMIT: Duration = Duration::from_mins(2);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Remove the server from a cluster
///
/// Removes what `bowline install` has made for the server: its Deployment, roles and service account.
/// Backups, schedules, locations and credentials stay, so that it can be installed again, or Velero.
/// What is in buckets is never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove the namespace with all that is in it, and the resource definitions, as Velero's
    /// `uninstall` does. What is in buckets stays and can be brought back from there
    #[arg(long)]
    purge: bool,

    /// Do not ask, and do not wait for runs that are open
    #[arg(long, alias = "confirm")]
    force: bool,

    #[command(flatten)]
    installation: InstallationArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let installation = Installation::connect(&args.installation).await?;
    let namespace = installation.namespace().to_owned();
    if !args.force {
        refuse_while_open(&installation).await?;
    }
    let what = if args.purge {
        format!("The server, the namespace `{namespace}` and all records of backups are removed.")
    } else {
        format!("The server in the namespace `{namespace}` is removed.")
    };
    if !confirm(args.force, &what)? {
        output::say("nothing is removed");
        return Ok(Exit::Success);
    }
    remove(&installation.api::<Deployment>(), NAME).await?;
    remove(&installation.api::<RoleBinding>(), NAME).await?;
    remove(&installation.api::<Role>(), NAME).await?;
    let outside = cluster_name(&namespace);
    remove(&installation.cluster_api::<ClusterRoleBinding>(), &outside).await?;
    remove(&installation.cluster_api::<ClusterRole>(), &outside).await?;
    remove(&installation.api::<ServiceAccount>(), NAME).await?;
    remove(&installation.api::<Lease>(), bowline_server::lease::NAME).await?;
    if args.purge {
        purge(&installation).await?;
    } else {
        output::say(format_args!(
            "backups, schedules and locations in the namespace `{namespace}` are kept; --purge \
             removes them, too"
        ));
    }
    Ok(Exit::Success)
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

/// Removes the namespace and the definitions.
async fn purge(installation: &Installation) -> anyhow::Result<()> {
    remove(&installation.cluster_api::<Namespace>(), installation.namespace()).await?;
    // The definitions are those of every installation in the cluster.
    let deployments: Api<Deployment> = installation.cluster_api();
    let listed = installation
        .ask("look for other servers", async { deployments.list(&ListParams::default()).await });
    let others = listed.await?.items.into_iter().filter(|deployment| {
        let name = deployment.name_any();
        (name == NAME || name == "velero")
            && deployment.namespace().as_deref() != Some(installation.namespace())
    });
    let others: Vec<String> = others
        .map(|other| format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()))
        .collect();
    if !others.is_empty() {
        output::say(format_args!(
            "the resource definitions are kept: {} needs them",
            others.join(", ")
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
