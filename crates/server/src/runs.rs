//! Backups and restores that this process runs, whatever the cluster says about them.
//!
//! A Backup can be deleted while it runs. Its run ends soon after, but not at once: until then an
//! application may be frozen by its hooks, and no other backup may include that namespace.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use bowline_engine::backup::UnwrittenThaws;
use bowline_engine::phase::Stage;
use futures::{Stream, stream};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::journal::ConfigMapJournal;
use crate::queue::NamespaceScope;

/// Runs of this process.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns {
    active: Mutex<Vec<Run>>,
    /// Journals that this process uses.
    journals: watch::Sender<Journals>,
    /// Time since which runs wait for their buckets, by uid.
    waiting_for_bucket: Mutex<HashMap<String, Timestamp>>,
    /// Stages after item collection at which this process has resumed runs, by uid.
    attempts: Mutex<HashMap<String, StageAttempt>>,
    run_ended: Notify,
    /// Notified when a run has leftovers to clean up.
    leftovers: Notify,
    /// Pods that were thawed although their journals do not say so.
    pub(crate) unwritten_thaws: UnwrittenThaws,
}

#[derive(Debug, Default)]
struct Journals {
    /// Journals of runs, at any stage.
    open: Vec<OpenJournalEntry>,
    /// Uids of runs whose journals are locked by another task, to thaw or to clean up.
    locked: BTreeSet<String>,
}

#[derive(Debug)]
struct OpenJournalEntry {
    uid: String,
    journal: Weak<ConfigMapJournal>,
}

/// Exclusive lock on the journal of a run that is not open. Until the lock is dropped, the
/// journal cannot be opened.
#[derive(Debug)]
pub(crate) struct JournalLock {
    runs: Arc<ActiveRuns>,
    uid: String,
}

#[derive(Clone, Debug)]
struct Run {
    uid: String,
    name: String,
    /// Namespaces of a backup; `None` for a restore.
    scope: Option<NamespaceScope>,
}

/// Attempt of this process at a stage after item collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StageAttempt {
    stage: Stage,
    /// True if the attempt has ended cleanly.
    ended_cleanly: bool,
}

/// Registration of a run, until dropped.
#[derive(Debug)]
pub(crate) struct RunGuard {
    runs: Arc<ActiveRuns>,
    uid: String,
}

/// Registration of an open journal, until dropped.
#[derive(Debug)]
pub(crate) struct OpenJournal {
    runs: Arc<ActiveRuns>,
    uid: String,
}

impl ActiveRuns {
    /// Registers that the journal of a run is about to be opened here. Waits until no other task
    /// has locked it.
    pub(crate) async fn open_journal(self: &Arc<Self>, uid: &str) -> OpenJournal {
        self.journals.send_modify(|journals| {
            journals.open.push(OpenJournalEntry { uid: uid.to_owned(), journal: Weak::new() });
        });
        let open = OpenJournal { runs: Arc::clone(self), uid: uid.to_owned() };
        let is_free = |journals: &Journals| !journals.locked.contains(uid);
        // The sender is ours, so it cannot be dropped.
        let _ = self.journals.subscribe().wait_for(is_free).await;
        open
    }

    /// True if the journal of a run is open here.
    pub(crate) fn has_journal_open(&self, uid: &str) -> bool {
        self.journals.borrow().open.iter().any(|open| open.uid == uid)
    }

    /// Journal of a run, if it is open here.
    pub(crate) fn journal_of(&self, uid: &str) -> Option<Arc<ConfigMapJournal>> {
        let journals = self.journals.borrow();
        let mut of_run = journals.open.iter().filter(|open| open.uid == uid);
        of_run.find_map(|open| open.journal.upgrade())
    }

