//! The folder with clones and records.
//!
//! ```text
//! <id>/record.json     written last
//! <id>/data/           the clone, until it has been uploaded
//! <id>/cancel          request to stop the upload
//! .new-<…>/            a snapshot that is being created
//! .gone-<…>/           something that is being removed
//! .lock, .lock-records
//! ```
//! Entries appear and disappear by being renamed. A process that creates or removes something holds
//! `.lock` shared; one that holds it exclusively may remove the leftovers of killed processes. All
//! locks are released with the process that holds them.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::id::{Id, unique_suffix};
use crate::record::Record;
use crate::tree;

const RECORD_FILE: &str = "record.json";
const CANCEL_FILE: &str = "cancel";
const LOCK_FILE: &str = ".lock";
const RECORDS_LOCK_FILE: &str = ".lock-records";
const NEW_PREFIX: &str = ".new-";
const REMOVED_PREFIX: &str = ".gone-";
/// The name of the clone.
pub(crate) const DATA_FOLDER: &CStr = c"data";

/// The folder.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
}

/// Errors of the state folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the state directory {} is not private: expected a directory that belongs to user {us} and \
         has mode 0700",
        path.display()
    )]
    NotPrivate { path: PathBuf, us: u32 },
    #[error("cannot remove the contents of {}", path.display())]
    Remove { path: PathBuf, source: tree::TreeError },
}

impl StateError {
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

type Result<T> = std::result::Result<T, StateError>;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "it is held by being open")] OwnedFd);

/// A snapshot that is being created. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(crate) struct DraftSnapshot<'a> {
    state: &'a State,
    pub path: PathBuf,
    /// The folder, for the clone.
    pub folder: File,
    is_kept: bool,
}

impl Drop for DraftSnapshot<'_> {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(failed) = self.state.rename_and_remove(&self.path)
        {
            tracing::warn!("{}", bowline_plugin_sdk::error_chain(&failed));
        }
    }
}

