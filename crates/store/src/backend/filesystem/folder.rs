//! Folders, entered one by one and never through a link.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::error::FilesystemFailure;
use super::temporary::{is_abandoned, is_temporary};
use crate::backend::Permit;

pub(super) type Result<T, E = FilesystemFailure> = std::result::Result<T, E>;

const OPEN_DIR_FLAGS: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// A temporary file that has neither grown nor been touched for this long, and that is not locked,
/// is abandoned.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);
/// The same, in a folder whose objects are being deleted.
const ABANDONED_AFTER_IN_DELETED_FOLDER: Duration = Duration::from_mins(5);
/// Maximum nesting of folders below the listed one. Our own are two deep.
const MAX_DEPTH: usize = 32;

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// True if a part of a key is a valid name in a folder, and not that of a temporary file.
pub(super) fn is_object_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && !segment.contains(['/', '\0']) && !is_temporary(segment)
}

impl Folder {
    /// The folder of a bucket, directly below the root. The root itself may be a link: the operator
    /// chose it.
    pub(super) fn bucket(root: &Path, bucket: &str) -> Result<Self> {
        if !is_object_segment(bucket) {
            return Err(FilesystemFailure::BucketName);
        }
        let flags = OPEN_DIR_FLAGS.difference(OFlag::O_NOFOLLOW);
        let root = open(root, flags, Mode::empty()).map_err(FilesystemFailure::NoRoot)?;
        Self(root).open_subfolder(bucket)?.ok_or(FilesystemFailure::NoBucket)
    }