    /// Claims the journal of a run. `None` if it is open or locked.
    pub(crate) fn lock_journal(self: &Arc<Self>, uid: &str) -> Option<JournalLock> {
        let is_locked = self.journals.send_if_modified(|journals| {
            let is_open = journals.open.iter().any(|open| open.uid == uid);
            !is_open && journals.locked.insert(uid.to_owned())
        });
        is_locked.then(|| JournalLock { runs: Arc::clone(self), uid: uid.to_owned() })
    }

    /// Like [`lock_journal`](Self::lock_journal), but waits for other claims to end.
    pub(crate) async fn lock_journal_when_free(self: &Arc<Self>, uid: &str) -> Option<JournalLock> {
        let mut changes = self.journals.subscribe();
        loop {
            if let Some(lock) = self.lock_journal(uid) {
                return Some(lock);
            }
            if self.has_journal_open(uid) {
                return None;
            }
            // The sender is ours, so it cannot be dropped.
            let _ = changes.wait_for(|journals| !journals.locked.contains(uid)).await;
        }
    }

    /// Wakes the cleanup task.
    pub(crate) fn notify_leftovers(&self) {
        self.leftovers.notify_one();
    }

    /// Waits for leftovers to clean up.
    pub(crate) async fn wait_for_leftovers(&self) {
        self.leftovers.notified().await;
    }

    /// Registers a run; a backup with its namespaces.
    pub(crate) fn register<K>(
        self: &Arc<Self>,
        object: &K,
        scope: Option<NamespaceScope>,
    ) -> RunGuard
    where
        K: Resource<DynamicType = ()>,
    {
        let uid = object.uid().unwrap_or_default();
        let name = format!("{} {}", K::kind(&()), object.name_any());
        self.active.lock().push(Run { uid: uid.clone(), name, scope });
        RunGuard { runs: Arc::clone(self), uid }
    }

    /// Like [`register`](Self::register) for a backup, unless the limit of concurrent backups is
    /// reached or a backup of the same namespaces runs.
    pub(crate) fn try_register<K>(
        self: &Arc<Self>,
        object: &K,
        scope: &NamespaceScope,
        limit: usize,
    ) -> Option<RunGuard>
    where
        K: Resource<DynamicType = ()>,
    {
        let mut active = self.active.lock();
        let uid = object.uid().unwrap_or_default();
        let mut others = active.iter().filter_map(|run| run.scope.as_ref());
        if others.clone().count() >= limit || others.any(|other| other.overlaps(scope)) {
            return None;
        }
        let name = format!("{} {}", K::kind(&()), object.name_any());
        active.push(Run { uid: uid.clone(), name, scope: Some(scope.clone()) });
        Some(RunGuard { runs: Arc::clone(self), uid })
    }

    /// Records since when a run waits for its bucket.
    pub(crate) fn mark_waiting_for_bucket(&self, uid: &str, since: Timestamp) {
        if self.waiting_for_bucket.lock().insert(uid.to_owned(), since).is_none() {
            // Other runs need not wait for this one any more.
            self.run_ended.notify_one();
            // Cleanup begins to check whether the objects of waiting runs still exist.
            self.leftovers.notify_one();
        }
    }

    /// True if any run waits for its bucket.
    pub(crate) fn any_waits_for_bucket(&self) -> bool {
        !self.waiting_for_bucket.lock().is_empty()
    }

    /// Time since which a run waits for its bucket, if it does.
    pub(crate) fn bucket_lost_since(&self, uid: &str) -> Option<Timestamp> {
        self.waiting_for_bucket.lock().get(uid).copied()
    }

    /// Uids of the runs that wait for their buckets.
    pub(crate) fn waiting_for_bucket(&self) -> HashSet<String> {
        self.waiting_for_bucket.lock().keys().cloned().collect()
    }

    /// Records that a run does not wait for its bucket any more.
    pub(crate) fn clear_waiting_for_bucket(&self, uid: &str) {
        self.waiting_for_bucket.lock().remove(uid);
    }

