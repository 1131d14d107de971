//! The folders that may contain volumes.
//!
//! The kernel opens a path in one step, and follows symbolic links only as long as they stay below
//! the root (`RESOLVE_BENEATH`), and none of the links in `/proc` that lead anywhere. Checking
//! first and opening then would allow a link to be changed in between.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::path::{InvalidPath, VolumePath};

/// Prefix of our own folders in a root. No volume is in one.
pub(crate) const OWN_PREFIX: &str = ".bowline-";

/// Number of times that the kernel may report a concurrent rename on the path.
const MAX_ATTEMPTS: usize = 16;

/// The allowed folders, and our own folders that may be in them.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    roots: Vec<VolumePath>,
    /// Folders that no volume may contain or be in: clones, and the repository.
    reserved: Vec<PathBuf>,
}

/// A volume that was opened below an allowed root.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    /// Its id.
    pub path: VolumePath,
    /// The folder, open.
    folder: OwnedFd,
}

impl AsFd for OpenVolume {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

/// A root, open.
#[derive(Debug)]
pub(crate) struct OpenRoot {
    pub path: VolumePath,
    pub folder: OwnedFd,
}

/// Reasons why a volume is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeRefusal {
    #[error("the path of the volume is not allowed")]
    Path(#[from] InvalidPath),
    #[error("volume {0} is outside of the configured `roots`")]
    Outside(VolumePath),
    #[error("volume {0} is a root itself; allow its parent directory")]
    IsRoot(VolumePath),
    #[error("volume {0} leaves its root by a symbolic link")]
    LeadsOut(VolumePath),
    #[error("volume {path} contains, or is in, {}, which is reserved for the plugin", reserved.display())]
    Reserved { path: VolumePath, reserved: PathBuf },
    #[error("volume {0} does not exist on this node")]
    Missing(VolumePath),
    #[error("volume {0} is not a directory; only volumes with files can be snapshotted")]
    NoFolder(VolumePath),
    #[error("root {path} cannot be opened")]
    Root { path: VolumePath, source: io::Error },
    #[error("volume {path} cannot be opened")]
    Open { path: VolumePath, source: io::Error },
}

impl Roots {
    /// `reserved` are our own folders; they need not exist yet.
    pub(crate) fn new(roots: Vec<VolumePath>, reserved: Vec<PathBuf>) -> Self {
        Self { roots, reserved }
    }

    /// The root of a path, by its text alone.
    fn root_of(&self, path: &VolumePath) -> Result<(&VolumePath, PathBuf), VolumeRefusal> {
        let below = |root: &VolumePath| {
            path.as_path().strip_prefix(root.as_path()).ok().map(Path::to_owned)
        };
        let found = self.roots.iter().filter_map(|root| Some((root, below(root)?)));
        // The innermost one, if one root is in another.
        match found.max_by_key(|(root, _)| root.as_str().len()) {
            None => Err(VolumeRefusal::Outside(path.clone())),
            Some((_, rest)) if rest.as_os_str().is_empty() => {
                Err(VolumeRefusal::IsRoot(path.clone()))
            }
            Some(found) => Ok(found),
        }
    }

    /// Checks that a volume may have this path, by its text alone: it need not exist.
    pub(crate) fn check_allowed(&self, path: &VolumePath) -> Result<(), VolumeRefusal> {
        let (root, rest) = self.root_of(path)?;
        let own_part = rest.iter().find(|part| part.to_string_lossy().starts_with(OWN_PREFIX));
        match own_part {
            Some(part) => Err(VolumeRefusal::Reserved {
                path: path.clone(),
                reserved: root.as_path().join(part),
            }),
            None => Ok(()),
        }
    }

    /// Opens a volume.
    pub(crate) fn open(&self, path: &VolumePath) -> Result<OpenVolume, VolumeRefusal> {
        self.check_allowed(path)?;
        let (root, rest) = self.root_of(path)?;
        let folder =
            open_beneath(open_root(root)?.as_fd(), &rest).map_err(|errno| match errno {
                Errno::XDEV | Errno::LOOP => VolumeRefusal::LeadsOut(path.clone()),
                Errno::NOENT => VolumeRefusal::Missing(path.clone()),
                Errno::NOTDIR => VolumeRefusal::NoFolder(path.clone()),
                errno => VolumeRefusal::Open { path: path.clone(), source: errno.into() },
            })?;
        let real = real_path(folder.as_fd())
            .map_err(|source| VolumeRefusal::Open { path: path.clone(), source })?;
        if let Some(reserved) =
            self.reserved.iter().find_map(|path| overlapping_folder(&real, path))
        {
            return Err(VolumeRefusal::Reserved { path: path.clone(), reserved });
        }
        Ok(OpenVolume { path: path.clone(), folder })
    }

    /// The root for a new volume: that of the original volume, if it is allowed here.
    pub(crate) fn open_for_new(
        &self,
        original: Option<&VolumePath>,
    ) -> Result<OpenRoot, VolumeRefusal> {
        let same = original.and_then(|path| Some(self.root_of(path).ok()?.0));
        // Every configuration has at least one root.
        let path = same.unwrap_or(&self.roots[0]);
        Ok(OpenRoot { folder: open_root(path)?, path: path.clone() })
    }

    /// All roots that can be opened.
    pub(crate) fn open_all(&self) -> impl Iterator<Item = Result<OpenRoot, VolumeRefusal>> {
        self.roots.iter().map(|path| Ok(OpenRoot { folder: open_root(path)?, path: path.clone() }))
    }
}

fn open_root(path: &VolumePath) -> Result<OwnedFd, VolumeRefusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path.as_path(), flags, Mode::empty())
        .map_err(|errno| VolumeRefusal::Root { path: path.clone(), source: errno.into() })
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        tries += 1;
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries < MAX_ATTEMPTS => {}
            opened => return opened,
        }
    }
}

/// The path of an open folder.
fn real_path(folder: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// The reserved folder, if a volume is in it or contains it.
fn overlapping_folder(volume: &Path, reserved: &Path) -> Option<PathBuf> {
    // A folder that does not exist yet has only the path that was given.
    let real = std::fs::canonicalize(reserved).unwrap_or_else(|_| reserved.to_owned());
    (volume.starts_with(&real) || real.starts_with(volume)).then_some(real)
}

#[cfg(test)]
mod tests;
