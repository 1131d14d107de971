//! Retention of snapshots when their backup has ended.
//!
//! | snapshot | action | effect |
//! |---|---|---|
//! | complete, and so is the backup | [kept](retain), and its objects [removed](release) | nothing in the cluster can delete it; the backup has its handle |
//! | failed, or the backup is discarded | [discarded](discard) | nothing is left, neither in the cluster nor at the driver |
//!
//! A missing object does not mean that its snapshot was deleted: a user may have removed the object while the driver
//! keeps the snapshot. [`DiscardResult`] lists these separately, and such a handle is not forgotten.
//!
//! Names come from the journal, or from files in the bucket, which others may write to. Only objects with the labels
//! of the backup are therefore touched, and contents that are bound to one of those.

mod batch;

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::group::GroupResources;
use crate::backoff::Backoff;
use crate::cluster::{Cluster, Error, Query, Subresource};
use crate::csi::object::{self, CONTENTS, Content, SNAPSHOTS, Snapshot};
pub use crate::csi::target::{Leftovers, Target, targets_of_operations};
use crate::failpoint::{self, Failpoint};
use crate::operation::record::RunRef;
use crate::resource::{Resource, Resources};
pub use batch::{DiscardResult, discard, discard_and_report, release, retain};

/// Time the deletion of a snapshot may take.
const DELETION_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two checks for its deletion; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The resources of the snapshot API, and the backup whose objects are touched.
pub struct SnapshotApi<'a> {
    cluster: &'a dyn Cluster,
    snapshots: Arc<Resource>,
    contents: Arc<Resource>,
    groups: Option<GroupResources>,
    backup: RunRef<'a>,
}

impl<'a> SnapshotApi<'a> {
    /// None if the cluster does not serve the snapshot API, so that there is nothing to do.
    pub(in crate::backup) fn new(
        cluster: &'a dyn Cluster,
        resources: &Resources,
        backup: RunRef<'a>,
    ) -> Option<Self> {
        let find = |plural| resources.find(&object::resource(plural)).cloned();
        let (snapshots, contents) = (find(SNAPSHOTS)?, find(CONTENTS)?);
        Some(Self { cluster, snapshots, contents, groups: GroupResources::of(resources), backup })
    }

    /// Discovers the snapshot API, for a caller that does not know the cluster's resources. None if the cluster does
    /// not serve it.
    pub async fn discover(
        cluster: &'a dyn Cluster,
        backup: RunRef<'a>,
    ) -> Result<Option<Self>, Error> {
        let discovery = crate::csi::discover(cluster).await?;
        Ok(Self::new(cluster, &crate::backup::discover::resources(&discovery), backup))
    }

    /// A VolumeSnapshot of the backup.
    async fn snapshot(&self, target: &Target) -> Result<Option<Snapshot>, Error> {
        let found = self.cluster.get(&self.snapshots, &target.namespace, &target.name).await?;
        let read = found.and_then(|object| Snapshot::read(&object.item).ok());
        let Some(snapshot) = read else { return Ok(None) };
        let is_ours = snapshot.belongs_to(self.backup) || self.is_of_group(&snapshot).await?;
        Ok(is_ours.then_some(snapshot))
    }

    /// True if a group of the backup owns a VolumeSnapshot. Such a VolumeSnapshot may lack the labels: it gets them
    /// late.
    async fn is_of_group(&self, snapshot: &Snapshot) -> Result<bool, Error> {
        let (Some(kinds), Some(name)) = (&self.groups, snapshot.group()) else { return Ok(false) };
        let group = self.group(kinds, &snapshot.metadata.namespace, name).await?;
        Ok(group.is_some_and(|(group, _)| snapshot.is_owned_by(&group.metadata.uid)))
    }

    /// The content of a VolumeSnapshot, and whether it is being deleted.
    async fn content(&self, snapshot: &Snapshot) -> Result<Option<(Content, bool)>, Error> {
        let found = self.cluster.get(&self.contents, "", &snapshot.content()).await?;
        let read = found
            .and_then(|object| Some((Content::read(&object.item).ok()?, object.is_being_deleted)));
        Ok(read.filter(|(content, _)| content.is_bound_to(snapshot)))
    }

