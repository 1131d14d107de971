//! Waiting for objects by a watch, with a timeout.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{Cluster, Error, Query, Result, WatchEvent};
use crate::resource::Resource;

/// Current objects, by namespace and name.
#[derive(Debug, Default)]
pub struct WatchedObjects(HashMap<(String, String), Value>);

impl WatchedObjects {
    /// Object, if it exists.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Applies an event. Returns true if objects may have changed.
    pub fn apply(&mut self, change: WatchEvent) -> bool {
        match change {
            // Existing objects are reported again, and missing ones may be deleted.
            WatchEvent::Started => self.0.clear(),
            WatchEvent::Applied(object) => {
                let Ok(value) = object.item.parse::<Value>() else { return false };
                self.0.insert((object.namespace, object.name), value);
                return true;
            }
            WatchEvent::Deleted(object) => {
                return self.0.remove(&(object.namespace, object.name)).is_some();
            }
        }
        false
    }
}

/// Outcome of waiting.
#[derive(Debug)]
pub enum WaitOutcome<T> {
    /// The expected value.
    Found(T),
    /// The timeout has passed.
    TimedOut,
}

/// Watches objects until `find` returns a value. `find` is called after each change. It cannot
/// conclude that an object does not exist: an object not seen so far may come next.
pub async fn wait_until<T>(
    cluster: &dyn Cluster,
    resource: &Arc<Resource>,
    query: Query,
    deadline: Instant,
    mut find: impl FnMut(&WatchedObjects) -> Option<T>,
) -> Result<WaitOutcome<T>> {
    let mut objects = WatchedObjects::default();
    let mut changes = cluster.watch(resource, query);
    loop {
        match timeout_at(deadline, changes.next()).await {
            Err(_) => return Ok(WaitOutcome::TimedOut),
            Ok(None) => return Err(Error::Unreachable("the watch ended".to_owned())),
            Ok(Some(Err(Error::Object(_)))) => {}
            Ok(Some(change)) => {
                if objects.apply(change?)
                    && let Some(found) = find(&objects)
                {
                    return Ok(WaitOutcome::Found(found));
                }
            }
        }
    }
}
