//! The operations on CSI snapshots: waiting until they are ready to use.
//!
//! One watch on the contents of a backup serves all of them. A poll without news waits a while for a change, so that
//! the end of an operation is known as soon as it happens.
//!
//! A snapshotter that writes the status of a content while its own older copy arrives can fail to look at the content
//! again for a quarter of an hour. A content that does not change is therefore nudged, less and less often.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{Code, Error, Progress, Result, State};
use futures::StreamExt as _;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::object::{CONTENTS, Content, resource};
use crate::cluster::{self, Cluster, Query, Subresource, WatchEvent};
use crate::operation::Operation;
use crate::resource::Resource;

/// Time a poll waits for a change.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a driver may report an error before it counts. No pod is frozen any more, and a snapshotter that has failed a
/// few times waits for minutes before it retries.
const ERROR_GRACE: Duration = Duration::from_mins(5);
/// Time the watch may take to start.
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a refused watch is opened again.
const WATCH_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time without a change before a content is nudged; it doubles up to the longest.
const FIRST_NUDGE: Duration = Duration::from_secs(10);
const LONGEST_NUDGE: Duration = Duration::from_mins(5);
/// Annotation that changes with every nudge, so that the controllers look at a content.
const NUDGED_ANNOTATION: &str = "bowline.io/nudged";

/// Progress of the operations on the CSI snapshots of a backup.
pub struct ReadinessWatch {
    cluster: Arc<dyn Cluster>,
    selector: String,
    shared: Arc<Shared>,
    session: OnceCell<WatchSession>,
}

struct WatchSession {
    contents: Arc<Resource>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    has_started: bool,
    /// Contents as the watch reports them.
    contents: HashMap<String, ContentView>,
    /// Last known state of each content, from the watch or a read.
    last_seen: HashMap<String, ContentView>,
    canceled: HashSet<String>,
    nudges: HashMap<String, Nudge>,
}

/// Time of a content's next nudge, and the interval after that.
#[derive(Clone, Copy, Debug)]
struct Nudge {
    at: Instant,
    pause: Duration,
}

/// A content, and the time since which it has an error.
#[derive(Clone, Debug)]
struct ContentView {
    content: Content,
    failing_since: Option<Instant>,
}

impl ReadinessWatch {
    /// Follows the snapshots of a backup. No request is sent before the first poll.
    pub fn new(cluster: Arc<dyn Cluster>, backup: &str) -> Self {
        let selector = format!("{}={}", label::BACKUP_NAME, label::value(backup));
        Self { cluster, selector, shared: Arc::default(), session: OnceCell::new() }
    }

    /// Progress of an operation.
    pub async fn progress(&self, operation: &Operation) -> Result<Progress> {
        let items = &operation.post_operation_items;
        let content = items.iter().find(|item| item.resource == CONTENTS);
        let name = content.map(|content| content.name.as_str()).ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                "it does not say which VolumeSnapshotContent it is of",
            )
        })?;
        let session = self.session.get_or_try_init(|| self.open()).await?;
        let mut changes = self.shared.changes.subscribe();
        let started = changes.wait_for(|_| self.shared.lock().has_started);
        // Without the watch, contents are read one by one.
        let _ = timeout(WATCH_START_TIMEOUT, started).await;
        let first = self.check_progress(session, name, operation).await?;
        if first.state != State::Running {
            return Ok(first);
        }
        let before = self.shared.current_content(name);
        let is_new = |_: &u64| {
            let is_canceled = self.shared.lock().canceled.contains(operation.id.as_str());
            is_canceled || self.shared.current_content(name) != before
        };
        let is_silent = timeout(POLL_TIMEOUT, changes.wait_for(is_new)).await.is_err();
        if is_silent && self.shared.is_time_to_nudge(name, Instant::now()) {
            self.nudge(session, name).await;
        }
        self.check_progress(session, name, operation).await
    }

    /// Makes the controllers look at a content. If that fails, they look in their own time.
    async fn nudge(&self, session: &WatchSession, name: &str) {
        let change =
            json!({"metadata": {"annotations": {NUDGED_ANNOTATION: Timestamp::now().to_string()}}});
        let patched =
            self.cluster.patch(&session.contents, "", name, Subresource::None, &change).await;
        if let Err(error) = patched {
            tracing::debug!(content = name, "it cannot be nudged: {error}");
        }
    }

    /// Asks for an operation to be stopped. A driver cannot be stopped: the operation ends, and the snapshot is
    /// deleted with the backup.
    pub fn cancel(&self, operation: &Operation) -> Result<()> {
        self.shared.lock().canceled.insert(operation.id.to_string());
        self.shared.notify();
        Err(Error::new(Code::Unimplemented, "a CSI driver cannot be told to stop"))
    }

    async fn open(&self) -> Result<WatchSession> {
        let unreachable = |error: cluster::Error| Error::new(Code::Unavailable, error.to_string());
        let discovery = self.cluster.discover().await.map_err(unreachable)?;
        let resources = crate::backup::discover::resources(&discovery);
        let contents = resources.find(&resource(CONTENTS)).cloned().ok_or_else(|| {
            Error::new(Code::NotFound, "the cluster does not serve VolumeSnapshotContents any more")
        })?;
        let query = Query { label_selector: self.selector.clone(), ..Query::default() };
        let mut watch = JoinSet::new();
        let (cluster, shared) = (Arc::clone(&self.cluster), Arc::clone(&self.shared));
        let of = Arc::clone(&contents);
        watch.spawn(async move { shared.run_watch(&*cluster, &of, query).await });
        Ok(WatchSession { contents, _watch: watch })
    }

    async fn check_progress(
        &self,
        session: &WatchSession,
        name: &str,
        operation: &Operation,
    ) -> Result<Progress> {
        let (known, is_canceled) = {
            let inner = self.shared.lock();
            let is_canceled = inner.canceled.contains(operation.id.as_str());
            (inner.contents.get(name).cloned(), is_canceled)
        };
        let view = match known {
            Some(view) => view,
            None => self.read(session, name).await?,
        };
        Ok(operation_progress(
            &view,
            is_canceled,
            operation.created,
            Instant::now(),
            Timestamp::now(),
        ))
    }

    /// Reads a content that the watch does not know.
    async fn read(&self, session: &WatchSession, name: &str) -> Result<ContentView> {
        let found = self.cluster.get(&session.contents, "", name).await;
        let found = found.map_err(|error| Error::new(Code::Unavailable, error.to_string()))?;
        let content =
            found.and_then(|object| Content::read(&object.item).ok()).ok_or_else(|| {
                let text = format!(
                    "the VolumeSnapshotContent {name} is gone, and its snapshot may be gone with it"
                );
                Error::new(Code::NotFound, text)
            })?;
        Ok(self.shared.lock().update_view(name, content, Instant::now()))
    }
}