    /// Records an attempt at a stage after item collection. Returns true if it is the first of this
    /// process.
    pub(crate) fn record_stage_attempt(&self, uid: &str, stage: Stage) -> bool {
        let attempt = StageAttempt { stage, ended_cleanly: false };
        let before = self.attempts.lock().get(uid).copied();
        if before.is_some_and(|before| before.stage == stage) {
            return false;
        }
        self.attempts.lock().insert(uid.to_owned(), attempt);
        true
    }

    /// Records that such an attempt has ended cleanly. Returns true if that was not recorded
    /// before.
    pub(crate) fn end_stage_attempt_cleanly(&self, uid: &str, stage: Stage) -> bool {
        match self.attempts.lock().get_mut(uid) {
            Some(attempt) if attempt.stage == stage && !attempt.ended_cleanly => {
                attempt.ended_cleanly = true;
                true
            }
            _ => false,
        }
    }

    /// Removes a run that has ended.
    pub(crate) fn remove(&self, uid: &str) {
        self.clear_waiting_for_bucket(uid);
        self.attempts.lock().remove(uid);
    }

    /// Uids of the running backups, with their namespaces.
    pub(crate) fn backup_scopes(&self) -> Vec<(String, NamespaceScope)> {
        let uid_and_scope = |run: &Run| Some((run.uid.clone(), run.scope.clone()?));
        self.active.lock().iter().filter_map(uid_and_scope).collect()
    }

    /// Uids of all runs.
    pub(crate) fn uids(&self) -> Vec<String> {
        self.active.lock().iter().map(|run| run.uid.clone()).collect()
    }

    /// Names of all runs, for the log.
    pub(crate) fn names(&self) -> Vec<String> {
        self.active.lock().iter().map(|run| run.name.clone()).collect()
    }

    /// Yields after runs have ended.
    pub(crate) fn end_notifications(self: &Arc<Self>) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(Arc::clone(self), async |runs| {
            runs.run_ended.notified().await;
            Some(((), runs))
        })
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.runs.active.lock().retain(|run| run.uid != self.uid);
        self.runs.run_ended.notify_one();
    }
}

impl OpenJournal {
    /// Sets the journal, so that the pods in it can be thawed.
    pub(crate) fn set(&self, journal: &Arc<ConfigMapJournal>) {
        self.runs.journals.send_modify(|journals| {
            let mut of_run = journals.open.iter_mut().filter(|open| open.uid == self.uid);
            if let Some(open) = of_run.find(|open| open.journal.strong_count() == 0) {
                open.journal = Arc::downgrade(journal);
            }
        });
    }
}

impl Drop for OpenJournal {
    fn drop(&mut self) {
        self.runs.journals.send_modify(|journals| {
            // Only one of them: another task may have opened the same journal since. One that was
            // dropped goes first.
            let of_run = journals.open.iter().enumerate().filter(|(_, open)| open.uid == self.uid);
            let index = of_run.min_by_key(|(_, open)| open.journal.strong_count());
            if let Some((index, _)) = index {
                journals.open.swap_remove(index);
            }
        });
    }
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        self.runs.journals.send_modify(|journals| {
            journals.locked.remove(&self.uid);
        });
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::{Backup, Restore};
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    #[test]
    fn run_is_active_until_its_guard_is_dropped() {
        let runs = Arc::new(ActiveRuns::default());
        let mut ends = std::pin::pin!(runs.end_notifications());
        let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
        backup.metadata.uid = Some("1".to_owned());
        let mut restore = Restore::new("r", bowline_api::RestoreSpec::default());
        restore.metadata.uid = Some("2".to_owned());
        let guard = runs.register(&backup, Some(NamespaceScope::All));
        let other = runs.register(&restore, None);
        assert_eq!(runs.names(), ["Backup b", "Restore r"]);
        assert_eq!(runs.backup_scopes(), [("1".to_owned(), NamespaceScope::All)]);
        assert_eq!(ends.next().now_or_never(), None);
        drop(guard);
        assert_eq!(ends.next().now_or_never(), Some(Some(())));
        assert_eq!(runs.names(), ["Restore r"]);
        drop(other);
        assert!(runs.names().is_empty());
    }

