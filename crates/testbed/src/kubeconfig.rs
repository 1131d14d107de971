//! Kubeconfig files: address of an API server, and credentials for it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::pki::Identity;

/// Writes a kubeconfig for the API server on a loopback `port`, readable by its owner only.
///
/// JSON is YAML, so writing one needs no further library.
pub(crate) fn write(
    path: &Path,
    port: u16,
    authority: &Path,
    identity: &Identity,
) -> io::Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bowline", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": authority,
        }}],
        "users": [{"name": "bowline", "user": {
            "client-certificate": identity.certificate,
            "client-key": identity.key,
        }}],
        "contexts": [{"name": "bowline", "context": {"cluster": "bowline", "user": "bowline"}}],
        "current-context": "bowline",
    });
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(format!("{config:#}\n").as_bytes())
}

/// Client for the cluster and user of a kubeconfig.
pub async fn client(path: &Path) -> Result<kube::Client, Error> {
    let file = Kubeconfig::read_from(path).map_err(Error::Read)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(Error::Read)?;
    kube::Client::try_from(config).map_err(Error::Client)
}

/// Failure to create a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not a valid kubeconfig.
    #[error("cannot read the kubeconfig")]
    Read(#[source] kube::config::KubeconfigError),
    /// The client cannot be created from it.
    #[error("cannot make a client from the kubeconfig")]
    Client(#[source] kube::Error),
}
