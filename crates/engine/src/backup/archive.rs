//! The archive: a tar of JSON files, as a sequence of gzip members.
//!
//! A member holds about a megabyte of whole items, and can be decompressed alone. All members one after the other are
//! one `.tar.gz`. Each list fills a member of its own (`Archive::for_list`), so that neighbours resemble each other,
//! which compresses better. What ends before its member is full goes to a common one: hundreds of lists with a single
//! object do not make hundreds of members. Full members are compressed on several cores, and uploaded while others
//! are filled; the [index](crate::archive_index) of the members is written at the end.
//!
//! The memory is bounded: by the number of lists at a time, by the compressors, and by a task that appends and waits
//! when the upload is slower.

mod member;
mod stream;

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bowline_plugin::{ByteStream, Item};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::archive_index::{IndexBuilder, IndexFile};
use crate::compression::CompressionMode;
use crate::item::Object;
use crate::resource::Resource;
use crate::unpack::UnpackedSize;
pub(super) use member::{MEMBER_BYTES, MemberBuffer};
pub(super) use stream::{ArchiveState, CompressedMember, Message};

/// Version of the archive format, in `metadata/version` and in the status of backups.
pub const FORMAT_VERSION: &str = "1.1.0";

/// Number of full members that wait for a compressor.
const QUEUE_CAPACITY: usize = 1;
/// A list that ends with a smaller member adds it to the common one.
const MIN_LAST_MEMBER_BYTES: usize = MEMBER_BYTES / 2;
/// The folder of all items.
pub(super) const ITEMS_FOLDER: &str = "resources/";
/// Suffix of the preferred version's folder.
const PREFERRED_VERSION_SUFFIX: &str = "-preferredversion";

/// An archive that is being written. Clones fill the same member.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    members: mpsc::Sender<Message>,
    /// The member of a list.
    own: Option<Arc<ListBuffer>>,
    /// The member of everything else.
    common: Arc<Mutex<MemberBuffer>>,
    /// The modification time of all files.
    seconds: u64,
    /// What a restore of the items so far needs.
    size: Arc<Mutex<UnpackedSize>>,
}

/// The member that a list fills.
#[derive(Debug)]
struct ListBuffer {
    buffer: Mutex<MemberBuffer>,
    common: Arc<Mutex<MemberBuffer>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    paths: [String; 2],
    item: Item,
    /// Length of its namespace and its name.
    name_bytes: usize,
    /// Its share of the in-flight budget.
    _budget: Option<OwnedSemaphorePermit>,
}

/// The archive accepts no more items: writing or uploading it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the archive can no longer be written")]
pub(super) struct ArchiveClosed;

/// What an archive becomes when it is complete.
pub(super) struct ArchiveWriter {
    state: Arc<Mutex<ArchiveState>>,
    compression: CompressionMode,
}

/// An archive that was written completely.
#[derive(Clone, Debug)]
pub struct SealedArchive {
    /// Number of items.
    pub items: usize,
    /// Compressed size.
    pub bytes: u64,
    /// The index, unless the archive is too large for one.
    pub(crate) index: Option<IndexFile>,
}

impl Entry {
    /// An item in the version in which it was read. Actions may have changed it since, but not the version in its
    /// path.
    pub(super) fn new(object: &Object, budget: Option<OwnedSemaphorePermit>) -> Self {
        let Object { resource, namespace, name, item, .. } = object;
        let name_bytes = namespace.len() + name.len();
        let paths = paths(resource, namespace, name);
        Self { paths, item: item.clone(), name_bytes, _budget: budget }
    }
}

/// Both paths of an item in the preferred version; every item is read in that version.
pub(super) fn paths(resource: &Resource, namespace: &str, name: &str) -> [String; 2] {
    let rest = match namespace {
        "" => format!("cluster/{name}.json"),
        namespace => format!("namespaces/{namespace}/{name}.json"),
    };
    let folder = format!("{ITEMS_FOLDER}{}", resource.id);
    [
        format!("{folder}/{rest}"),
        format!("{folder}/{}{PREFERRED_VERSION_SUFFIX}/{rest}", resource.version),
    ]
}

/// The path of an item without the folder of its version.
pub(super) fn path_without_version(path: &str) -> Cow<'_, str> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["resources", resource, _, "cluster", name] => {
            format!("{ITEMS_FOLDER}{resource}/cluster/{name}").into()
        }
        ["resources", resource, _, "namespaces", namespace, name] => {
            format!("{ITEMS_FOLDER}{resource}/namespaces/{namespace}/{name}").into()
        }
        _ => path.into(),
    }
}

/// Starts an archive, which is complete after [`Archive::finish`].
pub(super) fn start(
    now: Timestamp,
    scratch: &Path,
    compression: CompressionMode,
) -> io::Result<(Archive, ByteStream, ArchiveWriter)> {
    let (members, stream, writer) = start_members(scratch, compression)?;
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    // In a member of its own, so that it comes first.
    let mut version = MemberBuffer::default();
    version.append_file("metadata/version", format!("{FORMAT_VERSION}\n").as_bytes(), seconds)?;
    // There is room for the first message.
    let _ = members.try_send(Message::Member(version));
    let (common, size) = Default::default();
    Ok((Archive { members, own: None, common, seconds, size }, stream, writer))
}

