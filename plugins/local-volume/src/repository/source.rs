//! A clone as the library of the repository reads it.
//!
//! The library leaves out what it cannot read and goes on. Here a failure stops the whole upload: a
//! snapshot that lacks a file must not count as one.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bowline_plugin_sdk::one_line;
use rustic_core::{
    ErrorKind, ReadSource, ReadSourceEntry, ReadSourceOpen, RusticError, RusticResult,
};
use rustix::fs::readlinkat;

use super::node::{Entry, to_node};
use crate::pace::Pace;
use crate::stop::Stop;
use crate::tree::meta::{Kind, Meta};
use crate::tree::{Failed, beneath, join, xattr};

/// The name of the tree in the repository, so that the folder itself has an entry.
pub(crate) const TOP: &CStr = c"data";

/// How far an upload is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Bytes read so far.
    pub done: AtomicU64,
    /// Bytes in all files; zero as long as it is not known.
    pub total: AtomicU64,
}

/// What is in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    /// What is no folder.
    pub entries: u64,
    /// Bytes in files, by each of their names.
    pub bytes: u64,
}

/// A tree that is read.
#[derive(Clone)]
pub(super) struct Source {
    tree: Arc<OwnedFd>,
    pace: Arc<Pace>,
    stop: Arc<Stop>,
    progress: Arc<Progress>,
}

impl Source {
    pub(super) fn new(tree: OwnedFd, pace: Pace, stop: Arc<Stop>, progress: Arc<Progress>) -> Self {
        Self { tree: Arc::new(tree), pace: Arc::new(pace), stop, progress }
    }

    /// What there is to read.
    pub(super) fn amount(&self) -> Result<Amount, Failed> {
        let mut amount = Amount::default();
        for found in Walk::new(self.clone()) {
            let (_, entry) = found?;
            if entry.meta.kind != Kind::Dir {
                amount.entries += 1;
            }
            if entry.meta.kind == Kind::File {
                amount.bytes += entry.meta.size;
            }
        }
        Ok(amount)
    }
}

impl ReadSource for Source {
    type Open = Content;
    type Iter = Entries;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(Some(self.progress.total.load(Relaxed)))
    }

    fn entries(&self) -> Entries {
        Entries { walk: Walk::new(self.clone()), source: self.clone() }
    }
}

fn uploading<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> Failed + use<E> {
    Failed::io("upload", path)
}

/// The entries of a tree as nodes.
pub(super) struct Entries {
    walk: Walk,
    source: Source,
}

impl Iterator for Entries {
    type Item = RusticResult<ReadSourceEntry<Content>>;

    fn next(&mut self) -> Option<Self::Item> {
        // To end early is safe: after a stop nothing is written, the snapshot least of all.
        if self.source.stop.is_set() {
            return None;
        }
        let found = self.walk.next()?.and_then(|(path, entry)| {
            let node = to_node(&entry);
            let node = node.map_err(|unfit| uploading(&path)(io::Error::other(unfit)))?;
            Ok((path, entry, node))
        });
        let (path, entry, node) = match found {
            Ok(found) => found,
            Err(failed) => {
                self.source.stop.fail(one_line(&failed));
                return None;
            }
        };
        let size = entry.meta.size;
        let open = (entry.meta.kind == Kind::File).then(|| Content {
            source: self.source.clone(),
            path: path.clone(),
            size,
        });
        let top = join(Path::new(""), TOP);
        let path = if path.as_os_str().is_empty() { top } else { top.join(path) };
        Some(Ok(ReadSourceEntry { path, node, open }))
    }
}

/// A file that can be read.
pub(super) struct Content {
    source: Source,
    path: PathBuf,
    size: u64,
}

impl ReadSourceOpen for Content {
    type Reader = Reader;

    fn open(self) -> RusticResult<Reader> {
        let Self { source, path, size } = self;
        let open = || -> rustix::io::Result<File> {
            let above = path.parent().unwrap_or(Path::new(""));
            let folder = beneath::folder(source.tree.as_fd(), above)?;
            let name = path.file_name().unwrap_or_default();
            let name = CString::new(name.as_bytes()).map_err(|_| rustix::io::Errno::INVAL)?;
            Ok(beneath::entry(folder.as_fd(), &name)?.into())
        };
        match open() {
            Ok(file) => Ok(Reader { file, source, path, left: size }),
            Err(errno) => {
                let why = one_line(&uploading(&path)(errno));
                source.stop.fail(&why);
                Err(RusticError::new(ErrorKind::InputOutput, why))
            }
        }
    }
}

