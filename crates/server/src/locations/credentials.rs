//! Credentials of locations as private files, since plugins take them as a path.
//!
//! A file is named by its location and a hash over its content, so that whoever compares two paths
//! compares the credentials. The hash is salted: a path may be seen in an error, and must not help
//! to guess. The last two files of a location are kept, since work that began with the ones before
//! may have to start its plugin again.
//!
//! A server that is killed leaves its folder behind. So each folder has a lock that the kernel drops with its owner, and
//! the next server removes folders whose lock nobody holds. A folder has its final name only when it is locked.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

/// What the names of folders begin with, and while they are not locked yet.
const PREFIX: &str = "bowline-credentials-";
const UNLOCKED_PREFIX: &str = ".bowline-credentials-";
/// The file in a folder that its owner has locked.
const LOCK: &str = ".lock";
/// How many entries of the folder for private files are looked at.
const MAX_ENTRIES: usize = 100_000;
/// How many files are kept for each location.
const FILES_KEPT: usize = 2;
/// How many digits of the hash are in a name: enough that no two credentials meet.
const HASH_DIGITS: usize = 32;

/// What the names of VolumeSnapshotLocations begin with here, since a storage location may have the same.
/// No object can be called so.
const SNAPSHOT_LOCATION_PREFIX: &str = "_snapshots-";

/// A VolumeSnapshotLocation among locations. Its files are kept as long as the server runs.
pub(super) fn snapshot_location_key(location: &str) -> String {
    format!("{SNAPSHOT_LOCATION_PREFIX}{location}")
}

/// A private folder that goes away with this. Its lock says that its owner lives.
#[derive(Debug)]
struct LockedFolder {
    path: PathBuf,
    _lock: File,
}

impl LockedFolder {
    fn create_in(parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(UNLOCKED_PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let lock = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(folder.path().join(LOCK))?;
        lock.try_lock()?;
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.trim_start_matches(UNLOCKED_PREFIX);
        // The part behind the prefix is random, so that nothing else has this name.
        let path = parent.join(format!("{PREFIX}{name}"));
        std::fs::rename(folder.path(), &path)?;
        // It is not there under its old name.
        let _ = folder.keep();
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for LockedFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "cannot remove the folder with credentials");
        }
    }
}

/// Removes the folders of servers of the same user that have ended without doing so.
fn remove_leftovers(parent: &Path, user: u32) -> io::Result<()> {
    for entry in std::fs::read_dir(parent)?.take(MAX_ENTRIES).flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        match remove_leftover(&entry.path(), user) {
            Ok(true) => tracing::info!("removed credentials that a killed server had left"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot remove credentials of a killed server"),
        }
    }
    Ok(())
}