impl Inner {
    /// Updates the state of a content. One that has changed is not nudged for a while.
    fn update_view(&mut self, name: &str, content: Content, now: Instant) -> ContentView {
        let before = self.last_seen.get(name);
        if before.is_some_and(|before| !before.content.has_same_state(&content)) {
            self.nudges.remove(name);
        }
        let view = ContentView::new(content, before.and_then(|before| before.failing_since), now);
        self.last_seen.insert(name.to_owned(), view.clone());
        view
    }
}

impl ContentView {
    fn new(content: Content, before: Option<Instant>, now: Instant) -> Self {
        let errs_since = content.error().map(|_| before.unwrap_or(now));
        Self { content, failing_since: errs_since }
    }
}

/// Progress of an operation, given its content.
fn operation_progress(
    view: &ContentView,
    is_canceled: bool,
    started_at: Timestamp,
    now: Instant,
    time: Timestamp,
) -> Progress {
    let ContentView { content, failing_since: errs_since } = view;
    let error = content.error();
    let name = &content.metadata.name;
    let (state, description) = match (&error, errs_since) {
        _ if content.is_ready() => (State::Succeeded, String::new()),
        _ if is_canceled => {
            let text = "its driver cannot be told to stop; the snapshot is not kept".to_owned();
            (State::Failed(text), String::new())
        }
        (Some(error), Some(since)) if now >= *since + ERROR_GRACE => {
            (State::Failed(error.clone()), String::new())
        }
        (Some(error), _) => (
            State::Running,
            format!("the VolumeSnapshotContent {name} is not ready to use: {error}"),
        ),
        (None, _) => {
            (State::Running, format!("the VolumeSnapshotContent {name} is not ready to use yet"))
        }
    };
    let total = content.restore_size().unwrap_or_default().max(0);
    let done = if state == State::Succeeded { total } else { 0 };
    let (started, updated) = (Some(started_at), Some(time));
    Progress { state, done, total, units: "Bytes".to_owned(), description, started, updated }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// True if a content has been unchanged for long enough. The next interval is longer.
    fn is_time_to_nudge(&self, name: &str, now: Instant) -> bool {
        let first = Nudge { at: now + FIRST_NUDGE, pause: FIRST_NUDGE };
        let mut inner = self.lock();
        let nudge = inner.nudges.entry(name.to_owned()).or_insert(first);
        if now < nudge.at {
            return false;
        }
        nudge.pause = (nudge.pause * 2).min(LONGEST_NUDGE);
        nudge.at = now + nudge.pause;
        true
    }

    fn current_content(&self, name: &str) -> Option<Content> {
        self.lock().contents.get(name).map(|view| view.content.clone())
    }

    async fn run_watch(&self, cluster: &dyn Cluster, contents: &Arc<Resource>, query: Query) {
        loop {
            let mut changes = cluster.watch(contents, query.clone());
            while let Some(change) = changes.next().await {
                match change {
                    Ok(change) => self.apply(change),
                    Err(cluster::Error::Object(_)) => {}
                    Err(error) => {
                        tracing::warn!("VolumeSnapshotContents cannot be followed: {error}");
                        // The known state may be stale.
                        let mut inner = self.lock();
                        inner.contents.clear();
                        inner.has_started = true;
                    }
                }
                self.notify();
            }
            sleep(WATCH_RETRY_PAUSE).await;
        }
    }

    fn apply(&self, change: WatchEvent) {
        let mut inner = self.lock();
        match change {
            // The watch reports existing objects again; those that it does not report may be gone, and are then read.
            WatchEvent::Started => {
                inner.has_started = true;
                inner.contents.clear();
            }
            WatchEvent::Applied(object) => {
                if let Ok(content) = Content::read(&object.item) {
                    let view = inner.update_view(&object.name, content, Instant::now());
                    inner.contents.insert(object.name, view);
                }
            }
            WatchEvent::Deleted(object) => {
                inner.contents.remove(&object.name);
                inner.last_seen.remove(&object.name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
