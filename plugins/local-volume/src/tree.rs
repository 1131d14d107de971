//! Trees of files: cloning, writing and removing.
//!
//! A tree is an open folder. Everything in it is reached from there, one name at a time or by a
//! path without any symbolic link: pods may change their volume while it is read.

pub(crate) mod beneath;
mod btrfs;
pub(crate) mod clone;
pub(crate) mod content;
pub(crate) mod dir;
pub(crate) mod meta;
pub(crate) mod remove;
pub(crate) mod write;
pub(crate) mod xattr;

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Errors in a tree. Paths are relative to it, and shown escaped: their names are untrusted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("cannot {doing} {path:?}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "another filesystem is mounted at {path:?}; snapshots do not support that; use a separate \
         volume for it"
    )]
    Mount { path: PathBuf },
    #[error("{path:?} keeps changing its type while it is read")]
    KeepsChanging { path: PathBuf },
    #[error("{path:?} has an unknown type")]
    Type { path: PathBuf },
    #[error("{0}")]
    Stopped(String),
}

impl TreeError {
    /// Makes an error from the action and the path.
    pub(crate) fn io<E: Into<io::Error>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self + use<E> {
        // An empty path is the tree itself.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path }.to_owned();
        move |error| Self::Io { doing, path, source: error.into() }
    }

    /// True if the entry to create already exists.
    fn is_already_exists(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
    }

    /// True if the disk was full.
    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_full(source))
    }
}

/// True if the filesystem is full, or the quota exceeded.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The path of an entry.
pub(crate) fn join(folder: &Path, name: &CStr) -> PathBuf {
    folder.join(OsStr::from_bytes(name.to_bytes()))
}

/// Number of threads that work on one tree.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}
