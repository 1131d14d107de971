//! `bowline snapshot-location`: who takes snapshots of volumes, and how.

mod create;
mod delete;
mod get;
mod set;

use crate::args::InstallationArgs;
use crate::exit::Exit;

/// Manage who takes snapshots of volumes, and how
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(create::Args),
    Get(get::Args),
    Set(set::Args),
    Delete(delete::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(command, &installation).await,
        Command::Get(command) => get::run(command, &installation).await,
        Command::Set(command) => set::run(command, &installation).await,
        Command::Delete(command) => delete::run(command, &installation).await,
    }
}
