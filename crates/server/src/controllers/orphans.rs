//! Journals that nobody else will open again.
//!
//! - Pods that they name as frozen are thawed first, by `controllers/thaw.rs`, which goes on beside all else.
//! - The Backup or Restore was deleted while no server ran. Nobody will ever go on with such a run. Operations
//!   are told to stop, and snapshots are deleted, also those that were in flight when the server ended, unless
//!   the bucket has the record of the backup: then it is whole, and they belong to it.
//! - The run is over, and has left something: files in the bucket that could not be deleted, or a snapshot
//!   that was given up and may have come since. They are deleted.
//!
//! Then the journal is removed. While something is left that only the journal knows of, it stays, and cleanup is
//! retried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{
    Backup, BackupPhase, BackupSpec, BackupStorageLocation, Restore, RestorePhase, label,
};
use bowline_engine::backup::request::Lookup;
use bowline_engine::journal::{Intent, Journal as _, Record, Recovered, recover};
use bowline_engine::phase::Stage;
use bowline_store::file::Snapshot;
use bowline_store::name::RunUid;
use bowline_store::{BackupName, BackupStore};
use futures::StreamExt as _;
use futures::future::join;
use kube::ResourceExt as _;

use super::backup::{clean, gone};
use super::kit;
use super::lookup::{lookup, open};
use super::thaw::Thawer;
use crate::journal::{ConfigMaps, KeptHooks, Orphan, orphans, read};
use crate::queue::Reach;
use crate::server::{Context, Error};
use crate::story::one_line;

/// How often it is looked for them.
const PERIOD: Duration = Duration::from_mins(10);
/// The pause before the first retry of what could not be cleaned up. It doubles up to the period.
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Every how many rounds it is told that a journal stays: once a day. A snapshot that was in flight is given up
/// then.
const TOLD_EVERY: u32 = 144;
/// How many things are named that are left of one run.
const MOST_TOLD: usize = 100;
/// How many journals are cleaned up at a time.
const AT_ONCE: usize = 4;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let thawer = Thawer::default();
    // First of all, and then beside what may take long.
    thawer.pass(&context).await;
    join(Box::pin(thawer.run(&context)), Box::pin(keep_clean(&context))).await;
    Ok(())
}

async fn keep_clean(context: &Context) {
    let mut stays = Stays::default();
    let mut retry = FIRST_RETRY;
    while !context.stop.is_cancelled() {
        let cleaned = clean_all(context, &mut stays).await;
        if let Err(error) = &cleaned {
            tracing::warn!("journals that nobody needs cannot be cleaned up: {error}");
        }
        let pause = if cleaned.is_ok() && stays.are_none() { PERIOD } else { retry };
        tokio::select! {
            () = context.stop.cancelled() => return,
            // What has just been left has its retries soon.
            () = context.runs.leftovers() => retry = FIRST_RETRY,
            () = tokio::time::sleep(pause) => retry = next_retry(retry),
        }
    }
}

fn next_retry(retry: Duration) -> Duration {
    retry.saturating_mul(2).min(PERIOD)
}

/// What became of the run of a journal.
enum Fate {
    /// It goes on, or will.
    Alive,
    /// Its object was deleted.
    Deleted,
    /// It is over. The Backup is its own, or the one that it restored, if that is still there.
    Over(Option<Box<Backup>>),
}

/// Why a journal stays.
enum Reason {
    /// Something did not go well.
    Failed(String),
    /// These are left, and nobody else knows of them.
    Left(Vec<String>),
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// For how many rounds each journal has stayed.
#[derive(Debug, Default)]
struct Stays {
    before: BTreeMap<RunUid, u32>,
    now: BTreeMap<RunUid, u32>,
}

impl Stays {
    /// Whether none has stayed in the round that is over.
    fn are_none(&self) -> bool {
        self.before.is_empty()
    }

    /// For how many rounds a journal has stayed.
    fn rounds(&self, run: &RunUid) -> u32 {
        self.before.get(run).copied().unwrap_or_default()
    }

    /// Notes that a journal stays. Says whether that is to be told: at first, and then once a day.
    fn note(&mut self, run: &RunUid) -> bool {
        let rounds = self.rounds(run);
        self.now.insert(run.clone(), rounds.saturating_add(1));
        rounds.is_multiple_of(TOLD_EVERY)
    }

