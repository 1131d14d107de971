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

/// Keeps objects and returns them.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Takes its configuration. May be called again, and the last one counts.
    async fn init(&self, config: &Config) -> Result<()>;

    /// Stores an object whole, or not at all: an error in the stream must leave nothing.
    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()>;

    /// Whether there is an object.
    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool>;

    /// The content of an object. That it is missing is told by the call, not by the stream.
    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream>;

    /// The parts of keys up to and with the delimiter that follows `prefix`, each once.
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

    /// An address from which anybody can download an object for a while. A store that has none
    /// answers `Unimplemented`; then logs and archives cannot be downloaded directly.
    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String>;
}
