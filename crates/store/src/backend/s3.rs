//! S3 and compatible services, without a plugin.
//!
//! Accepts the settings of `velero-plugin-for-aws`, so that a location needs no change.
//! Differences:
//! - Credentials of the location always take precedence over those in the environment.
//! - One tag is a valid `tagging`; the plugin requires two or more.
//! - `checksumAlgorithm`: every request is signed over the hash of its content, which is what
//!   protects it; `SHA256` is sent along if requested, the others are accepted but not sent.
//! - `signatureVersion` and `enableSharedConfig` have no effect, as in the plugin.
//! - Customer keys (`customerKeyEncryptionFile`, `customerKeyEncryptionSecret`) and credentials
//!   that need a program, a login or a chain of roles are not built in: install the plugin for
//!   them.
//! - Link-local and metadata addresses are refused, by name, by number and after resolution, and
//!   redirects are not followed: a location must not make the server request its credentials from
//!   them.
//!
//! Keys that `object_store` refuses are still listed and deleted (`raw.rs`): one such key, which
//! anyone may have written, must not hide the others.
//!
//! Uploads use parts of 5 MiB, two at a time, so that an object of any length takes 15 MiB of
//! memory; up to 10,000 parts, as in the plugin. An upload that fails or is dropped is aborted.

mod config;
mod connection;
mod credentials;
mod endpoint;
mod error;
mod http;
mod raw;
mod send;
mod upload;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{GetOptions, ObjectStore as _, ObjectStoreExt as _, PutMode};
use parking_lot::RwLock;

use super::{Backend, Creation, Guarantee, Permit};
use connection::Connection;
#[cfg(feature = "testing")]
pub use credentials::describe_identity;
use error::user_error;

/// Settings of S3 locations on this server.
#[derive(Clone, Debug)]
pub struct Options {
    /// True if addresses that only this machine or its cloud answers are allowed.
    pub allow_link_local: bool,
    /// Source of credentials for locations that have none.
    pub environment: Environment,
    /// Time for which a request that the service cannot answer is retried.
    pub retry_for: Duration,
    /// The longest wait for the next byte of a response.
    pub idle_timeout: Duration,
    /// Permission to write: checked before each attempt, and for each piece that is sent.
    pub permit: Permit,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allow_link_local: false,
            environment: Environment::default(),
            retry_for: Duration::from_mins(2),
            idle_timeout: Duration::from_mins(5),
            permit: Permit::default(),
        }
    }
}

/// The variables from which AWS tools read their settings. Their values are never printed.
#[derive(Clone, Default)]
pub struct Environment(pub BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    pub fn from_process() -> Self {
        let is_ours = |name: &str| name == "HOME" || name.starts_with("AWS_");
        Self(std::env::vars().filter(|(name, _)| is_ours(name)).collect())
    }

    /// A variable that is set and not empty.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A bucket of S3.
pub struct S3 {
    options: Options,
    connection: RwLock<Arc<Connection>>,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").field("bucket", &self.connection().bucket).finish_non_exhaustive()
    }
}

impl S3 {
    /// Connects to the bucket in a location's settings. Asks AWS for the region if none is set; the
    /// bucket itself is not accessed. Credentials are read once, so a location must be reopened
    /// when they have changed.
    pub async fn connect(config: &Config, options: Options) -> Result<Self> {
        let connection = Connection::new(config, &options).await?;
        Ok(Self { options, connection: RwLock::new(Arc::new(connection)) })
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection.read())
    }

    /// The connection, if it is to this bucket.
    fn connection_to(&self, bucket: &str) -> Result<Arc<Connection>> {
        let connection = self.connection();
        if connection.bucket == bucket {
            return Ok(connection);
        }
        let message =
            format!("the store was opened for bucket `{}`, not `{bucket}`", connection.bucket);
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// An object, or a part of it.
    async fn get(&self, bucket: &str, key: &str, range: Option<Range<u64>>) -> Result<ByteStream> {
        let connection = self.connection_to(bucket)?;
        let path = connection::path(key)?;
        let options = GetOptions { range: range.map(Into::into), ..GetOptions::default() };
        let result = connection.store.get_opts(&path, options).await;
        let object = result.map_err(|error| user_error(bucket, &error))?;
        Ok(object.into_stream().map_err(std::io::Error::other).boxed())
    }
}

#[async_trait]
impl Backend for S3 {
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation> {
        let connection = self.connection_to(bucket)?;
        // Checked first, since some services accept the condition and ignore it.
        if self.object_exists(bucket, key).await? {
            return Ok(Creation::AlreadyExists);
        }
        match connection.put(key, content.clone(), PutMode::Create).await {
            Ok(()) => Ok(Creation::Created(Guarantee::Atomic)),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Creation::AlreadyExists),
            Err(error) if error::is_not_implemented(&error) => {
                let put = connection.put(key, content, PutMode::Overwrite).await;
                put.map_err(|error| user_error(bucket, &error))?;
                Ok(Creation::Created(Guarantee::CheckedFirst))
            }
            Err(error) => Err(user_error(bucket, &error)),
        }
    }

    async fn get_range(&self, bucket: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        self.get(bucket, key, Some(range)).await
    }
}

#[async_trait]
impl ObjectStore for S3 {
    async fn init(&self, config: &Config) -> Result<()> {
        let connection = Arc::new(Connection::new(config, &self.options).await?);
        *self.connection.write() = connection;
        Ok(())
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        upload::upload_stream(&*self.connection_to(bucket)?, key, body).await
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        let connection = self.connection_to(bucket)?;
        match connection.store.head(&connection::path(key)?).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(user_error(bucket, &error)),
        }
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        self.get(bucket, key, None).await
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let connection = self.connection_to(bucket)?;
        Ok(connection.raw.list(prefix, Some(delimiter)).await?.prefixes)
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let connection = self.connection_to(bucket)?;
        Ok(connection.raw.list(prefix, None).await?.keys)
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        let connection = self.connection_to(bucket)?;
        let Ok(path) = connection::path(key) else {
            return match key {
                "" => Err(Error::new(Code::InvalidArgument, "the object key is empty")),
                odd => connection.raw.delete_any_key(odd).await,
            };
        };
        match connection.store.delete(&path).await {
            Ok(()) => Ok(()),
            Err(error @ object_store::Error::NotFound { .. })
                if !error::is_missing_bucket(&error) =>
            {
                Ok(())
            }
            Err(error) => Err(user_error(bucket, &error)),
        }
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        let connection = self.connection_to(bucket)?;
        let signed = connection.signed_url(&connection::path(key)?, ttl).await;
        signed.map_err(|error| user_error(bucket, &error))
    }
}
