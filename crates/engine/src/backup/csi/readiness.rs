//! The operations on CSI snapshots: waiting until they are ready to use.
//!
//! One watch on the contents of a backup serves all of them. A poll without news waits a while for a change, so that
//! the end of an operation is known as soon as it happens.
//!
//! A snapshotter that writes the status of a content while its own older copy arrives can fail to look at the content
//! again for a quarter of an hour. A content that does not change is therefore nudged, less and less often.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{Code, Error, Progress, Result, State};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::watch::{ReflectedState, Reflector};
use crate::cluster::{self, Cluster, Query, Subresource, WatchEvent};
use crate::csi::object::{CONTENTS, Content, resource};
use crate::operation::Operation;
use crate::resource::Resource;

/// Time a poll waits for a change.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a driver may report an error before it counts. No pod is frozen any more, and a snapshotter that has failed a
/// few times waits for minutes before it retries.
const ERROR_GRACE: Duration = Duration::from_mins(5);
/// Time the watch may take to start.
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a change before a content is nudged; it doubles up to the longest.
const FIRST_NUDGE: Duration = Duration::from_secs(10);
const LONGEST_NUDGE: Duration = Duration::from_mins(5);
/// Annotation that changes with every nudge, so that the controllers look at a content.
const NUDGED_ANNOTATION: &str = "bowline.io/nudged";

/// Progress of the operations on the CSI snapshots of a backup.
pub struct ReadinessWatch {
    cluster: Arc<dyn Cluster>,
    selector: String,
    canceled: Mutex<HashSet<String>>,
    session: OnceCell<WatchSession>,
}

struct WatchSession {
    contents: Arc<Resource>,
    reflector: Arc<Reflector<ContentViews>>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct ContentViews {
    /// Contents as the watch reports them.
    contents: HashMap<String, ContentView>,
    /// Last known state of each content, from the watch or a read.
    last_seen: HashMap<String, ContentView>,
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
        Self { cluster, selector, canceled: Mutex::default(), session: OnceCell::new() }
    }

    /// Progress of an operation.
    pub async fn progress(&self, operation: &Operation) -> Result<Progress> {
        let items = &operation.post_operation_items;
        let content = items.iter().find(|item| item.resource == CONTENTS);
        let name = content.map(|content| content.name.as_str()).ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                "the operation does not name its VolumeSnapshotContent",
            )
        })?;
        let session = self.session.get_or_try_init(|| self.open()).await?;
        let reflector = &session.reflector;
        // Without the watch, contents are read one by one.
        reflector.wait_until_open(Instant::now() + WATCH_START_TIMEOUT).await;
        let first = self.check_progress(session, name, operation).await?;
        if first.state != State::Running {
            return Ok(first);
        }
        let before = reflector.read(|views| views.current_content(name).cloned());
        let news = |views: &ContentViews| {
            let has_changed = views.current_content(name) != before.as_ref();
            (has_changed || self.is_canceled(operation)).then_some(())
        };
        let is_silent = reflector.wait_for(Instant::now() + POLL_TIMEOUT, news).await.is_none();
        if is_silent && reflector.modify(|views| views.is_time_to_nudge(name, Instant::now())) {
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
            tracing::debug!(
                content = name,
                "the annotation that triggers the snapshot controller cannot be set: {error}"
            );
        }
    }

    /// Asks for an operation to be stopped. A driver cannot be stopped: the operation ends, and the snapshot is
    /// deleted with the backup.
    pub fn cancel(&self, operation: &Operation) -> Result<()> {
        self.canceled.lock().insert(operation.id.to_string());
        // Wakes the pending polls.
        if let Some(session) = self.session.get() {
            session.reflector.wake();
        }
        Err(Error::new(Code::Unimplemented, "a CSI driver cannot cancel a snapshot"))
    }

    fn is_canceled(&self, operation: &Operation) -> bool {
        self.canceled.lock().contains(operation.id.as_str())
    }

    async fn open(&self) -> Result<WatchSession> {
        let unreachable = |error: cluster::Error| Error::new(Code::Unavailable, error.to_string());
        let discovery = self.cluster.discover().await.map_err(unreachable)?;
        let resources = crate::backup::discover::resources(&discovery);
        let contents = resources.find(&resource(CONTENTS)).cloned().ok_or_else(|| {
            Error::new(Code::NotFound, "the cluster no longer serves VolumeSnapshotContents")
        })?;
        let query = Query { label_selector: self.selector.clone(), ..Query::default() };
        let sources = [(Arc::clone(&contents), query)];
        let reflector = Arc::new(Reflector::new(sources, ContentViews::default()));
        let watch = reflector.spawn(&self.cluster);
        Ok(WatchSession { contents, reflector, _watch: watch })
    }

    async fn check_progress(
        &self,
        session: &WatchSession,
        name: &str,
        operation: &Operation,
    ) -> Result<Progress> {
        let view = match session.reflector.read(|views| views.contents.get(name).cloned()) {
            Some(view) => view,
            None => self.read(session, name).await?,
        };
        Ok(operation_progress(
            &view,
            self.is_canceled(operation),
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
                    "VolumeSnapshotContent {name} was deleted, and its snapshot may be lost"
                );
                Error::new(Code::NotFound, text)
            })?;
        Ok(session.reflector.modify(|views| views.update_view(name, content, Instant::now())))
    }
}

impl ContentViews {
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

    fn current_content(&self, name: &str) -> Option<&Content> {
        self.contents.get(name).map(|view| &view.content)
    }

    /// True if a content has been unchanged for long enough. The next interval is longer.
    fn is_time_to_nudge(&mut self, name: &str, now: Instant) -> bool {
        let first = Nudge { at: now + FIRST_NUDGE, pause: FIRST_NUDGE };
        let nudge = self.nudges.entry(name.to_owned()).or_insert(first);
        if now < nudge.at {
            return false;
        }
        nudge.pause = (nudge.pause * 2).min(LONGEST_NUDGE);
        nudge.at = now + nudge.pause;
        true
    }
}

impl ReflectedState for ContentViews {
    fn apply(&mut self, event: WatchEvent) {
        match event {
            // The watch reports existing objects again; those that it does not report may be gone, and are then read.
            WatchEvent::Started => self.contents.clear(),
            WatchEvent::Applied(object) => {
                if let Ok(content) = Content::read(&object.item) {
                    let view = self.update_view(&object.name, content, Instant::now());
                    self.contents.insert(object.name, view);
                }
            }
            WatchEvent::Deleted(object) => {
                self.contents.remove(&object.name);
                self.last_seen.remove(&object.name);
            }
        }
    }

    /// The known state may be stale: contents are read until the watch is open again.
    fn handle_failure(&mut self) {
        self.contents.clear();
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
            let text = "CSI drivers cannot cancel a snapshot, so Bowline deletes it".to_owned();
            (State::Failed(text), String::new())
        }
        (Some(error), Some(since)) if now >= *since + ERROR_GRACE => {
            (State::Failed(error.clone()), String::new())
        }
        (Some(error), _) => {
            (State::Running, format!("VolumeSnapshotContent {name} is not ready to use: {error}"))
        }
        (None, _) => {
            (State::Running, format!("VolumeSnapshotContent {name} is not ready to use yet"))
        }
    };
    let total = content.restore_size().unwrap_or_default().max(0);
    let done = if state == State::Succeeded { total } else { 0 };
    let (started, updated) = (Some(started_at), Some(time));
    Progress { state, done, total, units: "Bytes".to_owned(), description, started, updated }
}

#[cfg(test)]
mod tests;
