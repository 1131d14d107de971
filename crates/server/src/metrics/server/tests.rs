use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::RunKind;
use crate::run_state::TerminalPhase;

const FREE: Address = Address::At(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0));

/// Timeout for anything that does not hang.
const LIMIT: Duration = Duration::from_mins(1);

/// A server that answers.
struct Fixture {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Fixture {
    async fn start(limits: Timeouts) -> Self {
        let (metrics, readiness) = (Arc::new(Metrics::new()), Readiness::default());
        let bound = Server::bind(FREE, Arc::clone(&metrics), readiness.clone()).await.unwrap();
        let mut server = bound.unwrap();
        server.limits = limits;
        let (address, stop) = (server.address(), CancellationToken::new());
        let task = tokio::spawn(server.run(stop.clone()));
        Self { address, metrics, readiness, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(LIMIT, read).await.expect("in time").unwrap();
        answer
    }

    async fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }
}

#[tokio::test]
async fn metrics_are_rendered_on_each_request() {
    let server = Fixture::start(Timeouts::default()).await;
    server.metrics.run_ended(RunKind::Backup, TerminalPhase::Failed);
    let answer = server.get("/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
    let line = r#"bowline_runs_ended_total{kind="backup",phase="Failed"}"#;
    assert!(answer.contains(&format!("{line} 1\n")), "{answer}");
    server.metrics.run_ended(RunKind::Backup, TerminalPhase::Failed);
    assert!(server.get("/metrics").await.contains(&format!("{line} 2\n")));
}

#[tokio::test]
async fn healthz_is_ok_at_once_and_readyz_when_ready() {
    let server = Fixture::start(Timeouts::default()).await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 503"));
    server.readiness.set(true);
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200"));
    server.readiness.set(false);
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let server = Fixture::start(Timeouts::default()).await;
    for path in ["/", "/metrics/", "/metrics/x", "/healthz/../x", "/debug/pprof"] {
        assert!(server.get(path).await.starts_with("HTTP/1.1 404"), "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let request = format!("{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(server.ask(&request).await.starts_with("HTTP/1.1 405"), "{method}");
    }
}

#[tokio::test]
async fn silent_or_oversized_requests_are_disconnected() {
    let limits = Timeouts { request: Duration::from_millis(100), ..Timeouts::default() };
    let server = Fixture::start(limits).await;
    // Long before its connection would time out.
    let asked = tokio::time::timeout(limits.connection / 2, server.ask("GET /met"));
    assert!(!asked.await.unwrap().contains("200"));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(2 * REQUEST_MAX));
    let mut stream = server.connect().await;
    // The connection may be closed while the request is still being sent.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
}

#[tokio::test]
async fn connection_has_a_time_limit() {
    let hour = Duration::from_hours(1);
    let limits = Timeouts { request: hour, connection: Duration::from_millis(100) };
    let server = Fixture::start(limits).await;
    assert_eq!(server.ask("GET /met").await, "");
}

#[tokio::test]
async fn held_connections_do_not_block_others() {
    let hour = Duration::from_hours(1);
    let server = Fixture::start(Timeouts { request: hour, connection: hour }).await;
    let mut held_connections = VecDeque::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        held_connections.push_back(server.connect().await);
    }
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
    let mut oldest = held_connections.pop_front().unwrap();
    let read = tokio::time::timeout(LIMIT, oldest.read(&mut [0])).await.expect("in time");
    // The connection has ended, with or without an error.
    assert!(!matches!(read, Ok(1..)), "{read:?}");
}

#[tokio::test]
async fn server_stops_despite_open_connections() {
    let hour = Duration::from_hours(1);
    let server = Fixture::start(Timeouts { request: hour, connection: hour }).await;
    let _connection = server.connect().await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
    server.stop.cancel();
    tokio::time::timeout(LIMIT, server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

async fn bind(address: Address) -> Result<Option<Server>, Error> {
    Server::bind(address, Arc::default(), Readiness::default()).await
}

#[tokio::test]
async fn disabled_address_serves_nothing() {
    assert!(bind(Address::Off).await.unwrap().is_none());
}

#[tokio::test]
async fn address_in_use_error_has_a_hint() {
    let first = bind(Address::AllInterfaces(0)).await.unwrap().unwrap();
    assert!(first.address().ip().is_unspecified());
    let port = first.address().port();
    let error = bind(Address::AllInterfaces(port)).await.map(drop).unwrap_err();
    let message = crate::error_text::status_message(&error);
    assert!(message.starts_with(&format!("cannot serve metrics at :{port}; choose")), "{message}");
    assert!(message.contains("--metrics-address=0"), "{message}");
    assert!(message.contains("in use"), "{message}");
}

#[tokio::test]
async fn all_interfaces_include_ipv4() {
    let server = bind(Address::AllInterfaces(0)).await.unwrap().unwrap();
    let (port, stop) = (server.address().port(), CancellationToken::new());
    let task = tokio::spawn(server.run(stop.clone()));
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn slow_rendering_does_not_block_other_requests() {
    let server = Fixture::start(Timeouts::default()).await;
    let metrics = Arc::clone(&server.metrics);
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, is_released) = std::sync::mpsc::channel::<()>();
    let slow = std::thread::spawn(move || {
        let _rendering = metrics.rendering.lock();
        locked.send(()).unwrap();
        // The lock cannot be released while the only thread of the runtime waits for it.
        is_released.recv_timeout(Duration::from_secs(10)).is_ok()
    });
    is_locked.recv().unwrap();
    let mut scrape = server.connect().await;
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    for _ in 0..3 {
        assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
    }
    let _ = release.send(());
    assert!(slow.join().unwrap(), "/healthz was answered only when the metrics were rendered");
    let mut answer = String::new();
    let read = scrape.read_to_string(&mut answer);
    tokio::time::timeout(LIMIT, read).await.expect("in time").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
