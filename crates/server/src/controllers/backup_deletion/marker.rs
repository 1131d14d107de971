//! Phase `Deleting` of a backup, in which no restore of it starts.
//!
//! Retention yields to restores. A client that saw the backup before it became `Deleting` may have started one, so this
//! is checked once more afterwards. Until the check has succeeded, the Backup has the annotation
//! [`annotation::PHASE_BEFORE_DELETION`], and nothing is deleted. If the API server does not answer the check, or the
//! server ends before it, the next attempt finds the annotation and checks again.

use bowline_api::{Backup, BackupPhase, Restore, annotation};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::controllers::gc::restore_in_use;
use crate::error_text::status_message;
use crate::patch;

/// Marks Backups as being deleted.
pub(super) struct DeletionMarker {
    pub(super) backups: Api<Backup>,
    pub(super) restores: Api<Restore>,
}

/// Phase that a backup had before its deletion: `Deleting` only if the deletion has started for good.
pub(super) fn phase_before_deletion(backup: &Backup) -> Option<BackupPhase> {
    let phase = backup.status.as_ref()?.phase.as_ref()?;
    let saved = backup.annotations().get(annotation::PHASE_BEFORE_DELETION);
    match saved.filter(|_| *phase == BackupPhase::Deleting) {
        Some(saved) => Some(BackupPhase::from(saved.as_str())),
        None => Some(phase.clone()),
    }
}

impl DeletionMarker {
    /// Makes a backup `Deleting`; `None` if it is gone. With the phase before, the deletion has not started for good
    /// until it is [confirmed](Self::confirm).
    pub(super) async fn mark(
        &self,
        backup: &Backup,
        before: Option<&BackupPhase>,
    ) -> kube::Result<Option<Backup>> {
        self.set_phase(backup, Some(&BackupPhase::Deleting), before).await
    }

    /// Confirms that the deletion starts; `None` if the backup is gone.
    pub(super) async fn confirm(&self, backup: &Backup) -> kube::Result<Option<Backup>> {
        self.mark(backup, None).await
    }

    /// Name of an active restore of a backup. If there is one, or if that cannot be known, a backup whose deletion is
    /// not confirmed gets its phase back.
    pub(super) async fn restore_in_use(&self, backup: &Backup) -> kube::Result<Option<String>> {
        let found = restore_in_use(&self.restores, backup).await;
        let is_unused = matches!(found, Ok(None));
        if is_unused || !backup.annotations().contains_key(annotation::PHASE_BEFORE_DELETION) {
            return found;
        }
        let unmarked = self.unmark(backup).await;
        if let (Err(_), Err(error)) = (&found, &unmarked) {
            let error = status_message(error);
            tracing::debug!("phase stays Deleting until the restores are known: {error}");
            return found;
        }
        unmarked?;
        found
    }

    /// Gives a backup its phase back whose deletion is refused, unless the deletion is confirmed.
    pub(super) async fn unmark(&self, backup: &Backup) -> kube::Result<()> {
        if !backup.annotations().contains_key(annotation::PHASE_BEFORE_DELETION) {
            return Ok(());
        }
        let before = phase_before_deletion(backup);
        self.set_phase(backup, before.as_ref(), None).await.map(drop)
    }

    async fn set_phase(
        &self,
        backup: &Backup,
        phase: Option<&BackupPhase>,
        before: Option<&BackupPhase>,
    ) -> kube::Result<Option<Backup>> {
        let before = before.map(BackupPhase::as_str);
        let change = json!({
            "metadata": { "annotations": { annotation::PHASE_BEFORE_DELETION: before } },
            "status": { "phase": phase },
        });
        patch::patch_same(&self.backups, backup, change).await
    }
}

#[cfg(test)]
mod tests;
