//! Connection of one server to the bucket. Each request is recorded, and one can be held.
//!
//! It is an HTTP proxy, so that two servers with the same storage location have one each.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Time limits for a held request, and for an answer of the bucket.
const HOLD_TIMEOUT: Duration = Duration::from_mins(3);
/// The longest request.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// A request that was to change something, and reached the bucket.
#[derive(Clone, Debug)]
pub(crate) struct RecordedWrite {
    /// Time of the connection. Each request has its own.
    pub(crate) connected: Instant,
    /// Time at which the server had sent it.
    pub(crate) at: Instant,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
}

/// Point at which a request is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldPoint {
    /// Before the bucket has seen it.
    Before,
    /// After the answer of the bucket.
    After,
}

/// End of a held request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseMode {
    /// The request continues unchanged.
    Forward,
    /// Its connection ends.
    Disconnect,
}

/// The next request to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestMatcher {
    pub(crate) method: &'static str,
    /// End of the path.
    pub(crate) end: &'static str,
    pub(crate) hold_point: HoldPoint,
}

#[derive(Debug, Default)]
struct ProxyState {
    writes: Vec<RecordedWrite>,
    matcher: Option<RequestMatcher>,
    held_path: Option<String>,
    release: Option<ReleaseMode>,
    /// Number of held requests that have ended.
    released: usize,
}

#[derive(Debug, Default)]
struct SharedProxyState {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

/// A proxy. It ends with this process.
#[derive(Debug)]
pub(crate) struct RecordingProxy {
    url: String,
    shared: Arc<SharedProxyState>,
}

impl RecordingProxy {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::<SharedProxyState>::default();
        let accepted = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connected = Instant::now();
                let shared = Arc::clone(&accepted);
                // A connection that breaks is the server's to deal with.
                std::thread::spawn(move || {
                    let mut was_held = false;
                    let _ = shared.serve(stream, connected, &mut was_held);
                    shared.state.lock().released += usize::from(was_held);
                    shared.changed.notify_all();
                });
            }
        });
        Self { url, shared }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Requests that have reached the bucket.
    pub(crate) fn writes(&self) -> Vec<RecordedWrite> {
        self.shared.state.lock().writes.clone()
    }

    /// Holds the next request that fits.
    pub(crate) fn hold_next(&self, matcher: RequestMatcher) {
        let mut state = self.shared.state.lock();
        (state.matcher, state.held_path, state.release) = (Some(matcher), None, None);
    }

    /// Path of the held request, if there is one by the deadline.
    pub(crate) fn wait_for_held(&self, wait: Duration) -> Option<String> {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.held_path.is_none(), wait);
        state.held_path.clone()
    }

    /// Releases the held request, and holds no other. Returns when its answer is available to the server.
    pub(crate) fn release(&self, mode: ReleaseMode) {
        let mut state = self.shared.state.lock();
        state.matcher = None;
        if state.held_path.is_none() {
            return;
        }
        state.release = Some(mode);
        self.shared.changed.notify_all();
        let released_before = state.released;
        let is_held = |state: &mut ProxyState| state.released == released_before;
        let wait = self.shared.changed.wait_while_for(&mut state, is_held, HOLD_TIMEOUT);
        assert!(!wait.timed_out(), "what was held is still there");
    }
}

impl SharedProxyState {
    /// Passes on one request, and its answer.
    fn serve(
        &self,
        mut stream: TcpStream,
        connected: Instant,
        was_held: &mut bool,
    ) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let Some(request) = Request::read(&mut reader)? else { return Ok(()) };
        let at = Instant::now();
        if self.hold(&request, HoldPoint::Before, was_held) == ReleaseMode::Disconnect {
            return Ok(());
        }
        let answer = request.send()?;
        let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).parse();
        let status: u16 = status.map_err(io::Error::other)?;
        let Request { method, path, .. } = &request;
        if !["GET", "HEAD"].contains(&method.as_str()) {
            let (method, path) = (method.clone(), path.clone());
            let write = RecordedWrite { connected, at, method, path, status };
            self.state.lock().writes.push(write);
        }
        if self.hold(&request, HoldPoint::After, was_held) == ReleaseMode::Disconnect {
            return Ok(());
        }
        stream.write_all(&answer)
    }

    /// Waits if the request is one to hold.
    fn hold(&self, request: &Request, hold_point: HoldPoint, was_held: &mut bool) -> ReleaseMode {
        let mut state = self.state.lock();
        let is_match = |trap: RequestMatcher| {
            let path = request.path.split('?').next().unwrap_or_default();
            trap.hold_point == hold_point
                && trap.method == request.method
                && path.ends_with(trap.end)
        };
        if state.held_path.is_some() || !state.matcher.is_some_and(is_match) {
            return ReleaseMode::Forward;
        }
        *was_held = true;
        state.held_path = Some(request.path.clone());
        self.changed.notify_all();
        self.changed.wait_while_for(&mut state, |state| state.release.is_none(), HOLD_TIMEOUT);
        let mode = state.release.take().unwrap_or(ReleaseMode::Disconnect);
        (state.held_path, state.matcher) = (None, None);
        mode
    }
}

struct Request {
    method: String,
    /// With its query.
    path: String,
    authority: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let invalid_request = || io::Error::other(format!("no request to a proxy: {line}"));
        let [method, target, _] = words[..] else { return Err(invalid_request()) };
        let rest = target.strip_prefix("http://").ok_or_else(invalid_request)?;
        let at = rest.find('/').ok_or_else(invalid_request)?;
        let (authority, path) = (rest[..at].to_owned(), rest[at..].to_owned());
        let method = method.to_owned();
        let (mut headers, mut length) = (Vec::new(), 0);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let lower = header.to_ascii_lowercase();
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            if !["connection:", "proxy-connection:"].iter().any(|name| lower.starts_with(name)) {
                headers.push(header);
            }
        }
        let mut body = vec![0; length.min(MAX_REQUEST_BYTES)];
        reader.read_exact(&mut body)?;
        Ok(Some(Self { method, path, authority, headers, body }))
    }

    /// Asks the bucket, on a connection of its own.
    fn send(&self) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.authority)?;
        stream.set_read_timeout(Some(HOLD_TIMEOUT))?;
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        head.extend(self.headers.iter().map(String::as_str));
        head.push_str("connection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}
