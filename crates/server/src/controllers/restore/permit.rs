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
//!
//! # Cost
//! Waiting restores ask again and again, all of them after each release. One walk over the queue decides for all of
//! them; the decisions are kept for a moment. The more restores are ahead of one, the less often it asks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, RestorePhase};
use futures::{Stream, stream};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::operations::is_canceled;
use super::phase_of;
use crate::controllers::run::RunObject as _;

/// Pause before a restore that is not next asks again, if few others are ahead of it. Usually a release notification
/// comes first.
const POLL_PAUSE: Duration = Duration::from_secs(1);
/// Number of restores ahead for which the pause grows by one [`POLL_PAUSE`].
const POLL_PAUSE_STEP: usize = 100;
const MAX_POLL_PAUSE: Duration = Duration::from_mins(1);
/// Time for which decisions are kept. A restore that they do not include is decided about at once.
const DECISIONS_TTL: Duration = Duration::from_millis(200);

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
    /// Decisions about all restores that the watch showed a moment ago.
    decisions: Option<QueueDecisions>,
}

/// Decisions about all restores that need a permit.
#[derive(Debug)]
struct QueueDecisions {
    decided: Instant,
    /// By uid: the number of restores that have to begin before this one may; zero if it may begin.
    ahead: HashMap<String, usize>,
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

    /// True if a restore is next, or needs no permit, at this moment. `known` are the restores that the watch shows.
    pub(super) fn may_begin(
        &self,
        restore: &Restore,
        known: impl FnOnce() -> Vec<Arc<Restore>>,
    ) -> bool {
        let Some(uid) = restore.uid().filter(|_| needs_permit(restore)) else { return true };
        let mut queue = self.queue.lock();
        if let Some(ahead) = queue.number_ahead(&uid) {
            return ahead == 0;
        }
        let known = known();
        queue.decide(&known, self.limit);
        // A restore that the watch has just removed is in no list.
        match queue.number_ahead(&uid) {
            Some(ahead) => ahead == 0,
            None => queue.admits(restore, &uid, &known, self.limit),
        }
    }

    /// Pause before a restore that has to wait asks again.
    pub(super) fn poll_pause(&self, restore: &Restore) -> Duration {
        let ahead = restore.uid().and_then(|uid| self.queue.lock().number_ahead(&uid));
        poll_pause(ahead.unwrap_or_default())
    }

    /// Acquires the permit of a restore, if it is next among the known ones. Otherwise, ask again after
    /// [`Self::release_notifications`], or the [pause](Self::poll_pause).
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
            state.decisions = None;
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
            self.decisions = None;
        }
        was_taken
    }

    /// Decides about all restores in one walk over the queue.
    fn decide(&mut self, known: &[Arc<Restore>], limit: usize) {
        let mut queue: Vec<&Arc<Restore>> =
            known.iter().filter(|restore| needs_permit(restore)).collect();
        queue.sort_by_cached_key(|restore| queue_position(restore));
        let mut before = 0;
        let mut ahead = HashMap::with_capacity(queue.len());
        for uid in queue.into_iter().filter_map(|restore| restore.uid()) {
            let is_running = self.running.contains(&uid);
            let others = self.running.len() - usize::from(is_running);
            ahead.insert(uid.clone(), (others + before + 1).saturating_sub(limit));
            before += usize::from(!is_running && !self.done.contains(&uid));
        }
        self.decisions = Some(QueueDecisions { decided: Instant::now(), ahead });
    }

    /// Number of restores that have to begin before this one may, if that was decided a moment ago.
    fn number_ahead(&self, uid: &str) -> Option<usize> {
        let decisions = self.decisions.as_ref()?;
        let is_fresh = decisions.decided.elapsed() < DECISIONS_TTL;
        decisions.ahead.get(uid).copied().filter(|_| is_fresh)
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

/// Pause of a restore, given the number of restores that have to begin before it.
fn poll_pause(ahead: usize) -> Duration {
    let times = u32::try_from(ahead / POLL_PAUSE_STEP).unwrap_or(u32::MAX).saturating_add(1);
    POLL_PAUSE.saturating_mul(times).min(MAX_POLL_PAUSE)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
        let known = || all.to_vec();
        assert!(queue.may_begin(&all[0], known) && !queue.may_begin(&all[1], known));
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

    #[tokio::test(start_paused = true)]
    async fn one_walk_over_the_queue_decides_for_all_that_wait() {
        let queue = Arc::new(RestoreQueue::new(2));
        let all: Vec<_> = (0..1000).map(|number| new(&number.to_string(), EARLY, number)).collect();
        let walks = Cell::new(0);
        let may_begin = |restore: &Restore| {
            queue.may_begin(restore, || {
                walks.set(walks.get() + 1);
                all.clone()
            })
        };
        let begin = |expected: &[usize]| {
            let found: Vec<usize> = (0..1000).filter(|number| may_begin(&all[*number])).collect();
            assert_eq!(found, expected);
        };
        begin(&[0, 1]);
        begin(&[0, 1]);
        assert_eq!(walks.get(), 1);
        let _first = queue.acquire(&all[0], &all).unwrap();
        // It may go on itself.
        begin(&[0, 1]);
        let second = queue.acquire(&all[1], &all).unwrap();
        begin(&[0, 1]);
        drop(second);
        // The watch still shows the second as new; if it was, it would be next.
        begin(&[0, 1, 2]);
        assert_eq!(walks.get(), 4, "one after each change");
        let pause = |number: usize| queue.poll_pause(&all[number]).as_secs();
        assert_eq!(
            [pause(3), pause(500), pause(999)],
            [1, 5, 10],
            "by the number ahead, not of all that wait"
        );
        assert!(queue.may_begin(&new("late", LATE, 2000), Vec::new), "no other one is known");
    }

    #[test]
    fn restore_asks_less_often_when_many_are_ahead() {
        for (ahead, seconds) in [(0, 1), (99, 1), (100, 2), (1000, 11), (1_000_000, 60)] {
            assert_eq!(poll_pause(ahead), Duration::from_secs(seconds), "{ahead}");
        }
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
