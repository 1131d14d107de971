//! Clones a tree completely, or fails.
//!
//! Threads take folders from a queue. A folder is reached by its path in the tree, so that few are
//! open however many wait. Of a file with several names, the first one encountered is cloned; the
//! others become links to it once all files are there.
//!
//! A volume may change while it is cloned, if its application has not been frozen. An entry that
//! vanishes between being listed and being read counts as removed before the snapshot. In a tree
//! that must not change, that is an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, linkat, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::content::{self, ContentOutcome, ReflinkSupport};
use super::dir::{Dir, finish_if_last};
use super::meta::{Kind, Meta};
use super::write::EntryDestination;
use super::{TreeError, beneath, btrfs, join, threads, xattr};
use crate::stop_signal::StopSignal;

/// Number of times that an entry may have been replaced between stat and open.
const MAX_ATTEMPTS: usize = 8;

/// State of a source: may change while it is cloned, or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloneSource {
    Live,
    Static,
}

/// Method of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CloneMethod {
    /// As a snapshot of a btrfs subvolume.
    Subvolume,
    /// File by file, sharing their content.
    Reflink,
    /// File by file, copying their content.
    Copy,
}

/// Summary of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CloneSummary {
    pub method: CloneMethod,
    /// Files with content; unknown for a subvolume.
    pub files: u64,
    /// Number of files that had to be copied.
    pub copied: u64,
    /// The bytes of all files; unknown for a subvolume.
    pub bytes: u64,
}

impl CloneSummary {
    /// Description for people.
    pub(crate) fn describe(&self) -> String {
        let Self { method, files, copied, bytes } = self;
        match method {
            CloneMethod::Subvolume => "cloned as a btrfs snapshot".to_owned(),
            CloneMethod::Reflink if *copied == 0 => {
                format!("cloned by copy-on-write: {files} files, {bytes} bytes")
            }
            CloneMethod::Reflink => format!(
                "cloned by copy-on-write: {files} files, {bytes} bytes; {copied} of the files could \
                 not be cloned and were copied"
            ),
            CloneMethod::Copy => format!("copied: {files} files, {bytes} bytes"),
        }
    }
}

/// Clones a volume as `name` in a folder, with the best available method.
pub(crate) fn clone_volume(
    volume: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    name: &CStr,
    stop: &StopSignal,
) -> Result<CloneSummary, TreeError> {
    match btrfs::snapshot(volume, folder, name) {
        Ok(true) => {
            return Ok(CloneSummary {
                method: CloneMethod::Subvolume,
                files: 0,
                copied: 0,
                bytes: 0,
            });
        }
        Ok(false) => {}
        // The folder may be on another disk, or the call not permitted; file by file may still
        // work.
        Err(errno) => tracing::debug!("no btrfs snapshot: {errno}"),
    }
    let top = EntryDestination { folder, path: Path::new(""), name };
    top.create_dir()?;
    let to = beneath::open_folder(folder, &join(Path::new(""), name));
    let to = to.map_err(TreeError::io("open", &join(Path::new(""), name)))?;
    clone_tree(volume, to.as_fd(), CloneSource::Live, stop)
}

/// Clones a tree into an empty folder.
pub(crate) fn clone_tree(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    source: CloneSource,
    stop: &StopSignal,
) -> Result<CloneSummary, TreeError> {
    let work = CloneWork::new(from, to, source, stop)?;
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| work.clone_folders());
        }
    });
    work.finish()
}

/// State shared by the threads.
struct CloneWork<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    source: CloneSource,
    stop: &'a StopSignal,
    sharing: ReflinkSupport,
    queue: Mutex<FolderQueue>,
    changed: Condvar,
    /// For files with several names, the first one.
    first_names: Mutex<HashMap<(u64, u64), PathBuf>>,
    links: Mutex<Vec<PendingLink>>,
    shared: AtomicU64,
    copied: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct FolderQueue {
    waiting: Vec<Arc<Dir>>,
    busy: usize,
    failed: Option<TreeError>,
}

/// An additional name of a file.
struct PendingLink {
    key: (u64, u64),
    dir: Arc<Dir>,
    name: CString,
}

/// Marks a thread as busy with a folder. Dropping it, also in a panic, notifies the others.
struct BusyGuard<'w, 'a>(&'w CloneWork<'a>);

impl Drop for BusyGuard<'_, '_> {
    fn drop(&mut self) {
        self.0.queue.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

/// An entry, with its source and destination.
#[derive(Clone, Copy)]
struct EntryStep<'a> {
    dir: &'a Arc<Dir>,
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    name: &'a CStr,
}

impl EntryStep<'_> {
    fn path(&self) -> PathBuf {
        join(&self.dir.path, self.name)
    }

