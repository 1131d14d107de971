//! From a writing thread to a stream that is uploaded.
//!
//! Archives and logs are compressed on their own threads, with `Write`; backends read streams. A
//! pipe holds a few pieces and blocks the thread when the upload is slower.
//!
//! # Guarantee
//! A writer that is dropped without [`Writer::finish`], because of an error or a panic, makes the
//! stream end in an error, so that the backend discards the object instead of keeping half of it.

use std::io::{self, Write};

use bowline_plugin::ByteStream;
use bytes::{Bytes, BytesMut};
use futures::stream;
use tokio::sync::mpsc;

/// Size of a piece.
const PIPE_CHUNK: usize = 64 << 10;
/// Number of pieces that the pipe holds.
const PIPE_CAPACITY: usize = 4;

/// A writer, and the stream of the bytes written to it.
///
/// The writer blocks, so it must not be used in async code.
pub fn pipe() -> (Writer, ByteStream) {
    let (sender, receiver) = mpsc::channel(PIPE_CAPACITY);
    let stream = stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(PipeMessage::Piece(piece)) => Some((Ok(piece), Some(receiver))),
            Some(PipeMessage::End) => None,
            None => {
                let error = io::Error::other("the data to upload was not written completely");
                Some((Err(error), None))
            }
        }
    });
    (Writer { sender, buffer: BytesMut::new() }, Box::pin(stream))
}

/// The writing end.
pub struct Writer {
    sender: mpsc::Sender<PipeMessage>,
    buffer: BytesMut,
}

enum PipeMessage {
    Piece(Bytes),
    End,
}

impl Writer {
    /// Marks the content as complete.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(PipeMessage::End)
    }

    fn send(&self, message: PipeMessage) -> io::Result<()> {
        let reader_gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended");
        self.sender.blocking_send(message).map_err(reader_gone)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let accepted = bytes.len().min(PIPE_CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..accepted]);
        if self.buffer.len() == PIPE_CHUNK {
            self.flush()?;
        }
        Ok(accepted)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, BytesMut::with_capacity(PIPE_CHUNK));
        self.send(PipeMessage::Piece(piece.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    #[tokio::test]
    async fn stream_yields_what_was_written_and_ends() {
        let (mut writer, stream) = pipe();
        let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let written = content.clone();
        let thread = std::thread::spawn(move || {
            writer.write_all(&written).unwrap();
            writer.finish()
        });
        let pieces: Vec<Bytes> = stream.try_collect().await.unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(pieces.concat(), content);
    }

    #[tokio::test]
    async fn dropped_writer_ends_the_stream_with_an_error() {
        let (mut writer, stream) = pipe();
        std::thread::spawn(move || writer.write_all(b"half of it"));
        let error = stream.try_collect::<Vec<Bytes>>().await.unwrap_err();
        assert!(error.to_string().contains("was not written completely"), "{error}");
    }

    #[tokio::test]
    async fn writer_fails_when_the_reader_is_gone() {
        let (mut writer, stream) = pipe();
        drop(stream);
        let result =
            std::thread::spawn(move || writer.write_all(&vec![0; 2 * PIPE_CHUNK])).join().unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
