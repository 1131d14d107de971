//! A download as a blocking reader for a thread.

use std::io::{self, Read};

use anyhow::{Context as _, anyhow};
use bytes::{Buf as _, Bytes};
use tokio::sync::{mpsc, oneshot};

use super::Body;

/// Chunks that may wait for a slow reader.
const MAX_QUEUED_CHUNKS: usize = 16;

/// Downloaded bytes in order. Blocks while there are none.
#[derive(Debug)]
pub(crate) struct Reader {
    receiver: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Body {
    /// Passes the file to a reader on another thread. The returned future downloads while it is polled, until the end,
    /// or until the reader is dropped. If it fails, the reader sees an early end, so the download's error must be
    /// checked first.
    pub(crate) fn into_reader(mut self) -> (Reader, impl Future<Output = anyhow::Result<()>>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let download = async move {
            while let Some(piece) = self.next().await? {
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        (Reader { receiver, current: Bytes::new() }, download)
    }

    /// Runs `read` on the file while it is downloaded, and returns its result. `read` has its own thread, not one of
    /// the runtime's: the receiver of its output may pause for hours and then end with Ctrl-C, and the process must not
    /// wait for this thread.
    pub(crate) async fn read_in_thread<T: Send + 'static>(
        self,
        thread_name: &str,
        read: impl FnOnce(Reader) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (reader, download) = self.into_reader();
        let (done, result) = oneshot::channel();
        std::thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn(move || {
                let _ = done.send(read(reader));
            })
            .context("cannot start a thread")?;
        let downloaded = download.await;
        let result = result.await;
        // A download that broke off looks like a damaged file to the reader.
        downloaded?;
        result.unwrap_or_else(|_| Err(anyhow!("the file was not read completely")))
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
impl Reader {
    /// Reader of these chunks.
    pub(crate) fn from_chunks(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let (sender, receiver) = mpsc::channel(1 << 16);
        for piece in pieces {
            sender.try_send(piece).unwrap();
        }
        Self { receiver, current: Bytes::new() }
    }
}
