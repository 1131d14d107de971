//! Cleanup of orphaned journals: those that no run will open again.
//!
//! - Pods that a journal names as frozen are thawed first, by `controllers/thawer.rs`, which runs concurrently.
//! - Runs whose Backup or Restore was deleted while no server was running are never resumed. Their operations are
//!   canceled and their snapshots deleted, including those that were in flight when the server ended, unless the bucket
//!   has the record of the backup: the backup is then complete, and the snapshots belong to it.
//! - Runs that have ended may have leftovers: scratch files in the bucket that could not be deleted, or a snapshot that
//!   was given up and may have been created since. They are deleted.
//!
//! The journal is removed last. While only the journal knows of a frozen pod, an operation or a snapshot, the journal
//! stays and cleanup is retried. Scratch files do not keep it: if the bucket refuses to delete them, or is away for a
//! day, they are reported with their keys, and the journal is removed.

mod bucket;
mod in_flight;
mod kept_journal;
mod leftovers;
mod run_state;
mod scratch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_engine::journal::{RecoveredRun, recover};
use bowline_store::InvalidName;
use bowline_store::name::RunUid;
use bowline_store::sabotage::{self, Sabotage};
use futures::StreamExt as _;
use jiff::Timestamp;
use tokio::sync::oneshot;

use self::bucket::{BucketAway, RunBucket, open_bucket};
use self::in_flight::{InFlightOutcome, journal_settled, reclaim_all_in_flight};
use self::kept_journal::KeptJournal;
use self::leftovers::{
    clean_up_after_end_without_bucket, delete_unless_recorded, find_leftover_volumes,
    is_uncommitted,
};
use self::run_state::{JournalRunState, backup_or_placeholder, placeholder_backup, run_state};
use self::scratch::{ScratchOutcome, delete_scratch, report_remaining};
use super::backup::journal_cleanup;
use super::run_resources;
use crate::error_text::status_message;
use crate::journal::{
    self, ConfigMapJournal, JournalId, ListedJournal, SavedHooks, list_journals, read,
};
use crate::server::{Context, Error};

const CLEANUP_PERIOD: Duration = Duration::from_mins(10);
/// Pause before the first retry of a failed cleanup. Doubles up to [`CLEANUP_PERIOD`].
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Pause while runs wait for their buckets. Between two attempts at such a run, nothing else notices that its object was
/// deleted.
const WAITING_RUNS_PERIOD: Duration = Duration::from_secs(30);
/// Interval between reports that a journal stays, and time for which a snapshot in flight is looked for.
const DAY: Duration = Duration::from_hours(24);
/// Maximum number of leftovers of one run that are logged.
const MAX_LOGGED_LEFTOVERS: usize = 100;
const CONCURRENT_CLEANUPS: usize = 4;

/// Cleans up orphaned journals until the server stops. Begins when pods have been thawed once, or cannot be.
pub async fn run(
    context: Arc<Context>,
    first_thaw_pass: oneshot::Receiver<()>,
) -> Result<(), Error> {
    // An error means that the thawer has ended, and with it the server.
    let _ = first_thaw_pass.await;
    Box::pin(run_cleanup(&context)).await;
    Ok(())
}

