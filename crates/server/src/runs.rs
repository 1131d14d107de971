//! The backups and restores that this process runs, whatever the cluster says of them.
//!
//! A Backup can be deleted while it runs. Its run ends soon after, but not at once: an application
//! may be frozen by its hooks until then, and no other backup may reach into that namespace.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_engine::phase::Stage;
use futures::{Stream, stream};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use tokio::sync::Notify;

use crate::queue::Reach;

/// The runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    held: Mutex<Vec<Run>>,
    /// The uids of runs whose journals this process has open, at whatever stage they are.
    journals: Mutex<Vec<String>>,
    /// Since when runs wait for their buckets, by uid.
    waiting: Mutex<HashMap<String, Timestamp>>,
    /// The stages behind the items that this process has resumed runs at, by uid.
    attempts: Mutex<HashMap<String, StageAttempt>>,
    ended: Notify,
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
    /// Notes that the journal of a run is open here.
    pub(crate) fn open_journal(self: &Arc<Self>, uid: &str) -> OpenJournal {
        self.journals().push(uid.to_owned());
        OpenJournal { runs: Arc::clone(self), uid: uid.to_owned() }
    }

    /// Whether the journal of a run is open here.
    pub(crate) fn has_journal_open(&self, uid: &str) -> bool {
        self.journals().iter().any(|open| open == uid)
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

    fn journals(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.journals)
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

impl Drop for OpenJournal {
    fn drop(&mut self) {
        let mut journals = self.runs.journals();
        // One of them: another task may have opened the same since.
        if let Some(index) = journals.iter().position(|open| *open == self.uid) {
            journals.swap_remove(index);
        }
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

    #[test]
    fn a_journal_is_open_until_the_last_of_those_who_opened_it_is_gone() {
        let runs = Arc::new(Runs::default());
        let (one, two) = (runs.open_journal("1"), runs.open_journal("1"));
        drop(one);
        assert!(runs.has_journal_open("1") && !runs.has_journal_open("2"));
        drop(two);
        assert!(!runs.has_journal_open("1"));
    }
}