    #[test]
    fn overlapping_backups_and_backups_over_the_limit_are_not_registered() {
        let runs = Arc::new(ActiveRuns::default());
        let backup = |uid: &str| {
            let mut backup = Backup::new(uid, bowline_api::BackupSpec::default());
            backup.metadata.uid = Some(uid.to_owned());
            backup
        };
        let only = |name: &str| NamespaceScope::Only([name.to_owned()].into());
        let hold = |uid: &str, reach: &NamespaceScope| runs.try_register(&backup(uid), reach, 2);
        let first = hold("1", &only("a"));
        assert!(first.is_some());
        assert!(hold("2", &only("a")).is_none() && hold("2", &NamespaceScope::All).is_none());
        let second = hold("2", &only("b"));
        assert!(second.is_some());
        assert!(hold("3", &only("c")).is_none(), "two run");
        drop(first);
        assert!(hold("3", &only("a")).is_some());
    }

    #[test]
    fn stage_attempt_is_recorded_and_ended_once_per_process() {
        let runs = ActiveRuns::default();
        assert!(!runs.end_stage_attempt_cleanly("1", Stage::Waiting), "none was begun");
        assert!(runs.record_stage_attempt("1", Stage::Waiting));
        assert!(!runs.record_stage_attempt("1", Stage::Waiting));
        assert!(runs.end_stage_attempt_cleanly("1", Stage::Waiting));
        assert!(!runs.end_stage_attempt_cleanly("1", Stage::Waiting));
        assert!(!runs.record_stage_attempt("1", Stage::Waiting), "it only asks its bucket again");
        assert!(runs.record_stage_attempt("1", Stage::Finalizing));
        runs.remove("1");
        assert!(runs.record_stage_attempt("1", Stage::Finalizing));
    }

    #[test]
    fn run_waiting_for_its_bucket_wakes_the_queue() {
        let runs = Arc::new(ActiveRuns::default());
        let mut ends = std::pin::pin!(runs.end_notifications());
        let at = |second| Timestamp::from_second(second).unwrap();
        runs.mark_waiting_for_bucket("1", at(1));
        assert_eq!(ends.next().now_or_never(), Some(Some(())));
        runs.mark_waiting_for_bucket("1", at(1));
        assert_eq!(ends.next().now_or_never(), None);
        assert_eq!(runs.bucket_lost_since("1"), Some(at(1)));
        assert_eq!(runs.waiting_for_bucket(), HashSet::from(["1".to_owned()]));
        runs.clear_waiting_for_bucket("1");
        assert!(runs.waiting_for_bucket().is_empty());
    }

    #[tokio::test]
    async fn claimed_journal_is_opened_after_the_claim_is_dropped() {
        let runs = Arc::new(ActiveRuns::default());
        let lock = runs.lock_journal("1").unwrap();
        assert!(runs.lock_journal("1").is_none(), "one at a time");
        let mut opening = Box::pin(runs.open_journal("1"));
        assert!(opening.as_mut().now_or_never().is_none());
        let other = runs.open_journal("2").await;
        assert!(runs.lock_journal_when_free("2").await.is_none(), "a run has it open");
        drop(lock);
        let open = opening.await;
        assert!(runs.lock_journal("1").is_none(), "a run has it open");
        drop((open, other));
        assert!(runs.lock_journal("1").is_some());
    }

    #[tokio::test]
    async fn journal_stays_open_until_its_last_opener_is_dropped() {
        let runs = Arc::new(ActiveRuns::default());
        let (one, two) = (runs.open_journal("1").await, runs.open_journal("1").await);
        drop(one);
        assert!(runs.has_journal_open("1") && !runs.has_journal_open("2"));
        drop(two);
        assert!(!runs.has_journal_open("1"));
    }
}
