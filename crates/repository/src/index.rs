//! Indexes: which content is where in which pack.
//!
//! An index blob, once decrypted, is a sorted table. [`Index`] searches it where it lies, so that an index in memory
//! takes about 36 bytes for a content. [`IndexSet`] merges many of them: where two know a content, the one entry wins
//! that kopia would choose.

mod build;
mod v1;
mod v2;

use std::sync::Arc;

use bytes::Bytes;

pub use self::build::{BuildError, build};

use crate::compression::Compressor;
use crate::id::{BlobId, ContentId, InvalidId};

/// Greatest number of entries of an index: kopia writes no more than 16 million into one.
const MAX_ENTRIES: usize = 1 << 25;

/// Where a content is, or that it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The content.
    pub content: ContentId,
    /// Time of writing in seconds since 1970. Of two entries the later one counts.
    pub timestamp: i64,
    /// True if the content is deleted. It can be read nevertheless as long as its pack is there.
    pub is_deleted: bool,
    /// The pack.
    pub pack: BlobId,
    /// Offset in the pack.
    pub offset: u32,
    /// Length in the pack.
    pub packed_length: u32,
    /// Length of the plain content. `None` in indexes of version 1, which do not store it.
    pub length: Option<u32>,
    /// Compressor, if the content is compressed.
    pub compressor: Option<Compressor>,
    /// Format version of the repository when the content was written.
    pub format_version: u8,
    /// Number of the key. Kopia knows zero only.
    pub encryption_key: u8,
}

impl IndexEntry {
    /// True if this entry counts, and not the other one of the same content.
    pub fn wins_over(&self, other: &Self) -> bool {
        self.rank() > other.rank()
    }

    fn rank(&self) -> (i64, bool, &BlobId) {
        (self.timestamp, !self.is_deleted, &self.pack)
    }
}

/// Damage of an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The header is not complete.
    #[error("the index of {0} bytes has no header")]
    NoHeader(usize),
    /// The version is unknown.
    #[error("index version {0} is not supported")]
    UnsupportedVersion(u8),
    /// Sizes or counts in the header that are impossible.
    #[error("the header of the index is invalid")]
    InvalidHeader,
    /// A table or name lies outside of the index.
    #[error("the index is truncated: byte {0} is missing")]
    Truncated(usize),
    /// Entries are not in order.
    #[error("entry {0} of the index is not in order")]
    Order(usize),
    /// The key of an entry is not the name of a content.
    #[error("entry {0} of the index has an invalid key")]
    InvalidKey(usize),
    /// The entry names a pack or a format that the index does not contain.
    #[error("entry {0} of the index names a pack or format that is not in it")]
    InvalidReference(usize),
    /// The name of a pack is not the name of a blob.
    #[error("the index contains an invalid name of a pack")]
    InvalidPack(#[source] InvalidId),
}

/// One decrypted index.
#[derive(Debug)]
pub struct Index {
    table: Table,
}

#[derive(Debug)]
enum Table {
    V1(v1::TableV1),
    V2(v2::TableV2),
}

impl Index {
    /// Checks an index. All of its entries can be read afterwards.
    pub fn parse(data: Bytes) -> Result<Self, Error> {
        let table = match data.first() {
            None => return Err(Error::NoHeader(0)),
            Some(1) => Table::V1(v1::TableV1::parse(data)?),
            Some(2) => Table::V2(v2::TableV2::parse(data)?),
            Some(&version) => return Err(Error::UnsupportedVersion(version)),
        };
        let index = Self { table };
        index.check()?;
        Ok(index)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.keys().count
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of a content.
    pub fn get(&self, content: &ContentId) -> Option<IndexEntry> {
        let position = self.keys().find(&content.key())?;
        self.entry(position).ok()
    }

    /// All entries in order.
    pub fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        self.entries_from(0)
    }

    /// The entries of contents with a letter or, with `None`, without one.
    pub fn entries_with_prefix(&self, letter: Option<u8>) -> impl Iterator<Item = IndexEntry> {
        let letter = letter.unwrap_or_default();
        let start = self.keys().lower_bound(&[letter]);
        self.entries_from(start).take_while(move |entry| {
            entry.content.prefix().map_or(0, crate::ContentPrefix::letter) == letter
        })
    }

    fn entries_from(&self, start: usize) -> impl Iterator<Item = IndexEntry> {
        (start..self.len()).map_while(|position| self.entry(position).ok())
    }

    fn check(&self) -> Result<(), Error> {
        let keys = self.keys();
        for position in 0..keys.count {
            self.entry(position)?;
            if position > 0 && keys.key(position - 1) >= keys.key(position) {
                return Err(Error::Order(position));
            }
        }
        Ok(())
    }

