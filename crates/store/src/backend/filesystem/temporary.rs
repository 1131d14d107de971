//! Temporary files, in which objects are written.
//!
//! A temporary file of a killed process must be removed, and one that is being written must stay,
//! even if no byte has arrived for hours. So the writer holds a lock on it, which the system
//! releases when the process dies, and touches it now and then, for file systems whose locks do not
//! reach other machines.

use std::collections::HashSet;
use std::fs::File;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use parking_lot::{Mutex, MutexGuard};

use super::folder::{Folder, Result};
use crate::backend::{Creation, Guarantee};

/// Prefix of the names of temporary files. No object may have such a name.
const TEMPORARY_PREFIX: &str = ".bowline-tmp-";
/// Number of times that a folder may vanish while a file is being created in it.
const MAX_ATTEMPTS: usize = 10;

/// True if a name is that of a temporary file.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX)
}

/// The temporary files that this process is writing. Their names are unique.
static NAMES_IN_USE: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

fn names_in_use() -> MutexGuard<'static, HashSet<String>> {
    NAMES_IN_USE.lock()
}

/// True if a temporary file has no writer any more.
pub(super) fn is_abandoned(folder: &Folder, name: &str) -> bool {
    if names_in_use().contains(name) {
        return false;
    }
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    // A file that cannot be opened is judged by its age alone.
    let Ok(fd) = openat(folder.fd(), name, flags, Mode::empty()) else { return true };
    match Flock::lock(File::from(fd), FlockArg::LockExclusiveNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => false,
        // Not locked, or the file system has no locks.
        Ok(_) | Err(_) => true,
    }
}

/// A file that does not have its final name yet. Dropping it deletes it.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    folder: Folder,
    name: String,
    target: String,
    exists: bool,
    /// Set if the file system has locks.
    lock: Option<Flock<File>>,
}

impl TemporaryFile {
    /// Creates a file beside its final name, in folders that are created if necessary.
    pub(super) fn create(bucket: &Folder, segments: &[String]) -> Result<(Self, File)> {
        let Some((target, folders)) = segments.split_last() else {
            return Err(Errno::EINVAL.into());
        };
        let mut last = Errno::ENOENT.into();
        for _ in 0..MAX_ATTEMPTS {
            match Self::try_create(bucket, folders, target) {
                Ok(created) => return Ok(created),
                // A delete has just removed the folder because it was empty.
                Err(error @ super::error::FilesystemFailure::System(Errno::ENOENT)) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn try_create(bucket: &Folder, folders: &[String], target: &str) -> Result<(Self, File)> {
        let mut folder = bucket.descend(&[])?.ok_or(Errno::ENOENT)?;
        for name in folders {
            folder = folder.open_or_create_subfolder(name)?;
        }
        let name = unique_name();
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        names_in_use().insert(name.clone());
        // From here on any failure removes the name again.
        let mut temporary =
            Self { folder, name, target: target.to_owned(), exists: false, lock: None };
        // The file may hold Secrets of the whole cluster.
        let mode = Mode::from_bits_truncate(0o600);
        let fd = openat(temporary.folder.fd(), temporary.name.as_str(), flags, mode)?;
        temporary.exists = true;
        let file = File::from(fd);
        // A copy shares the lock. Without locks, touching must suffice.
        temporary.lock = Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock).ok();
        Ok((temporary, file))
    }

    /// Marks the file as still being written, although it may not grow.
    pub(super) fn touch(file: &File) -> Result<()> {
        Ok(futimens(file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?)
    }

    /// Takes the final name, replacing an existing file. `check` is called right before.
    pub(super) fn publish_replacing(mut self, check: &impl Fn() -> Result<()>) -> Result<Creation> {
        check()?;
        let fd = self.folder.fd();
        renameat(fd, self.name.as_str(), fd, self.target.as_str())?;
        self.exists = false;
        self.folder.flush()?;
        Ok(Creation::Created(Guarantee::Atomic))
    }

    /// Takes the final name unless it is taken. `check` is called right before.
    pub(super) fn publish_if_absent(self, check: &impl Fn() -> Result<()>) -> Result<Creation> {
        check()?;
        let fd = self.folder.fd();
        match linkat(fd, self.name.as_str(), fd, self.target.as_str(), AtFlags::empty()) {
            Ok(()) => {
                self.folder.flush()?;
                Ok(Creation::Created(Guarantee::Atomic))
            }
            Err(Errno::EEXIST) => Ok(Creation::AlreadyExists),
            // A file system without links: check, then rename.
            Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK) => {
                if self.folder.has_file(std::slice::from_ref(&self.target))? {
                    return Ok(Creation::AlreadyExists);
                }
                self.publish_replacing(check)?;
                Ok(Creation::Created(Guarantee::CheckedFirst))
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.exists {
            // A file that cannot be deleted now is removed later as abandoned.
            let _ = unlinkat(self.folder.fd(), self.name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        names_in_use().remove(&self.name);
    }
}

/// A unique name; two servers on one folder differ in the time.
fn unique_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{TEMPORARY_PREFIX}{}-{count}-{time:x}", std::process::id())
}
