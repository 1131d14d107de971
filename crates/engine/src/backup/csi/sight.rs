//! What the cluster says of the snapshots of a run while they are taken.
//!
//! Two watches for the whole run, opened before the first application is frozen: the VolumeSnapshots of
//! the backup, and all VolumeSnapshotContents, since those carry no label of ours when they are made.
//! Only what concerns snapshots that somebody waits for is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::label;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::object::{Content, Snapshot};
use crate::cluster::{Change, Cluster, Error, Query};
use crate::item::Object;
use crate::resource::Resource;

/// How long a driver may report an error before it counts: it tries again meanwhile.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// The pause before a watch is opened again that was refused.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the watches may take to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// The namespace and the name of a VolumeSnapshot.
pub(super) type Key = (String, String);

/// The watches of a run. They end with it.
pub(super) struct Sight {
    shared: Arc<Shared>,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    expected: HashMap<Key, Seen>,
    /// How each watch is: not begun, begun, or broken for a reason.
    watches: [Option<Result<(), String>>; 2],
}

/// What is known of a snapshot that somebody waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    content: Option<Content>,
    snapshot_error: Option<String>,
    is_gone: bool,
    /// Since when an error is reported.
    errs_since: Option<Instant>,
}

/// What that means for who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its point in time is fixed.
    Taken(Box<Content>),
    /// It will not be.
    Failed(String),
    /// Nothing is known yet; at the latest it is looked again then.
    Wait(Option<Instant>),
}

impl Seen {
    fn error(&self) -> Option<String> {
        let of_content = self.content.as_ref().and_then(Content::error);
        of_content.or_else(|| self.snapshot_error.clone())
    }

    /// Takes the time of the first error, and forgets it when there is none any more.
    fn note_error(&mut self, now: Instant) {
        self.errs_since = match self.error() {
            Some(_) => self.errs_since.or(Some(now)),
            None => None,
        };
    }

    /// What is known means, for the VolumeSnapshot with a uid.
    fn judge(&self, uid: &str, now: Instant) -> Verdict {
        let content = self.content.as_ref();
        let content = content.filter(|content| content.spec.volume_snapshot_ref.uid == uid);
        if let Some(content) = content.filter(|content| content.handle().is_some()) {
            return Verdict::Taken(Box::new(content.clone()));
        }
        if self.is_gone {
            return Verdict::Failed("somebody has deleted its VolumeSnapshot".to_owned());
        }
        match (self.error(), self.errs_since) {
            (Some(error), Some(since)) if now >= since + GRACE => Verdict::Failed(error),
            (Some(_), Some(since)) => Verdict::Wait(Some(since + GRACE)),
            _ => Verdict::Wait(None),
        }
    }
}

impl Sight {
    /// Opens the watches, and returns when they have begun, or cannot.
    pub(super) async fn open(
        cluster: &Arc<dyn Cluster>,
        snapshots: &Arc<Resource>,
        contents: &Arc<Resource>,
        uid: &str,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let of_run =
            Query { label_selector: format!("{}={uid}", label::BACKUP_UID), ..Query::default() };
        let mut watches = JoinSet::new();
        for (place, resource, query) in [(0, snapshots, of_run), (1, contents, Query::default())] {
            let (cluster, shared) = (Arc::clone(cluster), Arc::clone(&shared));
            let resource = Arc::clone(resource);
            watches.spawn(async move { shared.follow(&*cluster, &resource, query, place).await });
        }
        let sight = Self { shared, _watches: watches };
        let mut changes = sight.shared.changes.subscribe();
        let begun = changes.wait_for(|_| sight.shared.lock().watches.iter().all(Option::is_some));
        // One that has not begun by then is broken, or tells later.
        let _ = timeout(BEGIN, begun).await;
        sight
    }

    /// Why nothing can be seen, if that is so.
    pub(super) fn broken(&self) -> Option<String> {
        self.shared.lock().broken()
    }

    /// Says that a snapshot is about to be made.
    pub(super) fn expect(&self, key: &Key) {
        self.shared.lock().expected.insert(key.clone(), Seen::default());
    }

