//! A plugin's object store as a backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Config, ObjectStore, Result};
use bytes::Bytes;

use super::{Backend, Creation, Guarantee, single_piece_stream};

/// A plugin's object store. Plugins have no atomic creation, so this one checks first.
#[derive(Clone)]
pub struct Plugin(Arc<dyn ObjectStore>);

impl Plugin {
    /// Wraps a plugin that has been configured.
    pub fn new(plugin: Arc<dyn ObjectStore>) -> Self {
        Self(plugin)
    }
}

#[async_trait]
impl Backend for Plugin {
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation> {
        if self.0.object_exists(bucket, key).await? {
            return Ok(Creation::AlreadyExists);
        }
        self.0.put_object(bucket, key, single_piece_stream(content)).await?;
        Ok(Creation::Created(Guarantee::CheckedFirst))
    }

    /// A plugin gets the stream once, and its handling of it is unknown.
    fn retries_parts(&self) -> bool {
        false
    }
}

#[async_trait]
impl ObjectStore for Plugin {
    async fn init(&self, config: &Config) -> Result<()> {
        self.0.init(config).await
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        self.0.put_object(bucket, key, body).await
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        self.0.object_exists(bucket, key).await
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        self.0.get_object(bucket, key).await
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        self.0.list_common_prefixes(bucket, prefix, delimiter).await
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        self.0.list_objects(bucket, prefix).await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        self.0.delete_object(bucket, key).await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        self.0.create_signed_url(bucket, key, ttl).await
    }
}
