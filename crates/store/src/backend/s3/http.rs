//! HTTP clients: with the certificates of the location, to allowed addresses, and without
//! redirects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{Code, Error, Result};
use object_store::client::HttpClient;
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Url};
use rustls::crypto::{CryptoProvider, ring};

use super::config::{Settings, invalid};
use super::{Options, endpoint, send};
use crate::backend::Permit;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REGION_TIMEOUT: Duration = Duration::from_secs(30);
const USER_AGENT: &str = concat!("bowline/", env!("CARGO_PKG_VERSION"));

/// Creates clients for one location.
#[derive(Debug)]
pub(super) struct Connector {
    certificates: Vec<Certificate>,
    skip_tls_verify: bool,
    allow_link_local: bool,
    idle_timeout: Duration,
    permit: Permit,
}

impl Connector {
    pub(super) fn new(settings: &Settings, options: &Options) -> Result<Self> {
        let certificates = match &settings.ca_cert {
            None => Vec::new(),
            Some(pem) => match Certificate::from_pem_bundle(pem.as_bytes()) {
                Ok(certificates) if !certificates.is_empty() => certificates,
                _ => return invalid("`caCert` holds no certificate in PEM format".to_owned()),
            },
        };
        Ok(Self {
            certificates,
            skip_tls_verify: settings.skip_tls_verify,
            allow_link_local: options.allow_link_local,
            idle_timeout: options.idle_timeout,
            permit: options.permit.clone(),
        })
    }

    fn client(&self, allow_http: bool) -> reqwest::Result<Client> {
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is just as good.
            let _ = ring::default_provider().install_default();
        }
        let mut client = Client::builder()
            .user_agent(USER_AGENT)
            .http1_only()
            .https_only(!allow_http)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(self.idle_timeout)
            // A redirect could lead to an address that was refused.
            .redirect(Policy::none())
            .tls_certs_merge(self.certificates.iter().cloned())
            .tls_danger_accept_invalid_certs(self.skip_tls_verify);
        if !self.allow_link_local {
            client = client.dns_resolver(Arc::new(GuardedResolver));
        }
        client.build()
    }

    /// A client that changes a bucket only while that is permitted. It may also serve to fetch
    /// credentials; the caller does not indicate which.
    pub(super) fn connect(
        &self,
        options: &ClientOptions,
        bucket: &Url,
    ) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let client = self.client(allow_http.as_deref() == Some("true"));
        let (permit, bucket) = (self.permit.clone(), bucket.clone());
        client
            .map(|client| HttpClient::new(send::PermittedClient { client, bucket, permit }))
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }
}

/// The variables that configure a proxy.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
/// Time limit of name resolution.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Refuses a name that resolves to a refused address, where a proxy would resolve it: our own
/// [guard](GuardedResolver) is not used then. A name that only the proxy knows is left to it.
pub(super) async fn check_behind_proxy(url: &Url) -> Result<()> {
    let is_set = |name: &&str| std::env::var_os(*name).is_some_and(|value| !value.is_empty());
    let Some(host) = url.domain().filter(|_| PROXY_VARIABLES.iter().any(is_set)) else {
        return Ok(());
    };
    check_resolved_addresses(host).await
}

async fn check_resolved_addresses(host: &str) -> Result<()> {
    let lookup = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, 0))).await;
    let Ok(Ok(addresses)) = lookup else { return Ok(()) };
    match addresses.map(|found| found.ip()).find(|address| endpoint::is_forbidden(*address)) {
        Some(bad) => invalid(format!(
            "`s3Url` is refused: {host} resolves to the link-local or metadata address {bad}"
        )),
        None => Ok(()),
    }
}

/// Asks AWS which region a bucket is in.
pub(super) async fn fetch_bucket_region(connector: &Connector, bucket: &str) -> Result<String> {
    let unknown = |reason: String| {
        let message =
            format!("cannot determine the region of bucket `{bucket}`, set `region`: {reason}");
        Error::new(Code::Unavailable, message)
    };
    let client = connector.client(false).map_err(|error| unknown(error.to_string()))?;
    let request = client.head(format!("https://s3.amazonaws.com/{bucket}")).timeout(REGION_TIMEOUT);
    let answer = request.send().await.map_err(|error| unknown(error.to_string()))?;
    let region = answer.headers().get("x-amz-bucket-region").and_then(|name| name.to_str().ok());
    region.map(str::to_owned).ok_or_else(|| unknown(format!("AWS answers {}", answer.status())))
}

/// Resolves names, except to refused addresses.
#[derive(Debug)]
struct GuardedResolver;

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let lookup = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses: Vec<SocketAddr> = lookup.collect();
            if let Some(bad) = addresses.iter().find(|found| endpoint::is_forbidden(found.ip())) {
                let message = format!(
                    "{} is refused: the host resolves to the link-local or metadata address {}",
                    name.as_str(),
                    bad.ip()
                );
                return Err(message.into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn name_resolving_to_a_metadata_address_is_refused() {
        let resolve = |name: &str| GuardedResolver.resolve(name.parse().unwrap());
        let Err(error) = resolve("169.254.169.254").await else { panic!("it is refused") };
        assert!(error.to_string().contains("169.254.169.254 is refused"), "{error}");
        assert!(resolve("localhost").await.unwrap().next().is_some());
    }

    #[tokio::test]
    async fn name_is_checked_here_when_a_proxy_would_resolve_it() {
        let error = check_resolved_addresses("169.254.169.254").await.unwrap_err();
        assert!(error.message().contains("metadata address 169.254.169.254"), "{error}");
        check_resolved_addresses("localhost").await.unwrap();
        check_resolved_addresses("no-such-name.invalid").await.unwrap();
    }
}
