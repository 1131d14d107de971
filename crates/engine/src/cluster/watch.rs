//! Waiting for objects by a watch, with a limit.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{Cluster, Error, Query, Result, WatchEvent};
use crate::resource::Resource;

/// Objects as they are, by namespace and name.
#[derive(Debug, Default)]
pub struct WatchedObjects(HashMap<(String, String), Value>);

impl WatchedObjects {
    /// One of them, if it is there.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Takes a change in. Says whether something may be different now.
    pub fn apply(&mut self, change: WatchEvent) -> bool {
        match change {
            // What is there is told again, and what is not may be gone.
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

/// How waiting ended.
#[derive(Debug)]
pub enum WaitOutcome<T> {
    /// With what was waited for.
    Found(T),
    /// The limit came first.
    TimedOut,
}

/// Follows objects until `find` finds what it looks for. It is asked after each change. It cannot find
/// out that something is not there: what it has not seen may come next.
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
