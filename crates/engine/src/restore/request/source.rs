//! Selection of the backup to restore, and checks that it is available.

use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupPhase, BackupStorageLocation, GROUP, Restore};

use super::{Facts, Lookup};

/// The backup to restore: the named one, otherwise the latest completed one of a schedule.
pub fn source_backup<'a>(restore: &Restore, backups: &'a [Backup]) -> Option<&'a Backup> {
    let name = restore.spec.backup_name.as_str();
    if !name.is_empty() {
        return backups.iter().find(|backup| backup.metadata.name.as_deref() == Some(name));
    }
    let status = |backup: &'a Backup| backup.status.as_ref();
    let completed = backups.iter().filter(|backup| {
        status(backup).and_then(|status| status.phase.as_ref()) == Some(&BackupPhase::Completed)
    });
    completed.max_by_key(|backup| {
        let start = status(backup).and_then(|status| status.start_timestamp.as_ref());
        start.map(|start| start.0)
    })
}

/// Finds the backup and writes its name into the Restore.
pub(super) fn resolve_backup(
    restore: &mut Restore,
    facts: &Facts,
    errors: &mut Vec<String>,
) -> Option<Backup> {
    let by_schedule = restore.spec.backup_name.is_empty();
    let namespace = restore.metadata.namespace.clone().unwrap_or_default();
    let cannot_find = |name: &str, error: &str| {
        format!("Error retrieving backup: can't find backup {namespace}/{name}: {error}")
    };
    let name = &restore.spec.backup_name;
    let backups = match &facts.backups {
        Ok(backups) => backups,
        Err(_) if by_schedule => {
            errors.push("Unable to list backups for schedule".to_owned());
            return None;
        }
        Err(error) => {
            errors.push(cannot_find(name, error));
            return None;
        }
    };
    if by_schedule && backups.is_empty() {
        errors.push("No backups found for schedule".to_owned());
    }
    match source_backup(restore, backups) {
        Some(backup) => {
            restore.spec.backup_name = backup.metadata.name.clone().unwrap_or_default();
            Some(backup.clone())
        }
        None if by_schedule => {
            errors.push("No completed backups found for schedule".to_owned());
            None
        }
        None => {
            let not_found = format!("backups.{GROUP} {name:?} not found");
            errors.push(cannot_find(name, &not_found));
            None
        }
    }
}

/// Checks that the archive of the backup is complete. Velero does not, and fails in the middle of the run, or restores
/// the part that has not been deleted yet. A backup that waits for plugin operations has its archive in the bucket,
/// and is restored as in Velero.
pub(super) fn check_phase(backup: &Backup) -> Result<(), String> {
    use BackupPhase as Phase;
    let name = backup.metadata.name.as_deref().unwrap_or_default();
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    match phase.unwrap_or(&Phase::New) {
        Phase::Deleting => {
            Err(format!("The backup {name} is being deleted, cannot restore from it"))
        }
        phase @ (Phase::New | Phase::Queued | Phase::ReadyToStart | Phase::InProgress) => {
            Err(format!(
                "The backup {name} is still {}, cannot restore from it before all its objects are \
                 in the storage location",
                phase.as_str()
            ))
        }
        Phase::WaitingForPluginOperations
        | Phase::WaitingForPluginOperationsPartiallyFailed
        | Phase::Finalizing
        | Phase::FinalizingPartiallyFailed
        | Phase::Completed
        | Phase::PartiallyFailed
        | Phase::Failed
        | Phase::FailedValidation
        | Phase::Other(_) => Ok(()),
    }
}

/// Checks that the backup can be read.
pub(super) fn check_location(
    backup: &Backup,
    location: &Lookup<BackupStorageLocation>,
) -> Result<(), String> {
    let name = &backup.spec.storage_location;
    match location {
        Lookup::Found(location) => {
            let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
            if phase == Some(&LocationPhase::Available) {
                Ok(())
            } else {
                Err(format!("The BSL {name} is unavailable, cannot retrieve the backup"))
            }
        }
        Lookup::Missing => Err(format!(
            "Error retrieving backup: backupstoragelocations.{GROUP} {name:?} not found"
        )),
        Lookup::Failed(error) => Err(format!("Error retrieving backup: {error}")),
    }
}
