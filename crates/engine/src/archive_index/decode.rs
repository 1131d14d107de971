//! Decoding of an index: pure functions over untrusted bytes.

use sha2::{Digest as _, Sha256};

use super::{
    DIGESTED_HEADER_BYTES, ENTRY_BYTES, HEADER_BYTES, ItemKey, LEAF_BYTES, LeafEntry, MAGIC,
    MAX_LEAF_ENTRIES, MAX_LEAVES, MAX_MEMBER_BYTES, MAX_MEMBERS, MEMBER_BYTES, Sha256Digest,
    sha256,
};

/// Reason why bytes are not an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIndex {
    /// The bytes end too early, or have a different length than the index says.
    #[error("the index is {found} bytes long where {expected} are expected")]
    Length {
        /// Number of bytes that should be there.
        expected: u64,
        /// Number of bytes that are.
        found: u64,
    },
    /// Another file, or a version of the format that this version cannot read.
    #[error("the file is not an index of an archive, or one of a later version")]
    Format,
    /// A number is larger than in any legitimate index.
    #[error("the index has {what} {number}, more than {limit}")]
    TooLarge {
        /// The number in words.
        what: &'static str,
        /// The number.
        number: u64,
        /// Its limit.
        limit: u64,
    },
    /// Bytes differ from their digest.
    #[error("{0} of the index is damaged: its digest differs")]
    Digest(&'static str),
    /// Numbers contradict each other.
    #[error("the index contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// The header of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of members.
    pub members: u32,
    /// Number of leaves.
    pub leaves: u32,
    /// Number of entries.
    pub entries: u64,
    /// Length of the archive.
    pub archive_length: u64,
    /// SHA-256 of the SHA-256s of all members.
    pub members_sha256: Sha256Digest,
}

/// A member of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Position in the archive.
    pub offset: u64,
    /// Length in the archive.
    pub length: u32,
    /// Length when decompressed.
    pub unpacked: u32,
    /// Number of items.
    pub items: u32,
    /// SHA-256 of the compressed bytes.
    pub sha256: Sha256Digest,
}

/// A leaf of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRecord {
    /// Position in the index.
    pub offset: u64,
    /// Key of its first entry.
    pub first: ItemKey,
    /// Number of entries.
    pub entries: u32,
    /// SHA-256 of its bytes.
    pub sha256: Sha256Digest,
}

/// The header and the root of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The header.
    pub header: Header,
    /// The members, in the order of the archive.
    pub members: Vec<MemberRecord>,
    /// The leaves, in the order of their keys.
    pub leaves: Vec<LeafRecord>,
}

impl Header {
    /// Decodes the header at the beginning of an index.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidIndex> {
        let mut fields =
            Fields(bytes.get(..HEADER_BYTES).ok_or_else(|| short(bytes, HEADER_BYTES))?);
        if fields.array()? != MAGIC {
            return Err(InvalidIndex::Format);
        }
        let header = Self {
            members: limited("a number of members", fields.u32()?, MAX_MEMBERS)?,
            leaves: limited("a number of leaves", fields.u32()?, MAX_LEAVES)?,
            entries: fields.u64()?,
            archive_length: fields.u64()?,
            members_sha256: fields.array()?,
        };
        Ok(header)
    }

    /// Length of the header and the root. Bounded, since the numbers are.
    pub fn root_end(&self) -> u64 {
        let members = u64::from(self.members) * MEMBER_BYTES as u64;
        HEADER_BYTES as u64 + members + u64::from(self.leaves) * LEAF_BYTES as u64
    }

    /// Encodes the header, with the digest of itself and the root.
    pub(super) fn encode(&self, root: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.members.to_le_bytes());
        bytes.extend_from_slice(&self.leaves.to_le_bytes());
        bytes.extend_from_slice(&self.entries.to_le_bytes());
        bytes.extend_from_slice(&self.archive_length.to_le_bytes());
        bytes.extend_from_slice(&self.members_sha256);
        bytes.resize(DIGESTED_HEADER_BYTES, 0);
        let digest = root_digest(&bytes, root);
        bytes.extend_from_slice(&digest);
        bytes
    }
}

impl Root {
    /// Decodes the beginning of an index, at least up to [`Header::root_end`], and checks that all of it is consistent.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidIndex> {
        let header = Header::decode(bytes)?;
        let end = usize::try_from(header.root_end()).unwrap_or(usize::MAX);
        let bytes = bytes.get(..end).ok_or_else(|| short(bytes, end))?;
        let (header_bytes, root) = bytes.split_at(HEADER_BYTES);
        let (digested, digest) = header_bytes.split_at(DIGESTED_HEADER_BYTES);
        if root_digest(digested, root) != digest {
            return Err(InvalidIndex::Digest("the root"));
        }
        if header.members == 0 {
            return Err(InvalidIndex::Contradiction("the archive has no members"));
        }
        let mut fields = Fields(root);
        let members = decode_members(&mut fields, &header)?;
        let leaves = decode_leaves(&mut fields, &header)?;
        let items: u64 = members.iter().map(|member| u64::from(member.items)).sum();
        // A path that occurs twice has one entry.
        if items < header.entries {
            return Err(InvalidIndex::Contradiction("there are more entries than items"));
        }
        Ok(Self { header, members, leaves })
    }

    /// The leaf that has the entry of an item, if there is one.
    pub fn leaf_of(&self, key: ItemKey) -> Option<&LeafRecord> {
        let behind = self.leaves.partition_point(|leaf| leaf.first <= key);
        self.leaves.get(behind.checked_sub(1)?)
    }

    /// Length of the whole index.
    pub fn index_length(&self) -> u64 {
        self.header.root_end() + self.header.entries * ENTRY_BYTES as u64
    }
}

