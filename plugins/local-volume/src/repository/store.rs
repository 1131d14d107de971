//! The object store of a repository: a folder or a bucket.

use std::fs::DirBuilder;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_sdk::{error_chain, tokio};
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use rustls::crypto::{CryptoProvider, ring};

use super::RepositoryError;
use super::location::{Bucket, Location, is_link_local};
use crate::config::RepositorySettings;
use crate::credentials::Secret;

/// The region for services that have none.
const FALLBACK_REGION: &str = "us-east-1";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait of a request for a response, including the upload of its content.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
/// Time for which a request that the service cannot answer is retried.
const RETRY_FOR: Duration = Duration::from_mins(2);

/// Handling of a missing folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingFolder {
    Create,
    ReportNone,
}

/// Opens the store; `None` if its folder does not exist.
pub(super) fn open(
    settings: &RepositorySettings,
    missing: MissingFolder,
) -> Result<Option<Arc<dyn ObjectStore>>, RepositoryError> {
    match &settings.location {
        Location::Folder(path) => {
            if missing == MissingFolder::Create {
                let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
                created.map_err(|source| RepositoryError::Folder { path: path.clone(), source })?;
            } else if !path.exists() {
                return Ok(None);
            }
            Ok(Some(Arc::new(folder_store(path)?)))
        }
        Location::S3(bucket_location) => {
            let store = bucket_store(bucket_location, settings)
                .map_err(|error| RepositoryError::Store { reason: error_chain(&error) })?;
            Ok(Some(Arc::new(PrefixStore::new(store, bucket_location.prefix.as_str()))))
        }
    }
}

fn folder_store(path: &Path) -> Result<LocalFileSystem, RepositoryError> {
    let opened = LocalFileSystem::new_with_prefix(path);
    let opened = opened.map_err(|error| RepositoryError::Folder {
        path: path.to_owned(),
        source: io::Error::other(error_chain(&error)),
    })?;
    // A snapshot that counts as uploaded must be on disk.
    Ok(opened.with_fsync(true))
}

fn bucket_store(
    location: &Bucket,
    settings: &RepositorySettings,
) -> object_store::Result<object_store::aws::AmazonS3> {
    let region =
        settings.region.as_deref().or(location.region.as_deref()).unwrap_or(FALLBACK_REGION);
    let is_plain = location.endpoint.as_ref().is_some_and(|url| url.scheme() == "http");
    let secret = |secret: &Option<Secret>| {
        secret.as_ref().map(Secret::reveal).unwrap_or_default().to_owned()
    };
    let keys = &settings.credentials;
    let retry = RetryConfig { retry_timeout: RETRY_FOR, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&location.name)
        .with_region(region)
        .with_access_key_id(secret(&keys.access_key))
        .with_secret_access_key(secret(&keys.secret_key))
        .with_client_options(ClientOptions::new().with_allow_http(is_plain))
        .with_retry(retry)
        .with_http_connector(Connector { is_plain });
    if let Some(token) = &keys.session_token {
        builder = builder.with_token(token.reveal());
    }
    if let Some(endpoint) = &location.endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
    }
    builder.build()
}

/// Creates clients that neither follow redirects nor connect to refused addresses.
#[derive(Debug)]
struct Connector {
    is_plain: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is just as good.
            let _ = ring::default_provider().install_default();
        }
        let client = Client::builder()
            .http1_only()
            .https_only(!self.is_plain)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(REQUEST_TIMEOUT)
            .redirect(Policy::none())
            .dns_resolver(Arc::new(GuardedResolver))
            .build();
        client
            .map(HttpClient::new)
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }
}

/// Resolves names, except to refused addresses.
#[derive(Debug)]
struct GuardedResolver;

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses: Vec<SocketAddr> = found.collect();
            if addresses.iter().any(|address| is_link_local(address.ip())) {
                return Err(format!("{} leads to a link-local address", name.as_str()).into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
