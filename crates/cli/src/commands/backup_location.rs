//! `bowline backup-location`: storage locations of backups.

pub(crate) mod create;
pub(crate) mod delete;
mod describe;
pub(crate) mod get;
mod set;

use anyhow::bail;
use bowline_api::BackupStorageLocation;
use kube::ResourceExt;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing;

/// Manage backup storage locations
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) installation: InstallationArgs,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    Create(create::Args),
    Get(get::Args),
    /// Describe backup storage locations
    Describe(crate::describe::Args),
    Set(set::Args),
    Delete(delete::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(command, &installation).await,
        Command::Get(command) => get::run(&command, &installation).await,
        Command::Describe(command) => {
            crate::describe::run::<BackupStorageLocation>(&command, &installation).await
        }
        Command::Set(command) => set::run(command, &installation).await,
        Command::Delete(command) => delete::run(&command, &installation).await,
    }
}

/// There is at most one default, and the user decides which.
async fn check_no_other_default(installation: &Installation, name: &str) -> anyhow::Result<()> {
    let locations: Vec<BackupStorageLocation> = listing::find(installation, &[], None).await?;
    let other = locations
        .iter()
        .filter(|location| location.spec.default)
        .map(ResourceExt::name_any)
        .find(|default| default != name);
    if let Some(other) = other {
        let hint = installation.hint(&format!("backup-location set {other} --default=false"));
        bail!("location `{other}` is already the default; run {hint} first");
    }
    Ok(())
}
