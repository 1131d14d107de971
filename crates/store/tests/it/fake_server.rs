//! A server with configured answers, for answers that a healthy server never gives.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request: the first line, and the names and values of headers, in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub line: String,
    pub head: String,
}

/// A running server. Dropping it ends it.
pub(crate) struct FakeServer {
    pub url: String,
    pub requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Status line, further headers, body.
pub(crate) type FakeResponse = (&'static str, String, &'static str);

impl FakeServer {
    /// Answers each request, given its number, with what `answer` says.
    pub(crate) async fn start(
        respond: impl Fn(usize, &Request) -> FakeResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (recorded, answer) = (Arc::clone(&requests), Arc::new(respond));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&recorded), Arc::clone(&answer)));
            }
        });
        Self { url, requests, task }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests.lock().iter().map(|request| request.line.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    recorded: Arc<Mutex<Vec<Request>>>,
    respond: Arc<impl Fn(usize, &Request) -> FakeResponse>,
) {
    let mut bytes = Vec::new();
    let head_end = loop {
        let mut piece = [0; 4096];
        let Ok(read @ 1..) = stream.read(&mut piece).await else { return };
        bytes.extend_from_slice(&piece[..read]);
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let line = head.lines().next().unwrap_or_default().to_owned();
    let head = head.to_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0);
    let mut missing = (head_end + length).saturating_sub(bytes.len());
    while missing > 0 {
        let mut piece = vec![0; missing.min(1 << 16)];
        let Ok(read @ 1..) = stream.read(&mut piece).await else { return };
        missing -= read;
    }
    let request = Request { line, head };
    let number = {
        let mut recorded = recorded.lock();
        recorded.push(request.clone());
        recorded.len() - 1
    };
    let (status, headers, body) = respond(number, &request);
    let is_head = request.line.starts_with("HEAD");
    let text = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        body.len(),
        if is_head { "" } else { body }
    );
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}
