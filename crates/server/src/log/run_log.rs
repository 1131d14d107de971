//! The log of one backup or restore, kept compressed until it is written to the bucket.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tracing::{Level, Span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use super::line::{Fields, LogLine};
use bowline_store::encode;

/// The most that a log may take, compressed. Some ten times that in lines.
const MAX_COMPRESSED_BYTES: usize = 32 << 20;

/// The log of one run. Clones are the same log.
///
/// It is a valid gzip file at any time: [`snapshot`](Self::snapshot) ends the member that is being
/// written and lets the next line begin another. Beyond a limit one line says that it was cut, and
/// no more is taken.
#[derive(Clone, Debug)]
pub struct RunLog(Arc<Mutex<LogBuffer>>);

/// Kept with the span that carries the log.
pub(super) struct AttachedLog(pub(super) RunLog);

#[derive(Debug)]
struct LogBuffer {
    /// Members that are written.
    done: Vec<u8>,
    /// The member that is being written.
    open: Option<GzEncoder<Vec<u8>>>,
    limit: usize,
    state: LogState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogState {
    Open,
    Truncated,
    Finished,
}

impl Default for RunLog {
    fn default() -> Self {
        Self::with_limit(MAX_COMPRESSED_BYTES)
    }
}

impl RunLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log that may take so many bytes, compressed, and a little more.
    pub fn with_limit(limit: usize) -> Self {
        let buffer = LogBuffer { done: Vec::new(), open: None, limit, state: LogState::Open };
        Self(Arc::new(Mutex::new(buffer)))
    }

    /// Lets a span carry this log: what happens in it, and in spans within it, is in the log.
    ///
    /// Nothing happens where events are not logged by [`super::init`] or [`super::subscriber`].
    pub fn attach(&self, span: Span) -> Span {
        span.with_subscriber(|(id, dispatch)| {
            let registry = dispatch.downcast_ref::<Registry>();
            if let Some(span) = registry.and_then(|registry| registry.span(id)) {
                span.extensions_mut().replace(AttachedLog(self.clone()));
            }
        });
        span
    }

    /// Lets the log begin with what was logged elsewhere, which is a gzip file.
    pub fn prepend(&self, earlier: &[u8]) {
        let mut buffer = self.buffer();
        buffer.done.splice(0..0, earlier.iter().copied());
    }

    /// The log up to now, as a gzip file.
    pub fn snapshot(&self) -> Bytes {
        let mut buffer = self.buffer();
        buffer.end_member();
        Bytes::copy_from_slice(&buffer.done)
    }

    /// The whole log, as a gzip file. What is logged afterwards is not in it, nor anywhere else.
    pub fn finish(&self) -> Bytes {
        let mut buffer = self.buffer();
        buffer.end_member();
        buffer.state = LogState::Finished;
        std::mem::take(&mut buffer.done).into()
    }

    pub(super) fn add(&self, line: &[u8]) {
        self.buffer().add(line);
    }

    fn buffer(&self) -> MutexGuard<'_, LogBuffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogBuffer {
    fn add(&mut self, line: &[u8]) {
        if self.state != LogState::Open {
            return;
        }
        let open = self.open.get_or_insert_with(|| encode::gzip(Vec::new()));
        // Memory does not refuse.
        let _ = open.write_all(line);
        if self.done.len() + open.get_ref().len() > self.limit {
            let message = "the log is cut here: it is longer than what is kept".to_owned();
            let notice = LogLine {
                time: Timestamp::now(),
                level: Level::WARN,
                message,
                fields: Fields::default(),
            };
            let _ = open.write_all(notice.text().as_bytes());
            self.state = LogState::Truncated;
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
