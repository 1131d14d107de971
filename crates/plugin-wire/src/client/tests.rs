//! Answers that break the rules. The plugin here is made of raw messages, since our own server does
//! not send such answers.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{
    BackupItemAction as _, Encoded, ObjectStore as _, RestoreItemAction as _, State,
    VolumeSnapshotter as _,
};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use prost_types::Timestamp;
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::proto::generated::*;
use crate::proto::v2;

/// Answers every call with the given response.
#[derive(Clone, Default)]
struct RawPlugin {
    item: &'static str,
    id: &'static str,
    progress: Option<OperationProgress>,
    timeout: Option<prost_types::Duration>,
}

type Answer<T> = Result<Response<T>, Status>;

/// An answer in which nothing is set.
#[expect(clippy::unnecessary_wraps, reason = "it is an answer")]
fn default_response<T: Default>() -> Answer<T> {
    Ok(Response::new(T::default()))
}

#[async_trait]
impl v2::backup_item_action_server::BackupItemAction for RawPlugin {
    async fn applies_to(
        &self,
        _: Request<v2::BackupItemActionAppliesToRequest>,
    ) -> Answer<v2::BackupItemActionAppliesToResponse> {
        default_response()
    }

    async fn execute(&self, _: Request<v2::ExecuteRequest>) -> Answer<v2::ExecuteResponse> {
        let item = self.item.into();
        let operation_id = self.id.into();
        Ok(Response::new(v2::ExecuteResponse { item, operation_id, ..Default::default() }))
    }

    async fn progress(
        &self,
        _: Request<v2::BackupItemActionProgressRequest>,
    ) -> Answer<v2::BackupItemActionProgressResponse> {
        let progress = self.progress.clone();
        Ok(Response::new(v2::BackupItemActionProgressResponse { progress }))
    }

    async fn cancel(&self, _: Request<v2::BackupItemActionCancelRequest>) -> Answer<()> {
        default_response()
    }
}

#[async_trait]
impl v2::restore_item_action_server::RestoreItemAction for RawPlugin {
    async fn applies_to(
        &self,
        _: Request<v2::RestoreItemActionAppliesToRequest>,
    ) -> Answer<v2::RestoreItemActionAppliesToResponse> {
        default_response()
    }

    async fn execute(
        &self,
        _: Request<v2::RestoreItemActionExecuteRequest>,
    ) -> Answer<v2::RestoreItemActionExecuteResponse> {
        Ok(Response::new(v2::RestoreItemActionExecuteResponse {
            item: self.item.into(),
            wait_for_additional_items: self.timeout.is_some(),
            additional_items_ready_timeout: self.timeout,
            ..Default::default()
        }))
    }

    async fn progress(
        &self,
        _: Request<v2::RestoreItemActionProgressRequest>,
    ) -> Answer<v2::RestoreItemActionProgressResponse> {
        default_response()
    }

    async fn cancel(&self, _: Request<v2::RestoreItemActionCancelRequest>) -> Answer<()> {
        default_response()
    }

    async fn are_additional_items_ready(
        &self,
        _: Request<v2::RestoreItemActionItemsReadyRequest>,
    ) -> Answer<v2::RestoreItemActionItemsReadyResponse> {
        default_response()
    }
}

#[async_trait]
impl volume_snapshotter_server::VolumeSnapshotter for RawPlugin {
    async fn init(&self, _: Request<VolumeSnapshotterInitRequest>) -> Answer<Empty> {
        default_response()
    }

    async fn create_volume_from_snapshot(
        &self,
        _: Request<CreateVolumeRequest>,
    ) -> Answer<CreateVolumeResponse> {
        Ok(Response::new(CreateVolumeResponse { volume_id: self.id.into() }))
    }

    async fn get_volume_info(
        &self,
        _: Request<GetVolumeInfoRequest>,
    ) -> Answer<GetVolumeInfoResponse> {
        default_response()
    }

    async fn create_snapshot(
        &self,
        _: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        Ok(Response::new(CreateSnapshotResponse { snapshot_id: self.id.into() }))
    }

    async fn delete_snapshot(&self, _: Request<DeleteSnapshotRequest>) -> Answer<Empty> {
        default_response()
    }

    async fn get_volume_id(&self, _: Request<GetVolumeIdRequest>) -> Answer<GetVolumeIdResponse> {
        Ok(Response::new(GetVolumeIdResponse { volume_id: self.id.into() }))
    }

    async fn set_volume_id(&self, _: Request<SetVolumeIdRequest>) -> Answer<SetVolumeIdResponse> {
        Ok(Response::new(SetVolumeIdResponse { persistent_volume: self.item.into() }))
    }

