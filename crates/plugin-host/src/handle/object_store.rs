//! Object stores in a process. Streams have no limit in all, but one on silence.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Config, Error, ObjectStore, Result};
use bowline_plugin_wire::{Connection, client};
use futures::StreamExt as _;

use super::Handle;
use crate::slot::Session;

/// For streams, which are watched while they last.
const NO_LIMIT: Duration = Duration::MAX;

impl Handle {
    fn object_store(&self, connection: Connection) -> client::ObjectStore {
        client::ObjectStore::new(connection, self.name.clone())
    }
}

#[async_trait]
impl ObjectStore for Handle {
    async fn init(&self, config: &Config) -> Result<()> {
        self.require_config(config)?;
        self.slot.enter().await.map(drop)
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        let session = self.slot.enter().await?;
        let pieces = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&pieces);
        let body: ByteStream = Box::pin(body.inspect(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let put = session.call("PutObject", NO_LIMIT, |connection| async move {
            self.object_store(connection).put_object(bucket, key, body).await
        });
        let silence = self.limits().stream_silence;
        tokio::select! {
            outcome = put => outcome,
            () = until_silent(&pieces, silence) => Err(session.no_answer("PutObject", silence)),
        }
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        let call = |connection| async move {
            self.object_store(connection).object_exists(bucket, key).await
        };
        self.slot.call("ObjectExists", self.limits().metadata, call).await
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        let session = self.slot.enter().await?;
        let get =
            |connection| async move { self.object_store(connection).get_object(bucket, key).await };
        let stream = session.call("GetObject", self.limits().metadata, get).await?;
        Ok(watched(stream, session, self.limits().stream_silence))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let call = |connection| async move {
            self.object_store(connection).list_common_prefixes(bucket, prefix, delimiter).await
        };
        self.slot.call("ListCommonPrefixes", self.limits().metadata, call).await
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let call = |connection| async move {
            self.object_store(connection).list_objects(bucket, prefix).await
        };
        self.slot.call("ListObjects", self.limits().metadata, call).await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        let call = |connection| async move {
            self.object_store(connection).delete_object(bucket, key).await
        };
        self.slot.call("DeleteObject", self.limits().metadata, call).await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        let call = |connection| async move {
            self.object_store(connection).create_signed_url(bucket, key, ttl).await
        };
        self.slot.call("CreateSignedURL", self.limits().metadata, call).await
    }
}

/// Returns when no piece has moved for a while.
async fn until_silent(pieces: &AtomicU64, silence: Duration) {
    loop {
        let before = pieces.load(Ordering::Relaxed);
        tokio::time::sleep(silence).await;
        if pieces.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// The stream, ended by an error when it is silent for too long or its process dies. It keeps its
/// place among the callers while it lasts.
fn watched(stream: ByteStream, session: Session, silence: Duration) -> ByteStream {
    let state = Some((stream, session));
    Box::pin(futures::stream::unfold(state, move |state| async move {
        let (mut stream, session) = state?;
        match tokio::time::timeout(silence, stream.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((stream, session)))),
            Ok(Some(Err(error))) => Some((Err(explained(&session, error).await), None)),
            Err(_) => Some((Err(io::Error::other(session.no_answer("GetObject", silence))), None)),
        }
    }))
}

async fn explained(session: &Session, error: io::Error) -> io::Error {
    match error.downcast::<Error>() {
        Ok(error) => io::Error::other(session.explain("GetObject", error).await),
        Err(error) => error,
    }
}
