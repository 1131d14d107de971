//! Thaws pods that backups have left frozen, whatever happened to the backups.
//!
//! Input: all journals in the namespace. A pod stays in the journal until a post-hook has reached it. Passes need only
//! the API server, and do not wait for cleanup: no bucket, no plugin, no other journal.
//!
//! | run | handling of its journal |
//! |---|---|
//! | active in this process, whatever it waits for | open here; pods of item blocks in progress are left to those |
//! | to be resumed, but not active at the moment | held during the pass, so that no run opens it meanwhile |
//! | ended, or its Backup was deleted | the same; the hooks of the Backup are kept beside it |
//! | any of these, damaged | read as far as possible; thawed pods are remembered; pages are marked when none is left |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_api::backup::BackupHooks;
use bowline_engine::backup::{ThawContext, ThawOutcome, ThawRetry, thaw_leftover_pods};
use bowline_engine::cluster::ApiServer;
use bowline_engine::journal::{self, FrozenByBlock, FrozenPods, Journal, JournalEntry};
use bowline_engine::report::Report;
use bowline_store::name::RunUid;
use bowline_store::sabotage::{self, Sabotage};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::run_resources;
use crate::error_text::status_message;
use crate::journal::{
    ConfigMapJournal, Error, JournalId, ListedJournal, SavedHooks, SavedHooksError, list_journals,
    mark_thawed,
};
use crate::server::{self, Context};

/// Pause between two passes.
const PASS_PERIOD: Duration = Duration::from_secs(30);
const CONCURRENT_JOURNALS: usize = 16;
/// Number of passes between two log messages that a pod may still be frozen: once a day.
const LOG_EVERY_PASSES: u32 = 2880;

/// State of journals from one pass to the next.
#[derive(Debug, Default)]
struct Thawer(Mutex<BTreeMap<RunUid, JournalThawState>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct JournalThawState {
    /// Fingerprint of the journal when it named no frozen pod.
    thawed_at: Option<u64>,
    /// Number of passes in which the journal named frozen pods.
    passes: u32,
}

/// Outcome of a pass for one journal.
enum PassOutcome {
    /// The journal names no frozen pod.
    Thawed,
    /// The journal still names frozen pods after an attempt to thaw them.
    StillFrozen(String),
    /// Another task holds the journal.
    Busy,
}

/// Thaws pods until the server stops. Reports the end of the first pass: cleanup waits for it, since it may take long.
pub async fn run(
    context: Arc<Context>,
    first_pass: oneshot::Sender<()>,
) -> Result<(), server::Error> {
    let thawer = Thawer::default();
    Box::pin(thawer.pass(&context)).await;
    // No task waits if the server is stopping.
    let _ = first_pass.send(());
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PASS_PERIOD) => {}
        }
        Box::pin(thawer.pass(&context)).await;
    }
}

impl Thawer {
    /// One pass over all journals.
    async fn pass(&self, context: &Context) {
        if sabotage::is_active(Sabotage::ThawForgotten) {
            return;
        }
        let (client, namespace) = (context.client.clone(), &context.options.namespace);
        let all = match list_journals(client, namespace).await {
            Ok(all) => all,
            Err(error) => {
                let error = status_message(&error);
                return tracing::warn!("cannot search for pods that may be frozen: {error}");
            }
        };
        // Restores freeze no pods.
        let backups: Vec<ListedJournal> =
            all.into_iter().filter(|one| one.id.kind == "Backup").collect();
        self.retain_listed(&backups);
        let each = backups.into_iter().map(|listed| self.thaw_listed(context, listed));
        let mut each =
            std::pin::pin!(futures::stream::iter(each).buffer_unordered(CONCURRENT_JOURNALS));
        while each.next().await.is_some() {
            if context.stop.is_cancelled() {
                return;
            }
        }
    }

    async fn thaw_listed(&self, context: &Context, listed: ListedJournal) {
        let ListedJournal { id, fingerprint, .. } = listed;
        if self.is_known_thawed(&id.run, fingerprint) {
            return;
        }
        match Box::pin(thaw_journal(context, &id)).await {
            Ok(PassOutcome::Busy) => {}
            Ok(PassOutcome::Thawed) => {
                if self.record_thawed(&id.run, fingerprint) {
                    tracing::info!("pods of backup {} are thawed", id.name);
                    context.runs.notify_leftovers();
                }
            }
            Ok(PassOutcome::StillFrozen(reason)) => self.report_still_frozen(&id, &reason),
            Err(error) => self.report_still_frozen(&id, &status_message(&error)),
        }
    }

