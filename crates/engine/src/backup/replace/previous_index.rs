//! The index of the archive whose items are replaced.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::archive_index::{
    HEADER_BYTES, Header, IndexBuilder, InvalidIndex, ItemKey, LeafEntry, LeafRecord, Root,
    decode_leaf,
};

use super::rewrite::{CopiedMembers, read_member};

/// The index of the archive whose items are replaced, in a file.
pub(super) struct PreviousIndex {
    pub(super) root: Root,
    file: File,
}

/// Reason why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableIndex {
    #[error(transparent)]
    Invalid(#[from] InvalidIndex),
    #[error("the index cannot be read")]
    Read(#[from] io::Error),
}

impl PreviousIndex {
    /// Reads the root of an index.
    pub(super) fn open(file: File) -> Result<Self, UnusableIndex> {
        let read = |length: u64| {
            let length = length.min(file.metadata()?.len());
            let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
            file.read_exact_at(&mut bytes, 0)?;
            Ok::<_, io::Error>(bytes)
        };
        let header = Header::decode(&read(HEADER_BYTES as u64)?)?;
        let root = Root::decode(&read(header.root_end())?)?;
        Ok(Self { root, file })
    }

    /// True if an archive is the one that the index describes.
    pub(super) fn describes(&self, archive: &File) -> io::Result<bool> {
        if archive.metadata()?.len() != self.root.header.archive_length {
            return Ok(false);
        }
        for record in &self.root.members {
            match read_member(archive, record) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        // Only then are entries worth copying.
        Ok(self.root.leaves.iter().all(|leaf| self.entries_of(leaf).is_ok()))
    }

    /// The members that hold items.
    pub(super) fn members_of(
        &self,
        keys: impl Iterator<Item = ItemKey>,
    ) -> io::Result<HashSet<u32>> {
        let mut members = HashSet::new();
        for key in keys {
            let Some(leaf) = self.root.leaf_of(key) else { continue };
            let entries = self.entries_of(leaf).map_err(io::Error::other)?;
            if let Ok(place) = entries.binary_search_by_key(&key, |entry| entry.key) {
                members.extend(entries.get(place).map(|entry| entry.member));
            }
        }
        Ok(members)
    }

    /// Adds the items of copied members to the index of the new archive.
    pub(super) fn copy_entries(
        &self,
        copied: &CopiedMembers,
        index: &mut IndexBuilder,
    ) -> io::Result<()> {
        for leaf in &self.root.leaves {
            for entry in self.entries_of(leaf).map_err(io::Error::other)? {
                if let Some(Some(member)) = copied.get(entry.member as usize) {
                    index.add_entry(LeafEntry { member: *member, ..entry })?;
                }
            }
        }
        Ok(())
    }

    fn entries_of(&self, leaf: &LeafRecord) -> Result<Vec<LeafEntry>, UnusableIndex> {
        let mut bytes = vec![0; usize::try_from(leaf.length()).unwrap_or_default()];
        self.file.read_exact_at(&mut bytes, leaf.offset)?;
        Ok(decode_leaf(&bytes, leaf, self.root.header.members)?)
    }
}
