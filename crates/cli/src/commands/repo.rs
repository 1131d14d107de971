//! `bowline repo`: the repositories in which Velero keeps files of volumes.

mod describe;
mod get;

use bowline_api::BackupRepository;
use bowline_api::backup_repository::BackupRepositoryPhase;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::table;

/// Inspect Velero's file-system backup repositories
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) installation: InstallationArgs,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List repositories
    Get(table::Args),
    /// Describe repositories
    Describe(crate::describe::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Get(command) => table::run::<BackupRepository>(&command, &installation).await,
        Command::Describe(command) => {
            crate::describe::run::<BackupRepository>(&command, &installation).await
        }
    }
}

/// Phase of a repository; New if no server has seen it.
fn phase(repository: &BackupRepository) -> BackupRepositoryPhase {
    let phase = repository.status.as_ref().and_then(|status| status.phase.clone());
    phase.filter(|phase| !phase.as_str().is_empty()).unwrap_or(BackupRepositoryPhase::New)
}
