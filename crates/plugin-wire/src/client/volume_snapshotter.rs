use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_plugin::{
    Config, Item, Progress, Result, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter,
};

use super::{adapter, invalid, item, progress};
use crate::convert::iops;
use crate::proto::{generated, v2};
use crate::status::to_error;

adapter! {
    /// A [`VolumeSnapshotter`] of version 1. A snapshot is complete when it has been created:
    /// `progress` returns unimplemented, without a call, and `cancel` does nothing.
    /// `upload_snapshot` is called here too, since a plugin may have it; most return unimplemented.
    VolumeSnapshotterV1, generated::volume_snapshotter_client::VolumeSnapshotterClient
}

adapter! {
    /// A [`VolumeSnapshotter`] of version 2.
    VolumeSnapshotterV2, v2::volume_snapshotter_client::VolumeSnapshotterClient
}

/// Implements the trait for an adapter: the common methods, and the additional ones.
macro_rules! implement {
    ($adapter:ident { $($more:item)* }) => {
        #[async_trait]
        impl VolumeSnapshotter for $adapter {
            async fn init(&self, config: &Config) -> Result<()> {
                let request = generated::VolumeSnapshotterInitRequest {
                    plugin: self.plugin(),
                    config: config.clone(),
                };
                self.stub().init(request).await.map_err(to_error)?;
                Ok(())
            }

            async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
                let request = generated::GetVolumeIdRequest {
                    plugin: self.plugin(),
                    persistent_volume: persistent_volume.json().clone(),
                };
                let answer = self.stub().get_volume_id(request).await.map_err(to_error)?;
                Ok(VolumeId::new(answer.into_inner().volume_id))
            }

            async fn set_volume_id(
                &self,
                persistent_volume: &Item,
                volume: &VolumeId,
            ) -> Result<Item> {
                let request = generated::SetVolumeIdRequest {
                    plugin: self.plugin(),
                    persistent_volume: persistent_volume.json().clone(),
                    volume_id: volume.to_string(),
                };
                let answer = self.stub().set_volume_id(request).await.map_err(to_error)?;
                item(&self.plugin, answer.into_inner().persistent_volume)
            }

            async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
                let request = generated::GetVolumeInfoRequest {
                    plugin: self.plugin(),
                    volume_id: volume.to_string(),
                    volume_az: zone.to_owned(),
                };
                let answer = self.stub().get_volume_info(request).await.map_err(to_error)?;
                let answer = answer.into_inner();
                Ok(VolumeInfo { volume_type: answer.volume_type, iops: iops(answer.iops) })
            }

            async fn create_snapshot(
                &self,
                volume: &VolumeId,
                zone: &str,
                tags: &BTreeMap<String, String>,
            ) -> Result<SnapshotId> {
                let request = generated::CreateSnapshotRequest {
                    plugin: self.plugin(),
                    volume_id: volume.to_string(),
                    volume_az: zone.to_owned(),
                    tags: tags.clone(),
                };
                let answer = self.stub().create_snapshot(request).await.map_err(to_error)?;
                SnapshotId::new(answer.into_inner().snapshot_id)
                    .ok_or_else(|| invalid(&self.plugin, "the id of the snapshot is empty"))
            }

            async fn create_volume_from_snapshot(
                &self,
                snapshot: &SnapshotId,
                info: &VolumeInfo,
                zone: &str,
            ) -> Result<VolumeId> {
                let request = generated::CreateVolumeRequest {
                    plugin: self.plugin(),
                    snapshot_id: snapshot.to_string(),
                    volume_type: info.volume_type.clone(),
                    volume_az: zone.to_owned(),
                    iops: info.iops.unwrap_or_default(),
                };
                let answer =
                    self.stub().create_volume_from_snapshot(request).await.map_err(to_error)?;
                VolumeId::new(answer.into_inner().volume_id)
                    .ok_or_else(|| invalid(&self.plugin, "the id of the volume is empty"))
            }

            async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
                let request = generated::DeleteSnapshotRequest {
                    plugin: self.plugin(),
                    snapshot_id: snapshot.to_string(),
                };
                self.stub().delete_snapshot(request).await.map_err(to_error)?;
                Ok(())
            }

            async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
                let request = generated::UploadSnapshotRequest {
                    plugin: self.plugin(),
                    snapshot_id: snapshot.to_string(),
                };
                self.stub().upload_snapshot(request).await.map_err(to_error)?;
                Ok(())
            }

            $($more)*
        }
    };
}

implement! { VolumeSnapshotterV1 {} }

implement! {
    VolumeSnapshotterV2 {
        async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
            let request = v2::VolumeSnapshotterProgressRequest {
                plugin: self.plugin(),
                snapshot_id: snapshot.to_string(),
            };
            let answer = self.stub().progress(request).await.map_err(to_error)?.into_inner();
            progress(&self.plugin, answer.progress)
        }

        async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
            let request = v2::VolumeSnapshotterCancelRequest {
                plugin: self.plugin(),
                operation_id: snapshot.to_string(),
            };
            self.stub().cancel(request).await.map_err(to_error)?;
            Ok(())
        }
    }
}
