//! Errors of a folder, with texts that say what to do.

use std::io;

use bowline_plugin::{Code, Error};
use nix::errno::Errno;

use crate::backend::PermitDenied;

/// Reasons why an operation in a folder failed.
#[derive(Debug)]
pub(super) enum FilesystemFailure {
    /// The server's root does not exist.
    NoRoot(Errno),
    /// The bucket does not exist.
    NoBucket,
    /// The bucket's name is not a valid folder name.
    BucketName,
    /// The path contains a symbolic link.
    SymlinkInPath(String),
    /// Folders are nested too deeply.
    TooDeep,
    /// Error of the system.
    System(Errno),
    /// Writing is not permitted now.
    Denied(PermitDenied),
}

impl From<Errno> for FilesystemFailure {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl From<PermitDenied> for FilesystemFailure {
    fn from(denied: PermitDenied) -> Self {
        Self::Denied(denied)
    }
}

impl From<io::Error> for FilesystemFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

/// The error that users see. The caller knows the action and the object.
pub(super) fn user_error(bucket: &str, failure: FilesystemFailure) -> Error {
    let (code, reason) = match failure {
        FilesystemFailure::NoRoot(errno) => (
            Code::FailedPrecondition,
            format!("cannot open the directory of `--filesystem-root`: {}", errno.desc()),
        ),
        FilesystemFailure::NoBucket => (
            Code::FailedPrecondition,
            format!(
                "bucket `{bucket}` does not exist: create a directory of that name below the \
                 server's `--filesystem-root`"
            ),
        ),
        FilesystemFailure::BucketName => (
            Code::InvalidArgument,
            format!("`{bucket}` is not a bucket: expected the name of one directory"),
        ),
        FilesystemFailure::SymlinkInPath(name) => (
            Code::PermissionDenied,
            format!(
                "`{name}` is a symbolic link, which could lead out of `--filesystem-root`, and is \
                 not followed"
            ),
        ),
        // Writing may be permitted again: the renewal of a lease can be late.
        FilesystemFailure::Denied(denied) => (Code::Unavailable, denied.to_string()),
        FilesystemFailure::TooDeep => (
            Code::FailedPrecondition,
            "directories are nested too deep; remove those that are not part of a backup"
                .to_owned(),
        ),
        FilesystemFailure::System(errno) => {
            let (code, reason) = errno_code_and_text(errno);
            (code, reason.to_owned())
        }
    };
    Error::new(code, reason)
}

fn errno_code_and_text(errno: Errno) -> (Code, &'static str) {
    match errno {
        Errno::ENOENT => (Code::NotFound, "the file or directory does not exist"),
        Errno::EACCES | Errno::EPERM => {
            (Code::PermissionDenied, "the user of the server lacks the permission")
        }
        Errno::EROFS => (Code::PermissionDenied, "the file system is read-only"),
        Errno::ENOSPC | Errno::EDQUOT => (
            Code::ResourceExhausted,
            "no space left on the file system; free some, or use another location",
        ),
        Errno::ENAMETOOLONG => (Code::InvalidArgument, "the name is too long for a file"),
        Errno::ENOTDIR | Errno::EISDIR | Errno::EEXIST | Errno::ENOTEMPTY => {
            (Code::FailedPrecondition, "a directory and a file would have the same name")
        }
        other => (Code::Internal, other.desc()),
    }
}
