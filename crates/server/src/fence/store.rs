//! Object store that refuses changes while the fence is closed.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bowline_store::backend::{Backend, Creation};
use bytes::Bytes;
use futures::Stream;

use super::Fence;

pub(super) struct FencedStore {
    backend: Arc<dyn Backend>,
    fence: Fence,
}

impl FencedStore {
    pub(super) fn new(backend: Arc<dyn Backend>, fence: Fence) -> Self {
        Self { backend, fence }
    }

    fn check(&self) -> Result<()> {
        // The fence may open again: a renewal can be late.
        self.fence.check().map_err(|closed| Error::new(Code::Unavailable, closed.to_string()))
    }
}

#[async_trait]
impl ObjectStore for FencedStore {
    async fn init(&self, config: &Config) -> Result<()> {
        self.backend.init(config).await
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        self.check()?;
        let body = Box::pin(FencedBody { body, fence: self.fence.clone() });
        self.backend.put_object(bucket, key, body).await
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        self.backend.object_exists(bucket, key).await
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        self.backend.get_object(bucket, key).await
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        self.backend.list_common_prefixes(bucket, prefix, delimiter).await
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        self.backend.list_objects(bucket, prefix).await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        self.check()?;
        self.backend.delete_object(bucket, key).await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        self.backend.create_signed_url(bucket, key, ttl).await
    }
}

#[async_trait]
impl Backend for FencedStore {
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation> {
        self.check()?;
        self.backend.create_object(bucket, key, content).await
    }

    async fn get_range(&self, bucket: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        self.backend.get_range(bucket, key, range).await
    }

    fn retries_parts(&self) -> bool {
        self.backend.retries_parts()
    }
}

/// Body of a write. The stream fails when the fence closes, even at its end: a store keeps nothing
/// of a stream that fails.
struct FencedBody {
    body: ByteStream,
    fence: Fence,
}

impl Stream for FencedBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = std::task::ready!(self.body.as_mut().poll_next(cx));
        Poll::Ready(match self.fence.check() {
            Ok(()) => next,
            Err(closed) => Some(Err(io::Error::other(closed))),
        })
    }
}

#[cfg(test)]
mod tests {
    use bowline_store::backend::Memory;
    use futures::{StreamExt as _, stream};
    use tokio::time::Instant;

    use super::*;

    fn body(pieces: &'static [&'static str]) -> ByteStream {
        Box::pin(stream::iter(pieces).map(|piece| Ok(Bytes::from(*piece))))
    }

    #[tokio::test]
    async fn closed_fence_refuses_writes_and_deletes() {
        let (fence, memory) = (Fence::default(), Arc::new(Memory::with_bucket("b")));
        let store = FencedStore::new(Arc::clone(&memory) as _, fence.clone());
        memory.put_object("b", "old", body(&["x"])).await.unwrap();
        store.put_object("b", "new", body(&["x"])).await.unwrap_err();
        store.create_object("b", "new", Bytes::from("x")).await.unwrap_err();
        store.delete_object("b", "old").await.unwrap_err();
        assert_eq!(store.list_objects("b", "").await.unwrap(), ["old"]);
        assert!(store.object_exists("b", "old").await.unwrap());

        fence.open_until(Instant::now() + Duration::from_mins(1));
        store.put_object("b", "new", body(&["x"])).await.unwrap();
        store.create_object("b", "newer", Bytes::from("x")).await.unwrap();
        store.delete_object("b", "old").await.unwrap();
        assert_eq!(store.list_objects("b", "").await.unwrap(), ["new", "newer"]);
    }

    #[tokio::test]
    async fn upload_in_progress_fails_when_the_fence_closes() {
        let (fence, memory) = (Fence::default(), Arc::new(Memory::with_bucket("b")));
        let store = FencedStore::new(Arc::clone(&memory) as _, fence.clone());
        fence.open_until(Instant::now() + Duration::from_mins(1));
        // After the last chunk, and before the end.
        let closing = fence.clone();
        let end = stream::once(async move {
            closing.close();
            Ok(Bytes::new())
        });
        let body = Box::pin(body(&["one", "two"]).chain(end));
        let error = store.put_object("b", "k", body).await.unwrap_err();
        assert!(error.to_string().contains("no longer holds the Lease"), "{error}");
        assert!(memory.list_objects("b", "").await.unwrap().is_empty());
    }
}
