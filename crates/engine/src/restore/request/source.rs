//! Selection of the backup to restore, and checks that it is available.

use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupPhase, BackupStorageLocation, Restore};

use super::invalid::ValidationError;
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
    errors: &mut Vec<ValidationError>,
) -> Option<Backup> {
    let by_schedule = restore.spec.backup_name.is_empty();
    let namespace = restore.metadata.namespace.clone().unwrap_or_default();
    let name = restore.spec.backup_name.clone();
    let backups = match &facts.backups {
        Ok(backups) => backups,
        Err(_) if by_schedule => {
            errors.push(ValidationError::ListBackups);
            return None;
        }
        Err(reason) => {
            errors.push(ValidationError::GetBackup { namespace, name, reason: reason.to_string() });
            return None;
        }
    };
    if by_schedule && backups.is_empty() {
        errors.push(ValidationError::NoBackup);
    }
    match source_backup(restore, backups) {
        Some(backup) => {
            restore.spec.backup_name = backup.metadata.name.clone().unwrap_or_default();
            Some(backup.clone())
        }
        None if by_schedule => {
            errors.push(ValidationError::NoCompletedBackup);
            None
        }
        None => {
            errors.push(ValidationError::BackupNotFound { namespace, name });
            None
        }
    }
}

/// Checks that the archive of the backup is complete. Velero does not, and fails in the middle of the run, or restores
/// the part that has not been deleted yet. A backup that waits for plugin operations has its archive in the bucket,
/// and is restored as in Velero.
pub(super) fn check_phase(backup: &Backup) -> Result<(), ValidationError> {
    use BackupPhase as Phase;
    let name = || backup.metadata.name.clone().unwrap_or_default();
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    match phase.unwrap_or(&Phase::New) {
        Phase::Deleting => Err(ValidationError::BackupDeleting(name())),
        phase @ (Phase::New | Phase::Queued | Phase::ReadyToStart | Phase::InProgress) => {
            Err(ValidationError::BackupUnfinished { name: name(), phase: phase.clone() })
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
) -> Result<(), ValidationError> {
    let name = || backup.spec.storage_location.clone();
    match location {
        Lookup::Found(location) => {
            let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
            if phase == Some(&LocationPhase::Available) {
                Ok(())
            } else {
                Err(ValidationError::LocationUnavailable(name()))
            }
        }
        Lookup::Missing => Err(ValidationError::LocationNotFound(name())),
        Lookup::Failed(reason) => Err(ValidationError::GetLocation(reason.clone())),
    }
}
