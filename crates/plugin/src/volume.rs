//! Snapshots of volumes.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::id::id;
use crate::{Error, Item, Progress, Result};

/// What a location says to its plugin, and what the server adds to it.
pub type Config = BTreeMap<String, String>;

id! {
    /// A volume, in the words of its provider.
    VolumeId
}

id! {
    /// A snapshot, in the words of its provider. It is also the id of the operations that create
    /// and upload it.
    SnapshotId
}

/// What there is to know about a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The provider's type of volume.
    pub volume_type: String,
    /// Operations per second that it is made for, if it is made for a number.
    pub iops: Option<i64>,
}

/// Snapshots volumes and makes volumes from snapshots.
///
/// # Two stages
/// When [`create_snapshot`](Self::create_snapshot) returns, the point in time is fixed and the
/// application may go on. Completing the snapshot and uploading it are operations that go on behind
/// it, both with the snapshot's id: until creation is complete, [`progress`](Self::progress) speaks
/// of it, and afterwards of the upload, which ends when
/// [`upload_snapshot`](Self::upload_snapshot) returns.
#[async_trait]
pub trait VolumeSnapshotter: Send + Sync {
    /// Takes its configuration. May be called again, and the last one counts.
    async fn init(&self, config: &Config) -> Result<()>;

    /// The volume behind a PersistentVolume; none if it is not one of this provider's.
    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>>;

    /// Puts another volume behind a PersistentVolume.
    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item>;

    /// What there is to know about a volume in a zone.
    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo>;

    /// Fixes the point in time of a snapshot. The same `bowline.io/request-id` among the tags means
    /// the same snapshot.
    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId>;

    /// Makes a volume from a snapshot.
    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId>;

    /// Deletes a snapshot and what was uploaded of it. No error if it is gone.
    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()>;

    /// How the creation or the upload of a snapshot goes. Unimplemented means that a snapshot is
    /// complete when it has been created.
    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let _ = snapshot;
        Err(Error::unimplemented("Progress"))
    }

    /// Asks the operation of a snapshot to stop. No error if it has ended, or cannot be stopped.
    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        let _ = snapshot;
        Ok(())
    }

    /// Brings a snapshot to where it outlives the volume; returns when it is there. Called when the
    /// creation is complete, as `progress` tells it. May be called
    /// again for the same snapshot, after a restart. Unimplemented means that there is nothing to
    /// upload, or that it has been done within `create_snapshot`.
    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let _ = snapshot;
        Err(Error::unimplemented("UploadSnapshot"))
    }
}
