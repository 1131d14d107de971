//! The commands, one file each.

pub(crate) mod backup;
mod backup_location;
mod completion;
mod demo;
mod install;
mod plugin;
mod restore;
mod server;
mod snapshot_location;
mod version;

use crate::args::Args;
use crate::exit::Exit;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Backup(backup::Args),
    BackupLocation(backup_location::Args),
    SnapshotLocation(snapshot_location::Args),
    Restore(restore::Args),
    Install(install::Args),
    Demo(demo::Args),
    Plugin(plugin::Args),
    Server(Box<server::Args>),
    Version(version::Args),
    Completion(completion::Args),
}

/// Runs a command to its end.
pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        Command::Backup(command) => backup::run(command).await,
        Command::BackupLocation(command) => backup_location::run(command).await,
        Command::SnapshotLocation(command) => snapshot_location::run(command).await,
        Command::Restore(command) => restore::run(command).await,
        Command::Install(command) => install::run(command).await,
        Command::Demo(command) => demo::run(command).await,
        Command::Plugin(command) => plugin::run(command).await,
        Command::Server(command) => server::run(*command).await,
        Command::Version(version::Args {}) => version::run(),
        Command::Completion(command) => completion::run(&command),
    }
}