    /// Sets the deletion policy of a content.
    async fn set_policy(&self, content: &Content, policy: &str) -> Result<(), Error> {
        if content.spec.deletion_policy == policy {
            return Ok(());
        }
        let (name, patch) = (&content.metadata.name, object::deletion_policy_patch(policy));
        let patched = self.cluster.patch(&self.contents, "", name, Subresource::None, &patch).await;
        ignore_not_found(patched.map(drop))
    }

    /// Deletes a content. One that no VolumeSnapshot is bound to gets the annotation that the controller would have
    /// set: without it the snapshotter waits for ever.
    async fn delete_content(&self, content: &Content, is_alone: bool) -> Result<(), Error> {
        let Content { metadata, spec, .. } = content;
        if is_alone || spec.volume_snapshot_ref.uid.is_empty() {
            let patch = object::being_deleted_patch();
            let (contents, name) = (&self.contents, &metadata.name);
            let marked = self.cluster.patch(contents, "", name, Subresource::None, &patch).await;
            ignore_not_found(marked.map(drop))?;
        }
        let uid = Some(metadata.uid.as_str());
        ignore_not_found(self.cluster.delete(&self.contents, "", &metadata.name, uid).await)
    }

    async fn delete_snapshot(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let meta = &snapshot.metadata;
        let uid = Some(meta.uid.as_str());
        let deleted = self.cluster.delete(&self.snapshots, &meta.namespace, &meta.name, uid).await;
        ignore_not_found(deleted)
    }

    /// The content of a VolumeSnapshot, which must not be in deletion.
    async fn live_content(&self, snapshot: &Snapshot) -> Result<Content, RetainError> {
        match self.content(snapshot).await? {
            Some((content, false)) => Ok(content),
            // Its driver may have deleted the snapshot already.
            Some((_, true)) => Err(RetainError::Lost("the VolumeSnapshotContent is being deleted")),
            None => Err(RetainError::Lost("the VolumeSnapshotContent no longer exists")),
        }
    }

    /// Keeps a snapshot at its driver whatever happens to its objects.
    async fn retain(&self, target: &Target) -> Result<(), RetainError> {
        let Some(snapshot) = self.snapshot(target).await? else {
            return Err(RetainError::Lost("the VolumeSnapshot no longer exists or was replaced"));
        };
        let content = self.live_content(&snapshot).await?;
        if content.spec.deletion_policy != "Retain" {
            self.set_policy(&content, "Retain").await?;
            // The content may have been deleted a moment before.
            self.live_content(&snapshot).await?;
        }
        if let (Some(kinds), Some(name)) = (&self.groups, snapshot.group()) {
            let Some((group, content)) = self.group(kinds, &target.namespace, name).await? else {
                return Err(RetainError::Lost("the VolumeGroupSnapshot no longer exists"));
            };
            if !self.set_group_policy(kinds, &group, &content, "Retain").await? {
                return Err(RetainError::Lost("the VolumeGroupSnapshotContent no longer exists"));
            }
        }
        failpoint::hit(Failpoint::CsiContentRetained);
        Ok(())
    }

