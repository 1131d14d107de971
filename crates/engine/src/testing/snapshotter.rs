//! Fakes of plugins that create snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{
    Config, Error, Item, Progress, Result, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter,
};

/// A snapshotter that implements only what its test is about.
#[async_trait]
#[expect(missing_docs, reason = "each is the method of VolumeSnapshotter of the same name")]
pub trait PartialSnapshotter: Send + Sync {
    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Ok(None)
    }

    async fn set_volume_id(&self, persistent_volume: &Item, _: &VolumeId) -> Result<Item> {
        Ok(persistent_volume.clone())
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Ok(VolumeInfo::default())
    }

    async fn create_snapshot(
        &self,
        _: &VolumeId,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        Err(Error::unimplemented("CreateSnapshot"))
    }

    async fn create_volume_from_snapshot(
        &self,
        _: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        Err(Error::unimplemented("CreateVolumeFromSnapshot"))
    }

    async fn delete_snapshot(&self, _: &SnapshotId) -> Result<()> {
        Ok(())
    }

    async fn progress(&self, _: &SnapshotId) -> Result<Progress> {
        Err(Error::unimplemented("Progress"))
    }

    async fn cancel(&self, _: &SnapshotId) -> Result<()> {
        Ok(())
    }
}

/// A partial snapshotter as the engine calls it.
pub struct CompleteSnapshotter<S>(pub Arc<S>);

#[async_trait]
impl<S: PartialSnapshotter> VolumeSnapshotter for CompleteSnapshotter<S> {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        self.0.get_volume_id(persistent_volume).await
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        self.0.set_volume_id(persistent_volume, volume).await
    }

    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
        self.0.get_volume_info(volume, zone).await
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        self.0.create_snapshot(volume, zone, tags).await
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        self.0.create_volume_from_snapshot(snapshot, info, zone).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.0.delete_snapshot(snapshot).await
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        self.0.progress(snapshot).await
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.0.cancel(snapshot).await
    }
}
