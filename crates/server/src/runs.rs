//! The backups and restores that this process runs, whatever the cluster says of them.
//!
//! A Backup can be deleted while it runs. Its run ends soon after, but not at once: an application
//! may be frozen by its hooks until then, and no other backup may reach into that namespace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, stream};
use kube::{Resource, ResourceExt as _};
use tokio::sync::Notify;

use crate::queue::Reach;

/// The runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    held: Mutex<Vec<Run>>,
    /// The uids of runs whose journals this process has open, at whatever stage they are.
    journals: Mutex<Vec<String>>,
    ended: Notify,
}

#[derive(Clone, Debug)]
struct Run {
    uid: String,
    name: String,
    /// What a backup reaches into; none for a restore.
    reach: Option<Reach>,
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
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Vec<Run>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    fn a_journal_is_open_until_the_last_of_those_who_opened_it_is_gone() {
        let runs = Arc::new(Runs::default());
        let (one, two) = (runs.open_journal("1"), runs.open_journal("1"));
        drop(one);
        assert!(runs.has_journal_open("1") && !runs.has_journal_open("2"));
        drop(two);
        assert!(!runs.has_journal_open("1"));
    }
}
