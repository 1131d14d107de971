//! State that follows from the records of an open journal: pods that may be frozen, and snapshots
//! in flight.
//!
//! A task that thaws pods and one that starts blocks must not work on the same pod: a pod that one
//! block left frozen would be thawed while the next block takes its snapshots. So the thawing task
//! claims pods ([`ThawLock`]), and a block with one of them waits until they are released.

use std::collections::BTreeSet;

use bowline_engine::journal::{
    FrozenByBlock, FrozenPods, InFlight, Intent, JournalEntry, SnapshotIntent,
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// State that follows from the records.
#[derive(Debug, Default)]
pub(super) struct JournalState {
    recorded: Mutex<RecordedState>,
    /// Uids of the pods being thawed.
    locked: watch::Sender<Option<BTreeSet<String>>>,
}

#[derive(Debug, Default)]
struct RecordedState {
    frozen: FrozenPods,
    in_flight: InFlight,
}

/// Exclusive lock on pods that may be frozen, until dropped.
#[derive(Debug)]
pub(crate) struct ThawLock<'a> {
    frozen: FrozenByBlock,
    locked: &'a watch::Sender<Option<BTreeSet<String>>>,
}

impl ThawLock<'_> {
    /// Claimed pods.
    pub(crate) fn frozen(&self) -> &FrozenByBlock {
        &self.frozen
    }
}

impl Drop for ThawLock<'_> {
    fn drop(&mut self) {
        self.locked.send_replace(None);
    }
}

impl JournalState {
    /// State that follows from the records of earlier openers.
    pub(super) fn recover(records: &[JournalEntry]) -> Self {
        let mut in_flight = InFlight::default();
        for record in records {
            in_flight.apply(record);
        }
        let known = RecordedState { frozen: FrozenPods::recover(records), in_flight };
        Self { recorded: Mutex::new(known), ..Self::default() }
    }

    /// Applies a record that is about to be written. The start of a block waits until none of its
    /// pods is being thawed.
    pub(super) async fn apply(&self, record: &JournalEntry) {
        {
            let mut known = self.recorded.lock();
            known.frozen.apply(record);
            known.in_flight.apply(record);
        }
        let JournalEntry::BlockStarted(started) = record else { return };
        if started.pods.is_empty() {
            return;
        }
        let is_free = |locked: &Option<BTreeSet<String>>| {
            let mut locked = locked.iter().flatten();
            locked.all(|uid| started.pods.iter().all(|pod| pod.uid != *uid))
        };
        // The sender is ours, so it cannot be dropped.
        let _ = self.locked.subscribe().wait_for(is_free).await;
    }

    /// Reverts a record that was not written. A block that was not started freezes no pod; all
    /// other records describe things that have happened.
    pub(super) fn revert(&self, record: &JournalEntry) {
        if let JournalEntry::BlockStarted(started) = record {
            let mut known = self.recorded.lock();
            known.frozen.apply(&JournalEntry::Thawed { block: started.block, errors: Vec::new() });
            let (intents, operations) = Default::default();
            let block = started.block;
            known.in_flight.apply(&JournalEntry::InFlight { block, intents, operations });
        }
    }

    /// Requests in flight that were answered with one of these snapshots, by location and ID.
    pub(super) fn requests_of(&self, snapshots: &BTreeSet<(String, String)>) -> Vec<String> {
        let all = self.recorded.lock().in_flight.all();
        let request_of = |intent: Intent| {
            let SnapshotIntent { location, request, created, .. } = intent.snapshot?;
            snapshots.contains(&(location, created?)).then_some(request)
        };
        all.into_iter().filter_map(request_of).collect()
    }

    /// True if pods may be frozen, or snapshots are in flight.
    pub(super) fn has_unfinished_work(&self) -> bool {
        let known = self.recorded.lock();
        !known.frozen.all().is_empty() || !known.in_flight.is_empty()
    }

