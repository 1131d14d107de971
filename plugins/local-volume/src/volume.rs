//! New volumes: folders in a root that appear completely, or not at all.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, RenameFlags, fsync, mkdirat, renameat, renameat_with, syncfs};

use crate::id::{Id, unique_suffix};
use crate::path::VolumePath;
use crate::roots::{OWN_PREFIX, OpenRoot};
use crate::tree::{self, TreeError, beneath};

/// Prefix of the name of a volume while it is filled. Begins with [`OWN_PREFIX`].
const NEW_PREFIX: &str = ".bowline-restore-";
/// Prefix of the name while it is removed.
const REMOVED_PREFIX: &str = ".bowline-gone-";

/// A volume that is being filled. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(crate) struct NewVolume {
    root: OpenRoot,
    name: CString,
    folder: OwnedFd,
    is_kept: bool,
}

impl AsFd for NewVolume {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

impl NewVolume {
    pub(crate) fn create(root: OpenRoot) -> Result<Self, TreeError> {
        let name = format!("{NEW_PREFIX}{}", unique_suffix().map_err(root_error(&root))?);
        let c_name = CString::new(name.as_str()).map_err(root_error(&root))?;
        mkdirat(&root.folder, c_name.as_c_str(), Mode::RWXU).map_err(root_error(&root))?;
        let folder = beneath::open_folder(root.folder.as_fd(), Path::new(&name))
            .map_err(root_error(&root))?;
        Ok(Self { root, name: c_name, folder, is_kept: false })
    }

    /// Gives the volume its name, once all of it is on disk.
    pub(crate) fn publish(mut self, id: &Id) -> Result<VolumePath, TreeError> {
        syncfs(&self.folder).map_err(root_error(&self.root))?;
        let name = format!(
            "restored-{}-{}",
            id.short_form(),
            unique_suffix().map_err(root_error(&self.root))?
        );
        let root = &self.root.folder;
        renameat_with(root, &self.name, root, name.as_str(), RenameFlags::NOREPLACE)
            .map_err(root_error(&self.root))?;
        fsync(root).map_err(root_error(&self.root))?;
        let path = format!("{}/{name}", self.root.path);
        let path = path.parse().map_err(|error| root_error(&self.root)(io::Error::other(error)))?;
        self.is_kept = true;
        Ok(path)
    }
}

impl Drop for NewVolume {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(failed) = tree::remove::remove_tree(self.root.folder.as_fd(), &self.name)
        {
            tracing::warn!("{}", bowline_plugin_sdk::error_chain(&failed));
        }
    }
}

fn root_error<E: Into<io::Error>>(root: &OpenRoot) -> impl FnOnce(E) -> TreeError + use<E> {
    TreeError::io("change the directory", root.path.as_path())
}

/// Renames half-filled volumes of killed processes. Call it only while no volume is being filled.
pub(crate) fn rename_leftovers(root: &OpenRoot) -> Result<(), TreeError> {
    for name in names_with_prefix(root, NEW_PREFIX)? {
        let new_name = format!("{REMOVED_PREFIX}{}", unique_suffix().map_err(root_error(root))?);
        renameat(&root.folder, &name, &root.folder, new_name.as_str()).map_err(root_error(root))?;
    }
    Ok(())
}

/// Removes the renamed leftovers.
pub(crate) fn remove_leftovers(root: &OpenRoot) -> Result<(), TreeError> {
    for name in names_with_prefix(root, REMOVED_PREFIX)? {
        tracing::info!("removing leftover {name:?} from {}", root.path);
        tree::remove::remove_tree(root.folder.as_fd(), &name)?;
    }
    Ok(())
}

fn names_with_prefix(root: &OpenRoot, prefix: &str) -> Result<Vec<CString>, TreeError> {
    debug_assert!(prefix.starts_with(OWN_PREFIX));
    let names = beneath::entry_names(&root.folder).map_err(root_error(root))?;
    let has_prefix = |name: &rustix::io::Result<CString>| {
        name.as_ref().map_or(true, |name| name.to_bytes().starts_with(prefix.as_bytes()))
    };
    names.filter(has_prefix).collect::<Result<_, _>>().map_err(root_error(root))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::roots::Roots;

    #[test]
    fn volume_appears_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path: VolumePath = folder.path().to_str().unwrap().parse().unwrap();
        let roots = Roots::new(vec![path], Vec::new());
        let root = || roots.open_for_new(None).unwrap();
        let count = || fs::read_dir(folder.path()).unwrap().count();

        drop(NewVolume::create(root()).unwrap());
        assert_eq!(count(), 0);

        let id = Id::from_request("a");
        let published = NewVolume::create(root()).unwrap().publish(&id).unwrap();
        assert!(published.as_path().is_dir());
        assert!(
            published.as_str().contains(&format!("/restored-{}-", id.short_form())),
            "{published}"
        );
        roots.open(&published).unwrap();

        std::mem::forget(NewVolume::create(root()).unwrap());
        assert_eq!(count(), 2);
        remove_leftovers(&root()).unwrap();
        assert_eq!(count(), 2, "it may still be filled");
        rename_leftovers(&root()).unwrap();
        remove_leftovers(&root()).unwrap();
        assert_eq!(count(), 1);
        assert!(published.as_path().is_dir());
    }
}
