//! A content that is on its way out, as a watch tells of it.

use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::one_line;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::unit::{Shape, Standing};
use super::{Job, Kinds, text};
use crate::cluster::events::last_warning;
use crate::cluster::{self, Change, Door, Query};
use crate::item::Object;
use crate::resource::Resource;

/// After how long the controllers are made to look again; it doubles each time.
pub(super) const FIRST_NUDGE: Duration = Duration::from_secs(1);
/// How long it may take to find out what the controllers complain of.
const EVENTS_LIMIT: Duration = Duration::from_secs(20);
/// Changes with every attempt, so that the controllers look at a content again at once.
pub(super) const ATTEMPT: &str = "bowline.io/deletion-attempt";

/// A content in the cluster.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) value: Value,
    pub(super) is_going: bool,
}

impl Found {
    pub(super) fn of(object: &Object) -> Result<Self, String> {
        let value: Value = object.item.parse().map_err(|error| one_line(&error))?;
        let uid = text(&value, "/metadata/uid").to_owned();
        Ok(Self { name: object.name.clone(), uid, value, is_going: object.is_being_deleted })
    }
}

/// Follows one content.
pub(super) struct Sight<'a> {
    job: &'a Job<'a>,
    kinds: &'a Kinds,
    resource: &'a Arc<Resource>,
    shape: Shape,
    driver: &'a str,
    found: &'a Found,
    changes: BoxStream<'static, cluster::Result<Change>>,
    /// Whether its status has named its snapshot.
    was_named: bool,
    /// The group that its snapshot is a member of, if the snapshotter said so.
    group: Option<String>,
    deadline: Instant,
}

/// What is heard of it.
enum Heard {
    There(Value),
    /// It is gone, and was like this in the end; none if nobody saw that.
    Gone(Option<Value>),
}

