//! Ensures that each item is restored only once, even if several others need it.
//!
//! An item may be scheduled and also be needed by others. The first task does the work; an item that needs it waits.
//! Items that need each other in a cycle do not deadlock: the one whose wait would close the cycle continues as if the
//! other were done.
//!
//! An item that must be passed to an action a second time is retried exclusively ([`ReservedItems::exclusive_retry`]).

use std::collections::HashMap;

use bowline_plugin::ResourceIdentifier;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::item_hash::{ItemHash, ItemHasher};

/// Items that are in progress or done.
#[derive(Debug, Default)]
pub(super) struct ReservedItems {
    inner: Mutex<Inner>,
    /// Held during an exclusive retry.
    retry_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Items in progress, and the ends of their work.
    in_progress: HashMap<ResourceIdentifier, watch::Receiver<()>>,
    /// Items that are done, and whether each is in the cluster now. In the end these are all items of the restore, so
    /// each takes little.
    done: HashMap<ItemHash, bool>,
    hasher: ItemHasher,
    /// Waiting item, and the item that it waits for.
    waits: HashMap<ResourceIdentifier, ResourceIdentifier>,
}

/// Result of a reservation.
pub(super) enum ItemReservation<'a> {
    /// The caller owns the item.
    Acquired(ReservationGuard<'a>),
    /// Another task owns the item and is done, or need not be waited for.
    Done,
}

/// An item in progress. Done when dropped.
pub(super) struct ReservationGuard<'a> {
    reserved_items: &'a ReservedItems,
    id: ResourceIdentifier,
    /// The item that this one is restored for, and that waits for it.
    needed_by: Option<Box<ResourceIdentifier>>,
    is_released: bool,
    exists: bool,
    _done: watch::Sender<()>,
}

impl ReservedItems {
    /// Reserves an item, or waits until its owner is done. A caller without an item that needs it has no reason to
    /// wait.
    pub(super) async fn reserve(
        &self,
        id: &ResourceIdentifier,
        needed_by: Option<&ResourceIdentifier>,
    ) -> ItemReservation<'_> {
        loop {
            let mut done = match self.try_reserve(id, needed_by) {
                ReservationAttempt::Settled(reservation) => return reservation,
                ReservationAttempt::Wait(done) => done,
            };
            // An error means that the sender is gone, which is the end of the wait.
            let _ = done.changed().await;
            if let Some(needed_by) = needed_by {
                self.inner.lock().waits.remove(needed_by);
            }
        }
    }

    /// True if an item is done and in the cluster.
    pub(super) fn is_in_cluster(&self, id: &ResourceIdentifier) -> bool {
        let inner = self.inner.lock();
        inner.done.get(&inner.hasher.hash(id)).copied().unwrap_or(false)
    }

    /// Waits until no other exclusive retry runs, and holds the lock.
    pub(super) async fn exclusive_retry(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.retry_lock.lock().await
    }

    fn try_reserve(
        &self,
        id: &ResourceIdentifier,
        needed_by: Option<&ResourceIdentifier>,
    ) -> ReservationAttempt<'_> {
        let mut inner = self.inner.lock();
        let hash = inner.hasher.hash(id);
        if inner.done.contains_key(&hash) {
            return ReservationAttempt::Settled(ItemReservation::Done);
        }
        match (inner.in_progress.get(id), needed_by) {
            (None, _) => {
                let (sender, receiver) = watch::channel(());
                inner.in_progress.insert(id.clone(), receiver);
                // An item that has another one restored for itself also waits for it, and must not be waited for.
                if let Some(needed_by) = needed_by {
                    inner.waits.insert(needed_by.clone(), id.clone());
                }
                let (id, needed_by) = (id.clone(), needed_by.cloned().map(Box::new));
                ReservationAttempt::Settled(ItemReservation::Acquired(ReservationGuard {
                    reserved_items: self,
                    id,
                    needed_by,
                    is_released: false,
                    exists: false,
                    _done: sender,
                }))
            }
            (Some(done), Some(needed_by)) if !inner.waits_for(id, needed_by) => {
                let done = done.clone();
                inner.waits.insert(needed_by.clone(), id.clone());
                ReservationAttempt::Wait(done)
            }
            (Some(_), _) => ReservationAttempt::Settled(ItemReservation::Done),
        }
    }
}

enum ReservationAttempt<'a> {
    Settled(ItemReservation<'a>),
    Wait(watch::Receiver<()>),
}

impl Inner {
    /// True if an item waits for another, possibly through others. No item waits for two, and no cycle is ever
    /// closed, so the loop ends.
    fn waits_for(&self, from: &ResourceIdentifier, to: &ResourceIdentifier) -> bool {
        let mut next = Some(from);
        while let Some(id) = next {
            if id == to {
                return true;
            }
            next = self.waits.get(id);
        }
        false
    }
}

