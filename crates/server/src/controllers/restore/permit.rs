//! Order of restores: they run in the order of their creation, with a limit on how many run at a time.
//!
//! Velero runs one after the other (`restore_controller.go` sets no `MaxConcurrentReconciles`), and pipelines rely on
//! that: definitions first, then operators, then the resources that need them.
//!
//! # Guarantees
//! - A restore starts only when the restores at their items and the waiting ones created before it are together fewer
//!   than the limit. So with a limit of one, restores start strictly in the order of their creation; with a higher
//!   limit, that many start concurrently, in no defined order among themselves.
//! - A restore that cannot start because its storage location is unreachable blocks no other: it loses its permit until
//!   it is retried.
//! - Restores that wait for operations of plugins, are being finalized, or are canceled need no permit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, RestorePhase};
use futures::{Stream, stream};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::operations::is_canceled;
use super::phase_of;
use crate::controllers::run::RunObject as _;

/// Pause before a restore that is not next asks again. Usually a release notification comes first.
pub(super) const QUEUE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Issues the permits of restores.
#[derive(Debug)]
pub(crate) struct RestoreQueue {
    limit: usize,
    queue: Mutex<QueueState>,
    released: Notify,
}

/// Uids of restores that have or had a permit.
#[derive(Debug, Default)]
struct QueueState {
    /// Restores at their items.
    running: HashSet<String>,
    /// Restores past their items, or not able to start. The watch may still show them as waiting.
    done: HashSet<String>,
}

/// Permit of a restore, until it is dropped or released.
#[derive(Debug)]
pub(super) struct RestorePermit {
    turns: Arc<RestoreQueue>,
    /// None if the restore needs no permit.
    uid: Option<String>,
}

impl RestoreQueue {
    /// Queue with a limit on concurrent restores.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), queue: Mutex::default(), released: Notify::default() }
    }

    /// True if a restore is next, or needs no permit, at this moment.
    pub(super) fn may_begin(&self, restore: &Restore, known: &[Arc<Restore>]) -> bool {
        let uid = restore.uid().filter(|_| needs_permit(restore));
        uid.is_none_or(|uid| self.queue.lock().admits(restore, &uid, known, self.limit))
    }

    /// Acquires the permit of a restore, if it is next among the known ones. Otherwise, ask again after
    /// [`Self::release_notifications`], or a [`QUEUE_POLL_INTERVAL`].
    pub(super) fn acquire(
        self: &Arc<Self>,
        restore: &Restore,
        known: &[Arc<Restore>],
    ) -> Option<RestorePermit> {
        let uid = restore.uid().filter(|_| needs_permit(restore));
        if let Some(uid) = &uid {
            let mut state = self.queue.lock();
            // Restores that the watch shows as past their items, or gone, need not be remembered.
            let waiting: HashSet<String> =
                known.iter().filter(|other| needs_permit(other)).filter_map(|r| r.uid()).collect();
            state.done.retain(|uid| waiting.contains(uid));
            if !state.admits(restore, uid, known, self.limit) {
                return None;
            }
            state.done.remove(uid);
            state.running.insert(uid.clone());
        }
        Some(RestorePermit { turns: Arc::clone(self), uid })
    }

    /// Releases the permit of a restore whose items are done.
    pub(super) fn release(&self, uid: &str) {
        if self.queue.lock().finish(uid) {
            self.released.notify_one();
        }
    }

    /// Yields after permits were released.
    pub(super) fn release_notifications(
        self: &Arc<Self>,
    ) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(Arc::clone(self), async |turns| {
            turns.released.notified().await;
            Some(((), turns))
        })
    }
}

impl QueueState {
    /// Removes a permit. Returns true if there was one.
    fn finish(&mut self, uid: &str) -> bool {
        let was_taken = self.running.remove(uid);
        if was_taken {
            self.done.insert(uid.to_owned());
        }
        was_taken
    }

    fn admits(&self, restore: &Restore, uid: &str, known: &[Arc<Restore>], limit: usize) -> bool {
        let running = self.running.iter().filter(|running_uid| *running_uid != uid).count();
        let own = queue_position(restore);
        let is_ahead = |other: &&Arc<Restore>| {
            let other_uid = other.uid().unwrap_or_default();
            other_uid != uid
                && needs_permit(other)
                && !self.running.contains(&other_uid)
                && !self.done.contains(&other_uid)
                && queue_position(other) < own
        };
        running + known.iter().filter(is_ahead).count() < limit
    }
}

impl RestorePermit {
    /// Releases the permit of a restore that could not continue. No notification is sent: it would also make this
    /// restore retry at once, instead of after its pause.
    pub(super) fn release_quietly(mut self) {
        if let Some(uid) = self.uid.take() {
            self.turns.queue.lock().finish(&uid);
        }
    }
}

impl Drop for RestorePermit {
    fn drop(&mut self) {
        if let Some(uid) = &self.uid {
            self.turns.release(uid);
        }
    }
}

/// True if a restore is at its items, or will be.
fn needs_permit(restore: &Restore) -> bool {
    restore.metadata.deletion_timestamp.is_none()
        && !is_canceled(restore)
        && matches!(phase_of(restore), None | Some(RestorePhase::New | RestorePhase::InProgress))
}

