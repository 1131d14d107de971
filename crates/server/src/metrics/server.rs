//! `GET /metrics`, `/healthz` and `/readyz`, for Prometheus and the kubelet. Nothing else is
//! answered.
//!
//! # Limits
//! A connection serves one request and lives for a short time. The number of open connections is
//! limited; one more closes the oldest. So a client that holds connections cannot block the
//! kubelet, which would restart a healthy server.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::{StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Address, Metrics};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 32;
/// Maximum length of a request.
const REQUEST_MAX: usize = 16 << 10;
/// Time for running answers after a stop request.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// Content type of the answer.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// Until the request has arrived.
    request: Duration,
    /// Whole connection.
    connection: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { request: Duration::from_secs(5), connection: Duration::from_secs(20) }
    }
}

/// Reason why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Unavailable listen address.
    #[error(
        "cannot serve metrics at {address}; choose another address with `--metrics-address`, or none \
         with `--metrics-address=0`"
    )]
    Bind {
        /// Listen address.
        address: Address,
        /// Cause.
        source: io::Error,
    },
}

/// Readiness of a server; false until set.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Sets the readiness.
    pub fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Relaxed);
    }

    fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bound metrics server, which answers once it [runs](Self::run).
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: ServedState,
    limits: Timeouts,
}

/// State for the answers.
#[derive(Clone, Debug)]
struct ServedState {
    metrics: Arc<Metrics>,
    readiness: Readiness,
}

impl Server {
    /// Binds the address; `None` if nothing is to be served.
    pub async fn bind(
        address: Address,
        metrics: Arc<Metrics>,
        readiness: Readiness,
    ) -> Result<Option<Self>, Error> {
        let bound = async {
            let Some(listener) = address.listen().await? else { return Ok(None) };
            let address = listener.local_addr()?;
            Ok(Some((listener, address)))
        };
        let bound = bound.await.map_err(|source| Error::Bind { address, source })?;
        let state = ServedState { metrics, readiness };
        let server =
            |(listener, address)| Self { listener, address, state, limits: Timeouts::default() };
        Ok(bound.map(server))
    }

    /// Bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until asked to stop.
    pub async fn run(self, stop: CancellationToken) {
        tracing::info!(address = %self.address, "serving metrics");
        let router = router(self.state);
        let mut connections = JoinSet::new();
        let mut open = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, _)) => {
                    make_room(&mut open);
                    let answer = serve_connection(stream, router.clone(), self.limits);
                    open.push_back(connections.spawn(answer));
                }
                // For example out of file descriptors. That may pass; an immediate retry would only
                // burn CPU.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        drop(self.listener);
        let ended = async { while connections.join_next().await.is_some() {} };
        // Clients that have sent no request by now get no answer: their connections are dropped.
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, ended).await;
    }
}

/// Removes closed connections and, if there are still too many, closes the oldest.
fn make_room(open: &mut VecDeque<AbortHandle>) {
    open.retain(|connection| !connection.is_finished());
    if open.len() >= MAX_CONNECTIONS
        && let Some(oldest) = open.pop_front()
    {
        tracing::debug!("too many connections for metrics; the oldest was closed");
        oldest.abort();
    }
}

fn router(state: ServedState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(state)
}

/// Answers the single request of a connection.
async fn serve_connection(stream: TcpStream, router: Router, limits: Timeouts) {
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(REQUEST_MAX)
        .keep_alive(false);
    let connection =
        server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client may disconnect, or be too slow; neither is an error of the server.
    let _ = tokio::time::timeout(limits.connection, connection).await;
}

async fn metrics(State(state): State<ServedState>) -> Response {
    // Rendering thousands of objects takes a while, and must not block other tasks.
    let rendered = tokio::task::spawn_blocking(move || state.metrics.render(Timestamp::now()));
    let Ok(rendered) = rendered.await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match rendered {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "cannot write the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A process that can answer is alive.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(state): State<ServedState>) -> (StatusCode, &'static str) {
    if state.readiness.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

#[cfg(test)]
mod tests;
