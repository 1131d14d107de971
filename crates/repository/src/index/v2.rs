//! Index version 2.
//!
//! Header of 17 bytes: version, length of a key, length of a value (2), number of entries (4), of packs (4), of formats
//! (1), base time (4). Then the entries, five bytes for each pack, six for each format, and the names of packs. A value
//! has 16 to 19 bytes: time from the base (4), offset with the flag of deletion (4), plain length (3), length in the
//! pack (3), pack (2); then, as far as the index needs them, format, high byte of the pack, high bits of both lengths.

use bytes::Bytes;

use super::{Error, IndexEntry, Keys, number_u32, number_usize, parse_pack, slice};
use crate::compression::Compressor;
use crate::id::BlobId;

pub(super) const HEADER_LENGTH: usize = 17;
pub(super) const MIN_VALUE_LENGTH: usize = 16;
pub(super) const MAX_VALUE_LENGTH: usize = 19;
pub(super) const PACK_LENGTH: usize = 5;
pub(super) const FORMAT_LENGTH: usize = 6;
pub(super) const DELETED: u32 = 1 << 31;
/// Packs that one index can name.
pub(super) const MAX_PACKS: usize = 1 << 24;

#[derive(Debug)]
pub(super) struct TableV2 {
    pub(super) keys: Keys,
    packs: Vec<BlobId>,
    formats: Vec<ContentFormat>,
    base_time: u32,
}

/// What many entries have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContentFormat {
    pub(super) compressor: Option<Compressor>,
    pub(super) format_version: u8,
    pub(super) encryption_key: u8,
}

impl TableV2 {
    pub(super) fn parse(data: Bytes) -> Result<Self, Error> {
        let Some(header) = data.first_chunk::<HEADER_LENGTH>().copied() else {
            return Err(Error::NoHeader(data.len()));
        };
        let [_, key_length, v0, v1, rest @ ..] = header;
        let value_length = number_usize(&[v0, v1]);
        let (entry_count, rest) = rest.split_at(4);
        let (pack_count, rest) = rest.split_at(4);
        let (format_count, base_time) = rest.split_at(1);
        let pack_count = number_usize(pack_count);
        let is_value = (MIN_VALUE_LENGTH..=MAX_VALUE_LENGTH).contains(&value_length);
        if !is_value || pack_count > MAX_PACKS {
            return Err(Error::InvalidHeader);
        }
        let keys = Keys::new(
            data,
            HEADER_LENGTH,
            number_usize(entry_count),
            usize::from(key_length),
            value_length,
        )?;
        let packs = slice(&keys.data, keys.end(), pack_count * PACK_LENGTH)?;
        let formats_start = keys.end() + packs.len();
        let formats_length = number_usize(format_count) * FORMAT_LENGTH;
        let formats = slice(&keys.data, formats_start, formats_length)?;
        Ok(Self {
            packs: packs
                .chunks(PACK_LENGTH)
                .map(|pack| read_pack(&keys.data, pack))
                .collect::<Result<_, _>>()?,
            formats: formats.chunks(FORMAT_LENGTH).map(read_format).collect(),
            base_time: number_u32(base_time),
            keys,
        })
    }

    pub(super) fn entry(&self, position: usize) -> Result<IndexEntry, Error> {
        let content = self.keys.content(position)?;
        let value = self.keys.value(position);
        let (fixed, optional) =
            value.split_first_chunk::<MIN_VALUE_LENGTH>().ok_or(Error::InvalidHeader)?;
        let (time, rest) = fixed.split_at(4);
        let (offset, rest) = rest.split_at(4);
        let (length, rest) = rest.split_at(3);
        let (packed_length, pack) = rest.split_at(3);
        let byte = |index: usize| optional.get(index).copied().unwrap_or_default();
        let pack = number_usize(pack) | usize::from(byte(1)) << 16;
        let high = u32::from(byte(2));
        let invalid = || Error::InvalidReference(position);
        let format = self.formats.get(usize::from(byte(0))).ok_or_else(invalid)?;
        let offset = number_u32(offset);
        Ok(IndexEntry {
            content,
            timestamp: i64::from(number_u32(time)) + i64::from(self.base_time),
            is_deleted: offset & DELETED != 0,
            pack: self.packs.get(pack).ok_or_else(invalid)?.clone(),
            offset: offset & !DELETED,
            packed_length: number_u32(packed_length) | (high & 0xf) << 24,
            length: Some(number_u32(length) | high >> 4 << 24),
            compressor: format.compressor,
            format_version: format.format_version,
            encryption_key: format.encryption_key,
        })
    }
}

fn read_pack(data: &[u8], pack: &[u8]) -> Result<BlobId, Error> {
    let (&length, offset) = pack.split_first().ok_or(Error::InvalidHeader)?;
    parse_pack(slice(data, number_usize(offset), usize::from(length))?)
}

fn read_format(format: &[u8]) -> ContentFormat {
    let (compressor, rest) = format.split_at_checked(4).unwrap_or_default();
    ContentFormat {
        compressor: Compressor::new(number_u32(compressor)),
        format_version: rest.first().copied().unwrap_or_default(),
        encryption_key: rest.get(1).copied().unwrap_or_default(),
    }
}
