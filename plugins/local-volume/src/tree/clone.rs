//! Clones a tree: all of it, or nothing that counts.
//!
//! Threads take folders from a queue. A folder is reached by its path in the tree, so that few are open
//! however many wait. Of a file with several names, the first one met is cloned; the others become
//! links to it when all files are there.
//!
//! A volume may be changed while it is cloned, if nobody has frozen its application. What goes away
//! between being listed and being read counts as gone before. In a tree that nobody changes that is an
//! error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, linkat, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::content::{self, Made, Sharing};
use super::dir::{Dir, release};
use super::meta::{Kind, Meta};
use super::write::Place;
use super::{Failed, beneath, btrfs, join, threads, xattr};
use crate::stop::Stop;

/// How often an entry may be another one when it is opened than when it was looked at.
const TRIES: usize = 8;

/// Whether somebody may change a tree while it is cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Live,
    Still,
}

/// How a clone was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Method {
    /// As a snapshot of a btrfs subvolume.
    Subvolume,
    /// File by file, sharing their content.
    Reflink,
    /// File by file, copying their content.
    Copy,
}

/// What was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cloned {
    pub method: Method,
    /// Files with content; not known of a subvolume.
    pub files: u64,
    /// How many of them had to be copied.
    pub copied: u64,
    /// The bytes of all files; not known of a subvolume.
    pub bytes: u64,
}

impl Cloned {
    /// In words.
    pub(crate) fn describe(&self) -> String {
        let Self { method, files, copied, bytes } = self;
        match method {
            Method::Subvolume => "cloned as a btrfs snapshot".to_owned(),
            Method::Reflink if *copied == 0 => {
                format!("cloned by copy-on-write: {files} files, {bytes} bytes")
            }
            Method::Reflink => format!(
                "cloned by copy-on-write: {files} files, {bytes} bytes; {copied} of the files could \
                 not be cloned and were copied"
            ),
            Method::Copy => format!("copied plainly: {files} files, {bytes} bytes"),
        }
    }
}

/// Clones a volume as `name` in a folder, in the best way that there is.
pub(crate) fn volume(
    volume: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    name: &CStr,
    stop: &Stop,
) -> Result<Cloned, Failed> {
    match btrfs::snapshot(volume, folder, name) {
        Ok(true) => {
            return Ok(Cloned { method: Method::Subvolume, files: 0, copied: 0, bytes: 0 });
        }
        Ok(false) => {}
        // It may be on another disk, or not allowed; file by file may work all the same.
        Err(errno) => tracing::debug!("no btrfs snapshot: {errno}"),
    }
    let top = Place { folder, path: Path::new(""), name };
    top.dir()?;
    let to = beneath::folder(folder, &join(Path::new(""), name));
    let to = to.map_err(Failed::io("open", &join(Path::new(""), name)))?;
    tree(volume, to.as_fd(), Source::Live, stop)
}

/// Clones a tree into an empty folder.
pub(crate) fn tree(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    source: Source,
    stop: &Stop,
) -> Result<Cloned, Failed> {
    let work = Work::new(from, to, source, stop)?;
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| work.help());
        }
    });
    work.finish()
}

/// What the threads share.
struct Work<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    source: Source,
    stop: &'a Stop,
    sharing: Sharing,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// For files with several names, the first one.
    first_names: Mutex<HashMap<(u64, u64), PathBuf>>,
    links: Mutex<Vec<Link>>,
    shared: AtomicU64,
    copied: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Arc<Dir>>,
    busy: usize,
    failed: Option<Failed>,
}

/// A further name of a file.
struct Link {
    key: (u64, u64),
    dir: Arc<Dir>,
    name: CString,
}

/// That a thread is busy with a folder. Dropped, also by a panic, it lets the others know.
struct Turn<'w, 'a>(&'w Work<'a>);

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.queue).busy -= 1;
        self.0.changed.notify_all();
    }
}

/// An entry, where it is and where it goes.
#[derive(Clone, Copy)]
struct Step<'a> {
    dir: &'a Arc<Dir>,
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    name: &'a CStr,
}