    /// Forgets those that did not stay in the round that is over.
    fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

async fn clean_all(context: &Context, stays: &mut Stays) -> Result<(), String> {
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    // First the journals and then the runs: a run that begins in between has none among them.
    let all = orphans(client, namespace, &BTreeSet::new()).await;
    let all = all.map_err(|error| one_line(&error))?;
    let each = all.into_iter().map(|journal| {
        let rounds = stays.rounds(&journal.run);
        async move {
            let ended = Box::pin(clean_one(context, &journal, rounds)).await;
            (journal, ended)
        }
    });
    let each: Vec<_> = each.collect();
    let mut each = std::pin::pin!(futures::stream::iter(each).buffer_unordered(AT_ONCE));
    while let Some((journal, ended)) = each.next().await {
        let Orphan { kind, name, .. } = &journal;
        match ended {
            Ok(false) => {}
            Ok(true) => tracing::info!("forgot the journal of the {kind} {name}"),
            Err(reason) if stays.note(&journal.run) => tell(&journal, &reason),
            Err(_) => tracing::debug!("the journal of the {kind} {name} still stays"),
        }
    }
    stays.turn();
    Ok(())
}

/// Cleans up one. Returns whether its journal is gone.
async fn clean_one(context: &Context, journal: &Orphan, rounds: u32) -> Result<bool, Reason> {
    if context.stop.is_cancelled() {
        return Ok(false);
    }
    match fate(context, journal).await? {
        Fate::Alive => Ok(false),
        Fate::Deleted => {
            bury(context, journal, rounds).await?;
            Ok(true)
        }
        Fate::Over(backup) => {
            let backup = backup.map_or_else(Backup::default, |found| *found);
            let recovered = recall(context, journal).await?;
            let mut left = reclaim(context, journal, &backup, &recovered, rounds).await?;
            left.extend(reclaim_abandoned(context, journal, &backup, &recovered).await?);
            if !left.is_empty() {
                return Err(Reason::Left(left));
            }
            // As long as its files are there, the journal says whose they are.
            delete_scratch(context, journal, &backup).await?;
            forget(context, journal).await?;
            Ok(true)
        }
    }
}

/// Tells why a journal stays.
fn tell(journal: &Orphan, reason: &Reason) {
    let Orphan { run, kind, name, .. } = journal;
    let left = match reason {
        Reason::Failed(reason) => {
            return tracing::warn!("the journal of the {kind} {name} stays: {reason}");
        }
        Reason::Left(left) => left,
    };
    for one in left.iter().take(MOST_TOLD) {
        tracing::error!("the {kind} {name} has left over: {one}");
    }
    tracing::error!(
        left = left.len(),
        "it is tried again to take them away; once they are gone by other means, delete the ConfigMaps with the \
         label {}={run}",
        label::JOURNAL
    );
}

/// What became of the run of a journal.
async fn fate(context: &Context, journal: &Orphan) -> Result<Fate, String> {
    let Orphan { run, kind, name, .. } = journal;
    // Runs of this process end by themselves, whatever became of their objects.
    let is_held = context.runs.uids().iter().any(|uid| uid == run.as_str());
    if is_held || context.runs.has_journal_open(run.as_str()) {
        return Ok(Fate::Alive);
    }
    let told = |error: kube::Error| one_line(&error);
    let is_it = |uid: Option<String>| uid.as_deref() == Some(run.as_str());
    let backups = context.api::<Backup>();
    if kind == "Backup" {
        let found = backups.get_opt(name).await.map_err(told)?;
        return Ok(match found.filter(|backup| is_it(backup.uid())) {
            None => Fate::Deleted,
            Some(backup) => {
                let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
                let is_over = phase.is_some_and(BackupPhase::is_terminal);
                if is_over { Fate::Over(Some(Box::new(backup))) } else { Fate::Alive }
            }
        });
    }
    let found = context.api::<Restore>().get_opt(name).await.map_err(told)?;
    let Some(restore) = found.filter(|restore| is_it(restore.uid())) else {
        return Ok(Fate::Deleted);
    };
    let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
    if !phase.is_some_and(RestorePhase::is_terminal) {
        return Ok(Fate::Alive);
    }
    let backup = backups.get_opt(&restore.spec.backup_name).await.map_err(told)?;
    Ok(Fate::Over(backup.map(Box::new)))
}

/// Removes what was kept of a run that is over. Without a location there is nowhere that it could be.
async fn delete_scratch(
    context: &Context,
    journal: &Orphan,
    backup: &Backup,
) -> Result<(), String> {
    match bucket(context, &backup.spec.storage_location).await? {
        Some(store) => store.delete_scratch(&journal.run).await.map_err(|error| one_line(&error)),
        None => Ok(()),
    }
}

/// The store of a location, if there is one of that name.
async fn bucket(context: &Context, name: &str) -> Result<Option<BackupStore>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    let locations = context.api::<BackupStorageLocation>();
    let location = lookup(locations.get_opt(name).await).map_err(|error| one_line(&error))?;
    if matches!(location, Lookup::Missing) {
        return Ok(None);
    }
    Ok(Some(open(context, &location).await.map_err(|error| one_line(&error))?))
}

/// What the bucket has under the name of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// Its record: it is whole, and its snapshots belong to it.
    Ours,
    /// The record of another backup.
    Other,
    /// No record.
    Nothing,
}

