//! Watches: one long answer, a line for each change.
//!
//! A watch is opened without a version, so that it begins with all objects that are there: whoever
//! follows it needs no list before, and after a break nothing but to begin anew. That costs little for
//! the few objects that a selector fits, which is what it is for.

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

use super::super::split::OBJECT_MAX;
use super::super::{Change, Error, Query, Result};
use super::{Failed, Hope, Patience, Source, Status, one_line, path_of, segment};
use crate::item::Object;

/// After how many seconds the API server ends a watch.
const LENGTH: u32 = 240;
/// How long there may be no byte. The API server says that it is there about once a minute.
const SILENCE: Duration = Duration::from_mins(3);
/// How long a watch is open at least before the next.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows objects.
pub(super) fn follow(source: Source) -> BoxStream<'static, Result<Change>> {
    let patience = Patience::new(source.server.outage);
    let watching = Watching { source, open: None, opened: None, patience };
    stream::unfold(Some(watching), async |watching| {
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

struct Watching {
    source: Source,
    open: Option<Open>,
    /// When the last one was opened.
    opened: Option<Instant>,
    patience: Patience,
}

/// An answer that goes on.
struct Open {
    body: Body,
    buffer: BytesMut,
}

/// A line of it.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Watching {
    async fn next(&mut self) -> Result<Change> {
        loop {
            let Some(open) = &mut self.open else {
                if let Some(opened) = self.opened {
                    sleep_until(opened + PAUSE).await;
                }
                match self.source.open_watch().await {
                    Ok(open) => {
                        (self.open, self.opened) = (Some(open), Some(Instant::now()));
                        return Ok(Change::Began);
                    }
                    Err(failed) => self.patience.wait(failed).await?,
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
                    self.patience.wait(error.into()).await?;
                    continue;
                }
            };
            self.patience.renew();
            if let Some(change) = self.read(&line)? {
                return Ok(change);
            }
        }
    }

    /// What a line says, if it says anything.
    fn read(&mut self, line: &[u8]) -> Result<Option<Change>> {
        let unreadable = |error: serde_json::Error| Error::Unreadable(error.to_string());
        let Line { kind, object } = serde_json::from_slice(line).map_err(unreadable)?;
        let change = match kind {
            "ADDED" | "MODIFIED" => Change::There,
            "DELETED" => Change::Gone,
            "ERROR" => {
                let status: Status = serde_json::from_str(object.get()).unwrap_or_default();
                let message = &status.message;
                tracing::debug!(resource = %self.source.resource.id, "a watch ends: {message}");
                self.open = None;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let json = Bytes::copy_from_slice(object.get().as_bytes());
        Ok(Some(change(Object::from_json(&self.source.resource, json)?)))
    }
}

impl Source {
    async fn open_watch(&self) -> Result<Open, Failed> {
        let mut path = path_of(&self.resource, self.query.namespace.as_deref());
        path.push_str("?watch=true&allowWatchBookmarks=true&timeoutSeconds=");
        path.push_str(&LENGTH.to_string());
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
        match self.server.ask(&path).await {
            Ok(response) => Ok(Open { body: response.into_body(), buffer: BytesMut::new() }),
            // The past that it would begin with is forgotten; the next try begins later.
            Err(Failed { error: error @ Error::Expired { .. }, .. }) => {
                Err(Failed { error, hope: Hope::Later(None) })
            }
            Err(failed) => Err(failed),
        }
    }
}

impl Open {
    /// The next line; none at the end.
    async fn line(&mut self) -> Result<Option<Bytes>> {
        let mut looked = 0;
        loop {
            if let Some(end) = memchr(b'\n', &self.buffer[looked..]) {
                let line = self.buffer.split_to(looked + end + 1).freeze();
                if line.len() > 1 {
                    return Ok(Some(line));
                }
                looked = 0;
                continue;
            }
            looked = self.buffer.len();
            if looked > OBJECT_MAX {
                return Err(Error::Unreadable(format!("a line is longer than {OBJECT_MAX} bytes")));
            }
            match timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Err(Error::Silent(SILENCE)),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                Ok(Some(Err(error))) => return Err(Error::Unreachable(one_line(&error))),
            }
        }
    }
}
