//! Metadata of an entry.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags, makedev, statx};
use rustix::io::Result;

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    /// With its device number.
    Block(u64),
    /// With its device number.
    Char(u64),
}

/// An entry without its content and its extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub kind: Kind,
    /// Permissions, with the bits for set-uid, set-gid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Time of the last change of its content, in seconds and nanoseconds.
    pub modified: (i64, u32),
    pub size: u64,
    /// Number of names.
    pub links: u32,
    /// Device and inode, which identify a file with several names.
    pub device: u64,
    pub inode: u64,
    /// True if another filesystem is mounted here.
    pub is_mount: bool,
}

impl Meta {
    /// Metadata of an entry of a folder; `None` if its type is unknown.
    pub(crate) fn at(folder: BorrowedFd<'_>, name: &CStr) -> Result<Option<Self>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        Ok(Self::from_statx(&statx(folder, name, flags, StatxFlags::BASIC_STATS)?))
    }

    /// Metadata of an open file.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Result<Option<Self>> {
        let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        // A folder that was opened on purpose may be a mount.
        Ok(Self::from_statx(&found).map(|meta| Self { is_mount: false, ..meta }))
    }

    fn from_statx(found: &Statx) -> Option<Self> {
        let special = makedev(found.stx_rdev_major, found.stx_rdev_minor);
        let mode = u32::from(found.stx_mode);
        let kind = match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::BlockDevice => Kind::Block(special),
            FileType::CharacterDevice => Kind::Char(special),
            FileType::Unknown => return None,
        };
        Some(Self {
            kind,
            mode: mode & 0o7777,
            uid: found.stx_uid,
            gid: found.stx_gid,
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            size: found.stx_size,
            links: found.stx_nlink,
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            is_mount: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }

    /// The key by which other names of the same file are recognized; `None` if it has only one.
    pub(crate) fn link_key(&self) -> Option<(u64, u64)> {
        (self.kind != Kind::Dir && self.links > 1).then_some((self.device, self.inode))
    }
}
