//! From full members to the stream that is uploaded, and to the index.
//!
//! Members are compressed side by side, on several cores, and uploaded in the order in which they were sent. The
//! stream is also what limits the memory: a member that is sent waits until a compressor is free, and compressed
//! members wait until the upload takes them.

use std::io;
use std::sync::Arc;

use bowline_plugin::ByteStream;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::member::MemberBuffer;
use crate::archive_index::{IndexBuilder, ItemKey, LeafEntry, Sha256Digest, sha256};
use crate::compression::{CompressionMode, GzipCompressors};

/// Number of bytes that the upload receives at a time.
const PIECE_BYTES: usize = 256 << 10;

/// What goes into the stream.
#[derive(Debug)]
pub(in crate::backup) enum Message {
    /// A member to compress.
    Member(MemberBuffer),
    /// A member of an earlier archive, as it is.
    Compressed(CompressedMember),
    /// The last member.
    End(MemberBuffer),
    /// The last member, of an earlier archive.
    CompressedEnd(CompressedMember),
    /// The archive ends with an error.
    Abort,
}

/// A member as it is uploaded.
#[derive(Debug)]
pub(in crate::backup) struct CompressedMember {
    pub(in crate::backup) gzip: Bytes,
    pub(in crate::backup) sha256: Sha256Digest,
    /// Length when decompressed.
    pub(in crate::backup) unpacked: usize,
    /// Number of items.
    pub(in crate::backup) items: usize,
    /// The items to add to the index. Those of an earlier archive are added from its index.
    pub(in crate::backup) keys: Vec<ItemKey>,
}

/// What is known of the archive so far.
pub(in crate::backup) struct ArchiveState {
    pub(in crate::backup) index: IndexBuilder,
    /// True once the last member is in the stream.
    pub(in crate::backup) is_complete: bool,
}

/// A message, with what follows from it for the stream.
struct Step {
    message: Message,
    is_last: bool,
}

/// The stream of an archive: it ends in an error unless [`Message::End`] is sent, so that nothing is kept of an
/// archive that is not complete.
pub(super) fn of_members(
    receiver: mpsc::Receiver<Message>,
    compression: CompressionMode,
    state: Arc<Mutex<ArchiveState>>,
) -> ByteStream {
    let messages = stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        let Some(message) = receiver.recv().await else {
            let error = io::Error::other("the archive was not written completely");
            return Some((Err(error), None));
        };
        match message {
            Message::Abort => Some((Err(io::Error::other("the archive was aborted")), None)),
            Message::Member(_) | Message::Compressed(_) => {
                Some((Ok(Step { message, is_last: false }), Some(receiver)))
            }
            Message::End(_) | Message::CompressedEnd(_) => {
                Some((Ok(Step { message, is_last: true }), None))
            }
        }
    });
    let compressors = Arc::new(GzipCompressors::default());
    let compressed = messages
        .map(move |step| compress(step, compression, Arc::clone(&compressors)))
        .buffered(compression.workers());
    let pieces = compressed.map(move |step| {
        let (member, is_last) = step?;
        let mut state = state.lock();
        record(&mut state.index, &member)?;
        state.is_complete = is_last;
        Ok::<_, io::Error>(stream::iter(pieces_of(member.gzip).map(Ok)))
    });
    Box::pin(pieces.try_flatten())
}

async fn compress(
    step: io::Result<Step>,
    compression: CompressionMode,
    compressors: Arc<GzipCompressors>,
) -> io::Result<(CompressedMember, bool)> {
    let Step { message, is_last } = step?;
    let buffer = match message {
        Message::Member(buffer) | Message::End(buffer) => buffer,
        Message::Compressed(member) | Message::CompressedEnd(member) => {
            return Ok((member, is_last));
        }
        Message::Abort => return Err(io::Error::other("the archive was aborted")),
    };
    let (tar, keys) = buffer.into_parts();
    let (unpacked, items) = (tar.len(), keys.len());
    let job = move || {
        let gzip = compressors.compress(&tar)?;
        Ok((sha256(&gzip), Bytes::from(gzip)))
    };
    let (sha256, gzip) = compression.run(job).await?;
    Ok((CompressedMember { gzip, sha256, unpacked, items, keys }, is_last))
}

fn record(index: &mut IndexBuilder, member: &CompressedMember) -> io::Result<()> {
    let CompressedMember { gzip, sha256, unpacked, items, keys } = member;
    let number = index.add_member(gzip.len(), *unpacked, *items, *sha256);
    for key in keys {
        index.add_entry(LeafEntry { key: *key, member: number })?;
    }
    Ok(())
}

fn pieces_of(mut content: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let piece = content.split_to(content.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    })
}
