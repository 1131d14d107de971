//! Snapshots of CSI drivers.
//!
//! Only the controllers of a driver can delete its snapshots, and they do so for a
//! VolumeSnapshotContent that goes. The one from the backup is seldom in the cluster any more, so that
//! one is made for the purpose:
//!
//! 1. What is left of the content and the VolumeSnapshot from the backup goes, and keeps the snapshot.
//! 2. A static content with the handle of the snapshot is created. Its name follows from the handle, so
//!    that a server that goes on finds it. It has the finalizer of the controllers from the start, so
//!    that it cannot go before they have done their work; and its status names the snapshot, without
//!    which they would let it go and keep the snapshot.
//! 3. It is deleted with the policy `Delete`, and waited for until it is really gone.
//!
//! Velero makes one under a random name, waits two seconds, and takes it for done.
//!
//! What a restore has made of the same snapshot stays, as in Velero: it is not this backup's to delete.

mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{Item, one_line};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{Job, Stopped, note};
use crate::cluster::{self, Change, Cluster, Door, Query, drivers};
use crate::item::Object;
use crate::journal::digest;
use crate::point::{self, Point};
use crate::report::Report;
use crate::resource::{Resource, Resources};
use crate::restore::action::csi::{CONTENTS, SNAPSHOTS, kind};
pub use plan::Content;
pub(super) use plan::{contents, hints_at, taken_by};

/// How many snapshots are deleted at a time.
const AT_ONCE: usize = 16;
/// After how long the controllers are made to look again; it doubles each time.
const FIRST_NUDGE: Duration = Duration::from_secs(1);
/// How many snapshots are named that would be left.
const NAMED: usize = 5;
/// What keeps a content until the controllers have deleted its snapshot.
const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Lets the controllers take care of a content whose VolumeSnapshot is gone.
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// Changes with every attempt, so that the controllers look at a content again at once.
const ATTEMPT: &str = "bowline.io/deletion-attempt";

/// What the cluster must serve.
struct Kinds {
    contents: Arc<Resource>,
    snapshots: Option<Arc<Resource>>,
    events: Option<Arc<Resource>>,
}

async fn discover(cluster: &dyn Cluster) -> cluster::Result<Resources> {
    let served = cluster.discover().await?.resources.into_iter();
    Ok(Resources::new(served.filter(|served| !served.id.resource.contains('/'))))
}

impl Kinds {
    fn of(resources: &Resources) -> Option<Self> {
        Some(Self {
            contents: Arc::clone(resources.find(&kind(CONTENTS))?),
            snapshots: resources.find(&kind(SNAPSHOTS)).cloned(),
            events: resources.core("events").cloned(),
        })
    }
}

/// Whether somebody can delete CSI snapshots, or all that would be left, and why.
pub async fn ready(cluster: &dyn Cluster, doomed: &[Content]) -> Result<(), Vec<String>> {
    if doomed.is_empty() {
        return Ok(());
    }
    let look = async {
        let resources = discover(cluster).await?;
        let drivers = drivers::installed(cluster, &resources).await?;
        Ok::<_, cluster::Error>((Kinds::of(&resources).is_some(), drivers))
    };
    let (is_served, drivers) = match look.await {
        Ok(found) => found,
        Err(error) => {
            return Err(vec![format!(
                "it is not known whether CSI snapshots can be deleted: {}",
                one_line(&error)
            )]);
        }
    };
    if !is_served {
        let all: Vec<&Content> = doomed.iter().collect();
        return Err(vec![format!(
            "the cluster does not serve VolumeSnapshotContents, so that nobody deletes CSI snapshots, \
             and these would be left: {}",
            some(&all)
        )]);
    }
    let wanted: BTreeSet<&str> = doomed.iter().map(|content| content.driver.as_str()).collect();
    let missing = wanted.into_iter().filter(|driver| !drivers.contains(*driver));
    let mut reasons: Vec<String> = missing
        .map(|driver| {
            let of_driver = doomed.iter().filter(|content| content.driver == driver);
            let of_driver: Vec<&Content> = of_driver.collect();
            format!(
                "the CSI driver {driver} is not installed in this cluster, and its snapshots would be \
                 left: {}",
                some(&of_driver)
            )
        })
        .collect();
    let of_groups: Vec<&Content> = doomed.iter().filter(|one| !one.group.is_empty()).collect();
    if !of_groups.is_empty() {
        // A snapshotter lets the content of a group's member go and keeps the snapshot, so that nothing
        // proves that it is deleted.
        reasons.push(format!(
            "nothing would prove that snapshots that were taken as a group are deleted, and these might \
             be left: {}",
            some(&of_groups)
        ));
    }
    if reasons.is_empty() { Ok(()) } else { Err(reasons) }
}

