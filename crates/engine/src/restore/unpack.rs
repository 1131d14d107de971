//! Reads an archive once, into a file without a name and an index of what is in it.
//!
//! Nothing is ever written to a path that the archive names. A path becomes a typed key, or the
//! entry is refused with a reason; the rest is read all the same.
//!
//! An archive is read to its very end: one that was cut is told from one that is whole, even where
//! nothing but the checksum of the last piece is missing. And each item in it is looked at: that it is JSON,
//! and the object that its path names. What is wrong with it is its [`damage`](Contents::damage), which is
//! known before the first object is created.
//!
//! # Limits
//! On the size of an entry, on the length of names, on the number of entries and the memory that the index of
//! them takes, on the size of the whole and on how far it may expand: a small file must not fill the disk, nor
//! the memory.

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

/// The longest path that an entry may have.
const MAX_PATH_LENGTH: usize = 4096;
/// How much of a path is told.
const MAX_PATH_SHOWN: usize = 300;

/// How much an archive may hold.
#[derive(Clone, Copy, Debug)]
pub struct UnpackLimits {
    /// The bytes of one entry.
    pub entry: u64,
    /// The bytes of all entries.
    pub total: u64,
    /// The bytes that are kept on disk.
    pub spool: u64,
    /// How many entries.
    pub entries: u64,
    /// The bytes that the index of all entries takes in memory, about.
    pub index: u64,
    /// How many times larger it may be than what it is made from.
    pub ratio: u64,
    /// How far it may expand in any case.
    pub free_expansion: u64,
    /// How many refusals are told one by one.
    pub refusals: usize,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            // The API server takes 3 MiB at most.
            entry: 8 << 20,
            total: 16 << 30,
            spool: 8 << 30,
            entries: 20_000_000,
            // Some million items, and less than half of what the server's pod has.
            index: 192 << 20,
            // The API server's JSON compresses some twenty times, and every item is there twice.
            ratio: 500,
            free_expansion: 64 << 20,
            refusals: 1_000,
        }
    }
}

/// What an archive holds.
#[derive(Debug)]
pub struct Contents {
    spool: File,
    /// The version of its format; empty if it does not say.
    pub format_version: String,
    kinds: BTreeMap<GroupResource, Kind>,
    /// The levels of those items that are nested deeply.
    deep_items: HashMap<ResourceIdentifier, usize>,
    /// Entries that were refused, and why; and what is wrong with the archive as a whole.
    pub refusals: Vec<String>,
    /// What is wrong with the archive, in part or as a whole. Empty if it is whole, and every item in it is
    /// what a backup writes. It holds the refusals, but for those of entries that are no items; and what is
    /// wrong with items that are in the index all the same, since whoever reads them finds it out again.
    pub damage: Vec<String>,
    /// How many items are not there, or cannot be read, as far as that is known.
    pub lost: usize,
    /// Why nothing more could be read, if the archive did not end as it should. It is the last of
    /// the refusals.
    pub broken: Option<String>,
}

/// The items of one resource.
#[derive(Debug, Default)]
pub struct Kind {
    /// The version that the API server preferred when the backup was taken, if it is known.
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
    /// Namespaces and names, in order.
    pub fn items(&self) -> impl Iterator<Item = (&str, &str)> {
        self.items.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// All versions that there are items in.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.preferred.iter().chain(self.others.keys()).map(String::as_str)
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Contents {
    /// The resources that there are items of, in the order of their names.
    pub fn kinds(&self) -> impl Iterator<Item = (&GroupResource, &Kind)> {
        self.kinds.iter()
    }

    /// The items of one resource.
    pub fn kind(&self, resource: &GroupResource) -> Option<&Kind> {
        self.kinds.get(resource)
    }

    /// Whether an item is there.
    pub fn has(&self, id: &ResourceIdentifier) -> bool {
        let resource = GroupResource::new(&id.group, &id.resource);
        let key = (id.namespace.clone(), id.name.clone());
        self.kinds.get(&resource).is_some_and(|kind| kind.items.contains_key(&key))
    }

    /// How many bytes an item has; none if it is not there.
    pub fn size(&self, id: &ResourceIdentifier) -> usize {
        let resource = GroupResource::new(&id.group, &id.resource);
        let key = (id.namespace.clone(), id.name.clone());
        let extent = self.kinds.get(&resource).and_then(|kind| kind.items.get(&key));
        extent.map_or(0, |extent| extent.length)
    }

    /// How many levels the values of an item are nested; 0 if that is nothing out of the ordinary.
    pub fn levels(&self, id: &ResourceIdentifier) -> usize {
        self.deep_items.get(id).copied().unwrap_or(0)
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.kinds.values().map(Kind::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The namespaces that something is in.
    pub fn namespaces(&self) -> Vec<&str> {
        let all = self.kinds.values().flat_map(Kind::items).map(|(namespace, _)| namespace);
        let mut namespaces: Vec<&str> = all.filter(|namespace| !namespace.is_empty()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces
    }

    /// Reads an item, in one of the versions that there are; without one, in the preferred.
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

    /// What stands for a resource of the archive that nobody serves, as one of its items tells it.
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

    /// Reads an item and checks that it is the one that its path names.
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
        // Filters go by the folder, and what is written by what the object says.
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

/// What an object says that it is.
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
    /// It is not in the archive.
    #[error("it is not in the backup")]
    Missing,
    /// It could not be read back.
    #[error("it cannot be read back from the scratch folder: {0}")]
    Scratch(#[from] io::Error),
    /// It is no object.
    #[error("what the backup has of it is no object: {0}")]
    Object(#[from] InvalidObject),
    /// It says of itself that it is another one.
    #[error("what the backup has under its name says that it is {0}")]
    Mismatch(String),
}

/// Why an archive cannot be unpacked at all.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// There is no room.
    #[error("cannot use the scratch folder: {0}")]
    Scratch(io::Error),
    /// It is larger than allowed.
    #[error("the archive is refused: {0}")]
    TooLarge(String),
    /// It did not come.
    #[error("the archive does not come from the bucket: {0}")]
    Source(io::Error),
}

/// Unpacks an archive. It blocks, so it has a thread of its own.
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
    // What looks like a broken archive may be none.
    meter.failure()?;
    Ok(unpacker.finish(outcome.err()))
}

struct Unpacker {
    contents: Contents,
    limits: UnpackLimits,
    end: u64,
    /// What the index takes in memory so far, about.
    index: u64,
    unreported_refusals: usize,
}

/// What an entry of the index takes beside its names, about.
const INDEX_ENTRY_BYTES: usize = 128;

/// Why an archive cannot be read any further.
type BreakReason = String;

impl Unpacker {
    /// Takes all entries in.
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

    /// Reads what comes after the entries: nothing but empty blocks, and the checksum.
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

    /// Takes one entry in.
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
                // The same bytes lie, or will lie, in the folder without a version.
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
        // The worst comes first.
        self.contents.damage.splice(0..0, broken.clone());
        self.contents.broken = broken;
        self.contents
    }
}

/// What an entry takes in the archive. A sparse file is larger than that.
fn packed_size(entry: &tar::Entry<'_, impl Read>) -> u64 {
    let header = entry.header();
    if header.entry_type().is_gnu_sparse() {
        return header.entry_size().unwrap_or(0);
    }
    entry.size()
}

/// A path as it is told.
fn display_path(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH_SHOWN)]);
    let rest = if path.len() > MAX_PATH_SHOWN { "…" } else { "" };
    format!("{text:?}{rest}")
}
