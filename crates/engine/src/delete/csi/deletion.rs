//! Deletes a snapshot or a group through a content that is created for the purpose.

use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::Item;
use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::content_watch::{ClusterContent, ContentDeletionWatch, get};
use super::deletion_unit::{ContentKind, DeletionUnit};
use super::error::{BoundObject, CsiDeletionError};
use super::{CsiResources, DeletableCsiSnapshot, DeletionJob};
use crate::backoff::Backoff;
use crate::cluster::{Query, Subresource};
use crate::csi::{being_deleted_patch, deletion_policy_patch, group_being_deleted_patch};
use crate::failpoint::{self, Failpoint};
use crate::json::text;
use crate::resource::Resource;

/// Maximum number of contents created for a snapshot whose deletion is not proven.
pub(super) const MAX_ATTEMPTS: usize = 5;
/// First interval between checks whether a group is gone; it doubles up to the maximum.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Deletion of a snapshot or a group.
pub(super) struct Deletion<'a> {
    pub(super) job: &'a DeletionJob<'a>,
    pub(super) kinds: &'a CsiResources,
    pub(super) unit: &'a DeletionUnit<'a>,
}

impl Deletion<'_> {
    pub(super) async fn run(&self) -> Result<(), CsiDeletionError> {
        let deadline = Instant::now() + self.job.deadlines.content;
        self.release_group(deadline).await?;
        for member in &self.unit.members {
            self.release(member, deadline).await?;
        }
        let content_kind = self.unit.content_kind;
        let resource = self.kinds.content_resource(content_kind);
        let resource = resource.ok_or(CsiDeletionError::NotServed(content_kind))?;
        for _ in 0..MAX_ATTEMPTS {
            if self.try_delete(resource, deadline).await? {
                failpoint::hit(Failpoint::SnapshotDeleted);
                return Ok(());
            }
        }
        let driver = self.unit.driver.to_owned();
        Err(CsiDeletionError::NotProven { driver, kind: content_kind })
    }

    /// Has the driver called once. Returns true if it is proven that the driver has deleted the snapshot.
    async fn try_delete(
        &self,
        resource: &Arc<Resource>,
        deadline: Instant,
    ) -> Result<bool, CsiDeletionError> {
        let DeletionUnit { content_kind, driver, handle, .. } = *self.unit;
        let name = self.unit.name(self.job.name.as_str());
        let found = match get(self.job, resource, content_kind, &name).await? {
            Some(found) => found,
            None => self.create(resource, &name).await?,
        };
        failpoint::hit(Failpoint::DeletionContentCreated);
        if !content_kind.references(&found.value, handle) {
            return Err(CsiDeletionError::OtherSnapshot { kind: content_kind, name });
        }
        let mut watch = ContentDeletionWatch::open(
            self.job,
            self.kinds,
            (resource, content_kind),
            driver,
            &found,
            deadline,
        );
        if found.is_terminating {
            failpoint::hit(Failpoint::DeleteSnapshot);
            watch.nudge().await?;
        } else {
            if !watch.wait_until_handle_set(&self.unit.status()).await? {
                return Ok(false);
            }
            failpoint::hit(Failpoint::DeleteSnapshot);
            watch.delete().await?;
            // The driver is not called in this case, so there is nothing to wait for.
            watch.check_not_in_group()?;
        }
        let is_proven = watch.wait_until_gone().await?;
        if !is_proven {
            watch.check_not_in_group()?;
        }
        Ok(is_proven)
    }

    /// Creates the content for the deletion. Another attempt may have done so already.
    async fn create(
        &self,
        resource: &Arc<Resource>,
        name: &str,
    ) -> Result<ClusterContent, CsiDeletionError> {
        let content_kind = self.unit.content_kind;
        let content = self.unit.content(name, &resource.api_version(), self.job.name.as_str());
        let item = Item::from_object(&content).map_err(CsiDeletionError::InvalidContent)?;
        match self.job.cluster.create(resource, "", &item).await {
            Ok(created) => ClusterContent::of(&created),
            Err(error) => match get(self.job, resource, content_kind, name).await? {
                Some(found) if error.is_already_exists() => Ok(found),
                _ => Err(CsiDeletionError::CreateContent {
                    kind: content_kind,
                    name: name.to_owned(),
                    source: error,
                }),
            },
        }
    }

    /// Removes the leftovers of the backup from the cluster. The snapshot is retained.
    async fn release(
        &self,
        member: &DeletableCsiSnapshot,
        deadline: Instant,
    ) -> Result<(), CsiDeletionError> {
        let DeletableCsiSnapshot { name, handle, driver, .. } = member;
        if name.is_empty() {
            return Ok(());
        }
        let (contents, content_kind) = (&self.kinds.contents, ContentKind::Snapshot);
        let found = get(self.job, contents, content_kind, name).await?;
        let Some(found) = found.filter(|found| content_kind.references(&found.value, handle))
        else {
            return Ok(());
        };
        let mut watch = ContentDeletionWatch::open(
            self.job,
            self.kinds,
            (contents, content_kind),
            driver,
            &found,
            deadline,
        );
        if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_terminating {
            watch.patch(Subresource::None, &deletion_policy_patch("Retain")).await?;
        }
        self.release_snapshot(&found).await?;
        // Also for a content that is being deleted: without the annotation it would never be released.
        watch.patch(Subresource::None, &being_deleted_patch()).await?;
        if !found.is_terminating {
            watch.delete().await?;
        }
        // No snapshot was to be deleted, so no proof is needed.
        watch.wait_until_gone().await.map(drop)
    }

    /// Deletes the VolumeSnapshot of a content.
    async fn release_snapshot(&self, content: &ClusterContent) -> Result<(), CsiDeletionError> {
        let Some(resource) = &self.kinds.snapshots else { return Ok(()) };
        match Reference::of(content, "volumeSnapshotRef") {
            Some(snapshot) => self.delete(resource, &snapshot).await,
            None => Ok(()),
        }
    }

    async fn delete(
        &self,
        resource: &Arc<Resource>,
        reference: &Reference,
    ) -> Result<(), CsiDeletionError> {
        let Reference { namespace, name, uid } = reference;
        match self.job.cluster.delete(resource, namespace, name, Some(uid)).await {
            Err(source) if !source.is_not_found() && !source.is_conflict() => {
                let object = Box::new(reference.describe(resource));
                Err(CsiDeletionError::DeleteBound { object, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes the leftover group of the backup from the cluster. Its snapshots are retained. The group goes before its
    /// members: the controller releases no member whose group exists.
    async fn release_group(&self, deadline: Instant) -> Result<(), CsiDeletionError> {
        let (ContentKind::Group, Some(contents)) =
            (self.unit.content_kind, &self.kinds.group_contents)
        else {
            return Ok(());
        };
        for found in self.leftover_groups(contents).await? {
            let watched = (contents, ContentKind::Group);
            let mut watch = ContentDeletionWatch::open(
                self.job,
                self.kinds,
                watched,
                self.unit.driver,
                &found,
                deadline,
            );
            if text(&found.value, "/spec/deletionPolicy") != "Retain" && !found.is_terminating {
                watch.patch(Subresource::None, &deletion_policy_patch("Retain")).await?;
            }
            let group = Reference::of(&found, "volumeGroupSnapshotRef");
            if let (Some(resource), Some(group)) = (&self.kinds.groups, &group) {
                self.delete(resource, group).await?;
            }
            watch.patch(Subresource::None, &group_being_deleted_patch()).await?;
            if !found.is_terminating {
                watch.delete().await?;
            }
            watch.wait_until_gone().await?;
            if let (Some(resource), Some(group)) = (&self.kinds.groups, &group) {
                self.wait_until_gone(resource, group, deadline).await?;
            }
        }
        Ok(())
    }

    /// Contents of the group that were created when it was taken. Those that restores created stay.
    async fn leftover_groups(
        &self,
        contents: &Arc<Resource>,
    ) -> Result<Vec<ClusterContent>, CsiDeletionError> {
        let mut listed = self.job.cluster.list(contents, Query::default());
        let mut leftovers = Vec::new();
        while let Some(object) = listed.next().await {
            let object = object.map_err(|source| CsiDeletionError::ListContents {
                kind: ContentKind::Group,
                source,
            })?;
            let found = ClusterContent::of(&object)?;
            let was_given = found.value.pointer("/spec/source/groupSnapshotHandles");
            let is_same_group = text(&found.value, "/spec/driver") == self.unit.driver
                && ContentKind::Group.references(&found.value, self.unit.handle);
            if is_same_group && was_given.is_none_or(Value::is_null) {
                leftovers.push(found);
            }
        }
        Ok(leftovers)
    }

    async fn wait_until_gone(
        &self,
        resource: &Arc<Resource>,
        reference: &Reference,
        deadline: Instant,
    ) -> Result<(), CsiDeletionError> {
        let Reference { namespace, name, uid } = reference;
        let mut backoff = Backoff::new(FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL);
        loop {
            let found = self.job.cluster.get(resource, namespace, name).await;
            let found = found.map_err(|source| CsiDeletionError::ReadBound {
                object: Box::new(reference.describe(resource)),
                source,
            })?;
            let found = found.as_ref().map(ClusterContent::of).transpose()?;
            if found.is_none_or(|found| found.uid != *uid) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CsiDeletionError::BoundNotGone {
                    object: Box::new(reference.describe(resource)),
                    limit: self.job.deadlines.content,
                });
            }
            backoff.wait().await;
        }
    }
}

/// Object that a content is bound to.
struct Reference {
    namespace: String,
    name: String,
    uid: String,
}

impl Reference {
    /// `None` if the content is not bound.
    fn of(content: &ClusterContent, field: &str) -> Option<Self> {
        let part = |part: &str| text(&content.value, &format!("/spec/{field}/{part}")).to_owned();
        let (namespace, name, uid) = (part("namespace"), part("name"), part("uid"));
        (!uid.is_empty()).then_some(Self { namespace, name, uid })
    }

    fn describe(&self, resource: &Resource) -> BoundObject {
        BoundObject {
            kind: resource.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}
