//! The files in the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_api::{Backup, BackupPhase};
use flate2::read::MultiGzDecoder;
use kube::ResourceExt as _;

/// Folder of the S3 server for incomplete uploads.
const TEMPORARY_PREFIX: &str = ".sgwtmp";

/// A version of a file: its path, time and length. Writing the file again makes another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    inode: u64,
    at: (i64, i64),
    length: u64,
}

pub(crate) struct Bucket(pub(crate) PathBuf);

impl Bucket {
    /// All objects, by key.
    pub(crate) fn objects(&self) -> BTreeMap<String, FileVersion> {
        let mut objects = BTreeMap::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            // A listed file may be deleted meanwhile.
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let Ok(data) = std::fs::symlink_metadata(&path) else { continue };
                let key = path.strip_prefix(&self.0).unwrap().to_str().unwrap().to_owned();
                if key.starts_with(TEMPORARY_PREFIX) {
                    continue;
                }
                if data.is_dir() {
                    folders.push(path);
                } else {
                    let at = (data.mtime(), data.mtime_nsec());
                    objects.insert(key, FileVersion { inode: data.ino(), at, length: data.len() });
                }
            }
        }
        objects
    }

    /// The objects of some backups.
    pub(crate) fn objects_of(
        &self,
        backups: &BTreeMap<String, String>,
    ) -> BTreeMap<String, FileVersion> {
        let mut objects = self.objects();
        objects.retain(|key, _| backup_name_of(key).is_some_and(|name| backups.contains_key(name)));
        objects
    }

    /// The backup is there as a whole, and is this one.
    pub(crate) fn assert_backup_is_complete(&self, backup: &Backup, maps: &BTreeSet<String>) {
        let name = backup.name_any();
        let folder = self.0.join("backups").join(&name);
        let record = std::fs::read(folder.join("velero-backup.json")).unwrap();
        let record: Backup = serde_json::from_slice(&record).unwrap();
        assert_eq!(record.uid(), backup.uid(), "{name}");
        let phase = record.status.unwrap().phase;
        assert_eq!(phase, Some(BackupPhase::Completed), "{name}");
        let found = config_maps_in(&folder.join(format!("{name}.tar.gz")));
        assert!(found.is_superset(maps), "{name} lacks items: {found:?}");
        for file in ["logs.gz", "results.gz", "resource-list.json.gz"] {
            let file = folder.join(format!("{name}-{file}"));
            assert!(file.exists(), "{}", file.display());
        }
    }
}

/// The config maps in an archive.
fn config_maps_in(archive: &Path) -> BTreeSet<String> {
    let file = File::open(archive).unwrap();
    let mut archive = tar::Archive::new(MultiGzDecoder::new(file));
    let name = |path: PathBuf| {
        let path = path.to_str()?.strip_prefix("resources/configmaps/namespaces/")?;
        Some(path.strip_suffix(".json")?.to_owned())
    };
    let entries = archive.entries().unwrap();
    entries.filter_map(|entry| name(entry.unwrap().path().unwrap().into_owned())).collect()
}

/// The backup that a key is of.
pub(crate) fn backup_name_of(key: &str) -> Option<&str> {
    key.strip_prefix("backups/")?.split('/').next()
}
