//! The tar of a member, in memory.
//!
//! Velero writes an item twice when it is in the version that the API server prefers: once without a version in its
//! path, for readers that know one version only. The second copy is made from the first.

use std::io;

use crate::archive_index::ItemKey;

/// Size of a full member: small, since one object is read by reading its member, and large enough that compression is
/// hardly worse than that of the whole.
pub(in crate::backup) const MEMBER_BYTES: usize = 1 << 20;
/// The mode of all files.
const FILE_MODE: u32 = 0o755;
/// Size of a tar header, and the unit of contents.
const BLOCK_SIZE: usize = 512;
/// Length of the name in a header. Longer paths are divided, or have a header of their own.
const MAX_PLAIN_NAME: usize = 100;
/// The end of a tar.
const END_BLOCKS: [u8; 2 * BLOCK_SIZE] = [0; 2 * BLOCK_SIZE];

/// A member that is being filled.
#[derive(Debug, Default)]
pub(in crate::backup) struct MemberBuffer {
    tar: Vec<u8>,
    items: Vec<ItemKey>,
}

impl MemberBuffer {
    /// Buffer for a tar of this size.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { tar: Vec::with_capacity(bytes), items: Vec::new() }
    }

    /// Length of the tar.
    pub(in crate::backup) fn len(&self) -> usize {
        self.tar.len()
    }

    pub(in crate::backup) fn is_empty(&self) -> bool {
        self.tar.is_empty()
    }

    /// Approximate growth by an item; path names of more than 100 bytes take more.
    pub(super) fn size_of_item(content: &[u8]) -> usize {
        2 * (BLOCK_SIZE + content.len().next_multiple_of(BLOCK_SIZE))
    }

    /// Appends an item, under its path without a version and under the one with its version.
    pub(in crate::backup) fn append_item(
        &mut self,
        paths: &[String; 2],
        content: &[u8],
        seconds: u64,
    ) -> io::Result<()> {
        let [plain, versioned] = paths;
        self.append_file(plain, content, seconds)?;
        let begin = self.tar.len() - content.len().next_multiple_of(BLOCK_SIZE);
        let end = self.tar.len();
        self.append_header(versioned, content.len(), seconds)?;
        self.tar.extend_from_within(begin..end);
        self.items.push(ItemKey::of_path(plain));
        Ok(())
    }

    /// Appends a file.
    pub(in crate::backup) fn append_file(
        &mut self,
        path: &str,
        content: &[u8],
        seconds: u64,
    ) -> io::Result<()> {
        self.append_header(path, content.len(), seconds)?;
        self.tar.extend_from_slice(content);
        self.tar.resize(self.tar.len().next_multiple_of(BLOCK_SIZE), 0);
        Ok(())
    }

    /// Records an item that was appended as files.
    pub(in crate::backup) fn record_item(&mut self, key: ItemKey) {
        self.items.push(key);
    }

    /// Moves the content of another buffer to the end of this one.
    pub(super) fn append_all(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.tar.extend_from_slice(&other.tar);
        self.items.extend_from_slice(&other.items);
    }

    /// Appends the blocks that end a tar.
    pub(in crate::backup) fn append_end(&mut self) {
        self.tar.extend_from_slice(&END_BLOCKS);
    }

    /// The tar and the items in it.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<ItemKey>) {
        (self.tar, self.items)
    }

    fn append_header(&mut self, path: &str, size: usize, seconds: u64) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(size as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(seconds);
        if has_plain_name(path) {
            // What the library writes, without taking the path apart: that is several percent of the time of a backup.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            self.tar.extend_from_slice(header.as_bytes());
            return Ok(());
        }
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_data(&mut header, path, io::empty())?;
        let blocks = builder.into_inner()?;
        self.tar.extend_from_slice(&blocks[..blocks.len().saturating_sub(END_BLOCKS.len())]);
        Ok(())
    }
}

/// True if a path fits into a header as it is.
fn has_plain_name(path: &str) -> bool {
    let is_plain = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    path.len() <= MAX_PLAIN_NAME && path.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_the_same_for_plain_and_other_names() {
        let long = format!("resources/pods/namespaces/{}/{}.json", "n".repeat(63), "p".repeat(200));
        for path in ["metadata/version", "resources/pods/v1/p.json", &"x".repeat(100), &long] {
            for content in [&b""[..], b"{}", &[b'a'; 512], &[b'b'; 5000]] {
                let mut ours = MemberBuffer::default();
                ours.append_file(path, content, 7).unwrap();
                ours.append_end();
                let mut header = tar::Header::new_ustar();
                header.set_size(content.len() as u64);
                header.set_mode(FILE_MODE);
                header.set_mtime(7);
                let mut theirs = tar::Builder::new(Vec::new());
                theirs.append_data(&mut header, path, content).unwrap();
                assert_eq!(ours.tar, theirs.into_inner().unwrap(), "{path}");
            }
        }
        for path in ["../x", "a/../b", "/a"] {
            assert!(!has_plain_name(path), "{path}");
        }
    }

    #[test]
    fn both_copies_of_an_item_are_the_same() {
        let paths = ["resources/pods/namespaces/a/b.json", "resources/pods/v1/a/b.json"];
        for length in [0, 1, 511, 512, 513, 2000] {
            let content = vec![b'x'; length];
            let mut buffer = MemberBuffer::default();
            buffer.append_item(&paths.map(str::to_owned), &content, 7).unwrap();
            assert_eq!(buffer.len(), MemberBuffer::size_of_item(&content));
            let mut files = MemberBuffer::default();
            for path in paths {
                files.append_file(path, &content, 7).unwrap();
            }
            assert!(buffer.tar == files.tar, "{length} bytes");
            assert_eq!(buffer.items, [ItemKey::of_path(paths[0])]);
        }
    }
}
