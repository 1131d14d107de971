//! Snapshots of volumes.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::id::id;
use crate::{Error, Item, Progress, Result};

/// Configuration of a plugin: that of the location, and the server's additions.
pub type Config = BTreeMap<String, String>;

id! {
    /// The provider's id of a volume.
    VolumeId
}

id! {
    /// The provider's id of a snapshot. Also the id of the operations that create and upload it.
    SnapshotId
}

/// Properties of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The provider's type of volume.
    pub volume_type: String,
    /// Provisioned I/O operations per second, if the volume has a provisioned rate.
    pub iops: Option<i64>,
}

/// Snapshots volumes and creates volumes from snapshots.
///
/// # Two stages
/// When [`create_snapshot`](Self::create_snapshot) returns, the point in time is fixed and the
/// application may resume. Completing the snapshot and uploading it are operations that continue in
/// the background, both with the snapshot's id: until the creation is complete,
/// [`progress`](Self::progress) reports on the creation, and afterwards on the upload, which ends
/// when [`upload_snapshot`](Self::upload_snapshot) returns.
#[async_trait]
pub trait VolumeSnapshotter: Send + Sync {
    /// Sets the configuration. May be called again; the last one counts.
    async fn init(&self, config: &Config) -> Result<()>;

    /// The volume of a PersistentVolume; `None` if it does not belong to this provider.
    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>>;

    /// Replaces the volume of a PersistentVolume.
    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item>;

    /// Properties of a volume in a zone.
    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo>;

    /// Fixes the point in time of a snapshot. The same `bowline.io/request-id` among the tags means
    /// the same snapshot.
    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId>;

    /// Creates a volume from a snapshot.
    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId>;

    /// Deletes a snapshot and its upload. Not an error if the snapshot is gone.
    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()>;

    /// Progress of the creation or the upload of a snapshot. Unimplemented means that a snapshot is
    /// complete when `create_snapshot` returns.
    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let _ = snapshot;
        Err(Error::unimplemented("Progress"))
    }

    /// Asks the operation of a snapshot to stop. Not an error if the operation has ended, or cannot
    /// be stopped.
    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        let _ = snapshot;
        Ok(())
    }

    /// Copies a snapshot to storage that outlives the volume; returns when the copy is complete.
    /// Called when the creation is complete according to `progress`. May be called again for the
    /// same snapshot, after a restart. Unimplemented means that there is nothing to upload, or that
    /// `create_snapshot` has already uploaded it.
    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let _ = snapshot;
        Err(Error::unimplemented("UploadSnapshot"))
    }
}
