//! `bowline schedule`: recurring backups.

pub(crate) mod create;
pub(crate) mod delete;
mod describe;
mod get;
mod next;
mod pause;

use bowline_api::Schedule;
use bowline_api::schedule::SchedulePhase;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::table;

/// Manage backup schedules
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) installation: InstallationArgs,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    // Boxed, since it has by far the most flags.
    Create(Box<create::Args>),
    /// List schedules
    Get(table::Args),
    /// Describe schedules
    Describe(crate::describe::Args),
    Delete(delete::Args),
    /// Pause schedules, so that they create no backups
    Pause(pause::Args),
    /// Resume paused schedules
    Unpause(pause::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(*command, &installation).await,
        Command::Get(command) => table::run::<Schedule>(&command, &installation).await,
        Command::Describe(command) => {
            crate::describe::run::<Schedule>(&command, &installation).await
        }
        Command::Delete(command) => delete::run(&command, &installation).await,
        Command::Pause(command) => pause::run(&command, true, &installation).await,
        Command::Unpause(command) => pause::run(&command, false, &installation).await,
    }
}

/// Phase of a schedule; New if no server has seen it.
fn phase(schedule: &Schedule) -> SchedulePhase {
    let phase = schedule.status.as_ref().and_then(|status| status.phase.clone());
    phase.filter(|phase| !phase.as_str().is_empty()).unwrap_or(SchedulePhase::New)
}
