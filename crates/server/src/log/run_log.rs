//! The log of one backup or restore, kept compressed until it is written to the bucket.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tracing::{Level, Span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use super::line::{Fields, Line};
use bowline_store::encode;

/// The most that a log may take, compressed. Some ten times that in lines.
const LIMIT: usize = 32 << 20;

/// The log of one run. Clones are the same log.
///
/// It is a valid gzip file at any time: [`snapshot`](Self::snapshot) ends the member that is being
/// written and lets the next line begin another. Beyond a limit one line says that it was cut, and
/// no more is taken.
#[derive(Clone, Debug)]
pub struct RunLog(Arc<Mutex<Pages>>);

/// Kept with the span that carries the log.
pub(super) struct Attached(pub(super) RunLog);

#[derive(Debug)]
struct Pages {
    /// Members that are written.
    done: Vec<u8>,
    /// The member that is being written.
    open: Option<GzEncoder<Vec<u8>>>,
    limit: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Cut,
    Finished,
}

impl Default for RunLog {
    fn default() -> Self {
        Self::with_limit(LIMIT)
    }
}

impl RunLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log that may take so many bytes, compressed, and a little more.
    pub fn with_limit(limit: usize) -> Self {
        let pages = Pages { done: Vec::new(), open: None, limit, state: State::Open };
        Self(Arc::new(Mutex::new(pages)))
    }

    /// Lets a span carry this log: what happens in it, and in spans within it, is in the log.
    ///
    /// Nothing happens where events are not logged by [`super::init`] or [`super::subscriber`].
    pub fn attach(&self, span: Span) -> Span {
        span.with_subscriber(|(id, dispatch)| {
            let registry = dispatch.downcast_ref::<Registry>();
            if let Some(span) = registry.and_then(|registry| registry.span(id)) {
                span.extensions_mut().replace(Attached(self.clone()));
            }
        });
        span
    }

    /// Lets the log begin with what was logged elsewhere, which is a gzip file.
    pub fn go_on_from(&self, earlier: &[u8]) {
        let mut pages = self.pages();
        pages.done.splice(0..0, earlier.iter().copied());
    }

    /// The log up to now, as a gzip file.
    pub fn snapshot(&self) -> Bytes {
        let mut pages = self.pages();
        pages.end_member();
        Bytes::copy_from_slice(&pages.done)
    }

    /// The whole log, as a gzip file. What is logged afterwards is not in it, nor anywhere else.
    pub fn finish(&self) -> Bytes {
        let mut pages = self.pages();
        pages.end_member();
        pages.state = State::Finished;
        std::mem::take(&mut pages.done).into()
    }

    pub(super) fn add(&self, line: &[u8]) {
        self.pages().add(line);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn add(&mut self, line: &[u8]) {
        if self.state != State::Open {
            return;
        }
        let open = self.open.get_or_insert_with(|| encode::gzip(Vec::new()));
        // Memory does not refuse.
        let _ = open.write_all(line);
        if self.done.len() + open.get_ref().len() > self.limit {
            let message = "the log is cut here: it is longer than what is kept".to_owned();
            let cut = Line {
                time: Timestamp::now(),
                level: Level::WARN,
                message,
                fields: Fields::default(),
            };
            let _ = open.write_all(cut.text().as_bytes());
            self.state = State::Cut;
        }
    }

    /// Ends the member that is being written; an empty one if there is none at all, since an empty
    /// file is no gzip.
    fn end_member(&mut self) {
        if self.open.is_none() && !self.done.is_empty() {
            return;
        }
        let open = self.open.take().unwrap_or_else(|| encode::gzip(Vec::new()));
        if let Ok(member) = open.finish() {
            self.done.extend_from_slice(&member);
        }
    }
}
