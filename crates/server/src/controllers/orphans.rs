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
mod scratch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupSpec, Restore, RestorePhase, label};
use bowline_engine::backup::snapshot;
use bowline_engine::journal::{
    Intent, Journal as _, JournalEntry, RecoveredRun, SnapshotIntent, VolumeRequest, recover,
};
use bowline_engine::phase::Stage;
use bowline_engine::restore;
use bowline_store::name::RunUid;
use bowline_store::{BackupName, InvalidName};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _};
use tokio::sync::oneshot;

use self::bucket::{
    BucketAway, BucketRecord, RunBucket, UnknownBucket, find_record, open_bucket, recorded_in,
    was_whole,
};
use self::scratch::{ScratchAttempts, ScratchOutcome, delete_scratch, report_remaining};
use super::backup::{journal_cleanup, leftovers};
use super::bucket_wait::elapsed;
use super::run_resources;
use crate::error_text::status_message;
use crate::journal::{
    self, ConfigMapJournal, JournalId, ListedJournal, SavedHooks, list_journals, read,
};
use crate::queue::NamespaceScope;
use crate::server::{Context, Error};

const CLEANUP_PERIOD: Duration = Duration::from_mins(10);
/// Pause before the first retry of a failed cleanup. Doubles up to [`CLEANUP_PERIOD`].
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Pause while runs wait for their buckets. Between two attempts at such a run, nothing else notices that its object was
/// deleted.
const WAITING_RUNS_PERIOD: Duration = Duration::from_secs(30);
/// Interval between reports that a journal stays, and time for which a snapshot in flight is looked for.
const DAY: Duration = Duration::from_hours(24);
/// Maximum number of leftovers of one run that are named.
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

/// State of the run of a journal.
enum JournalRunState {
    /// Running, or will be resumed.
    Active,
    /// The object of the run was deleted.
    Deleted,
    /// The run has ended. Holds the Backup that was made or restored, if it still exists.
    Finished(Option<Box<Backup>>),
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

#[derive(Debug, Default)]
struct KeptJournal {
    /// Time of the last report.
    reported: Option<Timestamp>,
    /// Time since which a snapshot in flight cannot be reclaimed, by its request. An unreachable bucket does not count
    /// as such a failure.
    failing: BTreeMap<String, Timestamp>,
    /// True if this process has canceled the operations of the run, whose bucket was away.
    operations_canceled: bool,
    scratch: ScratchAttempts,
}

impl KeptJournal {
    /// True if it is time to report that the journal stays: the first time, and then once a day.
    fn is_report_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.reported.is_none_or(|at| elapsed(at, now) >= DAY);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }

    /// True if a snapshot in flight that could not be reclaimed is given up: after a day of failures.
    fn gives_up(&mut self, intent: &Intent, now: Timestamp) -> bool {
        let request = intent.snapshot.as_ref().map(|wanted| wanted.request.clone());
        let since = *self.failing.entry(request.unwrap_or_default()).or_insert(now);
        elapsed(since, now) >= DAY
    }
}

async fn clean_all(
    context: &Context,
    kept_journals: &mut BTreeMap<RunUid, KeptJournal>,
) -> Result<(), CleanupError> {
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    // Journals before runs: the journal of a run that starts in between is not in the list.
    let all = list_journals(client, namespace).await?;
    let mut before = std::mem::take(kept_journals);
    let each = all.into_iter().map(|journal| {
        let mut kept = before.remove(&journal.id.run).unwrap_or_default();
        async move {
            let ended = Box::pin(clean_one(context, &journal, &mut kept)).await;
            (journal, kept, ended)
        }
    });
    let each: Vec<_> = each.collect();
    let mut each =
        std::pin::pin!(futures::stream::iter(each).buffer_unordered(CONCURRENT_CLEANUPS));
    while let Some((journal, mut kept, ended)) = each.next().await {
        let JournalId { kind, name, .. } = &journal.id;
        match ended {
            // The journal may be open elsewhere for a moment.
            Ok(false) if kept.reported.is_some() => {
                kept_journals.insert(journal.id.run, kept);
            }
            Ok(false) => {}
            Ok(true) => tracing::info!("removed the journal of {kind} {name}"),
            Err(reason) => {
                if kept.is_report_due(Timestamp::now()) {
                    report_kept(&journal, &reason);
                } else {
                    tracing::debug!("the journal of {kind} {name} is still kept");
                }
                kept_journals.insert(journal.id.run, kept);
            }
        }
    }
    Ok(())
}

