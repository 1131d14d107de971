//! The way of one server to the bucket: each request is seen, and one of them can be held.
//!
//! It is an HTTP proxy, so that two servers with the same storage location have one each.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a request is held at most, and how long the bucket may take.
const LIMIT: Duration = Duration::from_mins(3);
/// The longest request.
const LONGEST: usize = 64 << 20;

/// A request that was to change something, and reached the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// When its connection was there. Each request has its own.
    pub(crate) connected: Instant,
    /// When the server had sent it.
    pub(crate) at: Instant,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
}

/// Where a request is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Before the bucket has seen it.
    Before,
    /// When the bucket has answered.
    After,
}

/// What becomes of a request that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on, as if nothing had been.
    GoOn,
    /// Its connection ends.
    Break,
}

/// Which request is held: the next one that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trap {
    pub(crate) method: &'static str,
    /// What its path ends with.
    pub(crate) end: &'static str,
    pub(crate) held: Held,
}

#[derive(Debug, Default)]
struct State {
    writes: Vec<Write>,
    trap: Option<Trap>,
    caught: Option<String>,
    fate: Option<Fate>,
    /// How many requests that were held have met their fate.
    settled: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A proxy. It ends with this process.
#[derive(Debug)]
pub(crate) struct Tap {
    url: String,
    shared: Arc<Shared>,
}

impl Tap {
    pub(crate) fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::<Shared>::default();
        let seen = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connected = Instant::now();
                let shared = Arc::clone(&seen);
                // A connection that breaks is the server's to deal with.
                std::thread::spawn(move || {
                    let mut was_held = false;
                    let _ = shared.serve(stream, connected, &mut was_held);
                    shared.lock().settled += usize::from(was_held);
                    shared.changed.notify_all();
                });
            }
        });
        Self { url, shared }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What has reached the bucket.
    pub(crate) fn writes(&self) -> Vec<Write> {
        self.shared.lock().writes.clone()
    }

    /// Holds the next request that fits.
    pub(crate) fn set(&self, trap: Trap) {
        let mut state = self.shared.lock();
        (state.trap, state.caught, state.fate) = (Some(trap), None, None);
    }

    /// The path of the request that is held, if there is one by then.
    pub(crate) fn caught(&self, wait: Duration) -> Option<String> {
        let state = self.shared.lock();
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, wait, |state| state.caught.is_none())
            .unwrap();
        state.caught.clone()
    }

    /// Lets the request go that is held, and holds no other. Returns when it has met its fate: the server need only
    /// look.
    pub(crate) fn release(&self, fate: Fate) {
        let mut state = self.shared.lock();
        state.trap = None;
        if state.caught.is_none() {
            return;
        }
        state.fate = Some(fate);
        self.shared.changed.notify_all();
        let before = state.settled;
        let wait = self.shared.changed.wait_timeout_while(state, LIMIT, |s| s.settled == before);
        assert!(!wait.unwrap().1.timed_out(), "what was held is still there");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

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
        if self.hold(&request, Held::Before, was_held) == Fate::Break {
            return Ok(());
        }
        let answer = request.ask()?;
        let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).parse();
        let status: u16 = status.map_err(io::Error::other)?;
        let Request { method, path, .. } = &request;
        if !["GET", "HEAD"].contains(&method.as_str()) {
            let (method, path) = (method.clone(), path.clone());
            let write = Write { connected, at, method, path, status };
            self.lock().writes.push(write);
        }
        if self.hold(&request, Held::After, was_held) == Fate::Break {
            return Ok(());
        }
        stream.write_all(&answer)
    }

    /// Waits if the request is one to hold.
    fn hold(&self, request: &Request, held: Held, was_held: &mut bool) -> Fate {
        let mut state = self.lock();
        let fits = |trap: Trap| {
            let path = request.path.split('?').next().unwrap_or_default();
            trap.held == held && trap.method == request.method && path.ends_with(trap.end)
        };
        if state.caught.is_some() || !state.trap.is_some_and(fits) {
            return Fate::GoOn;
        }
        *was_held = true;
        state.caught = Some(request.path.clone());
        self.changed.notify_all();
        let (mut state, _) =
            self.changed.wait_timeout_while(state, LIMIT, |state| state.fate.is_none()).unwrap();
        let fate = state.fate.take().unwrap_or(Fate::Break);
        (state.caught, state.trap) = (None, None);
        fate
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
        let strange = || io::Error::other(format!("no request to a proxy: {line}"));
        let [method, target, _] = words[..] else { return Err(strange()) };
        let rest = target.strip_prefix("http://").ok_or_else(strange)?;
        let at = rest.find('/').ok_or_else(strange)?;
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
        let mut body = vec![0; length.min(LONGEST)];
        reader.read_exact(&mut body)?;
        Ok(Some(Self { method, path, authority, headers, body }))
    }

    /// Asks the bucket, on a connection of its own.
    fn ask(&self) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.authority)?;
        stream.set_read_timeout(Some(LIMIT))?;
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
