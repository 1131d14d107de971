//! Watches: one long response, with a line for each change.
//!
//! A watch is opened without a resource version, so that it starts with all existing objects: its
//! reader needs no list before, and after a break it only has to be opened again. That is cheap for
//! the few objects that a selector matches, which is the intended use.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http_body_util::BodyExt as _;
use kube::client::Body;
use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::list_splitter::OBJECT_MAX;
use super::super::{Error, Query, Result, WatchEvent};
use super::{
    FailedAttempt, ListSource, RetryBudget, RetryHint, Status, error_chain, path_of, segment,
};
use crate::item::Object;

/// Seconds after which the API server ends a watch.
const WATCH_TIMEOUT_SECONDS: u32 = 240;
/// Maximum time without a byte. The API server sends a bookmark about once a minute.
const READ_TIMEOUT: Duration = Duration::from_mins(3);
/// Minimum time between the openings of two watches.
const MIN_WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Watches objects.
pub(super) fn watch(source: ListSource) -> BoxStream<'static, Result<WatchEvent>> {
    let retry_budget = RetryBudget::new(source.server.max_outage);
    let stream_state = WatchStream { source, open: None, opened_at: None, retry_budget };
    stream::unfold(Some(stream_state), async |watching| {
        let mut watching = watching?;
        match watching.next().await {
            Ok(change) => Some((Ok(change), Some(watching))),
            // One bad object does not hide the others.
            Err(error @ Error::Object(_)) => Some((Err(error), Some(watching))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct WatchStream {
    source: ListSource,
    open: Option<OpenWatch>,
    /// Opening time of the last watch.
    opened_at: Option<Instant>,
    retry_budget: RetryBudget,
}

/// Response in progress.
struct OpenWatch {
    body: Body,
    buffer: BytesMut,
}

/// Line of a response.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl WatchStream {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let Some(open) = &mut self.open else {
                if let Some(opened_at) = self.opened_at {
                    sleep_until(opened_at + MIN_WATCH_INTERVAL).await;
                }
                match self.source.open_watch().await {
                    Ok(open) => {
                        (self.open, self.opened_at) = (Some(open), Some(Instant::now()));
                        return Ok(WatchEvent::Started);
                    }
                    Err(failed) => self.retry_budget.wait_or_give_up(failed).await?,
                }
                continue;
            };
            let line = match open.line().await {
                Ok(Some(line)) => line,
                Ok(None) => {
                    self.open = None;
                    continue;
                }
                Err(error) => {
                    self.open = None;
                    self.retry_budget.wait_or_give_up(error.into()).await?;
                    continue;
                }
            };
            self.retry_budget.reset();
            if let Some(change) = self.read(&line)? {
                return Ok(change);
            }
        }
    }

    /// Event of a line, if it has one.
    fn read(&mut self, line: &[u8]) -> Result<Option<WatchEvent>> {
        let unreadable = |error: serde_json::Error| Error::Unreadable(error.to_string());
        let WatchLine { kind, object } = serde_json::from_slice(line).map_err(unreadable)?;
        let change = match kind {
            "ADDED" | "MODIFIED" => WatchEvent::Applied,
            "DELETED" => WatchEvent::Deleted,
            "ERROR" => {
                let status: Status = serde_json::from_str(object.get()).unwrap_or_default();
                let message = &status.message;
                tracing::debug!(resource = %self.source.resource.id, "the watch ended: {message}");
                self.open = None;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let json = Bytes::copy_from_slice(object.get().as_bytes());
        Ok(Some(change(Object::from_json(&self.source.resource, json)?)))
    }
}

impl ListSource {
    async fn open_watch(&self) -> Result<OpenWatch, FailedAttempt> {
        let mut path = path_of(&self.resource, self.query.namespace.as_deref());
        path.push_str("?watch=true&allowWatchBookmarks=true&timeoutSeconds=");
        path.push_str(&WATCH_TIMEOUT_SECONDS.to_string());
        let Query { label_selector, field_selector, .. } = &self.query;
        for (name, value) in [("labelSelector", label_selector), ("fieldSelector", field_selector)]
        {
            if !value.is_empty() {
                path.push('&');
                path.push_str(name);
                path.push('=');
                path.push_str(&segment(value));
            }
        }
        match self.server.get_once(&path).await {
            Ok(response) => Ok(OpenWatch { body: response.into_body(), buffer: BytesMut::new() }),
            // The resource version to start from has expired; the next attempt starts later.
            Err(FailedAttempt { error: error @ Error::Expired { .. }, .. }) => {
                Err(FailedAttempt { error, retry_hint: RetryHint::After(None) })
            }
            Err(failed) => Err(failed),
        }
    }
}

impl OpenWatch {
    /// Next line; `None` at the end.
    async fn line(&mut self) -> Result<Option<Bytes>> {
        let mut scanned = 0;
        loop {
            if let Some(end) = memchr(b'\n', &self.buffer[scanned..]) {
                let line = self.buffer.split_to(scanned + end + 1).freeze();
                if line.len() > 1 {
                    return Ok(Some(line));
                }
                scanned = 0;
                continue;
            }
            scanned = self.buffer.len();
            if scanned > OBJECT_MAX {
                return Err(Error::Unreadable(format!("a line is longer than {OBJECT_MAX} bytes")));
            }
            match timeout(READ_TIMEOUT, self.body.frame()).await {
                Err(_) => return Err(Error::Timeout(READ_TIMEOUT)),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                Ok(Some(Err(error))) => return Err(Error::Unreachable(error_chain(&error))),
            }
        }
    }
}
