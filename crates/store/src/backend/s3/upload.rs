//! Uploads of unknown length, in constant memory.

use std::time::Duration;

use bowline_plugin::{ByteStream, Code, Error, Result};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use object_store::{MultipartUpload, ObjectStore as _, PutMode, PutMultipartOptions};
use tokio::task::{JoinHandle, JoinSet};

use super::connection::{Connection, path};
use super::error::explain;

/// The smallest part that S3 takes.
const PART: usize = 5 << 20;
/// The most parts that S3 takes.
const MAX_PARTS: usize = 10_000;
/// An object that is longer is likely to fill a part.
const RESERVE: usize = 1 << 20;
/// How many parts are under way.
const AT_ONCE: usize = 2;
/// How long the last parts of a broken upload are waited for.
const LAST_PARTS: Duration = Duration::from_secs(30);

/// Stores an object whole: with one request if it is small, else in parts that become an object
/// only at the end.
pub(super) async fn stream(connection: &Connection, key: &str, body: ByteStream) -> Result<()> {
    let path = path(key)?;
    let failed = |error| explain(&connection.bucket, &error);
    let mut parts = Parts { body, rest: Bytes::new() };
    let (first, is_last) = parts.next().await?;
    if is_last {
        return connection.put(key, first, PutMode::Overwrite).await.map_err(failed);
    }
    let options = PutMultipartOptions { tags: connection.tags.clone(), ..Default::default() };
    let begun = connection.store.put_multipart_opts(&path, options).await.map_err(failed)?;
    let mut upload = Upload { multipart: Some(begun), under_way: JoinSet::new() };
    let sent = send(&mut upload, first, &mut parts, &failed).await;
    upload.end(sent.is_ok()).await.map_err(failed).and(sent)
}

async fn send(
    upload: &mut Upload,
    first: Bytes,
    parts: &mut Parts,
    failed: &impl Fn(object_store::Error) -> Error,
) -> Result<()> {
    let (mut part, mut is_last, mut count) = (first, false, 0);
    loop {
        count += 1;
        if count > MAX_PARTS {
            let message = format!("it is larger than {MAX_PARTS} parts of {PART} bytes");
            return Err(Error::new(Code::OutOfRange, message));
        }
        upload.begin(part);
        let room = if is_last { 0 } else { AT_ONCE - 1 };
        while upload.under_way.len() > room {
            match upload.under_way.join_next().await {
                Some(Ok(done)) => done.map_err(failed)?,
                Some(Err(_)) => {
                    return Err(Error::new(Code::Aborted, "the upload of a part was given up"));
                }
                None => {}
            }
        }
        if is_last {
            return Ok(());
        }
        (part, is_last) = parts.next().await?;
    }
}

/// A stream cut into parts of equal length, the last one shorter.
struct Parts {
    body: ByteStream,
    rest: Bytes,
}

impl Parts {
    /// The next part, and whether it is the last.
    async fn next(&mut self) -> Result<(Bytes, bool)> {
        let mut part = BytesMut::new();
        loop {
            let take = self.rest.len().min(PART - part.len());
            if part.len() + take > RESERVE {
                part.reserve(PART - part.len());
            }
            part.extend_from_slice(&self.rest.split_to(take));
            if part.len() == PART && !self.rest.is_empty() {
                return Ok((part.freeze(), false));
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.rest = piece,
                None => return Ok((part.freeze(), true)),
                Some(Err(error)) => {
                    let message = format!("the upload broke off: {error}");
                    return Err(Error::new(Code::Aborted, message));
                }
            }
        }
    }
}

/// An upload that is aborted unless it is completed, also when it is dropped half-way.
struct Upload {
    multipart: Option<Box<dyn MultipartUpload>>,
    under_way: JoinSet<object_store::Result<()>>,
}

impl Upload {
    fn begin(&mut self, part: Bytes) {
        if let Some(multipart) = &mut self.multipart {
            self.under_way.spawn(multipart.put_part(part.into()));
        }
    }

    async fn end(mut self, is_whole: bool) -> object_store::Result<()> {
        let Some(multipart) = &mut self.multipart else { return Ok(()) };
        let ended = if is_whole { multipart.complete().await.map(drop) } else { Ok(()) };
        if is_whole && ended.is_ok() {
            self.multipart = None;
        } else if let Some(aborted) = self.abort_behind() {
            // Goes on even if we are dropped here; and that it failed has been told.
            let _ = aborted.await;
        }
        ended
    }

    fn abort_behind(&mut self) -> Option<JoinHandle<()>> {
        let under_way = std::mem::take(&mut self.under_way);
        let multipart = self.multipart.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(abort(multipart, under_way)))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.abort_behind();
    }
}

/// Drops what was uploaded. A part that arrives after the abort would stay, so those under way are
/// waited for.
async fn abort(
    mut multipart: Box<dyn MultipartUpload>,
    mut under_way: JoinSet<object_store::Result<()>>,
) {
    let ended = async { while under_way.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_PARTS, ended).await.is_err() {
        tracing::warn!("parts of a broken upload are still on their way and may be left");
    }
    if let Err(error) = multipart.abort().await {
        tracing::warn!(%error, "parts of a broken upload may be left in the bucket");
    }
}
