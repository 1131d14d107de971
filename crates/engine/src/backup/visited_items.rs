//! Items that a run has visited.

use std::collections::HashSet;

use bowline_plugin::ResourceIdentifier;
use parking_lot::Mutex;

use crate::item_hash::{ItemHash, ItemHasher};

/// Items that a run has visited.
#[derive(Debug, Default)]
pub(super) struct VisitedItems {
    hashes: Mutex<HashSet<ItemHash>>,
    hasher: ItemHasher,
}

impl VisitedItems {
    /// Marks an item as visited; false if it already was.
    pub(super) fn mark_visited(&self, id: &ResourceIdentifier) -> bool {
        let key = self.key(id);
        self.hashes.lock().insert(key)
    }

    pub(super) fn unmark(&self, id: &ResourceIdentifier) {
        let key = self.key(id);
        self.hashes.lock().remove(&key);
    }

    pub(super) fn contains(&self, id: &ResourceIdentifier) -> bool {
        let key = self.key(id);
        self.hashes.lock().contains(&key)
    }

    /// Compact key of an item.
    pub(super) fn key(&self, id: &ResourceIdentifier) -> ItemHash {
        self.hasher.hash(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_claimed_once() {
        let visited = VisitedItems::default();
        let id = |name: &str| ResourceIdentifier {
            group: String::new(),
            resource: "pods".into(),
            namespace: "a".into(),
            name: name.into(),
        };
        assert!(visited.mark_visited(&id("x")));
        assert!(!visited.mark_visited(&id("x")));
        assert!(visited.mark_visited(&id("y")));
        visited.unmark(&id("x"));
        assert!(!visited.contains(&id("x")) && visited.contains(&id("y")));
        assert!(visited.mark_visited(&id("x")));
    }
}
