//! Log of one backup or restore, kept compressed until it is written to the bucket.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::{Level, Span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use super::line::{Fields, LogLine};
use bowline_store::encode;

/// Maximum compressed size of a log. The lines take about ten times as much.
const MAX_COMPRESSED_BYTES: usize = 32 << 20;

/// Log of one run. Clones share it.
///
/// The log is a valid gzip file at any time: [`snapshot`](Self::snapshot) ends the current gzip
/// member, and the next line starts another. At the size limit a last line says that the log is
/// truncated, and further lines are dropped.
#[derive(Clone, Debug)]
pub struct RunLog(Arc<Mutex<LogBuffer>>);

/// Extension of the span that carries the log.
pub(super) struct AttachedLog(pub(super) RunLog);

#[derive(Debug)]
struct LogBuffer {
    /// Finished gzip members.
    done: Vec<u8>,
    /// Current gzip member.
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
    /// Empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty log with a limit on its compressed size, which it may exceed a little.
    pub fn with_limit(limit: usize) -> Self {
        let buffer = LogBuffer { done: Vec::new(), open: None, limit, state: LogState::Open };
        Self(Arc::new(Mutex::new(buffer)))
    }

    /// Attaches this log to a span: events in it, and in its child spans, are written to the log.
    ///
    /// Has no effect unless events are logged by [`super::init`] or [`super::subscriber`].
    pub fn attach(&self, span: Span) -> Span {
        span.with_subscriber(|(id, dispatch)| {
            let registry = dispatch.downcast_ref::<Registry>();
            if let Some(span) = registry.and_then(|registry| registry.span(id)) {
                span.extensions_mut().replace(AttachedLog(self.clone()));
            }
        });
        span
    }

    /// Prepends an earlier log, which is a gzip file.
    pub fn prepend(&self, earlier: &[u8]) {
        let mut buffer = self.0.lock();
        buffer.done.splice(0..0, earlier.iter().copied());
    }

    /// Log up to now, as a gzip file.
    pub fn snapshot(&self) -> Bytes {
        let mut buffer = self.0.lock();
        buffer.end_member();
        Bytes::copy_from_slice(&buffer.done)
    }

    /// Whole log, as a gzip file. Later lines are lost.
    pub fn finish(&self) -> Bytes {
        let mut buffer = self.0.lock();
        buffer.end_member();
        buffer.state = LogState::Finished;
        std::mem::take(&mut buffer.done).into()
    }

    pub(super) fn add(&self, line: &[u8]) {
        self.0.lock().add(line);
    }
}

impl LogBuffer {
    fn add(&mut self, line: &[u8]) {
        if self.state != LogState::Open {
            return;
        }
        let open = self.open.get_or_insert_with(|| encode::gzip(Vec::new()));
        // Writes to memory do not fail.
        let _ = open.write_all(line);
        if self.done.len() + open.get_ref().len() > self.limit {
            let message = "the log is truncated here: the size limit is reached".to_owned();
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

    /// Ends the current gzip member; adds an empty one if there is none at all, since an empty file
    /// is no gzip file.
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
