//! Volume snapshotters in a process.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_plugin::{
    Config, Item, Kind, Progress, Result, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_plugin_wire::{Connection, client};

use super::Handle;

impl Handle {
    fn volume_snapshotter(&self, connection: Connection) -> Box<dyn VolumeSnapshotter> {
        match self.kind {
            Kind::VolumeSnapshotterV2 => {
                Box::new(client::VolumeSnapshotterV2::new(connection, self.name.clone()))
            }
            _ => Box::new(client::VolumeSnapshotterV1::new(connection, self.name.clone())),
        }
    }
}

#[async_trait]
impl VolumeSnapshotter for Handle {
    async fn init(&self, config: &Config) -> Result<()> {
        self.require_config(config)?;
        self.slot.open_session(false).await.map(drop)
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).get_volume_id(persistent_volume).await
        };
        self.slot.call(self.metadata_call("GetVolumeID"), call).await
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).set_volume_id(persistent_volume, volume).await
        };
        self.slot.call(self.metadata_call("SetVolumeID"), call).await
    }

    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).get_volume_info(volume, zone).await
        };
        self.slot.call(self.metadata_call("GetVolumeInfo"), call).await
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).create_snapshot(volume, zone, tags).await
        };
        self.slot.call(self.volume_call("CreateSnapshot"), call).await
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        let call = |connection| async move {
            let plugin = self.volume_snapshotter(connection);
            plugin.create_volume_from_snapshot(snapshot, info, zone).await
        };
        self.slot.call(self.volume_call("CreateVolumeFromSnapshot"), call).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).delete_snapshot(snapshot).await
        };
        self.slot.call(self.volume_call("DeleteSnapshot"), call).await
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).progress(snapshot).await
        };
        self.slot.call(self.metadata_call("Progress"), call).await
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        let call =
            |connection| async move { self.volume_snapshotter(connection).cancel(snapshot).await };
        self.slot.call(self.metadata_call("Cancel"), call).await
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let call = |connection| async move {
            self.volume_snapshotter(connection).upload_snapshot(snapshot).await
        };
        self.slot.call(self.volume_call("UploadSnapshot"), call).await
    }
}
