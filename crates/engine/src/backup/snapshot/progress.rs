//! Snapshots that plugins take, for display while the items of a backup are still being collected.
//!
//! Recording costs no request and never blocks: it happens while applications are frozen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::operation::{Kind, Operation};

/// The snapshots of a run so far.
#[derive(Debug, Default)]
pub struct SnapshotProgress {
    requested: AtomicUsize,
    /// By volume, snapshot and kind, so that a duplicate counts once.
    operations: Mutex<BTreeMap<(String, String, Kind), Operation>>,
}

impl SnapshotProgress {
    /// Number of snapshots requested from plugins, including requests in progress.
    pub fn requested(&self) -> usize {
        self.requested.load(Ordering::Relaxed)
    }

    /// The operations on snapshots that have an ID, in the order of the volumes' names.
    pub fn operations(&self) -> Vec<Operation> {
        let operations = self.operations.lock();
        operations.values().cloned().collect()
    }

    /// Counts a request for a snapshot.
    pub(in crate::backup) fn count_request(&self) {
        self.requested.fetch_add(1, Ordering::Relaxed);
    }

    /// Records an operation that has started. Only those on snapshots are kept.
    pub(in crate::backup) fn record_operation(&self, operation: &Operation) {
        if !operation.kind.is_of_volume() {
            return;
        }
        let (volume, snapshot) = (operation.item.name.clone(), operation.id.to_string());
        let mut operations = self.operations.lock();
        if operations.insert((volume, snapshot, operation.kind), operation.clone()).is_none() {
            // The operations of an earlier process were also requested by it.
            self.requested.fetch_max(operations.len().div_ceil(2), Ordering::Relaxed);
        }
    }
}
