//! The backups and restores that this process runs, whatever the cluster says of them.
//!
//! A Backup can be deleted while it runs. Its run ends soon after, but not at once: an application
//! may be frozen by its hooks until then, and no other backup may reach into that namespace.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bowline_engine::backup::UnwrittenThaws;
use bowline_engine::phase::Stage;
use futures::{Stream, stream};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use tokio::sync::{Notify, watch};

use crate::journal::ConfigMaps;
use crate::queue::Reach;

/// The runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    held: Mutex<Vec<Run>>,
    /// Whose journals this process works with.
    journals: watch::Sender<Journals>,
    /// Since when runs wait for their buckets, by uid.
    waiting: Mutex<HashMap<String, Timestamp>>,
    /// The stages behind the items that this process has resumed runs at, by uid.
    attempts: Mutex<HashMap<String, StageAttempt>>,
    ended: Notify,
    /// Told when a run has left something for whoever cleans up.
    leftovers: Notify,
    /// Which pods were thawed though their journals do not say so.
    pub(crate) unwritten_thaws: UnwrittenThaws,
}

#[derive(Debug, Default)]
struct Journals {
    /// Those of runs, at whatever stage they are.
    open: Vec<Open>,
    /// The uids of runs whose journals somebody else has in hand, to thaw or to clean up.
    claimed: BTreeSet<String>,
}

#[derive(Debug)]
struct Open {
    uid: String,
    journal: Weak<ConfigMaps>,
}

/// The journal of a run that nobody has open, for as long as it is not dropped: nobody opens it meanwhile.
#[derive(Debug)]
pub(crate) struct JournalClaim {
    runs: Arc<Runs>,
    uid: String,
}

#[derive(Clone, Debug)]
struct Run {
    uid: String,
    name: String,
    /// What a backup reaches into; none for a restore.
    reach: Option<Reach>,
}

/// An attempt of this process at a stage behind the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StageAttempt {
    stage: Stage,
    /// Whether it has ended in good order.
    is_left: bool,
}

/// A run, for as long as it is not dropped.
#[derive(Debug)]
pub(crate) struct Held {
    runs: Arc<Runs>,
    uid: String,
}

/// The journal of a run, for as long as it is open.
#[derive(Debug)]
pub(crate) struct OpenJournal {
    runs: Arc<Runs>,
    uid: String,
}

impl Runs {
    /// Notes that the journal of a run is about to be opened here. Waits until nobody else has it in hand.
    pub(crate) async fn open_journal(self: &Arc<Self>, uid: &str) -> OpenJournal {
        self.journals.send_modify(|journals| {
            journals.open.push(Open { uid: uid.to_owned(), journal: Weak::new() });
        });
        let open = OpenJournal { runs: Arc::clone(self), uid: uid.to_owned() };
        let is_free = |journals: &Journals| !journals.claimed.contains(uid);
        // The sender is ours, so that it cannot be gone.
        let _ = self.journals.subscribe().wait_for(is_free).await;
        open
    }

    /// Whether the journal of a run is open here.
    pub(crate) fn has_journal_open(&self, uid: &str) -> bool {
        self.journals.borrow().open.iter().any(|open| open.uid == uid)
    }

    /// The journal of a run, if it is open here.
    pub(crate) fn journal_of(&self, uid: &str) -> Option<Arc<ConfigMaps>> {
        let journals = self.journals.borrow();
        let mut of_run = journals.open.iter().filter(|open| open.uid == uid);
        of_run.find_map(|open| open.journal.upgrade())
    }

    /// Takes the journal of a run in hand that nobody has open. None if somebody has.
    pub(crate) fn claim_journal(self: &Arc<Self>, uid: &str) -> Option<JournalClaim> {
        let is_taken = self.journals.send_if_modified(|journals| {
            let is_open = journals.open.iter().any(|open| open.uid == uid);
            !is_open && journals.claimed.insert(uid.to_owned())
        });
        is_taken.then(|| JournalClaim { runs: Arc::clone(self), uid: uid.to_owned() })
    }

    /// The same, when nobody else has it in hand any more.
    pub(crate) async fn await_journal(self: &Arc<Self>, uid: &str) -> Option<JournalClaim> {
        let mut changes = self.journals.subscribe();
        loop {
            if let Some(claim) = self.claim_journal(uid) {
                return Some(claim);
            }
            if self.has_journal_open(uid) {
                return None;
            }
            // The sender is ours, so that it cannot be gone.
            let _ = changes.wait_for(|journals| !journals.claimed.contains(uid)).await;
        }
    }

    /// Tells whoever cleans up that there is something to do.
    pub(crate) fn tell_leftovers(&self) {
        self.leftovers.notify_one();
    }

