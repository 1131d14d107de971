//! Waiting for objects by a watch, with a limit.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{Change, Cluster, Error, Query, Result};
use crate::resource::Resource;

/// Objects as they are, by namespace and name.
#[derive(Debug, Default)]
pub struct Seen(HashMap<(String, String), Value>);

impl Seen {
    /// One of them, if it is there.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Takes a change in. Says whether something may be different now.
    pub fn take(&mut self, change: Change) -> bool {
        match change {
            // What is there is told again, and what is not may be gone.
            Change::Began => self.0.clear(),
            Change::There(object) => {
                let Ok(value) = object.item.parse::<Value>() else { return false };
                self.0.insert((object.namespace, object.name), value);
                return true;
            }
            Change::Gone(object) => {
                return self.0.remove(&(object.namespace, object.name)).is_some();
            }
        }
        false
    }
}

/// How waiting ended.
#[derive(Debug)]
pub enum Waited<T> {
    /// With what was waited for.
    For(T),
    /// The limit came first.
    TooLong,
}

/// Follows objects until `look` finds what it looks for. It is asked after each change. It cannot find
/// out that something is not there: what it has not seen may come next.
pub async fn until<T>(
    cluster: &dyn Cluster,
    resource: &Arc<Resource>,
    query: Query,
    deadline: Instant,
    mut look: impl FnMut(&Seen) -> Option<T>,
) -> Result<Waited<T>> {
    let mut seen = Seen::default();
    let mut changes = cluster.watch(resource, query);
    loop {
        match timeout_at(deadline, changes.next()).await {
            Err(_) => return Ok(Waited::TooLong),
            Ok(None) => return Err(Error::Unreachable("the watch ended".to_owned())),
            Ok(Some(Err(Error::Object(_)))) => {}
            Ok(Some(change)) => {
                if seen.take(change?)
                    && let Some(found) = look(&seen)
                {
                    return Ok(Waited::For(found));
                }
            }
        }
    }
}
