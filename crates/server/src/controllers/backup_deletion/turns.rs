//! One request at a time for each backup.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The backups that a request is at.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<HashSet<String>>>);

/// A backup, for as long as it is not dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    backup: String,
}

impl Turns {
    /// Takes a backup, unless another request is at it.
    pub(super) fn take(&self, backup: &str) -> Option<Turn> {
        let is_free = self.lock().insert(backup.to_owned());
        is_free.then(|| Turn { turns: self.clone(), backup: backup.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.backup);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_taken_by_one_at_a_time() {
        let turns = Turns::default();
        let turn = turns.take("a");
        assert!(turn.is_some() && turns.take("a").is_none() && turns.take("b").is_some());
        drop(turn);
        assert!(turns.take("a").is_some());
    }
}
