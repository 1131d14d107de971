//! The index of an archive: which member of the archive holds an object.
//!
//! An archive is a sequence of gzip members, each of which can be read alone. Its index is a file beside it, with which
//! [one object is read](read_item) by three or four small requests, and checked.
//!
//! # Format
//! All numbers are little-endian. The file is a header, the root and the leaves, without gaps:
//!
//! ```text
//! header    120 bytes
//!    0    8   "BOWLIDX1": the format and its version
//!    8    4   number of members
//!   12    4   number of leaves
//!   16    8   number of entries
//!   24    8   length of the archive
//!   32   32   SHA-256 of the SHA-256s of all members, one after the other
//!   64   24   zero
//!   88   32   SHA-256 of the first 88 bytes and the root
//! root
//!   members   44 bytes each, in the order of the archive, which they fill without gaps
//!      0    4   length
//!      4    4   length when decompressed
//!      8    4   number of items
//!     12   32   SHA-256 of the compressed bytes
//!   leaves    52 bytes each, in the order of their entries
//!      0   16   key of the first entry
//!     16    4   number of entries
//!     20   32   SHA-256 of the leaf
//! leaves
//!   entries   20 bytes each, sorted by key; no key occurs twice
//!      0   16   key: the first half of the SHA-256 of the item's path without a version
//!     16    4   number of the member
//! ```
//!
//! # Trust
//! Whoever may write to the bucket may write the index. What is read from it is checked before use: lengths have
//! limits and sums, numbers are in range, keys are in order, and each part has the digest that the part above it names.
//! A damaged index is an error with a reason. The index names its archive by length and digest, so an index that a
//! killed server left beside a newer archive is recognized ([`ReadItemError::OtherArchive`]).

mod build;
mod decode;
mod read;
#[cfg(test)]
mod tests;

use sha2::{Digest as _, Sha256};

pub(crate) use build::{IndexBuilder, IndexFile};
pub use decode::{Header, InvalidIndex, LeafRecord, MemberRecord, Root, decode_leaf};
pub(crate) use read::member_tar;
pub use read::{ReadItemError, read_item};

/// First bytes of an index.
const MAGIC: [u8; 8] = *b"BOWLIDX1";
/// Size of the header.
pub(crate) const HEADER_BYTES: usize = 120;
/// Size of the part of the header that its digest covers.
const DIGESTED_HEADER_BYTES: usize = 88;
/// Size of a member in the root.
const MEMBER_BYTES: usize = 44;
/// Size of a leaf in the root.
const LEAF_BYTES: usize = 52;
/// Size of an entry in a leaf.
const ENTRY_BYTES: usize = 20;

/// Number of entries of a full leaf: 60 kB.
const LEAF_ENTRIES: u32 = 3_000;
/// Limit on the entries of a leaf that is read.
const MAX_LEAF_ENTRIES: u32 = 4_096;
/// Limit on the members of an archive: 256 GiB of objects.
const MAX_MEMBERS: u32 = 1 << 18;
/// Limit on the leaves of an index.
const MAX_LEAVES: u32 = 1 << 14;
/// Limit on the length of a member, compressed or not. An object is in it twice, and has 3 MiB at most.
const MAX_MEMBER_BYTES: u32 = 32 << 20;
/// Number of bytes of an index that are read at once. At 300,000 objects, header and root are shorter.
const FIRST_READ_BYTES: u64 = 256 << 10;

/// Identifies an item in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemKey([u8; 16]);

impl ItemKey {
    /// The key of the item at a path without a version, `resources/pods/namespaces/shop/db-0.json`.
    pub fn of_path(path: &str) -> Self {
        let digest = Sha256::digest(path);
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }
}

/// An entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafEntry {
    /// The item.
    pub key: ItemKey,
    /// Number of the member that holds it.
    pub member: u32,
}

/// A SHA-256.
pub(crate) type Sha256Digest = [u8; 32];

/// The SHA-256 of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> Sha256Digest {
    Sha256::digest(bytes).into()
}