impl ReservationGuard<'_> {
    pub(super) fn mark_in_cluster(&mut self) {
        self.exists = true;
    }

    /// Releases the item as if it had never been reserved: an item that is not scheduled may still be needed.
    pub(super) fn release(mut self) {
        self.is_released = true;
    }
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        let mut inner = self.reserved_items.inner.lock();
        if let Some(needed_by) = &self.needed_by {
            inner.waits.remove(&**needed_by);
        }
        inner.in_progress.remove(&self.id);
        if !self.is_released {
            let hash = inner.hasher.hash(&self.id);
            inner.done.insert(hash, self.exists);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use futures::future::join;

    fn id(name: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: "things".into(),
            namespace: String::new(),
            name: name.into(),
        }
    }

    #[tokio::test]
    async fn dependent_item_waits_and_scheduled_visit_does_not() {
        let reserved_items = ReservedItems::default();
        let ItemReservation::Acquired(mut guard) = reserved_items.reserve(&id("a"), None).await
        else {
            panic!()
        };
        assert!(matches!(
            reserved_items.reserve(&id("a"), None).now_or_never(),
            Some(ItemReservation::Done)
        ));
        let (a, b) = (id("a"), id("b"));
        let mut waiting = Box::pin(reserved_items.reserve(&a, Some(&b)));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(!reserved_items.is_in_cluster(&a));
        guard.mark_in_cluster();
        drop(guard);
        assert!(reserved_items.is_in_cluster(&a));
        assert!(matches!(waiting.await, ItemReservation::Done));
        assert!(matches!(
            reserved_items.reserve(&id("a"), Some(&id("c"))).now_or_never(),
            Some(ItemReservation::Done)
        ));
    }

    /// A restore of 300,000 items remembers all of them to its end.
    #[tokio::test]
    async fn item_that_is_done_is_only_a_hash() {
        let reserved_items = ReservedItems::default();
        for number in 0..100 {
            let id = id(&number.to_string());
            let ItemReservation::Acquired(guard) = reserved_items.reserve(&id, None).await else {
                panic!()
            };
            drop(guard);
        }
        let inner = reserved_items.inner.lock();
        assert_eq!((inner.done.len(), inner.in_progress.len(), inner.waits.len()), (100, 0, 0));
        assert!(std::mem::size_of::<(ItemHash, bool)>() <= 16);
    }

    #[tokio::test]
    async fn released_item_can_be_reserved_by_a_dependent() {
        let reserved_items = ReservedItems::default();
        let ItemReservation::Acquired(guard) = reserved_items.reserve(&id("a"), None).await else {
            panic!()
        };
        let (a, b) = (id("a"), id("b"));
        let mut waiting = Box::pin(reserved_items.reserve(&a, Some(&b)));
        assert!((&mut waiting).now_or_never().is_none());
        guard.release();
        let ItemReservation::Acquired(guard) = waiting.await else { panic!("nobody has done it") };
        drop(guard);
        assert!(!reserved_items.is_in_cluster(&a));
        assert!(matches!(
            reserved_items.reserve(&id("a"), None).now_or_never(),
            Some(ItemReservation::Done)
        ));
    }

    #[tokio::test]
    async fn item_does_not_wait_for_the_item_that_needs_it() {
        let reserved_items = ReservedItems::default();
        let (a, b, c) = (id("a"), id("b"), id("c"));
        let ItemReservation::Acquired(first) = reserved_items.reserve(&a, None).await else {
            panic!()
        };
        let ItemReservation::Acquired(second) = reserved_items.reserve(&b, Some(&a)).await else {
            panic!()
        };
        let ItemReservation::Acquired(third) = reserved_items.reserve(&c, Some(&b)).await else {
            panic!()
        };
        for needed in [&a, &b, &c] {
            let reservation = reserved_items.reserve(needed, Some(&c)).now_or_never();
            assert!(
                matches!(reservation, Some(ItemReservation::Done)),
                "{needed} waits for this one itself"
            );
        }
        drop((third, second));
        // Once the item is done, the others may be waited for again.
        let other = id("d");
        assert!(reserved_items.reserve(&a, Some(&other)).now_or_never().is_none());
        drop(first);
    }

    #[tokio::test]
    async fn dependency_cycle_does_not_deadlock() {
        let reserved_items = ReservedItems::default();
        let work = async |own: &str, needs: &str| {
            let ItemReservation::Acquired(_guard) = reserved_items.reserve(&id(own), None).await
            else {
                return;
            };
            tokio::task::yield_now().await;
            reserved_items.reserve(&id(needs), Some(&id(own))).await;
        };
        // Three items in a cycle, concurrently, and one that needs itself.
        join(join(work("a", "b"), work("b", "c")), join(work("c", "a"), work("d", "d"))).await;
    }
}
