//! Deletes a snapshot, or a group of them, through a content that is made for the purpose.

use std::sync::Arc;

use bowline_plugin::{Item, one_line};
use tokio::time::Instant;

use super::sight::{Found, Sight, get};
use super::unit::{Shape, Unit};
use super::{Content, Job, Kinds, text};
use crate::cluster::Door;
use crate::csi::{being_deleted, policy};
use crate::point::{self, Point};
use crate::resource::Resource;

/// How often a content is made that goes without a proof that its snapshot was deleted.
pub(super) const TRIES: usize = 5;

/// A snapshot that goes, or a group of them.
pub(super) struct Deletion<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) kinds: &'a Kinds,
    pub(super) unit: &'a Unit<'a>,
}

impl Deletion<'_> {
    pub(super) async fn carry_out(&self) -> Result<(), String> {
        for member in &self.unit.members {
            self.release(member).await?;
        }
        let shape = self.unit.shape;
        let resource = self
            .kinds
            .of_shape(shape)
            .ok_or_else(|| format!("the cluster does not serve {}s any more", shape.kind()))?;
        let deadline = Instant::now() + self.job.deadlines.content;
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
        }
        sight.until_gone().await
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
    async fn release(&self, member: &Content) -> Result<(), String> {
        let Content { name, handle, driver, .. } = member;
        if name.is_empty() {
            return Ok(());
        }
        let (contents, shape) = (&self.kinds.contents, Shape::Snapshot);
        let found = get(self.job, contents, shape, name).await?;
        let Some(found) = found.filter(|found| shape.stands_for(&found.value, handle)) else {
            return Ok(());
        };
        let deadline = Instant::now() + self.job.deadlines.content;
        let mut sight =
            Sight::open(self.job, self.kinds, (contents, shape), driver, &found, deadline);
        if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_going {
            sight.patch(Door::Whole, &policy("Retain")).await?;
        }
        self.release_snapshot(&found).await?;
        if !found.is_going {
            sight.patch(Door::Whole, &being_deleted()).await?;
            sight.erase().await?;
        }
        // Nothing was to be deleted, so nothing needs a proof.
        sight.until_gone().await.map(drop)
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
}
