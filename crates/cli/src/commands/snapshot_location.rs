//! `bowline snapshot-location`: plugins that take snapshots of volumes, and their settings.

pub(crate) mod create;
pub(crate) mod delete;
mod describe;
mod get;
mod set;

use bowline_api::VolumeSnapshotLocation;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::table;

/// Manage volume snapshot locations
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
    /// List volume snapshot locations
    Get(table::Args),
    /// Describe volume snapshot locations
    Describe(crate::describe::Args),
    Set(set::Args),
    Delete(delete::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(command, &installation).await,
        Command::Get(command) => {
            table::run::<VolumeSnapshotLocation>(&command, &installation).await
        }
        Command::Describe(command) => {
            crate::describe::run::<VolumeSnapshotLocation>(&command, &installation).await
        }
        Command::Set(command) => set::run(command, &installation).await,
        Command::Delete(command) => delete::run(&command, &installation).await,
    }
}