    async fn upload_snapshot(&self, _: Request<UploadSnapshotRequest>) -> Answer<Empty> {
        default_response()
    }
}

#[async_trait]
impl object_store_server::ObjectStore for RawPlugin {
    type GetObjectStream =
        Pin<Box<dyn Stream<Item = Result<crate::proto::generated::Bytes, Status>> + Send>>;

    async fn init(&self, _: Request<ObjectStoreInitRequest>) -> Answer<Empty> {
        default_response()
    }

    /// Refuses at the first message, while the caller is still sending.
    async fn put_object(&self, request: Request<Streaming<PutObjectRequest>>) -> Answer<Empty> {
        request.into_inner().message().await?;
        Err(Status::resource_exhausted("the bucket is full"))
    }

    async fn object_exists(&self, _: Request<ObjectExistsRequest>) -> Answer<ObjectExistsResponse> {
        default_response()
    }

    /// Fails in the stream, not at the call; for some keys in the middle.
    async fn get_object(
        &self,
        request: Request<GetObjectRequest>,
    ) -> Answer<Self::GetObjectStream> {
        let piece = |data| Ok(crate::proto::generated::Bytes { data });
        let error = Err(Status::not_found("NoSuchKey"));
        Ok(Response::new(match request.into_inner().key.as_str() {
            "half" => Box::pin(stream::iter([piece("half".into()), error])),
            "empty" => Box::pin(stream::empty()),
            _ => Box::pin(stream::iter([error])),
        }))
    }

    async fn list_common_prefixes(
        &self,
        _: Request<ListCommonPrefixesRequest>,
    ) -> Answer<ListCommonPrefixesResponse> {
        default_response()
    }

    async fn list_objects(&self, _: Request<ListObjectsRequest>) -> Answer<ListObjectsResponse> {
        default_response()
    }

    async fn delete_object(&self, _: Request<DeleteObjectRequest>) -> Answer<Empty> {
        default_response()
    }

    async fn create_signed_url(
        &self,
        _: Request<CreateSignedUrlRequest>,
    ) -> Answer<CreateSignedUrlResponse> {
        default_response()
    }
}

