//! State of a run's snapshots in the cluster while they are taken.
//!
//! Two watches for the whole run, opened before the first application is frozen: the VolumeSnapshots of the backup,
//! and all VolumeSnapshotContents, since those carry no label of ours when they are created. Only the state of
//! snapshots that a block waits for is kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::CsiSnapshotError;
use crate::cluster::watch::{ReflectedState, Reflector, WatchError};
use crate::cluster::{Cluster, Query, WatchEvent};
use crate::csi::object::{Content, Snapshot};
use crate::csi::record::SnapshotKey;
use crate::item::Object;
use crate::resource::Resource;

/// Time a driver may report an error before it counts, since the driver retries meanwhile.
pub(super) const ERROR_GRACE: Duration = Duration::from_secs(10);
/// Time the watches may take to start.
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(30);

/// The watches of a run. They end with it.
pub(super) struct SnapshotWatch {
    reflector: Arc<Reflector<ExpectedSnapshots>>,
    _watches: JoinSet<()>,
}

/// The snapshots that blocks wait for.
#[derive(Default)]
struct ExpectedSnapshots(HashMap<SnapshotKey, SnapshotObservation>);

/// Observed state of a snapshot that a block waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotObservation {
    content: Option<Content>,
    snapshot_error: Option<String>,
    is_gone: bool,
    /// Time since which an error is reported.
    failing_since: Option<Instant>,
}

/// Conclusion from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SnapshotState {
    /// Its point in time is fixed.
    Taken(Box<Content>),
    /// The VolumeSnapshot was deleted.
    Deleted,
    /// The driver has reported this error for too long.
    Failed(String),
    /// Nothing is known yet; check again at this time at the latest.
    Wait(Option<Instant>),
}

impl SnapshotObservation {
    fn error(&self) -> Option<String> {
        let of_content = self.content.as_ref().and_then(Content::error);
        of_content.or_else(|| self.snapshot_error.clone())
    }

    /// Sets the time of the first error, and clears it when there is no error any more.
    fn update_failing_since(&mut self, now: Instant) {
        self.failing_since = match self.error() {
            Some(_) => self.failing_since.or(Some(now)),
            None => None,
        };
    }

    /// Conclusion for the VolumeSnapshot with a uid.
    fn state(&self, uid: &str, now: Instant) -> SnapshotState {
        let content = self.content.as_ref();
        let content = content.filter(|content| content.spec.volume_snapshot_ref.uid == uid);
        if let Some(content) = content.filter(|content| content.handle().is_some()) {
            return SnapshotState::Taken(Box::new(content.clone()));
        }
        if self.is_gone {
            return SnapshotState::Deleted;
        }
        match (self.error(), self.failing_since) {
            (Some(error), Some(since)) if now >= since + ERROR_GRACE => {
                SnapshotState::Failed(error)
            }
            (Some(_), Some(since)) => SnapshotState::Wait(Some(since + ERROR_GRACE)),
            _ => SnapshotState::Wait(None),
        }
    }
}

impl SnapshotWatch {
    /// Opens the watches, and returns when they have started, or cannot.
    pub(super) async fn open(
        cluster: &Arc<dyn Cluster>,
        snapshots: &Arc<Resource>,
        contents: &Arc<Resource>,
        uid: &str,
    ) -> Self {
        let of_run =
            Query { label_selector: format!("{}={uid}", label::BACKUP_UID), ..Query::default() };
        let sources = [(Arc::clone(snapshots), of_run), (Arc::clone(contents), Query::default())];
        let reflector = Arc::new(Reflector::new(sources, ExpectedSnapshots::default()));
        let watches = reflector.spawn(cluster);
        // A watch that has not started by then has failed, or delivers later.
        reflector.wait_until_open(Instant::now() + WATCH_START_TIMEOUT).await;
        Self { reflector, _watches: watches }
    }

    /// Reason why nothing can be observed, if any.
    pub(super) fn failure(&self) -> Option<WatchError> {
        self.reflector.failure()
    }

    /// Announces a snapshot that is about to be created.
    pub(super) fn expect(&self, key: &SnapshotKey) {
        let observation = SnapshotObservation::default();
        self.reflector.modify(|expected| expected.0.insert(key.clone(), observation));
    }