/// The first few of many snapshots, and how many more there are.
fn some(contents: &[&Content]) -> String {
    let first: Vec<&str> = contents.iter().take(NAMED).map(|one| one.handle.as_str()).collect();
    let first = first.join(", ");
    match contents.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Deletes the CSI snapshots of a backup, several at a time. What fails is told, and does not keep the
/// others.
pub(super) async fn delete(job: &Job<'_>, report: &Report) -> Result<(), Stopped> {
    if job.plan.csi.is_empty() {
        return Ok(());
    }
    let kinds = match discover(job.cluster).await {
        Ok(resources) => Kinds::of(&resources),
        Err(error) => {
            note(report, format!("error deleting CSI snapshots: {}", one_line(&error)));
            return Ok(());
        }
    };
    let Some(kinds) = kinds else {
        note(report, "error deleting CSI snapshots: nobody serves their contents".to_owned());
        return Ok(());
    };
    let deletions =
        job.plan.csi.iter().map(|doomed| delete_one(job, &kinds, doomed, report).boxed());
    // Collected, since a closure over borrowed values must not live across a wait.
    let deletions: Vec<BoxFuture<'_, Result<(), Stopped>>> = deletions.collect();
    let ended: Vec<_> = stream::iter(deletions).buffer_unordered(AT_ONCE).collect().await;
    ended.into_iter().collect()
}

async fn delete_one(
    job: &Job<'_>,
    kinds: &Kinds,
    doomed: &Content,
    report: &Report,
) -> Result<(), Stopped> {
    if job.stop.is_cancelled() {
        return Err(Stopped);
    }
    let Content { handle, driver, volume, .. } = doomed;
    tracing::info!(snapshot = handle, volume, driver, "deleting a CSI snapshot");
    let deletion = Deletion { job, kinds, doomed };
    let deleted = tokio::select! {
        deleted = deletion.carry_out() => deleted,
        // The controllers go on. The next server finds how far they are.
        () = job.stop.cancelled() => return Err(Stopped),
    };
    if let Err(reason) = deleted {
        let of = if volume.is_empty() { String::new() } else { format!(" of {volume}") };
        note(report, format!("error deleting CSI snapshot {handle}{of}: {reason}"));
    }
    Ok(())
}

/// A snapshot that goes.
struct Deletion<'a> {
    job: &'a Job<'a>,
    kinds: &'a Kinds,
    doomed: &'a Content,
}

/// A content in the cluster.
struct Found {
    name: String,
    uid: String,
    value: Value,
    is_going: bool,
}

impl Found {
    fn of(object: &Object) -> Result<Self, String> {
        let value: Value = object.item.parse().map_err(|error| one_line(&error))?;
        let uid = text(&value, "/metadata/uid").to_owned();
        Ok(Self { name: object.name.clone(), uid, value, is_going: object.is_being_deleted })
    }

    /// Whether it stands for a snapshot.
    fn is_of(&self, handle: &str) -> bool {
        let places = ["/status/snapshotHandle", "/spec/source/snapshotHandle"];
        places.into_iter().any(|place| text(&self.value, place) == handle)
    }
}