    pub(super) fn try_lock(&self) -> Option<ThawLock<'_>> {
        let known = self.recorded.lock();
        let frozen = known.frozen.unattended();
        let uids = frozen.values().flatten().map(|pod| pod.uid.clone()).collect();
        let is_locked = self.locked.send_if_modified(|locked| {
            let is_free = locked.is_none();
            if is_free {
                *locked = Some(uids);
            }
            is_free
        });
        // Not before the lock is certain: dropping a lock releases the pods.
        is_locked.then(|| ThawLock { frozen, locked: &self.locked })
    }

    pub(super) async fn lock(&self) -> ThawLock<'_> {
        let mut locked = self.locked.subscribe();
        loop {
            if let Some(lock) = self.try_lock() {
                return lock;
            }
            // The sender is ours, so it cannot be dropped.
            let _ = locked.wait_for(Option::is_none).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_engine::journal::{BlockEnded, BlockStarted, Pod};
    use futures::FutureExt as _;

    use super::*;

    fn pod(uid: &str) -> Pod {
        Pod { uid: uid.to_owned(), ..Pod::default() }
    }

    fn begun_record(block: u64, uid: &str) -> JournalEntry {
        JournalEntry::BlockStarted(BlockStarted {
            block,
            pods: vec![pod(uid)],
            ..BlockStarted::default()
        })
    }

    fn ended_record(block: u64, frozen: Vec<Pod>) -> JournalEntry {
        JournalEntry::BlockEnded(Box::new(BlockEnded { block, frozen, ..BlockEnded::default() }))
    }

    #[tokio::test]
    async fn block_waits_while_its_pod_is_being_thawed() {
        let state = JournalState::recover(&[begun_record(0, "a")]);
        let lock = state.try_lock().unwrap();
        assert_eq!(lock.frozen()[&0], [pod("a")]);
        assert!(state.try_lock().is_none(), "one at a time");
        let mut second = Box::pin(state.lock());
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        state.apply(&begun_record(1, "b")).now_or_never().expect("it is another pod");
        let again = begun_record(2, "a");
        let mut again = Box::pin(state.apply(&again));
        assert!(again.as_mut().now_or_never().is_none());
        drop(lock);
        again.await;
        assert!(state.lock().await.frozen().is_empty(), "a block has it");
        state.apply(&ended_record(2, Vec::new())).await;
        assert!(state.lock().await.frozen().is_empty(), "its post-hook has been run");
        assert!(state.has_unfinished_work(), "a block goes on");
        state.apply(&ended_record(1, vec![pod("b")])).await;
        assert_eq!(state.lock().await.frozen()[&1], [pod("b")]);
        state.apply(&JournalEntry::Thawed { block: 1, errors: Vec::new() }).await;
        assert!(!state.has_unfinished_work());
    }

    #[tokio::test]
    async fn snapshot_of_a_canceled_block_is_unfinished_work_until_it_is_deleted() {
        let snapshot = SnapshotIntent {
            location: "east".to_owned(),
            request: "r1".to_owned(),
            created: Some("snap-1".to_owned()),
            ..SnapshotIntent::default()
        };
        let intents = vec![Intent { snapshot: Some(snapshot), ..Intent::default() }];
        let state = JournalState::recover(&[JournalEntry::InFlight {
            block: 0,
            intents,
            operations: bowline_engine::journal::AbandonedOperations::default(),
        }]);
        assert!(state.has_unfinished_work());
        let of = |location: &str| {
            state.requests_of(&BTreeSet::from([(location.to_owned(), "snap-1".to_owned())]))
        };
        assert_eq!(of("west"), [""; 0], "it is another one");
        assert_eq!(of("east"), ["r1"]);
        state.apply(&JournalEntry::Reclaimed { request: "r1".to_owned() }).await;
        assert!(!state.has_unfinished_work());
    }

    #[tokio::test]
    async fn block_whose_start_is_not_journaled_freezes_no_pod() {
        let state = JournalState::default();
        let record = begun_record(0, "a");
        state.apply(&record).await;
        state.revert(&record);
        assert!(!state.has_unfinished_work());
        // An event that could not be journaled has happened nevertheless.
        state.apply(&begun_record(1, "a")).await;
        let end = ended_record(1, vec![pod("a")]);
        state.apply(&end).await;
        state.revert(&end);
        assert_eq!(state.lock().await.frozen()[&1], [pod("a")]);
    }
}
