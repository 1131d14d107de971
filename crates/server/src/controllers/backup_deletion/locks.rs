//! One request at a time for each backup.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// Backups that a request is working on.
#[derive(Clone, Debug, Default)]
pub(super) struct DeletionLocks(Arc<Mutex<HashSet<String>>>);

/// Lock on a backup, until it is dropped.
#[derive(Debug)]
pub(super) struct DeletionLock {
    locks: DeletionLocks,
    backup: String,
}

impl DeletionLocks {
    /// Locks a backup, unless another request is working on it.
    pub(super) fn try_lock(&self, backup: &str) -> Option<DeletionLock> {
        let is_free = self.0.lock().insert(backup.to_owned());
        is_free.then(|| DeletionLock { locks: self.clone(), backup: backup.to_owned() })
    }
}

impl Drop for DeletionLock {
    fn drop(&mut self) {
        self.locks.0.lock().remove(&self.backup);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_is_deleted_by_one_request_at_a_time() {
        let turns = DeletionLocks::default();
        let turn = turns.try_lock("a");
        assert!(turn.is_some() && turns.try_lock("a").is_none() && turns.try_lock("b").is_some());
        drop(turn);
        assert!(turns.try_lock("a").is_some());
    }
}
