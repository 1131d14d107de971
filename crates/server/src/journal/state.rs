//! What the records of a journal mean for whoever has it open: which pods may be frozen, and which snapshots
//! are in flight.
//!
//! Who thaws pods, and who begins blocks that freeze them, must not have the same pod in hand: a pod that was
//! left frozen by one block would be thawed while the next one takes its snapshots. So pods are taken on
//! ([`ThawClaim`]), and a block that has one of them waits until they are let go.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_engine::journal::{Frozen, FrozenPods, InFlight, Record};
use tokio::sync::watch;

/// What the records mean.
#[derive(Debug, Default)]
pub(super) struct State {
    known: Mutex<Known>,
    /// The uids of the pods that somebody thaws.
    claimed: watch::Sender<Option<BTreeSet<String>>>,
}

#[derive(Debug, Default)]
struct Known {
    frozen: FrozenPods,
    in_flight: InFlight,
}

/// Pods that may be frozen, for whoever thaws them, until it is dropped.
#[derive(Debug)]
pub(crate) struct ThawClaim<'a> {
    frozen: Frozen,
    claimed: &'a watch::Sender<Option<BTreeSet<String>>>,
}

impl ThawClaim<'_> {
    /// The pods.
    pub(crate) fn frozen(&self) -> &Frozen {
        &self.frozen
    }
}

impl Drop for ThawClaim<'_> {
    fn drop(&mut self) {
        self.claimed.send_replace(None);
    }
}

impl State {
    /// What records of earlier openings mean.
    pub(super) fn recover(records: &[Record]) -> Self {
        let mut in_flight = InFlight::default();
        for record in records {
            in_flight.see(record);
        }
        let known = Known { frozen: FrozenPods::recover(records), in_flight };
        Self { known: Mutex::new(known), ..Self::default() }
    }

    /// Takes note of a record that is about to be written. One that begins a block waits until nobody thaws
    /// its pods.
    pub(super) async fn see(&self, record: &Record) {
        {
            let mut known = self.lock();
            known.frozen.see(record);
            known.in_flight.see(record);
        }
        let Record::Begun(begun) = record else { return };
        if begun.pods.is_empty() {
            return;
        }
        let is_free = |claimed: &Option<BTreeSet<String>>| {
            let mut claimed = claimed.iter().flatten();
            claimed.all(|uid| begun.pods.iter().all(|pod| pod.uid != *uid))
        };
        // The sender is ours, so that it cannot be gone.
        let _ = self.claimed.subscribe().wait_for(is_free).await;
    }

    /// A record was not written. A block that was not begun freezes nobody; all else has happened.
    pub(super) fn not_written(&self, record: &Record) {
        if let Record::Begun(begun) = record {
            let mut known = self.lock();
            known.frozen.see(&Record::Thawed { block: begun.block, errors: Vec::new() });
            known.in_flight.see(&Record::InFlight { block: begun.block, intents: Vec::new() });
        }
    }

    /// Whether pods may be frozen, or snapshots are in flight.
    pub(super) fn is_needed(&self) -> bool {
        let known = self.lock();
        !known.frozen.all().is_empty() || !known.in_flight.is_empty()
    }

    pub(super) fn try_claim(&self) -> Option<ThawClaim<'_>> {
        let known = self.lock();
        let frozen = known.frozen.left();
        let uids = frozen.values().flatten().map(|pod| pod.uid.clone()).collect();
        let is_taken = self.claimed.send_if_modified(|claimed| {
            let is_free = claimed.is_none();
            if is_free {
                *claimed = Some(uids);
            }
            is_free
        });
        // Not before it is known: one that is dropped lets the pods go.
        is_taken.then(|| ThawClaim { frozen, claimed: &self.claimed })
    }

    pub(super) async fn claim(&self) -> ThawClaim<'_> {
        let mut claimed = self.claimed.subscribe();
        loop {
            if let Some(claim) = self.try_claim() {
                return claim;
            }
            // The sender is ours, so that it cannot be gone.
            let _ = claimed.wait_for(Option::is_none).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bowline_engine::journal::{Begun, Ended, Pod};
    use futures::FutureExt as _;

    use super::*;

    fn pod(uid: &str) -> Pod {
        Pod { uid: uid.to_owned(), ..Pod::default() }
    }

    fn begun(block: u64, uid: &str) -> Record {
        Record::Begun(Begun { block, pods: vec![pod(uid)], ..Begun::default() })
    }

    fn ended(block: u64, frozen: Vec<Pod>) -> Record {
        Record::Ended(Box::new(Ended { block, frozen, ..Ended::default() }))
    }

    #[tokio::test]
    async fn a_pod_that_is_being_thawed_is_frozen_by_nobody_meanwhile() {
        let state = State::recover(&[begun(0, "a")]);
        let claim = state.try_claim().unwrap();
        assert_eq!(claim.frozen()[&0], [pod("a")]);
        assert!(state.try_claim().is_none(), "one at a time");
        let mut second = Box::pin(state.claim());
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        state.see(&begun(1, "b")).now_or_never().expect("it is another pod");
        let again = begun(2, "a");
        let mut again = Box::pin(state.see(&again));
        assert!(again.as_mut().now_or_never().is_none());
        drop(claim);
        again.await;
        assert!(state.claim().await.frozen().is_empty(), "a block has it");
        state.see(&ended(2, Vec::new())).await;
        assert!(state.claim().await.frozen().is_empty(), "its post-hook has been run");
        assert!(state.is_needed(), "a block goes on");
        state.see(&ended(1, vec![pod("b")])).await;
        assert_eq!(state.claim().await.frozen()[&1], [pod("b")]);
        state.see(&Record::Thawed { block: 1, errors: Vec::new() }).await;
        assert!(!state.is_needed());
    }

    #[tokio::test]
    async fn a_block_whose_beginning_is_not_noted_freezes_nobody() {
        let state = State::default();
        let record = begun(0, "a");
        state.see(&record).await;
        state.not_written(&record);
        assert!(!state.is_needed());
        // What could not be noted has happened all the same.
        state.see(&begun(1, "a")).await;
        let end = ended(1, vec![pod("a")]);
        state.see(&end).await;
        state.not_written(&end);
        assert_eq!(state.claim().await.frozen()[&1], [pod("a")]);
    }
}