    fn keys(&self) -> &Keys {
        match &self.table {
            Table::V1(table) => &table.keys,
            Table::V2(table) => &table.keys,
        }
    }

    fn entry(&self, position: usize) -> Result<IndexEntry, Error> {
        match &self.table {
            Table::V1(table) => table.entry(position),
            Table::V2(table) => table.entry(position),
        }
    }
}

/// The part that both versions share: entries of one length, each with its key in front, in order of the keys.
#[derive(Debug)]
struct Keys {
    data: Bytes,
    /// Offset of the first entry.
    start: usize,
    count: usize,
    key_length: usize,
    value_length: usize,
}

impl Keys {
    fn new(
        data: Bytes,
        start: usize,
        count: usize,
        key_length: usize,
        value_length: usize,
    ) -> Result<Self, Error> {
        if key_length < 2 || count > MAX_ENTRIES {
            return Err(Error::InvalidHeader);
        }
        let keys = Self { data, start, count, key_length, value_length };
        if keys.end() > keys.data.len() {
            return Err(Error::Truncated(keys.data.len()));
        }
        Ok(keys)
    }

    /// Offset of what follows the entries.
    fn end(&self) -> usize {
        self.start + self.count * (self.key_length + self.value_length)
    }

    fn key(&self, position: usize) -> &[u8] {
        self.entry(position).get(..self.key_length).unwrap_or_default()
    }

    fn value(&self, position: usize) -> &[u8] {
        self.entry(position).get(self.key_length..).unwrap_or_default()
    }

    fn content(&self, position: usize) -> Result<ContentId, Error> {
        ContentId::from_key(self.key(position)).ok_or(Error::InvalidKey(position))
    }

    fn entry(&self, position: usize) -> &[u8] {
        let step = self.key_length + self.value_length;
        let start = self.start + position * step;
        self.data.get(start..start + step).unwrap_or_default()
    }

    /// The first position whose key is not less.
    fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        let position = self.lower_bound(key);
        (position < self.count && self.key(position) == key).then_some(position)
    }
}

/// Part of an index, or an error that says where it ends.
fn slice(data: &[u8], start: usize, length: usize) -> Result<&[u8], Error> {
    let end = start.checked_add(length).ok_or(Error::InvalidHeader)?;
    data.get(start..end).ok_or(Error::Truncated(data.len()))
}

/// Big-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Big-endian number of up to four bytes.
fn number_u32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

/// Big-endian number as a length or offset.
fn number_usize(bytes: &[u8]) -> usize {
    usize::try_from(number(bytes)).unwrap_or(usize::MAX)
}

fn parse_pack(name: &[u8]) -> Result<BlobId, Error> {
    String::from_utf8_lossy(name).parse().map_err(Error::InvalidPack)
}

/// Indexes that together describe a repository.
#[derive(Debug, Default)]
pub struct IndexSet {
    indexes: Vec<Arc<Index>>,
    /// Deletions up to this time make a content absent. Later ones leave it readable.
    deletion_watermark: i64,
}

impl IndexSet {
    /// A set with the watermark in seconds since 1970.
    pub fn new(indexes: Vec<Arc<Index>>, deletion_watermark: i64) -> Self {
        Self { indexes, deletion_watermark }
    }

    /// The entry of a content that counts. `None` if the content is absent.
    pub fn get(&self, content: &ContentId) -> Option<IndexEntry> {
        let found = self.indexes.iter().filter_map(|index| index.get(content));
        let winner =
            found.reduce(|best, other| if other.wins_over(&best) { other } else { best })?;
        self.is_present(&winner).then_some(winner)
    }

    /// The entries of contents with a letter or, with `None`, without one. In order of contents; deleted ones are
    /// included as long as they can be read.
    pub fn entries_with_prefix(&self, letter: Option<u8>) -> Vec<IndexEntry> {
        let mut entries = std::collections::BTreeMap::<ContentId, IndexEntry>::new();
        for index in &self.indexes {
            for entry in index.entries_with_prefix(letter) {
                match entries.entry(entry.content) {
                    std::collections::btree_map::Entry::Vacant(vacant) => {
                        vacant.insert(entry);
                    }
                    std::collections::btree_map::Entry::Occupied(mut occupied) => {
                        if entry.wins_over(occupied.get()) {
                            occupied.insert(entry);
                        }
                    }
                }
            }
        }
        entries.into_values().filter(|entry| self.is_present(entry)).collect()
    }

    fn is_present(&self, entry: &IndexEntry) -> bool {
        !entry.is_deleted || entry.timestamp > self.deletion_watermark
    }
}

#[cfg(test)]
mod tests;
