//! How far a run is.
//!
//! Items stream, so that how many there are is not known before the last list is through. But a list says with
//! each page how many objects are still to come, and items that wait for their block are known to be there. So
//! the total is what was found and what is expected, and means something as soon as each list has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::SnapshotProgress;

/// How far a run is.
#[derive(Debug, Default)]
pub struct Progress {
    found: AtomicU64,
    done: AtomicU64,
    /// Items that nobody has visited yet.
    expected: AtomicU64,
    /// Lists that have not begun.
    unbegun: AtomicU64,
    /// The snapshots that plugins were asked for.
    pub snapshots: SnapshotProgress,
}

impl Progress {
    /// How many items there are: those that have been found so far, and those that are expected.
    pub fn total(&self) -> u64 {
        self.found() + self.expected.load(Ordering::Relaxed)
    }

    /// Whether the total is more than a beginning: every list has said how long it is, or is through.
    pub fn is_total_known(&self) -> bool {
        self.found() > 0 && self.unbegun.load(Ordering::Relaxed) == 0
    }

    /// How many items have been found so far.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// How many of them are through.
    pub fn backed_up(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn find(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// So many lists are going to be read.
    pub(super) fn plan_lists(&self, count: usize) {
        self.unbegun.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// An item that waits for its visit. It is expected until this is dropped.
#[derive(Debug)]
pub(super) struct ExpectedItem(Arc<Progress>);

impl ExpectedItem {
    pub(super) fn new(progress: &Arc<Progress>) -> Self {
        progress.expected.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(progress))
    }
}

impl Drop for ExpectedItem {
    fn drop(&mut self) {
        self.0.expected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is expected of one list, until it is through.
#[derive(Debug)]
pub(super) struct ExpectedList {
    progress: Arc<Progress>,
    left: AtomicU64,
    has_begun: AtomicBool,
}

impl ExpectedList {
    pub(super) fn new(progress: &Arc<Progress>) -> Self {
        Self {
            progress: Arc::clone(progress),
            left: AtomicU64::new(0),
            has_begun: AtomicBool::new(false),
        }
    }

    /// So many objects of the list are still to come.
    pub(super) fn set(&self, left: u64) {
        // Raised first, so that the sum is never less than its parts.
        self.progress.expected.fetch_add(left, Ordering::Relaxed);
        let before = self.left.swap(left, Ordering::Relaxed);
        self.progress.expected.fetch_sub(before, Ordering::Relaxed);
        self.begin();
    }

    /// One of them has come.
    pub(super) fn take(&self) {
        let less = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.progress.expected.fetch_sub(1, Ordering::Relaxed);
        }
        self.begin();
    }

    fn begin(&self) {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            let less = |unbegun: u64| unbegun.checked_sub(1);
            // One that was not planned counts for nothing.
            let _ = self.progress.unbegun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

impl Drop for ExpectedList {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_announce_and_what_is_held_counts_until_it_is_found() {
        let progress = Arc::new(Progress::default());
        progress.plan_lists(2);
        let (long, short) = (ExpectedList::new(&progress), ExpectedList::new(&progress));
        long.set(700);
        for _ in 0..500 {
            long.take();
            progress.find();
        }
        assert_eq!((progress.total(), progress.is_total_known()), (700, false));
        long.set(200);
        short.take();
        let held = ExpectedItem::new(&progress);
        assert_eq!((progress.total(), progress.is_total_known()), (701, true));
        drop(held);
        progress.find();
        // It breaks off.
        drop(long);
        drop(short);
        assert_eq!((progress.total(), progress.found()), (501, 501));
    }
}
