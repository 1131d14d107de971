//! Object stores in a process. Streams have no limit in total, but one on silence.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bowline_plugin_wire::{Connection, client};
use futures::StreamExt as _;

use super::Handle;
use crate::slot::{Call, Session};

/// For streams, which are supervised while they last.
const NO_LIMIT: Duration = Duration::MAX;

impl Handle {
    fn object_store(&self, connection: Connection) -> client::ObjectStore {
        client::ObjectStore::new(connection, self.name.clone())
    }
}

#[async_trait]
impl ObjectStore for Handle {
    async fn init(&self, config: &Config) -> Result<()> {
        self.require_config(config)?;
        self.slot.open_session(false).await.map(drop)
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        let call = Call { method: "PutObject", limit: NO_LIMIT, is_work: true };
        let session = self.slot.open_session(call.is_work).await?;
        let source = Arc::new(UploadSource::default());
        let body = watch_source(body, Arc::clone(&source));
        let put = session.call(call, |connection| async move {
            self.object_store(connection).put_object(bucket, key, body).await
        });
        let silence = self.limits().stream_silence;
        tokio::select! {
            outcome = put => outcome,
            culprit = wait_until_silent(&source, silence) => Err(match culprit {
                SilentParty::Plugin => session.no_answer_error(Call { limit: silence, ..call }),
                SilentParty::Source => {
                    let text = format!("no data to upload for object {key} for {} s", silence.as_secs_f32());
                    Error::new(Code::DeadlineExceeded, text)
                }
            }),
        }
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        let call = |connection| async move {
            self.object_store(connection).object_exists(bucket, key).await
        };
        self.slot.call(self.metadata_call("ObjectExists"), call).await
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        let call = Call { is_work: true, ..self.metadata_call("GetObject") };
        let mut session = self.slot.open_session(call.is_work).await?;
        let get =
            |connection| async move { self.object_store(connection).get_object(bucket, key).await };
        let stream = session.call(call, get).await?;
        session.release_permit();
        Ok(fail_when_silent(stream, session, Call { limit: self.limits().stream_silence, ..call }))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let call = |connection| async move {
            self.object_store(connection).list_common_prefixes(bucket, prefix, delimiter).await
        };
        self.slot.call(self.metadata_call("ListCommonPrefixes"), call).await
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let call = |connection| async move {
            self.object_store(connection).list_objects(bucket, prefix).await
        };
        self.slot.call(self.metadata_call("ListObjects"), call).await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        let call = |connection| async move {
            self.object_store(connection).delete_object(bucket, key).await
        };
        self.slot.call(self.metadata_call("DeleteObject"), call).await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        let call = |connection| async move {
            self.object_store(connection).create_signed_url(bucket, key, ttl).await
        };
        self.slot.call(self.metadata_call("CreateSignedURL"), call).await
    }
}

/// Activity of the body of an upload.
#[derive(Default)]
struct UploadSource {
    /// Number of pieces that the body has provided.
    pieces: AtomicU64,
    /// True while the plugin waits for a piece.
    is_waited_for: AtomicBool,
}

/// The side that has been silent.
enum SilentParty {
    Source,
    Plugin,
}

/// Records the pieces that the body provides and the requests for them.
fn watch_source(mut body: ByteStream, source: Arc<UploadSource>) -> ByteStream {
    Box::pin(futures::stream::poll_fn(move |context| {
        let piece = body.poll_next_unpin(context);
        source.is_waited_for.store(piece.is_pending(), Ordering::Relaxed);
        if piece.is_ready() {
            source.pieces.fetch_add(1, Ordering::Relaxed);
        }
        piece
    }))
}

/// Returns when no piece has moved for a while, with the side responsible.
async fn wait_until_silent(source: &UploadSource, silence: Duration) -> SilentParty {
    loop {
        let before = source.pieces.load(Ordering::Relaxed);
        tokio::time::sleep(silence).await;
        if source.pieces.load(Ordering::Relaxed) == before {
            let waits = source.is_waited_for.load(Ordering::Relaxed);
            return if waits { SilentParty::Source } else { SilentParty::Plugin };
        }
    }
}

/// The stream, ended by an error when it is silent for too long or its process dies. The process is
/// kept running while the stream lasts.
fn fail_when_silent(stream: ByteStream, session: Session, call: Call) -> ByteStream {
    let state = Some((stream, session));
    Box::pin(futures::stream::unfold(state, move |state| async move {
        let (mut stream, session) = state?;
        match tokio::time::timeout(call.limit, stream.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((stream, session)))),
            Ok(Some(Err(error))) => {
                Some((Err(explain_stream_error(&session, call, error).await), None))
            }
            Err(_) => Some((Err(io::Error::other(session.no_answer_error(call))), None)),
        }
    }))
}

async fn explain_stream_error(session: &Session, call: Call, error: io::Error) -> io::Error {
    match error.downcast::<Error>() {
        Ok(error) => io::Error::other(session.explain_error(call, error).await),
        Err(error) => error,
    }
}
