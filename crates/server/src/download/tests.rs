use std::net::Ipv4Addr;

use bowline_store::download::{Grant, sign};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server with one file in it.
struct Fixture {
    _root: tempfile::TempDir,
    address: SocketAddr,
    key: SigningKey,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Fixture {
    async fn start(limits: Timeouts, content: &[u8]) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("bucket/backups")).unwrap();
        std::fs::write(root.path().join("bucket/backups/b.gz"), content).unwrap();
        std::fs::write(root.path().join("outside"), "no").unwrap();
        let key = SigningKey::new(&[7; 32]).unwrap();
        let mut server =
            Server::bind(&LOOPBACK, root.path().to_owned(), key.clone()).await.unwrap();
        server.limits = limits;
        let address = server.address();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        Self { _root: root, address, key, stop, task }
    }

    fn token(&self, key: &str, expires: i64) -> String {
        let expires = Timestamp::from_second(Timestamp::now().as_second() + expires).unwrap();
        let grant = Grant { bucket: "bucket".to_owned(), key: key.to_owned(), expires };
        sign(&self.key, &grant)
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn get(&self, method: &str, path: &str) -> String {
        self.ask(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }
}

#[tokio::test]
async fn file_is_sent_only_for_a_valid_link() {
    let server = Fixture::start(Timeouts::default(), b"content").await;
    let link = |key: &str, expires| format!("/download/{}", server.token(key, expires));
    let good = link("backups/b.gz", 60);
    let answer = server.get("GET", &good).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-type: application/octet-stream"), "{answer}");
    assert!(answer.contains("content\r\n"), "{answer}");
    let answer = server.get("HEAD", &good).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");

    for (method, path, status) in [
        ("GET", link("backups/b.gz", -1), "403"),
        ("GET", good.replace("/download/1", "/download/2"), "403"),
        ("GET", link("backups/missing.gz", 60), "404"),
        ("GET", "/download/".to_owned(), "404"),
        ("GET", "/download/x".to_owned(), "404"),
        ("GET", "/".to_owned(), "404"),
        ("GET", "/download/../outside".to_owned(), "404"),
        ("GET", format!("{good}/more"), "404"),
        ("POST", good.clone(), "405"),
        ("PUT", good.clone(), "405"),
        ("DELETE", good.clone(), "405"),
        // A signed link cannot leave its bucket either.
        ("GET", link("../outside", 60), "500"),
    ] {
        let answer = server.get(method, &path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path}: {answer}");
        assert!(!answer.contains("content\r\n"), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn client_without_request_is_disconnected() {
    let limits = Timeouts { request: Duration::from_millis(100), ..Timeouts::default() };
    let server = Fixture::start(limits, b"content").await;
    // Long before a download would time out.
    let asked = tokio::time::timeout(limits.idle / 2, server.ask("GET /download/"));
    let answer = asked.await.unwrap();
    assert!(!answer.contains("200"), "{answer}");
    let long = format!("GET /download/{} HTTP/1.1\r\n\r\n", "a".repeat(2 * REQUEST_MAX));
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
}

#[tokio::test]
async fn client_that_reads_nothing_is_disconnected_and_frees_its_slot() {
    let limits = Timeouts { idle: Duration::from_millis(200), ..Timeouts::default() };
    let server = Fixture::start(limits, &vec![0; 32 << 20]).await;
    let link = format!("/download/{}", server.token("backups/b.gz", 60));
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET {link} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    // The client is refused until another connection was closed.
    let get_answer = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut answer = Vec::new();
        // A refused connection is reset, at any point.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    let answered = async {
        while !get_answer().await.starts_with(b"HTTP/1.1 404") {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), answered).await;
    waited.expect("a connection that reads nothing is closed");
}

#[tokio::test]
async fn the_server_ends_when_asked_to() {
    let server = Fixture::start(Timeouts::default(), b"content").await;
    server.stop.cancel();
    server.task.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn root_must_be_a_directory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let key = SigningKey::new(&[7; 32]).unwrap();
    for root in [file.path().to_owned(), "/nowhere/at/all".into()] {
        let error = Server::bind(&LOOPBACK, root.clone(), key.clone()).await.map(drop).unwrap_err();
        assert!(error.to_string().contains(root.to_str().unwrap()), "{error}");
    }
}

#[test]
fn links_start_with_a_reachable_address() {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let base = |address, url| base_url(at(address), url).map_err(|error| error.to_string());
    assert_eq!(base("127.0.0.1:80", None).unwrap(), "http://127.0.0.1:80/download");
    assert_eq!(base("[::1]:80", None).unwrap(), "http://[::1]:80/download");
    for url in ["https://a.example/b", "https://a.example/b/"] {
        assert_eq!(base("0.0.0.0:80", Some(url)).unwrap(), "https://a.example/b/download");
    }
    assert!(base("0.0.0.0:80", None).unwrap_err().contains("--download-url"));
    // Downloads contain whole Secrets.
    assert!(base("10.0.0.1:80", None).unwrap_err().contains("in plain text"));
    assert!(base("0.0.0.0:80", Some("http://a.example")).unwrap_err().contains("in plain text"));
    assert_eq!(base("127.0.0.1:80", Some("http://a")).unwrap(), "http://a/download");
    for url in ["a.example", "ftp://a", "http://", "http://a?b", "http://a#b"] {
        assert!(base("127.0.0.1:80", Some(url)).is_err(), "{url}");
    }
}

#[tokio::test]
async fn idle_connections_do_not_block_downloads() {
    let server = Fixture::start(Timeouts::default(), b"content").await;
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS + 8 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let path = format!("/download/{}", server.token("backups/b.gz", 60));
    let asked = tokio::time::timeout(Duration::from_secs(5), server.get("GET", &path)).await;
    let answer = asked.expect("it is answered before the idle ones have run out of time");
    assert!(answer.contains("\r\ncontent\r\n"), "{answer}");
}
