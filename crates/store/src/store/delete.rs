//! Deleting, so that a kill in the middle leaves no lie.
//!
//! Object stores delete one object at a time. What must hold after each:
//! - **Nobody takes the rest for a backup.** So the commit record goes first: from then on the
//!   backup does not exist, for us and for any Velero that syncs the bucket. With the record last, a
//!   `Completed` backup without an archive would be found, imported and restored from.
//! - **The rest can still be finished.** The request to delete lies in the cluster until all is
//!   gone, and deleting again goes on where it stopped. So the files that name data outside of the
//!   bucket (snapshots, copies of volumes) go last: as long as that data might be there, so is the
//!   file that names it.

use super::{BackupStore, Error, Result};
use crate::layout::BackupFile;
use crate::layout::Key;
use crate::name::{BackupName, RestoreName, RunUid};

/// The files that name data outside of the bucket.
const NAMES_DATA: [BackupFile; 6] = [
    BackupFile::CsiVolumeSnapshots,
    BackupFile::CsiVolumeSnapshotContents,
    BackupFile::PodVolumeBackups,
    BackupFile::VolumeInfos,
    BackupFile::VolumePluginBackups,
    BackupFile::VolumeSnapshots,
];

impl BackupStore {
    /// Deletes all files of a backup. May be repeated.
    pub async fn delete_backup(&self, backup: &BackupName) -> Result<()> {
        let folder = self.layout.backup_folder(backup);
        let key = |file| self.layout.key(&Key::Backup(backup.clone(), file));
        let record = key(BackupFile::Record);
        let last = NAMES_DATA.map(key);
        let mut keys = self.keys(&folder).await?;
        keys.sort_by_cached_key(|key| order(key, &record, &last));
        // Whoever finds the record must find the rest: if it cannot go, nothing does.
        if keys.first() == Some(&record) {
            self.delete(&record).await?;
            keys.remove(0);
        }
        self.delete_all(&keys).await
    }

    /// Deletes all files of a restore. May be repeated.
    pub async fn delete_restore(&self, restore: &RestoreName) -> Result<()> {
        let keys = self.keys(&self.layout.restore_folder(restore)).await?;
        self.delete_all(&keys).await
    }

    /// Deletes what was kept for a run. May be repeated.
    pub async fn delete_scratch(&self, run: &RunUid) -> Result<()> {
        let keys = self.keys(&self.layout.scratch_folder(run)).await?;
        self.delete_all(&keys).await
    }

    /// The keys in a folder, whatever a backend may list.
    async fn keys(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.backend.list_objects(&self.bucket, folder);
        let mut keys = self.metadata("list", folder, listed).await?;
        keys.retain(|key| key.starts_with(folder));
        Ok(keys)
    }

    /// Deletes as much as can be deleted.
    async fn delete_all(&self, keys: &[String]) -> Result<()> {
        let (mut failed, mut first) = (0, None);
        for key in keys {
            if let Err(error) = self.delete(key).await {
                failed += 1;
                first.get_or_insert(error);
            }
        }
        match first {
            None => Ok(()),
            Some(first) => Err(Error::Delete { failed, all: keys.len(), first: Box::new(first) }),
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let deleted = self.backend.delete_object(&self.bucket, key);
        self.metadata("delete", key, deleted).await
    }
}

/// First the record, then the rest, then what names data elsewhere; what stands for a folder after
/// what is in it.
fn order(key: &str, record: &str, last: &[String]) -> (u8, std::cmp::Reverse<usize>) {
    let rank = match key {
        key if key == record => 0,
        key if last.iter().any(|last| last == key) => 2,
        _ => 1,
    };
    (rank, std::cmp::Reverse(key.len()))
}
