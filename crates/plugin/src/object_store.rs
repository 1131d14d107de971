//! Objects in a bucket.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;

use crate::Result;
use crate::volume::Config;

/// The content of an object, piece by piece.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Stores and returns objects.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Sets the configuration. May be called again; the last one counts.
    async fn init(&self, config: &Config) -> Result<()>;

    /// Stores an object completely, or not at all: an error in the stream must leave nothing.
    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()>;

    /// True if the object exists.
    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool>;

    /// The content of an object. A missing object is reported by the call, not by the stream.
    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream>;

    /// The distinct parts of keys up to and including the delimiter that follows `prefix`.
    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>>;

    /// All keys that start with `prefix`.
    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>>;

    /// Deletes an object.
    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()>;

    /// A URL with which anyone can download an object for a limited time. A store that has none
    /// returns `Unimplemented`; then logs and archives cannot be downloaded directly.
    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String>;
}
