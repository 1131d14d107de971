//! Configuration of a VolumeSnapshotLocation.

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;

use bowline_plugin_sdk::Config;

use crate::credentials::{Credentials, Secret, read_password};
use crate::path::{InvalidPath, VolumePath};
use crate::repository::location::{InvalidLocation, Location};

/// Default folder of clones and records, in the first root.
const STATE_DIR: &str = ".bowline-snapshots";
/// Maximum number of roots; more are a mistake.
const MAX_ROOTS: usize = 64;

const ROOTS: &str = "roots";
const STATE: &str = "stateDir";
const REPOSITORY: &str = "repository";
const REGION: &str = "region";
const PASSWORD_FILE: &str = "passwordFile";
const KEEP_LOCAL: &str = "keepLocal";
const NODE: &str = "node";
const UPLOAD_LIMIT: &str = "uploadLimit";
/// Set by the server, for a location that names a Secret.
const CREDENTIALS_FILE: &str = "credentialsFile";

const KEYS: [&str; 9] = [
    CREDENTIALS_FILE,
    KEEP_LOCAL,
    NODE,
    PASSWORD_FILE,
    REGION,
    REPOSITORY,
    ROOTS,
    STATE,
    UPLOAD_LIMIT,
];

/// The settings of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Folders that may contain volumes.
    pub roots: Vec<VolumePath>,
    /// Folder of clones and records.
    pub state_dir: VolumePath,
    /// The repository for uploads. Without it snapshots are not uploaded.
    pub repository: Option<RepositorySettings>,
    /// True if a clone is kept after its upload.
    pub keep_local: bool,
    /// The node that we run on, if volumes of other nodes are to be ignored.
    pub node: Option<String>,
}

/// A repository and its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepositorySettings {
    pub location: Location,
    pub region: Option<String>,
    pub password: Secret,
    pub credentials: Credentials,
    /// Maximum number of bytes per second that an upload reads.
    pub upload_limit: Option<NonZeroU64>,
}

/// Errors in the settings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidConfig {
    #[error("unknown config key {key:?}; valid keys: {}", KEYS.join(", "))]
    Unknown { key: String },
    #[error(
        "config key {ROOTS:?} is required: the directories of the volumes, separated by colons"
    )]
    NoRoots,
    #[error("config key {ROOTS:?} names more than {MAX_ROOTS} directories")]
    ManyRoots,
    #[error("config key {key:?}")]
    Path { key: &'static str, source: InvalidPath },
    #[error("config key {KEEP_LOCAL:?} must be true or false: {0:?}")]
    KeepLocal(String),
    #[error("config key {REPOSITORY:?}")]
    Repository(#[source] InvalidLocation),
    #[error("config key {key:?}: {} cannot be read", path.display())]
    Read { key: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the repository needs a password: the first line of the file that {PASSWORD_FILE:?} names, or \
         RUSTIC_PASSWORD in the credential of the location"
    )]
    NoPassword,
    #[error("config key {REGION:?} is not a region: {0:?}")]
    Region(String),
    #[error("config key {UPLOAD_LIMIT:?} must be a positive number of bytes per second: {0:?}")]
    UploadLimit(String),
}

impl Settings {
    /// Reads the settings, and the secret files that they name.
    pub(crate) fn read(config: &Config) -> Result<Self, InvalidConfig> {
        if let Some(key) = config.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(InvalidConfig::Unknown { key: key.clone() });
        }
        let value = |key: &str| config.get(key).map(String::as_str).filter(|text| !text.is_empty());
        let roots = roots(value(ROOTS).ok_or(InvalidConfig::NoRoots)?)?;
        let state_dir = match (value(STATE), roots.first()) {
            (Some(path), _) => absolute(STATE, path)?,
            (None, Some(root)) => absolute(STATE, &format!("{root}/{STATE_DIR}"))?,
            (None, None) => return Err(InvalidConfig::NoRoots),
        };
        let keep_local = match value(KEEP_LOCAL) {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => return Err(InvalidConfig::KeepLocal(other.to_owned())),
        };
        let credentials = match value(CREDENTIALS_FILE) {
            Some(path) => read_file(CREDENTIALS_FILE, path, Credentials::read)?,
            None => Credentials::default(),
        };
        let password = match value(PASSWORD_FILE) {
            Some(path) => read_file(PASSWORD_FILE, path, read_password)?,
            None => credentials.password.clone(),
        };
        let region = value(REGION).map(str::to_owned);
        // The region becomes part of an address.
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if let Some(bad) = region.as_ref().filter(|region| !region.chars().all(is_word)) {
            return Err(InvalidConfig::Region(bad.clone()));
        }
        let upload_limit = match value(UPLOAD_LIMIT).map(|text| (text, text.parse())) {
            None => None,
            Some((_, Ok(limit))) => Some(limit),
            Some((text, Err(_))) => return Err(InvalidConfig::UploadLimit(text.to_owned())),
        };
        let repository = match value(REPOSITORY) {
            None => None,
            Some(text) => Some(RepositorySettings {
                location: Location::parse(text, &credentials).map_err(InvalidConfig::Repository)?,
                region,
                password: password.ok_or(InvalidConfig::NoPassword)?,
                credentials,
                upload_limit,
            }),
        };
        let node = value(NODE).map(str::to_owned);
        Ok(Self { roots, state_dir, repository, keep_local, node })
    }
}

fn roots(text: &str) -> Result<Vec<VolumePath>, InvalidConfig> {
    let roots: Result<Vec<_>, _> = text.split(':').map(|path| absolute(ROOTS, path)).collect();
    match roots? {
        roots if roots.len() > MAX_ROOTS => Err(InvalidConfig::ManyRoots),
        roots => Ok(roots),
    }
}

fn absolute(key: &'static str, path: &str) -> Result<VolumePath, InvalidConfig> {
    path.parse().map_err(|source| InvalidConfig::Path { key, source })
}

fn read_file<T>(
    key: &'static str,
    path: &str,
    read: impl Fn(&std::path::Path) -> io::Result<T>,
) -> Result<T, InvalidConfig> {
    let path = PathBuf::from(path);
    read(&path).map_err(|source| InvalidConfig::Read { key, path, source })
}

#[cfg(test)]
mod tests;