impl LeafRecord {
    /// Length in the index.
    pub fn length(&self) -> u64 {
        u64::from(self.entries) * ENTRY_BYTES as u64
    }
}

fn decode_members(
    fields: &mut Fields<'_>,
    header: &Header,
) -> Result<Vec<MemberRecord>, InvalidIndex> {
    // The bytes are there, so the memory is in proportion to them.
    let mut members = Vec::with_capacity(header.members as usize);
    let mut offset = 0;
    let mut digest = Sha256::new();
    for _ in 0..header.members {
        let length = limited("a member of length", fields.u32()?, MAX_MEMBER_BYTES)?;
        let unpacked = limited("a decompressed member of length", fields.u32()?, MAX_MEMBER_BYTES)?;
        let (items, sha256) = (fields.u32()?, fields.array()?);
        digest.update(sha256);
        members.push(MemberRecord { offset, length, unpacked, items, sha256 });
        offset += u64::from(length);
    }
    if offset != header.archive_length {
        return Err(InvalidIndex::Contradiction("the members do not fill the archive"));
    }
    if <Sha256Digest>::from(digest.finalize()) != header.members_sha256 {
        return Err(InvalidIndex::Digest("the list of members"));
    }
    Ok(members)
}

fn decode_leaves(
    fields: &mut Fields<'_>,
    header: &Header,
) -> Result<Vec<LeafRecord>, InvalidIndex> {
    let mut leaves: Vec<LeafRecord> = Vec::with_capacity(header.leaves as usize);
    let (mut offset, mut all) = (header.root_end(), 0);
    for _ in 0..header.leaves {
        let first = ItemKey(fields.array()?);
        let entries = limited("a leaf with entries:", fields.u32()?, MAX_LEAF_ENTRIES)?;
        let sha256 = fields.array()?;
        if entries == 0 || leaves.last().is_some_and(|last| last.first >= first) {
            return Err(InvalidIndex::Contradiction("the leaves are not in order"));
        }
        let leaf = LeafRecord { offset, first, entries, sha256 };
        offset += leaf.length();
        all += u64::from(entries);
        leaves.push(leaf);
    }
    if all != header.entries {
        return Err(InvalidIndex::Contradiction("the leaves do not have all entries"));
    }
    Ok(leaves)
}

/// Decodes a leaf, and checks it against the root that names it.
pub fn decode_leaf(
    bytes: &[u8],
    record: &LeafRecord,
    members: u32,
) -> Result<Vec<LeafEntry>, InvalidIndex> {
    if bytes.len() as u64 != record.length() {
        return Err(InvalidIndex::Length { expected: record.length(), found: bytes.len() as u64 });
    }
    if sha256(bytes) != record.sha256 {
        return Err(InvalidIndex::Digest("a leaf"));
    }
    let mut fields = Fields(bytes);
    let mut entries: Vec<LeafEntry> = Vec::with_capacity(record.entries as usize);
    for _ in 0..record.entries {
        let entry = LeafEntry { key: ItemKey(fields.array()?), member: fields.u32()? };
        if entry.member >= members {
            return Err(InvalidIndex::Contradiction("an entry names a member that does not exist"));
        }
        let is_in_order =
            entries.last().map_or(entry.key == record.first, |last| last.key < entry.key);
        if !is_in_order {
            return Err(InvalidIndex::Contradiction("the entries of a leaf are not in order"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn root_digest(header: &[u8], root: &[u8]) -> Sha256Digest {
    Sha256::new().chain_update(header).chain_update(root).finalize().into()
}

fn limited(what: &'static str, number: u32, limit: u32) -> Result<u32, InvalidIndex> {
    if number > limit {
        let (number, limit) = (number.into(), limit.into());
        return Err(InvalidIndex::TooLarge { what, number, limit });
    }
    Ok(number)
}

fn short(bytes: &[u8], expected: usize) -> InvalidIndex {
    InvalidIndex::Length { expected: expected as u64, found: bytes.len() as u64 }
}

/// Fields that follow one another.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidIndex> {
        let (field, rest) = self.0.split_first_chunk().ok_or_else(|| short(self.0, N))?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, InvalidIndex> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, InvalidIndex> {
        self.array().map(u64::from_le_bytes)
    }
}
