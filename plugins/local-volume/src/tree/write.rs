//! Creates the entries of a new tree, which is private until it is complete.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, mkdirat,
    mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::meta::{Kind, Meta};
use super::xattr::{self, Xattrs};
use super::{TreeError, join};

/// Private, until the file gets its own mode.
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_DIR: Mode = Mode::RWXU;

/// The place of an entry: an open folder, its path in the tree and a name in it.
#[derive(Clone, Copy)]
pub(crate) struct EntryDestination<'a> {
    pub folder: BorrowedFd<'a>,
    pub path: &'a Path,
    pub name: &'a CStr,
}

impl EntryDestination<'_> {
    fn write_error(&self, doing: &'static str) -> impl FnOnce(Errno) -> TreeError + use<> {
        TreeError::io(doing, &join(self.path, self.name))
    }

    /// Creates a folder. Its metadata is set once it is complete.
    pub(crate) fn create_dir(&self) -> Result<(), TreeError> {
        mkdirat(self.folder, self.name, PRIVATE_DIR).map_err(self.write_error("create directory"))
    }

    /// Creates an empty file. Its metadata is set once its content is there.
    pub(crate) fn create_file(&self) -> Result<File, TreeError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(self.folder, self.name, flags, PRIVATE_FILE);
        Ok(opened.map_err(self.write_error("create"))?.into())
    }

    /// Creates a symbolic link with its metadata.
    pub(crate) fn create_symlink(
        &self,
        target: &CStr,
        meta: &Meta,
        xattrs: &Xattrs,
    ) -> Result<(), TreeError> {
        symlinkat(target, self.folder, self.name)
            .map_err(self.write_error("create symbolic link"))?;
        self.set_metadata(meta, xattrs)
    }

    /// Creates a pipe, a socket or a device with its metadata.
    pub(crate) fn create_special(&self, meta: &Meta, xattrs: &Xattrs) -> Result<(), TreeError> {
        let (kind, device) = match meta.kind {
            Kind::Fifo => (FileType::Fifo, 0),
            Kind::Socket => (FileType::Socket, 0),
            Kind::Block(device) => (FileType::BlockDevice, device),
            Kind::Char(device) => (FileType::CharacterDevice, device),
            Kind::File | Kind::Dir | Kind::Symlink => {
                return Err(TreeError::Type { path: join(self.path, self.name) });
            }
        };
        mknodat(self.folder, self.name, kind, PRIVATE_FILE, device)
            .map_err(self.write_error("create special file"))?;
        self.set_metadata(meta, xattrs)
    }

    /// Sets owner, attributes, mode and time of an entry, in this order: a change of the owner
    /// clears set-uid and capabilities, and a mode may forbid setting attributes.
    pub(crate) fn set_metadata(&self, meta: &Meta, xattrs: &Xattrs) -> Result<(), TreeError> {
        let Self { folder, name, .. } = *self;
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.write_error("set the owner of"))?;
        xattr::write(folder, name, xattrs).map_err(|(key, errno)| TreeError::Io {
            doing: "set an extended attribute of",
            path: join(self.path, name),
            source: std::io::Error::other(format!("{key:?}: {}", std::io::Error::from(errno))),
        })?;
        if meta.kind != Kind::Symlink {
            let mode = Mode::from_raw_mode(meta.mode);
            chmodat(folder, name, mode, AtFlags::empty())
                .map_err(self.write_error("set the mode of"))?;
        }
        let (seconds, nanoseconds) = meta.modified;
        let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let times = Timestamps { last_access: modified, last_modification: modified };
        utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.write_error("set the time of"))
    }
}
