//! Removes a tree, however deep it is.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::meta::{Kind, Meta};
use super::{TreeError, beneath, join};

/// Removes a folder with its content. Not an error if it is gone.
///
/// Nothing below a symbolic link or a mount is touched. Only one folder is open at a time.
pub(crate) fn remove_tree(above: BorrowedFd<'_>, name: &CStr) -> Result<(), TreeError> {
    // A folder is visited twice: first to be emptied, then to be removed.
    let mut stack = vec![(join(Path::new(""), name), false)];
    while let Some((path, was_emptied)) = stack.pop() {
        if was_emptied {
            remove_folder(above, &path)?;
            continue;
        }
        let folder = match beneath::open_folder(above, &path) {
            Err(Errno::NOENT) => continue,
            folder => folder.map_err(TreeError::io("open", &path))?,
        };
        stack.push((path.clone(), true));
        let names = remaining_folders(folder.as_fd(), &path)?;
        stack.extend(names.iter().map(|name| (join(&path, name), false)));
    }
    Ok(())
}

/// Removes everything but folders, and returns those.
fn remaining_folders(folder: BorrowedFd<'_>, path: &Path) -> Result<Vec<CString>, TreeError> {
    let mut folders = Vec::new();
    // Entries are removed while the folder is read, which filesystems allow.
    for name in beneath::entry_names(folder).map_err(TreeError::io("list", path))? {
        let name = name.map_err(TreeError::io("list", path))?;
        let removed = match Meta::at(folder, &name) {
            Ok(Some(meta)) if meta.kind == Kind::Dir => {
                folders.push(name);
                continue;
            }
            Ok(_) => unlinkat(folder, name.as_c_str(), AtFlags::empty()),
            Err(errno) => Err(errno),
        };
        match removed {
            Err(Errno::NOENT) => {}
            removed => removed.map_err(TreeError::io("remove", &join(path, &name)))?,
        }
    }
    Ok(folders)
}

fn remove_folder(above: BorrowedFd<'_>, path: &Path) -> Result<(), TreeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let failed = || TreeError::io("remove", path);
    let parent = beneath::open_folder(above, parent).map_err(failed())?;
    let name = CString::new(name.as_bytes()).map_err(TreeError::io("name", path))?;
    match unlinkat(parent.as_fd(), name.as_c_str(), AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.map_err(failed()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn tree_is_removed_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        fs::create_dir_all(base.join("tree/a/b/c")).unwrap();
        fs::create_dir_all(base.join("kept")).unwrap();
        fs::write(base.join("kept/file"), "").unwrap();
        fs::write(base.join("tree/a/file"), "").unwrap();
        symlink(base.join("kept"), base.join("tree/a/link")).unwrap();
        // Deeper than the number of files that may be open.
        let mut deep = base.join("tree/deep");
        for _ in 0..1500 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let above = fs::File::open(base).unwrap();
        remove_tree(above.as_fd(), c"tree").unwrap();
        assert!(!base.join("tree").exists());
        assert!(base.join("kept/file").exists());
        remove_tree(above.as_fd(), c"tree").unwrap();
    }
}
