//! `bowline restore`: create, inspect and delete restores.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod describe;
mod get;

use bowline_api::download_request::DownloadTargetKind;
use bowline_api::{Backup, Restore, RestorePhase, VolumePluginRestore};

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::run::{Operations, Run, Stage, Summary};
use crate::{cancel, listing, logs, table};

/// Create, inspect and delete restores
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
    /// List restores
    Get(table::RunArgs),
    /// Describe restores
    Describe(crate::describe::RunArgs),
    /// Print the log of a restore
    #[command(mut_arg("name", |name| name.help("Name of the restore")))]
    Logs(logs::Args),
    Delete(delete::Args),
    /// Cancel waiting or running restores
    ///
    /// Nothing more is restored, and plugin operations are canceled. Restored objects are kept. The
    /// restore ends as Failed and is shown as Canceled. With --wait, the exit code is 0 once the
    /// restore has ended, whatever its outcome.
    Cancel(cancel::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(*command, &installation).await,
        Command::Get(command) => table::run_runs::<Restore>(&command, &installation).await,
        Command::Describe(command) => {
            crate::describe::run_runs::<Restore>(&command, &installation).await
        }
        Command::Logs(command) => logs::run::<Restore>(command, &installation).await,
        Command::Delete(command) => delete::run(&command, &installation).await,
        Command::Cancel(command) => cancel::run::<Restore>(command, &installation).await,
    }
}

/// Phase of a restore; New if no server has seen it.
fn phase(restore: &Restore) -> RestorePhase {
    let phase = restore.status.as_ref().and_then(|status| status.phase.clone());
    phase.filter(|phase| !phase.as_str().is_empty()).unwrap_or(RestorePhase::New)
}

impl Run for Restore {
    const PARTICIPLE: &'static str = "restored";
    const LOG: DownloadTargetKind = DownloadTargetKind::RestoreLog;
    const RESULTS: DownloadTargetKind = DownloadTargetKind::RestoreResults;

    type VolumeReport = VolumePluginRestore;

    fn summary(&self) -> Summary {
        let status = self.status.clone().unwrap_or_default();
        let phase = phase(self);
        let items = status.progress.as_ref();
        Summary {
            stage: match phase {
                RestorePhase::New => Stage::New,
                RestorePhase::InProgress => Stage::InProgress,
                RestorePhase::FailedValidation => Stage::FailedValidation,
                RestorePhase::Completed => Stage::Completed,
                _ if phase.is_terminal() => Stage::Ended,
                _ => Stage::Finalizing,
            },
            phase: phase.to_string(),
            items: items.map_or((0, 0), |items| (items.items_restored, items.total_items)),
            errors: status.errors,
            warnings: status.warnings,
            started: status.start_timestamp,
            ended: status.completion_timestamp,
            operations: Operations {
                attempted: status.restore_item_operations_attempted,
                completed: status.restore_item_operations_completed,
                failed: status.restore_item_operations_failed,
            },
            failure_reason: status.failure_reason,
            validation_errors: status.validation_errors,
            conditions: status.conditions,
        }
    }

    /// Location of its backup; empty if the backup is gone.
    async fn location(&self, installation: &Installation) -> anyhow::Result<String> {
        if self.spec.backup_name.is_empty() {
            return Ok(String::new());
        }
        let backup: Option<Backup> = listing::get_opt(installation, &self.spec.backup_name).await?;
        Ok(backup.map(|backup| backup.spec.storage_location).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_exist_once_all_items_are_restored() {
        for phase in RestorePhase::KNOWN {
            let restore =
                json!({"metadata": {"name": "r"}, "spec": {}, "status": {"phase": phase}});
            let restore: Restore = serde_json::from_value(restore).unwrap();
            let is_early = ["New", "InProgress", "FailedValidation"].contains(phase);
            assert_eq!(restore.has_files().is_err(), is_early, "{phase}");
            assert_eq!(restore.state(), *phase);
            let is_over =
                ["Completed", "PartiallyFailed", "Failed", "FailedValidation"].contains(phase);
            assert_eq!(restore.summary().stage.is_terminal(), is_over, "{phase}");
        }
    }
}