impl<'a> Sight<'a> {
    pub(super) fn open(
        job: &'a Job<'a>,
        kinds: &'a Kinds,
        (resource, shape): (&'a Arc<Resource>, Shape),
        driver: &'a str,
        found: &'a Found,
        deadline: Instant,
    ) -> Self {
        let query =
            Query { field_selector: format!("metadata.name={}", found.name), ..Query::default() };
        let changes = job.cluster.watch(resource, query);
        let (was_named, group) = (false, None);
        Self { job, kinds, resource, shape, driver, found, changes, was_named, group, deadline }
    }

    /// What comes next; none if nothing does until then.
    async fn next(&mut self, until: Instant) -> Result<Option<Heard>, String> {
        loop {
            let Ok(change) = timeout_at(until, self.changes.next()).await else { return Ok(None) };
            match change {
                Some(Ok(Change::There(object))) => {
                    let found = Found::of(&object)?;
                    if found.uid == self.found.uid {
                        self.was_named |= self.shape.standing(&found.value) == Standing::Named;
                        self.group = self.shape.group(&found.value).or(self.group.take());
                        return Ok(Some(Heard::There(found.value)));
                    }
                }
                Some(Ok(Change::Gone(object))) => {
                    let found = Found::of(&object)?;
                    if found.uid == self.found.uid {
                        return Ok(Some(Heard::Gone(Some(found.value))));
                    }
                }
                // What went before it began is not told.
                Some(Ok(Change::Began)) => {
                    let now = get(self.job, self.resource, self.shape, &self.found.name).await?;
                    if now.is_none_or(|other| other.uid != self.found.uid) {
                        return Ok(Some(Heard::Gone(None)));
                    }
                }
                Some(Err(cluster::Error::Object(_))) => {}
                Some(Err(error)) => {
                    return Err(format!("it is not known what became of it: {}", one_line(&error)));
                }
                None => return Err("it is not known what became of it".to_owned()),
            }
        }
    }

    /// Waits until the status says which snapshot it is. The snapshotter writes that when it has asked the
    /// driver. Where the driver does not know the snapshot, or cannot say, it writes that something is
    /// wrong, and then we write it: earlier it would not stand, since the snapshotter writes its whole
    /// answer over what is there. Returns whether it is so; if not, the content is gone.
    pub(super) async fn until_named(&mut self, status: &Value) -> Result<bool, String> {
        let mut is_written = false;
        loop {
            match self.next(self.deadline).await? {
                Some(Heard::There(content)) => match self.shape.standing(&content) {
                    Standing::Named => return Ok(true),
                    Standing::Failing if !is_written => {
                        self.patch(Door::Status, status).await?;
                        is_written = true;
                    }
                    Standing::Failing | Standing::Bare => {}
                },
                Some(Heard::Gone(_)) => return Ok(false),
                None => return Err(self.told_late("nobody has looked at")),
            }
        }
    }

    /// Waits until the content is really gone. If the controllers complain, not for long. Returns whether that
    /// proves that the driver has deleted the snapshot: then the snapshotter takes its name out of the
    /// status before it lets the content go.
    ///
    /// A snapshotter that writes the status of a content at the moment of its deletion can miss that, and
    /// would look again only after a quarter of an hour: so it is nudged.
    pub(super) async fn until_gone(&mut self) -> Result<bool, String> {
        let patience = self.job.deadlines.complaint;
        let (began, at) = (Instant::now(), now());
        let mut look = self.deadline.min(began + patience);
        let (mut pause, mut nudge) = (FIRST_NUDGE, began + FIRST_NUDGE);
        loop {
            match self.next(look.min(nudge)).await? {
                Some(Heard::There(_)) => {}
                Some(Heard::Gone(last)) => {
                    let is_cleared = last.is_some_and(|last| self.shape.is_cleared(&last));
                    return Ok(self.was_named && is_cleared);
                }
                None if Instant::now() < look => {
                    self.nudge().await?;
                    pause *= 2;
                    nudge = Instant::now() + pause;
                }
                None => {
                    if let Some(complaint) = self.complaint(&at).await {
                        return Err(format!(
                            "the driver {} could not do it: {complaint}; its snapshotter tries again, \
                             and its log says more",
                            self.driver
                        ));
                    }
                    if Instant::now() >= self.deadline {
                        return Err(self.told_late("nobody has let go of"));
                    }
                    look = self.deadline.min(Instant::now() + patience);
                }
            }
        }
    }

    /// It is an error if its snapshot is a member of a group, since the snapshotter lets such a content go
    /// without a word to the driver.
    pub(super) fn is_alone(&self) -> Result<(), String> {
        self.group.as_ref().map_or(Ok(()), |group| {
            Err(format!(
                "it is a member of the group {group}, which the backup does not know of, and which the \
                 driver {} deletes whole or not at all; delete that group where it is stored, and then \
                 the backup again",
                self.driver
            ))
        })
    }

    fn told_late(&self, what: &str) -> String {
        format!(
            "{what} the {} {} within {} s: is the snapshotter of the driver {} running?",
            self.shape.kind(),
            self.found.name,
            self.job.deadlines.content.as_secs(),
            self.driver
        )
    }

    /// What the controllers complain of since a time.
    async fn complaint(&mut self, since: &str) -> Option<String> {
        let events = self.kinds.events.as_ref()?;
        let last = last_warning(self.job.cluster, events, None, &self.found.uid, since);
        timeout(EVENTS_LIMIT, last).await.ok()?
    }

    /// Changes it. One that is gone needs no change.
    pub(super) async fn patch(&mut self, door: Door, change: &Value) -> Result<(), String> {
        let name = &self.found.name;
        match self.job.cluster.patch(self.resource, "", name, door, change).await {
            Err(error) if error.is_not_found() => Ok(()),
            patched => patched.map(drop).map_err(|error| self.unwritable(&error)),
        }
    }

    /// Makes the controllers look at it again.
    pub(super) async fn nudge(&mut self) -> Result<(), String> {
        let change = json!({"metadata": {"annotations": {ATTEMPT: now()}}});
        self.patch(Door::Whole, &change).await
    }

    /// Deletes it. It is there until the controllers let it go.
    pub(super) async fn erase(&mut self) -> Result<(), String> {
        let Found { name, uid, .. } = self.found;
        match self.job.cluster.delete(self.resource, "", name, Some(uid)).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            deleted => deleted.map_err(|error| self.unwritable(&error)),
        }
    }

    fn unwritable(&self, error: &cluster::Error) -> String {
        let (kind, name) = (self.shape.kind(), &self.found.name);
        format!("the {kind} {name} cannot be changed: {}", one_line(error))
    }
}

/// A content, if it is there.
pub(super) async fn get(
    job: &Job<'_>,
    resource: &Arc<Resource>,
    shape: Shape,
    name: &str,
) -> Result<Option<Found>, String> {
    match job.cluster.get(resource, "", name).await {
        Ok(found) => found.as_ref().map(Found::of).transpose(),
        Err(error) => {
            Err(format!("the {} {name} cannot be read: {}", shape.kind(), one_line(&error)))
        }
    }
}

/// Now, to the second, as the API server writes it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