impl Step<'_> {
    fn path(&self) -> PathBuf {
        join(&self.dir.path, self.name)
    }

    fn place(&self) -> Place<'_> {
        Place { folder: self.to, path: &self.dir.path, name: self.name }
    }

    /// What reading it has failed with, if that is not what happens to things that change.
    fn misses(&self, doing: &'static str) -> impl FnOnce(Errno) -> Miss {
        move |errno| match errno {
            Errno::NOENT => Miss::Gone,
            Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::INVAL => Miss::Changed,
            errno if beneath::is_mount(errno) => Failed::Mount { path: self.path() }.into(),
            errno => Failed::io(doing, &self.path())(errno).into(),
        }
    }
}

/// Why an entry was not cloned.
enum Miss {
    /// It is not there any more.
    Gone,
    /// It is something else now.
    Changed,
    Failed(Failed),
}

impl From<Failed> for Miss {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Work<'a> {
    fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        source: Source,
        stop: &'a Stop,
    ) -> Result<Self, Failed> {
        let path = PathBuf::new();
        let meta = Meta::of(from).map_err(Failed::io("look at", &path))?;
        let meta = meta.ok_or_else(|| Failed::Type { path: path.clone() })?;
        let xattrs = xattr::read(from, c".");
        let xattrs = xattrs.map_err(Failed::io("read the extended attributes of", &path))?;
        let top = Arc::new(Dir { path, meta, xattrs, parent: None });
        Ok(Self {
            from,
            to,
            source,
            stop,
            sharing: Sharing::default(),
            queue: Mutex::new(Queue { waiting: vec![top], ..Queue::default() }),
            changed: Condvar::new(),
            first_names: Mutex::default(),
            links: Mutex::default(),
            shared: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Takes folders until there are no more, or something has failed.
    fn help(&self) {
        while let Some((dir, _turn)) = self.next() {
            if let Err(failed) = self.visit(&dir).and_then(|()| release(dir, self.to)) {
                lock(&self.queue).failed.get_or_insert(failed);
            }
        }
    }

    fn next(&self) -> Option<(Arc<Dir>, Turn<'_, 'a>)> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(dir) = queue.waiting.pop() {
                queue.busy += 1;
                return Some((dir, Turn(self)));
            }
            if queue.busy == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn visit(&self, dir: &Arc<Dir>) -> Result<(), Failed> {
        let path = &dir.path;
        let from = match beneath::folder(self.from, path) {
            // What was a folder is none any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.source == Source::Live => {
                return Ok(());
            }
            Err(errno) if beneath::is_mount(errno) => {
                return Err(Failed::Mount { path: path.clone() });
            }
            from => from.map_err(Failed::io("open", path))?,
        };
        let to = beneath::folder(self.to, path).map_err(Failed::io("open the clone of", path))?;
        for name in beneath::names(&from).map_err(Failed::io("list", path))? {
            let name = name.map_err(Failed::io("list", path))?;
            self.entry(Step { dir, from: from.as_fd(), to: to.as_fd(), name: &name })?;
        }
        Ok(())
    }

    fn entry(&self, step: Step<'_>) -> Result<(), Failed> {
        for _ in 0..TRIES {
            if let Some(reason) = self.stop.reason() {
                return Err(Failed::Stopped(reason.to_owned()));
            }
            match self.try_entry(step) {
                Ok(()) => return Ok(()),
                Err(Miss::Gone) if self.source == Source::Live => return Ok(()),
                // Listed twice, as happens when others add and remove names.
                Err(Miss::Failed(failed)) if self.source == Source::Live && failed.is_there() => {
                    return Ok(());
                }
                Err(Miss::Gone) => return Err(Failed::io("find", &step.path())(Errno::NOENT)),
                Err(Miss::Failed(failed)) => return Err(failed),
                Err(Miss::Changed) => {}
            }
        }
        Err(Failed::Restless { path: step.path() })
    }

    fn try_entry(&self, step: Step<'_>) -> Result<(), Miss> {
        let Step { from, name, .. } = step;
        let meta = Meta::at(from, name).map_err(step.misses("look at"))?;
        let meta = meta.ok_or_else(|| Failed::Type { path: step.path() })?;
        if meta.is_mount {
            return Err(Failed::Mount { path: step.path() }.into());
        }
        let xattrs = || xattr::read(from, name).map_err(step.misses("read the attributes of"));
        match meta.kind {
            Kind::File => self.file(step),
            Kind::Dir => {
                let xattrs = xattrs()?;
                step.place().dir()?;
                let parent = Some(Arc::clone(step.dir));
                let dir = Arc::new(Dir { path: step.path(), meta, xattrs, parent });
                lock(&self.queue).waiting.push(dir);
                self.changed.notify_one();
                Ok(())
            }
            Kind::Symlink => {
                let target = readlinkat(from, name, Vec::new()).map_err(step.misses("read"))?;
                Ok(step.place().symlink(&target, &meta, &xattrs()?)?)
            }
            Kind::Fifo | Kind::Socket | Kind::Block(_) | Kind::Char(_) => {
                Ok(step.place().special(&meta, &xattrs()?)?)
            }
        }
    }

    /// Whether a file has been met by another name. Then it becomes a link later; if not, this is its
    /// first name.
    fn has_name(&self, key: (u64, u64), step: Step<'_>) -> bool {
        match lock(&self.first_names).entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(step.path());
                false
            }
            Entry::Occupied(_) => {
                let link = Link { key, dir: Arc::clone(step.dir), name: step.name.to_owned() };
                lock(&self.links).push(link);
                true
            }
        }
    }

    fn file(&self, step: Step<'_>) -> Result<(), Miss> {
        let file: File = beneath::entry(step.from, step.name).map_err(step.misses("open"))?.into();
        let meta = Meta::of(file.as_fd()).map_err(step.misses("look at"))?;
        let meta = meta.filter(|meta| meta.kind == Kind::File).ok_or(Miss::Changed)?;
        let xattrs =
            xattr::read(step.from, step.name).map_err(step.misses("read attributes of"))?;
        // Only of what is open is it certain that it is this file.
        let key = meta.link_key();
        if key.is_some_and(|key| self.has_name(key, step)) {
            return Ok(());
        }
        let clone = step.place().file().inspect_err(|_| {
            // What is there by this name is not it.
            key.map(|key| lock(&self.first_names).remove(&key));
        })?;
        let made = content::bring(&file, &clone, meta.size, &self.sharing, self.stop);
        match made.map_err(Failed::io("clone", &step.path()))? {
            Made::Shared => self.shared.fetch_add(1, Relaxed),
            Made::Copied => self.copied.fetch_add(1, Relaxed),
            Made::Empty => 0,
        };
        self.bytes.fetch_add(meta.size, Relaxed);
        Ok(step.place().dress(&meta, &xattrs)?)
    }

    /// Makes the links, and tells what there is.
    fn finish(self) -> Result<Cloned, Failed> {
        let failed = lock(&self.queue).failed.take();
        if let Some(failed) = failed {
            return Err(failed);
        }
        loop {
            let Some(link) = lock(&self.links).pop() else { break };
            self.link(&link)?;
            release(link.dir, self.to)?;
        }
        let (shared, copied) = (self.shared.into_inner(), self.copied.into_inner());
        Ok(Cloned {
            method: if shared > 0 { Method::Reflink } else { Method::Copy },
            files: shared + copied,
            copied: if shared > 0 { copied } else { 0 },
            bytes: self.bytes.into_inner(),
        })
    }

    fn link(&self, link: &Link) -> Result<(), Failed> {
        let Link { key, dir, name } = link;
        let path = join(&dir.path, name);
        let failed = || Failed::io("link", &path);
        let to = beneath::folder(self.to, &dir.path).map_err(failed())?;
        let first = lock(&self.first_names).get(key).cloned();
        let Some(first) = first else {
            // The first name turned out to be none, so this is a file as others are.
            let from = match beneath::folder(self.from, &dir.path) {
                Err(Errno::NOENT) if self.source == Source::Live => return Ok(()),
                from => from.map_err(failed())?,
            };
            let step = Step { dir, from: from.as_fd(), to: to.as_fd(), name };
            return match self.file(step) {
                Err(Miss::Failed(failed)) if !failed.is_there() => Err(failed),
                Err(_) if self.source == Source::Still => Err(Failed::Restless { path }),
                _ => Ok(()),
            };
        };
        let above = beneath::folder(self.to, first.parent().unwrap_or(Path::new("")));
        let above = above.map_err(failed())?;
        let first = first.file_name().unwrap_or_default();
        match linkat(&above, first, &to, name.as_c_str(), AtFlags::empty()) {
            Err(Errno::EXIST) if self.source == Source::Live => Ok(()),
            linked => linked.map_err(failed()),
        }
    }
}

#[cfg(test)]
mod tests;
