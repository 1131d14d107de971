//! Progress of a run.
//!
//! Items are streamed, so their number is unknown before the last list is complete. But each page of a list carries
//! the number of remaining objects, and items that wait for their block are already known. The total is therefore the
//! items found plus the items expected, and is meaningful as soon as each list has started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::SnapshotProgress;

/// Progress of a run.
#[derive(Debug, Default)]
pub struct Progress {
    found: AtomicU64,
    done: AtomicU64,
    /// Items not visited yet.
    expected: AtomicU64,
    /// Lists that have not started.
    lists_not_started: AtomicU64,
    /// The snapshots requested from plugins.
    pub snapshots: SnapshotProgress,
}

impl Progress {
    /// Number of items: those found so far, and those expected.
    pub fn total(&self) -> u64 {
        self.found() + self.expected.load(Ordering::Relaxed)
    }

    /// True if the total is meaningful: every list has reported its length, or is complete.
    pub fn is_total_known(&self) -> bool {
        self.found() > 0 && self.lists_not_started.load(Ordering::Relaxed) == 0
    }

    /// Number of items found so far.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Number of items processed.
    pub fn backed_up(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn count_found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of lists that will be read.
    pub(super) fn plan_lists(&self, count: usize) {
        self.lists_not_started.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// An item that waits for its visit. It counts as expected until this is dropped.
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

/// The number of objects expected from one list, until the list is complete.
#[derive(Debug)]
pub(super) struct ExpectedList {
    progress: Arc<Progress>,
    remaining: AtomicU64,
    has_started: AtomicBool,
}

impl ExpectedList {
    pub(super) fn new(progress: &Arc<Progress>) -> Self {
        Self {
            progress: Arc::clone(progress),
            remaining: AtomicU64::new(0),
            has_started: AtomicBool::new(false),
        }
    }

    /// Sets the number of objects that remain in the list.
    pub(super) fn set(&self, remaining: u64) {
        // Raised first, so that the sum is never less than its parts.
        self.progress.expected.fetch_add(remaining, Ordering::Relaxed);
        let before = self.remaining.swap(remaining, Ordering::Relaxed);
        self.progress.expected.fetch_sub(before, Ordering::Relaxed);
        self.mark_started();
    }

    /// Counts an object that has arrived.
    pub(super) fn count_received(&self) {
        let less = |remaining: u64| remaining.checked_sub(1);
        if self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.progress.expected.fetch_sub(1, Ordering::Relaxed);
        }
        self.mark_started();
    }

    fn mark_started(&self) {
        if !self.has_started.swap(true, Ordering::Relaxed) {
            let less = |lists_not_started: u64| lists_not_started.checked_sub(1);
            // A list that was not planned does not count.
            let _ = self.progress.lists_not_started.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                less,
            );
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
    fn announced_and_spooled_items_count_until_found() {
        let progress = Arc::new(Progress::default());
        progress.plan_lists(2);
        let (long, short) = (ExpectedList::new(&progress), ExpectedList::new(&progress));
        long.set(700);
        for _ in 0..500 {
            long.count_received();
            progress.count_found();
        }
        assert_eq!((progress.total(), progress.is_total_known()), (700, false));
        long.set(200);
        short.count_received();
        let spooled = ExpectedItem::new(&progress);
        assert_eq!((progress.total(), progress.is_total_known()), (701, true));
        drop(spooled);
        progress.count_found();
        // The list is aborted.
        drop(long);
        drop(short);
        assert_eq!((progress.total(), progress.found()), (501, 501));
    }
}
