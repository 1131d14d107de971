//! Answers of plugins: any bytes as the answer to any call, through the real client.
//!
//! The first byte says which method is called, and whether the answer is a message, an error with details, or bytes
//! that are not even framed.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bowline_plugin::{
    BackupItemAction as _, DeleteItemAction as _, Encoded, Error, Item, ItemBlockAction as _, Name,
    ObjectStore as _, OperationId, Progress, RestoreItemAction as _, SnapshotId, VolumeId,
    VolumeSnapshotter as _,
};
use bowline_plugin_wire::{Connection, client};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::TryStreamExt as _;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::block_on;

/// Longest text of a plugin in an error, with what is said around it.
const MAX_ERROR: usize = 80 << 10;
/// Longest wait that a plugin can ask for.
const MAX_WAIT_SECONDS: u64 = 366 * 24 * 3600;

/// An answer to a call.
#[derive(Clone)]
enum Answer {
    Message(Bytes),
    Unframed(Bytes),
    Error(u8, Bytes),
}

impl Answer {
    fn read(mode: u8, payload: &[u8]) -> Self {
        let payload = Bytes::copy_from_slice(payload);
        match mode >> 5 {
            0..=4 => Self::Message(payload),
            5 => Self::Unframed(payload),
            code => Self::Error(code, payload),
        }
    }

    fn response(
        self,
    ) -> Response<impl http_body_util::BodyExt<Data = Bytes, Error = Infallible> + Send> {
        let mut trailers = HeaderMap::new();
        let status = |code: u8| HeaderValue::from(u16::from(code));
        let body = match self {
            Self::Message(payload) => {
                trailers.insert("grpc-status", status(0));
                let mut frame = BytesMut::with_capacity(payload.len() + 5);
                frame.put_u8(0);
                frame.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
                frame.extend_from_slice(&payload);
                frame.freeze()
            }
            Self::Unframed(payload) => {
                trailers.insert("grpc-status", status(0));
                payload
            }
            Self::Error(code, payload) => {
                trailers.insert("grpc-status", status(code));
                let details = HeaderValue::from_str(&BASE64.encode(&payload));
                trailers.extend(details.ok().map(|value| {
                    (Some(http::HeaderName::from_static("grpc-status-details-bin")), value)
                }));
                let message = HeaderValue::from_bytes(&payload[..payload.len().min(64)]);
                trailers.extend(
                    message
                        .ok()
                        .map(|value| (Some(http::HeaderName::from_static("grpc-message")), value)),
                );
                Bytes::new()
            }
        };
        let body = Full::new(body).with_trailers(async move { Some(Ok(trailers)) });
        let mut response = Response::new(body);
        let value = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, value);
        response
    }
}

/// A plugin that gives one answer to all calls, and the connection to it.
struct Plugin {
    connection: Connection,
    answer: Arc<Mutex<Answer>>,
    _folder: TempDir,
}

impl Plugin {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let answer = Arc::new(Mutex::new(Answer::Message(Bytes::new())));
        let given = Arc::clone(&answer);
        let serve = async move {
            let Ok((stream, _)) = listener.accept().await else { return };
            let service = hyper::service::service_fn(move |_| {
                let response = given.lock().clone().response();
                async move { Ok::<_, Infallible>(response) }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        };
        tokio::spawn(serve);
        let connection = Connection::unix(&path).await.expect("the plugin listens");
        Self { connection, answer, _folder: folder }
    }
}

thread_local! {
    static PLUGIN: OnceLock<Plugin> = const { OnceLock::new() };
}

pub(super) fn run(input: &[u8]) {
    let Some((&mode, payload)) = input.split_first() else { return };
    PLUGIN.with(|plugin| {
        let plugin = plugin.get_or_init(|| block_on(Plugin::start()));
        *plugin.answer.lock() = Answer::read(mode, payload);
        if let Err(error) = block_on(call(&plugin.connection, mode % 32)) {
            let message = error.to_string();
            assert!(message.len() <= MAX_ERROR, "an error of {} bytes", message.len());
        }
    });
}

/// Calls a method, and checks what comes back.
async fn call(connection: &Connection, method: u8) -> Result<(), Error> {
    let plugin: Name = "example.io/a".parse().expect("a valid name");
    let object = || {
        Item::from_json(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#)
            .expect("a valid object")
    };
    let operation = OperationId::new("op").expect("an id");
    let (volume, snapshot) =
        (VolumeId::new("v").expect("an id"), SnapshotId::new("s").expect("an id"));
    let backup = Encoded::new(bowline_api::Backup::default());
    let restore = Encoded::new(bowline_api::Restore::default());
    let backup_action = client::BackupItemActionV2::new(connection.clone(), plugin.clone());
    let restore_action = client::RestoreItemActionV2::new(connection.clone(), plugin.clone());
    let snapshotter = client::VolumeSnapshotterV2::new(connection.clone(), plugin.clone());
    let store = client::ObjectStore::new(connection.clone(), plugin.clone());
    match method {
        0 => drop(backup_action.applies_to().await?),
        1 => {
            let output = backup_action.execute(&object(), &backup).await?;
            check_item(&output.item);
        }
        2 => check_progress(&backup_action.progress(&operation, &backup).await?),
        3 => drop(restore_action.applies_to().await?),
        4 => {
            let output = restore_action.execute(&object(), &object(), &restore).await?;
            check_item(&output.item);
            let wait = output.wait.and_then(|wait| wait.timeout);
            assert!(wait.is_none_or(|wait| wait.as_secs() <= MAX_WAIT_SECONDS), "{wait:?}");
        }
        5 => check_progress(&restore_action.progress(&operation, &restore).await?),
        6 => drop(restore_action.are_additional_items_ready(&[], &restore).await?),
        7 => {
            let action = client::DeleteItemAction::new(connection.clone(), plugin);
            action.execute(&object(), &backup).await?;
        }
        8 => {
            let action = client::ItemBlockAction::new(connection.clone(), plugin);
            drop(action.get_related_items(&object(), &backup).await?);
        }
        9 => drop(snapshotter.get_volume_id(&object()).await?),
        10 => check_item(&snapshotter.set_volume_id(&object(), &volume).await?),
        11 => {
            let info = snapshotter.get_volume_info(&volume, "zone").await?;
            assert!(info.iops.is_none_or(|iops| iops > 0));
        }
        12 => {
            let tags = std::collections::BTreeMap::new();
            drop(snapshotter.create_snapshot(&volume, "zone", &tags).await?);
        }
        13 => check_progress(&snapshotter.progress(&snapshot).await?),
        14 => drop(store.list_objects("bucket", "prefix").await?),
        15 => {
            let mut body = store.get_object("bucket", "key").await?;
            // A body that breaks off is an error, and never looks complete.
            while let Ok(Some(piece)) = body.try_next().await {
                assert!(piece.len() <= Connection::MESSAGE_LIMIT);
            }
        }
        16 => {
            drop(
                store.create_signed_url("bucket", "key", std::time::Duration::from_secs(1)).await?,
            );
        }
        17 => drop(store.object_exists("bucket", "key").await?),
        18 => client::check_health(connection).await?,
        _ => {
            for listed in client::list_plugins(connection).await?.into_iter().flatten() {
                assert!(!listed.command.is_empty());
            }
        }
    }
    Ok(())
}

fn check_item(item: &Item) {
    assert!(Item::from_json(item.json().clone()).is_ok());
}

fn check_progress(progress: &Progress) {
    assert!(progress.done >= 0 && progress.total >= 0);
}
