//! Which restore is next: they run in the order in which they were created, so many at a time.
//!
//! Velero runs one after the other (`restore_controller.go` sets no `MaxConcurrentReconciles`), and
//! pipelines rely on that: definitions first, then operators, then what needs them.
//!
//! # Guarantees
//! - A restore begins only when those at their items and those that were created before it and still wait are
//!   together fewer than the limit. So with a limit of one, restores begin strictly in the order of their creation;
//!   with a higher one, so many begin side by side, and in which order these do is open.
//! - One that cannot begin, because its storage location is away, holds nobody up: it has lost its turn
//!   until it is retried.
//! - Restores that wait for operations of plugins, are finalized, or are canceled need no turn.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::{Restore, RestorePhase};
use futures::{Stream, stream};
use kube::ResourceExt as _;
use tokio::sync::Notify;

use super::super::operations::is_canceled;
use super::{phase_of, stage_of};

/// How long a restore that is not next waits until it asks again. Mostly it is told before.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The turns of restores.
#[derive(Debug)]
pub(crate) struct Turns {
    limit: usize,
    held: Mutex<Held>,
    released: Notify,
}

/// The uids of restores that have a turn, or had one.
#[derive(Debug, Default)]
struct Held {
    /// At their items now.
    taken: HashSet<String>,
    /// Through with their items, or not able to begin. The watch may still show them as waiting.
    passed: HashSet<String>,
}

/// The turn of a restore, for as long as it is not dropped or released.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    /// None if the restore needs no turn.
    uid: Option<String>,
}

