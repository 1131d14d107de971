//! Downloads from `filesystem` locations, over HTTP, for holders of a signed link.
//!
//! A directory cannot create signed links, as S3 does, so the server serves its files. A request is
//! `GET` or `HEAD` of `/download/<token>`, and the token names the file and its expiry; see
//! [`bowline_store::download`]. Nothing else is answered, nothing is listed, and no part of the URL
//! becomes a path.
//!
//! # Limits
//! A connection serves one request. The number of open connections is limited: a new one replaces one
//! without a valid link, or is refused. A client that sends no request, or does not read the answer, is disconnected.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bowline_plugin::{Code, Config, ObjectStore as _};
use bowline_store::backend::Filesystem;
use bowline_store::backend::filesystem;
use bowline_store::download::{KeyTooShort, RefusedToken, SigningKey, verify};
use futures::StreamExt as _;
use http::{StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 64;
/// Maximum length of a request.
const REQUEST_MAX: usize = 16 << 10;
/// Path prefix of downloads.
const PATH: &str = "/download";

#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// Until the request has arrived.
    request: Duration,
    /// Without progress of the download.
    idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), idle: Duration::from_mins(2) }
    }
}

/// Reason why downloads cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Unusable root directory.
    #[error("cannot use {} as `--filesystem-root`", path.display())]
    Root {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Unavailable listen address.
    #[error("cannot serve downloads at {address}; choose another with `--download-address`")]
    Bind {
        /// Listen address.
        address: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// Address that clients cannot use in a link.
    #[error(
        "downloads are served at {0}, which clients cannot reach; set the address for clients \
         with `--download-url`"
    )]
    NoUrl(SocketAddr),
    /// Plain HTTP, which would expose whole Secrets.
    #[error(
        "downloads at {0} would send Secrets in plain text; hint: put a TLS proxy in front and set \
         `--download-url https://…`, or use a loopback address"
    )]
    PlainText(SocketAddr),
    /// Invalid download URL.
    #[error("`--download-url` must begin with http:// or https:// and must not contain `?` or `#`")]
    Url,
    /// Key that is too short.
    #[error(transparent)]
    Key(#[from] KeyTooShort),
}

/// Bound file server, which answers once it [runs](Self::run).
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    root: PathBuf,
    key: SigningKey,
    limits: Timeouts,
}

impl Server {
    /// Binds the address.
    pub async fn bind(address: &SocketAddr, root: PathBuf, key: SigningKey) -> Result<Self, Error> {
        match tokio::fs::metadata(&root).await {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let source = io::ErrorKind::NotADirectory.into();
                return Err(Error::Root { path: root, source });
            }
            Err(source) => return Err(Error::Root { path: root, source }),
        }
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let failed = |source| Error::Bind { address: *address, source };
        let (listener, address) = bound.await.map_err(failed)?;
        Ok(Self { listener, address, root, key, limits: Timeouts::default() })
    }

    /// Bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Options for stores to create links to this server. `url` is the address under which clients
    /// reach it, if different.
    pub fn options(&self, url: Option<&str>) -> Result<filesystem::Options, Error> {
        let base_url = base_url(self.address, url)?;
        let downloads = filesystem::Downloads { base_url, key: self.key.clone() };
        Ok(filesystem::Options { root: self.root.clone(), downloads: Some(downloads) })
    }

    /// Serves until asked to stop; running downloads continue until the future is dropped.
    pub async fn run(self, stop: CancellationToken) {
        let files = filesystem::Options { root: self.root, downloads: None };
        let store = match Filesystem::open(&Config::new(), files).await {
            Ok(store) => Arc::new(store),
            Err(error) => {
                tracing::error!(error = error.message(), "cannot serve downloads");
                return;
            }
        };
        tracing::info!(address = %self.address, "serving downloads");
        let mut connections = JoinSet::new();
        let mut open = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    if !make_room(&mut open) {
                        // All of them are running downloads with valid links.
                        tracing::debug!("connection refused: too many downloads are in progress");
                        continue;
                    }
                    let (store, key) = (Arc::clone(&store), self.key.clone());
                    let files = DownloadState {
                        store,
                        key,
                        chunks_sent: Arc::default(),
                        is_granted: Arc::default(),
                    };
                    let (limits, is_granted) = (self.limits, Arc::clone(&files.is_granted));
                    let handle = connections.spawn(serve_connection(stream, files, limits));
                    open.push_back(Connection { handle, is_granted });
                }
                // For example out of file descriptors. That may pass; an immediate retry would only
                // burn CPU.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }
}