    /// Waits until the point in time of a snapshot is fixed, or will not be.
    pub(super) async fn taken(
        &self,
        key: &Key,
        uid: &str,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<Content, String> {
        let deadline = Instant::now() + limit;
        let mut changes = self.shared.changes.subscribe();
        let outcome = loop {
            changes.mark_unchanged();
            let (seen, broken) = {
                let inner = self.shared.lock();
                (inner.expected.get(key).cloned().unwrap_or_default(), inner.broken())
            };
            let now = Instant::now();
            let again = match seen.judge(uid, now) {
                Verdict::Taken(content) => break Ok(*content),
                Verdict::Failed(reason) => break Err(reason),
                Verdict::Wait(again) => again,
            };
            if let Some(reason) = broken {
                break Err(reason);
            }
            if now >= deadline {
                let last = seen.error().map(|error| format!(": {error}")).unwrap_or_default();
                break Err(format!(
                    "its driver has not taken the snapshot within {} s (csiSnapshotTimeout){last}",
                    limit.as_secs()
                ));
            }
            let wake = again.map_or(deadline, |again| again.min(deadline));
            tokio::select! {
                // The sender is in `shared`.
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(wake) => {}
                () = cancel.cancelled() => break Err("the backup was canceled".to_owned()),
            }
        };
        self.shared.lock().expected.remove(key);
        outcome
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows one kind of objects until the run ends.
    async fn follow(
        &self,
        cluster: &dyn Cluster,
        resource: &Arc<Resource>,
        query: Query,
        place: usize,
    ) {
        loop {
            let mut heard = cluster.watch(resource, query.clone());
            while let Some(change) = heard.next().await {
                match change {
                    Ok(Change::Began) => self.lock().watches[place] = Some(Ok(())),
                    Ok(change) => self.lock().take(&change, Instant::now()),
                    Err(Error::Object(_)) => continue,
                    Err(error) => {
                        let text = format!("{} cannot be followed: {error}", resource.id);
                        self.lock().watches[place] = Some(Err(text));
                    }
                }
                self.changes.send_modify(|count| *count = count.wrapping_add(1));
            }
            sleep(PAUSE).await;
        }
    }
}

impl Inner {
    fn broken(&self) -> Option<String> {
        self.watches.iter().flatten().find_map(|watch| watch.clone().err())
    }

    fn take(&mut self, change: &Change, now: Instant) {
        let (object, is_there) = match change {
            Change::Began => return,
            Change::There(object) => (object, true),
            Change::Gone(object) => (object, false),
        };
        if object.namespace.is_empty() {
            self.take_content(object, is_there, now);
        } else {
            self.take_snapshot(object, is_there, now);
        }
    }

    fn take_snapshot(&mut self, object: &Object, is_there: bool, now: Instant) {
        let key = (object.namespace.clone(), object.name.clone());
        let Some(seen) = self.expected.get_mut(&key) else { return };
        let Ok(snapshot) = Snapshot::read(&object.item) else { return };
        seen.is_gone = !is_there;
        seen.snapshot_error = snapshot.error();
        seen.note_error(now);
    }

    fn take_content(&mut self, object: &Object, is_there: bool, now: Instant) {
        let Ok(content) = Content::read(&object.item) else { return };
        let of = &content.spec.volume_snapshot_ref;
        let key = (of.namespace.clone(), of.name.clone());
        let Some(seen) = self.expected.get_mut(&key) else { return };
        seen.content = is_there.then_some(content);
        seen.note_error(now);
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
        let seen = |content: Option<Content>, error: Option<&str>| {
            let mut seen =
                Seen { content, snapshot_error: error.map(str::to_owned), ..Seen::default() };
            seen.note_error(now);
            seen
        };
        let failed = json!({"error": {"message": " no room "}});
        let taken = json!({"snapshotHandle": "s", "error": {"message": "later"}});
        assert_eq!(seen(None, None).judge("u", now), Verdict::Wait(None));
        let is_taken = |verdict: &Verdict| matches!(verdict, Verdict::Taken(_));
        let with_handle = seen(Some(content("u", &taken)), Some("x"));
        assert!(is_taken(&with_handle.judge("u", now + GRACE * 2)), "whatever else it says");
        let of_another = seen(Some(content("other", &taken)), None);
        assert!(!is_taken(&of_another.judge("u", now)), "it is of another of the same name");
        for failing in [seen(Some(content("u", &failed)), None), seen(None, Some("no room"))] {
            assert_eq!(failing.judge("u", now), Verdict::Wait(Some(now + GRACE)));
            assert_eq!(failing.judge("u", now + GRACE), Verdict::Failed("no room".into()));
        }
        let mut mended = seen(None, Some("no room"));
        mended.snapshot_error = None;
        mended.note_error(now + GRACE);
        assert_eq!(mended.judge("u", now + GRACE), Verdict::Wait(None));
        mended.is_gone = true;
        assert!(matches!(mended.judge("u", now), Verdict::Failed(_)));
    }
}
