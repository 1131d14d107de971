//! Writes an archive anew, with some items replaced.
//!
//! With an index that belongs to the archive, members without replaced items are copied as they are, checked against
//! their digests; the others are unpacked and filled again. Without one, as for archives of Velero and of older
//! versions, the whole archive is unpacked. Both ways the new archive has an index.
//!
//! The index is written after the archive. A kill in between leaves an index that does not belong to the archive,
//! which every reader notices.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc;

use super::MAX_ITEM_BYTES;
use super::previous_index::PreviousIndex;
use crate::archive_index::{ItemKey, MemberRecord, member_tar, sha256};
use crate::backup::archive::{
    CompressedMember, ITEMS_FOLDER, MEMBER_BYTES, MemberBuffer, Message, path_without_version,
};
use crate::backup::spool::{Spool, SpoolRange};

/// An item to store again.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    /// Its path without a version, and that with its version.
    pub(super) paths: [String; 2],
    pub(super) place: SpoolRange,
}

/// Members of the previous archive that are part of the new one, with their new numbers.
pub(super) type CopiedMembers = Vec<Option<u32>>;

/// Items to store again, and which of them are already in the new archive.
pub(super) struct Replacements {
    spool: Spool,
    items: Vec<Replacement>,
    is_written: Vec<[bool; 2]>,
    /// Number of the item, and which of its paths.
    by_path: HashMap<String, (usize, usize)>,
}

impl Replacements {
    pub(super) fn new(spool: Spool, items: Vec<Replacement>) -> Self {
        let paths = items.iter().enumerate().flat_map(|(number, item)| {
            let paths = item.paths.iter().enumerate();
            paths.map(move |(which, path)| (path.clone(), (number, which)))
        });
        let by_path = paths.collect();
        let is_written = vec![[false; 2]; items.len()];
        Self { spool, items, is_written, by_path }
    }

    fn keys(&self) -> impl Iterator<Item = ItemKey> {
        self.items.iter().map(|item| ItemKey::of_path(&item.paths[0]))
    }
}

/// The archive that is being written.
pub(super) struct Rewriter {
    members: mpsc::Sender<Message>,
    replacements: Replacements,
    buffer: MemberBuffer,
    /// The item of the last file. Both of its files go into one member.
    last_item: String,
    /// Number of members sent so far.
    sent: u32,
    seconds: u64,
}

impl Rewriter {
    pub(super) fn new(
        members: mpsc::Sender<Message>,
        replacements: Replacements,
        seconds: u64,
    ) -> Self {
        let (buffer, last_item, sent) = (MemberBuffer::default(), String::new(), 0);
        Self { members, replacements, buffer, last_item, sent, seconds }
    }

    /// Copies an archive, member by member where possible. Returns the members copied as they are. Blocks.
    pub(super) fn copy(
        mut self,
        archive: &File,
        index: Option<&PreviousIndex>,
    ) -> io::Result<CopiedMembers> {
        if let Some(index) = index
            && index.describes(archive)?
        {
            return self.copy_members(archive, index);
        }
        self.copy_files(MultiGzDecoder::new(io::BufReader::new(archive)))?;
        self.append_rest()?;
        self.end()?;
        Ok(CopiedMembers::new())
    }

    fn copy_members(mut self, archive: &File, index: &PreviousIndex) -> io::Result<CopiedMembers> {
        let touched = index.members_of(self.replacements.keys())?;
        let mut copied = CopiedMembers::new();
        let all = &index.root.members;
        for (number, record) in all.iter().enumerate() {
            // The last member ends the archive.
            let is_last = number + 1 == all.len();
            if is_last {
                self.append_rest()?;
            }
            let gzip = read_member(archive, record)?;
            let is_touched = u32::try_from(number).is_ok_and(|number| touched.contains(&number));
            if is_touched {
                self.copy_files(&member_tar(&gzip, record)?[..])?;
                copied.push(None);
            } else {
                self.flush()?;
                copied.push(Some(self.sent));
                let (unpacked, items) = (record.unpacked as usize, record.items as usize);
                let (sha256, keys) = (record.sha256, Vec::new());
                let member = CompressedMember { gzip, sha256, unpacked, items, keys };
                if is_last {
                    self.send(Message::CompressedEnd(member))?;
                    return Ok(copied);
                }
                self.send(Message::Compressed(member))?;
            }
        }
        self.append_rest()?;
        self.end()?;
        Ok(copied)
    }

    /// Copies the files of a tar, replacing some.
    fn copy_files(&mut self, tar: impl io::Read) -> io::Result<()> {
        for entry in tar::Archive::new(tar).entries()? {
            let mut entry = entry?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            if let Some((number, which)) = self.replacements.by_path.remove(&path) {
                self.append_replacement(number, which)?;
                continue;
            }
            let size = entry.size();
            if size > MAX_ITEM_BYTES {
                return Err(io::Error::other(format!(
                    "{path} in the archive is {size} bytes long"
                )));
            }
            let mut content = Vec::new();
            entry.by_ref().take(size).read_to_end(&mut content)?;
            self.append(&path, &content)?;
        }
        Ok(())
    }

    /// Appends the items that the previous archive lacks.
    fn append_rest(&mut self) -> io::Result<()> {
        for number in 0..self.replacements.items.len() {
            for which in 0..2 {
                self.append_replacement(number, which)?;
            }
        }
        Ok(())
    }

    fn append_replacement(&mut self, number: usize, which: usize) -> io::Result<()> {
        if std::mem::replace(&mut self.replacements.is_written[number][which], true) {
            return Ok(());
        }
        let Replacement { paths, place } = self.replacements.items[number].clone();
        let item = self.replacements.spool.get(place)?;
        self.append(&paths[which], item.json())
    }

    fn append(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let item = path_without_version(path);
        let is_plain = item == path;
        if item != self.last_item {
            // Room for both files of the item.
            if self.buffer.len() + 2 * content.len() > MEMBER_BYTES {
                self.flush()?;
            }
            self.last_item = item.into_owned();
        }
        self.buffer.append_file(path, content, self.seconds)?;
        if is_plain && path.starts_with(ITEMS_FOLDER) {
            self.buffer.record_item(ItemKey::of_path(path));
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::take(&mut self.buffer);
        self.send(Message::Member(full))
    }

    fn end(&mut self) -> io::Result<()> {
        let mut last = std::mem::take(&mut self.buffer);
        last.append_end();
        self.send(Message::End(last))
    }

    fn send(&mut self, message: Message) -> io::Result<()> {
        self.sent += 1;
        let upload_ended = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended");
        self.members.blocking_send(message).map_err(upload_ended)
    }
}

/// Reads a member, and checks that it is the one that the index describes.
pub(super) fn read_member(archive: &File, record: &MemberRecord) -> io::Result<Bytes> {
    let mut gzip = vec![0; record.length as usize];
    archive.read_exact_at(&mut gzip, record.offset)?;
    if sha256(&gzip) == record.sha256 {
        return Ok(gzip.into());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "a member of the archive differs from its digest",
    ))
}
