//! Reading of one object with the help of an index.

use std::io::{self, Read as _};
use std::ops::Range;

use bowline_plugin::{InvalidItem, Item};
use bowline_store::{BackupFile, BackupName, BackupStore, Key};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;

use super::decode::{Header, InvalidIndex, MemberRecord, Root, decode_leaf};
use super::{FIRST_READ_BYTES, ItemKey, sha256};

/// Reason why an object could not be read with the help of an index.
#[derive(Debug, thiserror::Error)]
pub enum ReadItemError {
    /// The backup has no index: another program or an older version made it. Its archive must be read as a whole.
    #[error("the archive has no index")]
    NoIndex,
    /// The backup has no archive.
    #[error("the backup has no archive")]
    NoArchive,
    /// The bucket cannot be read.
    #[error("cannot read the bucket")]
    Bucket(#[from] bowline_store::Error),
    /// The index is damaged.
    #[error("cannot read the index of the archive")]
    Index(#[from] InvalidIndex),
    /// The archive is not the one that the index describes: it was replaced and the index was not, or one of the two is
    /// damaged. The archive must be read as a whole.
    #[error("the index does not belong to the archive: member {member} differs")]
    OtherArchive {
        /// Number of the first member that was seen to differ.
        member: u32,
    },
    /// A member cannot be decompressed.
    #[error("member {member} of the archive is damaged")]
    Member {
        /// Number of the member.
        member: u32,
        /// The reason.
        source: io::Error,
    },
    /// The object is not one.
    #[error("the object in the archive is damaged")]
    Item(#[from] InvalidItem),
}

/// Reads one object of a backup, at a path without a version: `resources/pods/namespaces/shop/db-0.json`. `None` if the
/// archive does not have it.
///
/// # Guarantees
/// - At most four requests: the header with the root, the rest of the root if it is large, a leaf, and a member.
/// - The object is what was written to the archive: each part is checked against the digest in the part above it.
/// - That an object is missing is said only of the archive that the index describes.
pub async fn read_item(
    store: &BackupStore,
    backup: &BackupName,
    path: &str,
) -> Result<Option<Item>, ReadItemError> {
    let root = read_root(store, backup).await?;
    let member = find_member(store, backup, &root, ItemKey::of_path(path)).await?;
    // If the item is in no member, the last one shows that the index belongs to the archive.
    let number = member.unwrap_or(root.header.members - 1);
    let record = &root.members[number as usize];
    let range = record.offset..record.offset + u64::from(record.length);
    let packed = read_range(store, backup, BackupFile::Contents, range).await?;
    let packed = packed.ok_or(ReadItemError::NoArchive)?;
    if sha256(&packed) != record.sha256 {
        return Err(ReadItemError::OtherArchive { member: number });
    }
    if member.is_none() {
        return Ok(None);
    }
    let damaged = |source| ReadItemError::Member { member: number, source };
    let tar = member_tar(&packed, record).map_err(damaged)?;
    match item_in_tar(&tar, path).map_err(damaged)? {
        Some(json) => Ok(Some(Item::from_json(json)?)),
        None => Err(InvalidIndex::Contradiction("a member lacks an item").into()),
    }
}

async fn read_root(store: &BackupStore, backup: &BackupName) -> Result<Root, ReadItemError> {
    let read = |range| read_range(store, backup, BackupFile::ArchiveIndex, range);
    let first = read(0..FIRST_READ_BYTES).await?.ok_or(ReadItemError::NoIndex)?;
    let end = Header::decode(&first)?.root_end();
    if end <= first.len() as u64 {
        return Ok(Root::decode(&first)?);
    }
    let rest = read(first.len() as u64..end).await?.ok_or(ReadItemError::NoIndex)?;
    Ok(Root::decode(&[first, rest].concat())?)
}

/// Number of the member that holds an item.
async fn find_member(
    store: &BackupStore,
    backup: &BackupName,
    root: &Root,
    key: ItemKey,
) -> Result<Option<u32>, ReadItemError> {
    let Some(leaf) = root.leaf_of(key) else { return Ok(None) };
    let range = leaf.offset..leaf.offset + leaf.length();
    let bytes = read_range(store, backup, BackupFile::ArchiveIndex, range).await?;
    let bytes = bytes.ok_or(ReadItemError::NoIndex)?;
    let entries = decode_leaf(&bytes, leaf, root.header.members)?;
    let found = entries.binary_search_by_key(&key, |entry| entry.key).ok();
    Ok(found.and_then(|place| entries.get(place)).map(|entry| entry.member))
}

async fn read_range(
    store: &BackupStore,
    backup: &BackupName,
    file: BackupFile,
    range: Range<u64>,
) -> Result<Option<Bytes>, ReadItemError> {
    Ok(store.get_range(&Key::Backup(backup.clone(), file), range).await?)
}

/// The tar of a member. Decompresses to the length that the index names, and to nothing else.
pub(crate) fn member_tar(packed: &[u8], record: &MemberRecord) -> io::Result<Vec<u8>> {
    let mut tar = Vec::new();
    let limit = u64::from(record.unpacked);
    MultiGzDecoder::new(packed).take(limit + 1).read_to_end(&mut tar)?;
    if tar.len() as u64 == limit {
        return Ok(tar);
    }
    let message = format!("the member has another length than the {limit} bytes in the index");
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// The content of a file in a tar.
pub(crate) fn item_in_tar(tar: &[u8], path: &str) -> io::Result<Option<Vec<u8>>> {
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        if *entry.path_bytes() == *path.as_bytes() && entry.header().entry_type().is_file() {
            let mut json = Vec::new();
            // Sparse files expand; nothing in a backup is one.
            let limit = tar.len() as u64;
            entry.by_ref().take(limit).read_to_end(&mut json)?;
            return Ok(Some(json));
        }
    }
    Ok(None)
}