fn whose(record: Option<&Backup>, run: &RunUid) -> Recorded {
    match record {
        None => Recorded::Nothing,
        Some(record) if record.uid().as_deref() == Some(run.as_str()) => Recorded::Ours,
        Some(_) => Recorded::Other,
    }
}

/// Takes away what a run has left whose object was deleted while no server ran, and then its journal.
async fn bury(context: &Context, orphan: &Orphan, rounds: u32) -> Result<(), Reason> {
    let Orphan { run, kind, name, location } = orphan;
    let recovered = recall(context, orphan).await?;
    let backup = stand_in(context, orphan);
    let store = bucket(context, location.as_deref().unwrap_or_default()).await?;
    if kind == "Backup" {
        let mut left = take_away(context, &backup, &recovered, store.as_ref()).await?;
        left.extend(reclaim(context, orphan, &backup, &recovered, rounds).await?);
        if context.stop.is_cancelled() {
            return Err(Reason::Failed("the server ends".to_owned()));
        }
        if !left.is_empty() {
            return Err(Reason::Left(left));
        }
    }
    if let Some(store) = &store {
        store.delete_scratch(run).await.map_err(|error| one_line(&error))?;
    } else {
        tracing::warn!("files of the {kind} {name} may be left: its storage location is not known");
    }
    Ok(forget(context, orphan).await?)
}

/// Deletes snapshots that were in flight when nobody waited for them any more. Returns those that are left. One
/// that its plugin does not find for a day is told, and not asked for again.
async fn reclaim(
    context: &Context,
    orphan: &Orphan,
    backup: &Backup,
    recovered: &Recovered,
    rounds: u32,
) -> Result<Vec<String>, String> {
    let mut left = Vec::new();
    let mut settled = Vec::new();
    if recovered.in_flight.is_empty() {
        return Ok(left);
    }
    let recorded = recorded(context, backup).await?;
    for intent in &recovered.in_flight {
        match gone::reclaim(context, backup, intent, &recorded).await {
            Ok(()) => settled.push(intent),
            Err(reason) if rounds >= TOLD_EVERY => {
                gone::tell_unclear(intent, &reason);
                settled.push(intent);
            }
            Err(reason) => left.push(format!("{}: {reason}", gone::named_in_flight(intent))),
        }
    }
    if !settled.is_empty() {
        note_reclaimed(context, orphan, &settled).await?;
    }
    Ok(left)
}

/// The snapshots that the files of a backup name. Without its bucket nobody knows them, and nothing is deleted.
async fn recorded(context: &Context, backup: &Backup) -> Result<Vec<Snapshot>, String> {
    let store = bucket(context, &backup.spec.storage_location).await?;
    let store =
        store.ok_or("its storage location is gone, so that nobody knows which snapshots it has")?;
    let name = BackupName::new(backup.name_any()).map_err(|error| one_line(&error))?;
    let found = store.get::<Vec<Snapshot>>(&name).await.map_err(|error| one_line(&error))?;
    Ok(found.unwrap_or_default())
}

/// Notes that nobody has to ask for snapshots again.
async fn note_reclaimed(
    context: &Context,
    orphan: &Orphan,
    settled: &[&Intent],
) -> Result<(), String> {
    let claim = context.runs.await_journal(orphan.run.as_str()).await;
    let _claim = claim.ok_or_else(|| "a run has opened the journal meanwhile".to_owned())?;
    let (journal, _) = take_over(context, orphan).await?;
    for wanted in settled.iter().filter_map(|intent| intent.snapshot.as_ref()) {
        let record = Record::Reclaimed { request: wanted.request.clone() };
        journal.append(&record).await.map_err(|error| one_line(&error))?;
    }
    Ok(())
}

/// Takes away what a backup has made, and its files. Returns what is left that nobody else knows of.
async fn take_away(
    context: &Context,
    backup: &Backup,
    recovered: &Recovered,
    store: Option<&BackupStore>,
) -> Result<Vec<String>, String> {
    // Whoever has the bucket may have the whole backup.
    let Some(store) = store else { return Ok(gone::made(recovered)) };
    let name = BackupName::new(backup.name_any()).map_err(|error| one_line(&error))?;
    let run = RunUid::new(backup.uid().unwrap_or_default()).map_err(|error| one_line(&error))?;
    let record = store.backup(&name).await.map_err(|error| one_line(&error))?;
    let recorded = whose(record.as_ref(), &run);
    if recorded == Recorded::Ours {
        return Ok(Vec::new());
    }
    let left = gone::take_away(context, backup, recovered).await;
    if left.is_empty() && recorded == Recorded::Nothing {
        // No backup begins meanwhile, which could be one of that name and write to the same folder.
        let _held = context.runs.hold(backup, Some(Reach::All));
        let namesake = context.api::<Backup>().get_opt(name.as_str()).await;
        if namesake.map_err(|error| one_line(&error))?.is_none() {
            clean::clean(store, &name).await;
        }
    }
    Ok(left)
}

