//! Which items a run has met.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_plugin::ResourceIdentifier;

/// The items that a run has met, by a hash of 128 bits. Its keys are random, so nobody can make two
/// names that meet.
#[derive(Debug, Default)]
pub(super) struct Seen {
    hashes: Mutex<HashSet<u128>>,
    keys: (RandomState, RandomState),
}

impl Seen {
    /// Notes an item; false if it was there.
    pub(super) fn claim(&self, id: &ResourceIdentifier) -> bool {
        let key = self.key(id);
        self.lock().insert(key)
    }

    /// Forgets an item.
    pub(super) fn release(&self, id: &ResourceIdentifier) {
        let key = self.key(id);
        self.lock().remove(&key);
    }

    /// Whether an item was met.
    pub(super) fn contains(&self, id: &ResourceIdentifier) -> bool {
        let key = self.key(id);
        self.lock().contains(&key)
    }

    /// What stands for an item in little room.
    pub(super) fn key(&self, id: &ResourceIdentifier) -> u128 {
        let [high, low] = [&self.keys.0, &self.keys.1].map(|key| u128::from(key.hash_one(id)));
        high << 64 | low
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<u128>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_claimed_once() {
        let seen = Seen::default();
        let id = |name: &str| ResourceIdentifier {
            group: String::new(),
            resource: "pods".into(),
            namespace: "a".into(),
            name: name.into(),
        };
        assert!(seen.claim(&id("x")));
        assert!(!seen.claim(&id("x")));
        assert!(seen.claim(&id("y")));
        seen.release(&id("x"));
        assert!(!seen.contains(&id("x")) && seen.contains(&id("y")));
        assert!(seen.claim(&id("x")));
    }
}
