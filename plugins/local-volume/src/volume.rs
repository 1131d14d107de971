//! New volumes: folders in a root that are there whole, or not at all.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, RenameFlags, fsync, mkdirat, renameat, renameat_with, syncfs};

use crate::id::{Id, unique};
use crate::path::VolumePath;
use crate::roots::{OWN, Root};
use crate::tree::{self, Failed, beneath};

/// How a volume is named while it is filled. [`OWN`] is how these begin.
const NEW: &str = ".bowline-restore-";
/// How it is named while it is removed.
const GONE: &str = ".bowline-gone-";

/// A volume that is being filled. Dropped before it is kept, it is removed.
#[derive(Debug)]
pub(crate) struct NewVolume {
    root: Root,
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
    pub(crate) fn begin(root: Root) -> Result<Self, Failed> {
        let name = format!("{NEW}{}", unique().map_err(failed(&root))?);
        let c_name = CString::new(name.as_str()).map_err(failed(&root))?;
        mkdirat(&root.folder, c_name.as_c_str(), Mode::RWXU).map_err(failed(&root))?;
        let folder =
            beneath::folder(root.folder.as_fd(), Path::new(&name)).map_err(failed(&root))?;
        Ok(Self { root, name: c_name, folder, is_kept: false })
    }

    /// Gives the volume its name, when all of it is on disk.
    pub(crate) fn keep(mut self, id: &Id) -> Result<VolumePath, Failed> {
        syncfs(&self.folder).map_err(failed(&self.root))?;
        let name = format!("restored-{}-{}", id.short(), unique().map_err(failed(&self.root))?);
        let root = &self.root.folder;
        renameat_with(root, &self.name, root, name.as_str(), RenameFlags::NOREPLACE)
            .map_err(failed(&self.root))?;
        fsync(root).map_err(failed(&self.root))?;
        let path = format!("{}/{name}", self.root.path);
        let path = path.parse().map_err(|error| failed(&self.root)(io::Error::other(error)))?;
        self.is_kept = true;
        Ok(path)
    }
}

impl Drop for NewVolume {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(failed) = tree::remove::tree(self.root.folder.as_fd(), &self.name)
        {
            tracing::warn!("{}", bowline_plugin_sdk::one_line(&failed));
        }
    }
}

fn failed<E: Into<io::Error>>(root: &Root) -> impl FnOnce(E) -> Failed + use<E> {
    Failed::io("change the folder", root.path.as_path())
}

/// Renames volumes that killed processes have left half filled. To be called when nobody fills one.
pub(crate) fn set_aside(root: &Root) -> Result<(), Failed> {
    for name in names(root, NEW)? {
        let gone = format!("{GONE}{}", unique().map_err(failed(root))?);
        renameat(&root.folder, &name, &root.folder, gone.as_str()).map_err(failed(root))?;
    }
    Ok(())
}

/// Removes what was set aside.
pub(crate) fn sweep(root: &Root) -> Result<(), Failed> {
    for name in names(root, GONE)? {
        tracing::info!("removing {name:?} from {}: it was left behind", root.path);
        tree::remove::tree(root.folder.as_fd(), &name)?;
    }
    Ok(())
}

fn names(root: &Root, prefix: &str) -> Result<Vec<CString>, Failed> {
    debug_assert!(prefix.starts_with(OWN));
    let names = beneath::names(&root.folder).map_err(failed(root))?;
    let is_left = |name: &rustix::io::Result<CString>| {
        name.as_ref().map_or(true, |name| name.to_bytes().starts_with(prefix.as_bytes()))
    };
    names.filter(is_left).collect::<Result<_, _>>().map_err(failed(root))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::roots::Roots;

    #[test]
    fn a_volume_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path: VolumePath = folder.path().to_str().unwrap().parse().unwrap();
        let roots = Roots::new(vec![path], Vec::new());
        let root = || roots.open_for_new(None).unwrap();
        let count = || fs::read_dir(folder.path()).unwrap().count();

        drop(NewVolume::begin(root()).unwrap());
        assert_eq!(count(), 0);

        let id = Id::of_request("a");
        let made = NewVolume::begin(root()).unwrap().keep(&id).unwrap();
        assert!(made.as_path().is_dir());
        assert!(made.as_str().contains(&format!("/restored-{}-", id.short())), "{made}");
        roots.open(&made).unwrap();

        std::mem::forget(NewVolume::begin(root()).unwrap());
        assert_eq!(count(), 2);
        sweep(&root()).unwrap();
        assert_eq!(count(), 2, "it may still be filled");
        set_aside(&root()).unwrap();
        sweep(&root()).unwrap();
        assert_eq!(count(), 1);
        assert!(made.as_path().is_dir());
    }
}
