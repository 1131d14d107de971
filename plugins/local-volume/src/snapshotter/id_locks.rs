//! Serializes calls with the same id.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bowline_plugin_sdk::tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use parking_lot::Mutex;

use crate::id::Id;

/// Locks by id.
#[derive(Debug, Default)]
pub(super) struct IdLocks(Mutex<HashMap<Id, Weak<AsyncMutex<()>>>>);

impl IdLocks {
    /// Waits for the lock of an id, which is held until the guard is dropped.
    pub(super) async fn lock(&self, id: &Id) -> OwnedMutexGuard<()> {
        let id_lock = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let found = turns.get(id).and_then(Weak::upgrade);
            found.unwrap_or_else(|| {
                let id_lock = Arc::default();
                turns.insert(id.clone(), Arc::downgrade(&id_lock));
                id_lock
            })
        };
        id_lock.lock_owned().await
    }
}
