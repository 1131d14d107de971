//! Restores of a backup that is being deleted.

use std::time::Duration;

use bowline_api::Restore;
use bowline_api::annotation::finalizer;
use bowline_engine::delete::DeletionResult;
use bowline_store::{BackupName, BackupStore, InvalidName, RestoreName};
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep};

use super::owned_objects::list;
use crate::error_text::status_message;
use crate::patch;
use crate::server::Context;

/// Timeout for restores to end: running ones are stopped, and delete their files.
const RESTORE_END_TIMEOUT: Duration = Duration::from_mins(5);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Deletes the Restores of a backup and their files, and waits until they are gone.
pub(super) async fn delete_restores(
    context: &Context,
    store: &BackupStore,
    backup: &BackupName,
) -> kube::Result<DeletionResult> {
    let api = context.api::<Restore>();
    let mut all: Vec<Restore> = list(context, None).await?;
    all.retain(|restore| restore.spec.backup_name == backup.as_str());
    let mut errors = Vec::new();
    for restore in &all {
        // With the finalizer, the restore controller deletes the files before the Restore is gone.
        let has_finalizer = restore.finalizers().iter().any(|one| one == finalizer::RESTORE);
        if !has_finalizer && let Err(error) = delete_files(store, restore).await {
            errors.push(restore_error(restore, &status_message(&error)));
            continue;
        }
        tracing::info!(restore = restore.name_any(), "deleting a restore of the backup");
        patch::delete_by_uid(&api, restore).await?;
    }
    let deadline = Instant::now() + RESTORE_END_TIMEOUT;
    for restore in &all {
        while errors.is_empty() && still_exists(&api, restore).await? {
            if Instant::now() > deadline {
                let seconds = RESTORE_END_TIMEOUT.as_secs();
                errors.push(restore_error(
                    restore,
                    &format!("the restore still exists after {seconds} s"),
                ));
            }
            tokio::select! {
                () = context.stop.cancelled() => return Ok(DeletionResult::Stopped),
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }
    Ok(if errors.is_empty() { DeletionResult::Done } else { DeletionResult::Failed(errors) })
}

/// True if a Restore with the same uid still exists.
async fn still_exists(api: &Api<Restore>, restore: &Restore) -> kube::Result<bool> {
    let found = api.get_opt(&restore.name_any()).await?;
    Ok(found.is_some_and(|found| found.uid() == restore.uid()))
}

/// Reason why the files of a Restore could not be deleted.
#[derive(Debug, thiserror::Error)]
enum DeleteFilesError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Store(#[from] bowline_store::Error),
}

async fn delete_files(store: &BackupStore, restore: &Restore) -> Result<(), DeleteFilesError> {
    let name = RestoreName::new(restore.name_any())?;
    Ok(store.delete_restore(&name).await?)
}

/// Velero's message.
fn restore_error(restore: &Restore, error: &str) -> String {
    let (namespace, name) = (restore.namespace().unwrap_or_default(), restore.name_any());
    format!("error deleting restore {namespace}/{name}: {error}")
}
