//! `bowline backup`: create, inspect and delete backups.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod describe;
mod download;
mod get;

use bowline_api::download_request::DownloadTargetKind;
use bowline_api::{Backup, BackupPhase, VolumePluginBackup};

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::run::{Operations, Run, Stage, Summary};
use crate::{cancel, logs, table};

/// Create, inspect and delete backups
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
    /// List backups
    Get(table::RunArgs),
    /// Describe backups
    Describe(crate::describe::RunArgs),
    /// Print the log of a backup
    #[command(mut_arg("name", |name| name.help("Name of the backup")))]
    Logs(logs::Args),
    Download(download::Args),
    Delete(delete::Args),
    /// Cancel queued or running backups
    ///
    /// No new work is started, frozen pods are thawed, and plugin operations are canceled. The
    /// backup ends as Failed and is shown as Canceled. With --wait, the exit code is 0 once the
    /// backup has ended, whatever its outcome.
    Cancel(cancel::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Create(command) => create::run(*command, &installation).await,
        Command::Get(command) => table::run_runs::<Backup>(&command, &installation).await,
        Command::Describe(command) => {
            crate::describe::run_runs::<Backup>(&command, &installation).await
        }
        Command::Logs(command) => logs::run::<Backup>(command, &installation).await,
        Command::Download(command) => download::run(command, &installation).await,
        Command::Delete(command) => delete::run(command, &installation).await,
        Command::Cancel(command) => cancel::run::<Backup>(command, &installation).await,
    }
}

/// Phase of a backup; New if no server has seen it.
pub(crate) fn phase(backup: &Backup) -> BackupPhase {
    let phase = backup.status.as_ref().and_then(|status| status.phase.clone());
    phase.filter(|phase| !phase.as_str().is_empty()).unwrap_or(BackupPhase::New)
}

impl Run for Backup {
    const PARTICIPLE: &'static str = "backed up";
    const LOG: DownloadTargetKind = DownloadTargetKind::BackupLog;
    const RESULTS: DownloadTargetKind = DownloadTargetKind::BackupResults;

    type VolumeReport = VolumePluginBackup;

    fn summary(&self) -> Summary {
        let status = self.status.clone().unwrap_or_default();
        let phase = phase(self);
        let items = status.progress.as_ref();
        Summary {
            stage: match phase {
                BackupPhase::New => Stage::New,
                BackupPhase::Queued | BackupPhase::ReadyToStart | BackupPhase::InProgress => {
                    Stage::InProgress
                }
                BackupPhase::FailedValidation => Stage::FailedValidation,
                BackupPhase::Completed => Stage::Completed,
                _ if phase.is_terminal() => Stage::Ended,
                _ => Stage::Finalizing,
            },
            phase: phase.to_string(),
            items: items.map_or((0, 0), |items| (items.items_backed_up, items.total_items)),
            errors: status.errors,
            warnings: status.warnings,
            started: status.start_timestamp,
            ended: status.completion_timestamp,
            operations: Operations {
                attempted: status.backup_item_operations_attempted,
                completed: status.backup_item_operations_completed,
                failed: status.backup_item_operations_failed,
            },
            failure_reason: status.failure_reason,
            validation_errors: status.validation_errors,
            conditions: status.conditions,
        }
    }

    async fn location(&self, _: &Installation) -> anyhow::Result<String> {
        Ok(self.spec.storage_location.clone())
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::backup::BackupStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;

    fn backup(phase: &str, condition: &str) -> Backup {
        let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
        let condition: Condition = serde_json::from_value(serde_json::json!({
            "type": condition, "status": "True", "reason": "", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }))
        .unwrap();
        let phase = Some(BackupPhase::from(phase));
        backup.status =
            Some(BackupStatus { phase, conditions: vec![condition], ..BackupStatus::default() });
        backup
    }

    #[test]
    fn cancelled_backup_has_state_canceled() {
        for (phase, condition, expected) in [
            ("", "", "New"),
            ("InProgress", "", "InProgress"),
            ("InProgress", "Canceling", "Canceling"),
            ("Failed", "Canceling", "Failed"),
            ("Failed", "Canceled", "Canceled"),
            ("Completed", "Canceled", "Completed"),
        ] {
            assert_eq!(backup(phase, condition).state(), expected, "{phase} {condition}");
        }
        let mut deleted = backup("Completed", "");
        deleted.metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-01-02T03:04:05Z".into()).unwrap());
        assert_eq!(deleted.state(), "Deleting");
    }

    #[test]
    fn files_exist_once_all_items_are_backed_up() {
        for phase in BackupPhase::KNOWN {
            let is_early =
                ["New", "Queued", "ReadyToStart", "FailedValidation", "InProgress"].contains(phase);
            assert_eq!(backup(phase, "").has_files().is_err(), is_early, "{phase}");
        }
    }
}
