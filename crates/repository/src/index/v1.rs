//! Index version 1: no compression of contents, and the lengths of plain contents follow from those in the pack.
//!
//! Header of 8 bytes: version, length of a key, length of a value (2), number of entries (4). Value of 20 bytes: time
//! (6), format version, length of the pack's name, its offset (4), offset with the flag of deletion (4), length (4).

use bytes::Bytes;

use super::{Error, IndexEntry, Keys, number, number_u32, number_usize, parse_pack, slice};

const HEADER_LENGTH: usize = 8;
const VALUE_LENGTH: usize = 20;
const DELETED: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct TableV1 {
    pub(super) keys: Keys,
}

impl TableV1 {
    pub(super) fn parse(data: Bytes) -> Result<Self, Error> {
        let Some(header) = data.first_chunk::<HEADER_LENGTH>().copied() else {
            return Err(Error::NoHeader(data.len()));
        };
        let [_, key_length, values @ .., e0, e1, e2, e3] = header;
        if number_usize(&values) != VALUE_LENGTH {
            return Err(Error::InvalidHeader);
        }
        let count = number_usize(&[e0, e1, e2, e3]);
        let keys = Keys::new(data, HEADER_LENGTH, count, usize::from(key_length), VALUE_LENGTH)?;
        Ok(Self { keys })
    }

    pub(super) fn entry(&self, position: usize) -> Result<IndexEntry, Error> {
        let content = self.keys.content(position)?;
        let value: &[u8; VALUE_LENGTH] =
            self.keys.value(position).first_chunk().ok_or(Error::InvalidHeader)?;
        let (time, rest) = value.split_at(6);
        let [format_version, name_length, rest @ ..] = rest else {
            return Err(Error::InvalidHeader);
        };
        let (name_offset, rest) = rest.split_at(4);
        let (offset, packed_length) = rest.split_at(4);
        let name = slice(&self.keys.data, number_usize(name_offset), usize::from(*name_length))?;
        let offset = number_u32(offset);
        Ok(IndexEntry {
            content,
            timestamp: i64::try_from(number(time)).unwrap_or(i64::MAX),
            is_deleted: offset & DELETED != 0,
            pack: parse_pack(name)?,
            offset: offset & !DELETED,
            packed_length: number_u32(packed_length),
            length: None,
            compressor: None,
            format_version: *format_version,
            encryption_key: 0,
        })
    }
}