async fn run_cleanup(context: &Context) {
    let mut retry_log = BTreeMap::new();
    let mut backoff = CleanupBackoff::default();
    while !context.stop.is_cancelled() {
        let cleaned = clean_all(context, &mut retry_log).await;
        if let Err(error) = &cleaned {
            tracing::warn!("unneeded journals cannot be cleaned up: {}", status_message(error));
        }
        let mut pause = backoff.after_round(cleaned.is_ok() && retry_log.is_empty());
        if context.runs.any_waits_for_bucket() {
            pause = pause.min(WAITING_RUNS_PERIOD);
        }
        tokio::select! {
            () = context.stop.cancelled() => return,
            // New leftovers are retried soon.
            () = context.runs.wait_for_leftovers() => backoff = CleanupBackoff::default(),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[derive(Debug)]
struct CleanupBackoff(Duration);

impl Default for CleanupBackoff {
    fn default() -> Self {
        Self(FIRST_RETRY)
    }
}

impl CleanupBackoff {
    /// Pause after a round. A round without leftovers resets the backoff.
    fn after_round(&mut self, is_clean: bool) -> Duration {
        let next =
            if is_clean { FIRST_RETRY } else { self.0.saturating_mul(2).min(CLEANUP_PERIOD) };
        let retry = std::mem::replace(&mut self.0, next);
        if is_clean { CLEANUP_PERIOD } else { retry }
    }
}

/// Reason why a journal stays.
enum KeepReason {
    /// Cleanup failed.
    Failed(CleanupError),
    /// Leftovers that only the journal knows of.
    Leftovers(Vec<String>),
}

impl From<CleanupError> for KeepReason {
    fn from(error: CleanupError) -> Self {
        Self::Failed(error)
    }
}

/// Reason why cleanup failed. It is retried.
#[derive(Debug, thiserror::Error)]
enum CleanupError {
    #[error("the API server rejected the request")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error(transparent)]
    Append(#[from] bowline_engine::journal::Error),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Bucket(#[from] bowline_store::Error),
    #[error(transparent)]
    BucketAway(#[from] Arc<BucketAway>),
    #[error("the list of snapshots is missing in the bucket")]
    NoSnapshotList,
    #[error("velero-backup.json is missing in the bucket")]
    NoRecord,
    #[error("the storage location is empty, although the run wrote to it")]
    EmptyLocation,
    #[error("a run opened the journal meanwhile")]
    Opened,
    #[error("pods may still be frozen")]
    Frozen,
    #[error("the ConfigMap with the hooks of the backup cannot be removed")]
    HooksNotRemoved,
    #[error("the server is stopping")]
    Stopped,
}

async fn clean_all(
    context: &Context,
    kept_journals: &mut BTreeMap<RunUid, KeptJournal>,
) -> Result<(), CleanupError> {
    if sabotage::is_active(Sabotage::OrphansIgnored) {
        return Ok(());
    }
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    // Journals before runs: the journal of a run that starts in between is not in the list.
    let all = list_journals(client, namespace).await?;
    let mut before = std::mem::take(kept_journals);
    let each = all.into_iter().map(|journal| {
        let mut kept_journal = before.remove(&journal.id.run).unwrap_or_default();
        async move {
            let ended = Box::pin(clean_one(context, &journal, &mut kept_journal)).await;
            (journal, kept_journal, ended)
        }
    });
    let each: Vec<_> = each.collect();
    let mut each =
        std::pin::pin!(futures::stream::iter(each).buffer_unordered(CONCURRENT_CLEANUPS));
    while let Some((journal, mut kept_journal, ended)) = each.next().await {
        let JournalId { kind, name, .. } = &journal.id;
        match ended {
            // The journal may be open elsewhere for a moment.
            Ok(false) if kept_journal.reported.is_some() => {
                kept_journals.insert(journal.id.run, kept_journal);
            }
            Ok(false) => {}
            Ok(true) => tracing::info!("removed the journal of {kind} {name}"),
            Err(reason) => {
                if kept_journal.is_report_due(Timestamp::now()) {
                    report_kept(&journal, &reason);
                } else {
                    tracing::debug!("the journal of {kind} {name} is still kept");
                }
                kept_journals.insert(journal.id.run, kept_journal);
            }
        }
    }
    Ok(())
}

/// Cleans up one journal. Returns true if the journal is gone.
async fn clean_one(
    context: &Context,
    journal: &ListedJournal,
    kept_journal: &mut KeptJournal,
) -> Result<bool, KeepReason> {
    if context.stop.is_cancelled() {
        return Ok(false);
    }
    match run_state(context, journal).await? {
        JournalRunState::Active => Ok(false),
        JournalRunState::Deleted => {
            // From now on, its bucket is asked again only as often as the backoff allows.
            context.runs.clear_waiting_for_bucket(journal.id.run.as_str());
            clean_up_deleted(context, journal, kept_journal).await?;
            Ok(true)
        }
        JournalRunState::Finished(backup) => {
            let backup = backup_or_placeholder(backup, &context.options.namespace, journal);
            let recovered = read_journal(context, journal).await?;
            let open_store = open_bucket(context, journal, &backup.spec.storage_location).await;
            let InFlightOutcome { mut leftovers, settled } = reclaim_all_in_flight(
                context,
                journal,
                &backup,
                &recovered,
                &open_store,
                kept_journal,
            )
            .await?;
            leftovers.extend(
                clean_up_after_end_without_bucket(
                    context,
                    journal,
                    &backup,
                    &recovered,
                    &open_store,
                    kept_journal,
                )
                .await?,
            );
            if !leftovers.is_empty() {
                journal_settled(context, journal, &settled).await;
                return Err(KeepReason::Leftovers(leftovers));
            }
            finish(context, journal, &open_store, kept_journal).await?;
            Ok(true)
        }
    }
}

fn report_kept(journal: &ListedJournal, reason: &KeepReason) {
    let JournalId { run, kind, name } = &journal.id;
    let leftovers = match reason {
        KeepReason::Failed(reason) => {
            let reason = status_message(reason);
            return tracing::warn!("the journal of {kind} {name} is kept: {reason}");
        }
        KeepReason::Leftovers(leftovers) => leftovers,
    };
    for one in leftovers.iter().take(MAX_LOGGED_LEFTOVERS) {
        tracing::error!("leftover of {kind} {name}: {one}");
    }
    tracing::error!(
        leftovers = leftovers.len(),
        "cleanup is retried; if you deleted the leftovers yourself, delete the ConfigMaps with the \
         label {}={run}",
        label::JOURNAL
    );
}

/// Removes the leftovers of a run whose object was deleted while no server was running, and then its journal.
async fn clean_up_deleted(
    context: &Context,
    journal: &ListedJournal,
    kept_journal: &mut KeptJournal,
) -> Result<(), KeepReason> {
    let recovered = read_journal(context, journal).await?;
    let backup = placeholder_backup(&context.options.namespace, journal);
    if journal.id.kind == "Backup"
        && !kept_journal.operations_canceled
        && is_uncommitted(&recovered)
    {
        // A bucket that is away must not keep plugins at work for a backup that is gone.
        journal_cleanup::cancel_operations(context, &backup, &recovered).await;
        kept_journal.operations_canceled = true;
    }
    let bucket = open_bucket(context, journal, &backup.spec.storage_location).await;
    let mut settled = Vec::new();
    let leftovers = if journal.id.kind == "Backup" {
        let mut leftovers =
            delete_unless_recorded(context, journal, &backup, &recovered, &bucket, kept_journal)
                .await?;
        let in_flight =
            reclaim_all_in_flight(context, journal, &backup, &recovered, &bucket, kept_journal)
                .await?;
        settled = in_flight.settled;
        leftovers.extend(in_flight.leftovers);
        leftovers
    } else {
        find_leftover_volumes(context, &recovered).await?
    };
    if context.stop.is_cancelled() {
        return Err(KeepReason::Failed(CleanupError::Stopped));
    }
    if !leftovers.is_empty() {
        journal_settled(context, journal, &settled).await;
        return Err(KeepReason::Leftovers(leftovers));
    }
    Ok(finish(context, journal, &bucket, kept_journal).await?)
}

/// Removes the scratch files of a run without other leftovers, and then its journal: while the files exist, the journal
/// records which run they belong to.
async fn finish(
    context: &Context,
    journal: &ListedJournal,
    bucket: &RunBucket,
    kept_journal: &mut KeptJournal,
) -> Result<(), CleanupError> {
    let outcome =
        delete_scratch(journal, bucket, &mut kept_journal.scratch, Timestamp::now()).await?;
    remove_journal(context, journal).await?;
    if let ScratchOutcome::GivenUp { error, remaining } = outcome {
        report_remaining(context, journal, &error, &remaining).await;
    }
    Ok(())
}

/// Reads a journal, without keeping others from opening it.
async fn read_journal(
    context: &Context,
    journal: &ListedJournal,
) -> Result<RecoveredRun, CleanupError> {
    let records = read(context.client.clone(), &context.options.namespace, &journal.id).await?;
    Ok(recover(records))
}

async fn take_over_journal(
    context: &Context,
    id: &JournalId,
) -> Result<(ConfigMapJournal, RecoveredRun), CleanupError> {
    let JournalId { run, kind, name } = id;
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    let (journal, records) = ConfigMapJournal::open(client, namespace, run, kind, name).await?;
    Ok((journal, recover(records)))
}

/// Removes a journal, unless pods may still be frozen.
async fn remove_journal(context: &Context, journal: &ListedJournal) -> Result<(), CleanupError> {
    let run = &journal.id.run;
    let lock = context.runs.lock_journal_when_free(run.as_str()).await;
    let _lock = lock.ok_or(CleanupError::Opened)?;
    let (journal, mut recovered) = take_over_journal(context, &journal.id).await?;
    context.runs.unwritten_thaws.apply(run.as_str(), &mut recovered.frozen);
    if !recovered.frozen.is_empty() {
        return Err(CleanupError::Frozen);
    }
    let hooks = SavedHooks::new(context.client.clone(), &context.options.namespace, run);
    let is_removed = run_resources::remove_journal(context, &journal, run, Some(hooks)).await?;
    if is_removed { Ok(()) } else { Err(CleanupError::HooksNotRemoved) }
}

#[cfg(test)]
mod tests;