/// A file that is read.
pub(super) struct Reader {
    file: File,
    source: Source,
    path: PathBuf,
    left: u64,
}

impl Reader {
    fn fail(&self, error: io::Error) -> io::Error {
        let why = one_line(&uploading(&self.path)(error));
        self.source.stop.fail(&why);
        io::Error::other(why)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(reason) = self.source.stop.reason() {
            return Err(io::Error::other(reason.to_owned()));
        }
        let length = match self.file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => return Err(self.fail(error)),
            Ok(length) => length,
        };
        let is_end = length == 0 && !buffer.is_empty();
        match self.left.checked_sub(length as u64) {
            Some(left) if !is_end || left == 0 => self.left = left,
            // Nobody changes a clone, so something is wrong with it, or with us.
            _ => return Err(self.fail(io::Error::other("it has another length than it had"))),
        }
        self.source.pace.pass(length as u64, &self.source.stop);
        self.source.progress.done.fetch_add(length as u64, Relaxed);
        Ok(length)
    }
}

/// Goes through a tree from above to below, in each folder in the order of names, as the repository
/// keeps them. The folder itself comes first, with an empty path.
struct Walk {
    source: Source,
    /// For each open level the folder and the names that are left, the next one last.
    levels: Vec<(PathBuf, Vec<CString>)>,
    has_begun: bool,
}

impl Walk {
    fn new(source: Source) -> Self {
        Self { source, levels: Vec::new(), has_begun: false }
    }

    fn top(&mut self) -> Result<(PathBuf, Entry), Failed> {
        let path = PathBuf::new();
        let tree = self.source.tree.as_fd();
        let meta = Meta::of(tree).map_err(Failed::io("look at", &path))?;
        let meta = meta.ok_or_else(|| Failed::Type { path: path.clone() })?;
        let xattrs =
            xattr::read(tree, c".").map_err(Failed::io("read the attributes of", &path))?;
        self.descend(&path)?;
        Ok((path, Entry { name: TOP.to_owned(), meta, xattrs, target: None }))
    }

    fn descend(&mut self, path: &Path) -> Result<(), Failed> {
        let failed = || Failed::io("list", path);
        let folder = beneath::folder(self.source.tree.as_fd(), path).map_err(failed())?;
        let names = beneath::names(&folder).map_err(failed())?;
        let mut names: Vec<CString> = names.collect::<Result<_, _>>().map_err(failed())?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push((path.to_owned(), names));
        Ok(())
    }

    fn entry(&mut self, above: &Path, name: CString) -> Result<(PathBuf, Entry), Failed> {
        let path = above.join(OsStr::from_bytes(name.to_bytes()));
        let failed = |doing| Failed::io(doing, &path);
        let folder = beneath::folder(self.source.tree.as_fd(), above).map_err(failed("open"))?;
        let folder = folder.as_fd();
        let meta = Meta::at(folder, &name).map_err(failed("look at"))?;
        let meta = meta.ok_or_else(|| Failed::Type { path: path.clone() })?;
        let xattrs = xattr::read(folder, &name).map_err(failed("read the attributes of"))?;
        let target = match meta.kind {
            Kind::Symlink => Some(readlinkat(folder, &name, Vec::new()).map_err(failed("read"))?),
            Kind::Dir => {
                self.descend(&path)?;
                None
            }
            _ => None,
        };
        Ok((path, Entry { name, meta, xattrs, target }))
    }
}

impl Iterator for Walk {
    type Item = Result<(PathBuf, Entry), Failed>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_begun {
            self.has_begun = true;
            return Some(self.top());
        }
        loop {
            let (path, names) = self.levels.last_mut()?;
            if let Some(name) = names.pop() {
                let path = path.clone();
                return Some(self.entry(&path, name));
            }
            self.levels.pop();
        }
    }
}
