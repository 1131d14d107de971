//! `bowline uninstall`

mod lease;
mod restores;
mod shared_crds;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::crds;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::install::{MANAGED_BY_LABEL, NAME, cluster_name};
use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::{API_TIMEOUT, Installation, is_not_found};
use crate::server_deployment::{runs_velero, velero_deployments};
use crate::velero_flags::{Flag, FlagEffect, IgnoredFlagSet, IgnoredFlags};
use crate::{active_runs, output};

/// Longest wait for a deletion.
const DELETE_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval of checks during that wait.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Remove the server from a cluster
///
/// Removes the Deployment, roles and service account created by `bowline install`. Backups,
/// schedules, locations and credentials are kept, so that Bowline or Velero can be installed again.
/// Backups in buckets are never touched. Exits with 2 if nothing is installed.
///
/// With `--purge`, the command works as Velero's `uninstall`. The recovery file contains no
/// Schedules. The next installation can sync the backups from their buckets. A running server
/// deletes the logs of restores; without a server they stay. `--purge` is refused while Velero runs
/// in the namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove the namespace with everything in it, and the custom resource definitions unless
    /// other namespaces need them. Schedules, locations and credentials are lost: run `bowline
    /// recovery export` first. Backups stay in their buckets
    #[arg(long)]
    purge: bool,

    /// Skip the confirmation prompt, and do not refuse while a backup or restore is in progress. With
    /// --purge, also remove a namespace in which nothing was created by `bowline install`, or in
    /// which another Bowline server is active
    #[arg(long)]
    force: bool,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,

    #[command(flatten)]
    ignored: IgnoredFlags<IgnoredUninstallFlags>,

    #[command(flatten)]
    installation: InstallationArgs,
}

/// Flags of `velero uninstall` without use here.
#[derive(Debug)]
struct IgnoredUninstallFlags;

