//! Building of an index while its archive is written.
//!
//! Entries are collected on disk in the order of the archive, and sorted at the end, a range of keys at a time: the
//! memory does not grow with the number of items.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bowline_plugin::ByteStream;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream;
use sha2::{Digest as _, Sha256};

use super::decode::{Header, LeafRecord, MemberRecord};
use super::{
    ENTRY_BYTES, ItemKey, LEAF_ENTRIES, LeafEntry, MAX_LEAVES, MAX_MEMBER_BYTES, MAX_MEMBERS,
    Sha256Digest, sha256,
};

/// Number of entries sorted in memory at once: 2.5 MB.
const SORTED_AT_ONCE: u64 = 1 << 17;
/// Number of bytes read from disk at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// An index that is being built.
pub(crate) struct IndexBuilder {
    members: Vec<MemberRecord>,
    /// Length of the archive so far.
    length: u64,
    entries: BufWriter<File>,
    entry_count: u64,
    leaves: File,
    /// True if the archive is larger than an index can describe.
    is_too_large: bool,
}

/// An index that was built, in an unnamed file that disappears with its last user.
#[derive(Clone, Debug)]
pub(crate) struct IndexFile {
    /// The header and the root.
    root: Bytes,
    leaves: Arc<File>,
}

impl IndexBuilder {
    /// Index of an empty archive. `scratch` is a folder for temporary files.
    pub(crate) fn create(scratch: &Path) -> io::Result<Self> {
        Ok(Self {
            members: Vec::new(),
            length: 0,
            entries: BufWriter::new(tempfile::tempfile_in(scratch)?),
            entry_count: 0,
            leaves: tempfile::tempfile_in(scratch)?,
            is_too_large: false,
        })
    }

    /// Length of the archive so far.
    pub(crate) fn archive_length(&self) -> u64 {
        self.length
    }

    /// Number of items so far.
    pub(crate) fn items(&self) -> usize {
        self.members.iter().map(|member| member.items as usize).sum()
    }

    /// Adds the next member of the archive, and returns its number.
    pub(crate) fn add_member(
        &mut self,
        length: usize,
        unpacked: usize,
        items: usize,
        sha256: Sha256Digest,
    ) -> u32 {
        let number = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let limited = |length| u32::try_from(length).ok().filter(|one| *one <= MAX_MEMBER_BYTES);
        let (packed, unpacked) = (limited(length), limited(unpacked));
        self.is_too_large |= packed.is_none() || unpacked.is_none() || number >= MAX_MEMBERS;
        self.members.push(MemberRecord {
            offset: self.length,
            length: packed.unwrap_or_default(),
            unpacked: unpacked.unwrap_or_default(),
            items: u32::try_from(items).unwrap_or(u32::MAX),
            sha256,
        });
        self.length += length as u64;
        number
    }

    /// Adds an item.
    pub(crate) fn add_entry(&mut self, entry: LeafEntry) -> io::Result<()> {
        self.entry_count += 1;
        self.entries.write_all(&encode_entry(entry))
    }

    /// Sorts the entries. `None` if the archive is larger than an index can describe. Blocks.
    pub(crate) fn finish(self) -> io::Result<Option<IndexFile>> {
        let entries = self.entries.into_inner()?;
        let ranges = self.entry_count.div_ceil(SORTED_AT_ONCE);
        let mut writer = LeafWriter::new(self.leaves);
        let mut sorted = Vec::new();
        for range in 0..ranges {
            sorted.clear();
            read_range(&entries, range, ranges, &mut sorted)?;
            sorted.sort_unstable();
            // A foreign archive may have a path twice; the first counts, as in a restore.
            sorted.dedup_by_key(|entry| entry.key);
            for entry in &sorted {
                writer.add(*entry)?;
            }
        }
        let (leaves, records, entry_count) = writer.finish()?;
        let leaf_count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        if self.is_too_large || leaf_count > MAX_LEAVES {
            return Ok(None);
        }
        let header = Header {
            members: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            leaves: leaf_count,
            entries: entry_count,
            archive_length: self.length,
            members_sha256: digest_of(&self.members),
        };
        let body = encode_root(&self.members, &records);
        let mut root = header.encode(&body);
        root.extend_from_slice(&body);
        Ok(Some(IndexFile { root: root.into(), leaves: Arc::new(leaves) }))
    }
}

