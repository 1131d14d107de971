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
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
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
use crate::server_deployment::{runs_velero, veleros};
use crate::velero_flags::{Fate, Flag, Unneeded, Unused};
use crate::{open_runs, output};

/// How long something may take to go away.
const GONE_LIMIT: Duration = Duration::from_mins(2);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Remove the server from a cluster
///
/// Removes the Deployment, roles and service account created by `bowline install`. Backups,
/// schedules, locations and credentials are kept, so that Bowline or Velero can be installed again.
/// Backups in buckets are never touched. Exits with 2 if nothing is installed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove the namespace with everything in it, and the custom resource definitions unless
    /// other namespaces need them, as Velero's `uninstall` does. Backups stay in their buckets and
    /// can be synced from there; logs of restores are deleted. Refused while Velero runs in the
    /// namespace
    #[arg(long)]
    purge: bool,

    /// Skip the confirmation prompt, and do not wait for open runs. With --purge, also remove a
    /// namespace in which nothing was created by `bowline install`, or another Bowline server is
    /// active
    #[arg(long)]
    force: bool,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,

    #[command(flatten)]
    unused: Unused<OfUninstall>,

    #[command(flatten)]
    installation: InstallationArgs,
}

/// The flags of `velero uninstall` that we have no use for.
#[derive(Debug)]
struct OfUninstall;

impl Unneeded for OfUninstall {
    fn flags() -> Vec<Flag> {
        // What is removed is waited for in any case, as by Velero.
        vec![Flag::switch("wait", Fate::Done)]
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    args.unused.notes().iter().for_each(output::say);
    let installation = Installation::connect(&args.installation).await?;
    let namespace = installation.namespace().to_owned();
    let found = look(&installation, args.purge).await?;
    if let Some(why) = refusal(&found, &args, &namespace) {
        bail!(why);
    }
    if !args.force {
        refuse_while_open(&installation).await?;
        if args.purge {
            // Before anything is removed: what has gone does not come back when this ends half-way.
            if let Some(holder) = lease::other_holder(&installation).await? {
                bail!(still_works(&holder, &namespace));
            }
        }
    }
    let what = if args.purge {
        format!("The server, namespace `{namespace}` and all records of backups will be removed.")
    } else {
        format!("The server in namespace `{namespace}` will be removed.")
    };
    if !confirm(args.force || args.confirm, &what)? {
        output::say("nothing was removed");
        return Ok(Exit::Success);
    }
    // Nothing is removed before it is known what others need.
    let mut others = BTreeSet::new();
    if args.purge {
        others = others::find(&installation).await?;
        restores::let_go(&installation).await?;
    }
    remove_ours(&installation.api::<Deployment>(), NAME).await?;
    remove_ours(&installation.api::<PodDisruptionBudget>(), NAME).await?;
    remove_ours(&installation.api::<RoleBinding>(), NAME).await?;
    remove_ours(&installation.api::<Role>(), NAME).await?;
    let outside = cluster_name(&namespace);
    remove_ours(&installation.cluster_api::<ClusterRoleBinding>(), &outside).await?;
    remove_ours(&installation.cluster_api::<ClusterRole>(), &outside).await?;
    remove_ours(&installation.api::<ServiceAccount>(), NAME).await?;
    if let Some(holder) = lease::remove(&installation).await? {
        if args.purge && !args.force {
            // It stood by, and has taken over from ours.
            bail!(still_works(&holder, &namespace));
        }
        output::say(format_args!(
            "Lease {}: kept, because it is held by server `{holder}`, which was not created by \
             `bowline install`",
            bowline_server::lease::NAME
        ));
    }
    if args.purge {
        purge(&installation, &others).await?;
    } else {
        output::say(format_args!(
            "backups, schedules and locations in namespace `{namespace}` are kept; --purge also \
             removes them"
        ));
    }
    Ok(Exit::Success)
}

fn still_works(holder: &str, namespace: &str) -> String {
    format!(
        "server `{holder}`, which was not created by `bowline install`, is still active in \
         namespace `{namespace}`; stop it before you purge its records, or add --force"
    )
}

/// What is in the namespace.
#[derive(Debug, Default)]
struct Found {
    /// Something that `bowline install` made.
    is_ours: bool,
    /// Something that only a purge removes: the namespace, or resource definitions.
    has_rest: bool,
    /// The Deployment by which Velero runs.
    velero: Option<String>,
}

async fn look(installation: &Installation, purge: bool) -> anyhow::Result<Found> {
    let mut found = Found { is_ours: is_installed(installation).await?, ..Found::default() };
    if purge {
        let namespaces = installation.cluster_api::<Namespace>();
        found.is_ours |= is_ours(&namespaces, installation.namespace()).await?;
        found.has_rest = has_rest(installation).await?;
        let veleros = veleros(installation, &installation.api(), "").await?;
        found.velero = veleros.iter().find(|one| runs_velero(one)).map(kube::ResourceExt::name_any);
    }
    Ok(found)
}

/// Why nothing may be removed. A purge takes everything in the namespace with it, also what is not ours.
fn refusal(found: &Found, args: &Args, namespace: &str) -> Option<String> {
    let nothing = || {
        format!(
            "nothing is installed in namespace `{namespace}`; name the server's namespace with \
             --namespace"
        )
    };
    if !args.purge {
        return (!found.is_ours).then(nothing);
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
        return Some(nothing());
    }
    (!args.force).then(|| {
        format!(
            "{}; --force removes this one with everything in it, although nothing there was \
             created by `bowline install`",
            nothing()
        )
    })
}

async fn is_installed(installation: &Installation) -> anyhow::Result<bool> {
    let outside = cluster_name(installation.namespace());
    Ok(is_ours(&installation.api::<Deployment>(), NAME).await?
        || is_ours(&installation.cluster_api::<ClusterRole>(), &outside).await?
        || is_ours(&installation.cluster_api::<ClusterRoleBinding>(), &outside).await?
        || is_ours(&installation.api::<Role>(), NAME).await?
        || is_ours(&installation.api::<RoleBinding>(), NAME).await?
        || is_ours(&installation.api::<ServiceAccount>(), NAME).await?)
}

/// Whether there is something that only a purge removes.
async fn has_rest(installation: &Installation) -> anyhow::Result<bool> {
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
    let cannot = || format!("cannot read {} {name}", K::kind(&()));
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
        output::say(format_args!(
            "{} {name}: kept, because it was not created by `bowline install`",
            K::kind(&())
        ));
    }
    Ok(())
}

