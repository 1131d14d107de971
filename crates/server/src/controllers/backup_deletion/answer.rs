//! DeleteBackupRequests: their progress, answers and end.

use std::sync::Arc;

use bowline_api::delete_backup_request::DeleteBackupRequestPhase;
use bowline_api::{Backup, DeleteBackupRequest, annotation, label};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;

use super::{Controller, DeletionError, step};
use crate::error_text::truncate_text;
use crate::events::Milestone;
use crate::patch;
use crate::watch::Requeue;

/// Velero's prefix for the reason why a deletion cannot start.
const FAILURE_PREFIX: &str = "backup deletion failed";

impl Controller {
    /// Answers a request made by retention for a backup that is being restored.
    pub(super) async fn answer_in_use(
        &self,
        request: &DeleteBackupRequest,
        restore: &str,
    ) -> Result<Requeue, DeletionError> {
        let reason = format!(
            "the backup has expired and is in use by restore {restore}; its deletion is retried later"
        );
        self.answer_refused(request, None, vec![reason]).await
    }

    /// Answers a request whose deletion was started too often.
    pub(super) async fn give_up(
        &self,
        request: &DeleteBackupRequest,
        backup: &Backup,
        attempts: u32,
    ) -> Result<Requeue, DeletionError> {
        // Retention would ask again in an hour. A user who asks again has looked into it.
        self.note_gave_up(backup, true).await?;
        self.marker().unmark(backup).await?;
        let reason = format!(
            "the server stopped {attempts} times while it deleted the backup; check the files of \
             the backup in the bucket and the memory limit of the server before you request the \
             deletion again"
        );
        self.answer_refused(request, Some(backup), vec![reason]).await
    }

    /// Records on a Backup that retention has given up on it, or no longer has.
    pub(super) async fn note_gave_up(&self, backup: &Backup, gave_up: bool) -> kube::Result<()> {
        if backup.annotations().contains_key(annotation::RETENTION_GAVE_UP) == gave_up {
            return Ok(());
        }
        let annotations = json!({ annotation::RETENTION_GAVE_UP: gave_up.then_some("true") });
        let change = json!({ "metadata": { "uid": backup.uid(), "annotations": annotations } });
        let api = self.context.api::<Backup>();
        match patch::patch(&api, &backup.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Saves on a request the number of times that its deletion was started.
    pub(super) async fn save_attempts(
        &self,
        request: &DeleteBackupRequest,
        attempts: u32,
    ) -> kube::Result<()> {
        self.annotate(request, annotation::DELETION_ATTEMPTS, &attempts.to_string()).await
    }

    /// Saves on a request, once, the time at which its backup was asked to stop.
    pub(super) async fn save_stop_request(
        &self,
        request: &DeleteBackupRequest,
    ) -> kube::Result<()> {
        if request.annotations().contains_key(annotation::STOP_ASKED) {
            return Ok(());
        }
        self.annotate(request, annotation::STOP_ASKED, &Timestamp::now().to_string()).await
    }

    async fn annotate(
        &self,
        request: &DeleteBackupRequest,
        key: &str,
        value: &str,
    ) -> kube::Result<()> {
        let annotations = json!({ key: value });
        let change = json!({ "metadata": { "uid": request.uid(), "annotations": annotations } });
        let api = self.context.api::<DeleteBackupRequest>();
        match patch::patch(&api, &request.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Marks a request as in progress, with the uid of its backup.
    pub(super) async fn mark_in_progress(
        &self,
        request: &DeleteBackupRequest,
        backup: &Backup,
    ) -> kube::Result<()> {
        let name = label::value(&request.spec.backup_name).into_owned();
        let change = json!({
            "metadata": {
                "uid": request.uid(),
                "labels": { label::BACKUP_NAME: name, label::BACKUP_UID: backup.uid() },
            },
            "status": { "phase": DeleteBackupRequestPhase::InProgress, "errors": null },
        });
        let api = self.context.api::<DeleteBackupRequest>();
        patch::patch(&api, &request.name_any(), None, change).await.map(drop)
    }

    /// Answers a request for which nothing was done, with Velero's messages.
    pub(super) async fn answer_refused(
        &self,
        request: &DeleteBackupRequest,
        backup: Option<&Backup>,
        reasons: Vec<String>,
    ) -> Result<Requeue, DeletionError> {
        let reasons = reasons.iter().map(|reason| format!("{FAILURE_PREFIX}: {reason}")).collect();
        self.answer_failed(request, backup, reasons).await
    }

    /// Answers a request that was not fulfilled, or only in part.
    pub(super) async fn answer_failed(
        &self,
        request: &DeleteBackupRequest,
        backup: Option<&Backup>,
        errors: Vec<String>,
    ) -> Result<Requeue, DeletionError> {
        tracing::warn!("the backup could not be deleted: {}", errors.join("; "));
        let errors: Vec<String> = errors.into_iter().map(truncate_text).collect();
        let api = self.context.api::<DeleteBackupRequest>();
        let status = json!({ "phase": DeleteBackupRequestPhase::Processed, "errors": errors });
        if patch::patch_status_of(&api, request, status).await?.is_none() {
            return Ok(Requeue::OnChange);
        }
        if let Some(backup) = backup {
            self.context.events.publish(backup, Milestone::NotDeleted).await;
        }
        Ok(Requeue::After(step::MAX_AGE))
    }

    /// Removes a fulfilled request, and all others for the deleted Backup.
    pub(super) async fn delete_requests(
        &self,
        request: &DeleteBackupRequest,
        uid: Option<&str>,
    ) -> Result<Requeue, DeletionError> {
        let api = self.context.api::<DeleteBackupRequest>();
        for other in self.other_requests(request) {
            // A request for another Backup of the same name is not fulfilled by this deletion.
            if requested_uid(&other).is_none_or(|wanted| Some(wanted) == uid) {
                patch::delete_by_uid(&api, &other).await?;
            }
        }
        patch::delete_by_uid(&api, request).await?;
        Ok(Requeue::OnChange)
    }

    /// Other requests for the same backup.
    pub(super) fn other_requests(
        &self,
        request: &DeleteBackupRequest,
    ) -> Vec<Arc<DeleteBackupRequest>> {
        let is_like = |other: &Arc<DeleteBackupRequest>| {
            let (wanted, its) = (requested_uid(request), requested_uid(other));
            other.spec.backup_name == request.spec.backup_name
                && other.uid() != request.uid()
                // A request for another Backup of the same name gets its own answer.
                && (its.is_none() || wanted.is_none() || its == wanted)
        };
        self.requests.state().into_iter().filter(is_like).collect()
    }
}

/// Uid of the Backup that a request was made for, if set.
pub(super) fn requested_uid(request: &DeleteBackupRequest) -> Option<&str> {
    request.labels().get(label::BACKUP_UID).map(String::as_str).filter(|uid| !uid.is_empty())
}