    /// Sets the deletion policy of a group's content. Returns true if the group has one that is not being deleted.
    async fn set_group_policy(
        &self,
        kinds: &GroupResources,
        group: &Snapshot,
        content: &str,
        policy: &str,
    ) -> Result<bool, Error> {
        let found = self.cluster.get(&kinds.contents, "", content).await?;
        let is_being_deleted = found.as_ref().is_some_and(|found| found.is_being_deleted);
        let value: Value = found.and_then(|found| found.item.parse().ok()).unwrap_or_default();
        if value["spec"]["volumeGroupSnapshotRef"]["uid"] != group.metadata.uid {
            return Ok(false);
        }
        // Written only if necessary: an older controller may keep more in it than our version has.
        if value["spec"]["deletionPolicy"] != policy {
            let patch = object::deletion_policy_patch(policy);
            match self.cluster.patch(&kinds.contents, "", content, Subresource::None, &patch).await
            {
                Ok(patched) => return Ok(!patched.is_being_deleted),
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(!is_being_deleted)
    }

    /// The objects of a retained snapshot, once it no longer depends on them.
    async fn retain_objects(&self, target: &Target) -> Result<Option<RetainedSnapshot>, Error> {
        let Some(snapshot) = self.snapshot(target).await? else {
            return Ok(None);
        };
        let content = self.content(&snapshot).await?.map(|(content, _)| content);
        if let Some(content) = &content {
            // Never without this: the snapshot would be deleted with the content.
            self.set_policy(content, "Retain").await?;
        }
        Ok(Some(RetainedSnapshot { snapshot, content }))
    }

    /// Removes the objects of a snapshot. The content is deleted first, as in Velero, so that it cannot be bound
    /// again.
    async fn delete_objects(&self, objects: &RetainedSnapshot) -> Result<(), Error> {
        if let Some(content) = &objects.content {
            self.delete_content(content, false).await?;
        }
        self.delete_snapshot(&objects.snapshot).await?;
        failpoint::hit(Failpoint::CsiSnapshotReleased);
        Ok(())
    }

    /// A VolumeGroupSnapshot of the backup, and the name of its content.
    async fn group(
        &self,
        kinds: &GroupResources,
        namespace: &str,
        name: &str,
    ) -> Result<Option<(Snapshot, String)>, Error> {
        let Some(found) = self.cluster.get(&kinds.groups, namespace, name).await? else {
            return Ok(None);
        };
        let Ok(group) = Snapshot::read(&found.item) else { return Ok(None) };
        let value: Value = found.item.parse().unwrap_or_default();
        let bound = value["status"]["boundVolumeGroupSnapshotContentName"].as_str();
        let content =
            bound.map_or_else(|| format!("groupsnapcontent-{}", group.metadata.uid), str::to_owned);
        Ok(Some((group, content)).filter(|(group, _)| group.belongs_to(self.backup)))
    }

    /// Removes a group, with its content. With the policy `Retain` nothing happens at its driver; with `Delete` all
    /// its snapshots are deleted.
    async fn remove_group(&self, target: &Target, policy: &str) -> Result<(), RetentionError> {
        let Some(kinds) = &self.groups else { return Ok(()) };
        let Target { namespace, name, .. } = target;
        let deadline = Instant::now() + DELETION_TIMEOUT;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while let Some((group, content)) = self.group(kinds, namespace, name).await? {
            let has_content = self.set_group_policy(kinds, &group, &content, policy).await;
            if has_content? && policy == "Retain" {
                let deleted = self.cluster.delete(&kinds.contents, "", &content, None).await;
                ignore_not_found(deleted)?;
            }
            let uid = Some(group.metadata.uid.as_str());
            let deleted = self.cluster.delete(&kinds.groups, namespace, name, uid).await;
            ignore_not_found(deleted)?;
            if Instant::now() >= deadline {
                return Err(RetentionError::GroupNotDeleted);
            }
            backoff.wait().await;
        }
        Ok(())
    }

    /// The VolumeSnapshots of a group.
    async fn members(&self, group: &Target) -> Result<Vec<Snapshot>, Error> {
        let query = Query { namespace: Some(group.namespace.clone()), ..Query::default() };
        let mut listed = self.cluster.list(&self.snapshots, query);
        let mut members = Vec::new();
        while let Some(object) = listed.try_next().await? {
            if let Ok(snapshot) = Snapshot::read(&object.item)
                && snapshot.group() == Some(&group.name)
            {
                members.push(snapshot);
            }
        }
        Ok(members)
    }

    /// Removes a group whose snapshots are retained, unless one of them is not certain to be: deleting a group
    /// deletes its VolumeSnapshots.
    async fn release_group(
        &self,
        group: &Target,
        unsure: &[(Target, String)],
    ) -> Result<(), RetentionError> {
        let members = self.members(group).await?;
        for member in &members {
            let meta = &member.metadata;
            let matches_member =
                |one: &Target| one.namespace == meta.namespace && one.name == meta.name;
            if unsure.iter().any(|(one, _)| matches_member(one)) {
                return Err(RetentionError::MemberAtRisk(meta.name.clone()));
            }
        }
        self.remove_group(group, "Retain").await
    }

    /// Deletes a group with all its snapshots, unless some of them are retained: those that are not among `all`.
    async fn discard_group(
        &self,
        group: &Target,
        all: Option<&[Target]>,
    ) -> Result<DiscardOutcome, RetentionError> {
        let Some(kinds) = &self.groups else {
            return Err(RetentionError::GroupsNotServed);
        };
        let Target { namespace, name, .. } = group;
        let is_there = self.group(kinds, namespace, name).await?.is_some();
        let members = self.members(group).await?;
        let is_kept = |member: &Snapshot| {
            all.is_some_and(|all| all.iter().all(|one| one.name != member.metadata.name))
        };
        if members.iter().any(is_kept) {
            return Err(RetentionError::GroupInUse);
        }
        if !is_there {
            // The process that removed the group may have ended before it removed these. They alone prove nothing: no
            // driver is asked to delete a single member.
            for member in members.iter().filter(|member| member.belongs_to(self.backup)) {
                self.discard(member).await?;
            }
            return Ok(DiscardOutcome::NotFound("the VolumeGroupSnapshot does not exist"));
        }
        self.remove_group(group, "Delete").await?;
        // The controller should delete them, but now and then leaves one.
        for member in &members {
            self.discard(member).await?;
        }
        Ok(DiscardOutcome::Deleted)
    }

    /// Deletes a snapshot at its driver, and its objects. Returns when they are gone, or about to be.
    async fn discard(&self, snapshot: &Snapshot) -> Result<DiscardOutcome, RetentionError> {
        let (namespace, name) =
            (snapshot.metadata.namespace.clone(), snapshot.metadata.name.clone());
        let target = Target { namespace, name, is_group: false };
        failpoint::hit(Failpoint::DeleteSnapshot);
        let deadline = Instant::now() + DELETION_TIMEOUT;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut is_deleted, mut had_content) = (false, false);
        loop {
            let content = self.content(snapshot).await?;
            had_content |= content.is_some();
            if let Some((content, _)) = &content {
                self.set_policy(content, "Delete").await?;
            }
            if !is_deleted {
                self.delete_snapshot(snapshot).await?;
                is_deleted = true;
            }
            let is_there = self.snapshot(&target).await?.is_some();
            match content {
                // The content was created, or released, during the deletion.
                Some((content, false)) if !is_there => {
                    self.delete_content(&content, true).await?;
                }
                // The driver has yet to delete the snapshot, and will: the content waits for that.
                Some((_, true)) => break,
                None if !is_there => break,
                _ => {}
            }
            if Instant::now() >= deadline {
                return Err(RetentionError::NotDeleted);
            }
            backoff.wait().await;
        }
        failpoint::hit(Failpoint::SnapshotDeleted);
        let not_found = DiscardOutcome::NotFound("the VolumeSnapshotContent does not exist");
        Ok(if had_content { DiscardOutcome::Deleted } else { not_found })
    }
}

/// Outcome of deleting a snapshot.
#[derive(Clone, Copy)]
enum DiscardOutcome {
    /// The snapshot is deleted at its driver, or will be.
    Deleted,
    /// There was no object by which to delete it; names what is missing.
    NotFound(&'static str),
}

fn ignore_not_found(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Reason why a snapshot is not certain to be kept.
#[derive(Debug, thiserror::Error)]
enum RetainError {
    /// The snapshot may be gone already.
    #[error("{0}")]
    Lost(&'static str),
    /// The snapshot exists, but its policy does not keep it.
    #[error(transparent)]
    AtRisk(#[from] Error),
}

/// Failure to remove a snapshot or its objects.
#[derive(Debug, thiserror::Error)]
enum RetentionError {
    /// A request to the API server failed.
    #[error(transparent)]
    Cluster(#[from] Error),
    /// The objects still exist.
    #[error("the VolumeSnapshot still exists after {} s", DELETION_TIMEOUT.as_secs())]
    NotDeleted,
    /// The group still exists.
    #[error("the VolumeGroupSnapshot still exists after {} s", DELETION_TIMEOUT.as_secs())]
    GroupNotDeleted,
    /// A group is not removed, because this snapshot of it would go with it.
    #[error("the deletion policy of snapshot {0} of the group could not be set to Retain")]
    MemberAtRisk(String),
    /// Groups cannot be deleted any more.
    #[error("the cluster no longer serves VolumeGroupSnapshots")]
    GroupsNotServed,
    /// A group is deleted as a whole, or not at all.
    #[error("the snapshot belongs to a group of which other snapshots are kept")]
    GroupInUse,
}

/// A retained snapshot, and its objects.
struct RetainedSnapshot {
    snapshot: Snapshot,
    content: Option<Content>,
}