    /// Logs that pods of a journal may be frozen, if that is due.
    fn report_still_frozen(&self, id: &JournalId, reason: &str) {
        if self.record_still_frozen(&id.run) {
            tracing::error!("pods of backup {} may still be frozen: {reason}", id.name);
        }
    }

    fn is_known_thawed(&self, run: &RunUid, fingerprint: u64) -> bool {
        self.0.lock().get(run).is_some_and(|known| known.thawed_at == Some(fingerprint))
    }

    /// Records that a journal names no frozen pod. Returns true if it named some before.
    fn record_thawed(&self, run: &RunUid, fingerprint: u64) -> bool {
        let known = JournalThawState { thawed_at: Some(fingerprint), passes: 0 };
        let before = self.0.lock().insert(run.clone(), known);
        before.is_some_and(|before| before.passes > 0)
    }

    /// Records that a journal names frozen pods. Returns true if that is to be logged: the first time, and then once a
    /// day.
    fn record_still_frozen(&self, run: &RunUid) -> bool {
        let mut all = self.0.lock();
        let known = all.entry(run.clone()).or_default();
        let passes = known.passes;
        *known = JournalThawState { thawed_at: None, passes: passes.saturating_add(1) };
        passes.is_multiple_of(LOG_EVERY_PASSES)
    }

    fn retain_listed(&self, listed: &[ListedJournal]) {
        let mut all = self.0.lock();
        let mut before = std::mem::take(&mut *all);
        for ListedJournal { id, .. } in listed {
            if let Some((run, known)) = before.remove_entry(&id.run) {
                all.insert(run, known);
            }
        }
    }
}

async fn thaw_journal(context: &Context, id: &JournalId) -> Result<PassOutcome, Error> {
    let run = id.run.as_str();
    if let Some(journal) = context.runs.journal_of(run) {
        let Some(lock) = journal.try_lock_frozen() else { return Ok(PassOutcome::Busy) };
        let unwritten = &context.runs.unwritten_thaws;
        // Pods are thawed even if an earlier thaw cannot be journaled yet.
        if let Err(error) = unwritten.write(run, &*journal).await {
            tracing::debug!("pods were thawed, but the journal does not record it yet: {error}");
        }
        if lock.frozen().is_empty() {
            // Item blocks in progress may have frozen other pods, so the result is not final.
            return Ok(PassOutcome::Busy);
        }
        let hooks = hooks_of(context, id).await;
        let retry = ThawRetry::Never;
        let outcome = thaw_frozen(context, id, &hooks, &*journal, lock.frozen(), retry).await;
        return Ok(pass_outcome(&outcome));
    }
    let Some(_lock) = context.runs.lock_journal(run) else { return Ok(PassOutcome::Busy) };
    thaw_unopened(context, id, ThawRetry::Never).await
}

/// Thaws the pods that can be read from a damaged journal that no other task holds.
pub(super) async fn thaw_damaged(context: &Context, id: &JournalId, retry: ThawRetry<'_>) {
    if id.kind != "Backup" {
        return;
    }
    let reason = match thaw_unopened(context, id, retry).await {
        Ok(PassOutcome::Thawed | PassOutcome::Busy) => return,
        Ok(PassOutcome::StillFrozen(reason)) => reason,
        Err(error) => status_message(&error),
    };
    tracing::error!("pods of backup {} may still be frozen: {reason}", id.name);
}

async fn thaw_unopened(
    context: &Context,
    id: &JournalId,
    retry: ThawRetry<'_>,
) -> Result<PassOutcome, Error> {
    let (client, namespace) = (&context.client, &context.options.namespace);
    let salvaged = crate::journal::salvage(client.clone(), namespace, id).await?;
    let frozen = FrozenPods::recover(&salvaged.records).all();
    if frozen.is_empty() {
        return Ok(PassOutcome::Thawed);
    }
    let JournalId { run, kind, name } = id;
    let hooks = hooks_of(context, id).await;
    match ConfigMapJournal::open(client.clone(), namespace, run, kind, name).await {
        Ok((journal, records)) => {
            // Read again: the task that had the journal open before may have written more.
            let frozen = FrozenPods::recover(&records).all();
            Ok(pass_outcome(&thaw_frozen(context, id, &hooks, &journal, &frozen, retry).await))
        }
        // Pods are thawed even if the journal cannot be written.
        Err(error) => {
            let is_damaged = run_resources::is_damaged(&error);
            if is_damaged && salvaged.is_thawed {
                return Ok(PassOutcome::Thawed);
            }
            let unwritable = UnwritableJournal(status_message(&error));
            let outcome = thaw_frozen(context, id, &hooks, &unwritable, &frozen, retry).await;
            if is_damaged && outcome.frozen.is_empty() {
                mark_thawed(client.clone(), namespace, id).await?;
            }
            Ok(pass_outcome(&outcome))
        }
    }
}

