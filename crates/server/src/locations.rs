//! From a BackupStorageLocation to its store.
//!
//! # Backend
//! The plugin of the location's provider if one is installed, else the built-in one of that name.
//! The backend receives the location's settings, the bucket, certificates to trust, and the path of
//! a private file with the credentials that the location names: plugins accept credentials in no
//! other way.
//!
//! # Caching
//! A store is cached, with its connections, for as long as settings, certificates and credentials
//! are the same, and at most ten minutes: credentials from the server's own environment may change
//! without a trace. [`Locations::evict`] removes it at once.

mod credentials;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::backup_storage_location::ObjectStorageLocation;
use bowline_api::{BackupStorageLocation, VolumeSnapshotLocation};
use bowline_plugin::{Class, Code, Config};
use bowline_plugin_host::Host;
use bowline_store::backend::{self, BUCKET, BuiltIn, CREDENTIALS_FILE, InvalidLocation, PREFIX};
use bowline_store::{BackupStore, Prefix};
use k8s_openapi::api::core::v1::{Secret, SecretKeySelector};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use credentials::CredentialFiles;

use crate::fence::Fence;
use crate::{patch, unlisted_plugins};

/// Maximum age of a cached store.
const CACHE_TTL: Duration = Duration::from_mins(10);
const MAX_CACHED_STORES: usize = 64;
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);

/// Reason why a location cannot be opened. Never contains data of a Secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Certificates in two places; the text is Velero's.
    #[error("cannot specify both caCert and caCertRef in objectStorage")]
    TwoCertificates,
    /// Certificates that are not text.
    #[error("the certificates of the location are not in PEM format")]
    Certificates,
    /// Unreadable Secret.
    #[error("cannot read the Secret `{name}`")]
    ReadSecret {
        /// Name of the Secret.
        name: String,
        /// Cause.
        source: kube::Error,
    },
    /// Missing Secret.
    #[error("Secret `{0}` does not exist in the namespace of the server")]
    NoSecret(String),
    /// Missing key in a Secret.
    #[error("the Secret `{name}` has no key `{key}`")]
    NoKey {
        /// Name of the Secret.
        name: String,
        /// Missing key.
        key: String,
    },
    /// The credentials file for the plugin could not be written.
    #[error("cannot write the credentials of the location to a private file")]
    WriteCredentials(#[source] io::Error),
    /// Invalid location.
    #[error(transparent)]
    Invalid(#[from] InvalidLocation),
    /// The plugin, or the built-in backend, refuses.
    #[error(transparent)]
    Backend(#[from] bowline_plugin::Error),
    /// The backend does not answer in time.
    #[error("the location could not be opened within {} s", OPEN_TIMEOUT.as_secs())]
    TooSlow,
}

impl Error {
    /// True if a retry may succeed without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ReadSecret { source, .. } => !patch::is_permanent(source),
            Self::WriteCredentials(_) | Self::TooSlow => true,
            Self::Backend(error) => matches!(error.class(), Class::Transient | Class::Unclear),
            Self::TwoCertificates
            | Self::Certificates
            | Self::NoSecret(_)
            | Self::NoKey { .. }
            | Self::Invalid(_) => false,
        }
    }
}

/// Opens the stores of locations.
pub struct Locations {
    secrets: Api<Secret>,
    host: Arc<Host>,
    built_in: BuiltIn,
    files: CredentialFiles,
    /// Permits writes.
    fence: Fence,
    cache: Mutex<HashMap<Fingerprint, CachedStore>>,
}

/// Hash over all properties that distinguish one store from another.
type Fingerprint = [u8; 32];

struct CachedStore {
    location: String,
    store: BackupStore,
    opened_at: Instant,
    last_used: Instant,
}

