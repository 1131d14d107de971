//! Writes an index of version 2.

use std::collections::BTreeMap;

use super::IndexEntry;
use super::v2::{
    ContentFormat, DELETED, FORMAT_LENGTH, HEADER_LENGTH, MAX_PACKS, MIN_VALUE_LENGTH, PACK_LENGTH,
};
use crate::id::{BlobId, ContentId};

/// Contents from this length on cannot be stored.
const MAX_LENGTH: u32 = 1 << 28;
/// Lengths from here on need another byte.
const MAX_SHORT_LENGTH: u32 = 1 << 24;
/// Packs from this number on need another byte.
const MAX_SHORT_PACKS: usize = 1 << 16;
/// Offsets from here on cannot be stored.
const MAX_OFFSET: u32 = 1 << 30;
/// Formats that one index can name.
const MAX_FORMATS: usize = 255;

/// Reason for which entries do not fit into an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// There are no entries.
    #[error("an index needs at least one entry")]
    Empty,
    /// Hashes of two lengths.
    #[error("the hashes of the contents have more than one length")]
    HashLength,
    /// Too many packs or formats.
    #[error("there are too many packs or formats for one index")]
    TooMany,
    /// A content is too long, or too far back in its pack.
    #[error("the length, offset or time of a content does not fit into an index")]
    OutOfRange,
}

/// The index of these entries. Of two entries of one content, the one that wins is written.
pub fn build(entries: impl IntoIterator<Item = IndexEntry>) -> Result<Vec<u8>, BuildError> {
    let mut sorted = BTreeMap::<ContentId, IndexEntry>::new();
    for entry in entries {
        if sorted.get(&entry.content).is_none_or(|other| entry.wins_over(other)) {
            sorted.insert(entry.content, entry);
        }
    }
    let layout = Layout::new(&sorted)?;
    let mut index = layout.header(sorted.len())?;
    for (content, entry) in &sorted {
        index.extend_from_slice(&content.key());
        index.extend_from_slice(&layout.value(entry)?);
    }
    let names_start =
        index.len() + layout.packs.len() * PACK_LENGTH + layout.formats.len() * FORMAT_LENGTH;
    let mut names = Vec::new();
    for pack in &layout.packs {
        let offset = u32::try_from(names_start + names.len()).map_err(|_| BuildError::TooMany)?;
        index.push(u8::try_from(pack.as_str().len()).map_err(|_| BuildError::OutOfRange)?);
        index.extend_from_slice(&offset.to_be_bytes());
        names.extend_from_slice(pack.as_str().as_bytes());
    }
    for format in &layout.formats {
        let compressor = format.compressor.map_or(0, crate::compression::Compressor::number);
        index.extend_from_slice(&compressor.to_be_bytes());
        index.extend_from_slice(&[format.format_version, format.encryption_key]);
    }
    index.append(&mut names);
    Ok(index)
}

/// What the entries of an index have in common.
struct Layout {
    packs: Vec<BlobId>,
    pack_positions: BTreeMap<BlobId, usize>,
    formats: Vec<ContentFormat>,
    key_length: usize,
    value_length: usize,
}

impl Layout {
    fn new(entries: &BTreeMap<ContentId, IndexEntry>) -> Result<Self, BuildError> {
        let (first, _) = entries.first_key_value().ok_or(BuildError::Empty)?;
        let mut layout = Self {
            packs: Vec::new(),
            pack_positions: BTreeMap::new(),
            formats: Vec::new(),
            key_length: first.key().len(),
            value_length: MIN_VALUE_LENGTH,
        };
        let mut longest = 0;
        for (content, entry) in entries {
            if content.key().len() != layout.key_length {
                return Err(BuildError::HashLength);
            }
            if !layout.pack_positions.contains_key(&entry.pack) {
                layout.pack_positions.insert(entry.pack.clone(), layout.packs.len());
                layout.packs.push(entry.pack.clone());
            }
            let format = content_format(entry);
            if !layout.formats.contains(&format) {
                layout.formats.push(format);
            }
            longest = longest.max(entry.packed_length).max(length(entry));
            if entry.offset >= MAX_OFFSET {
                return Err(BuildError::OutOfRange);
            }
        }
        if longest >= MAX_LENGTH {
            return Err(BuildError::OutOfRange);
        }
        if layout.packs.len() > MAX_PACKS || layout.formats.len() > MAX_FORMATS {
            return Err(BuildError::TooMany);
        }
        // Each optional byte is there if it or one after it is needed.
        layout.value_length += if longest >= MAX_SHORT_LENGTH {
            3
        } else if layout.packs.len() > MAX_SHORT_PACKS {
            2
        } else {
            usize::from(layout.formats.len() > 1)
        };
        Ok(layout)
    }

    fn header(&self, entries: usize) -> Result<Vec<u8>, BuildError> {
        let count = |number: usize| u32::try_from(number).map_err(|_| BuildError::TooMany);
        let mut header = Vec::with_capacity(HEADER_LENGTH);
        header.push(2);
        header.push(u8::try_from(self.key_length).map_err(|_| BuildError::HashLength)?);
        let value_length = u16::try_from(self.value_length).map_err(|_| BuildError::TooMany)?;
        header.extend_from_slice(&value_length.to_be_bytes());
        header.extend_from_slice(&count(entries)?.to_be_bytes());
        header.extend_from_slice(&count(self.packs.len())?.to_be_bytes());
        header.push(u8::try_from(self.formats.len()).map_err(|_| BuildError::TooMany)?);
        // Base time: kopia writes zero too.
        header.extend_from_slice(&0_u32.to_be_bytes());
        Ok(header)
    }

    fn value(&self, entry: &IndexEntry) -> Result<Vec<u8>, BuildError> {
        let out_of_range = |_| BuildError::OutOfRange;
        let time = u32::try_from(entry.timestamp).map_err(out_of_range)?;
        let offset = entry.offset | if entry.is_deleted { DELETED } else { 0 };
        let length = length(entry).to_be_bytes();
        let packed_length = entry.packed_length.to_be_bytes();
        let pack = self.pack_positions.get(&entry.pack).copied().ok_or(BuildError::TooMany)?;
        let [_, pack_high, pack_low @ ..] =
            u32::try_from(pack).map_err(out_of_range)?.to_be_bytes();
        let format = content_format(entry);
        let format = self.formats.iter().position(|other| *other == format);
        let mut value = Vec::with_capacity(MIN_VALUE_LENGTH + 3);
        value.extend_from_slice(&time.to_be_bytes());
        value.extend_from_slice(&offset.to_be_bytes());
        value.extend_from_slice(&length[1..]);
        value.extend_from_slice(&packed_length[1..]);
        value.extend_from_slice(&pack_low);
        value.push(format.and_then(|format| u8::try_from(format).ok()).unwrap_or_default());
        value.push(pack_high);
        value.push(length[0] << 4 | packed_length[0]);
        value.truncate(self.value_length);
        Ok(value)
    }
}

/// The plain length; entries of version 1 are never compressed.
fn length(entry: &IndexEntry) -> u32 {
    let overhead = u32::try_from(crate::crypto::ENCRYPTION_OVERHEAD).unwrap_or_default();
    entry.length.unwrap_or_else(|| entry.packed_length.saturating_sub(overhead))
}

fn content_format(entry: &IndexEntry) -> ContentFormat {
    ContentFormat {
        compressor: entry.compressor,
        format_version: entry.format_version,
        encryption_key: entry.encryption_key,
    }
}
