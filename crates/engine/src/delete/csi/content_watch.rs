//! Watches a content that is being deleted.
//!
//! Not by a `Reflector`, which keeps the current state of many objects: each event of this one counts, also its last
//! state, and the first failure of the watch ends the attempt.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::deletion_unit::{ContentKind, ContentState};
use super::error::CsiDeletionError;
use super::{CsiResources, DeletionJob};
use crate::cluster::events::last_warning;
use crate::cluster::{self, Query, Subresource, WatchEvent};
use crate::item::Object;
use crate::json::text;
use crate::resource::Resource;

/// Delay before the first nudge of the controllers; it doubles each time.
pub(super) const FIRST_NUDGE: Duration = Duration::from_secs(1);
/// Timeout for reading the error messages of the controllers.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(20);
/// Changes with every attempt, so that the controllers reconcile a content at once.
pub(super) const ATTEMPT_ANNOTATION: &str = "bowline.io/deletion-attempt";

/// A content in the cluster.
pub(super) struct ClusterContent {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) value: Value,
    pub(super) is_terminating: bool,
}

impl ClusterContent {
    pub(super) fn of(object: &Object) -> Result<Self, CsiDeletionError> {
        let value: Value = object.item.parse().map_err(CsiDeletionError::InvalidContent)?;
        let uid = text(&value, "/metadata/uid").to_owned();
        Ok(Self { name: object.name.clone(), uid, value, is_terminating: object.is_being_deleted })
    }
}

/// Watch of one content.
pub(super) struct ContentDeletionWatch<'a> {
    job: &'a DeletionJob<'a>,
    kinds: &'a CsiResources,
    resource: &'a Arc<Resource>,
    content_kind: ContentKind,
    driver: &'a str,
    found: &'a ClusterContent,
    changes: BoxStream<'static, cluster::Result<WatchEvent>>,
    /// True if its status has contained the handle.
    had_handle: bool,
    /// The group that its snapshot is a member of, if the snapshotter has set it.
    group: Option<String>,
    deadline: Instant,
}

/// An observation of the content.
enum ContentEvent {
    Present(Value),
    /// The content is gone; with its last state, `None` if that was not observed.
    Gone(Option<Value>),
}