/// A connection to a plugin with these answers. The folder of its socket must be kept.
async fn connect(raw: RawPlugin) -> (crate::Connection, Arc<tempfile::TempDir>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let incoming = stream::unfold(listener, async |listener| {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let server = Server::builder()
        .add_service(v2::backup_item_action_server::BackupItemActionServer::new(raw.clone()))
        .add_service(v2::restore_item_action_server::RestoreItemActionServer::new(raw.clone()))
        .add_service(volume_snapshotter_server::VolumeSnapshotterServer::new(raw.clone()))
        .add_service(object_store_server::ObjectStoreServer::new(raw));
    tokio::spawn(server.serve_with_incoming(incoming));
    (crate::Connection::unix(&path).await.unwrap(), Arc::new(folder))
}

fn name() -> Name {
    "example.io/x".parse().unwrap()
}

fn pod() -> Item {
    Item::from_json(r#"{"kind":"Pod"}"#).unwrap()
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T>, reason: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let expected = format!("plugin example.io/x returned an invalid answer: {reason}");
    assert!(error.message().starts_with(&expected), "{error}");
}

#[tokio::test]
async fn invalid_item_is_refused_from_every_kind_that_returns_one() {
    for (item, reason) in [
        ("", "the item is empty"),
        ("<html>", "the item is no JSON object"),
        ("[1]", "the item is no JSON object"),
        (r#"{"apiVersion":"v1"}"#, "the item has no `kind`"),
    ] {
        let (connection, _folder) = connect(RawPlugin { item, ..RawPlugin::default() }).await;
        let action = BackupItemActionV2::new(connection.clone(), name());
        assert_refused(
            action.execute(&pod(), &Encoded::new(bowline_api::Backup::default())).await,
            reason,
        );
        let action = RestoreItemActionV2::new(connection.clone(), name());
        let restore = Encoded::new(bowline_api::Restore::default());
        assert_refused(action.execute(&pod(), &pod(), &restore).await, reason);
        let snapshotter = VolumeSnapshotterV1::new(connection, name());
        let volume = bowline_plugin::VolumeId::new("v").unwrap();
        assert_refused(snapshotter.set_volume_id(&pod(), &volume).await, reason);
    }
}

#[tokio::test]
async fn missing_progress_is_refused_and_unusual_progress_is_accepted() {
    let operation = bowline_plugin::OperationId::new("op").unwrap();
    let backup = Encoded::new(bowline_api::Backup::default());

    let (connection, _folder) = connect(RawPlugin::default()).await;
    let action = BackupItemActionV2::new(connection, name());
    assert_refused(action.progress(&operation, &backup).await, "the progress is missing");

    let never = Some(Timestamp { seconds: -62_135_596_800, nanos: 0 });
    let impossible = Some(Timestamp { seconds: i64::MAX, nanos: i32::MIN });
    for time in [None, never, impossible] {
        let progress = OperationProgress { started: time, updated: time, ..Default::default() };
        let raw = RawPlugin { progress: Some(progress), ..RawPlugin::default() };
        let (connection, _folder) = connect(raw).await;
        let action = BackupItemActionV2::new(connection, name());
        let progress = action.progress(&operation, &backup).await.unwrap();
        assert_eq!((progress.state, progress.started), (State::Running, None));
    }
}

#[tokio::test]
async fn empty_ids_are_none_where_allowed_and_refused_elsewhere() {
    let (connection, _folder) =
        connect(RawPlugin { item: r#"{"kind":"X"}"#, ..RawPlugin::default() }).await;
    let action = BackupItemActionV2::new(connection.clone(), name());
    let output =
        action.execute(&pod(), &Encoded::new(bowline_api::Backup::default())).await.unwrap();
    assert_eq!(output.operation, None);

    let snapshotter = VolumeSnapshotterV1::new(connection.clone(), name());
    assert_eq!(snapshotter.get_volume_id(&pod()).await, Ok(None));
    let volume = bowline_plugin::VolumeId::new("v").unwrap();
    let created = snapshotter.create_snapshot(&volume, "", &[].into()).await;
    assert_refused(created, "the id of the snapshot is empty");
    let snapshot = bowline_plugin::SnapshotId::new("s").unwrap();
    let info = snapshotter.get_volume_info(&volume, "").await.unwrap();
    assert_eq!(info.iops, None);
    let created = snapshotter.create_volume_from_snapshot(&snapshot, &info, "").await;
    assert_refused(created, "the id of the volume is empty");

    let store = ObjectStore::new(connection, name());
    let url = store.create_signed_url("b", "k", std::time::Duration::MAX).await;
    assert_refused(url, "the address is empty");
}

#[tokio::test]
async fn invalid_wait_falls_back_to_the_servers_timeout() {
    for (seconds, nanos) in [(0, 0), (-5, 0), (i64::MIN, i32::MIN), (1, i32::MAX)] {
        let timeout = Some(prost_types::Duration { seconds, nanos });
        let raw = RawPlugin { item: r#"{"kind":"X"}"#, timeout, ..RawPlugin::default() };
        let (connection, _folder) = connect(raw).await;
        let action = RestoreItemActionV2::new(connection, name());
        let restore = Encoded::new(bowline_api::Restore::default());
        let output = action.execute(&pod(), &pod(), &restore).await.unwrap();
        assert_eq!(output.wait, Some(bowline_plugin::Wait { timeout: None }));
    }
}

#[tokio::test]
async fn missing_object_fails_the_call_even_if_the_plugin_reports_it_in_the_stream() {
    let (connection, _folder) = connect(RawPlugin::default()).await;
    let store = ObjectStore::new(connection, name());
    let Err(error) = store.get_object("b", "missing").await else { panic!("found") };
    assert_eq!(error, Error::new(Code::NotFound, "NoSuchKey"));

    let mut half = store.get_object("b", "half").await.unwrap();
    assert_eq!(half.next().await.unwrap().unwrap(), "half");
    let error = half.next().await.unwrap().unwrap_err();
    assert_eq!(error.downcast::<Error>().unwrap().message(), "NoSuchKey");

    let empty = store.get_object("b", "empty").await.unwrap();
    assert!(empty.try_collect::<Vec<_>>().await.unwrap().is_empty());
}

#[tokio::test]
async fn early_refusal_of_an_object_is_returned() {
    let (connection, _folder) = connect(RawPlugin::default()).await;
    let store = ObjectStore::new(connection, name());
    let endless = stream::repeat_with(|| Ok(bytes::Bytes::from_static(&[0; 4096])));
    let error = store.put_object("b", "k", Box::pin(endless)).await.unwrap_err();
    assert_eq!(error, Error::new(Code::ResourceExhausted, "the bucket is full"));
}

#[tokio::test]
async fn unknown_method_is_unimplemented() {
    let (connection, _folder) = connect(RawPlugin::default()).await;
    let snapshotter = VolumeSnapshotterV2::new(connection.clone(), name());
    let snapshot = bowline_plugin::SnapshotId::new("s").unwrap();
    let error = snapshotter.upload_snapshot(&snapshot).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    // Go plugins of other frameworks may have none of these services; they are still stopped.
    assert_eq!(output_stream(&connection).collect::<Vec<_>>().await, []);
    shutdown(&connection).await;
}
