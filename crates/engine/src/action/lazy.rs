//! Values that are read on first use.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use bowline_plugin::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Number of attempts at a failing read. After that the last failure is the answer: a forbidden
/// list must not be requested again for every item.
const MAX_ATTEMPTS: usize = 3;

/// Value that is read on first use, once for all callers.
pub(super) struct Lazy<T> {
    value: OnceCell<T>,
    failures: Mutex<Vec<Error>>,
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self { value: OnceCell::new(), failures: Mutex::default() }
    }
}

impl<T: Send> Lazy<T> {
    /// Value. `read` is awaited only by the first caller; the others wait for it.
    pub(super) async fn get(&self, read: impl Future<Output = Result<T>> + Send) -> Result<&T> {
        let try_to_read = || async {
            if let Some(error) = self.exhausted_error() {
                return Err(error);
            }
            let read = read.await;
            if let Err(error) = &read {
                let mut failures = self.failures.lock();
                failures.push(error.clone());
            }
            read
        };
        self.value.get_or_try_init(try_to_read).await
    }

    fn exhausted_error(&self) -> Option<Error> {
        let failures = self.failures.lock();
        failures.get(MAX_ATTEMPTS - 1).cloned()
    }
}

/// Values by key that are read on first use.
pub(super) struct LazyMap<K, T> {
    values: Mutex<HashMap<K, Arc<Lazy<T>>>>,
}

impl<K, T> Default for LazyMap<K, T> {
    fn default() -> Self {
        Self { values: Mutex::default() }
    }
}

impl<K: Eq + Hash, T> LazyMap<K, T> {
    /// Value of a key, read or not.
    pub(super) fn entry(&self, key: K) -> Arc<Lazy<T>> {
        let mut values = self.values.lock();
        Arc::clone(values.entry(key).or_default())
    }
}
