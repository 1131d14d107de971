//! Progress of a restore, for observers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Progress of a restore.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
    /// Items that are missing because the archive is damaged.
    lost: AtomicU64,
    /// Namespaces that are terminating and that the restore waits for.
    terminating_namespaces: watch::Sender<BTreeSet<String>>,
}

impl Progress {
    /// Number of items to restore.
    pub fn total(&self) -> u64 {
        // Items that actions add are not known in advance.
        self.total.load(Ordering::Relaxed).max(self.restored()) + self.lost()
    }

    /// Number of items that are missing because the archive is damaged.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Number of items that have been processed.
    pub fn restored(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until the set of terminating namespaces differs from `previous`, and returns it. These namespaces must
    /// be gone before anything is restored into them.
    pub async fn changed_terminating_namespaces(
        &self,
        previous: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let mut waiting = self.terminating_namespaces.subscribe();
        let now = waiting.wait_for(|now| now != previous).await.map(|now| now.clone());
        match now {
            Ok(now) => now,
            // The sender is gone, so the set cannot change any more.
            Err(_) => std::future::pending().await,
        }
    }

    pub(super) fn add_terminating_namespace(&self, namespace: &str) {
        self.terminating_namespaces
            .send_if_modified(|waiting| waiting.insert(namespace.to_owned()));
    }

    pub(super) fn remove_terminating_namespace(&self, namespace: &str) {
        self.terminating_namespaces.send_if_modified(|waiting| waiting.remove(namespace));
    }

    /// Replaces a number of planned items by another.
    pub(super) fn replan(&self, before: usize, now: usize) {
        self.total.fetch_add(now as u64, Ordering::Relaxed);
        self.total.fetch_sub(before as u64, Ordering::Relaxed);
    }

    pub(super) fn add_expected(&self, items: usize) {
        self.total.fetch_add(items as u64, Ordering::Relaxed);
    }

    pub(super) fn add_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_lost(&self, items: usize) {
        self.lost.fetch_add(items as u64, Ordering::Relaxed);
    }
}