impl Deletion<'_> {
    async fn carry_out(&self) -> Result<(), String> {
        self.release().await?;
        let name = self.name();
        let found = match self.get(&name).await? {
            Some(found) => found,
            None => self.create(&name).await?,
        };
        point::pass(Point::ContentMade);
        if !found.is_of(&self.doomed.handle) {
            return Err(format!("the VolumeSnapshotContent {name} stands for another snapshot"));
        }
        point::pass(Point::DeleteSnapshot);
        if found.is_going {
            self.nudge(&name).await?;
        } else {
            self.name_snapshot(&name).await?;
            self.erase(&found).await?;
        }
        self.until_gone(&found).await?;
        point::pass(Point::SnapshotDeleted);
        Ok(())
    }

    /// What the content for the purpose is called: the same in every attempt.
    fn name(&self) -> String {
        let Content { driver, handle, .. } = self.doomed;
        let hash = digest(format!("{}/{driver}/{handle}", self.job.name.as_str()).as_bytes());
        format!("vsc-{}", hash.get(..32).unwrap_or(&hash))
    }

    /// Lets the objects go that the backup has left in the cluster. They keep the snapshot.
    async fn release(&self) -> Result<(), String> {
        let Content { name, handle, .. } = self.doomed;
        if name.is_empty() {
            return Ok(());
        }
        let Some(found) = self.get(name).await?.filter(|found| found.is_of(handle)) else {
            return Ok(());
        };
        if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_going {
            self.patch(name, &json!({"spec": {"deletionPolicy": "Retain"}})).await?;
        }
        self.release_snapshot(&found).await?;
        if !found.is_going {
            self.patch(name, &json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}})).await?;
            self.erase(&found).await?;
        }
        self.until_gone(&found).await
    }

    /// Lets the VolumeSnapshot of a content go.
    async fn release_snapshot(&self, content: &Found) -> Result<(), String> {
        let Some(resource) = &self.kinds.snapshots else { return Ok(()) };
        let reference = |field: &str| {
            text(&content.value, &format!("/spec/volumeSnapshotRef/{field}")).to_owned()
        };
        let (namespace, name, uid) = (reference("namespace"), reference("name"), reference("uid"));
        if uid.is_empty() {
            return Ok(());
        }
        match self.job.cluster.delete(resource, &namespace, &name, Some(&uid)).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(format!(
                "its VolumeSnapshot {namespace}/{name} cannot be deleted: {}",
                one_line(&error)
            )),
        }
    }

    async fn get(&self, name: &str) -> Result<Option<Found>, String> {
        let found = self.job.cluster.get(&self.kinds.contents, "", name).await;
        let found = found.map_err(|error| {
            format!("the VolumeSnapshotContent {name} cannot be read: {}", one_line(&error))
        })?;
        found.as_ref().map(Found::of).transpose()
    }

    /// Creates the content for the purpose. Another attempt may have done so.
    async fn create(&self, name: &str) -> Result<Found, String> {
        let resource = &self.kinds.contents;
        let wanted = self.wanted(name, &resource.api_version());
        let item = Item::from_object(&wanted).map_err(|error| one_line(&error))?;
        match self.job.cluster.create(resource, "", &item).await {
            Ok(created) => Found::of(&created),
            Err(error) => match self.get(name).await? {
                Some(found) if error.is_already_there() => Ok(found),
                _ => Err(format!(
                    "the VolumeSnapshotContent {name} for its deletion cannot be created: {}",
                    one_line(&error)
                )),
            },
        }
    }

    fn wanted(&self, name: &str, api_version: &str) -> Value {
        let Content { driver, handle, annotations, .. } = self.doomed;
        json!({
            "apiVersion": api_version,
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": name,
                "labels": { label::BACKUP_NAME: label::value(self.job.name.as_str()) },
                "annotations": annotations,
                "finalizers": [FINALIZER],
            },
            "spec": {
                "deletionPolicy": "Delete",
                "driver": driver,
                "source": { "snapshotHandle": handle },
                // There is none, and there is to be none.
                "volumeSnapshotRef": {
                    "apiVersion": api_version,
                    "kind": "VolumeSnapshot",
                    "namespace": format!("ns-{name}"),
                    "name": format!("name-{name}"),
                },
            },
        })
    }

    /// Says in the status of a content which snapshot it stands for.
    async fn name_snapshot(&self, name: &str) -> Result<(), String> {
        let status = json!({"status": {
            "snapshotHandle": self.doomed.handle, "readyToUse": true, "error": null,
        }});
        let resource = &self.kinds.contents;
        let patched = self.job.cluster.patch(resource, "", name, Door::Status, &status).await;
        patched.map(drop).map_err(|error| unwritable(name, &error))
    }

    async fn patch(&self, name: &str, change: &Value) -> Result<(), String> {
        let resource = &self.kinds.contents;
        match self.job.cluster.patch(resource, "", name, Door::Whole, change).await {
            Err(error) if error.is_not_found() => Ok(()),
            patched => patched.map(drop).map_err(|error| unwritable(name, &error)),
        }
    }

    /// Makes the controllers look at a content again.
    async fn nudge(&self, name: &str) -> Result<(), String> {
        self.patch(name, &json!({"metadata": {"annotations": {ATTEMPT: now()}}})).await
    }

    async fn erase(&self, found: &Found) -> Result<(), String> {
        let Found { name, uid, .. } = found;
        match self.job.cluster.delete(&self.kinds.contents, "", name, Some(uid)).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            deleted => deleted.map_err(|error| unwritable(name, &error)),
        }
    }

    /// Waits until a content is really gone. If the controllers complain, not for long.
    ///
    /// A snapshotter that writes the status of a content at the moment of its deletion can miss that, and
    /// would look again only after a quarter of an hour: so it is nudged.
    async fn until_gone(&self, found: &Found) -> Result<(), String> {
        let deadlines = &self.job.deadlines;
        let (began, at) = (Instant::now(), now());
        let deadline = began + deadlines.content;
        let query =
            Query { field_selector: format!("metadata.name={}", found.name), ..Query::default() };
        let mut changes = self.job.cluster.watch(&self.kinds.contents, query);
        let mut look = deadline.min(began + deadlines.complaint);
        let (mut pause, mut nudge) = (FIRST_NUDGE, began + FIRST_NUDGE);
        loop {
            match timeout_at(look.min(nudge), changes.next()).await {
                Ok(Some(Ok(Change::Gone(object)))) => {
                    if Found::of(&object)?.uid == found.uid {
                        return Ok(());
                    }
                }
                // What went before it began is not told.
                Ok(Some(Ok(Change::Began))) => {
                    if self.get(&found.name).await?.is_none_or(|other| other.uid != found.uid) {
                        return Ok(());
                    }
                }
                Ok(Some(Ok(Change::There(_)) | Err(cluster::Error::Object(_)))) => {}
                Ok(Some(Err(error))) => {
                    return Err(format!(
                        "it is not known whether it is gone: {}",
                        one_line(&error)
                    ));
                }
                Ok(None) => return Err("it is not known whether it is gone".to_owned()),
                Err(_) if Instant::now() < look => {
                    self.nudge(&found.name).await?;
                    pause *= 2;
                    nudge = Instant::now() + pause;
                }
                Err(_) => {
                    let complaint = self.complaint(found, &at).await;
                    let (driver, name) = (&self.doomed.driver, &found.name);
                    if let Some(complaint) = complaint {
                        return Err(format!(
                            "the driver {driver} could not do it: {complaint}; its snapshotter tries \
                             again, and its log says more"
                        ));
                    }
                    if Instant::now() >= deadline {
                        return Err(format!(
                            "the VolumeSnapshotContent {name} is still there after {} s: is the \
                             snapshotter of the driver {driver} running?",
                            deadlines.content.as_secs()
                        ));
                    }
                    look = deadline.min(Instant::now() + deadlines.complaint);
                }
            }
        }
    }

    /// What the controllers complain of since a time.
    async fn complaint(&self, found: &Found, since: &str) -> Option<String> {
        let events = self.kinds.events.as_ref()?;
        let selector = format!("involvedObject.uid={},type=Warning", found.uid);
        let query = Query { field_selector: selector, ..Query::default() };
        let listed = async {
            let mut warnings = self.job.cluster.list(events, query);
            let mut last = None;
            while let Some(Ok(event)) = warnings.next().await {
                let Ok(event) = event.item.parse::<Value>() else { continue };
                let time = text(&event, "/lastTimestamp").max(text(&event, "/eventTime"));
                // Times of one form are in the order of their letters.
                if time >= since {
                    let (reason, message) = (text(&event, "/reason"), text(&event, "/message"));
                    last = Some(format!("{reason}: {message}"));
                }
            }
            last
        };
        tokio::time::timeout(EVENTS_LIMIT, listed).await.ok()?
    }
}

/// How long it may take to find out what the controllers complain of.
const EVENTS_LIMIT: Duration = Duration::from_secs(20);

fn unwritable(name: &str, error: &cluster::Error) -> String {
    format!("the VolumeSnapshotContent {name} cannot be changed: {}", one_line(error))
}

/// Now, to the second, as the API server writes it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
