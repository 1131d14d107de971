//! From a thread that writes to a stream that is uploaded.
//!
//! Archives and logs are compressed on threads of their own, with `Write`; backends take streams.
//! A pipe holds a few pieces and makes the thread wait when the upload is slower.
//!
//! # Guarantee
//! A writer that is dropped without [`Writer::finish`], because of an error or a panic, makes the
//! stream end in an error, so that the backend drops the object instead of keeping half of it.

use std::io::{self, Write};

use bowline_plugin::ByteStream;
use bytes::{Bytes, BytesMut};
use futures::stream;
use tokio::sync::mpsc;

/// How large the pieces are that go through.
const PIECE: usize = 64 << 10;
/// How many may wait.
const WAITING: usize = 4;

/// A writer, and the stream of what is written to it.
///
/// The writer blocks, so it must not be used by async code.
pub fn pipe() -> (Writer, ByteStream) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let stream = stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Message::Piece(piece)) => Some((Ok(piece), Some(receiver))),
            Some(Message::End) => None,
            None => {
                let error = io::Error::other("what was to be uploaded was not written to its end");
                Some((Err(error), None))
            }
        }
    });
    (Writer { sender, buffer: BytesMut::new() }, Box::pin(stream))
}

/// The writing end.
pub struct Writer {
    sender: mpsc::Sender<Message>,
    buffer: BytesMut,
}

enum Message {
    Piece(Bytes),
    End,
}

impl Writer {
    /// Says that all has been written.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Message::End)
    }

    fn send(&self, message: Message) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended");
        self.sender.blocking_send(message).map_err(gone)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PIECE {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, BytesMut::with_capacity(PIECE));
        self.send(Message::Piece(piece.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    #[tokio::test]
    async fn what_is_written_comes_out_and_ends() {
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
    async fn a_writer_that_gives_up_breaks_the_stream() {
        let (mut writer, stream) = pipe();
        std::thread::spawn(move || writer.write_all(b"half of it"));
        let error = stream.try_collect::<Vec<Bytes>>().await.unwrap_err();
        assert!(error.to_string().contains("not written to its end"), "{error}");
    }

    #[tokio::test]
    async fn a_writer_learns_that_nobody_reads() {
        let (mut writer, stream) = pipe();
        drop(stream);
        let result =
            std::thread::spawn(move || writer.write_all(&vec![0; 2 * PIECE])).join().unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
