//! The folder with our clones and records.
//!
//! ```text
//! <id>/record.json     written last
//! <id>/data/           the clone, until it has been uploaded
//! <id>/cancel          somebody wants the upload to stop
//! .new-<…>/            a snapshot that is being made
//! .gone-<…>/           something that is being removed
//! .lock, .lock-records
//! ```
//! Things become and cease to be by being renamed. Who makes or removes something shares `.lock`; who
//! has it alone may remove what was left by processes that were killed. All locks go away with the
//! process that holds them.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::id::{Id, unique};
use crate::record::Record;
use crate::tree;

const RECORD: &str = "record.json";
const CANCEL: &str = "cancel";
const LOCK: &str = ".lock";
const CHANGING: &str = ".lock-records";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
/// The name of the clone.
pub(crate) const DATA: &CStr = c"data";

/// The folder.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the state folder {} is not ours alone: it must be a folder that belongs to user {us} and \
         has mode 0700",
        path.display()
    )]
    NotPrivate { path: PathBuf, us: u32 },
    #[error("cannot remove what was in {}", path.display())]
    Remove { path: PathBuf, source: tree::Failed },
}

impl Failed {
    fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |error| Self::Io { doing, path, source: error.into() }
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => tree::is_disk_full(source),
            Self::NotPrivate { .. } | Self::Remove { .. } => false,
        }
    }
}

type Result<T> = std::result::Result<T, Failed>;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "it is held by being open")] OwnedFd);

/// A snapshot that is being made. Dropped before it is kept, it is removed.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    state: &'a State,
    pub path: PathBuf,
    /// The folder, for the clone.
    pub folder: File,
    is_kept: bool,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(failed) = self.state.discard(&self.path)
        {
            tracing::warn!("{}", bowline_plugin_sdk::one_line(&failed));
        }
    }
}

