//! Which journals are orphaned.

use bowline_api::{Backup, BackupPhase, BackupSpec, Restore, RestorePhase};
use kube::ResourceExt as _;

use super::CleanupError;
use crate::journal::{JournalId, ListedJournal};
use crate::server::Context;

/// State of the run of a journal.
pub(super) enum JournalRunState {
    /// Running, or will be resumed.
    Active,
    /// The object of the run was deleted.
    Deleted,
    /// The run has ended. Holds the Backup that was made or restored, if it still exists.
    Finished(Option<Box<Backup>>),
}

pub(super) async fn run_state(
    context: &Context,
    journal: &ListedJournal,
) -> Result<JournalRunState, CleanupError> {
    let JournalId { run, kind, name } = &journal.id;
    // Runs of this process end on their own, whatever happened to their objects.
    let is_active = context.runs.uids().iter().any(|uid| uid == run.as_str());
    if is_active || context.runs.has_journal_open(run.as_str()) {
        return Ok(JournalRunState::Active);
    }
    let is_of_run = |uid: Option<String>| uid.as_deref() == Some(run.as_str());
    let backups = context.api::<Backup>();
    if kind == "Backup" {
        let found = backups.get_opt(name).await?;
        return Ok(match found.filter(|backup| is_of_run(backup.uid())) {
            None => JournalRunState::Deleted,
            Some(backup) => {
                let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
                let is_over = phase.is_some_and(BackupPhase::is_terminal);
                if is_over {
                    JournalRunState::Finished(Some(Box::new(backup)))
                } else {
                    JournalRunState::Active
                }
            }
        });
    }
    let found = context.api::<Restore>().get_opt(name).await?;
    let Some(restore) = found.filter(|restore| is_of_run(restore.uid())) else {
        return Ok(JournalRunState::Deleted);
    };
    let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
    if !phase.is_some_and(RestorePhase::is_terminal) {
        return Ok(JournalRunState::Active);
    }
    let backup = backups.get_opt(&restore.spec.backup_name).await?;
    Ok(JournalRunState::Finished(backup.map(Box::new)))
}

/// The Backup of a run that has ended, or a placeholder with what is known of it.
pub(super) fn backup_or_placeholder(
    found: Option<Box<Backup>>,
    namespace: &str,
    journal: &ListedJournal,
) -> Backup {
    found.map_or_else(|| placeholder_backup(namespace, journal), |found| *found)
}

/// Placeholder for a Backup that is gone.
pub(super) fn placeholder_backup(namespace: &str, journal: &ListedJournal) -> Backup {
    let mut backup = Backup::new(&journal.id.name, BackupSpec::default());
    backup.metadata.namespace = Some(namespace.to_owned());
    backup.metadata.uid = Some(journal.id.run.as_str().to_owned());
    backup.spec.storage_location = journal.location.clone().unwrap_or_default();
    backup
}
