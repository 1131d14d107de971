//! Credentials of locations as private files, since plugins accept them as a path.
//!
//! A file is named after its location and a hash over its content, so that comparing two paths
//! compares the credentials. The hash is salted: a path may appear in an error, and must not help
//! to guess the content. The last two files of a location are kept, since work that started with
//! the previous one may have to restart its plugin.
//!
//! A killed server leaves its directory behind. So each directory has a lock that the kernel
//! releases with its owner, and the next server removes directories with a free lock. A directory
//! gets its final name only after it is locked.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Prefixes of directory names: final, and before the lock is held.
const PREFIX: &str = "bowline-credentials-";
const UNLOCKED_PREFIX: &str = ".bowline-credentials-";
/// File in a directory that its owner has locked.
const LOCK: &str = ".lock";
/// Maximum number of entries of the scratch directory to check.
const MAX_ENTRIES: usize = 100_000;
/// Number of files to keep per location.
const FILES_KEPT: usize = 2;
/// Number of digits of the hash in a name: enough to exclude collisions.
const HASH_DIGITS: usize = 32;

/// Prefix of VolumeSnapshotLocations, since a storage location may have the same name. No object
/// can have a name with it.
const SNAPSHOT_LOCATION_PREFIX: &str = "_snapshots-";

/// Key of a VolumeSnapshotLocation among locations. Its files are kept as long as the server runs.
pub(super) fn snapshot_location_key(location: &str) -> String {
    format!("{SNAPSHOT_LOCATION_PREFIX}{location}")
}

/// Private directory, removed on drop. Its lock shows that its owner lives.
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
        // The part after the prefix is random, so the name is unique.
        let path = parent.join(format!("{PREFIX}{name}"));
        std::fs::rename(folder.path(), &path)?;
        // The old name no longer exists.
        let _ = folder.keep();
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for LockedFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "cannot remove the directory with credentials");
        }
    }
}

/// Removes the directories of killed servers of the same user.
fn remove_leftovers(parent: &Path, user: u32) -> io::Result<()> {
    for entry in std::fs::read_dir(parent)?.take(MAX_ENTRIES).flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        match remove_leftover(&entry.path(), user) {
            Ok(true) => tracing::info!("removed leftover credentials of a killed server"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot remove credentials of a killed server"),
        }
    }
    Ok(())
}

/// Removes a directory if it belongs to this user and its owner is gone. Returns true if it did.
fn remove_leftover(folder: &Path, user: u32) -> io::Result<bool> {
    let metadata = folder.symlink_metadata()?;
    if !metadata.is_dir() || metadata.uid() != user {
        return Ok(false);
    }
    let lock = match OpenOptions::new().write(true).open(folder.join(LOCK)) {
        Ok(lock) => lock,
        // Removed by another server just now, or left by a version without locks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        Ok(()) => std::fs::remove_dir_all(folder).map(|()| true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Credential files in a private directory, removed on drop.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    folder: LockedFolder,
    salt: [u8; 32],
    /// Files of each location, the newest last.
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

    /// Path of the file with these credentials of a location; writes it unless it exists.
    pub(super) fn write(&self, location: &str, credentials: &[u8]) -> io::Result<PathBuf> {
        let hash = Sha256::new().chain_update(self.salt).chain_update(credentials).finalize();
        let name = format!("{location}-{}", &hex::encode(hash)[..HASH_DIGITS]);
        let path = self.folder.path.join(name);
        let mut files = self.files.lock();
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
        let mut files = self.files.lock();
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

/// Writes a file that only this user can read, and that is never visible with partial content.
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
        // Leftovers of a killed server: everything but the lock, which the kernel releases.
        let killed = parent.path().join("bowline-credentials-killed");
        std::fs::create_dir(&killed).unwrap();
        std::fs::write(killed.join(LOCK), "").unwrap();
        std::fs::write(killed.join("default-00"), "hunter2").unwrap();
        // Other servers use such names, too, and may be about to lock theirs.
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
