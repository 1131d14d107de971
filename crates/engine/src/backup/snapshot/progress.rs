//! The snapshots that plugins take, for whoever shows them while the items of a backup are still being collected.
//!
//! Writing to it costs no request and waits for nobody: it happens while applications are frozen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::operation::{Kind, Operation};

/// The snapshots of a run so far.
#[derive(Debug, Default)]
pub struct SnapshotProgress {
    requested: AtomicUsize,
    /// By volume, snapshot and kind, so that one that comes twice counts once.
    operations: Mutex<BTreeMap<(String, String, Kind), Operation>>,
}

impl SnapshotProgress {
    /// How many snapshots plugins were asked for, or are being asked for.
    pub fn requested(&self) -> usize {
        self.requested.load(Ordering::Relaxed)
    }

    /// The operations on snapshots that have an id, in the order of the volumes' names.
    pub fn operations(&self) -> Vec<Operation> {
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.values().cloned().collect()
    }

    /// A plugin is asked for a snapshot.
    pub(in crate::backup) fn count_request(&self) {
        self.requested.fetch_add(1, Ordering::Relaxed);
    }

    /// An operation has begun. Only those on snapshots are kept.
    pub(in crate::backup) fn record_operation(&self, operation: &Operation) {
        if !operation.kind.is_of_volume() {
            return;
        }
        let (volume, snapshot) = (operation.item.name.clone(), operation.id.to_string());
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if operations.insert((volume, snapshot, operation.kind), operation.clone()).is_none() {
            // One of an earlier process was asked for by that one.
            self.requested.fetch_max(operations.len().div_ceil(2), Ordering::Relaxed);
        }
    }
}