    /// Waits until there is something to clean up.
    pub(crate) async fn leftovers(&self) {
        self.leftovers.notified().await;
    }

    /// Notes that an object is run. A backup says what it reaches into.
    pub(crate) fn hold<K>(self: &Arc<Self>, object: &K, reach: Option<Reach>) -> Held
    where
        K: Resource<DynamicType = ()>,
    {
        let uid = object.uid().unwrap_or_default();
        let name = format!("{} {}", K::kind(&()), object.name_any());
        self.held().push(Run { uid: uid.clone(), name, reach });
        Held { runs: Arc::clone(self), uid }
    }

    /// The same for a backup, unless as many run as may, or one that reaches into the same namespaces does.
    pub(crate) fn hold_apart<K>(
        self: &Arc<Self>,
        object: &K,
        reach: &Reach,
        limit: usize,
    ) -> Option<Held>
    where
        K: Resource<DynamicType = ()>,
    {
        let mut held = self.held();
        let uid = object.uid().unwrap_or_default();
        let mut others = held.iter().filter_map(|run| run.reach.as_ref());
        if others.clone().count() >= limit || others.any(|other| other.meets(reach)) {
            return None;
        }
        let name = format!("{} {}", K::kind(&()), object.name_any());
        held.push(Run { uid: uid.clone(), name, reach: Some(reach.clone()) });
        Some(Held { runs: Arc::clone(self), uid })
    }

    /// Notes since when a run waits for its bucket.
    pub(crate) fn wait_for_bucket(&self, uid: &str, since: Timestamp) {
        if lock(&self.waiting).insert(uid.to_owned(), since).is_none() {
            // Others need not wait for it any more.
            self.ended.notify_one();
        }
    }

    /// Since when a run waits for its bucket, if it does.
    pub(crate) fn bucket_lost(&self, uid: &str) -> Option<Timestamp> {
        lock(&self.waiting).get(uid).copied()
    }

    /// The uids of the runs that wait for their buckets.
    pub(crate) fn waiting(&self) -> HashSet<String> {
        lock(&self.waiting).keys().cloned().collect()
    }

    /// Notes that a run does not wait for its bucket.
    pub(crate) fn stop_waiting(&self, uid: &str) {
        lock(&self.waiting).remove(uid);
    }

    /// Notes an attempt at a stage behind the items. Says whether it is the first of this process.
    pub(crate) fn attempts(&self, uid: &str, stage: Stage) -> bool {
        let attempt = StageAttempt { stage, is_left: false };
        let before = lock(&self.attempts).get(uid).copied();
        if before.is_some_and(|before| before.stage == stage) {
            return false;
        }
        lock(&self.attempts).insert(uid.to_owned(), attempt);
        true
    }

    /// Notes that such an attempt has ended in good order. Says whether that is news.
    pub(crate) fn leaves(&self, uid: &str, stage: Stage) -> bool {
        match lock(&self.attempts).get_mut(uid) {
            Some(attempt) if attempt.stage == stage && !attempt.is_left => {
                attempt.is_left = true;
                true
            }
            _ => false,
        }
    }

    /// Forgets a run that is over.
    pub(crate) fn forget(&self, uid: &str) {
        self.stop_waiting(uid);
        lock(&self.attempts).remove(uid);
    }

    /// The uids of the backups that run, and what they reach into.
    pub(crate) fn backups(&self) -> Vec<(String, Reach)> {
        let reach = |run: &Run| Some((run.uid.clone(), run.reach.clone()?));
        self.held().iter().filter_map(reach).collect()
    }

    /// The uids of what runs.
    pub(crate) fn uids(&self) -> Vec<String> {
        self.held().iter().map(|run| run.uid.clone()).collect()
    }

    /// What runs, for a log.
    pub(crate) fn names(&self) -> Vec<String> {
        self.held().iter().map(|run| run.name.clone()).collect()
    }

    /// Yields after runs have ended.
    pub(crate) fn ends(self: &Arc<Self>) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(Arc::clone(self), async |runs| {
            runs.ended.notified().await;
            Some(((), runs))
        })
    }

    fn held(&self) -> MutexGuard<'_, Vec<Run>> {
        lock(&self.held)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Held {
    fn drop(&mut self) {
        self.runs.held().retain(|run| run.uid != self.uid);
        self.runs.ended.notify_one();
    }
}

impl OpenJournal {
    /// Says which it is, so that pods can be thawed that it names.
    pub(crate) fn set(&self, journal: &Arc<ConfigMaps>) {
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
            // One of them: another task may have opened the same since. One that is gone goes first.
            let of_run = journals.open.iter().enumerate().filter(|(_, open)| open.uid == self.uid);
            let index = of_run.min_by_key(|(_, open)| open.journal.strong_count());
            if let Some((index, _)) = index {
                journals.open.swap_remove(index);
            }
        });
    }
}