    /// Waits until the point in time of a snapshot is fixed, or never will be.
    pub(super) async fn wait_until_taken(
        &self,
        key: &SnapshotKey,
        uid: &str,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<Content, CsiSnapshotError> {
        let deadline = Instant::now() + limit;
        let mut changes = self.reflector.subscribe();
        let outcome = loop {
            let observation = self.reflector.read(|expected| expected.0.get(key).cloned());
            let observation = observation.unwrap_or_default();
            let now = Instant::now();
            let retry_at = match observation.state(uid, now) {
                SnapshotState::Taken(content) => break Ok(*content),
                SnapshotState::Deleted => break Err(CsiSnapshotError::Deleted),
                SnapshotState::Failed(error) => break Err(CsiSnapshotError::Driver(error)),
                SnapshotState::Wait(again) => again,
            };
            if let Some(error) = self.reflector.failure() {
                break Err(error.into());
            }
            if now >= deadline {
                let last_error = observation.error();
                break Err(CsiSnapshotError::TimedOut { limit, last_error });
            }
            let wake = retry_at.map_or(deadline, |again| again.min(deadline));
            tokio::select! {
                () = changes.changed() => {}
                () = tokio::time::sleep_until(wake) => {}
                () = cancel.cancelled() => break Err(CsiSnapshotError::Canceled),
            }
        };
        self.reflector.modify(|expected| expected.0.remove(key));
        outcome
    }
}

impl ReflectedState for ExpectedSnapshots {
    fn apply(&mut self, event: WatchEvent) {
        let (object, is_there) = match &event {
            WatchEvent::Started => return,
            WatchEvent::Applied(object) => (object, true),
            WatchEvent::Deleted(object) => (object, false),
        };
        if object.namespace.is_empty() {
            self.apply_content(object, is_there, Instant::now());
        } else {
            self.apply_snapshot(object, is_there, Instant::now());
        }
    }
}

impl ExpectedSnapshots {
    fn apply_snapshot(&mut self, object: &Object, is_there: bool, now: Instant) {
        let key = (object.namespace.clone(), object.name.clone());
        let Some(observation) = self.0.get_mut(&key) else { return };
        let Ok(snapshot) = Snapshot::read(&object.item) else { return };
        observation.is_gone = !is_there;
        observation.snapshot_error = snapshot.error();
        observation.update_failing_since(now);
    }

    fn apply_content(&mut self, object: &Object, is_there: bool, now: Instant) {
        let Ok(content) = Content::read(&object.item) else { return };
        let of = &content.spec.volume_snapshot_ref;
        let key = (of.namespace.clone(), of.name.clone());
        let Some(observation) = self.0.get_mut(&key) else { return };
        observation.content = is_there.then_some(content);
        observation.update_failing_since(now);
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Item;
    use serde_json::{Value, json};

    use super::*;

    fn content(uid: &str, status: &Value) -> Content {
        let content = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c"},
            "spec": {"volumeSnapshotRef": {"namespace": "shop", "name": "vs", "uid": uid}},
            "status": status,
        });
        Content::read(&Item::from_object(&content).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_is_the_point_in_time_and_an_error_counts_after_a_while() {
        let now = Instant::now();
        let observe = |content: Option<Content>, error: Option<&str>| {
            let mut observation = SnapshotObservation {
                content,
                snapshot_error: error.map(str::to_owned),
                ..SnapshotObservation::default()
            };
            observation.update_failing_since(now);
            observation
        };
        let failed = json!({"error": {"message": " no room "}});
        let taken = json!({"snapshotHandle": "s", "error": {"message": "later"}});
        assert_eq!(observe(None, None).state("u", now), SnapshotState::Wait(None));
        let is_taken = |state: &SnapshotState| matches!(state, SnapshotState::Taken(_));
        let with_handle = observe(Some(content("u", &taken)), Some("x"));
        assert!(is_taken(&with_handle.state("u", now + ERROR_GRACE * 2)), "whatever else it says");
        let of_another = observe(Some(content("other", &taken)), None);
        assert!(!is_taken(&of_another.state("u", now)), "it is of another of the same name");
        for failing in [observe(Some(content("u", &failed)), None), observe(None, Some("no room"))]
        {
            assert_eq!(failing.state("u", now), SnapshotState::Wait(Some(now + ERROR_GRACE)));
            assert_eq!(
                failing.state("u", now + ERROR_GRACE),
                SnapshotState::Failed("no room".into())
            );
        }
        let mut recovered = observe(None, Some("no room"));
        recovered.snapshot_error = None;
        recovered.update_failing_since(now + ERROR_GRACE);
        assert_eq!(recovered.state("u", now + ERROR_GRACE), SnapshotState::Wait(None));
        recovered.is_gone = true;
        assert_eq!(recovered.state("u", now), SnapshotState::Deleted);
    }
}
