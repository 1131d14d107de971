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
//! index, the total size and the expansion ratio: a small file must not fill the disk or the memory.

mod check;
mod meter;
mod path;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bowline_plugin::{Item, ResourceIdentifier, nesting};
use flate2::read::MultiGzDecoder;

use crate::item::{InvalidObject, Object};
use crate::resource::{GroupResource, Resource};
use meter::{Meter, PackedReader, UnpackedReader};
use path::{ArchiveEntry, BadPath, ItemPath, VersionFolder};

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

/// Contents of an archive.
#[derive(Debug)]
pub struct Contents {
    spool: File,
    /// Version of the archive format; empty if not specified.
    pub format_version: String,
    kinds: BTreeMap<GroupResource, Kind>,
    /// Nesting depth of deeply nested items.
    deep_items: HashMap<ResourceIdentifier, usize>,
    /// Refused entries with reasons, and defects of the archive as a whole.
    pub refusals: Vec<String>,
    /// Defects of the archive, of parts or of the whole. Empty if it is complete and every item is what a backup
    /// writes. Includes the refusals, except those of entries that are not items, and the defects of items that are
    /// still in the index, since reading them detects the defect again.
    pub damage: Vec<String>,
    /// Number of items that are missing or unreadable, as far as known.
    pub lost: usize,
    /// The reason why reading stopped, if the archive did not end properly. Also the last of the refusals.
    pub broken: Option<String>,
}

/// The items of one resource.
#[derive(Debug, Default)]
pub struct Kind {
    /// The version that the API server preferred when the backup was taken, if known.
    pub preferred: Option<String>,
    items: BTreeMap<(String, String), Extent>,
    /// Items in other versions than the preferred one.
    others: BTreeMap<String, BTreeMap<(String, String), Extent>>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    length: usize,
}

