//! Requests that break the rules. The host here sends raw messages, since our own client does not
//! send such requests.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    BackupItemAction, BackupOutput, ByteStream, Config, Name, ObjectStore, OperationId,
    ResourceSelector, RestoreItemAction, RestoreOutput, Wait,
};
use futures_util::stream;
use tokio::net::UnixListener;
use tonic::transport::Channel;
use tonic::{Code as Grpc, Status};

use super::*;
use crate::proto::health::HealthCheckRequest;
use crate::proto::{generated, health, v2};

/// Accepts everything; its results are more than version 1 can represent.
struct Action;

#[async_trait]
impl BackupItemAction for Action {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        assert_eq!(backup.metadata.name, None);
        let operation = OperationId::new("op");
        Ok(BackupOutput { operation, ..BackupOutput::unchanged(item) })
    }
}

#[async_trait]
impl RestoreItemAction for Action {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        _: &Encoded<bowline_api::Restore>,
    ) -> Result<RestoreOutput> {
        Ok(RestoreOutput { wait: Some(Wait::default()), ..RestoreOutput::unchanged(item) })
    }
}

#[async_trait]
impl ObjectStore for Action {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn put_object(&self, _: &str, _: &str, _: ByteStream) -> Result<()> {
        Ok(())
    }

    async fn object_exists(&self, _: &str, _: &str) -> Result<bool> {
        Ok(true)
    }

    async fn get_object(&self, _: &str, _: &str) -> Result<ByteStream> {
        // Panics in the middle.
        let pieces = (0..2).map(|piece| {
            assert_eq!(piece, 0, "no second piece");
            Ok(Bytes::from_static(b"first"))
        });
        Ok(Box::pin(stream::iter(pieces)))
    }

    async fn list_common_prefixes(&self, _: &str, _: &str, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn list_objects(&self, _: &str, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn delete_object(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    async fn create_signed_url(&self, _: &str, _: &str, _: std::time::Duration) -> Result<String> {
        Ok("https://x".into())
    }
}

const PLUGIN: &str = "example.io/x";

async fn start() -> (Channel, tempfile::TempDir) {
    let mut plugins = Plugins::new("/plugins/x");
    let name: Name = PLUGIN.parse().unwrap();
    plugins.backup_item_action_v1(name.clone(), Arc::new(Action)).unwrap();
    plugins.backup_item_action_v2(name.clone(), Arc::new(Action)).unwrap();
    plugins.restore_item_action_v1(name.clone(), Arc::new(Action)).unwrap();
    plugins.object_store(name, Arc::new(Action)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(plugins.serve(listener, std::future::pending()));
    (crate::Connection::unix(&path).await.unwrap().channel(), folder)
}

fn assert_status<T: std::fmt::Debug>(result: Result<T, Status>, code: Grpc, text: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code);
    assert!(status.message().contains(text), "{status:?}");
}

#[tokio::test]
async fn invalid_request_is_refused_before_the_implementation() {
    let (channel, _folder) = start().await;
    let mut action = v2::backup_item_action_client::BackupItemActionClient::new(channel.clone());
    for (item, backup, text) in [
        ("", "{}", "the item is empty"),
        ("{}", "{}", "the item has no `kind`"),
        ("nonsense", "{}", "the item is no JSON object"),
        (r#"{"kind":"Pod"}"#, "nonsense", "the backup or restore is not valid JSON"),
    ] {
        let (plugin, item, backup) = (PLUGIN.into(), item.into(), backup.into());
        let request = v2::ExecuteRequest { plugin, item, backup };
        assert_status(action.execute(request).await, Grpc::InvalidArgument, text);
    }
    let request =
        v2::BackupItemActionProgressRequest { plugin: PLUGIN.into(), ..Default::default() };
    let text = "the id of the operation is empty";
    assert_status(action.progress(request).await, Grpc::InvalidArgument, text);

    let mut store = generated::object_store_client::ObjectStoreClient::new(channel);
    let nothing = store.put_object(stream::empty()).await;
    assert_status(nothing, Grpc::InvalidArgument, "ended before the bucket and key were sent");
    let plugin = PLUGIN.into();
    let request = generated::CreateSignedUrlRequest { plugin, ttl: -1, ..Default::default() };
    let text = "the time to live is negative";
    assert_status(store.create_signed_url(request).await, Grpc::InvalidArgument, text);
}

#[tokio::test]
async fn a_backup_may_be_empty_or_without_a_kind() {
    let (channel, _folder) = start().await;
    let mut action = v2::backup_item_action_client::BackupItemActionClient::new(channel);
    for backup in ["", "{}", " {}\n", r#"{"metadata":{"creationTimestamp":null},"spec":{}}"#] {
        let (plugin, item) = (PLUGIN.into(), r#"{"kind":"Pod"}"#.into());
        let request = v2::ExecuteRequest { plugin, item, backup: backup.into() };
        let response = action.execute(request).await.unwrap().into_inner();
        assert_eq!(response.operation_id, "op", "{backup}");
    }
}

#[tokio::test]
async fn result_that_version_1_cannot_carry_is_an_error() {
    let (channel, _folder) = start().await;
    let (plugin, item) = (PLUGIN.to_owned(), Bytes::from_static(br#"{"kind":"Pod"}"#));
    let mut action =
        generated::backup_item_action_client::BackupItemActionClient::new(channel.clone());
    let request = generated::ExecuteRequest {
        plugin: plugin.clone(),
        item: item.clone(),
        ..Default::default()
    };
    let response = action.execute(request).await;
    assert_status(response, Grpc::FailedPrecondition, "started an operation");
    let mut action = generated::restore_item_action_client::RestoreItemActionClient::new(channel);
    let request = generated::RestoreItemActionExecuteRequest {
        plugin,
        item: item.clone(),
        item_from_backup: item,
        ..Default::default()
    };
    let response = action.execute(request).await;
    assert_status(response, Grpc::FailedPrecondition, "waits for additional items");
}

#[tokio::test]
async fn panic_while_streaming_an_object_ends_it_with_an_error() {
    let (channel, _folder) = start().await;
    let mut store = generated::object_store_client::ObjectStoreClient::new(channel);
    let request = generated::GetObjectRequest { plugin: PLUGIN.into(), ..Default::default() };
    let mut pieces = store.get_object(request).await.unwrap().into_inner();
    assert_eq!(pieces.message().await.unwrap().unwrap().data, "first");
    assert_status(pieces.message().await, Grpc::Aborted, "plugin panicked");
}

#[tokio::test]
async fn health_is_reported_only_for_the_process() {
    let (channel, _folder) = start().await;
    let mut client = health::health_client::HealthClient::new(channel);
    for service in ["", "plugin"] {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(client.check(request).await.unwrap().into_inner().status, 1);
    }
    let request = HealthCheckRequest { service: "other".into() };
    assert_status(client.check(request).await, Grpc::NotFound, "other");
}
