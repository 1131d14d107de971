//! Reads an archive once, into an unnamed temporary file and an index of its items.
//!
//! Nothing is ever written to a path that the archive names. A path becomes a typed key, or the entry is refused
//! with a reason; the remaining entries are still read.
//!
//! An archive is read to its very end, so that a truncated one is detected even if only the checksum of the last
//! part is missing. Each item is checked: it must be JSON, and the object that its path names. Defects are recorded
//! as [`damage`](Contents::damage), which is known before the first object is created.
//!
//! # Limits
//! Limits apply to the size of an entry, the length of names, the number of entries and the memory for their
//! index, the total size and the expansion ratio: a small file must not fill the disk or the memory. Those that
//! depend on the machine are [flags of the server](ExceededLimit::flag).

mod check;
mod contents;
mod error;
mod meter;
mod path;
mod size;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bowline_plugin::{ResourceIdentifier, nesting};
use flate2::read::MultiGzDecoder;

use crate::resource::GroupResource;
use crate::shared_names::SharedNames;
pub use check::Unreadable;
use contents::Extent;
pub use contents::{Contents, Kind};
pub use error::{ArchiveBreak, BreakCause, Defect, ExceededLimit, ReadError, UnpackError};
use meter::{Meter, PackedReader, UnpackedReader};
use path::{ArchiveEntry, BadPath, ItemPath, VersionFolder};
pub(crate) use size::UnpackedSize;

/// Maximum length of an entry's path.
const MAX_PATH_LENGTH: usize = 4096;
/// Number of bytes of a path shown in messages.
const MAX_PATH_SHOWN: usize = 300;

/// Limits on the contents of an archive.
#[derive(Clone, Copy, Debug)]
pub struct UnpackLimits {
    /// Bytes per entry.
    pub entry: u64,
    /// Bytes of all entries.
    pub total: u64,
    /// Bytes kept on disk.
    pub spool: u64,
    /// Number of entries.
    pub entries: u64,
    /// Approximate memory for the index of all entries, in bytes.
    pub index: u64,
    /// Maximum ratio of expanded to compressed size.
    pub ratio: u64,
    /// Expanded size that is allowed regardless of the ratio.
    pub free_expansion: u64,
    /// Number of refusals reported one by one.
    pub refusals: usize,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            // The API server accepts 3 MiB at most.
            entry: 8 << 20,
            total: 16 << 30,
            spool: 8 << 30,
            entries: 20_000_000,
            // A few million items, and less than half of the memory of the server's pod.
            index: 192 << 20,
            // JSON from the API server compresses about twentyfold, and every item is stored twice.
            ratio: 500,
            free_expansion: 64 << 20,
            refusals: 1_000,
        }
    }
}

/// Unpacks an archive. Blocks, so call it on a thread of its own.
pub fn unpack(
    archive: impl Read,
    scratch: &Path,
    limits: UnpackLimits,
) -> Result<Contents, UnpackError> {
    let spool = tempfile::tempfile_in(scratch).map_err(UnpackError::Scratch)?;
    let mut unpacker = Unpacker {
        contents: Contents {
            spool,
            format_version: String::new(),
            kinds: BTreeMap::new(),
            deep_items: HashMap::new(),
            refusals: Vec::new(),
            damage: Vec::new(),
            lost: 0,
            broken: None,
        },
        namespaces: SharedNames::default(),
        limits,
        size: UnpackedSize::default(),
        unreported_refusals: 0,
    };
    let meter = Meter::new(limits);
    let packed = PackedReader { inner: archive, meter: &meter };
    let unpacked = UnpackedReader { inner: MultiGzDecoder::new(packed), meter: &meter };
    let mut tar = tar::Archive::new(unpacked);
    let mut outcome = unpacker.read_entries(&mut tar, &meter)?;
    if outcome.is_ok() {
        outcome = unpacker.drain(tar.into_inner(), &meter);
    }
    // An exceeded limit or a failed download can look like a broken archive.
    meter.failure()?;
    Ok(unpacker.finish(outcome.err()))
}

struct Unpacker {
    contents: Contents,
    /// Namespaces of the index.
    namespaces: SharedNames,
    limits: UnpackLimits,
    size: UnpackedSize,
    unreported_refusals: usize,
}

