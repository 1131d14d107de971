//! The commands, one file each.

pub(crate) mod backup;
mod backup_location;
mod bug;
mod client;
mod completion;
mod debug;
#[cfg(feature = "demo")]
mod demo;
mod install;
mod man;
mod migrate;
mod plugin;
pub(crate) mod recovery;
mod repo;
pub(crate) mod restore;
mod schedule;
mod server;
mod snapshot_location;
mod uninstall;
mod verbs;
mod version;

use crate::exit::Exit;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Backup(backup::Args),
    BackupLocation(backup_location::Args),
    SnapshotLocation(snapshot_location::Args),
    Restore(restore::Args),
    Schedule(schedule::Args),
    Repo(repo::Args),
    Recovery(recovery::Args),
    Get(verbs::GetArgs),
    Create(verbs::CreateArgs),
    Describe(verbs::DescribeArgs),
    Delete(verbs::DeleteArgs),
    Logs(verbs::LogsArgs),
    Install(Box<install::Args>),
    Uninstall(uninstall::Args),
    Migrate(migrate::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    Plugin(plugin::Args),
    Server(Box<server::Args>),
    Client(client::Args),
    Version(version::Args),
    Debug(debug::Args),
    Bug(bug::Args),
    Completion(completion::Args),
    Man(man::Args),
}

/// Runs a command to its end.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Backup(command) => backup::run(command).await,
        Command::BackupLocation(command) => backup_location::run(command).await,
        Command::SnapshotLocation(command) => snapshot_location::run(command).await,
        Command::Restore(command) => restore::run(command).await,
        Command::Schedule(command) => schedule::run(command).await,
        Command::Repo(command) => repo::run(command).await,
        Command::Recovery(command) => recovery::run(command).await,
        // Boxed, since this is one level of recursion.
        Command::Get(command) => Box::pin(run(command.into())).await,
        Command::Create(command) => Box::pin(run(command.into())).await,
        Command::Describe(command) => Box::pin(run(command.into())).await,
        Command::Delete(command) => Box::pin(run(command.into())).await,
        Command::Logs(command) => Box::pin(run(command.into())).await,
        Command::Install(command) => install::run(*command).await,
        Command::Uninstall(command) => uninstall::run(command).await,
        Command::Migrate(command) => migrate::run(command).await,
        #[cfg(feature = "demo")]
        Command::Demo(command) => demo::run(command).await,
        Command::Plugin(command) => plugin::run(command).await,
        Command::Server(command) => server::run(*command).await,
        Command::Client(command) => client::run(&command),
        Command::Version(command) => version::run(&command).await,
        Command::Debug(command) => debug::run(&command).await,
        Command::Bug(bug::Args {}) => bug::run(),
        Command::Completion(command) => completion::run(&command),
        Command::Man(command) => man::run(&command),
    }
}
