//! A download as something that a thread can read.

use std::io::{self, Read};

use anyhow::{Context as _, anyhow};
use bytes::{Buf as _, Bytes};
use tokio::sync::{mpsc, oneshot};

use super::Body;

/// Pieces that may wait for a slow reader.
const MAX_QUEUED_CHUNKS: usize = 16;

/// What has been downloaded so far, in order. It blocks while nothing has.
#[derive(Debug)]
pub(crate) struct Reader {
    receiver: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Body {
    /// Hands the file to a reader on another thread. What is returned besides downloads while it is
    /// polled, until the end, or until nobody reads any more. If it fails the reader sees an early
    /// end, so that its error counts first.
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

    /// Lets `read` have the file while it is downloaded, and returns what it makes of it. It has a thread
    /// of its own, not one of the runtime's: whoever it writes to may pause for hours and then leave with
    /// Ctrl-C, and nobody waits for this one.
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
        // A download that broke off looks like damage to the one who reads.
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
    /// A reader of these pieces.
    pub(crate) fn from_chunks(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let (sender, receiver) = mpsc::channel(1 << 16);
        for piece in pieces {
            sender.try_send(piece).unwrap();
        }
        Self { receiver, current: Bytes::new() }
    }
}