impl Turns {
    /// Turns for so many restores at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), held: Mutex::default(), released: Notify::default() }
    }

    /// Whether a restore is next, or needs no turn, as things are now.
    pub(super) fn may_begin(&self, restore: &Restore, known: &[Arc<Restore>]) -> bool {
        let uid = restore.uid().filter(|_| needs_turn(restore));
        uid.is_none_or(|uid| self.held().lets(restore, &uid, known, self.limit))
    }

    /// Takes the turn of a restore, if it is next among those that are known. If it is not, ask again
    /// after [`Self::releases`], or a [`PAUSE`].
    pub(super) fn take(
        self: &Arc<Self>,
        restore: &Restore,
        known: &[Arc<Restore>],
    ) -> Option<Turn> {
        let uid = restore.uid().filter(|_| needs_turn(restore));
        if let Some(uid) = &uid {
            let mut held = self.held();
            // Those that the watch shows as past, or gone, need not be remembered.
            let waiting: HashSet<String> =
                known.iter().filter(|other| needs_turn(other)).filter_map(|r| r.uid()).collect();
            held.passed.retain(|uid| waiting.contains(uid));
            if !held.lets(restore, uid, known, self.limit) {
                return None;
            }
            held.passed.remove(uid);
            held.taken.insert(uid.clone());
        }
        Some(Turn { turns: Arc::clone(self), uid })
    }

    /// Ends the turn of a restore that is through with its items.
    pub(super) fn release(&self, uid: &str) {
        if self.held().end(uid) {
            self.released.notify_one();
        }
    }

    /// Yields after turns have ended.
    pub(super) fn releases(self: &Arc<Self>) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(Arc::clone(self), async |turns| {
            turns.released.notified().await;
            Some(((), turns))
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Ends a turn. Whether there was one.
    fn end(&mut self, uid: &str) -> bool {
        let was_taken = self.taken.remove(uid);
        if was_taken {
            self.passed.insert(uid.to_owned());
        }
        was_taken
    }

    /// Whether a restore may begin.
    fn lets(&self, restore: &Restore, uid: &str, known: &[Arc<Restore>], limit: usize) -> bool {
        let running = self.taken.iter().filter(|taken| *taken != uid).count();
        let own = place(restore);
        let is_ahead = |other: &&Arc<Restore>| {
            let other_uid = other.uid().unwrap_or_default();
            other_uid != uid
                && needs_turn(other)
                && !self.taken.contains(&other_uid)
                && !self.passed.contains(&other_uid)
                && place(other) < own
        };
        running + known.iter().filter(is_ahead).count() < limit
    }
}

impl Turn {
    /// Ends the turn of a restore that could not go on. Nobody is told: it would be retried at once, too,
    /// and not after the pause that it has to wait for.
    pub(super) fn give_up(mut self) {
        if let Some(uid) = self.uid.take() {
            self.turns.held().end(&uid);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(uid) = &self.uid {
            self.turns.release(uid);
        }
    }
}

/// Whether a restore is at its items, or will be.
fn needs_turn(restore: &Restore) -> bool {
    restore.metadata.deletion_timestamp.is_none()
        && !is_canceled(restore)
        && matches!(phase_of(restore), None | Some(RestorePhase::New | RestorePhase::InProgress))
}

/// Where a restore stands in line: what a server before this one has begun comes first. Creation times
/// are in whole seconds; the version of an object that nobody has changed since then tells the order
/// within one.
fn place(restore: &Restore) -> impl Ord + use<> {
    let version = restore.resource_version().and_then(|version| version.parse::<u64>().ok());
    let created = restore.creation_timestamp().map(|time| time.0);
    (stage_of(restore).is_none(), created, version, restore.name_any())
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
    fn restores_begin_one_after_the_other_in_the_order_of_their_creation() {
        let turns = Arc::new(Turns::new(1));
        // Within one second the version tells, not the name.
        let all = [new("z", EARLY, 9), new("a", EARLY, 10), new("b", LATE, 8)];
        assert!(turns.take(&all[1], &all).is_none() && turns.take(&all[2], &all).is_none());
        assert!(turns.may_begin(&all[0], &all) && !turns.may_begin(&all[1], &all));
        let first = turns.take(&all[0], &all).unwrap();
        assert!(turns.take(&all[1], &all).is_none());
        drop(first);
        // The watch still shows it as new.
        assert!(turns.take(&all[2], &all).is_none());
        let second = turns.take(&all[1], &all).unwrap();
        assert!(turns.take(&all[2], &all).is_none());
        drop(second);
        assert!(turns.take(&all[2], &all).is_some());
    }

    #[test]
    fn as_many_run_side_by_side_as_the_limit_says() {
        let turns = Arc::new(Turns::new(2));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2), new("c", EARLY, 3)];
        let _first = turns.take(&all[0], &all).unwrap();
        let _second = turns.take(&all[1], &all).unwrap();
        assert!(turns.take(&all[2], &all).is_none());
    }

    #[test]
    fn what_was_begun_by_another_server_comes_first_and_what_waits_for_operations_holds_nobody_up()
    {
        let turns = Arc::new(Turns::new(1));
        let begun = restore("z", LATE, 9, &json!({"phase": "InProgress"}));
        let waits = restore("w", EARLY, 2, &json!({"phase": "WaitingForPluginOperations"}));
        let over = restore("o", EARLY, 3, &json!({"phase": "Completed"}));
        let refused = restore("f", EARLY, 3, &json!({"phase": "FailedValidation"}));
        let all = [new("a", EARLY, 1), begun, waits, over, refused];
        assert!(turns.take(&all[0], &all).is_none());
        assert!(turns.take(&all[2], &all).is_some(), "it needs no turn");
        drop(turns.take(&all[1], &all).unwrap());
        assert!(turns.take(&all[0], &all).is_some());
    }

    #[test]
    fn a_restore_that_is_canceled_or_deleted_needs_no_turn() {
        let turns = Arc::new(Turns::new(1));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2)];
        let _first = turns.take(&all[0], &all).unwrap();
        let mut canceled = (*all[1]).clone();
        canceled.annotations_mut().insert("bowline.io/cancel".to_owned(), "true".to_owned());
        assert!(turns.take(&canceled, &all).is_some());
        let mut deleted = (*all[1]).clone();
        deleted.metadata.deletion_timestamp = all[0].metadata.creation_timestamp.clone();
        assert!(turns.take(&deleted, &all).is_some());
        assert!(turns.take(&all[1], &all).is_none());
    }

    #[test]
    fn one_that_cannot_begin_holds_nobody_up_and_is_first_again_when_it_is_retried() {
        let turns = Arc::new(Turns::new(1));
        let all = [new("a", EARLY, 1), new("b", EARLY, 2), new("c", EARLY, 3)];
        let mut releases = std::pin::pin!(turns.releases());
        turns.take(&all[0], &all).unwrap().give_up();
        assert_eq!(releases.next().now_or_never(), None, "it must not be retried at once");
        let second = turns.take(&all[1], &all).unwrap();
        assert!(turns.take(&all[0], &all).is_none(), "one at a time");
        drop(second);
        assert!(turns.take(&all[0], &all).is_some());
    }

    #[test]
    fn the_end_of_a_turn_is_told_once_it_is_released_or_dropped() {
        let turns = Arc::new(Turns::new(1));
        let mut releases = std::pin::pin!(turns.releases());
        let all = [new("a", EARLY, 1), new("b", EARLY, 2)];
        let turn = turns.take(&all[0], &all).unwrap();
        assert_eq!(releases.next().now_or_never(), None);
        turns.release("uid-a");
        assert_eq!(releases.next().now_or_never(), Some(Some(())));
        let _second = turns.take(&all[1], &all).unwrap();
        drop(turn);
        assert_eq!(releases.next().now_or_never(), None, "it had none any more");
    }
}
