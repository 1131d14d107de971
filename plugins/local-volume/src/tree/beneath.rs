//! Opens entries of a tree: never through a symbolic link, never on another filesystem.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, Result};

const STRICT_RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A folder of the tree; an empty path is the tree itself.
pub(crate) fn open_folder(tree: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(tree, path, flags, Mode::empty(), STRICT_RESOLVE)
}

/// An entry of a folder, for reading. Does not block, as opening a pipe would.
pub(crate) fn open_entry(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat2(folder, name, flags, Mode::empty(), STRICT_RESOLVE)
}

/// True if an error of the functions above means that there is another filesystem.
pub(crate) fn is_mount(errno: Errno) -> bool {
    errno == Errno::XDEV
}

/// The names in a folder, unsorted.
pub(crate) fn entry_names(folder: impl AsFd) -> Result<impl Iterator<Item = Result<CString>>> {
    let entries = Dir::read_from(folder)?.map(|entry| Ok(entry?.file_name().to_owned()));
    let is_entry = |name: &Result<CString>| !matches!(name.as_deref(), Ok(name) if name == c"." || name == c"..");
    Ok(entries.filter(is_entry))
}