impl State {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Creates the folder if it does not exist, and checks that no other user has access.
    pub(crate) fn prepare(&self) -> Result<()> {
        let path = &self.path;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.map_err(StateError::io("create the state directory", path))?,
        }
        let found = fs::symlink_metadata(path).map_err(StateError::io("check", path))?;
        let own_uid = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != own_uid || found.mode() & 0o077 != 0 {
            return Err(StateError::NotPrivate { path: path.clone(), us: own_uid });
        }
        Ok(())
    }

    fn folder(&self, id: &Id) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The path of the clone of a snapshot, which need not exist.
    pub(crate) fn data_path(&self, id: &Id) -> PathBuf {
        self.folder(id).join("data")
    }

    pub(crate) fn has_data(&self, id: &Id) -> bool {
        self.data_path(id).is_dir()
    }

    /// The record of a snapshot; `None` if there is no such snapshot.
    pub(crate) fn record(&self, id: &Id) -> Result<Option<Record>> {
        let path = self.folder(id).join(RECORD_FILE);
        Record::read(&path).map_err(StateError::io("read", &path))
    }

    /// Changes a record; false if there is none.
    pub(crate) fn change_record(&self, id: &Id, change: impl FnOnce(&mut Record)) -> Result<bool> {
        // Two concurrent changes of a record would undo each other, also across processes.
        let (lock, path) = self.lock_file(RECORDS_LOCK_FILE)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(StateError::io("lock", &path))?;
        let path = self.folder(id).join(RECORD_FILE);
        let Some(mut record) = self.record(id)? else { return Ok(false) };
        change(&mut record);
        record.write(&path).map_err(StateError::io("write", &path))?;
        Ok(true)
    }

    /// Held while creating or removing entries.
    pub(crate) fn lock_shared(&self) -> Result<StateLock> {
        let (file, path) = self.lock_file(LOCK_FILE)?;
        flock(&file, FlockOperation::LockShared).map_err(StateError::io("lock", &path))?;
        Ok(StateLock(file.into()))
    }

    /// The exclusive lock; `None` if others hold it.
    fn try_lock_exclusive(&self) -> Result<Option<StateLock>> {
        let (file, path) = self.lock_file(LOCK_FILE)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => {
                locked.map(|()| Some(StateLock(file.into()))).map_err(StateError::io("lock", &path))
            }
        }
    }

    fn lock_file(&self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        Ok((file.map_err(StateError::io("open", &path))?, path))
    }

    /// The right to upload a snapshot; `None` if another process has it.
    pub(crate) fn lock_upload(&self, id: &Id) -> Result<Option<StateLock>> {
        let path = self.folder(id);
        let folder = File::open(&path).map_err(StateError::io("open", &path))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => locked
                .map(|()| Some(StateLock(folder.into())))
                .map_err(StateError::io("lock", &path)),
        }
    }

    /// The clone, which is not removed as long as this is open; `None` if it does not exist.
    pub(crate) fn lock_data(&self, id: &Id) -> Result<Option<File>> {
        let path = self.data_path(id);
        let folder = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            folder => folder.map_err(StateError::io("open", &path))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.map_err(StateError::io("lock", &path))?,
        }
        // The clone may have been removed between the two.
        let inode = folder.metadata().map_err(StateError::io("check", &path))?.ino();
        let is_there = fs::metadata(&path).is_ok_and(|found| found.ino() == inode);
        Ok(is_there.then_some(folder))
    }

    /// A folder for a snapshot that is to be created.
    pub(crate) fn create_draft(&self, id: &Id) -> Result<DraftSnapshot<'_>> {
        let name = unique_suffix().map_err(StateError::io("find a name in", &self.path))?;
        let path = self.path.join(format!("{NEW_PREFIX}{id}-{name}"));
        DirBuilder::new().mode(0o700).create(&path).map_err(StateError::io("make", &path))?;
        let folder = File::open(&path).map_err(StateError::io("open", &path))?;
        Ok(DraftSnapshot { state: self, path, folder, is_kept: false })
    }

    /// Turns a draft into a snapshot. False if there already is one with this id, which then
    /// counts.
    pub(crate) fn publish_draft(
        &self,
        mut draft: DraftSnapshot<'_>,
        record: &Record,
    ) -> Result<bool> {
        let path = draft.path.join(RECORD_FILE);
        record.write(&path).map_err(StateError::io("write", &path))?;
        let target = self.folder(&record.id);
        match renameat_with(CWD, &draft.path, CWD, &target, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => return Ok(false),
            renamed => renamed.map_err(StateError::io("make", &target))?,
        }
        draft.is_kept = true;
        sync_folder(&self.path).map_err(StateError::io("write", &self.path))?;
        Ok(true)
    }

    /// Removes the clone of a snapshot, and keeps the record. False if the clone is being read.
    pub(crate) fn remove_data(&self, id: &Id) -> Result<bool> {
        let path = self.data_path(id);
        let folder = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            folder => folder.map_err(StateError::io("open", &path))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => locked.map_err(StateError::io("lock", &path))?,
        }
        self.rename_and_remove(&path)?;
        Ok(true)
    }

    /// Removes a snapshot completely. False if its clone is being read.
    pub(crate) fn remove(&self, id: &Id) -> Result<bool> {
        if !self.remove_data(id)? {
            return Ok(false);
        }
        self.rename_and_remove(&self.folder(id))?;
        Ok(true)
    }

    /// Renames an entry, so that it disappears at once, then removes it. Not an error if it is
    /// gone.
    fn rename_and_remove(&self, path: &Path) -> Result<()> {
        let name = unique_suffix().map_err(StateError::io("find a name in", &self.path))?;
        let name = format!("{REMOVED_PREFIX}{name}");
        match fs::rename(path, self.path.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(StateError::io("remove", path))?,
        }
        sync_folder(&self.path).map_err(StateError::io("write", &self.path))?;
        self.remove_tree(&name)
    }

    fn remove_tree(&self, name: &str) -> Result<()> {
        let above = File::open(&self.path).map_err(StateError::io("open", &self.path))?;
        let c_name = CString::new(name).map_err(StateError::io("name", &self.path))?;
        tree::remove::remove_tree(above.as_fd(), &c_name)
            .map_err(|source| StateError::Remove { path: self.path.join(name), source })
    }

    /// Asks the uploader of a snapshot to stop, in any process.
    pub(crate) fn request_cancel(&self, id: &Id) -> Result<()> {
        let path = self.folder(id).join(CANCEL_FILE);
        match File::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            created => created.map(drop).map_err(StateError::io("write", &path)),
        }
    }

    pub(crate) fn is_cancel_requested(&self, id: &Id) -> bool {
        self.folder(id).join(CANCEL_FILE).exists()
    }

    /// Withdraws the cancel request, which may be an old one.
    pub(crate) fn clear_cancel_request(&self, id: &Id) -> Result<()> {
        let path = self.folder(id).join(CANCEL_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(StateError::io("remove", &path)),
        }
    }

    /// Removes the leftovers of killed processes. Clones of uploaded snapshots are removed, too,
    /// unless they are to be kept.
    ///
    /// Only the renaming needs the exclusive lock, and takes no time; `while_locked` is called
    /// then. If others hold the lock, the leftovers stay until another time.
    pub(crate) fn remove_leftovers(
        &self,
        keep_local: bool,
        while_locked: impl FnOnce(),
    ) -> Result<()> {
        if let Some(_exclusive_lock) = self.try_lock_exclusive()? {
            for name in self.names()?.iter().filter(|name| name.starts_with(NEW_PREFIX)) {
                let suffix =
                    unique_suffix().map_err(StateError::io("find a name in", &self.path))?;
                let path = self.path.join(name);
                let set_aside =
                    fs::rename(&path, self.path.join(format!("{REMOVED_PREFIX}{suffix}")));
                set_aside.map_err(StateError::io("remove", &path))?;
            }
            while_locked();
        }
        for name in self.names()? {
            if name.starts_with(REMOVED_PREFIX) {
                tracing::info!("removing leftover {name} from {}", self.path.display());
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
        let failed = || StateError::io("list", &self.path);
        let entries = fs::read_dir(&self.path).map_err(failed())?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names.map_err(failed())?.into_iter().flatten().collect())
    }
}

/// Flushes the names in a folder to disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The boot id of the node, which changes with every boot.
pub(crate) fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(StateError::io("read", path))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