impl Drop for JournalClaim {
    fn drop(&mut self) {
        self.runs.journals.send_modify(|journals| {
            journals.claimed.remove(&self.uid);
        });
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::{Backup, Restore};
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    #[test]
    fn a_run_is_known_until_it_is_dropped_and_its_end_is_told() {
        let runs = Arc::new(Runs::default());
        let mut ends = std::pin::pin!(runs.ends());
        let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
        backup.metadata.uid = Some("1".to_owned());
        let mut restore = Restore::new("r", bowline_api::RestoreSpec::default());
        restore.metadata.uid = Some("2".to_owned());
        let held = runs.hold(&backup, Some(Reach::All));
        let other = runs.hold(&restore, None);
        assert_eq!(runs.names(), ["Backup b", "Restore r"]);
        assert_eq!(runs.backups(), [("1".to_owned(), Reach::All)]);
        assert_eq!(ends.next().now_or_never(), None);
        drop(held);
        assert_eq!(ends.next().now_or_never(), Some(Some(())));
        assert_eq!(runs.names(), ["Restore r"]);
        drop(other);
        assert!(runs.names().is_empty());
    }

    #[test]
    fn backups_that_meet_are_not_held_at_a_time_nor_more_than_may_be() {
        let runs = Arc::new(Runs::default());
        let backup = |uid: &str| {
            let mut backup = Backup::new(uid, bowline_api::BackupSpec::default());
            backup.metadata.uid = Some(uid.to_owned());
            backup
        };
        let only = |name: &str| Reach::Only([name.to_owned()].into());
        let hold = |uid: &str, reach: &Reach| runs.hold_apart(&backup(uid), reach, 2);
        let first = hold("1", &only("a"));
        assert!(first.is_some());
        assert!(hold("2", &only("a")).is_none() && hold("2", &Reach::All).is_none());
        let second = hold("2", &only("b"));
        assert!(second.is_some());
        assert!(hold("3", &only("c")).is_none(), "two run");
        drop(first);
        assert!(hold("3", &only("a")).is_some());
    }

    #[test]
    fn an_attempt_is_noted_once_and_left_once_by_each_process() {
        let runs = Runs::default();
        assert!(!runs.leaves("1", Stage::Waiting), "none was begun");
        assert!(runs.attempts("1", Stage::Waiting));
        assert!(!runs.attempts("1", Stage::Waiting));
        assert!(runs.leaves("1", Stage::Waiting));
        assert!(!runs.leaves("1", Stage::Waiting));
        assert!(!runs.attempts("1", Stage::Waiting), "it only asks its bucket again");
        assert!(runs.attempts("1", Stage::Finalizing));
        runs.forget("1");
        assert!(runs.attempts("1", Stage::Finalizing));
    }

    #[test]
    fn a_run_that_waits_for_its_bucket_is_known_and_the_queue_is_told() {
        let runs = Arc::new(Runs::default());
        let mut ends = std::pin::pin!(runs.ends());
        let at = |second| Timestamp::from_second(second).unwrap();
        runs.wait_for_bucket("1", at(1));
        assert_eq!(ends.next().now_or_never(), Some(Some(())));
        runs.wait_for_bucket("1", at(1));
        assert_eq!(ends.next().now_or_never(), None);
        assert_eq!(runs.bucket_lost("1"), Some(at(1)));
        assert_eq!(runs.waiting(), HashSet::from(["1".to_owned()]));
        runs.stop_waiting("1");
        assert!(runs.waiting().is_empty());
    }

    #[tokio::test]
    async fn a_journal_that_somebody_has_in_hand_is_opened_when_they_are_done() {
        let runs = Arc::new(Runs::default());
        let claim = runs.claim_journal("1").unwrap();
        assert!(runs.claim_journal("1").is_none(), "one at a time");
        let mut opening = Box::pin(runs.open_journal("1"));
        assert!(opening.as_mut().now_or_never().is_none());
        let other = runs.open_journal("2").await;
        assert!(runs.await_journal("2").await.is_none(), "a run has it open");
        drop(claim);
        let open = opening.await;
        assert!(runs.claim_journal("1").is_none(), "a run has it open");
        drop((open, other));
        assert!(runs.claim_journal("1").is_some());
    }

    #[tokio::test]
    async fn a_journal_is_open_until_the_last_of_those_who_opened_it_is_gone() {
        let runs = Arc::new(Runs::default());
        let (one, two) = (runs.open_journal("1").await, runs.open_journal("1").await);
        drop(one);
        assert!(runs.has_journal_open("1") && !runs.has_journal_open("2"));
        drop(two);
        assert!(!runs.has_journal_open("1"));
    }
}
