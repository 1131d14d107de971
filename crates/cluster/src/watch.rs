//! State that follows the objects of a cluster.
//!
//! A [`Reflector`] watches objects and applies each event to a state, which others read and wait for. The owner of the
//! state decides what it keeps of an object; [`WatchedObjects`] keeps everything. A watch that ends is opened again,
//! with a backoff. [`wait_until`] does the same for one question, and fails with its watch.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::StreamExt as _;
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Cluster, Error, Query, Result, WatchEvent};
use crate::resource::{GroupResource, Resource};

/// Longest pause before a watch is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pauses before a watch is opened again, until one can be.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(LONGEST_PAUSE)
    .without_max_times();

/// State that a [`Reflector`] keeps up to date.
pub trait ReflectedState: Send + 'static {
    /// Applies an event. After a [`WatchEvent::Started`], existing objects are reported again, and
    /// missing ones may be deleted.
    fn apply(&mut self, event: WatchEvent);

    /// Reacts to a failed watch: no event is reported until the next start.
    fn handle_failure(&mut self) {}
}

/// Reason why objects cannot be watched. All who wait for them share it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{resource} cannot be watched: {error}")]
pub struct WatchError {
    /// Watched resource.
    pub resource: GroupResource,
    /// Error of the watch.
    pub error: Arc<Error>,
}

/// A state, and the watches that keep it up to date.
#[derive(Debug)]
pub struct Reflector<S> {
    sources: Vec<(Arc<Resource>, Query)>,
    current: Mutex<Current<S>>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct Current<S> {
    state: S,
    /// For each source: not open yet, open, or failed.
    watches: Vec<Option<Result<(), WatchError>>>,
}

/// End of a watch.
struct WatchEnd {
    was_open: bool,
    error: Option<Error>,
}

impl<S: ReflectedState> Reflector<S> {
    /// Reflector of these objects. Nothing is watched before [`run`](Self::run).
    pub fn new(sources: impl IntoIterator<Item = (Arc<Resource>, Query)>, state: S) -> Self {
        let sources: Vec<_> = sources.into_iter().collect();
        let watches = vec![None; sources.len()];
        let current = Mutex::new(Current { state, watches });
        Self { sources, current, changes: watch::Sender::default() }
    }

    /// Watches the objects, until dropped.
    pub async fn run(&self, cluster: &dyn Cluster) {
        join_all((0..self.sources.len()).map(|place| self.run_source(cluster, place))).await;
    }

    /// Watches the objects in a task, until the returned set is dropped.
    pub fn spawn(self: &Arc<Self>, cluster: &Arc<dyn Cluster>) -> JoinSet<()> {
        let (reflector, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { reflector.run(&*cluster).await });
        tasks
    }

    /// Waits until each watch is open or has failed.
    pub async fn wait_until_open(&self, deadline: Instant) {
        let mut changes = self.changes.subscribe();
        while self.current.lock().watches.iter().any(Option::is_none)
            && timeout_at(deadline, changes.changed()).await.is_ok()
        {}
    }

    /// Reason why a source is not watched now, if any.
    pub fn failure(&self) -> Option<WatchError> {
        self.current.lock().watches.iter().flatten().find_map(|watch| watch.clone().err())
    }

    /// Reads the state.
    pub fn read<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.current.lock().state)
    }

    /// Changes the state, unnoticed by those who wait.
    pub fn modify<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut self.current.lock().state)
    }

    /// Makes all who wait check again.
    pub fn wake(&self) {
        self.changes.send_modify(|()| ());
    }

    /// Changes from now on.
    pub fn subscribe(&self) -> Changes<'_> {
        Changes { receiver: self.changes.subscribe(), _sender: &self.changes }
    }

    /// Waits until `find` returns a value. It is called at once and after changes, of which it may
    /// see several together. `None` after the deadline.
    pub async fn wait_for<T>(
        &self,
        deadline: Instant,
        mut find: impl FnMut(&S) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.subscribe();
        loop {
            let found = self.read(&mut find);
            if found.is_some() || timeout_at(deadline, changes.changed()).await.is_err() {
                return found;
            }
        }
    }

    async fn run_source(&self, cluster: &dyn Cluster, place: usize) {
        let mut pauses = PAUSES.build();
        loop {
            let WatchEnd { was_open, error } = self.follow(cluster, place).await;
            if let Some(error) = error {
                self.record_failure(place, error);
            }
            if was_open {
                pauses = PAUSES.build();
            }
            sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
        }
    }

    /// Follows one watch to its end.
    async fn follow(&self, cluster: &dyn Cluster, place: usize) -> WatchEnd {
        let (resource, query) = &self.sources[place];
        let mut events = cluster.watch(resource, query.clone());
        let mut was_open = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    was_open = true;
                    self.apply(place, event);
                }
                // One bad object does not hide the others.
                Err(Error::Object(error)) => {
                    tracing::debug!(resource = %resource.id, "an object cannot be read: {error}");
                }
                Err(error) => return WatchEnd { was_open, error: Some(error) },
            }
        }
        WatchEnd { was_open, error: None }
    }

    fn apply(&self, place: usize, event: WatchEvent) {
        {
            let mut current = self.current.lock();
            if let WatchEvent::Started = event {
                current.watches[place] = Some(Ok(()));
            }
            current.state.apply(event);
        }
        self.wake();
    }

    fn record_failure(&self, place: usize, error: Error) {
        let resource = self.sources[place].0.id.clone();
        let failure = WatchError { resource, error: Arc::new(error) };
        tracing::warn!("{failure}");
        {
            let mut current = self.current.lock();
            current.watches[place] = Some(Err(failure));
            current.state.handle_failure();
        }
        self.wake();
    }
}

/// Changes of a state.
pub struct Changes<'a> {
    receiver: watch::Receiver<()>,
    /// Never closed while someone waits.
    _sender: &'a watch::Sender<()>,
}

impl Changes<'_> {
    /// Waits for the next change.
    pub async fn changed(&mut self) {
        // There is a sender.
        let _ = self.receiver.changed().await;
    }
}

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
}

impl ReflectedState for WatchedObjects {
    fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Started => self.0.clear(),
            WatchEvent::Applied(object) => {
                if let Ok(value) = object.item.parse::<Value>() {
                    self.0.insert((object.namespace, object.name), value);
                }
            }
            WatchEvent::Deleted(object) => {
                self.0.remove(&(object.namespace, object.name));
            }
        }
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

/// Watches objects until `find` returns a value. It cannot conclude that an object does not exist:
/// an object not seen so far may come next.
pub async fn wait_until<T>(
    cluster: &dyn Cluster,
    resource: &Arc<Resource>,
    query: Query,
    deadline: Instant,
    mut find: impl FnMut(&WatchedObjects) -> Option<T>,
) -> Result<WaitOutcome<T>> {
    let sources = [(Arc::clone(resource), query)];
    let reflector = Reflector::new(sources, WatchedObjects::default());
    let end = tokio::select! {
        biased;
        end = reflector.follow(cluster, 0) => end,
        found = reflector.wait_for(deadline, &mut find) => {
            return Ok(found.map_or(WaitOutcome::TimedOut, WaitOutcome::Found));
        }
    };
    // The value may have come just before the end.
    let found = reflector.read(find).map(WaitOutcome::Found);
    let error = end.error.unwrap_or_else(|| Error::Unreachable("the watch ended".to_owned()));
    found.ok_or(error)
}
