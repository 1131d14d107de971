//! A clone as a source for the repository library.
//!
//! The library skips unreadable entries and continues. Here a failure stops the whole upload: a
//! snapshot that lacks a file must not count as complete.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bowline_plugin_sdk::error_chain;
use rustic_core::{
    ErrorKind, ReadSource, ReadSourceEntry, ReadSourceOpen, RusticError, RusticResult,
};
use rustix::fs::readlinkat;

use super::node::{TreeEntry, to_node};
use crate::rate_limiter::ByteRateLimiter;
use crate::stop_signal::StopSignal;
use crate::tree::meta::{Kind, Meta};
use crate::tree::{TreeError, beneath, join, xattr};

/// The name of the tree in the repository, so that the folder itself has an entry.
pub(crate) const TOP_NAME: &CStr = c"data";

/// Progress of an upload.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    /// Bytes read so far.
    pub done: AtomicU64,
    /// Bytes in all files; zero until known.
    pub total: AtomicU64,
}

/// Size of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeSize {
    /// Number of entries, without folders.
    pub entries: u64,
    /// Bytes in files, counted for each of their names.
    pub bytes: u64,
}

/// A tree to upload.
#[derive(Clone)]
pub(super) struct TreeSource {
    tree: Arc<OwnedFd>,
    limiter: Arc<ByteRateLimiter>,
    stop: Arc<StopSignal>,
    progress: Arc<UploadProgress>,
}

impl TreeSource {
    pub(super) fn new(
        tree: OwnedFd,
        limiter: ByteRateLimiter,
        stop: Arc<StopSignal>,
        progress: Arc<UploadProgress>,
    ) -> Self {
        Self { tree: Arc::new(tree), limiter: Arc::new(limiter), stop, progress }
    }

    /// Measures the tree.
    pub(super) fn measure(&self) -> Result<TreeSize, TreeError> {
        let mut amount = TreeSize::default();
        for found in TreeWalk::new(self.clone()) {
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

impl ReadSource for TreeSource {
    type Open = FileContent;
    type Iter = Entries;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(Some(self.progress.total.load(Relaxed)))
    }

    fn entries(&self) -> Entries {
        Entries { walk: TreeWalk::new(self.clone()), source: self.clone() }
    }
}

fn upload_error<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> TreeError + use<E> {
    TreeError::io("upload", path)
}

/// The entries of a tree as nodes.
pub(super) struct Entries {
    walk: TreeWalk,
    source: TreeSource,
}

impl Iterator for Entries {
    type Item = RusticResult<ReadSourceEntry<FileContent>>;

    fn next(&mut self) -> Option<Self::Item> {
        // Ending early is safe: after a stop nothing is written, least of all the snapshot.
        if self.source.stop.is_set() {
            return None;
        }
        let found = self.walk.next()?.and_then(|(path, entry)| {
            let node = to_node(&entry);
            let node = node.map_err(|unfit| upload_error(&path)(io::Error::other(unfit)))?;
            Ok((path, entry, node))
        });
        let (path, entry, node) = match found {
            Ok(found) => found,
            Err(failed) => {
                self.source.stop.fail(error_chain(&failed));
                return None;
            }
        };
        let size = entry.meta.size;
        let open = (entry.meta.kind == Kind::File).then(|| FileContent {
            source: self.source.clone(),
            path: path.clone(),
            size,
        });
        let top = join(Path::new(""), TOP_NAME);
        let path = if path.as_os_str().is_empty() { top } else { top.join(path) };
        Some(Ok(ReadSourceEntry { path, node, open }))
    }
}

/// A file to upload.
pub(super) struct FileContent {
    source: TreeSource,
    path: PathBuf,
    size: u64,
}

impl ReadSourceOpen for FileContent {
    type Reader = ContentReader;

    fn open(self) -> RusticResult<ContentReader> {
        let Self { source, path, size } = self;
        let open = || -> rustix::io::Result<File> {
            let above = path.parent().unwrap_or(Path::new(""));
            let folder = beneath::open_folder(source.tree.as_fd(), above)?;
            let name = path.file_name().unwrap_or_default();
            let name = CString::new(name.as_bytes()).map_err(|_| rustix::io::Errno::INVAL)?;
            Ok(beneath::open_entry(folder.as_fd(), &name)?.into())
        };
        match open() {
            Ok(file) => Ok(ContentReader { file, source, path, remaining: size }),
            Err(errno) => {
                let reason = error_chain(&upload_error(&path)(errno));
                source.stop.fail(&reason);
                Err(RusticError::new(ErrorKind::InputOutput, reason))
            }
        }
    }
}

/// Reads a file.
pub(super) struct ContentReader {
    file: File,
    source: TreeSource,
    path: PathBuf,
    remaining: u64,
}

impl ContentReader {
    fn fail(&self, error: io::Error) -> io::Error {
        let reason = error_chain(&upload_error(&self.path)(error));
        self.source.stop.fail(&reason);
        io::Error::other(reason)
    }
}

impl Read for ContentReader {
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
        match self.remaining.checked_sub(length as u64) {
            Some(remaining) if !is_end || remaining == 0 => self.remaining = remaining,
            // A clone never changes, so this is corruption or a bug.
            _ => return Err(self.fail(io::Error::other("the length of the file has changed"))),
        }
        self.source.limiter.wait_for(length as u64, &self.source.stop);
        self.source.progress.done.fetch_add(length as u64, Relaxed);
        Ok(length)
    }
}

/// Walks through a tree from top to bottom, each folder in the order of names, as the repository
/// stores them. The folder itself comes first, with an empty path.
struct TreeWalk {
    source: TreeSource,
    /// For each open level the folder and the remaining names, the next one last.
    levels: Vec<(PathBuf, Vec<CString>)>,
    has_started: bool,
}

impl TreeWalk {
    fn new(source: TreeSource) -> Self {
        Self { source, levels: Vec::new(), has_started: false }
    }

