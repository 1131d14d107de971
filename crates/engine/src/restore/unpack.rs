//! Reads an archive once, into a file without a name and an index of what is in it.
//!
//! Nothing is ever written to a path that the archive names. A path becomes a typed key, or the
//! entry is refused with a reason; the rest is read all the same.
//!
//! # Limits
//! On the size of an entry, on the number of entries, on the size of the whole and on how far it may
//! expand: a small file must not fill the disk.

mod path;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bowline_plugin::{Item, ResourceIdentifier};
use flate2::read::MultiGzDecoder;

use crate::item::{InvalidObject, Object};
use crate::resource::{GroupResource, Resource};
use path::{Entry, Place, VersionFolder};

/// How much an archive may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes of one entry.
    pub entry: u64,
    /// The bytes of all entries.
    pub total: u64,
    /// How many entries.
    pub entries: u64,
    /// How many times larger it may be than what it is made from, beyond [`Limits::FREE`].
    pub ratio: u64,
    /// How many refusals are told one by one.
    pub refusals: usize,
}

impl Limits {
    /// How far an archive may expand in any case.
    pub const FREE: u64 = 64 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entry: 64 << 20,
            total: 256 << 30,
            entries: 20_000_000,
            // The API server's JSON compresses some twenty times, and every item is there twice.
            ratio: 500,
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
    /// Entries that were refused, and why; and whether the archive ended as it should.
    pub refusals: Vec<String>,
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
            let lie = format!("{}/{}", object.namespace, object.name);
            return Err(ReadError::Lies(lie));
        }
        Ok(object)
    }
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
    Lies(String),
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
}

/// Unpacks an archive. It blocks, so it has a thread of its own.
pub fn unpack(archive: impl Read, scratch: &Path, limits: Limits) -> Result<Contents, UnpackError> {
    let spool = tempfile::tempfile_in(scratch).map_err(UnpackError::Scratch)?;
    let mut unpacking = Unpacking {
        contents: Contents {
            spool,
            format_version: String::new(),
            kinds: BTreeMap::new(),
            refusals: Vec::new(),
        },
        limits,
        end: 0,
        untold: 0,
    };
    let packed = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = Counted { inner: archive, count: std::rc::Rc::clone(&packed) };
    let mut tar = tar::Archive::new(MultiGzDecoder::new(counted));
    let entries = tar.entries().map_err(UnpackError::Scratch)?;
    let mut seen = 0;
    for entry in entries {
        seen += 1;
        if seen > limits.entries {
            let text = format!("it has more than {} entries", limits.entries);
            return Err(UnpackError::TooLarge(text));
        }
        match entry {
            Ok(entry) => {
                if !unpacking.take(entry)? {
                    break;
                }
            }
            Err(error) => {
                unpacking.refuse(format!("the archive breaks off after {seen} entries: {error}"));
                break;
            }
        }
        unpacking.check_size(packed.get())?;
    }
    Ok(unpacking.finish())
}

struct Unpacking {
    contents: Contents,
    limits: Limits,
    end: u64,
    untold: usize,
}

impl Unpacking {
    /// Takes one entry in. False if nothing can be read after it.
    fn take(&mut self, mut entry: tar::Entry<'_, impl Read>) -> Result<bool, UnpackError> {
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            return Ok(true);
        }
        let place = match path::parse(&path) {
            Ok(_) if !kind.is_file() => {
                self.refuse(format!("{path:?} is no file"));
                return Ok(true);
            }
            Ok(place) => place,
            Err(reason) => {
                self.refuse(format!("{path:?}: {reason}"));
                return Ok(true);
            }
        };
        if entry.size() > self.limits.entry {
            let limit = self.limits.entry;
            self.refuse(format!("{path:?} is larger than {limit} bytes"));
            return Ok(true);
        }
        let mut content = Vec::new();
        if let Err(error) = entry.read_to_end(&mut content) {
            self.refuse(format!("the archive breaks off in {path:?}: {error}"));
            return Ok(false);
        }
        match place {
            Entry::FormatVersion => {
                let text = String::from_utf8_lossy(&content);
                text.trim().clone_into(&mut self.contents.format_version);
            }
            Entry::Item(place) => self.keep(&path, place, &content)?,
        }
        Ok(true)
    }

    fn keep(&mut self, path: &str, place: Place, content: &[u8]) -> Result<(), UnpackError> {
        let Place { resource, version, namespace, name } = place;
        let kind = self.contents.kinds.entry(resource).or_default();
        let items = match version {
            VersionFolder::None => &mut kind.items,
            VersionFolder::Preferred(version) => {
                let preferred = kind.preferred.get_or_insert_with(|| version.clone());
                if *preferred != version {
                    let text = format!("{path:?}: the preferred version is {preferred} already");
                    self.refuse(text);
                    return Ok(());
                }
                // The same bytes lie, or will lie, in the folder without a version.
                return Ok(());
            }
            VersionFolder::Other(version) => kind.others.entry(version).or_default(),
        };
        let key = (namespace, name);
        if items.contains_key(&key) {
            self.refuse(format!("{path:?} is there twice; the first one counts"));
            return Ok(());
        }
        let extent = Extent { offset: self.end, length: content.len() };
        items.insert(key, extent);
        let spool = &self.contents.spool;
        spool.write_all_at(content, extent.offset).map_err(UnpackError::Scratch)?;
        self.end += content.len() as u64;
        Ok(())
    }

    fn check_size(&self, packed: u64) -> Result<(), UnpackError> {
        let Limits { total, ratio, .. } = self.limits;
        if self.end > total {
            return Err(UnpackError::TooLarge(format!("it holds more than {total} bytes")));
        }
        if self.end > Limits::FREE && self.end / ratio > packed {
            let text = format!("it expands to more than {ratio} times its size");
            return Err(UnpackError::TooLarge(text));
        }
        Ok(())
    }

    fn refuse(&mut self, reason: String) {
        if self.contents.refusals.len() < self.limits.refusals {
            self.contents.refusals.push(reason);
        } else {
            self.untold += 1;
        }
    }

    fn finish(mut self) -> Contents {
        if self.untold > 0 {
            let text = format!("and {} more entries were refused", self.untold);
            self.contents.refusals.push(text);
        }
        self.contents
    }
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    count: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}