/// Position of a restore in the queue: restores that an earlier server has started come first. Creation times are in
/// whole seconds; within one second, the resource version of an object that has not changed since its creation gives
/// the order.
fn queue_position(restore: &Restore) -> impl Ord + use<> {
    let version = restore.resource_version().and_then(|version| version.parse::<u64>().ok());
    let created = restore.creation_timestamp().map(|time| time.0);
    (restore.stage().is_none(), created, version, restore.name_any())
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};
    use serde_json::{Value, json};

    use super::*;

    fn restore(name: &str, created: &str, version: u64, status: &Value) -> Arc<Restore> {
        let metadata = json!({
            "name": name, "uid": format!("uid-{name}"), "creationTimestamp": created,
            "resourceVersion": version.to_string(),
        });
        let restore = json!({"metadata": metadata, "spec": {}, "status": status});
        Arc::new(serde_json::from_value(restore).unwrap())
    }

    fn new(name: &str, created: &str, version: u64) -> Arc<Restore> {
        restore(name, created, version, &json!({}))
    }

    const EARLY: &str = "2026-01-02T03:04:05Z";
    const LATE: &str = "2026-01-02T03:04:06Z";

    #[test]
    fn restores_start_in_creation_order() {
        let queue = Arc::new(RestoreQueue::new(1));
        // Within one second the resource version decides, not the name.
        let all = [new("z", EARLY, 9), new("a", EARLY, 10), new("b", LATE, 8)];
        assert!(queue.acquire(&all[1], &all).is_none() && queue.acquire(&all[2], &all).is_none());
        assert!(queue.may_begin(&all[0], &all) && !queue.may_begin(&all[1], &all));
        let first = queue.acquire(&all[0], &all).unwrap();
        assert!(queue.acquire(&all[1], &all).is_none());
        drop(first);
        // The watch still shows it as new.
        assert!(queue.acquire(&all[2], &all).is_none());
        let second = queue.acquire(&all[1], &all).unwrap();
        assert!(queue.acquire(&all[2], &all).is_none());
        drop(second);
        assert!(queue.acquire(&all[2], &all).is_some());
    }

    #[test]
    fn concurrent_restores_respect_the_limit() {
        let turns = Arc::new(RestoreQueue::new(2));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2), new("c", EARLY, 3)];
        let _first = turns.acquire(&all[0], &all).unwrap();
        let _second = turns.acquire(&all[1], &all).unwrap();
        assert!(turns.acquire(&all[2], &all).is_none());
    }

    #[test]
    fn resumed_restores_come_first_and_waiting_ones_block_nothing() {
        let turns = Arc::new(RestoreQueue::new(1));
        let in_progress = restore("z", LATE, 9, &json!({"phase": "InProgress"}));
        let waits = restore("w", EARLY, 2, &json!({"phase": "WaitingForPluginOperations"}));
        let over = restore("o", EARLY, 3, &json!({"phase": "Completed"}));
        let refused = restore("f", EARLY, 3, &json!({"phase": "FailedValidation"}));
        let all = [new("a", EARLY, 1), in_progress, waits, over, refused];
        assert!(turns.acquire(&all[0], &all).is_none());
        assert!(turns.acquire(&all[2], &all).is_some(), "it needs no turn");
        drop(turns.acquire(&all[1], &all).unwrap());
        assert!(turns.acquire(&all[0], &all).is_some());
    }

    #[test]
    fn canceled_or_deleted_restore_needs_no_permit() {
        let turns = Arc::new(RestoreQueue::new(1));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2)];
        let _first = turns.acquire(&all[0], &all).unwrap();
        let mut canceled = (*all[1]).clone();
        canceled.annotations_mut().insert("bowline.io/cancel".to_owned(), "true".to_owned());
        assert!(turns.acquire(&canceled, &all).is_some());
        let mut deleted = (*all[1]).clone();
        deleted.metadata.deletion_timestamp = all[0].metadata.creation_timestamp.clone();
        assert!(turns.acquire(&deleted, &all).is_some());
        assert!(turns.acquire(&all[1], &all).is_none());
    }

    #[test]
    fn restore_that_cannot_start_blocks_nothing_and_is_first_on_retry() {
        let turns = Arc::new(RestoreQueue::new(1));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2), new("c", EARLY, 3)];
        let mut releases = std::pin::pin!(turns.release_notifications());
        turns.acquire(&all[0], &all).unwrap().release_quietly();
        assert_eq!(releases.next().now_or_never(), None, "it must not be retried at once");
        let second = turns.acquire(&all[1], &all).unwrap();
        assert!(turns.acquire(&all[0], &all).is_none(), "one at a time");
        drop(second);
        assert!(turns.acquire(&all[0], &all).is_some());
    }

    #[test]
    fn released_or_dropped_permit_wakes_the_queue() {
        let turns = Arc::new(RestoreQueue::new(1));
        let mut releases = std::pin::pin!(turns.release_notifications());
        let all = [new("a", EARLY, 1), new("b", EARLY, 2)];
        let turn = turns.acquire(&all[0], &all).unwrap();
        assert_eq!(releases.next().now_or_never(), None);
        turns.release("uid-a");
        assert_eq!(releases.next().now_or_never(), Some(Some(())));
        let _second = turns.acquire(&all[1], &all).unwrap();
        drop(turn);
        assert_eq!(releases.next().now_or_never(), None, "it had none any more");
    }
}