impl Kind {
    /// Namespaces and names, sorted.
    pub fn items(&self) -> impl Iterator<Item = (&str, &str)> {
        self.items.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// All versions in which items are stored.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.preferred.iter().chain(self.others.keys()).map(String::as_str)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Contents {
    /// The resources that have items, sorted by name.
    pub fn kinds(&self) -> impl Iterator<Item = (&GroupResource, &Kind)> {
        self.kinds.iter()
    }

    /// The items of one resource.
    pub fn kind(&self, resource: &GroupResource) -> Option<&Kind> {
        self.kinds.get(resource)
    }

    /// True if the archive contains an item.
    pub fn has(&self, id: &ResourceIdentifier) -> bool {
        let resource = GroupResource::new(&id.group, &id.resource);
        let key = (id.namespace.clone(), id.name.clone());
        self.kinds.get(&resource).is_some_and(|kind| kind.items.contains_key(&key))
    }

    /// Size of an item in bytes; 0 if it is missing.
    pub fn size(&self, id: &ResourceIdentifier) -> usize {
        let resource = GroupResource::new(&id.group, &id.resource);
        let key = (id.namespace.clone(), id.name.clone());
        let extent = self.kinds.get(&resource).and_then(|kind| kind.items.get(&key));
        extent.map_or(0, |extent| extent.length)
    }

    /// Nesting depth of an item's values; 0 if it is not unusual.
    pub fn levels(&self, id: &ResourceIdentifier) -> usize {
        self.deep_items.get(id).copied().unwrap_or(0)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.kinds.values().map(Kind::len).sum()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Namespaces that contain items.
    pub fn namespaces(&self) -> Vec<&str> {
        let all = self.kinds.values().flat_map(Kind::items).map(|(namespace, _)| namespace);
        let mut namespaces: Vec<&str> = all.filter(|namespace| !namespace.is_empty()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces
    }

    /// Reads an item in one of its stored versions; without `version`, in the preferred one.
    pub fn read(
        &self,
        resource: &GroupResource,
        version: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<Item, ReadError> {
        let key = (namespace.to_owned(), name.to_owned());
        let kind = self.kinds.get(resource).ok_or(ReadError::Missing)?;
        let other = version.and_then(|version| kind.others.get(version));
        let extent = match other {
            Some(items) => items.get(&key),
            None => kind.items.get(&key),
        };
        let extent = extent.ok_or(ReadError::Missing)?;
        let mut json = vec![0; extent.length];
        self.spool.read_exact_at(&mut json, extent.offset)?;
        Ok(Item::from_json(json).map_err(InvalidObject::Item)?)
    }

    /// Stand-in for a resource that the cluster does not serve, derived from one of its items.
    pub fn resource(&self, id: &GroupResource, namespace: &str, name: &str) -> Option<Resource> {
        let item = self.read(id, None, namespace, name).ok()?;
        let Type { kind, api_version } = Type::of(&item).ok()?;
        let version = api_version.rsplit_once('/').map_or(&*api_version, |(_, version)| version);
        Some(Resource {
            id: id.clone(),
            version: version.to_owned(),
            singular: kind.to_ascii_lowercase(),
            kind,
            short_names: Vec::new(),
            is_namespaced: !namespace.is_empty(),
            verbs: Vec::new(),
        })
    }

    /// Reads an item and verifies that it is the one that its path names.
    pub fn object(
        &self,
        resource: &std::sync::Arc<Resource>,
        version: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<Object, ReadError> {
        let item = self.read(&resource.id, version, namespace, name)?;
        let object = Object::new(resource, item)?;
        if object.namespace != namespace || object.name != name {
            let actual = format!("{}/{}", object.namespace, object.name);
            return Err(ReadError::Mismatch(actual));
        }
        // Filters use the directory, writes use the object's own type, so both must agree.
        match Type::of(&object.item)? {
            Type { kind, api_version }
                if kind == resource.kind && group_of(&api_version) == resource.id.group =>
            {
                Ok(object)
            }
            Type { kind, api_version } => {
                Err(ReadError::Mismatch(format!("a {kind} of {api_version:?}")))
            }
        }
    }
}

/// Type that an object declares.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Type {
    kind: String,
    api_version: String,
}

impl Type {
    fn of(item: &Item) -> Result<Self, InvalidObject> {
        item.parse().map_err(InvalidObject::Item)
    }
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Why an item of an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The archive does not contain the item.
    #[error("it is not in the backup")]
    Missing,
    /// The temporary file could not be read.
    #[error("it cannot be read back from the scratch folder: {0}")]
    Scratch(#[from] io::Error),
    /// The item is not a valid object.
    #[error("what the backup has of it is no object: {0}")]
    Object(#[from] InvalidObject),
    /// The object declares a different identity.
    #[error("what the backup has under its name says that it is {0}")]
    Mismatch(String),
}

/// Why an archive cannot be unpacked at all.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The temporary file could not be written.
    #[error("cannot use the scratch folder: {0}")]
    Scratch(io::Error),
    /// The archive exceeds a limit.
    #[error("the archive is refused: {0}")]
    TooLarge(String),
    /// The download failed.
    #[error("the archive does not come from the bucket: {0}")]
    Source(io::Error),
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
        limits,
        end: 0,
        index: 0,
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
    limits: UnpackLimits,
    end: u64,
    /// Approximate memory used by the index so far.
    index: u64,
    unreported_refusals: usize,
}

/// Approximate memory per index entry, without its names.
const INDEX_ENTRY_BYTES: usize = 128;

/// Why the rest of an archive cannot be read.
type BreakReason = String;

impl Unpacker {
    fn read_entries(
        &mut self,
        tar: &mut tar::Archive<impl Read>,
        meter: &Meter,
    ) -> Result<Result<(), BreakReason>, UnpackError> {
        let mut entries_read = 0;
        let broken_after = |entries_read: u64, reason: &str| {
            Ok(Err(format!("the archive breaks off after {entries_read} entries: {reason}")))
        };
        for entry in tar.entries().map_err(UnpackError::Scratch)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return broken_after(entries_read, &error.to_string()),
            };
            entries_read += 1;
            if entries_read > self.limits.entries {
                let text = format!("it has more than {} entries", self.limits.entries);
                return Err(UnpackError::TooLarge(text));
            }
            meter.allow(packed_size(&entry));
            if let Err(broken) = self.read_entry(entry)? {
                return Ok(Err(broken));
            }
        }
        // An archive ends with empty blocks.
        if meter.is_at_end() {
            return broken_after(entries_read, "its end is missing");
        }
        Ok(Ok(()))
    }

    /// Reads the part after the entries, which must consist of empty blocks and the checksum.
    fn drain(&mut self, mut rest: impl Read, meter: &Meter) -> Result<(), BreakReason> {
        meter.allow(u64::MAX);
        let mut buffer = vec![0; 1 << 15];
        let mut is_empty = true;
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => is_empty &= buffer[..count].iter().all(|byte| *byte == 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("the archive breaks off at its end: {error}")),
            }
        }
        if !is_empty {
            self.refuse_item("there is something behind the end of the archive".to_owned());
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        mut entry: tar::Entry<'_, impl Read>,
    ) -> Result<Result<(), BreakReason>, UnpackError> {
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            return Ok(Ok(()));
        }
        let path = entry.path_bytes();
        let path_text = display_path(&path);
        let parsed = match std::str::from_utf8(&path) {
            Err(_) => Err(BadPath::Invalid("it is no text")),
            Ok(path) if path.len() > MAX_PATH_LENGTH => Err(BadPath::Invalid("it is too long")),
            Ok(path) => path::parse(path),
        };
        let parsed = match parsed {
            Ok(_) if !kind.is_file() => {
                self.refuse_item(format!("{path_text} is no file"));
                return Ok(Ok(()));
            }
            Ok(parsed) => parsed,
            Err(BadPath::Unknown(reason)) => {
                self.record_refusal(format!("{path_text}: {reason}"));
                return Ok(Ok(()));
            }
            Err(BadPath::Invalid(reason)) => {
                self.refuse_item(format!("{path_text}: {reason}"));
                return Ok(Ok(()));
            }
        };
        if entry.size() > self.limits.entry {
            let limit = self.limits.entry;
            self.refuse_item(format!("{path_text} is larger than {limit} bytes"));
            return Ok(Ok(()));
        }
        let mut content = Vec::new();
        let broken = match entry.read_to_end(&mut content) {
            Ok(read) if read as u64 == entry.size() => None,
            Ok(_) => Some("its end is missing".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = broken {
            return Ok(Err(format!("the archive breaks off in {path_text}: {reason}")));
        }
        match parsed {
            ArchiveEntry::FormatVersion => {
                let text = String::from_utf8_lossy(&content);
                text.trim().clone_into(&mut self.contents.format_version);
            }
            ArchiveEntry::Item(item_path) => self.index_item(&path_text, item_path, &content)?,
        }
        Ok(Ok(()))
    }

    fn index_item(
        &mut self,
        path_text: &str,
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
                    let text = format!("{path_text}: the preferred version is {preferred} already");
                    self.refuse_item(text);
                    return Ok(());
                }
                // The directory without a version holds, or will hold, the same bytes.
                return Ok(());
            }
            VersionFolder::Other(version) => kind.others.entry(version).or_default(),
        };
        let key = (namespace, name);
        if items.contains_key(&key) {
            self.refuse_item(format!("{path_text} is there twice; the first one counts"));
            return Ok(());
        }
        self.index += (INDEX_ENTRY_BYTES + key.0.len() + key.1.len()) as u64;
        if self.index > self.limits.index {
            let text = format!("its index takes more than {} bytes", self.limits.index);
            return Err(UnpackError::TooLarge(text));
        }
        let extent = Extent { offset: self.end, length: content.len() };
        self.end += content.len() as u64;
        if self.end > self.limits.spool {
            let text = format!("its items take more than {} bytes", self.limits.spool);
            return Err(UnpackError::TooLarge(text));
        }
        let checked = check::item(content, &key.0, &key.1);
        if let Ok(levels) = checked
            && levels > nesting::SERDE_MAX_LEVELS
        {
            let (namespace, name) = key.clone();
            let GroupResource { group, resource } = resource.clone();
            let id = ResourceIdentifier { group, resource, namespace, name };
            self.contents.deep_items.insert(id, levels);
        }
        items.insert(key, extent);
        let spool = &self.contents.spool;
        spool.write_all_at(content, extent.offset).map_err(UnpackError::Scratch)?;
        if let Err(reason) = checked {
            self.record_damage(format!("{path_text}: {reason}"));
        }
        Ok(())
    }

    /// Refuses an entry that may have been an item.
    fn refuse_item(&mut self, reason: String) {
        self.record_damage(reason.clone());
        self.record_refusal(reason);
    }

    fn record_damage(&mut self, reason: String) {
        self.contents.lost += 1;
        if self.contents.damage.len() < self.limits.refusals {
            self.contents.damage.push(reason);
        }
    }

    fn record_refusal(&mut self, reason: String) {
        if self.contents.refusals.len() < self.limits.refusals {
            self.contents.refusals.push(reason);
        } else {
            self.unreported_refusals += 1;
        }
    }

    fn finish(mut self, broken: Option<BreakReason>) -> Contents {
        if self.unreported_refusals > 0 {
            let text = format!("and {} more entries were refused", self.unreported_refusals);
            self.contents.refusals.push(text);
        }
        self.contents.refusals.extend(broken.clone());
        // The most serious defect comes first.
        self.contents.damage.splice(0..0, broken.clone());
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
