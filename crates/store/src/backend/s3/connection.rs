//! Connection to a bucket.

use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{Code, Config, Error, Result};
use bytes::Bytes;
use http::Method;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::signer::Signer as _;
use object_store::{ClientOptions, ObjectStore as _, PutMode, PutOptions, RetryConfig, TagSet};
use reqwest::Url;

use super::config::{Encryption, Settings, invalid, is_plain_identifier};
use super::credentials::{self, Identity};
use super::endpoint::{self, BucketAddress, EndpointVariant};
use super::http::{self as transport, Connector};
use super::raw::RawBucket;
use super::{Environment, Options};

/// The region for services that have none.
const FALLBACK_REGION: &str = "us-east-1";
const SERVER_SIDE_ENCRYPTION: &str = "aws_server_side_encryption";
/// Maximum number of retries of a request.
const MAX_RETRIES: usize = 20;

/// A connection to a bucket.
pub(super) struct Connection {
    pub bucket: String,
    pub store: AmazonS3,
    pub tags: TagSet,
    /// The same bucket, for keys that `object_store` cannot represent.
    pub raw: RawBucket,
    /// The same bucket, under the address that users can reach.
    public: Option<AmazonS3>,
}

impl Connection {
    pub(super) async fn new(config: &Config, options: &Options) -> Result<Self> {
        let settings = Settings::read(config, options.allow_link_local)?;
        let discovered = credentials::discover(&settings, &options.environment)?;
        let connector = Arc::new(Connector::new(&settings, options)?);
        if let Some(url) = settings.url.as_ref().filter(|_| !options.allow_link_local) {
            transport::check_behind_proxy(url).await?;
        }
        let region = resolve_region(
            &settings,
            discovered.region.as_deref(),
            &options.environment,
            &connector,
        );
        let region = region.await?;
        let variant = EndpointVariant::from_environment(&options.environment);
        let build = |service: Option<&Url>| {
            let address = endpoint::bucket_endpoint(&settings, service, &region, variant);
            let bucket = address.object_base_url(&settings.bucket)?;
            let is_plain = address.url.starts_with("http://");
            let objects = bucket.clone();
            let http = BucketConnector { connector: Arc::clone(&connector), bucket };
            let built = store_builder(&settings, address, &region, options).and_then(|builder| {
                authenticate(builder, &discovered.identity, &region, &options.environment)
                    .with_http_connector(http)
                    .build()
            });
            let built =
                built.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
            Ok::<_, Error>((built, objects, is_plain))
        };
        let (store, address, is_plain) = build(settings.url.as_ref())?;
        let public = settings.public_url.as_ref().map(|url| build(Some(url))).transpose()?;
        let client = ClientOptions::new().with_allow_http(is_plain);
        let client = connector.connect(&client, &address);
        let raw = RawBucket {
            name: settings.bucket.clone(),
            address,
            region: region.clone(),
            client: client.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?,
            credentials: Arc::clone(store.credentials()),
            retry_for: options.retry_for,
        };
        Ok(Self {
            store,
            raw,
            public: public.map(|(store, ..)| store),
            tags: settings.tags.clone(),
            bucket: settings.bucket,
        })
    }

    pub(super) async fn put(
        &self,
        key: &str,
        content: Bytes,
        mode: PutMode,
    ) -> object_store::Result<()> {
        let options = PutOptions { mode, tags: self.tags.clone(), ..PutOptions::default() };
        self.store.put_opts(&Path::parse(key)?, content.into(), options).await.map(drop)
    }

    pub(super) async fn signed_url(
        &self,
        path: &Path,
        ttl: Duration,
    ) -> object_store::Result<String> {
        let store = self.public.as_ref().unwrap_or(&self.store);
        Ok(store.signed_url(Method::GET, path, ttl).await?.to_string())
    }
}

