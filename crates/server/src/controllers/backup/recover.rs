//! Backups whose server is gone: found in the middle of something when ours starts.
//!
//! The bucket knows best: where the commit record is terminal, the backup is over, and only the
//! cluster has not heard of it.

use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStatus};
use bowline_store::{BackupName, BackupStore};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{GIVE_UP, WorkError, commit, facts, failed};
use crate::controllers::lookup::open;
use crate::patch;
use crate::server::Context;
use crate::story::one_line;

/// What became of a backup whose server is gone.
const LOST: &str = "the server that ran this backup ended before the backup did; create another \
                    one, and check that applications with backup hooks are not left frozen";

/// A backup that was collecting items, and has stood still for a while. The items are lost with the
/// server that had them.
pub(super) async fn in_progress(
    context: &Context,
    api: &Api<Backup>,
    backup: Backup,
    still: Duration,
) -> Result<(), WorkError> {
    let status = backup.status.clone().unwrap_or_default();
    let end = match committed(context, &backup).await {
        Ok(Committed::Yes(status)) => *status,
        Ok(Committed::No(_)) => failed(&status, LOST.to_owned()),
        // As long as it is in progress, others wait for it.
        Err(unseen) if unseen.is_retryable && still < GIVE_UP => return Err(unseen.into()),
        Err(unseen) => failed(&status, format!("{LOST}; {}", unseen.told())),
    };
    write(api, &backup, &end).await
}

/// A backup of which everything but the commit record was written. Nobody waits for it.
pub(super) async fn finalizing(
    context: &Context,
    api: &Api<Backup>,
    backup: Backup,
) -> Result<(), WorkError> {
    let status = backup.status.clone().unwrap_or_default();
    if status.backup_item_operations_attempted > status.backup_item_operations_failed {
        tracing::warn!(
            backup = backup.name_any(),
            "left alone: it has operations of plugins, which this version does not finish"
        );
        return Ok(());
    }
    let end = match committed(context, &backup).await {
        Ok(Committed::Yes(status)) => *status,
        Ok(Committed::No(store)) => commit(&store, &backup, &status).await?,
        Err(unseen) if unseen.is_retryable => return Err(unseen.into()),
        Err(unseen) => failed(&status, unseen.told()),
    };
    write(api, &backup, &end).await
}

enum Committed {
    /// It is over, with this status.
    Yes(Box<BackupStatus>),
    /// It is not, in this store.
    No(BackupStore),
}

/// Why the bucket does not say.
struct Unseen {
    reason: String,
    is_retryable: bool,
}

impl Unseen {
    fn told(&self) -> String {
        format!("what the bucket holds of it is not known: {}", self.reason)
    }
}

impl From<Unseen> for WorkError {
    fn from(unseen: Unseen) -> Self {
        Self::Bucket(unseen.reason)
    }
}

/// What the bucket says of a backup.
async fn committed(context: &Context, backup: &Backup) -> Result<Committed, Unseen> {
    let no = |error: &(dyn std::error::Error + 'static), is_retryable| Unseen {
        reason: one_line(error),
        is_retryable,
    };
    let location = facts::location(context, backup).await.map_err(|error| no(&error, true))?;
    let opened = open(context, &location.found).await;
    let store = opened.map_err(|error| no(&error, error.is_retryable()))?;
    let name = BackupName::new(backup.name_any()).map_err(|error| no(&error, false))?;
    let read = store.backup(&name).await;
    let record = read.map_err(|error| no(&error, error.is_retryable()))?;
    let ours = record.filter(|record| record.uid() == backup.uid());
    let status = ours.and_then(|record| record.status);
    Ok(match status {
        Some(status) if status.phase.as_ref().is_some_and(BackupPhase::is_terminal) => {
            Committed::Yes(Box::new(status))
        }
        _ => Committed::No(store),
    })
}

/// Writes the end, unless the Backup has changed since: then its server lives.
async fn write(api: &Api<Backup>, backup: &Backup, end: &BackupStatus) -> Result<(), WorkError> {
    let version = backup.resource_version();
    let name = backup.name_any();
    match patch::patch_status(api, &name, version.as_deref(), json!(end)).await {
        Err(error) if patch::is_missing(&error) => Ok(()),
        written => Ok(written.map(drop)?),
    }
}
