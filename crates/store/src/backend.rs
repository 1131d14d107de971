//! Where objects are kept.
//!
//! A backend is an [`ObjectStore`] as plugins are, and can do one thing more: create an object only
//! if there is none, which the commit record needs. What it cannot guarantee it says.
//!
//! | backend | provider | an object that must not exist yet |
//! |---|---|---|
//! | [`Filesystem`] | `filesystem` | is linked to its name, which fails if the name is taken |
//! | [`S3`] | `aws` | is put with `If-None-Match: *`; asked for before, where the server has no such thing |
//! | [`Memory`] | none: for tests | is looked for and stored under one lock |
//! | [`Plugin`] | any | is asked for before, since plugins have no such call |

pub mod filesystem;
pub mod memory;
mod permit;
mod plugin;
pub mod s3;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::BackupStorageLocationSpec;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bytes::Bytes;

pub use filesystem::Filesystem;
pub use memory::Memory;
pub use permit::{Permit, PermitDenied};
pub use plugin::Plugin;
pub use s3::S3;

use crate::layout::Prefix;

/// The setting that names a file with credentials. The server sets it, users must not.
pub const CREDENTIALS_FILE: &str = "credentialsFile";
/// The setting that names the bucket. The server sets it.
pub const BUCKET: &str = "bucket";
/// The setting that names the part of the bucket. The server sets it.
pub const PREFIX: &str = "prefix";
/// The setting that holds certificates to trust. The server sets it.
pub const CA_CERT: &str = "caCert";

/// An object store that can create without replacing.
#[async_trait]
pub trait Backend: ObjectStore {
    /// Stores an object unless there is one.
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation>;

    /// Whether a stream that is being stored survives a failure that passes, because parts of it
    /// are sent again. If not, whoever has the stream must be able to begin anew.
    fn retries_parts(&self) -> bool {
        true
    }
}

/// What became of an object that was to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It is there now.
    Created(Guarantee),
    /// There was one, which is untouched.
    AlreadyExists,
}

/// How sure it is that an object was created and not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// The store itself refuses to replace.
    Atomic,
    /// There was none a moment before; another writer may have come in between.
    CheckedFirst,
}

/// What the built-in backends may do on this server.
#[derive(Clone, Debug, Default)]
pub struct BuiltIn {
    /// Where `filesystem` locations lie; without it there are none.
    pub filesystem: Option<filesystem::Options>,
    /// What `aws` locations may do.
    pub s3: s3::Options,
    /// Whether they may write. Each asks until the last moment: S3 before each try and each piece of it, a
    /// folder before an object gets its name.
    pub permit: Permit,
}

/// Opens the backend of a location: the plugin if there is one, else what is built in under that
/// name. `config` is what [`location_config`] made.
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
                "this server keeps no filesystem locations: start it with `--filesystem-root`",
            )),
        },
        _ => Err(Error::new(
            Code::NotFound,
            format!(
                "there is no object store plugin for the provider `{provider}`: install one, or \
                 use a built-in provider (`aws`, `filesystem`)"
            ),
        )),
    }
}

/// Why a location cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocation {
    /// The user names a file of the server.
    #[error(
        "`{CREDENTIALS_FILE}` must not be set in `spec.config`: it would read a file of the \
         server; refer to a Secret with `spec.credential` instead"
    )]
    CredentialsFile,
    /// No bucket.
    #[error("`spec.objectStorage.bucket` is not set")]
    NoBucket,
    /// The bucket has slashes, which Velero refuses as well.
    #[error("`spec.objectStorage.bucket` must not contain a `/`, but is {0:?}; use `prefix`")]
    Bucket(String),
    /// The prefix leaves the bucket.
    #[error(transparent)]
    Prefix(#[from] crate::layout::InvalidPrefix),
}

/// The settings that a location's backend gets: the user's, without what users must not set, and
/// the server's own.
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

/// Refuses settings of a user that would make the server read its own files.
pub fn refuse_user_files(
    config: &BTreeMap<String, String>,
) -> std::result::Result<(), InvalidLocation> {
    if config.contains_key(CREDENTIALS_FILE) {
        return Err(InvalidLocation::CredentialsFile);
    }
    Ok(())
}

/// Refuses settings that a backend does not know, in the words of Velero's framework.
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

/// The parts of sorted keys up to and with the delimiter that follows `prefix`, each once.
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

#[cfg(test)]
mod tests;