/// A key, unchanged; one that would be altered on the way is refused.
pub(super) fn path(key: &str) -> Result<Path> {
    match Path::parse(key) {
        Ok(path) if path.as_ref() == key && !key.is_empty() => Ok(path),
        _ => invalid(format!(
            "{key:?} is not a valid key: expected no empty part, no part `.` or `..`, and no \
             control characters"
        )),
    }
}

/// The region: from the settings, from the environment or the profile, or from AWS.
async fn resolve_region(
    settings: &Settings,
    profile_region: Option<&str>,
    environment: &Environment,
    connector: &Connector,
) -> Result<String> {
    let of_environment =
        || environment.get("AWS_REGION").or_else(|| environment.get("AWS_DEFAULT_REGION"));
    let known = settings.region.as_deref().or_else(of_environment).or(profile_region);
    let region = match (known, &settings.url) {
        (Some(region), _) => region.to_owned(),
        (None, Some(_)) => FALLBACK_REGION.to_owned(),
        (None, None) => transport::fetch_bucket_region(connector, &settings.bucket).await?,
    };
    // The region becomes part of addresses.
    if is_plain_identifier(&region, b"-_") {
        Ok(region)
    } else {
        invalid(format!("`{region}` is not a region"))
    }
}

fn store_builder(
    settings: &Settings,
    address: BucketAddress,
    region: &str,
    options: &Options,
) -> object_store::Result<AmazonS3Builder> {
    let is_plain = address.url.starts_with("http://");
    let retry = RetryConfig {
        max_retries: MAX_RETRIES,
        retry_timeout: options.retry_for,
        ..RetryConfig::default()
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&settings.bucket)
        .with_region(region)
        .with_endpoint(address.url)
        .with_virtual_hosted_style_request(address.in_host)
        .with_client_options(ClientOptions::new().with_allow_http(is_plain))
        .with_retry(retry)
        // Not every S3-compatible service can delete many objects at once.
        .with_disable_bulk_delete(true);
    if let Some(checksum) = settings.checksum {
        builder = builder.with_checksum_algorithm(checksum);
    }
    Ok(match &settings.encryption {
        Encryption::BucketDefault => builder,
        Encryption::Kms(key) => builder.with_sse_kms_encryption(key),
        // The config key has no public name in the library, only a text.
        Encryption::Algorithm(algorithm) => {
            builder.with_config(SERVER_SIDE_ENCRYPTION.parse()?, algorithm)
        }
    })
}

fn authenticate(
    builder: AmazonS3Builder,
    identity: &Identity,
    region: &str,
    environment: &Environment,
) -> AmazonS3Builder {
    match identity {
        Identity::Keys { id, secret, token } => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            token.iter().fold(builder, AmazonS3Builder::with_token)
        }
        Identity::Role { arn, token_file, session } => {
            let builder = builder
                .with_config(AmazonS3ConfigKey::RoleArn, arn)
                .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token_file)
                .with_config(
                    AmazonS3ConfigKey::StsEndpoint,
                    endpoint::sts_endpoint(region, environment),
                );
            session.iter().fold(builder, |builder, session| {
                builder.with_config(AmazonS3ConfigKey::RoleSessionName, session)
            })
        }
        Identity::InstanceMetadata => [
            (
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
            ),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
            (
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
            ),
        ]
        .into_iter()
        .fold(builder, |builder, (name, key)| match environment.get(name) {
            Some(value) => builder.with_config(key, value),
            None => builder,
        }),
    }
}

/// Creates clients for one bucket, and for fetching the credentials that it needs.
#[derive(Debug)]
struct BucketConnector {
    connector: Arc<Connector>,
    /// The common prefix of the addresses of its objects.
    bucket: Url,
}

impl object_store::client::HttpConnector for BucketConnector {
    fn connect(
        &self,
        options: &ClientOptions,
    ) -> object_store::Result<object_store::client::HttpClient> {
        self.connector.connect(options, &self.bucket)
    }
}

#[cfg(test)]
mod tests;
