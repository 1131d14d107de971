//! Not waiting for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_plugin::{ByteStream, Code, Error, Result};
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout};

/// How long a backend may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A call that moves no data.
    pub metadata: Duration,
    /// A stream, without a byte.
    pub silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { metadata: Duration::from_mins(1), silence: Duration::from_mins(5) }
    }
}

/// Waits for an outcome, for a while.
pub(super) async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(too_late(limit)))
}

/// A stream that ends in an error when nothing comes for a while.
pub(super) fn watch(stream: ByteStream, silence: Duration) -> ByteStream {
    Box::pin(stream::unfold(Some(stream), move |stream| async move {
        let mut stream = stream?;
        match timeout(silence, stream.next()).await {
            Ok(piece) => Some((piece?, Some(stream))),
            Err(_) => Some((Err(io::Error::new(io::ErrorKind::TimedOut, too_late(silence))), None)),
        }
    }))
}

/// What happens at a stream that is uploaded.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// How often something was taken.
    taken: AtomicU64,
    /// Whether the taker waits for the source.
    is_waiting: AtomicBool,
}

/// Notes what is taken from a stream.
pub(super) fn observe(mut stream: ByteStream) -> (ByteStream, Arc<Flow>) {
    let flow = Arc::new(Flow::default());
    let noted = Arc::clone(&flow);
    let observed = stream::poll_fn(move |context| {
        let piece = stream.poll_next_unpin(context);
        noted.is_waiting.store(piece.is_pending(), Ordering::Relaxed);
        noted.taken.fetch_add(u64::from(piece.is_ready()), Ordering::Relaxed);
        piece
    });
    (Box::pin(observed), flow)
}

/// Waits for the outcome of an upload, as long as something is taken from its stream now and then.
///
/// A source that has nothing to give is not held against the backend: a backup may have to wait for
/// its hooks.
pub(super) async fn until_silent<T>(
    upload: impl Future<Output = Result<T>>,
    flow: Arc<Flow>,
    silence: Duration,
) -> Result<T> {
    let watch = async {
        let mut seen = flow.taken.load(Ordering::Relaxed);
        loop {
            sleep_until(Instant::now() + silence).await;
            let now = flow.taken.load(Ordering::Relaxed);
            if now == seen && !flow.is_waiting.load(Ordering::Relaxed) {
                return;
            }
            seen = now;
        }
    };
    tokio::select! {
        outcome = upload => outcome,
        () = watch => Err(too_late(silence)),
    }
}

fn too_late(limit: Duration) -> Error {
    let message = format!("nothing came for {limit:?}; whether it was done is not known");
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
    async fn a_call_is_not_waited_for_beyond_its_deadline() {
        let error = within(LIMIT, std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(within(LIMIT, async { Ok(1) }).await, Ok(1));
    }

    #[tokio::test]
    async fn a_download_that_falls_silent_ends_in_an_error() {
        let mut stream = watch(never(), LIMIT);
        assert_eq!(stream.try_next().await.unwrap().unwrap(), "a");
        assert_eq!(stream.try_next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(stream.try_next().await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_lives_as_long_as_something_is_taken() {
        let slow = stream::iter(0..10).then(|_| async {
            tokio::time::sleep(LIMIT / 8).await;
            Ok(Bytes::from("a"))
        });
        let (mut body, flow) = observe(Box::pin(slow));
        let upload = async {
            while body.try_next().await.unwrap().is_some() {}
            Ok(())
        };
        until_silent(upload, flow, LIMIT).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_takes_nothing_is_silent_and_a_source_that_gives_nothing_is_not() {
        let late = stream::once(async {
            tokio::time::sleep(LIMIT * 5).await;
            Ok(Bytes::from("a"))
        });
        let (mut body, flow) = observe(Box::pin(late));
        let upload = async {
            while body.try_next().await.unwrap().is_some() {}
            Ok(())
        };
        until_silent(upload, flow, LIMIT).await.unwrap();

        let (mut body, flow) = observe(never());
        let stuck = async {
            body.try_next().await.unwrap();
            std::future::pending::<Result<()>>().await
        };
        let error = until_silent(stuck, flow, LIMIT).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
    }
}
