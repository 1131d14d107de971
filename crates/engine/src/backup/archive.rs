//! The archive: a compressed tar of JSON files, written by a thread of its own.
//!
//! Items arrive from many tasks through a channel and leave as a stream that is uploaded while it is written. The
//! amount in flight is bounded: a task that appends waits when the upload is slower.
//!
//! Velero writes an item twice when it is in the version that the API server prefers: once without a version in its
//! path, for readers that know one version only.

use std::io;
use std::thread::JoinHandle;

use bowline_plugin::{ByteStream, Item};
use bowline_store::pipe;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::item::Object;
use crate::resource::Resource;

/// Version of the archive format, in `metadata/version` and in the status of backups.
pub const FORMAT_VERSION: &str = "1.1.0";

/// Number of items that wait for the thread.
const QUEUE_CAPACITY: usize = 64;
/// The mode of all files.
const FILE_MODE: u32 = 0o755;
/// Compression level. Every item is stored twice, so compression takes more time than everything else together; the
/// default level takes a third longer for a tenth less.
const COMPRESSION_LEVEL: Compression = Compression::new(4);
/// Size of a tar header, and the unit of contents.
const BLOCK_SIZE: usize = 512;
/// Length of the name in a header. Longer paths are divided, or have a header of their own.
const MAX_PLAIN_NAME: usize = 100;
/// Suffix of the preferred version's folder.
const PREFERRED_VERSION_SUFFIX: &str = "-preferredversion";

/// Sender of items to the archive's thread.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    entries: mpsc::Sender<Message>,
}

#[derive(Debug)]
enum Message {
    Entry(Entry),
    Abort,
}

#[derive(Debug)]
pub(super) struct Entry {
    paths: [String; 2],
    item: Item,
    /// Its share of the in-flight budget.
    _budget: Option<OwnedSemaphorePermit>,
}

/// The archive accepts no more items: writing or uploading it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the archive can no longer be written")]
pub(super) struct ArchiveClosed;

/// The thread that writes the archive.
#[derive(Debug)]
pub(super) struct ArchiveWriter {
    thread: JoinHandle<io::Result<SealedArchive>>,
}

/// An archive that was written completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedArchive {
    /// Number of items.
    pub items: usize,
    /// Compressed size.
    pub bytes: u64,
}

impl Entry {
    /// An item in the version in which it was read. Actions may have changed it since, but not the version in its
    /// path.
    pub(super) fn new(object: &Object, budget: Option<OwnedSemaphorePermit>) -> Self {
        let Object { resource, namespace, name, item, .. } = object;
        Self { paths: paths(resource, namespace, name), item: item.clone(), _budget: budget }
    }
}

/// Both paths of an item in the preferred version; every item is read in that version.
pub(super) fn paths(resource: &Resource, namespace: &str, name: &str) -> [String; 2] {
    let rest = match namespace {
        "" => format!("cluster/{name}.json"),
        namespace => format!("namespaces/{namespace}/{name}.json"),
    };
    let folder = format!("resources/{}", resource.id);
    [
        format!("{folder}/{rest}"),
        format!("{folder}/{}{PREFERRED_VERSION_SUFFIX}/{rest}", resource.version),
    ]
}

/// Starts an archive. It ends when all clones of the [`Archive`] are dropped.
pub(super) fn start(now: Timestamp) -> io::Result<(Archive, ByteStream, ArchiveWriter)> {
    let (entries, receiver) = mpsc::channel(QUEUE_CAPACITY);
    let (writer, stream) = pipe::pipe();
    let thread = std::thread::Builder::new()
        .name("archive".to_owned())
        .spawn(move || write(receiver, writer, now))?;
    Ok((Archive { entries }, stream, ArchiveWriter { thread }))
}

impl Archive {
    pub(super) async fn append(&self, entry: Entry) -> Result<(), ArchiveClosed> {
        self.entries.send(Message::Entry(entry)).await.map_err(|_| ArchiveClosed)
    }