impl IgnoredFlagSet for IgnoredUninstallFlags {
    fn flags() -> Vec<Flag> {
        // Deletions are always waited for, as in Velero.
        vec![Flag::switch("wait", FlagEffect::Implied)]
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    args.ignored.warnings().iter().for_each(output::print_message);
    let installation = Installation::connect(&args.installation).await?;
    let namespace = installation.namespace().to_owned();
    let found = inspect(&installation, args.purge).await?;
    if let Some(reason) = refusal_reason(&found, &args, &namespace) {
        bail!(reason);
    }
    if !args.force {
        refuse_with_active_runs(&installation).await?;
        if args.purge {
            // Before anything is removed: removed objects do not come back if this fails half-way.
            if let Some(holder) = lease::other_holder(&installation).await? {
                bail!(active_server_error(&holder, &namespace));
            }
        }
    }
    let question = if args.purge {
        format!(
            "The server, namespace `{namespace}` and all Backup resources, schedules, locations \
             and credentials will be removed."
        )
    } else {
        format!("The server in namespace `{namespace}` will be removed.")
    };
    if !confirm(args.force || args.confirm, &question)? {
        output::print_message("nothing was removed");
        return Ok(Exit::Success);
    }
    // Nothing is removed before the needs of other namespaces are known.
    let mut other_namespaces = BTreeSet::new();
    if args.purge {
        other_namespaces = shared_crds::find(&installation).await?;
        restores::delete_restores(&installation).await?;
    }
    remove_if_managed(&installation.api::<Deployment>(), NAME).await?;
    remove_if_managed(&installation.api::<PodDisruptionBudget>(), NAME).await?;
    remove_if_managed(&installation.api::<RoleBinding>(), NAME).await?;
    remove_if_managed(&installation.api::<Role>(), NAME).await?;
    let cluster_role = cluster_name(&namespace);
    remove_if_managed(&installation.cluster_api::<ClusterRoleBinding>(), &cluster_role).await?;
    remove_if_managed(&installation.cluster_api::<ClusterRole>(), &cluster_role).await?;
    remove_if_managed(&installation.api::<ServiceAccount>(), NAME).await?;
    if let Some(holder) = lease::remove(&installation).await? {
        if args.purge && !args.force {
            // A standby server has taken over from the removed one.
            bail!(active_server_error(&holder, &namespace));
        }
        output::print_message(format_args!(
            "Lease {}: kept, because it is held by server `{holder}`, which was not created by \
             `bowline install`",
            bowline_server::lease::NAME
        ));
    }
    if args.purge {
        purge(&installation, &other_namespaces).await?;
    } else {
        output::print_message(format_args!(
            "backups, schedules and locations in namespace `{namespace}` are kept; --purge also \
             removes them"
        ));
    }
    Ok(Exit::Success)
}

fn active_server_error(holder: &str, namespace: &str) -> String {
    format!(
        "server `{holder}`, which was not created by `bowline install`, is still active in \
         namespace `{namespace}`; stop it before you purge, or add --force"
    )
}

/// Objects found in the namespace.
#[derive(Debug, Default)]
struct ExistingInstallation {
    /// True if `bowline install` created any of them.
    is_ours: bool,
    /// True if there is something that only a purge removes: the namespace, or definitions.
    has_rest: bool,
    /// Deployment of a running Velero.
    velero: Option<String>,
}

async fn inspect(installation: &Installation, purge: bool) -> anyhow::Result<ExistingInstallation> {
    let mut found = ExistingInstallation {
        is_ours: is_installed(installation).await?,
        ..ExistingInstallation::default()
    };
    if purge {
        let namespaces = installation.cluster_api::<Namespace>();
        found.is_ours |= is_bowline(&namespaces, installation.namespace()).await?;
        found.has_rest = has_purgeable(installation).await?;
        let deployments = velero_deployments(installation, &installation.api(), "").await?;
        found.velero =
            deployments.iter().find(|one| runs_velero(one)).map(kube::ResourceExt::name_any);
    }
    Ok(found)
}

/// Reason why nothing may be removed. A purge removes everything in the namespace, including objects of others.
fn refusal_reason(found: &ExistingInstallation, args: &Args, namespace: &str) -> Option<String> {
    let not_installed = || {
        format!(
            "nothing is installed in namespace `{namespace}`; name the server's namespace with \
             --namespace"
        )
    };
    if !args.purge {
        return (!found.is_ours).then(not_installed);
    }
    if let Some(velero) = &found.velero {
        return Some(format!(
            "Velero runs in namespace `{namespace}` as Deployment `{velero}` and would be removed \
             with it; name the server's namespace with --namespace, or stop Velero first"
        ));
    }
    if found.is_ours {
        return None;
    }
    if !found.has_rest {
        return Some(not_installed());
    }
    (!args.force).then(|| {
        format!(
            "{}; --force removes this one with everything in it, although nothing there was \
             created by `bowline install`",
            not_installed()
        )
    })
}

async fn is_installed(installation: &Installation) -> anyhow::Result<bool> {
    let cluster_role = cluster_name(installation.namespace());
    Ok(is_bowline(&installation.api::<Deployment>(), NAME).await?
        || is_bowline(&installation.cluster_api::<ClusterRole>(), &cluster_role).await?
        || is_bowline(&installation.cluster_api::<ClusterRoleBinding>(), &cluster_role).await?
        || is_bowline(&installation.api::<Role>(), NAME).await?
        || is_bowline(&installation.api::<RoleBinding>(), NAME).await?
        || is_bowline(&installation.api::<ServiceAccount>(), NAME).await?)
}

/// True if there is something that only a purge removes.
async fn has_purgeable(installation: &Installation) -> anyhow::Result<bool> {
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

/// True if an object exists and was created by `bowline install`.
async fn is_bowline<K>(api: &Api<K>, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let is_managed_by_bowline = |object: PartialObjectMeta<K>| {
        object.labels().get(MANAGED_BY_LABEL).is_some_and(|by| by == NAME)
    };
    Ok(metadata(api, name).await?.is_some_and(is_managed_by_bowline))
}

async fn metadata<K>(api: &Api<K>, name: &str) -> anyhow::Result<Option<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let cannot = || format!("cannot read {} {name}", K::kind(&()));
    timeout(API_TIMEOUT, api.get_metadata_opt(name))
        .await
        .with_context(cannot)?
        .with_context(cannot)
}

/// Deletes an object that `bowline install` created. One of the same name from another source stays.
async fn remove_if_managed<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if is_bowline(api, name).await? {
        return remove(api, name).await;
    }
    if metadata(api, name).await?.is_some() {
        output::print_message(format_args!(
            "{} {name}: kept, because it was not created by `bowline install`",
            K::kind(&())
        ));
    }
    Ok(())
}