async fn thaw_frozen(
    context: &Context,
    id: &JournalId,
    hooks: &Result<BackupHooks, HooksUnknown>,
    journal: &dyn Journal,
    frozen: &FrozenByBlock,
    retry: ThawRetry<'_>,
) -> ThawOutcome {
    let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
    let (report, unwritten) = (Report::default(), &context.runs.unwritten_thaws);
    let run = id.run.as_str();
    let reason = hooks.as_ref().err().map(|error| status_message(error));
    let hooks = hooks.as_ref().map_err(|_| reason.as_deref().unwrap_or_default());
    let thawing =
        ThawContext { cluster: &cluster, run, hooks, journal, unwritten, report: &report };
    let outcome = thaw_leftover_pods(thawing, frozen, retry).await;
    let (errors, warnings) = report.messages();
    for message in errors.iter().chain(&warnings) {
        let item = message.item.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(item, "{}", message.text);
    }
    outcome
}

fn pass_outcome(outcome: &ThawOutcome) -> PassOutcome {
    if outcome.frozen.is_empty() {
        return PassOutcome::Thawed;
    }
    let error = outcome.error.as_ref().map(|error| status_message(error));
    PassOutcome::StillFrozen(
        error.unwrap_or_else(|| "post-hooks did not reach the pods".to_owned()),
    )
}

/// Reason why the hooks of a backup are not known.
#[derive(Debug, thiserror::Error)]
enum HooksUnknown {
    #[error("the Backup cannot be read")]
    ReadBackup(#[source] kube::Error),
    #[error("the Backup was deleted, and its hooks cannot be read")]
    ReadSaved(#[source] SavedHooksError),
    #[error(
        "the Backup was deleted and its hooks were not saved; thaw the pod manually, or restart it"
    )]
    NotSaved,
}

/// Hooks of a backup: those of its Backup, or the saved ones if that is gone. The absence of saved hooks does not mean
/// that there were none.
async fn hooks_of(context: &Context, id: &JournalId) -> Result<BackupHooks, HooksUnknown> {
    let found = context.api::<Backup>().get_opt(&id.name).await;
    let found = found.map_err(HooksUnknown::ReadBackup)?;
    let own = found.filter(|backup| backup.uid().as_deref() == Some(id.run.as_str()));
    if let Some(backup) = own {
        return Ok(backup.spec.hooks);
    }
    let saved = SavedHooks::new(context.client.clone(), &context.options.namespace, &id.run);
    saved.read().await.map_err(HooksUnknown::ReadSaved)?.ok_or(HooksUnknown::NotSaved)
}

/// Journal that accepts no entries.
struct UnwritableJournal(String);

#[async_trait]
impl Journal for UnwritableJournal {
    async fn append(&self, _: &JournalEntry) -> Result<(), journal::Error> {
        Err(journal::Error::Failed(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_without_frozen_pods_is_reread_when_it_changes() {
        let (thawer, run) = (Thawer::default(), RunUid::new("0a-1b").unwrap());
        assert!(!thawer.is_known_thawed(&run, 1));
        assert!(!thawer.record_thawed(&run, 1), "it is no news");
        assert!(thawer.is_known_thawed(&run, 1) && !thawer.is_known_thawed(&run, 2));
        assert!(
            thawer.record_still_frozen(&run) && !thawer.record_still_frozen(&run),
            "a pod that may be frozen is logged once"
        );
        assert!(!thawer.is_known_thawed(&run, 1));
        assert!(thawer.record_thawed(&run, 3), "it is news");
        thawer.retain_listed(&[]);
        assert!(!thawer.is_known_thawed(&run, 3));
    }
}