/// What is known of a Backup that is gone.
fn stand_in(context: &Context, orphan: &Orphan) -> Backup {
    let mut backup = Backup::new(&orphan.name, BackupSpec::default());
    backup.metadata.namespace = Some(context.options.namespace.clone());
    backup.metadata.uid = Some(orphan.run.as_str().to_owned());
    backup.spec.storage_location = orphan.location.clone().unwrap_or_default();
    backup
}

/// What a journal says. Nobody is kept from opening it.
async fn recall(context: &Context, orphan: &Orphan) -> Result<Recovered, String> {
    let records = read(context.client.clone(), &context.options.namespace, orphan).await;
    Ok(recover(records.map_err(|error| one_line(&error))?))
}

async fn take_over(context: &Context, orphan: &Orphan) -> Result<(ConfigMaps, Recovered), String> {
    let Orphan { run, kind, name, .. } = orphan;
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    let opened = ConfigMaps::open(client, namespace, run, kind, name).await;
    let (journal, records) = opened.map_err(|error| one_line(&error))?;
    Ok((journal, recover(records)))
}

/// Takes away what a backup has made that ended without its bucket. Returns what is left.
async fn reclaim_abandoned(
    context: &Context,
    orphan: &Orphan,
    backup: &Backup,
    recovered: &Recovered,
) -> Result<Vec<String>, String> {
    match recovered.abandoned {
        Some(stage) if orphan.kind == "Backup" && stage >= Stage::Finalizing => {
            let store = bucket(context, &backup.spec.storage_location).await?;
            take_away(context, backup, recovered, store.as_ref()).await
        }
        Some(_) if orphan.kind == "Backup" => Ok(gone::take_away(context, backup, recovered).await),
        _ => Ok(Vec::new()),
    }
}

/// Removes a journal, unless pods may be frozen still.
async fn forget(context: &Context, orphan: &Orphan) -> Result<(), String> {
    let run = &orphan.run;
    let claim = context.runs.await_journal(run.as_str()).await;
    let _claim = claim.ok_or_else(|| "a run has opened the journal meanwhile".to_owned())?;
    let (journal, mut recovered) = take_over(context, orphan).await?;
    context.runs.unwritten_thaws.apply(run.as_str(), &mut recovered.frozen);
    if !recovered.frozen.is_empty() {
        return Err("pods may be frozen still".to_owned());
    }
    let hooks = KeptHooks::new(context.client.clone(), &context.options.namespace, run);
    let removed = kit::remove(context, &journal, run, Some(hooks)).await;
    if removed.map_err(|error| one_line(&error))? {
        Ok(())
    } else {
        Err("the hooks beside it cannot be removed".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_has_its_record_keeps_its_snapshots() {
        let run = RunUid::new("0a-1b").unwrap();
        let record = |uid: Option<&str>| {
            let mut record = Backup::new("b", BackupSpec::default());
            record.metadata.uid = uid.map(str::to_owned);
            record
        };
        assert_eq!(whose(None, &run), Recorded::Nothing);
        assert_eq!(whose(Some(&record(Some("0a-1b"))), &run), Recorded::Ours);
        assert_eq!(whose(Some(&record(Some("0a-1c"))), &run), Recorded::Other);
        assert_eq!(whose(Some(&record(None)), &run), Recorded::Other);
    }

    #[test]
    fn what_could_not_be_cleaned_up_is_tried_again_soon_and_then_less_often() {
        let retries = std::iter::successors(Some(FIRST_RETRY), |&retry| Some(next_retry(retry)));
        let seconds: Vec<u64> = retries.take(8).map(|retry| retry.as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600]);
        let (mut stays, run) = (Stays::default(), RunUid::new("0a-1b").unwrap());
        stays.note(&run);
        stays.turn();
        assert!(!stays.are_none());
        stays.turn();
        assert!(stays.are_none());
    }

    #[test]
    fn that_a_journal_stays_is_told_once_a_day() {
        let (mut stays, run) = (Stays::default(), RunUid::new("0a-1b").unwrap());
        let mut round = |is_there: bool| {
            let is_told = is_there && stays.note(&run);
            stays.turn();
            is_told
        };
        let told = (0..300).filter(|_| round(true)).count();
        assert_eq!(told, 3, "in round 0, 144 and 288");
        assert!(!round(true));
        round(false);
        assert!(round(true), "another time is news");
    }
}
