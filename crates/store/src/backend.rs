//! Storage for objects.
//!
//! A backend is an [`ObjectStore`], as plugins are, with two additions. The commit record needs the
//! creation of an object only if it does not exist; a backend reports how strong its guarantee is.
//! The index of an archive needs the reading of a part of an object; plugins cannot do that, so
//! their objects are read from the beginning.
//!
//! | backend | provider | creation of an object that must not exist yet |
//! |---|---|---|
//! | [`Filesystem`] | `filesystem` | links the object to its name, which fails if the name is taken |
//! | [`S3`] | `aws` | puts with `If-None-Match: *`; checks first if the server does not support that |
//! | `Memory` | none: for tests, with the feature `testing` | checks and stores under one lock |
//! | [`Plugin`] | any | checks first, since plugins have no such call |

pub mod filesystem;
#[cfg(feature = "testing")]
pub mod memory;
mod permit;
mod plugin;
pub mod s3;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::BackupStorageLocationSpec;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bytes::Bytes;
use futures::{StreamExt as _, stream};

pub use filesystem::Filesystem;
#[cfg(feature = "testing")]
pub use memory::Memory;
pub use permit::{Permit, PermitDenied};
pub use plugin::Plugin;
pub use s3::S3;

use crate::layout::Prefix;

/// The setting that names a credentials file. Set by the server; users must not set it.
pub const CREDENTIALS_FILE: &str = "credentialsFile";
/// The setting that names the bucket. Set by the server.
pub const BUCKET: &str = "bucket";
/// The setting that names the prefix within the bucket. Set by the server.
pub const PREFIX: &str = "prefix";
/// The setting that holds CA certificates to trust. Set by the server.
pub const CA_CERT: &str = "caCert";

/// An object store that can create an object without replacing an existing one.
#[async_trait]
pub trait Backend: ObjectStore {
    /// Stores an object unless it exists.
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation>;

    /// A part of an object. Fewer bytes come if the object ends before the end of the range; a range
    /// that begins at or behind the end of the object is empty, or an error. A missing object is
    /// reported by the call, not by the stream.
    async fn get_range(&self, bucket: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        Ok(part_of_stream(self.get_object(bucket, key).await?, range))
    }

    /// True if an upload survives a transient failure because parts of it are sent again. If false,
    /// the owner of the stream must be able to start it again from the beginning.
    fn retries_parts(&self) -> bool {
        true
    }
}

/// Outcome of creating an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The object was created.
    Created(Guarantee),
    /// An object exists, and is unchanged.
    AlreadyExists,
}

/// Certainty that an object was created and not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// The store itself refuses to replace an object.
    Atomic,
    /// The object did not exist a moment before; another writer may have created it in between.
    CheckedFirst,
}

/// Settings of the built-in backends on this server.
#[derive(Clone, Debug, Default)]
pub struct BuiltIn {
    /// Settings of `filesystem` locations; `None` disables them.
    pub filesystem: Option<filesystem::Options>,
    /// Settings of `aws` locations.
    pub s3: s3::Options,
    /// Permission to write, checked at the last moment: by S3 before each attempt and each piece of
    /// it, by a folder before an object gets its name.
    pub permit: Permit,
    /// Backend of locations with the provider `simulated`.
    #[cfg(feature = "testing")]
    pub simulated: Option<Simulated>,
}

/// A backend of a simulation.
#[cfg(feature = "testing")]
#[derive(Clone)]
pub struct Simulated(pub Arc<dyn Backend>);

#[cfg(feature = "testing")]
impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated").finish_non_exhaustive()
    }
}

/// Opens the backend of a location: the plugin if there is one, otherwise the built-in backend of
/// that name. `config` comes from [`location_config`].
pub async fn open(
    provider: &str,
    config: &Config,
    plugin: Option<Arc<dyn ObjectStore>>,
    built_in: &BuiltIn,
) -> Result<Arc<dyn Backend>> {
    if let Some(plugin) = plugin {
        return Ok(Arc::new(Plugin::new(plugin)));
    }
    // Velero's providers are `aws` or, in full, `velero.io/aws`.
    match provider.strip_prefix("velero.io/").unwrap_or(provider) {
        "aws" => {
            let options = s3::Options { permit: built_in.permit.clone(), ..built_in.s3.clone() };
            Ok(Arc::new(S3::connect(config, options).await?))
        }
        "filesystem" => match built_in.filesystem.clone() {
            Some(options) => {
                let store = Filesystem::open(config, options).await?;
                Ok(Arc::new(store.with_permit(built_in.permit.clone())))
            }
            None => Err(Error::new(
                Code::FailedPrecondition,
                "`filesystem` locations are disabled; hint: start the server with \
                 `--filesystem-root`",
            )),
        },
        #[cfg(feature = "testing")]
        "simulated" if let Some(Simulated(backend)) = &built_in.simulated => {
            Ok(Arc::clone(backend))
        }
        _ => Err(Error::new(
            Code::NotFound,
            format!(
                "no object store plugin is installed for provider `{provider}`; install one, or \
                 use a built-in provider (`aws`, `filesystem`)"
            ),
        )),
    }
}

