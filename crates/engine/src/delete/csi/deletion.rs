//! Deletes a snapshot, or a group of them, through a content that is made for the purpose.

use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{Item, one_line};
use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::sight::{Found, Sight, get};
use super::unit::{Shape, Unit};
use super::{Content, Job, Kinds, text};
use crate::cluster::{Door, Query};
use crate::csi::{being_deleted, group_being_deleted, policy};
use crate::point::{self, Point};
use crate::resource::Resource;

/// How often a content is made that goes without a proof that its snapshot was deleted.
pub(super) const TRIES: usize = 5;
/// The pause between two looks whether a group is gone; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A snapshot that goes, or a group of them.
pub(super) struct Deletion<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) kinds: &'a Kinds,
    pub(super) unit: &'a Unit<'a>,
}

impl Deletion<'_> {
    pub(super) async fn carry_out(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.job.deadlines.content;
        self.release_group(deadline).await?;
        for member in &self.unit.members {
            self.release(member, deadline).await?;
        }
        let shape = self.unit.shape;
        let resource = self
            .kinds
            .of_shape(shape)
            .ok_or_else(|| format!("the cluster does not serve {}s any more", shape.kind()))?;
        for _ in 0..TRIES {
            if self.attempt(resource, deadline).await? {
                point::pass(Point::SnapshotDeleted);
                return Ok(());
            }
        }
        Err(format!(
            "the controllers of the driver {} have let go of the {} for it {TRIES} times, and nothing \
             proves that it is deleted",
            self.unit.driver,
            shape.kind()
        ))
    }

    /// Has the driver asked once. Returns whether it is proven that it has deleted the snapshot.
    async fn attempt(&self, resource: &Arc<Resource>, deadline: Instant) -> Result<bool, String> {
        let Unit { shape, driver, handle, .. } = *self.unit;
        let name = self.unit.name(self.job.name.as_str());
        let found = match get(self.job, resource, shape, &name).await? {
            Some(found) => found,
            None => self.create(resource, &name).await?,
        };
        point::pass(Point::ContentMade);
        if !shape.stands_for(&found.value, handle) {
            return Err(format!("the {} {name} stands for another snapshot", shape.kind()));
        }
        let mut sight =
            Sight::open(self.job, self.kinds, (resource, shape), driver, &found, deadline);
        if found.is_going {
            point::pass(Point::DeleteSnapshot);
            sight.nudge().await?;
        } else {
            if !sight.until_named(&self.unit.status()).await? {
                return Ok(false);
            }
            point::pass(Point::DeleteSnapshot);
            sight.erase().await?;
            // Nobody is asked for it then, so that there is nothing to wait for.
            sight.is_alone()?;
        }
        let is_proven = sight.until_gone().await?;
        if !is_proven {
            sight.is_alone()?;
        }
        Ok(is_proven)
    }

    /// Creates the content for the purpose. Another attempt may have done so.
    async fn create(&self, resource: &Arc<Resource>, name: &str) -> Result<Found, String> {
        let shape = self.unit.shape;
        let wanted = self.unit.content(name, &resource.api_version(), self.job.name.as_str());
        let item = Item::from_object(&wanted).map_err(|error| one_line(&error))?;
        match self.job.cluster.create(resource, "", &item).await {
            Ok(created) => Found::of(&created),
            Err(error) => match get(self.job, resource, shape, name).await? {
                Some(found) if error.is_already_there() => Ok(found),
                _ => Err(format!(
                    "the {} {name} for its deletion cannot be created: {}",
                    shape.kind(),
                    one_line(&error)
                )),
            },
        }
    }

    /// Lets the objects go that the backup has left in the cluster. They keep the snapshot.
    async fn release(&self, member: &Content, deadline: Instant) -> Result<(), String> {
        let Content { name, handle, driver, .. } = member;
        if name.is_empty() {
            return Ok(());
        }
        let (contents, shape) = (&self.kinds.contents, Shape::Snapshot);
        let found = get(self.job, contents, shape, name).await?;
        let Some(found) = found.filter(|found| shape.stands_for(&found.value, handle)) else {
            return Ok(());
        };
        let mut sight =
            Sight::open(self.job, self.kinds, (contents, shape), driver, &found, deadline);
        if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_going {
            sight.patch(Door::Whole, &policy("Retain")).await?;
        }
        self.release_snapshot(&found).await?;
        // Also if it is going: without the mark it would go on for ever.
        sight.patch(Door::Whole, &being_deleted()).await?;
        if !found.is_going {
            sight.erase().await?;
        }
        // Nothing was to be deleted, so nothing needs a proof.
        sight.until_gone().await.map(drop)
    }

    /// Lets the VolumeSnapshot of a content go.
    async fn release_snapshot(&self, content: &Found) -> Result<(), String> {
        let Some(resource) = &self.kinds.snapshots else { return Ok(()) };
        match Reference::of(content, "volumeSnapshotRef") {
            Some(snapshot) => self.delete(resource, &snapshot).await,
            None => Ok(()),
        }
    }

    async fn delete(&self, resource: &Arc<Resource>, of: &Reference) -> Result<(), String> {
        let Reference { namespace, name, uid } = of;
        match self.job.cluster.delete(resource, namespace, name, Some(uid)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(format!(
                "its {} {namespace}/{name} cannot be deleted: {}",
                resource.kind,
                one_line(&error)
            )),
            _ => Ok(()),
        }
    }

    /// Lets the group go that the backup has left in the cluster. It keeps its snapshots, and goes before
    /// them: the controller lets none go whose group is there.
    async fn release_group(&self, deadline: Instant) -> Result<(), String> {
        let (Shape::Group, Some(contents)) = (self.unit.shape, &self.kinds.group_contents) else {
            return Ok(());
        };
        for found in self.groups_left(contents).await? {
            let of = (contents, Shape::Group);
            let mut sight =
                Sight::open(self.job, self.kinds, of, self.unit.driver, &found, deadline);
            if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_going {
                sight.patch(Door::Whole, &policy("Retain")).await?;
            }
            let group = Reference::of(&found, "volumeGroupSnapshotRef");
            if let (Some(resource), Some(group)) = (&self.kinds.groups, &group) {
                self.delete(resource, group).await?;
            }
            sight.patch(Door::Whole, &group_being_deleted()).await?;
            if !found.is_going {
                sight.erase().await?;
            }
            sight.until_gone().await?;
            if let (Some(resource), Some(group)) = (&self.kinds.groups, &group) {
                self.until_gone(resource, group, deadline).await?;
            }
        }
        Ok(())
    }

    /// The contents of the group that were made when it was taken. What restores have made stays.
    async fn groups_left(&self, contents: &Arc<Resource>) -> Result<Vec<Found>, String> {
        let mut listed = self.job.cluster.list(contents, Query::default());
        let mut left = Vec::new();
        while let Some(object) = listed.next().await {
            let object = object.map_err(|error| {
                format!("{}s cannot be listed: {}", Shape::Group.kind(), one_line(&error))
            })?;
            let found = Found::of(&object)?;
            let was_given = found.value.pointer("/spec/source/groupSnapshotHandles");
            let is_it = text(&found.value, "/spec/driver") == self.unit.driver
                && Shape::Group.stands_for(&found.value, self.unit.handle);
            if is_it && was_given.is_none_or(Value::is_null) {
                left.push(found);
            }
        }
        Ok(left)
    }

    /// Waits until an object is gone.
    async fn until_gone(
        &self,
        resource: &Arc<Resource>,
        of: &Reference,
        deadline: Instant,
    ) -> Result<(), String> {
        let Reference { namespace, name, uid } = of;
        let mut pause = FIRST_PAUSE;
        loop {
            let found = self.job.cluster.get(resource, namespace, name).await;
            let found = found.map_err(|error| {
                format!(
                    "its {} {namespace}/{name} cannot be read: {}",
                    resource.kind,
                    one_line(&error)
                )
            })?;
            let found = found.as_ref().map(Found::of).transpose()?;
            if found.is_none_or(|found| found.uid != *uid) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "its {} {namespace}/{name} was not gone within {} s: is the snapshot controller \
                     running?",
                    resource.kind,
                    self.job.deadlines.content.as_secs()
                ));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// What a content is bound to.
struct Reference {
    namespace: String,
    name: String,
    uid: String,
}

impl Reference {
    /// None if it is bound to nothing.
    fn of(content: &Found, field: &str) -> Option<Self> {
        let part = |part: &str| text(&content.value, &format!("/spec/{field}/{part}")).to_owned();
        let (namespace, name, uid) = (part("namespace"), part("name"), part("uid"));
        (!uid.is_empty()).then_some(Self { namespace, name, uid })
    }
}
