//! Uploads of unknown length, in constant memory.

use std::time::Duration;

use bowline_plugin::{ByteStream, Code, Error, Result};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use object_store::{MultipartUpload, ObjectStore as _, PutMode, PutMultipartOptions};
use tokio::task::{JoinHandle, JoinSet};

use super::connection::{Connection, path};
use super::error::user_error;

/// Minimum size of a part in S3.
const PART_SIZE: usize = 5 << 20;
/// Maximum number of parts in S3.
const MAX_PARTS: usize = 10_000;
/// A longer object is likely to fill a part.
const RESERVE_THRESHOLD: usize = 1 << 20;
/// Number of parts that are uploaded concurrently.
const CONCURRENT_PARTS: usize = 2;
/// Time limit of the wait for the last parts of a broken upload.
const ABORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Stores an object completely: with one request if it is small, otherwise in parts that become an
/// object only at the end.
pub(super) async fn upload_stream(
    connection: &Connection,
    key: &str,
    body: ByteStream,
) -> Result<()> {
    let path = path(key)?;
    let failed = |error| user_error(&connection.bucket, &error);
    let mut parts = PartReader { body, pending: Bytes::new() };
    let (first, is_last) = parts.next_part().await?;
    if is_last {
        return connection.put(key, first, PutMode::Overwrite).await.map_err(failed);
    }
    let options = PutMultipartOptions { tags: connection.tags.clone(), ..Default::default() };
    let multipart = connection.store.put_multipart_opts(&path, options).await.map_err(failed)?;
    let mut upload = MultipartUploadGuard { multipart: Some(multipart), in_flight: JoinSet::new() };
    let sent = send_parts(&mut upload, first, &mut parts, &failed).await;
    upload.finish(sent.is_ok()).await.map_err(failed).and(sent)
}

async fn send_parts(
    upload: &mut MultipartUploadGuard,
    first: Bytes,
    parts: &mut PartReader,
    failed: &impl Fn(object_store::Error) -> Error,
) -> Result<()> {
    let (mut part, mut is_last, mut count) = (first, false, 0);
    loop {
        count += 1;
        if count > MAX_PARTS {
            let message = format!("the file is larger than {MAX_PARTS} parts of {PART_SIZE} bytes");
            return Err(Error::new(Code::OutOfRange, message));
        }
        upload.start_part(part);
        let max_in_flight = if is_last { 0 } else { CONCURRENT_PARTS - 1 };
        while upload.in_flight.len() > max_in_flight {
            match upload.in_flight.join_next().await {
                Some(Ok(done)) => done.map_err(failed)?,
                Some(Err(_)) => {
                    return Err(Error::new(Code::Aborted, "the upload of a part was aborted"));
                }
                None => {}
            }
        }
        if is_last {
            return Ok(());
        }
        (part, is_last) = parts.next_part().await?;
    }
}

/// A stream cut into parts of equal length, the last one shorter.
struct PartReader {
    body: ByteStream,
    pending: Bytes,
}

impl PartReader {
    /// The next part, and true if it is the last.
    async fn next_part(&mut self) -> Result<(Bytes, bool)> {
        let mut part = BytesMut::new();
        loop {
            let length = self.pending.len().min(PART_SIZE - part.len());
            if part.len() + length > RESERVE_THRESHOLD {
                part.reserve(PART_SIZE - part.len());
            }
            part.extend_from_slice(&self.pending.split_to(length));
            if part.len() == PART_SIZE && !self.pending.is_empty() {
                return Ok((part.freeze(), false));
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.pending = piece,
                None => return Ok((part.freeze(), true)),
                Some(Err(error)) => {
                    let message = format!("the upload was aborted: {error}");
                    return Err(Error::new(Code::Aborted, message));
                }
            }
        }
    }
}

/// An upload that is aborted unless it is completed, also when it is dropped halfway.
struct MultipartUploadGuard {
    multipart: Option<Box<dyn MultipartUpload>>,
    in_flight: JoinSet<object_store::Result<()>>,
}

impl MultipartUploadGuard {
    fn start_part(&mut self, part: Bytes) {
        if let Some(multipart) = &mut self.multipart {
            self.in_flight.spawn(multipart.put_part(part.into()));
        }
    }

    async fn finish(mut self, is_complete: bool) -> object_store::Result<()> {
        let Some(multipart) = &mut self.multipart else { return Ok(()) };
        let ended = if is_complete { multipart.complete().await.map(drop) } else { Ok(()) };
        if is_complete && ended.is_ok() {
            self.multipart = None;
        } else if let Some(aborted) = self.abort_in_background() {
            // The abort continues even if this future is dropped here; its failure has been
            // reported.
            let _ = aborted.await;
        }
        ended
    }

    fn abort_in_background(&mut self) -> Option<JoinHandle<()>> {
        let under_way = std::mem::take(&mut self.in_flight);
        let multipart = self.multipart.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(abort(multipart, under_way)))
    }
}

impl Drop for MultipartUploadGuard {
    fn drop(&mut self) {
        self.abort_in_background();
    }
}

/// Discards the uploaded parts. A part that arrives after the abort would remain, so parts in
/// flight are awaited.
async fn abort(
    mut multipart: Box<dyn MultipartUpload>,
    mut in_flight: JoinSet<object_store::Result<()>>,
) {
    let ended = async { while in_flight.join_next().await.is_some() {} };
    if tokio::time::timeout(ABORT_TIMEOUT, ended).await.is_err() {
        tracing::warn!("parts of an aborted upload are still being sent and may be left over");
    }
    if let Err(error) = multipart.abort().await {
        tracing::warn!(%error, "parts of an aborted upload may be left over in the bucket");
    }
}