    /// A folder in this one; `None` if it does not exist, or is a file.
    pub(super) fn open_subfolder(&self, name: &str) -> Result<Option<Self>> {
        match openat(&self.0, name, OPEN_DIR_FLAGS, Mode::empty()) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(Errno::ENOENT) => Ok(None),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let stat = self.stat(name)?;
                if stat.is_some_and(|stat| file_kind(&stat) == SFlag::S_IFLNK) {
                    return Err(FilesystemFailure::SymlinkInPath(name.to_owned()));
                }
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// A folder in this one, created if necessary.
    pub(super) fn open_or_create_subfolder(&self, name: &str) -> Result<Self> {
        if let Some(folder) = self.open_subfolder(name)? {
            return Ok(folder);
        }
        match mkdirat(&self.0, name, Mode::from_bits_truncate(0o700)) {
            Ok(()) => self.flush()?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        match self.open_subfolder(name)? {
            Some(folder) => Ok(folder),
            None if self.stat(name)?.is_some() => Err(Errno::ENOTDIR.into()),
            // Removed just now, because it was empty.
            None => Err(Errno::ENOENT.into()),
        }
    }

    /// The folder at the end of a path; `None` if it does not exist.
    pub(super) fn descend(&self, segments: &[String]) -> Result<Option<Self>> {
        let mut at = Self(self.0.try_clone()?);
        for segment in segments {
            match at.open_subfolder(segment)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// True if there is a file at the end of a path.
    pub(super) fn has_file(&self, segments: &[String]) -> Result<bool> {
        let Some((name, folders)) = segments.split_last() else { return Ok(false) };
        let Some(folder) = self.descend(folders)? else { return Ok(false) };
        Ok(folder.stat(name)?.is_some_and(|stat| file_kind(&stat) == SFlag::S_IFREG))
    }

    /// The file at the end of a path.
    pub(super) fn open_file(&self, segments: &[String]) -> Result<File> {
        let Some((name, folders)) = segments.split_last() else { return Err(Errno::ENOENT.into()) };
        let Some(folder) = self.descend(folders)? else { return Err(Errno::ENOENT.into()) };
        // Not blocking, since the entry may be a named pipe.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        match openat(&folder.0, name.as_str(), flags, Mode::empty()) {
            Ok(fd) if file_kind(&fstat(&fd)?) == SFlag::S_IFREG => Ok(File::from(fd)),
            Ok(_) => Err(Errno::ENOENT.into()),
            Err(Errno::ELOOP) => Err(FilesystemFailure::SymlinkInPath(name.clone())),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Deletes the file at the end of a path, and the folders that it leaves empty.
    pub(super) fn delete_file(&self, segments: &[String], permit: &Permit) -> Result<()> {
        let Some((name, folders)) = segments.split_last() else { return Ok(()) };
        let mut path = vec![Self(self.0.try_clone()?)];
        for segment in folders {
            let Some(at) = path.last() else { return Ok(()) };
            match at.open_subfolder(segment)? {
                Some(next) => path.push(next),
                None => return Ok(()),
            }
        }
        let Some(last) = path.last() else { return Ok(()) };
        // Descending to the folder may have taken long.
        permit.check()?;
        match unlinkat(&last.0, name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => last.flush()?,
            Err(Errno::ENOENT | Errno::EISDIR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let now = SystemTime::now();
        for (at, (parent, child)) in path.iter().zip(folders).enumerate().rev() {
            // Leftovers of a killed process would keep the folder for ever.
            if let Some(folder) = path.get(at + 1) {
                folder.delete_abandoned_files(now, ABANDONED_AFTER_IN_DELETED_FOLDER);
            }
            // Not empty, or no longer empty: the folder stays.
            if unlinkat(&parent.0, child.as_str(), UnlinkatFlags::RemoveDir).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The keys of the files here and below whose names here begin with `name_prefix`.
    pub(super) fn list_keys(
        &self,
        name_prefix: &str,
        key_prefix: &str,
        now: SystemTime,
    ) -> Result<Vec<String>> {
        self.list_keys_to_depth(name_prefix, key_prefix, now, MAX_DEPTH)
    }

    fn list_keys_to_depth(
        &self,
        name_prefix: &str,
        key_prefix: &str,
        now: SystemTime,
        depth: usize,
    ) -> Result<Vec<String>> {
        // Each level costs stack and an open file. An incomplete list would be wrong, so this is an
        // error.
        let Some(deeper) = depth.checked_sub(1) else { return Err(FilesystemFailure::TooDeep) };
        let mut keys = Vec::new();
        for (name, is_folder) in self.entries(name_prefix, now)? {
            let key = format!("{key_prefix}{name}");
            if !is_folder {
                keys.push(key);
            } else if let Some(folder) = self.open_subfolder(&name)? {
                keys.extend(folder.list_keys_to_depth("", &format!("{key}/"), now, deeper)?);
            }
        }
        Ok(keys)
    }

    /// The folders here whose names begin with `name_prefix` and that have a file somewhere below.
    pub(super) fn folders_with_files(
        &self,
        name_prefix: &str,
        now: SystemTime,
    ) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, is_folder) in self.entries(name_prefix, now)? {
            let found = match is_folder.then(|| self.open_subfolder(&name)).transpose()?.flatten() {
                Some(folder) => folder.contains_file(now, MAX_DEPTH)?.is_break(),
                None => false,
            };
            if found {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn contains_file(&self, now: SystemTime, depth: usize) -> Result<ControlFlow<()>> {
        // Too deep to look into, but certainly not empty.
        let Some(deeper) = depth.checked_sub(1) else { return Ok(ControlFlow::Break(())) };
        let entries = self.entries("", now)?;
        if entries.iter().any(|(_, is_folder)| !is_folder) {
            return Ok(ControlFlow::Break(()));
        }
        for (name, _) in entries {
            if let Some(folder) = self.open_subfolder(&name)?
                && folder.contains_file(now, deeper)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The files and folders here, each with a flag for folders. Links and special files are
    /// ignored, and abandoned temporary files deleted.
    fn entries(&self, name_prefix: &str, now: SystemTime) -> Result<Vec<(String, bool)>> {
        let mut dir = Dir::openat(&self.0, c".", OPEN_DIR_FLAGS, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if is_temporary(name) {
                self.delete_if_abandoned(name, now, ABANDONED_AFTER);
            } else if is_object_segment(name) && name.starts_with(name_prefix) {
                let is_folder = match entry.file_type() {
                    Some(Type::Directory) => true,
                    Some(Type::File) => false,
                    Some(_) => continue,
                    // Some file systems do not report the type.
                    None => match self.stat(name)?.map(|stat| file_kind(&stat)) {
                        Some(SFlag::S_IFDIR) => true,
                        Some(SFlag::S_IFREG) => false,
                        _ => continue,
                    },
                };
                entries.push((name.to_owned(), is_folder));
            }
        }
        Ok(entries)
    }

    /// Deletes the temporary files here that have no writer.
    fn delete_abandoned_files(&self, now: SystemTime, age: Duration) {
        let Ok(mut dir) = Dir::openat(&self.0, c".", OPEN_DIR_FLAGS, Mode::empty()) else { return };
        for entry in dir.iter().flatten() {
            if let Ok(name) = entry.file_name().to_str()
                && is_temporary(name)
            {
                self.delete_if_abandoned(name, now, age);
            }
        }
    }

    fn delete_if_abandoned(&self, name: &str, now: SystemTime, min_age: Duration) {
        let Ok(Some(stat)) = self.stat(name) else { return };
        let written = SystemTime::UNIX_EPOCH
            + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default());
        let is_old = now.duration_since(written).is_ok_and(|age| age > min_age);
        if is_old && file_kind(&stat) == SFlag::S_IFREG && is_abandoned(self, name) {
            // The file is only in the way; without permission to delete, it stays.
            let _ = unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir);
        }
    }

    /// The entry of this name itself; links are not followed.
    fn stat(&self, name: &str) -> Result<Option<FileStat>> {
        match fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Flushes changes of the names in this folder to disk.
    pub(super) fn flush(&self) -> Result<()> {
        Ok(fsync(&self.0)?)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

fn file_kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}