    fn destination(&self) -> EntryDestination<'_> {
        EntryDestination { folder: self.to, path: &self.dir.path, name: self.name }
    }

    /// The failure of a read, unless it is explained by a concurrent change.
    fn read_failure(&self, doing: &'static str) -> impl FnOnce(Errno) -> EntryFailure {
        move |errno| match errno {
            Errno::NOENT => EntryFailure::Vanished,
            Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::INVAL => EntryFailure::Changed,
            errno if beneath::is_mount(errno) => TreeError::Mount { path: self.path() }.into(),
            errno => TreeError::io(doing, &self.path())(errno).into(),
        }
    }
}

/// Reasons why an entry was not cloned.
enum EntryFailure {
    /// The entry vanished.
    Vanished,
    /// The entry was replaced.
    Changed,
    Failed(TreeError),
}

impl From<TreeError> for EntryFailure {
    fn from(failed: TreeError) -> Self {
        Self::Failed(failed)
    }
}

impl<'a> CloneWork<'a> {
    fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        source: CloneSource,
        stop: &'a StopSignal,
    ) -> Result<Self, TreeError> {
        let path = PathBuf::new();
        let meta = Meta::of(from).map_err(TreeError::io("check", &path))?;
        let meta = meta.ok_or_else(|| TreeError::Type { path: path.clone() })?;
        let xattrs = xattr::read(from, c".");
        let xattrs = xattrs.map_err(TreeError::io("read the extended attributes of", &path))?;
        let top = Arc::new(Dir { path, meta, xattrs, parent: None });
        Ok(Self {
            from,
            to,
            source,
            stop,
            sharing: ReflinkSupport::default(),
            queue: Mutex::new(FolderQueue { waiting: vec![top], ..FolderQueue::default() }),
            changed: Condvar::new(),
            first_names: Mutex::default(),
            links: Mutex::default(),
            shared: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Takes folders until there are no more, or something has failed.
    fn clone_folders(&self) {
        while let Some((dir, _busy)) = self.next_folder() {
            if let Err(failed) = self.clone_folder(&dir).and_then(|()| finish_if_last(dir, self.to))
            {
                self.queue.lock().failed.get_or_insert(failed);
            }
        }
    }

    fn next_folder(&self) -> Option<(Arc<Dir>, BusyGuard<'_, 'a>)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(dir) = queue.waiting.pop() {
                queue.busy += 1;
                return Some((dir, BusyGuard(self)));
            }
            if queue.busy == 0 {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    fn clone_folder(&self, dir: &Arc<Dir>) -> Result<(), TreeError> {
        let path = &dir.path;
        let from = match beneath::open_folder(self.from, path) {
            // The folder was replaced or removed.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.source == CloneSource::Live => {
                return Ok(());
            }
            Err(errno) if beneath::is_mount(errno) => {
                return Err(TreeError::Mount { path: path.clone() });
            }
            from => from.map_err(TreeError::io("open", path))?,
        };
        let to = beneath::open_folder(self.to, path)
            .map_err(TreeError::io("open the clone of", path))?;
        for name in beneath::entry_names(&from).map_err(TreeError::io("list", path))? {
            let name = name.map_err(TreeError::io("list", path))?;
            self.clone_entry(EntryStep { dir, from: from.as_fd(), to: to.as_fd(), name: &name })?;
        }
        Ok(())
    }

    fn clone_entry(&self, step: EntryStep<'_>) -> Result<(), TreeError> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(reason) = self.stop.reason() {
                return Err(TreeError::Stopped(reason.to_owned()));
            }
            match self.try_clone_entry(step) {
                Ok(()) => return Ok(()),
                Err(EntryFailure::Vanished) if self.source == CloneSource::Live => return Ok(()),
                // Listed twice, as happens when names are added and removed concurrently.
                Err(EntryFailure::Failed(failed))
                    if self.source == CloneSource::Live && failed.is_already_exists() =>
                {
                    return Ok(());
                }
                Err(EntryFailure::Vanished) => {
                    return Err(TreeError::io("find", &step.path())(Errno::NOENT));
                }
                Err(EntryFailure::Failed(failed)) => return Err(failed),
                Err(EntryFailure::Changed) => {}
            }
        }
        Err(TreeError::KeepsChanging { path: step.path() })
    }

    fn try_clone_entry(&self, step: EntryStep<'_>) -> Result<(), EntryFailure> {
        let EntryStep { from, name, .. } = step;
        let meta = Meta::at(from, name).map_err(step.read_failure("check"))?;
        let meta = meta.ok_or_else(|| TreeError::Type { path: step.path() })?;
        if meta.is_mount {
            return Err(TreeError::Mount { path: step.path() }.into());
        }
        let xattrs =
            || xattr::read(from, name).map_err(step.read_failure("read the attributes of"));
        match meta.kind {
            Kind::File => self.clone_file(step),
            Kind::Dir => {
                let xattrs = xattrs()?;
                step.destination().create_dir()?;
                let parent = Some(Arc::clone(step.dir));
                let dir = Arc::new(Dir { path: step.path(), meta, xattrs, parent });
                self.queue.lock().waiting.push(dir);
                self.changed.notify_one();
                Ok(())
            }
            Kind::Symlink => {
                let target =
                    readlinkat(from, name, Vec::new()).map_err(step.read_failure("read"))?;
                Ok(step.destination().create_symlink(&target, &meta, &xattrs()?)?)
            }
            Kind::Fifo | Kind::Socket | Kind::Block(_) | Kind::Char(_) => {
                Ok(step.destination().create_special(&meta, &xattrs()?)?)
            }
        }
    }

    /// True if a file has been encountered under another name. Then this name becomes a link later;
    /// otherwise it is the first name.
    fn is_further_name(&self, key: (u64, u64), step: EntryStep<'_>) -> bool {
        match self.first_names.lock().entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(step.path());
                false
            }
            Entry::Occupied(_) => {
                let link =
                    PendingLink { key, dir: Arc::clone(step.dir), name: step.name.to_owned() };
                self.links.lock().push(link);
                true
            }
        }
    }

    fn clone_file(&self, step: EntryStep<'_>) -> Result<(), EntryFailure> {
        let file: File =
            beneath::open_entry(step.from, step.name).map_err(step.read_failure("open"))?.into();
        let meta = Meta::of(file.as_fd()).map_err(step.read_failure("check"))?;
        let meta = meta.filter(|meta| meta.kind == Kind::File).ok_or(EntryFailure::Changed)?;
        let xattrs =
            xattr::read(step.from, step.name).map_err(step.read_failure("read attributes of"))?;
        // Only an open file is certain to be this one.
        let key = meta.link_key();
        if key.is_some_and(|key| self.is_further_name(key, step)) {
            return Ok(());
        }
        let clone = step.destination().create_file().inspect_err(|_| {
            // The entry of this name is a different file.
            key.map(|key| self.first_names.lock().remove(&key));
        })?;
        let outcome = content::clone_content(&file, &clone, meta.size, &self.sharing, self.stop);
        match outcome.map_err(TreeError::io("clone", &step.path()))? {
            ContentOutcome::Shared => self.shared.fetch_add(1, Relaxed),
            ContentOutcome::Copied => self.copied.fetch_add(1, Relaxed),
            ContentOutcome::Empty => 0,
        };
        self.bytes.fetch_add(meta.size, Relaxed);
        Ok(step.destination().set_metadata(&meta, &xattrs)?)
    }

    /// Creates the links, and returns the summary.
    fn finish(self) -> Result<CloneSummary, TreeError> {
        let failed = self.queue.lock().failed.take();
        if let Some(failed) = failed {
            return Err(failed);
        }
        loop {
            let Some(link) = self.links.lock().pop() else { break };
            self.create_link(&link)?;
            finish_if_last(link.dir, self.to)?;
        }
        let (shared, copied) = (self.shared.into_inner(), self.copied.into_inner());
        Ok(CloneSummary {
            method: if shared > 0 { CloneMethod::Reflink } else { CloneMethod::Copy },
            files: shared + copied,
            copied: if shared > 0 { copied } else { 0 },
            bytes: self.bytes.into_inner(),
        })
    }

    fn create_link(&self, link: &PendingLink) -> Result<(), TreeError> {
        let PendingLink { key, dir, name } = link;
        let path = join(&dir.path, name);
        let failed = || TreeError::io("link", &path);
        let to = beneath::open_folder(self.to, &dir.path).map_err(failed())?;
        let first = self.first_names.lock().get(key).cloned();
        let Some(first) = first else {
            // The first name was dropped, so this is cloned like any other file.
            let from = match beneath::open_folder(self.from, &dir.path) {
                Err(Errno::NOENT) if self.source == CloneSource::Live => return Ok(()),
                from => from.map_err(failed())?,
            };
            let step = EntryStep { dir, from: from.as_fd(), to: to.as_fd(), name };
            return match self.clone_file(step) {
                Err(EntryFailure::Failed(failed)) if !failed.is_already_exists() => Err(failed),
                Err(_) if self.source == CloneSource::Static => {
                    Err(TreeError::KeepsChanging { path })
                }
                _ => Ok(()),
            };
        };
        let above = beneath::open_folder(self.to, first.parent().unwrap_or(Path::new("")));
        let above = above.map_err(failed())?;
        let first = first.file_name().unwrap_or_default();
        match linkat(&above, first, &to, name.as_c_str(), AtFlags::empty()) {
            Err(Errno::EXIST) if self.source == CloneSource::Live => Ok(()),
            linked => linked.map_err(failed()),
        }
    }
}

#[cfg(test)]
mod tests;