    fn top_entry(&mut self) -> Result<(PathBuf, TreeEntry), TreeError> {
        let path = PathBuf::new();
        let tree = self.source.tree.as_fd();
        let meta = Meta::of(tree).map_err(TreeError::io("check", &path))?;
        let meta = meta.ok_or_else(|| TreeError::Type { path: path.clone() })?;
        let xattrs =
            xattr::read(tree, c".").map_err(TreeError::io("read the attributes of", &path))?;
        self.descend(&path)?;
        Ok((path, TreeEntry { name: TOP_NAME.to_owned(), meta, xattrs, target: None }))
    }

    fn descend(&mut self, path: &Path) -> Result<(), TreeError> {
        let failed = || TreeError::io("list", path);
        let folder = beneath::open_folder(self.source.tree.as_fd(), path).map_err(failed())?;
        let names = beneath::entry_names(&folder).map_err(failed())?;
        let mut names: Vec<CString> = names.collect::<Result<_, _>>().map_err(failed())?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push((path.to_owned(), names));
        Ok(())
    }

    fn entry(&mut self, above: &Path, name: CString) -> Result<(PathBuf, TreeEntry), TreeError> {
        let path = above.join(OsStr::from_bytes(name.to_bytes()));
        let failed = |doing| TreeError::io(doing, &path);
        let folder =
            beneath::open_folder(self.source.tree.as_fd(), above).map_err(failed("open"))?;
        let folder = folder.as_fd();
        let meta = Meta::at(folder, &name).map_err(failed("check"))?;
        let meta = meta.ok_or_else(|| TreeError::Type { path: path.clone() })?;
        let xattrs = xattr::read(folder, &name).map_err(failed("read the attributes of"))?;
        let target = match meta.kind {
            Kind::Symlink => Some(readlinkat(folder, &name, Vec::new()).map_err(failed("read"))?),
            Kind::Dir => {
                self.descend(&path)?;
                None
            }
            _ => None,
        };
        Ok((path, TreeEntry { name, meta, xattrs, target }))
    }
}

impl Iterator for TreeWalk {
    type Item = Result<(PathBuf, TreeEntry), TreeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_started {
            self.has_started = true;
            return Some(self.top_entry());
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