impl<'a> ContentDeletionWatch<'a> {
    pub(super) fn open(
        job: &'a DeletionJob<'a>,
        kinds: &'a CsiResources,
        (resource, content_kind): (&'a Arc<Resource>, ContentKind),
        driver: &'a str,
        found: &'a ClusterContent,
        deadline: Instant,
    ) -> Self {
        let query =
            Query { field_selector: format!("metadata.name={}", found.name), ..Query::default() };
        let changes = job.cluster.watch(resource, query);
        let (had_handle, group) = (false, None);
        Self {
            job,
            kinds,
            resource,
            content_kind,
            driver,
            found,
            changes,
            had_handle,
            group,
            deadline,
        }
    }

    /// The next observation; `None` if there is none until then.
    async fn next_event(
        &mut self,
        until: Instant,
    ) -> Result<Option<ContentEvent>, CsiDeletionError> {
        loop {
            let Ok(change) = timeout_at(until, self.changes.next()).await else { return Ok(None) };
            match change {
                Some(Ok(WatchEvent::Applied(object))) => {
                    let found = ClusterContent::of(&object)?;
                    if found.uid == self.found.uid {
                        self.had_handle |= self.content_kind.content_state(&found.value)
                            == ContentState::HasHandle;
                        self.group = self.content_kind.group(&found.value).or(self.group.take());
                        return Ok(Some(ContentEvent::Present(found.value)));
                    }
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    let found = ClusterContent::of(&object)?;
                    if found.uid == self.found.uid {
                        return Ok(Some(ContentEvent::Gone(Some(found.value))));
                    }
                }
                // The watch does not report a deletion that happened before it began.
                Some(Ok(WatchEvent::Started)) => {
                    let current =
                        get(self.job, self.resource, self.content_kind, &self.found.name).await?;
                    if current.is_none_or(|other| other.uid != self.found.uid) {
                        return Ok(Some(ContentEvent::Gone(None)));
                    }
                }
                Some(Err(cluster::Error::Object(_))) => {}
                Some(Err(error)) => return Err(CsiDeletionError::Watch(error)),
                None => return Err(CsiDeletionError::WatchEnded),
            }
        }
    }

    /// Waits until the status contains the handle of the snapshot. The snapshotter writes it after it has asked the
    /// driver. If the driver does not know the snapshot, or cannot answer, the snapshotter writes an error, and then
    /// this function writes the handle: earlier it would not persist, since the snapshotter overwrites the whole
    /// status with its answer. Returns true if the handle is set; false if the content is gone.
    pub(super) async fn wait_until_handle_set(
        &mut self,
        status: &Value,
    ) -> Result<bool, CsiDeletionError> {
        let mut is_written = false;
        loop {
            match self.next_event(self.deadline).await? {
                Some(ContentEvent::Present(content)) => {
                    match self.content_kind.content_state(&content) {
                        ContentState::HasHandle => return Ok(true),
                        ContentState::HasError if !is_written => {
                            self.patch(Subresource::Status, status).await?;
                            is_written = true;
                        }
                        ContentState::HasError | ContentState::Empty => {}
                    }
                }
                Some(ContentEvent::Gone(_)) => return Ok(false),
                None => {
                    return Err(CsiDeletionError::NotReconciled {
                        kind: self.content_kind,
                        name: self.found.name.clone(),
                        limit: self.job.deadlines.content,
                        driver: self.driver.to_owned(),
                    });
                }
            }
        }
    }

    /// Waits until the content is really gone; only briefly if the controllers report an error. Returns true if that
    /// proves that the driver has deleted the snapshot: in this case the snapshotter removes the handle from the status
    /// before it releases the content.
    ///
    /// A snapshotter that writes the status of a content at the moment of its deletion can miss the deletion, and would
    /// reconcile again only after a quarter of an hour: so it is nudged.
    pub(super) async fn wait_until_gone(&mut self) -> Result<bool, CsiDeletionError> {
        let complaint_delay = self.job.deadlines.complaint;
        let (started_at, since) = (Instant::now(), timestamp_now());
        let mut next_check = self.deadline.min(started_at + complaint_delay);
        let (mut nudge_interval, mut nudge) = (FIRST_NUDGE, started_at + FIRST_NUDGE);
        loop {
            match self.next_event(next_check.min(nudge)).await? {
                Some(ContentEvent::Present(_)) => {}
                Some(ContentEvent::Gone(last)) => {
                    let is_cleared = last.is_some_and(|last| self.content_kind.is_cleared(&last));
                    return Ok(self.had_handle && is_cleared);
                }
                None if Instant::now() < next_check => {
                    self.nudge().await?;
                    nudge_interval *= 2;
                    nudge = Instant::now() + nudge_interval;
                }
                None => {
                    if let Some(complaint) = self.last_complaint(&since).await {
                        let driver = self.driver.to_owned();
                        return Err(CsiDeletionError::Driver { driver, complaint });
                    }
                    if Instant::now() >= self.deadline {
                        return Err(CsiDeletionError::NotReleased {
                            kind: self.content_kind,
                            name: self.found.name.clone(),
                            limit: self.job.deadlines.content,
                            driver: self.driver.to_owned(),
                        });
                    }
                    next_check = self.deadline.min(Instant::now() + complaint_delay);
                }
            }
        }
    }

    /// Fails if the snapshot is a member of a group, since the snapshotter releases such a content without calling the
    /// driver.
    pub(super) fn check_not_in_group(&self) -> Result<(), CsiDeletionError> {
        match self.group.clone() {
            None => Ok(()),
            Some(group) => {
                Err(CsiDeletionError::MemberOfGroup { group, driver: self.driver.to_owned() })
            }
        }
    }

    /// The last error that the controllers reported since a time.
    async fn last_complaint(&mut self, since: &str) -> Option<String> {
        let events = self.kinds.events.as_ref()?;
        let last = last_warning(self.job.cluster, events, None, &self.found.uid, since);
        timeout(EVENTS_TIMEOUT, last).await.ok()?
    }

    /// Patches the content. One that is gone needs no patch.
    pub(super) async fn patch(
        &mut self,
        subresource: Subresource,
        change: &Value,
    ) -> Result<(), CsiDeletionError> {
        let name = &self.found.name;
        match self.job.cluster.patch(self.resource, "", name, subresource, change).await {
            Err(error) if error.is_not_found() => Ok(()),
            patched => patched.map(drop).map_err(|source| self.write_error(source)),
        }
    }

    /// Makes the controllers reconcile the content again.
    pub(super) async fn nudge(&mut self) -> Result<(), CsiDeletionError> {
        let change = json!({"metadata": {"annotations": {ATTEMPT_ANNOTATION: timestamp_now()}}});
        self.patch(Subresource::None, &change).await
    }

    /// Deletes the content. It exists until the controllers release it.
    pub(super) async fn delete(&mut self) -> Result<(), CsiDeletionError> {
        let ClusterContent { name, uid, .. } = self.found;
        match self.job.cluster.delete(self.resource, "", name, Some(uid)).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            deleted => deleted.map_err(|source| self.write_error(source)),
        }
    }

    fn write_error(&self, source: cluster::Error) -> CsiDeletionError {
        let (kind, name) = (self.content_kind, self.found.name.clone());
        CsiDeletionError::WriteContent { kind, name, source }
    }
}

/// A content, if it exists.
pub(super) async fn get(
    job: &DeletionJob<'_>,
    resource: &Arc<Resource>,
    content_kind: ContentKind,
    name: &str,
) -> Result<Option<ClusterContent>, CsiDeletionError> {
    match job.cluster.get(resource, "", name).await {
        Ok(found) => found.as_ref().map(ClusterContent::of).transpose(),
        Err(source) => {
            let (kind, name) = (content_kind, name.to_owned());
            Err(CsiDeletionError::ReadContent { kind, name, source })
        }
    }
}

/// The current time to the second, in the API server's format.
fn timestamp_now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