/// A run in progress would stay so, along with the operations of its plugins.
async fn refuse_with_active_runs(installation: &Installation) -> anyhow::Result<()> {
    let active = active_runs::find(installation).await?;
    if !active.is_empty() {
        bail!(
            "in progress: {}; wait for them, cancel them, or add --force",
            active_runs::first_names(&active)
        );
    }
    Ok(())
}

/// Removes the namespace, and the definitions unless these namespaces need them.
async fn purge(installation: &Installation, others: &BTreeSet<String>) -> anyhow::Result<()> {
    remove(&installation.cluster_api::<Namespace>(), installation.namespace()).await?;
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
        output::print_message(format_args!(
            "the custom resource definitions are kept: objects or servers in {} need them",
            active_runs::first_names(&names)
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
    let deadline = Instant::now() + DELETE_TIMEOUT;
    while api.get_metadata_opt(name).await.with_context(cannot)?.is_some() {
        if Instant::now() >= deadline {
            bail!(
                "{kind} {name} still exists {} s after its deletion; `kubectl get {kind} {name} -o \
                 yaml` shows its finalizers",
                DELETE_TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    output::print_message(format_args!("{kind} {name}: removed"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn wait_flag_of_velero_is_accepted_without_effect() {
        for line in [&["x", "--wait"][..], &["x", "--wait=false"], &["x"]] {
            let TestCommand { args } = TestCommand::try_parse_from(line).unwrap();
            assert!(args.ignored.warnings().is_empty(), "{line:?}");
        }
    }

    #[test]
    fn purge_is_refused_for_running_velero_and_foreign_namespaces() {
        let (nothing, velero, others) =
            (Some("nothing is installed"), Some("Velero runs"), Some("--force removes"));
        let found = |is_ours: bool, has_rest: bool, runs_velero: bool| ExistingInstallation {
            is_ours,
            has_rest,
            velero: runs_velero.then(|| "backups-velero".to_owned()),
        };
        let (purge, forced) = (&["--purge"][..], &["--purge", "--force"][..]);
        for (found, flags, expected) in [
            (found(true, false, false), &[][..], None),
            (found(false, false, false), &[], nothing),
            (found(false, false, false), &["--force"], nothing),
            (found(true, true, false), purge, None),
            (found(false, false, false), forced, nothing),
            (found(false, true, false), purge, others),
            (found(false, true, false), forced, None),
            (found(false, true, true), purge, velero),
            (found(false, true, true), forced, velero),
            (found(true, true, true), forced, velero),
        ] {
            let args = TestCommand::try_parse_from(["x"].iter().chain(flags)).unwrap().args;
            let refusal = refusal_reason(&found, &args, "velero");
            let is_as_expected = match (&refusal, expected) {
                (Some(refusal), Some(part)) => refusal.contains(part),
                (refusal, part) => refusal.is_none() && part.is_none(),
            };
            assert!(is_as_expected, "{found:?} {flags:?}: {refusal:?}");
        }
        let args = TestCommand::try_parse_from(["x"]).unwrap().args;
        let hint = refusal_reason(&ExistingInstallation::default(), &args, "velero").unwrap();
        assert!(!hint.contains("--purge"), "{hint}");
    }
}
