//! Snapshots that were in flight when their run stopped waiting for them.

use bowline_api::Backup;
use bowline_engine::backup::snapshot;
use bowline_engine::journal::{Intent, Journal as _, JournalEntry, RecoveredRun};
use jiff::Timestamp;

use super::bucket::{RunBucket, UnknownBucket, recorded_in};
use super::kept_journal::KeptJournal;
use super::leftovers::may_be_empty;
use super::{CleanupError, take_over_journal};
use crate::controllers::backup::journal_cleanup;
use crate::error_text::status_message;
use crate::journal::ListedJournal;
use crate::server::Context;

/// Reason why a snapshot in flight was not reclaimed.
#[derive(Debug, thiserror::Error)]
enum NotReclaimed {
    #[error(transparent)]
    Bucket(#[from] UnknownBucket),
    #[error(transparent)]
    Plugin(#[from] snapshot::ReclaimError),
}

/// Snapshots that were in flight, after an attempt to reclaim them.
#[derive(Default)]
pub(super) struct InFlightOutcome {
    /// Descriptions of those that remain.
    pub(super) leftovers: Vec<String>,
    /// Requests that this attempt has settled.
    pub(super) settled: Vec<String>,
}

/// Deletes snapshots that were still in flight when their run stopped waiting for them. A snapshot that its plugin does
/// not find for a day is reported, and not asked for again. The journal is not written: if nothing else is left, it is
/// removed, which works even where no ConfigMap can be created.
pub(super) async fn reclaim_all_in_flight(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
    kept_journal: &mut KeptJournal,
) -> Result<InFlightOutcome, CleanupError> {
    let mut outcome = InFlightOutcome::default();
    let request_of = |intent: &Intent| intent.snapshot.as_ref().map(|one| one.request.clone());
    let is_open = |intent: &&Intent| {
        request_of(intent).is_none_or(|one| !kept_journal.settled.contains(&one))
    };
    let open: Vec<&Intent> = recovered.in_flight.iter().filter(is_open).collect();
    if open.is_empty() {
        return Ok(outcome);
    }
    let recorded_snapshots =
        recorded_in(bucket, backup, &journal.id.run, may_be_empty(recovered)).await?;
    for intent in open {
        let reclaimed: Result<(), NotReclaimed> = match &recorded_snapshots {
            Ok(recorded) => journal_cleanup::reclaim_one(context, backup, intent, recorded)
                .await
                .map_err(NotReclaimed::from),
            Err(reason) => Err(reason.clone().into()),
        };
        match reclaimed {
            Ok(()) => outcome.settled.extend(request_of(intent)),
            Err(reason) if kept_journal.gives_up(intent, Timestamp::now()) => {
                journal_cleanup::log_unclear(intent, &reason.to_string());
                outcome.settled.extend(request_of(intent));
            }
            Err(reason) => {
                let description = journal_cleanup::in_flight_description(intent);
                outcome.leftovers.push(format!("{description}: {reason}"));
            }
        }
    }
    kept_journal.settled.extend(outcome.settled.iter().cloned());
    Ok(outcome)
}

/// Journals which requests are settled, in a journal that stays. If that fails, this process remembers them.
pub(super) async fn journal_settled(
    context: &Context,
    journal: &ListedJournal,
    settled: &[String],
) {
    let reclaimed = |request: &String| JournalEntry::Reclaimed { request: request.clone() };
    let records: Vec<_> = settled.iter().map(reclaimed).collect();
    if let Err(error) = append(context, journal, &records).await {
        let error = status_message(&error);
        tracing::warn!("{error}; if the server restarts now, the snapshots are searched for again");
    }
}

async fn append(
    context: &Context,
    journal: &ListedJournal,
    records: &[JournalEntry],
) -> Result<(), CleanupError> {
    if records.is_empty() {
        return Ok(());
    }
    let lock = context.runs.lock_journal_when_free(journal.id.run.as_str()).await;
    let _lock = lock.ok_or(CleanupError::Opened)?;
    let (journal, _) = take_over_journal(context, &journal.id).await?;
    for record in records {
        journal.append(record).await?;
    }
    Ok(())
}