/// Removes a folder if it is of this user and its owner is gone. Says whether it did.
fn remove_leftover(folder: &Path, user: u32) -> io::Result<bool> {
    let metadata = folder.symlink_metadata()?;
    if !metadata.is_dir() || metadata.uid() != user {
        return Ok(false);
    }
    let lock = match OpenOptions::new().write(true).open(folder.join(LOCK)) {
        Ok(lock) => lock,
        // Somebody else has just removed it, or it is of a version that had no locks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        Ok(()) => std::fs::remove_dir_all(folder).map(|()| true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// The files, in a private folder that goes away with this.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    folder: LockedFolder,
    salt: [u8; 32],
    /// For each location its files, the newest last.
    files: Mutex<HashMap<String, Vec<PathBuf>>>,
}

impl CredentialFiles {
    pub(super) fn create_in(parent: &Path) -> io::Result<Self> {
        let mut salt = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
        let folder = LockedFolder::create_in(parent)?;
        remove_leftovers(parent, folder.path.symlink_metadata()?.uid())?;
        Ok(Self { folder, salt, files: Mutex::default() })
    }

    /// The file with these credentials of a location, written unless it is there.
    pub(super) fn write(&self, location: &str, credentials: &[u8]) -> io::Result<PathBuf> {
        let hash = Sha256::new().chain_update(self.salt).chain_update(credentials).finalize();
        let name = format!("{location}-{}", &hex::encode(hash)[..HASH_DIGITS]);
        let path = self.folder.path.join(name);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let location_files = files.entry(location.to_owned()).or_default();
        if let Some(at) = location_files.iter().position(|file| *file == path) {
            if path.exists() {
                location_files[at..].rotate_left(1);
                return Ok(path);
            }
            location_files.remove(at);
        }
        write_atomically(&path, credentials)?;
        location_files.push(path.clone());
        while location_files.len() > FILES_KEPT {
            remove(&location_files.remove(0));
        }
        Ok(path)
    }

    /// Removes the files of storage locations that are not among these.
    pub(super) fn retain_locations(&self, locations: &[String]) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|location, files| {
            let is_kept =
                locations.contains(location) || location.starts_with(SNAPSHOT_LOCATION_PREFIX);
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
fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
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
    use tempfile::TempDir;

    use super::*;

    fn files() -> (TempDir, CredentialFiles) {
        let parent = tempfile::tempdir().unwrap();
        let files = CredentialFiles::create_in(parent.path()).unwrap();
        (parent, files)
    }

    fn names(files: &CredentialFiles) -> usize {
        std::fs::read_dir(&files.folder.path).unwrap().count() - 1
    }

    #[test]
    fn credentials_file_is_readable_by_its_owner_only() {
        let (_parent, files) = files();
        let path = files.write("default", b"hunter2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hunter2");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&files.folder.path)), (0o600, 0o700));
        let name = path.file_name().unwrap().to_str().unwrap();
        let hash = hex::encode(Sha256::digest(b"hunter2"));
        assert!(name.starts_with("default-") && !name.contains(&hash[..HASH_DIGITS]), "{name}");
    }

    #[test]
    fn credentials_path_depends_on_their_content() {
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
    fn only_the_latest_credentials_files_are_kept() {
        let (_parent, files) = files();
        let [a, b] = [b"a", b"b"].map(|bytes| files.write("default", bytes).unwrap());
        files.write("default", b"a").unwrap();
        files.write("default", b"c").unwrap();
        assert!(a.exists(), "used after b");
        assert!(!b.exists());
        files.write("other", b"a").unwrap();
        assert_eq!(names(&files), 3);
        files.retain_locations(&["other".to_owned()]);
        assert_eq!(names(&files), 1);
        files.retain_locations(&[]);
        assert_eq!(names(&files), 0);
    }

    #[test]
    fn startup_removes_credentials_of_killed_servers_only() {
        let (parent, running) = files();
        let running_file = running.write("default", b"a").unwrap();
        // What is left of one that was killed: all but the lock, which the kernel drops.
        let killed = parent.path().join("bowline-credentials-killed");
        std::fs::create_dir(&killed).unwrap();
        std::fs::write(killed.join(LOCK), "").unwrap();
        std::fs::write(killed.join("default-00"), "hunter2").unwrap();
        // Others have such names, too, and may be about to lock theirs.
        let foreign = parent.path().join("bowline-credentials-file");
        std::fs::write(&foreign, "").unwrap();
        let starting = parent.path().join(".bowline-credentials-new");
        std::fs::create_dir(&starting).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join(LOCK), "").unwrap();
        let link = parent.path().join("bowline-credentials-link");
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();

        let next = CredentialFiles::create_in(parent.path()).unwrap();
        assert!(!killed.exists(), "the password of a killed server stays");
        assert!(running_file.exists() && foreign.exists() && starting.exists());
        assert!(link.exists() && elsewhere.path().join(LOCK).exists(), "no link is followed");
        drop(next);
        drop(running);
        assert!(!running_file.exists());
    }

    #[test]
    fn credentials_folder_is_removed_on_drop() {
        let (parent, files) = files();
        files.write("default", b"a").unwrap();
        drop(files);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