    /// Ends the archive with an error, so that nothing of it is kept.
    pub(super) async fn abort(&self) {
        // A closed channel means that the archive has already been aborted.
        let _ = self.entries.send(Message::Abort).await;
    }
}

impl ArchiveWriter {
    /// Waits for the end of the archive.
    pub(super) async fn finish(self) -> io::Result<SealedArchive> {
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await;
        match joined {
            Ok(Ok(sealed)) => sealed,
            _ => Err(io::Error::other("the thread that writes the archive has died")),
        }
    }
}

fn write(
    mut entries: mpsc::Receiver<Message>,
    writer: pipe::Writer,
    now: Timestamp,
) -> io::Result<SealedArchive> {
    let mut tar = builder(CountingWriter { writer, bytes: 0 });
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    append(&mut tar, "metadata/version", format!("{FORMAT_VERSION}\n").as_bytes(), seconds)?;
    let mut items = 0;
    while let Some(message) = entries.blocking_recv() {
        let Message::Entry(entry) = message else {
            return Err(io::Error::other("the archive was aborted"));
        };
        for path in &entry.paths {
            append(&mut tar, path, entry.item.json(), seconds)?;
        }
        items += 1;
    }
    let counted = tar.into_inner()?.finish()?;
    counted.writer.finish()?;
    Ok(SealedArchive { items, bytes: counted.bytes })
}

/// A builder of an archive that is written to `into`.
pub(super) fn builder<W: io::Write>(into: W) -> tar::Builder<GzEncoder<W>> {
    tar::Builder::new(GzEncoder::new(into, COMPRESSION_LEVEL))
}

/// Appends a file to an archive.
pub(super) fn append(
    tar: &mut tar::Builder<impl io::Write>,
    path: &str,
    content: &[u8],
    seconds: u64,
) -> io::Result<()> {
    let mut header = header(content.len() as u64, seconds);
    if !has_plain_name(path) {
        return tar.append_data(&mut header, path, content);
    }
    // What `append_data` writes, without taking the path apart and without a copy of the content: that is several
    // percent of the time of a backup.
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    let into = tar.get_mut();
    into.write_all(header.as_bytes())?;
    into.write_all(content)?;
    into.write_all(&[0; BLOCK_SIZE][..content.len().next_multiple_of(BLOCK_SIZE) - content.len()])
}

/// True if a path fits into a header as it is.
fn has_plain_name(path: &str) -> bool {
    let is_plain = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    path.len() <= MAX_PLAIN_NAME && path.split('/').all(is_plain)
}

/// Appends a file of a known size from a reader.
pub(super) fn append_from(
    tar: &mut tar::Builder<impl io::Write>,
    path: &str,
    size: u64,
    content: impl io::Read,
    seconds: u64,
) -> io::Result<()> {
    tar.append_data(&mut header(size, seconds), path, content)
}

fn header(size: u64, seconds: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(FILE_MODE);
    header.set_mtime(seconds);
    header
}

/// Counts the bytes written.
struct CountingWriter {
    writer: pipe::Writer,
    bytes: u64,
}

impl io::Write for CountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_the_same_for_plain_and_other_names() {
        let long = format!("resources/pods/namespaces/{}/{}.json", "n".repeat(63), "p".repeat(200));
        for path in ["metadata/version", "resources/pods/v1/p.json", &"x".repeat(100), &long] {
            for content in [&b""[..], b"{}", &[b'a'; 512], &[b'b'; 5000]] {
                let (mut ours, mut theirs) =
                    (tar::Builder::new(Vec::new()), tar::Builder::new(Vec::new()));
                append(&mut ours, path, content, 7).unwrap();
                append_from(&mut theirs, path, content.len() as u64, content, 7).unwrap();
                assert_eq!(ours.into_inner().unwrap(), theirs.into_inner().unwrap(), "{path}");
            }
        }
        for path in ["../x", "a/../b", "/a"] {
            assert!(!has_plain_name(path), "{path}");
        }
    }
}
