use async_trait::async_trait;
use bowline_plugin::{VolumeInfo, VolumeSnapshotter};
use tonic::{Request, Response, Status};

use super::registry::Registry;
use super::{item, snapshot, volume};
use crate::convert::{iops, to_progress};
use crate::proto::generated::{
    self, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteSnapshotRequest, Empty, GetVolumeIdRequest, GetVolumeIdResponse, GetVolumeInfoRequest,
    GetVolumeInfoResponse, SetVolumeIdRequest, SetVolumeIdResponse, UploadSnapshotRequest,
    VolumeSnapshotterInitRequest,
};
use crate::proto::v2;

type Answer<T> = Result<Response<T>, Status>;

/// Implements the service of a version: the common methods, and the additional ones.
macro_rules! implement {
    ($($service:ident)::+ { $($more:item)* }) => {
        #[async_trait]
        impl $($service)::+ for Registry<dyn VolumeSnapshotter> {
            async fn init(&self, request: Request<VolumeSnapshotterInitRequest>) -> Answer<Empty> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    plugin.init(&request.config).await?;
                    Ok(Empty {})
                })
                .await
            }

            async fn create_volume_from_snapshot(
                &self,
                request: Request<CreateVolumeRequest>,
            ) -> Answer<CreateVolumeResponse> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    let snapshot = snapshot(request.snapshot_id)?;
                    let info = VolumeInfo {
                        volume_type: request.volume_type,
                        iops: iops(request.iops),
                    };
                    let zone = &request.volume_az;
                    let id = plugin.create_volume_from_snapshot(&snapshot, &info, zone).await?;
                    Ok(CreateVolumeResponse { volume_id: id.to_string() })
                })
                .await
            }

            async fn get_volume_info(
                &self,
                request: Request<GetVolumeInfoRequest>,
            ) -> Answer<GetVolumeInfoResponse> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    let volume = volume(request.volume_id)?;
                    let info = plugin.get_volume_info(&volume, &request.volume_az).await?;
                    let iops = info.iops.unwrap_or_default();
                    Ok(GetVolumeInfoResponse { volume_type: info.volume_type, iops })
                })
                .await
            }

            async fn create_snapshot(
                &self,
                request: Request<CreateSnapshotRequest>,
            ) -> Answer<CreateSnapshotResponse> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    let volume = volume(request.volume_id)?;
                    let (zone, tags) = (&request.volume_az, &request.tags);
                    let id = plugin.create_snapshot(&volume, zone, tags).await?;
                    Ok(CreateSnapshotResponse { snapshot_id: id.to_string() })
                })
                .await
            }

            async fn delete_snapshot(
                &self,
                request: Request<DeleteSnapshotRequest>,
            ) -> Answer<Empty> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    plugin.delete_snapshot(&snapshot(request.snapshot_id)?).await?;
                    Ok(Empty {})
                })
                .await
            }

            async fn get_volume_id(
                &self,
                request: Request<GetVolumeIdRequest>,
            ) -> Answer<GetVolumeIdResponse> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    let id = plugin.get_volume_id(&item(request.persistent_volume)?).await?;
                    let volume_id = id.map(|id| id.to_string()).unwrap_or_default();
                    Ok(GetVolumeIdResponse { volume_id })
                })
                .await
            }

            async fn set_volume_id(
                &self,
                request: Request<SetVolumeIdRequest>,
            ) -> Answer<SetVolumeIdResponse> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    let (before, id) = (item(request.persistent_volume)?, volume(request.volume_id)?);
                    let after = plugin.set_volume_id(&before, &id).await?;
                    Ok(SetVolumeIdResponse { persistent_volume: after.json().clone() })
                })
                .await
            }

            async fn upload_snapshot(
                &self,
                request: Request<UploadSnapshotRequest>,
            ) -> Answer<Empty> {
                let request = request.into_inner();
                self.call(&request.plugin, |plugin| async move {
                    plugin.upload_snapshot(&snapshot(request.snapshot_id)?).await?;
                    Ok(Empty {})
                })
                .await
            }

            $($more)*
        }
    };
}

implement! { generated::volume_snapshotter_server::VolumeSnapshotter {} }

implement! {
    v2::volume_snapshotter_server::VolumeSnapshotter {
        async fn progress(
            &self,
            request: Request<v2::VolumeSnapshotterProgressRequest>,
        ) -> Answer<v2::VolumeSnapshotterProgressResponse> {
            let request = request.into_inner();
            self.call(&request.plugin, |plugin| async move {
                let progress = plugin.progress(&snapshot(request.snapshot_id)?).await?;
                let progress = to_progress(progress);
                Ok(v2::VolumeSnapshotterProgressResponse { progress })
            })
            .await
        }

        async fn cancel(
            &self,
            request: Request<v2::VolumeSnapshotterCancelRequest>,
        ) -> Answer<()> {
            let request = request.into_inner();
            self.call(&request.plugin, |plugin| async move {
                plugin.cancel(&snapshot(request.operation_id)?).await
            })
            .await
        }
    }
}
