//! `bowline backup-location delete`

use bowline_api::{Backup, BackupRepository, BackupStorageLocation, label};
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::super::backup::phase;
use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{listing, output};

/// Forget a place for backups
///
/// Nothing in the bucket is touched. The cluster forgets the location, and with it its backups and
/// repositories: they come back when a location for the same bucket is created.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The locations to forget
    #[arg(required_unless_present_any = ["all", "selector"])]
    names: Vec<String>,

    /// Forget all locations
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Forget the locations with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Do not ask whether this is meant
    #[arg(long)]
    confirm: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let locations: Vec<BackupStorageLocation> =
        listing::find(&installation, &args.names, selector).await?;
    if locations.is_empty() {
        output::say("no backup locations found");
        return Ok(Exit::Success);
    }
    let names: Vec<String> = locations.iter().map(ResourceExt::name_any).collect();
    let question = format!(
        "The cluster will forget the location(s) {} and their backups; the buckets stay as they are.",
        names.join(", ")
    );
    if !confirm(args.confirm, &question)? {
        output::say("nothing is deleted");
        return Ok(Exit::Success);
    }
    for name in &names {
        listing::delete::<BackupStorageLocation>(&installation, name).await?;
        output::say(format_args!("backup location `{name}` is deleted"));
        forget_backups(&installation, name).await?;
        for repository in of_location::<BackupRepository>(&installation, name).await? {
            listing::delete::<BackupRepository>(&installation, &repository.name_any()).await?;
        }
    }
    Ok(Exit::Success)
}

/// Deletes the Backups of a location from the cluster; without the location nobody can use them.
async fn forget_backups(installation: &Installation, location: &str) -> anyhow::Result<()> {
    let (over, running): (Vec<Backup>, Vec<Backup>) = of_location(installation, location)
        .await?
        .into_iter()
        .partition(|backup| phase(backup).is_terminal());
    for backup in &over {
        listing::delete::<Backup>(installation, &backup.name_any()).await?;
    }
    if !over.is_empty() {
        output::say(format_args!("{} of its backups are forgotten", over.len()));
    }
    for backup in running {
        let (name, phase) = (backup.name_any(), phase(&backup));
        output::say(format_args!("warning: its backup `{name}` is {phase} and is kept"));
    }
    Ok(())
}

/// The objects that belong to a location.
async fn of_location<K>(installation: &Installation, location: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let selector = format!("{}={}", label::STORAGE_LOCATION, label::value(location));
    let api = installation.api::<K>();
    let params = ListParams::default().labels(&selector);
    let doing = format!("list what belongs to location `{location}`");
    Ok(installation.ask(&doing, api.list(&params)).await?.items)
}