/// Reasons why the configuration of a location is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocation {
    /// The user names a file on the server.
    #[error(
        "`{CREDENTIALS_FILE}` must not be set in `spec.config`: it would read a file of the \
         server; refer to a Secret with `spec.credential` instead"
    )]
    CredentialsFile,
    /// No bucket.
    #[error("`spec.objectStorage.bucket` is not set")]
    NoBucket,
    /// The bucket contains slashes, which Velero refuses as well.
    #[error("`spec.objectStorage.bucket` must not contain a `/`, but is {0:?}; use `prefix`")]
    Bucket(String),
    /// The prefix leaves the bucket.
    #[error(transparent)]
    Prefix(#[from] crate::layout::InvalidPrefix),
}

/// The settings for the backend of a location: the user's, without those that users must not set,
/// and the server's own.
pub fn location_config(
    location: &BackupStorageLocationSpec,
    ca_cert: Option<&str>,
    credentials_file: Option<&Path>,
) -> std::result::Result<Config, InvalidLocation> {
    refuse_user_files(&location.config)?;
    let storage = location.object_storage.as_ref().ok_or(InvalidLocation::NoBucket)?;
    let bucket = storage.bucket.trim_matches('/');
    if bucket.is_empty() {
        return Err(InvalidLocation::NoBucket);
    }
    if bucket.contains('/') {
        return Err(InvalidLocation::Bucket(storage.bucket.clone()));
    }
    let prefix = Prefix::new(&storage.prefix)?;
    let mut config = location.config.clone();
    config.insert(BUCKET.to_owned(), bucket.to_owned());
    config.insert(PREFIX.to_owned(), prefix.as_str().to_owned());
    if let Some(pem) = ca_cert {
        config.insert(CA_CERT.to_owned(), pem.to_owned());
    }
    if let Some(file) = credentials_file {
        config.insert(CREDENTIALS_FILE.to_owned(), file.display().to_string());
    }
    Ok(config)
}

/// Refuses user settings that would make the server read its own files.
pub fn refuse_user_files(
    config: &BTreeMap<String, String>,
) -> std::result::Result<(), InvalidLocation> {
    if config.contains_key(CREDENTIALS_FILE) {
        return Err(InvalidLocation::CredentialsFile);
    }
    Ok(())
}

/// Refuses settings that a backend does not know, with the message of Velero's framework.
fn refuse_unknown_keys(config: &Config, known: &[&str]) -> Result<()> {
    let always = [BUCKET, PREFIX, CA_CERT];
    let unknown: Vec<&str> = config
        .keys()
        .map(String::as_str)
        .filter(|key| !known.contains(key) && !always.contains(key))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let message = format!("config has invalid keys {unknown:?}; valid keys are {known:?}");
    Err(Error::new(Code::InvalidArgument, message))
}

/// The distinct parts of sorted keys up to and including the delimiter that follows `prefix`.
fn common_prefixes(keys: &[String], prefix: &str, delimiter: &str) -> Vec<String> {
    let mut prefixes: Vec<String> = keys
        .iter()
        .filter_map(|key| {
            let rest = key.strip_prefix(prefix)?;
            let end = rest.find(delimiter)? + delimiter.len();
            Some(format!("{prefix}{}", &rest[..end]))
        })
        .collect();
    prefixes.dedup();
    prefixes
}

/// A stream of one piece.
pub(crate) fn single_piece_stream(content: Bytes) -> ByteStream {
    Box::pin(futures::stream::iter([Ok(content)]))
}

/// A part of a stream. What lies before it is read and dropped; what lies behind it is not read.
fn part_of_stream(content: ByteStream, range: Range<u64>) -> ByteStream {
    let begin = (content, range.start, range.end.saturating_sub(range.start));
    Box::pin(stream::try_unfold(begin, async |(mut content, mut skip, mut length)| {
        while length > 0 {
            let Some(piece) = content.next().await else { return Ok(None) };
            let mut piece = piece?;
            let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            let mut piece = piece.split_off(skipped);
            skip -= skipped as u64;
            piece.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            if !piece.is_empty() {
                length -= piece.len() as u64;
                return Ok(Some((piece, (content, skip, length))));
            }
        }
        Ok(None)
    }))
}

#[cfg(test)]
mod tests;
