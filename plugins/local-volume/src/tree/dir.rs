//! A folder of a new tree while it is filled.
//!
//! Owner, mode and time are set when the folder is complete, since each new entry would change the
//! time, and a mode may forbid new entries. Each user of the folder holds an [`Arc`] of it, and
//! passes it to [`finish_if_last`] afterwards; a folder holds its parent.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::meta::Meta;
use super::write::EntryDestination;
use super::xattr::Xattrs;
use super::{TreeError, beneath};

/// A folder that is being filled.
#[derive(Debug)]
pub(crate) struct Dir {
    /// Relative to the tree; empty for the tree itself.
    pub path: PathBuf,
    pub meta: Meta,
    pub xattrs: Xattrs,
    pub parent: Option<Arc<Dir>>,
}

/// Releases a folder. The last holder sets its metadata, and releases its parent.
pub(crate) fn finish_if_last(dir: Arc<Dir>, tree: BorrowedFd<'_>) -> Result<(), TreeError> {
    let mut next = Some(dir);
    while let Some(Dir { path, meta, xattrs, parent }) = next.and_then(Arc::into_inner) {
        let (above, name) = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => (above, name.as_bytes()),
            _ => (Path::new(""), &b"."[..]),
        };
        let folder = beneath::open_folder(tree, above).map_err(TreeError::io("open", above))?;
        let name = CString::new(name).map_err(TreeError::io("name", &path))?;
        let destination = EntryDestination { folder: folder.as_fd(), path: above, name: &name };
        destination.set_metadata(&meta, &xattrs)?;
        next = parent;
    }
    Ok(())
}