/// Cleans up one journal. Returns true if the journal is gone.
async fn clean_one(
    context: &Context,
    journal: &ListedJournal,
    kept: &mut KeptJournal,
) -> Result<bool, KeepReason> {
    if context.stop.is_cancelled() {
        return Ok(false);
    }
    match run_state(context, journal).await? {
        JournalRunState::Active => Ok(false),
        JournalRunState::Deleted => {
            // From now on, its bucket is asked again only as often as the backoff allows.
            context.runs.clear_waiting_for_bucket(journal.id.run.as_str());
            clean_up_deleted(context, journal, kept).await?;
            Ok(true)
        }
        JournalRunState::Finished(backup) => {
            let backup = backup_or_placeholder(backup, &context.options.namespace, journal);
            let recovered = read_journal(context, journal).await?;
            let open_store = open_bucket(context, journal, &backup.spec.storage_location).await;
            let mut leftovers =
                reclaim_all_in_flight(context, journal, &backup, &recovered, &open_store, kept)
                    .await?;
            leftovers.extend(
                clean_up_after_end_without_bucket(
                    context,
                    journal,
                    &backup,
                    &recovered,
                    &open_store,
                )
                .await?,
            );
            if !leftovers.is_empty() {
                return Err(KeepReason::Leftovers(leftovers));
            }
            finish(context, journal, &open_store, kept).await?;
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

async fn run_state(
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

/// Reason why a snapshot in flight was not reclaimed.
#[derive(Debug, thiserror::Error)]
enum NotReclaimed {
    #[error(transparent)]
    Bucket(#[from] UnknownBucket),
    #[error(transparent)]
    Plugin(#[from] snapshot::ReclaimError),
}

/// Removes the leftovers of a run whose object was deleted while no server was running, and then its journal.
async fn clean_up_deleted(
    context: &Context,
    journal: &ListedJournal,
    kept: &mut KeptJournal,
) -> Result<(), KeepReason> {
    let recovered = read_journal(context, journal).await?;
    let backup = placeholder_backup(&context.options.namespace, journal);
    if journal.id.kind == "Backup" && !kept.operations_canceled && is_uncommitted(&recovered) {
        // A bucket that is away must not keep plugins at work for a backup that is gone.
        journal_cleanup::cancel_operations(context, &backup, &recovered).await;
        kept.operations_canceled = true;
    }
    let bucket = open_bucket(context, journal, &backup.spec.storage_location).await;
    let leftovers = if journal.id.kind == "Backup" {
        let mut leftovers =
            delete_unless_recorded(context, journal, &backup, &recovered, &bucket).await?;
        leftovers.extend(
            reclaim_all_in_flight(context, journal, &backup, &recovered, &bucket, kept).await?,
        );
        leftovers
    } else {
        find_leftover_volumes(context, &recovered).await?
    };
    if context.stop.is_cancelled() {
        return Err(KeepReason::Failed(CleanupError::Stopped));
    }
    if !leftovers.is_empty() {
        return Err(KeepReason::Leftovers(leftovers));
    }
    Ok(finish(context, journal, &bucket, kept).await?)
}

/// Removes the scratch files of a run without other leftovers, and then its journal: while the files exist, the journal
/// records which run they belong to.
async fn finish(
    context: &Context,
    journal: &ListedJournal,
    bucket: &RunBucket,
    kept: &mut KeptJournal,
) -> Result<(), CleanupError> {
    let outcome = delete_scratch(journal, bucket, &mut kept.scratch, Timestamp::now()).await?;
    remove_journal(context, journal).await?;
    if let ScratchOutcome::GivenUp { error, remaining } = outcome {
        report_remaining(context, journal, &error, &remaining).await;
    }
    Ok(())
}

/// True if the bucket cannot have the record of a backup, which is written only while finalizing: the backup waited for
/// its bucket at an earlier stage.
fn is_uncommitted(recovered: &RecoveredRun) -> bool {
    recovered.bucket_lost_at_stage.is_some_and(|stage| stage < Stage::Finalizing)
}

/// Volumes that plugins created for a restore that was given up, and that no PersistentVolume refers to.
async fn find_leftover_volumes(
    context: &Context,
    recovered: &RecoveredRun,
) -> Result<Vec<String>, CleanupError> {
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let mut used = BTreeSet::new();
    for VolumeRequest { started: begun, .. } in &recovered.volumes {
        if volumes.get_metadata_opt(&begun.name).await?.is_some() {
            used.insert(begun.name.as_str());
        }
    }
    Ok(unused_volumes(recovered, &used))
}

/// Unused volumes that plugins created, or may have created without answering.
fn unused_volumes(recovered: &RecoveredRun, used: &BTreeSet<&str>) -> Vec<String> {
    let is_unused =
        |one: &&VolumeRequest| one.ended.is_none() || !used.contains(&*one.started.name);
    let volumes = recovered.volumes.iter().filter(is_unused).cloned().collect();
    let unused = RecoveredRun { volumes, ..RecoveredRun::default() };
    let leftovers = restore::leftover_volumes(&unused).into_iter();
    leftovers.map(|(id, text)| format!("volume {}: {text}", id.name)).collect()
}

/// Deletes snapshots that were still in flight when their run stopped waiting for them. Returns those that remain. A
/// snapshot that its plugin does not find for a day is reported, and not asked for again.
async fn reclaim_all_in_flight(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
    kept: &mut KeptJournal,
) -> Result<Vec<String>, CleanupError> {
    let mut leftovers = Vec::new();
    let mut settled = Vec::new();
    if recovered.in_flight.is_empty() {
        return Ok(leftovers);
    }
    let recorded_snapshots = recorded_in(bucket, backup, &journal.id.run).await?;
    for intent in &recovered.in_flight {
        let reclaimed: Result<(), NotReclaimed> = match &recorded_snapshots {
            Ok(recorded) => journal_cleanup::reclaim_one(context, backup, intent, recorded)
                .await
                .map_err(NotReclaimed::from),
            Err(reason) => Err(reason.clone().into()),
        };
        match reclaimed {
            Ok(()) => settled.push(intent),
            Err(reason) if kept.gives_up(intent, Timestamp::now()) => {
                journal_cleanup::log_unclear(intent, &reason.to_string());
                settled.push(intent);
            }
            Err(reason) => {
                leftovers
                    .push(format!("{}: {reason}", journal_cleanup::in_flight_description(intent)));
            }
        }
    }
    let settled = settled.into_iter().filter_map(|intent| intent.snapshot.as_ref());
    let reclaimed =
        |wanted: &SnapshotIntent| JournalEntry::Reclaimed { request: wanted.request.clone() };
    append(context, journal, &settled.map(reclaimed).collect::<Vec<_>>()).await?;
    Ok(leftovers)
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

/// Deletes snapshots and files of a backup. Returns the leftovers that only the journal knows of.
async fn delete_unless_recorded(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
) -> Result<Vec<String>, CleanupError> {
    let created = journal_cleanup::created_objects(recovered);
    let store = match bucket {
        RunBucket::Same(store) => store,
        RunBucket::Away(error) => return Err(Arc::clone(error).into()),
        // The unknown bucket may have the complete backup.
        RunBucket::Unknown(reason) => {
            return Ok(created.into_iter().map(|one| format!("{one}: {reason}")).collect());
        }
    };
    let name = BackupName::new(backup.name_any())?;
    let may_be_absent =
        recovered.ended_without_bucket.is_some_and(|stage| stage < Stage::Finalizing);
    let recorded =
        find_record(store, &name, &journal.id.run, created.is_empty() || may_be_absent).await?;
    if recorded == BucketRecord::Ours {
        return Ok(Vec::new());
    }
    let leftovers = journal_cleanup::delete_created(context, backup, recovered).await;
    if leftovers.is_empty() && recorded == BucketRecord::Nothing {
        // Keeps other backups from starting meanwhile: one of the same name would write to the same folder.
        let _held = context.runs.register(backup, Some(NamespaceScope::All));
        let namesake = context.api::<Backup>().get_opt(name.as_str()).await;
        if namesake?.is_none() {
            // If the journal stays for another reason, an empty location is expected next time. Each append starts a
            // page, so one is enough.
            if recovered.ended_without_bucket != Some(Stage::Items) {
                let absent =
                    JournalEntry::EndedWithoutBucket { stage: Stage::Items, at: Timestamp::now() };
                append(context, journal, &[absent]).await?;
            }
            leftovers::delete_bucket_files(store, &name).await;
        }
    }
    Ok(leftovers)
}

/// The Backup of a run that has ended, or a placeholder with what is known of it.
fn backup_or_placeholder(
    found: Option<Box<Backup>>,
    namespace: &str,
    journal: &ListedJournal,
) -> Backup {
    found.map_or_else(|| placeholder_backup(namespace, journal), |found| *found)
}

/// Placeholder for a Backup that is gone.
fn placeholder_backup(namespace: &str, journal: &ListedJournal) -> Backup {
    let mut backup = Backup::new(&journal.id.name, BackupSpec::default());
    backup.metadata.namespace = Some(namespace.to_owned());
    backup.metadata.uid = Some(journal.id.run.as_str().to_owned());
    backup.spec.storage_location = journal.location.clone().unwrap_or_default();
    backup
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

/// Deletes what a backup created that ended without its bucket. Returns the leftovers, including those of a restore.
async fn clean_up_after_end_without_bucket(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
) -> Result<Vec<String>, CleanupError> {
    match recovered.ended_without_bucket {
        None => Ok(Vec::new()),
        Some(_) if journal.id.kind != "Backup" => find_leftover_volumes(context, recovered).await,
        // Another server has completed the backup.
        Some(_) if was_whole(backup) => Ok(Vec::new()),
        Some(Stage::Items | Stage::Waiting) => {
            Ok(journal_cleanup::delete_created(context, backup, recovered).await)
        }
        Some(Stage::Finalizing | Stage::Over) => {
            delete_unless_recorded(context, journal, backup, recovered, bucket).await
        }
    }
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