impl Unpacker {
    fn read_entries(
        &mut self,
        tar: &mut tar::Archive<impl Read>,
        meter: &Meter,
    ) -> Result<Result<(), ArchiveBreak>, UnpackError> {
        let mut entries_read = 0;
        let broken_after = |entries, cause| Ok(Err(ArchiveBreak::Between { entries, cause }));
        for entry in tar.entries().map_err(UnpackError::Scratch)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return broken_after(entries_read, error.into()),
            };
            entries_read += 1;
            if entries_read > self.limits.entries {
                return Err(UnpackError::TooLarge(ExceededLimit::Entries(self.limits.entries)));
            }
            meter.allow(packed_size(&entry));
            if let Err(broken) = self.read_entry(entry)? {
                return Ok(Err(broken));
            }
        }
        // An archive ends with empty blocks.
        if meter.is_at_end() {
            return broken_after(entries_read, BreakCause::EndMissing);
        }
        Ok(Ok(()))
    }

    /// Reads the part after the entries, which must consist of empty blocks and the checksum.
    fn drain(&mut self, mut rest: impl Read, meter: &Meter) -> Result<(), ArchiveBreak> {
        meter.allow(u64::MAX);
        let mut buffer = vec![0; 1 << 15];
        let mut is_empty = true;
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => is_empty &= buffer[..count].iter().all(|byte| *byte == 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveBreak::AtEnd(error.into())),
            }
        }
        if !is_empty {
            self.refuse_item(Defect::TrailingData);
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        mut entry: tar::Entry<'_, impl Read>,
    ) -> Result<Result<(), ArchiveBreak>, UnpackError> {
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            return Ok(Ok(()));
        }
        let path = entry.path_bytes();
        let displayed_path = display_path(&path);
        let parsed = match std::str::from_utf8(&path) {
            Err(_) => Err(BadPath::Invalid("the path is not valid UTF-8")),
            Ok(path) if path.len() > MAX_PATH_LENGTH => {
                Err(BadPath::Invalid("the path is too long"))
            }
            Ok(path) => path::parse(path),
        };
        let parsed = match parsed {
            Ok(_) if !kind.is_file() => {
                self.refuse_item(Defect::NotAFile { path: displayed_path });
                return Ok(Ok(()));
            }
            Ok(parsed) => parsed,
            Err(BadPath::Unknown(reason)) => {
                self.record_refusal(Defect::Path { path: displayed_path, reason });
                return Ok(Ok(()));
            }
            Err(BadPath::Invalid(reason)) => {
                self.refuse_item(Defect::Path { path: displayed_path, reason });
                return Ok(Ok(()));
            }
        };
        if entry.size() > self.limits.entry {
            let limit = self.limits.entry;
            self.refuse_item(Defect::TooLarge { path: displayed_path, limit });
            return Ok(Ok(()));
        }
        let mut content = Vec::with_capacity(usize::try_from(entry.size()).unwrap_or_default());
        let broken = match entry.read_to_end(&mut content) {
            Ok(read) if read as u64 == entry.size() => None,
            Ok(_) => Some(BreakCause::EndMissing),
            Err(error) => Some(error.into()),
        };
        if let Some(cause) = broken {
            return Ok(Err(ArchiveBreak::InEntry { path: displayed_path, cause }));
        }
        match parsed {
            ArchiveEntry::FormatVersion => {
                let text = String::from_utf8_lossy(&content);
                text.trim().clone_into(&mut self.contents.format_version);
            }
            ArchiveEntry::Item(item_path) => {
                self.index_item(displayed_path, item_path, &content)?;
            }
        }
        Ok(Ok(()))
    }

    fn index_item(
        &mut self,
        displayed_path: String,
        item_path: ItemPath,
        content: &[u8],
    ) -> Result<(), UnpackError> {
        let ItemPath { resource, version, namespace, name } = item_path;
        let kind = self.contents.kinds.entry(resource.clone()).or_default();
        let items = match version {
            VersionFolder::None => &mut kind.items,
            VersionFolder::Preferred(version) => {
                let preferred = kind.preferred.get_or_insert_with(|| version.clone());
                if *preferred != version {
                    let preferred = preferred.clone();
                    self.refuse_item(Defect::PreferredVersion { path: displayed_path, preferred });
                    return Ok(());
                }
                // The directory without a version holds, or will hold, the same bytes.
                return Ok(());
            }
            VersionFolder::Other(version) => kind.others.entry(version).or_default(),
        };
        if items.get(&namespace, &name).is_some() {
            self.refuse_item(Defect::Duplicate { path: displayed_path });
            return Ok(());
        }
        let extent = Extent { offset: self.size.spool(), length: content.len() };
        self.size.add_item(namespace.len() + name.len(), content);
        if let Some(limit) = self.size.exceeded_limit(&self.limits) {
            return Err(UnpackError::TooLarge(limit));
        }
        items.insert(self.namespaces.share(&namespace), &name, extent);
        let checked = check::item(content, &namespace, &name);
        if let Ok(levels) = checked
            && levels > nesting::SERDE_MAX_LEVELS
        {
            let GroupResource { group, resource } = resource.clone();
            let id = ResourceIdentifier { group, resource, namespace, name };
            self.contents.deep_items.insert(id, levels);
        }
        let spool = &self.contents.spool;
        spool.write_all_at(content, extent.offset).map_err(UnpackError::Scratch)?;
        if let Err(reason) = checked {
            self.record_damage(Defect::Item { path: displayed_path, reason: Arc::new(reason) });
        }
        Ok(())
    }

    /// Refuses an entry that may have been an item.
    fn refuse_item(&mut self, defect: Defect) {
        self.record_damage(defect.clone());
        self.record_refusal(defect);
    }

    fn record_damage(&mut self, defect: Defect) {
        self.contents.lost += 1;
        if self.contents.damage.len() < self.limits.refusals {
            self.contents.damage.push(defect);
        }
    }

    fn record_refusal(&mut self, defect: Defect) {
        if self.contents.refusals.len() < self.limits.refusals {
            self.contents.refusals.push(defect);
        } else {
            self.unreported_refusals += 1;
        }
    }

    fn finish(mut self, broken: Option<ArchiveBreak>) -> Contents {
        if self.unreported_refusals > 0 {
            self.contents.refusals.push(Defect::More(self.unreported_refusals));
        }
        let defect = broken.clone().map(Defect::Break);
        self.contents.refusals.extend(defect.clone());
        // The most serious defect comes first.
        self.contents.damage.splice(0..0, defect);
        self.contents.broken = broken;
        self.contents
    }
}

/// Size of an entry in the archive. A sparse file expands to more than that.
fn packed_size(entry: &tar::Entry<'_, impl Read>) -> u64 {
    let header = entry.header();
    if header.entry_type().is_gnu_sparse() {
        return header.entry_size().unwrap_or(0);
    }
    entry.size()
}

/// A path for messages.
fn display_path(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH_SHOWN)]);
    let rest = if path.len() > MAX_PATH_SHOWN { "…" } else { "" };
    format!("{text:?}{rest}")
}