/// Connection, possibly closed already.
struct Connection {
    handle: AbortHandle,
    /// True once its link was accepted.
    is_granted: Arc<AtomicBool>,
}

/// Removes closed connections and, if there are still too many, disconnects the oldest one without
/// a valid link: clients without a link must not keep out those with one. Returns true if there is
/// room.
fn make_room(open: &mut VecDeque<Connection>) -> bool {
    open.retain(|connection| !connection.handle.is_finished());
    if open.len() < MAX_CONNECTIONS {
        return true;
    }
    let idle = open.iter().position(|one| !one.is_granted.load(Ordering::Relaxed));
    let Some(oldest) = idle.and_then(|at| open.remove(at)) else { return false };
    oldest.handle.abort();
    true
}

/// Prefix of links, up to the token.
fn base_url(address: SocketAddr, url: Option<&str>) -> Result<String, Error> {
    let Some(url) = url else {
        if address.ip().is_unspecified() {
            return Err(Error::NoUrl(address));
        }
        if !address.ip().is_loopback() {
            return Err(Error::PlainText(address));
        }
        return Ok(format!("http://{address}{PATH}"));
    };
    // Only processes on the same machine reach a loopback address.
    if !address.ip().is_loopback() && url.starts_with("http://") {
        return Err(Error::PlainText(address));
    }
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['?', '#', ' ']) => {
            Ok(format!("{}{PATH}", url.trim_end_matches('/')))
        }
        _ => Err(Error::Url),
    }
}

/// State of one connection.
#[derive(Clone)]
struct DownloadState {
    store: Arc<Filesystem>,
    key: SigningKey,
    /// Number of chunks that the client has read.
    chunks_sent: Arc<AtomicU64>,
    /// True once the client has sent a valid link.
    is_granted: Arc<AtomicBool>,
}

/// Answers the single request of a connection.
async fn serve_connection(stream: TcpStream, files: DownloadState, limits: Timeouts) {
    let chunks_sent = Arc::clone(&files.chunks_sent);
    let router =
        Router::new().route(&format!("{PATH}/{{token}}"), get(send_file)).with_state(files);
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(REQUEST_MAX)
        .keep_alive(false);
    let connection =
        server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::select! {
        // A client may disconnect at any time.
        _ = connection => {}
        () = wait_until_idle(&chunks_sent, limits.idle) => {
            tracing::debug!("download aborted: the client does not read");
        }
    }
}

/// Waits until no chunk was read for this long.
async fn wait_until_idle(chunks_sent: &AtomicU64, silence: Duration) {
    let mut last_count = chunks_sent.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(silence).await;
        let now = chunks_sent.load(Ordering::Relaxed);
        if now == last_count {
            return;
        }
        last_count = now;
    }
}

async fn send_file(State(files): State<DownloadState>, Path(token): Path<String>) -> Response {
    let grant = match verify(&files.key, &token, Timestamp::now()) {
        Ok(grant) => grant,
        Err(refused @ RefusedToken::Malformed) => return refuse(StatusCode::NOT_FOUND, &refused),
        Err(refused) => return refuse(StatusCode::FORBIDDEN, &refused),
    };
    files.is_granted.store(true, Ordering::Relaxed);
    let stream = match files.store.get_object(&grant.bucket, &grant.key).await {
        Ok(stream) => stream,
        Err(error) if error.code() == Code::NotFound => {
            return refuse(StatusCode::NOT_FOUND, &"the file does not exist");
        }
        Err(error) => {
            tracing::warn!(key = grant.key, error = error.message(), "cannot serve a download");
            return refuse(StatusCode::INTERNAL_SERVER_ERROR, &"the file cannot be read");
        }
    };
    let count = files.chunks_sent;
    let counted = stream.inspect(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Body::from_stream(counted)).into_response()
}

fn refuse(status: StatusCode, reason: &dyn std::fmt::Display) -> Response {
    (status, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests;