impl State {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Makes the folder if it is not there, and looks whether it is ours alone.
    pub(crate) fn prepare(&self) -> Result<()> {
        let path = &self.path;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(Failed::io("make the state folder", path))?,
        }
        let found = fs::symlink_metadata(path).map_err(Failed::io("look at", path))?;
        let us = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != us || found.mode() & 0o077 != 0 {
            return Err(Failed::NotPrivate { path: path.clone(), us });
        }
        Ok(())
    }

    fn folder(&self, id: &Id) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// Where the clone of a snapshot is, if it is there.
    pub(crate) fn data(&self, id: &Id) -> PathBuf {
        self.folder(id).join("data")
    }

    pub(crate) fn has_data(&self, id: &Id) -> bool {
        self.data(id).is_dir()
    }

    /// The record of a snapshot, if there is such a one.
    pub(crate) fn record(&self, id: &Id) -> Result<Option<Record>> {
        let path = self.folder(id).join(RECORD);
        Record::read(&path).map_err(Failed::io("read", &path))
    }

    /// Changes a record; false if there is none.
    pub(crate) fn change(&self, id: &Id, change: impl FnOnce(&mut Record)) -> Result<bool> {
        // Two who change a record at once would undo each other's change, also over processes.
        let (lock, path) = self.lock_file(CHANGING)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(Failed::io("lock", &path))?;
        let path = self.folder(id).join(RECORD);
        let Some(mut record) = self.record(id)? else { return Ok(false) };
        change(&mut record);
        record.write(&path).map_err(Failed::io("write", &path))?;
        Ok(true)
    }

    /// To be held by whoever makes or removes things.
    pub(crate) fn share(&self) -> Result<Lock> {
        let (file, path) = self.lock_file(LOCK)?;
        flock(&file, FlockOperation::LockShared).map_err(Failed::io("lock", &path))?;
        Ok(Lock(file.into()))
    }

    /// The same for one alone; none if others are at it.
    fn alone(&self) -> Result<Option<Lock>> {
        let (file, path) = self.lock_file(LOCK)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => locked.map(|()| Some(Lock(file.into()))).map_err(Failed::io("lock", &path)),
        }
    }

    fn lock_file(&self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        Ok((file.map_err(Failed::io("open", &path))?, path))
    }

    /// The right to upload a snapshot; none if another process has it.
    pub(crate) fn lock_upload(&self, id: &Id) -> Result<Option<Lock>> {
        let path = self.folder(id);
        let folder = File::open(&path).map_err(Failed::io("open", &path))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => locked.map(|()| Some(Lock(folder.into()))).map_err(Failed::io("lock", &path)),
        }
    }

    /// The clone, which is not removed as long as this is open; none if it is not there.
    pub(crate) fn lock_data(&self, id: &Id) -> Result<Option<File>> {
        let path = self.data(id);
        let folder = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            folder => folder.map_err(Failed::io("open", &path))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.map_err(Failed::io("lock", &path))?,
        }
        // It may have been removed between the two.
        let inode = folder.metadata().map_err(Failed::io("look at", &path))?.ino();
        let is_there = fs::metadata(&path).is_ok_and(|found| found.ino() == inode);
        Ok(is_there.then_some(folder))
    }

    /// A folder for a snapshot that is to be made.
    pub(crate) fn draft(&self, id: &Id) -> Result<Draft<'_>> {
        let name = unique().map_err(Failed::io("find a name in", &self.path))?;
        let path = self.path.join(format!("{NEW}{id}-{name}"));
        DirBuilder::new().mode(0o700).create(&path).map_err(Failed::io("make", &path))?;
        let folder = File::open(&path).map_err(Failed::io("open", &path))?;
        Ok(Draft { state: self, path, folder, is_kept: false })
    }

    /// Makes a snapshot of a draft. False if there is one with this id already, which then counts.
    pub(crate) fn keep(&self, mut draft: Draft<'_>, record: &Record) -> Result<bool> {
        let path = draft.path.join(RECORD);
        record.write(&path).map_err(Failed::io("write", &path))?;
        let target = self.folder(&record.id);
        match renameat_with(CWD, &draft.path, CWD, &target, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => return Ok(false),
            renamed => renamed.map_err(Failed::io("make", &target))?,
        }
        draft.is_kept = true;
        sync(&self.path).map_err(Failed::io("write", &self.path))?;
        Ok(true)
    }

    /// Removes the clone of a snapshot, and keeps the record. False if somebody reads it.
    pub(crate) fn remove_data(&self, id: &Id) -> Result<bool> {
        let path = self.data(id);
        let folder = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            folder => folder.map_err(Failed::io("open", &path))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => locked.map_err(Failed::io("lock", &path))?,
        }
        self.discard(&path)?;
        Ok(true)
    }

    /// Removes all of a snapshot. False if somebody reads it.
    pub(crate) fn remove(&self, id: &Id) -> Result<bool> {
        if !self.remove_data(id)? {
            return Ok(false);
        }
        self.discard(&self.folder(id))?;
        Ok(true)
    }

    /// Has it cease to be there at once, then removes it. No error if it is gone.
    fn discard(&self, path: &Path) -> Result<()> {
        let name = unique().map_err(Failed::io("find a name in", &self.path))?;
        let name = format!("{GONE}{name}");
        match fs::rename(path, self.path.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(Failed::io("remove", path))?,
        }
        sync(&self.path).map_err(Failed::io("write", &self.path))?;
        self.remove_tree(&name)
    }

    fn remove_tree(&self, name: &str) -> Result<()> {
        let above = File::open(&self.path).map_err(Failed::io("open", &self.path))?;
        let c_name = CString::new(name).map_err(Failed::io("name", &self.path))?;
        tree::remove::tree(above.as_fd(), &c_name)
            .map_err(|source| Failed::Remove { path: self.path.join(name), source })
    }

    /// Asks whoever uploads a snapshot to stop.
    pub(crate) fn ask_to_cancel(&self, id: &Id) -> Result<()> {
        let path = self.folder(id).join(CANCEL);
        match File::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            made => made.map(drop).map_err(Failed::io("write", &path)),
        }
    }

    pub(crate) fn is_asked_to_cancel(&self, id: &Id) -> bool {
        self.folder(id).join(CANCEL).exists()
    }

    /// Takes the question back, which may be an old one.
    pub(crate) fn forget_cancel(&self, id: &Id) -> Result<()> {
        let path = self.folder(id).join(CANCEL);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(Failed::io("remove", &path)),
        }
    }

    /// Removes what killed processes have left here. Clones of snapshots that were uploaded go, too,
    /// if they are not to be kept.
    ///
    /// Only setting things aside needs that nobody else is at work, and takes no time; `also` is
    /// called then. If somebody is at work, that is left for another time.
    pub(crate) fn sweep(&self, keep_local: bool, also: impl FnOnce()) -> Result<()> {
        if let Some(_alone) = self.alone()? {
            for name in self.names()?.iter().filter(|name| name.starts_with(NEW)) {
                let gone = unique().map_err(Failed::io("find a name in", &self.path))?;
                let path = self.path.join(name);
                let set_aside = fs::rename(&path, self.path.join(format!("{GONE}{gone}")));
                set_aside.map_err(Failed::io("remove", &path))?;
            }
            also();
        }
        for name in self.names()? {
            if name.starts_with(GONE) {
                tracing::info!("removing {name} from {}: it was left behind", self.path.display());
                self.remove_tree(&name)?;
            } else if let Ok(id) = name.parse::<Id>()
                && !keep_local
                && self.record(&id)?.is_some_and(|record| record.is_uploaded())
            {
                self.remove_data(&id)?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>> {
        let failed = || Failed::io("list", &self.path);
        let entries = fs::read_dir(&self.path).map_err(failed())?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names.map_err(failed())?.into_iter().flatten().collect())
    }
}

/// Brings the names in a folder to disk.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What tells two runs of a node apart.
pub(crate) fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(Failed::io("read", path))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