impl IndexFile {
    /// The index as it is stored.
    pub(crate) fn stream(&self) -> ByteStream {
        let root = self.root.clone();
        let leaves = stream::try_unfold((Arc::clone(&self.leaves), 0), async |(file, offset)| {
            let mut piece = BytesMut::zeroed(CHUNK_BYTES);
            let read = file.read_at(&mut piece, offset)?;
            piece.truncate(read);
            Ok((read > 0).then(|| (piece.freeze(), (file, offset + read as u64))))
        });
        Box::pin(futures::StreamExt::chain(stream::iter([Ok(root)]), leaves))
    }
}

/// Reads the entries whose keys are in one of several equal ranges.
fn read_range(
    mut file: &File,
    range: u64,
    ranges: u64,
    into: &mut Vec<LeafEntry>,
) -> io::Result<()> {
    file.rewind()?;
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut bytes = [0; ENTRY_BYTES];
    loop {
        match reader.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let entry = decode_entry(&bytes);
        if range_of(entry.key, ranges) == range {
            into.push(entry);
        }
    }
}

/// The range of a key, of several equal ones in the order of keys.
fn range_of(ItemKey(key): ItemKey, ranges: u64) -> u64 {
    let lead = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    (u64::from(lead) * ranges) >> 32
}

fn encode_entry(entry: LeafEntry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..16].copy_from_slice(&entry.key.0);
    bytes[16..].copy_from_slice(&entry.member.to_le_bytes());
    bytes
}

fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> LeafEntry {
    let (mut key, mut member) = ([0; 16], [0; 4]);
    key.copy_from_slice(&bytes[..16]);
    member.copy_from_slice(&bytes[16..]);
    LeafEntry { key: ItemKey(key), member: u32::from_le_bytes(member) }
}

/// The digest of the digests of all members, which names the archive.
fn digest_of(members: &[MemberRecord]) -> Sha256Digest {
    let mut digest = Sha256::new();
    for member in members {
        digest.update(member.sha256);
    }
    digest.finalize().into()
}

fn encode_root(members: &[MemberRecord], leaves: &[LeafRecord]) -> Vec<u8> {
    let mut root = Vec::new();
    for member in members {
        root.put_u32_le(member.length);
        root.put_u32_le(member.unpacked);
        root.put_u32_le(member.items);
        root.put_slice(&member.sha256);
    }
    for leaf in leaves {
        root.put_slice(&leaf.first.0);
        root.put_u32_le(leaf.entries);
        root.put_slice(&leaf.sha256);
    }
    root
}

/// Writes sorted entries as leaves.
struct LeafWriter {
    file: File,
    leaf: Vec<u8>,
    first: Option<ItemKey>,
    records: Vec<LeafRecord>,
    entries: u64,
}

impl LeafWriter {
    fn new(file: File) -> Self {
        Self { file, leaf: Vec::new(), first: None, records: Vec::new(), entries: 0 }
    }

    fn add(&mut self, entry: LeafEntry) -> io::Result<()> {
        self.first.get_or_insert(entry.key);
        self.leaf.extend_from_slice(&encode_entry(entry));
        self.entries += 1;
        if self.leaf.len() == LEAF_ENTRIES as usize * ENTRY_BYTES {
            self.end_leaf()
        } else {
            Ok(())
        }
    }

    fn end_leaf(&mut self) -> io::Result<()> {
        let Some(first) = self.first.take() else { return Ok(()) };
        let entries = u32::try_from(self.leaf.len() / ENTRY_BYTES).unwrap_or(u32::MAX);
        // The position follows from the order.
        let record = LeafRecord { offset: 0, first, entries, sha256: sha256(&self.leaf) };
        self.records.push(record);
        self.file.write_all(&self.leaf)?;
        self.leaf.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<(File, Vec<LeafRecord>, u64)> {
        self.end_leaf()?;
        Ok((self.file, self.records, self.entries))
    }
}