impl Locations {
    /// Locations of a namespace, writable only while the fence is open. Private files are in a new
    /// directory in `scratch`, which is removed when this value is dropped.
    pub fn new(
        client: Client,
        namespace: &str,
        host: Arc<Host>,
        built_in: BuiltIn,
        scratch: &Path,
        fence: Fence,
    ) -> io::Result<Self> {
        let secrets = Api::namespaced(client, namespace);
        let files = CredentialFiles::create_in(scratch)?;
        Ok(Self { secrets, host, built_in, files, fence, cache: Mutex::default() })
    }

    /// Opens the store of a location, without a request to it.
    pub async fn open(&self, location: &BackupStorageLocation) -> Result<BackupStore, Error> {
        let opening = tokio::time::timeout(OPEN_TIMEOUT, self.open_without_limit(location));
        opening.await.unwrap_or(Err(Error::TooSlow))
    }

    async fn open_without_limit(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<BackupStore, Error> {
        let (name, spec) = (location.name_any(), &location.spec);
        let certificates = match &spec.object_storage {
            Some(storage) => self.read_certificates(storage).await?,
            None => None,
        };
        let credentials = match &spec.credential {
            Some(selector) => {
                let bytes = self.read_secret(selector).await?;
                Some(self.files.write(&name, &bytes).map_err(Error::WriteCredentials)?)
            }
            None => None,
        };
        let config =
            backend::location_config(spec, certificates.as_deref(), credentials.as_deref())?;
        let fingerprint = fingerprint(&spec.provider, &config);
        if let Some(store) = self.cached(&fingerprint) {
            return Ok(store);
        }
        // The path of the private file does not show users which credentials are meant.
        let named = |error| match (&spec.credential, &credentials) {
            (Some(selector), Some(file)) => name_secret_instead_of_file(&error, selector, file),
            _ => error,
        };
        let plugin = self.host.object_store(&spec.provider, config.clone()).await.map_err(named)?;
        let is_missing = plugin.is_none();
        let backend = backend::open(&spec.provider, &config, plugin, &self.built_in);
        let backend = backend.await.map_err(|error| match error.code() {
            Code::NotFound if is_missing => unlisted_plugins::missing_plugin_error(
                self.host.registry().unlisted(),
                error.message(),
            ),
            _ => named(error),
        })?;
        let setting = |key: &str| config.get(key).map(String::as_str).unwrap_or_default();
        let prefix = Prefix::new(setting(PREFIX)).map_err(InvalidLocation::from)?;
        let store = BackupStore::new(self.fence.store(backend), setting(BUCKET), &prefix);
        self.insert_cached(fingerprint, name, store.clone());
        Ok(store)
    }

    /// Configuration for the snapshotter of a location: the user's settings, and the path of its
    /// credentials.
    pub async fn snapshotter_config(
        &self,
        location: &VolumeSnapshotLocation,
    ) -> Result<Config, Error> {
        let mut config = location.spec.config.clone();
        if config.contains_key(CREDENTIALS_FILE) {
            return Err(InvalidLocation::CredentialsFile.into());
        }
        if let Some(selector) = &location.spec.credential {
            let bytes = self.read_secret(selector).await?;
            let file =
                self.files.write(&credentials::snapshot_location_key(&location.name_any()), &bytes);
            let file = file.map_err(Error::WriteCredentials)?;
            config.insert(CREDENTIALS_FILE.to_owned(), file.display().to_string());
        }
        Ok(config)
    }

    /// Removes a failed location from the cache, so that it is opened again the next time.
    pub fn evict(&self, location: &BackupStorageLocation) {
        let name = location.name_any();
        self.cache.lock().retain(|_, opened| opened.location != name);
    }

    /// Releases everything that belongs to other locations than these.
    pub fn retain_locations(&self, locations: &[String]) {
        self.cache.lock().retain(|_, opened| locations.contains(&opened.location));
        self.files.retain_locations(locations);
    }

    async fn read_certificates(
        &self,
        storage: &ObjectStorageLocation,
    ) -> Result<Option<String>, Error> {
        let bytes = match (&storage.ca_cert, &storage.ca_cert_ref) {
            (Some(_), Some(_)) => return Err(Error::TwoCertificates),
            (Some(bytes), None) => bytes.0.clone(),
            (None, Some(selector)) => self.read_secret(selector).await?,
            (None, None) => return Ok(None),
        };
        String::from_utf8(bytes).map(Some).map_err(|_| Error::Certificates)
    }

    async fn read_secret(&self, selector: &SecretKeySelector) -> Result<Vec<u8>, Error> {
        let name = selector.name.clone();
        let read = self.secrets.get_opt(&name).await;
        let read = read.map_err(|source| Error::ReadSecret { name: name.clone(), source })?;
        let Some(secret) = read else { return Err(Error::NoSecret(name)) };
        let key = selector.key.clone();
        let value = secret.data.and_then(|mut data: BTreeMap<_, _>| data.remove(&key));
        value.map(|value| value.0).ok_or(Error::NoKey { name, key })
    }

    fn cached(&self, fingerprint: &Fingerprint) -> Option<BackupStore> {
        let now = Instant::now();
        let mut opened = self.cache.lock();
        opened.retain(|_, opened| now.duration_since(opened.opened_at) < CACHE_TTL);
        let found = opened.get_mut(fingerprint)?;
        found.last_used = now;
        Some(found.store.clone())
    }

    fn insert_cached(&self, fingerprint: Fingerprint, location: String, store: BackupStore) {
        let now = Instant::now();
        let mut opened = self.cache.lock();
        while opened.len() >= MAX_CACHED_STORES {
            let longest_unused = opened.iter().min_by_key(|(_, opened)| opened.last_used);
            let Some(fingerprint) = longest_unused.map(|(fingerprint, _)| *fingerprint) else {
                break;
            };
            opened.remove(&fingerprint);
        }
        opened.insert(fingerprint, CachedStore { location, store, opened_at: now, last_used: now });
    }
}

/// Replaces the path of the private file in an error by the Secret that its contents come from.
fn name_secret_instead_of_file(
    error: &bowline_plugin::Error,
    selector: &SecretKeySelector,
    file: &Path,
) -> bowline_plugin::Error {
    let SecretKeySelector { name, key, .. } = selector;
    let secret = format!("the key `{key}` of the Secret `{name}`");
    let message = error.message().replace(&file.display().to_string(), &secret);
    let named = bowline_plugin::Error::new(error.code(), message);
    let named = named.from_origin(error.origin().cloned());
    if error.is_undelivered() { named.undelivered() } else { named }
}

/// Identity of a store. The path of the credentials identifies their contents: see
/// [`CredentialFiles`].
fn fingerprint(provider: &str, config: &Config) -> Fingerprint {
    let mut hash = Sha256::new();
    let settings = config.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    for text in [provider].into_iter().chain(settings) {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Config {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn error_names_the_secret_instead_of_the_credentials_file() {
        let file = Path::new("/scratch/bowline-credentials-x/default-00");
        let selector =
            SecretKeySelector { name: "s3".to_owned(), key: "cloud".to_owned(), optional: None };
        let code = bowline_plugin::Code::FailedPrecondition;
        let message = format!("{}: profile `default` does not exist", file.display());
        let error = name_secret_instead_of_file(
            &bowline_plugin::Error::new(code, message),
            &selector,
            file,
        );
        let expected = "the key `cloud` of the Secret `s3`: profile `default` does not exist";
        assert_eq!((error.code(), error.message()), (code, expected));
    }

    #[test]
    fn every_setting_changes_the_store_fingerprint() {
        let all = [
            fingerprint("aws", &config(&[])),
            fingerprint("gcp", &config(&[])),
            fingerprint("aws", &config(&[("a", "b")])),
            fingerprint("aws", &config(&[("ab", "")])),
            fingerprint("aws", &config(&[("a", "b"), ("c", "d")])),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(all[2], fingerprint("aws", &config(&[("a", "b")])));
    }
}