/// A run that is open would stay so, with what its plugins have begun.
async fn refuse_while_open(installation: &Installation) -> anyhow::Result<()> {
    let open = open_runs::find(installation).await?;
    if !open.is_empty() {
        bail!(
            "{} would be left open; wait for them, cancel them, or add --force",
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
            "the custom resource definitions are kept: objects or servers in {} need them",
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
                "{kind} {name} still exists {} s after its deletion; see `kubectl get {kind} \
                 {name} -o yaml` for what holds it",
                GONE_LIMIT.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    output::say(format_args!("{kind} {name}: removed"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn to_wait_may_be_asked_for_as_of_velero_and_changes_nothing() {
        for line in [&["x", "--wait"][..], &["x", "--wait=false"], &["x"]] {
            let Line { args } = Line::try_parse_from(line).unwrap();
            assert!(args.unused.notes().is_empty(), "{line:?}");
        }
    }

    #[test]
    fn a_purge_takes_no_velero_that_runs_and_nothing_of_others_unless_forced() {
        let (nothing, velero, others) =
            (Some("nothing is installed"), Some("Velero runs"), Some("--force removes"));
        let found = |is_ours: bool, has_rest: bool, runs_velero: bool| Found {
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
            let args = Line::try_parse_from(["x"].iter().chain(flags)).unwrap().args;
            let refusal = refusal(&found, &args, "velero");
            let is_as_expected = match (&refusal, expected) {
                (Some(refusal), Some(part)) => refusal.contains(part),
                (refusal, part) => refusal.is_none() && part.is_none(),
            };
            assert!(is_as_expected, "{found:?} {flags:?}: {refusal:?}");
        }
        let args = Line::try_parse_from(["x"]).unwrap().args;
        let hint = refusal(&Found::default(), &args, "velero").unwrap();
        assert!(!hint.contains("--purge"), "{hint}");
    }
}