/// Starts an archive of members that the caller fills.
pub(super) fn start_members(
    scratch: &Path,
    compression: CompressionMode,
) -> io::Result<(mpsc::Sender<Message>, ByteStream, ArchiveWriter)> {
    let (members, receiver) = mpsc::channel(QUEUE_CAPACITY);
    let state = ArchiveState { index: IndexBuilder::create(scratch)?, is_complete: false };
    let state = Arc::new(Mutex::new(state));
    let stream = stream::of_members(receiver, compression, Arc::clone(&state));
    Ok((members, stream, ArchiveWriter { state, compression }))
}

impl Archive {
    /// The same archive, for a list, which fills a member of its own until [`Self::end_list`].
    pub(super) fn for_list(&self) -> Self {
        let common = Arc::clone(&self.common);
        let own = ListBuffer { buffer: Mutex::default(), common };
        Self { own: Some(Arc::new(own)), ..self.clone() }
    }

    /// What a restore of the archive needs. Complete once the archive is.
    pub(super) fn size(&self) -> Arc<Mutex<UnpackedSize>> {
        Arc::clone(&self.size)
    }

    pub(super) async fn append(&self, entry: Entry) -> Result<(), ArchiveClosed> {
        self.count(&entry);
        let buffer = self.own.as_ref().map_or(&*self.common, |own| &own.buffer);
        let full = fill(&mut buffer.lock(), &entry, self.seconds);
        // The entry keeps its share of the in-flight budget while this waits.
        match full {
            Ok(None) => Ok(()),
            Ok(Some(full)) => self.send(Message::Member(full)).await,
            // A path that no archive can hold, which no object has.
            Err(error) => {
                tracing::error!("an item cannot be written to the archive: {error}");
                self.abort().await;
                Err(ArchiveClosed)
            }
        }
    }

    /// Sends what the list has put into its member. If that is little, it goes to the common member.
    pub(super) async fn end_list(self) -> Result<(), ArchiveClosed> {
        let Some(own) = &self.own else { return Ok(()) };
        let rest = std::mem::take(&mut *own.buffer.lock());
        if rest.len() >= MIN_LAST_MEMBER_BYTES {
            return self.send(Message::Member(rest)).await;
        }
        let full = add_to_common(&mut self.common.lock(), rest);
        match full {
            Some(full) => self.send(Message::Member(full)).await,
            None => Ok(()),
        }
    }

    /// Completes the archive. All lists must have ended.
    pub(super) async fn finish(self) -> Result<(), ArchiveClosed> {
        let mut last = std::mem::take(&mut *self.common.lock());
        last.append_end();
        self.send(Message::End(last)).await
    }

    /// Ends the archive with an error, so that nothing of it is kept.
    pub(super) async fn abort(&self) {
        // A closed channel means that the archive has already been aborted.
        let _ = self.members.send(Message::Abort).await;
    }

    fn count(&self, entry: &Entry) {
        let content = entry.item.json();
        let mut size = self.size.lock();
        size.add_item(entry.name_bytes, content);
        size.add_archive_bytes(MemberBuffer::size_of_item(content));
    }

    async fn send(&self, message: Message) -> Result<(), ArchiveClosed> {
        self.members.send(message).await.map_err(|_| ArchiveClosed)
    }
}

/// Adds an item to a member. Returns a full member: the one before, or one with nothing but this item.
fn fill(
    buffer: &mut MemberBuffer,
    entry: &Entry,
    seconds: u64,
) -> io::Result<Option<MemberBuffer>> {
    let content = entry.item.json();
    let size = MemberBuffer::size_of_item(content);
    if size > MEMBER_BYTES {
        let mut own = MemberBuffer::with_capacity(size);
        own.append_item(&entry.paths, content, seconds)?;
        return Ok(Some(own));
    }
    let is_full = buffer.len() + size > MEMBER_BYTES;
    let next = || MemberBuffer::with_capacity(MEMBER_BYTES);
    let full = is_full.then(|| std::mem::replace(buffer, next()));
    buffer.append_item(&entry.paths, content, seconds)?;
    Ok(full)
}

/// Adds the rest of a list to the common member. Returns the common member if it would become too large.
fn add_to_common(common: &mut MemberBuffer, rest: MemberBuffer) -> Option<MemberBuffer> {
    let is_full = common.len() + rest.len() > MEMBER_BYTES;
    let full = is_full.then(|| std::mem::take(common));
    common.append_all(rest);
    full.filter(|full| !full.is_empty())
}

impl Drop for ListBuffer {
    /// A list whose task is aborted by a bug does not lose the items that it has stored.
    fn drop(&mut self) {
        let rest = std::mem::take(self.buffer.get_mut());
        if !rest.is_empty() {
            self.common.lock().append_all(rest);
        }
    }
}

impl ArchiveWriter {
    /// The complete archive, once its stream has ended. More entries may be added to its index before.
    pub(super) async fn finish(
        self,
        add_entries: impl FnOnce(&mut IndexBuilder) -> io::Result<()> + Send + 'static,
    ) -> io::Result<SealedArchive> {
        let state = Arc::into_inner(self.state).map(Mutex::into_inner);
        let complete = state.filter(|state| state.is_complete);
        let ArchiveState { mut index, .. } =
            complete.ok_or_else(|| io::Error::other("the archive was not written completely"))?;
        let (items, bytes) = (index.items(), index.archive_length());
        let build = move || {
            add_entries(&mut index)?;
            index.finish()
        };
        let index = self.compression.run(build).await?;
        if index.is_none() {
            tracing::warn!("the archive is too large for an index");
        }
        Ok(SealedArchive { items, bytes, index })
    }
}

#[cfg(test)]
mod tests;
