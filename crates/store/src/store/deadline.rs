//! Timeouts for calls and streams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_plugin::{ByteStream, Code, Error, Result};
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout};

/// Timeouts of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Limit of a call that moves no data.
    pub metadata: Duration,
    /// Longest time that a stream may pass without a byte.
    pub idle_timeout: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { metadata: Duration::from_mins(1), idle_timeout: Duration::from_mins(5) }
    }
}

/// Awaits an outcome, with a timeout.
pub(super) async fn with_timeout<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(timeout_error(limit)))
}

/// A stream that ends in an error when no piece arrives within `idle_timeout`.
pub(super) fn fail_when_idle(stream: ByteStream, idle_timeout: Duration) -> ByteStream {
    Box::pin(stream::unfold(Some(stream), move |stream| async move {
        let mut stream = stream?;
        match timeout(idle_timeout, stream.next()).await {
            Ok(piece) => Some((piece?, Some(stream))),
            Err(_) => Some((
                Err(io::Error::new(io::ErrorKind::TimedOut, timeout_error(idle_timeout))),
                None,
            )),
        }
    }))
}

/// Activity of a stream that is being uploaded.
#[derive(Debug, Default)]
pub(super) struct UploadActivity {
    /// Number of pieces that the backend has read.
    pieces_taken: AtomicU64,
    /// True while the backend waits for the source.
    is_waiting_for_source: AtomicBool,
}

/// Records the reads from a stream.
pub(super) fn observe_reads(mut stream: ByteStream) -> (ByteStream, Arc<UploadActivity>) {
    let activity = Arc::new(UploadActivity::default());
    let observer = Arc::clone(&activity);
    let observed = stream::poll_fn(move |context| {
        let piece = stream.poll_next_unpin(context);
        observer.is_waiting_for_source.store(piece.is_pending(), Ordering::Relaxed);
        observer.pieces_taken.fetch_add(u64::from(piece.is_ready()), Ordering::Relaxed);
        piece
    });
    (Box::pin(observed), activity)
}

/// Awaits the outcome of an upload, as long as the backend keeps reading from its stream.
///
/// A source that has no data ready does not count against the backend: a backup may have to wait
/// for its hooks.
pub(super) async fn await_unless_idle<T>(
    upload: impl Future<Output = Result<T>>,
    activity: Arc<UploadActivity>,
    idle_timeout: Duration,
) -> Result<T> {
    let watch = async {
        let mut last_seen = activity.pieces_taken.load(Ordering::Relaxed);
        loop {
            sleep_until(Instant::now() + idle_timeout).await;
            let now = activity.pieces_taken.load(Ordering::Relaxed);
            if now == last_seen && !activity.is_waiting_for_source.load(Ordering::Relaxed) {
                return;
            }
            last_seen = now;
        }
    };
    tokio::select! {
        outcome = upload => outcome,
        () = watch => Err(timeout_error(idle_timeout)),
    }
}

fn timeout_error(limit: Duration) -> Error {
    let message = format!("no data for {limit:?}; the outcome is unknown");
    Error::new(Code::DeadlineExceeded, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::TryStreamExt as _;

    const LIMIT: Duration = Duration::from_millis(400);

    fn never() -> ByteStream {
        Box::pin(stream::iter([Ok(Bytes::from("a"))]).chain(stream::pending()))
    }

    #[tokio::test]
    async fn call_fails_after_its_deadline() {
        let error = with_timeout(LIMIT, std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(with_timeout(LIMIT, async { Ok(1) }).await, Ok(1));
    }

    #[tokio::test]
    async fn idle_download_ends_in_an_error() {
        let mut stream = fail_when_idle(never(), LIMIT);
        assert_eq!(stream.try_next().await.unwrap().unwrap(), "a");
        assert_eq!(stream.try_next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(stream.try_next().await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn upload_continues_as_long_as_data_is_read() {
        let slow = stream::iter(0..10).then(|_| async {
            tokio::time::sleep(LIMIT / 8).await;
            Ok(Bytes::from("a"))
        });
        let (mut body, flow) = observe_reads(Box::pin(slow));
        let upload = async {
            while body.try_next().await.unwrap().is_some() {}
            Ok(())
        };
        await_unless_idle(upload, flow, LIMIT).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn upload_times_out_when_the_backend_stalls_but_not_when_the_source_does() {
        let late = stream::once(async {
            tokio::time::sleep(LIMIT * 5).await;
            Ok(Bytes::from("a"))
        });
        let (mut body, flow) = observe_reads(Box::pin(late));
        let upload = async {
            while body.try_next().await.unwrap().is_some() {}
            Ok(())
        };
        await_unless_idle(upload, flow, LIMIT).await.unwrap();

        let (mut body, flow) = observe_reads(never());
        let stuck = async {
            body.try_next().await.unwrap();
            std::future::pending::<Result<()>>().await
        };
        let error = await_unless_idle(stuck, flow, LIMIT).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
    }
}
