//! The commands, one file each.

mod completion;
mod demo;
mod install;
mod plugin;
mod version;

use crate::args::Args;
use crate::exit::Exit;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Install(install::Args),
    Demo(demo::Args),
    Plugin(plugin::Args),
    Version(version::Args),
    Completion(completion::Args),
}

/// Runs a command to its end.
pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        Command::Install(command) => install::run(command).await,
        Command::Demo(command) => demo::run(command).await,
        Command::Plugin(command) => plugin::run(command).await,
        Command::Version(version::Args {}) => version::run(),
        Command::Completion(command) => completion::run(&command),
    }
}
