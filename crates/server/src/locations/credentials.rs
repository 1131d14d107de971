//! Credentials of locations as private files, since plugins take them as a path.
//!
//! A file is named by its location and a hash over its content, so that whoever compares two paths
//! compares the credentials. The hash is salted: a path may be seen in an error, and must not help
//! to guess. The last two files of a location are kept, since work that began with the ones before
//! may have to start its plugin again.

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// How many files are kept for each location.
const KEPT: usize = 2;
/// How many digits of the hash are in a name: enough that no two credentials meet.
const DIGITS: usize = 32;

/// What the names of VolumeSnapshotLocations begin with here, since a storage location may have the same.
/// No object can be called so.
const OF_SNAPSHOTS: &str = "_snapshots-";

/// A VolumeSnapshotLocation among locations. Its files are kept as long as the server runs.
pub(super) fn of_snapshots(location: &str) -> String {
    format!("{OF_SNAPSHOTS}{location}")
}

/// The files, in a private folder that goes away with this.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    folder: TempDir,
    salt: [u8; 32],
    /// For each location its files, the newest last.
    files: Mutex<HashMap<String, Vec<PathBuf>>>,
}

impl CredentialFiles {
    pub(super) fn below(parent: &Path) -> io::Result<Self> {
        let mut salt = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
        let folder = tempfile::Builder::new()
            .prefix("bowline-credentials-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        Ok(Self { folder, salt, files: Mutex::default() })
    }

    /// The file with these credentials of a location, written unless it is there.
    pub(super) fn write(&self, location: &str, credentials: &[u8]) -> io::Result<PathBuf> {
        let hash = Sha256::new().chain_update(self.salt).chain_update(credentials).finalize();
        let name = format!("{location}-{}", &hex::encode(hash)[..DIGITS]);
        let path = self.folder.path().join(name);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = files.entry(location.to_owned()).or_default();
        if let Some(at) = ours.iter().position(|file| *file == path) {
            if path.exists() {
                ours[at..].rotate_left(1);
                return Ok(path);
            }
            ours.remove(at);
        }
        write_whole(&path, credentials)?;
        ours.push(path.clone());
        while ours.len() > KEPT {
            remove(&ours.remove(0));
        }
        Ok(path)
    }

    /// Removes the files of storage locations that are not among these.
    pub(super) fn keep_only(&self, locations: &[String]) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|location, files| {
            let is_kept = locations.contains(location) || location.starts_with(OF_SNAPSHOTS);
            if !is_kept {
                for file in files {
                    remove(file);
                }
            }
            is_kept
        });
    }
}

/// Whoever finds the file finds all of it, and nobody else can read it.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let part = path.with_added_extension("part");
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(content)?;
    std::fs::rename(&part, path)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "cannot remove a file with old credentials");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (TempDir, CredentialFiles) {
        let parent = tempfile::tempdir().unwrap();
        let files = CredentialFiles::below(parent.path()).unwrap();
        (parent, files)
    }

    fn names(files: &CredentialFiles) -> usize {
        std::fs::read_dir(files.folder.path()).unwrap().count()
    }

    #[test]
    fn a_file_holds_the_credentials_for_its_owner_alone() {
        let (_parent, files) = files();
        let path = files.write("default", b"hunter2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hunter2");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(files.folder.path())), (0o600, 0o700));
        let name = path.file_name().unwrap().to_str().unwrap();
        let hash = hex::encode(Sha256::digest(b"hunter2"));
        assert!(name.starts_with("default-") && !name.contains(&hash[..DIGITS]), "{name}");
    }

    #[test]
    fn the_same_credentials_have_the_same_path_and_others_another() {
        let (_parent, files) = files();
        let first = files.write("default", b"a").unwrap();
        assert_eq!(files.write("default", b"a").unwrap(), first);
        assert_ne!(files.write("default", b"b").unwrap(), first);
        assert_ne!(files.write("other", b"a").unwrap(), first);
        std::fs::remove_file(&first).unwrap();
        assert_eq!(files.write("default", b"a").unwrap(), first);
        assert!(first.exists(), "a file that was taken away is written again");
    }

    #[test]
    fn old_files_are_removed_but_the_last_ones() {
        let (_parent, files) = files();
        let [a, b] = [b"a", b"b"].map(|bytes| files.write("default", bytes).unwrap());
        files.write("default", b"a").unwrap();
        files.write("default", b"c").unwrap();
        assert!(a.exists(), "used after b");
        assert!(!b.exists());
        files.write("other", b"a").unwrap();
        assert_eq!(names(&files), 3);
        files.keep_only(&["other".to_owned()]);
        assert_eq!(names(&files), 1);
        files.keep_only(&[]);
        assert_eq!(names(&files), 0);
    }

    #[test]
    fn nothing_is_left_at_the_end() {
        let (parent, files) = files();
        files.write("default", b"a").unwrap();
        drop(files);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
