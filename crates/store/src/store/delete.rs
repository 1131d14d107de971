//! Deleting, so that a kill in the middle leaves no lie.
//!
//! Object stores delete one object at a time. What must hold after each:
//! - **Nobody takes the rest for a backup.** So the commit record is written once more, before all
//!   else, and says `Deleting`. Velero takes in no such backup, and we take it in as what it is. With
//!   a record that goes on to say `Completed`, a backup without an archive would be found, imported
//!   and restored from.
//! - **The rest can still be finished**, also by somebody who has nothing but the bucket. So the record
//!   goes last, and the files that name data outside of the bucket (snapshots, copies of volumes) right
//!   before it: as long as that data might be there, so is the file that names it.

use bowline_api::BackupPhase;

use super::{BackupStore, Error, Result};
use crate::encode;
use crate::layout::BackupFile;
use crate::layout::Key;
use crate::name::{BackupName, RestoreName, RunUid};

/// The files that name data outside of the bucket.
const FILES_NAMING_EXTERNAL_DATA: [BackupFile; 7] = [
    BackupFile::CsiVolumeSnapshots,
    BackupFile::CsiVolumeSnapshotContents,
    BackupFile::BowlineInfo,
    BackupFile::PodVolumeBackups,
    BackupFile::VolumeInfos,
    BackupFile::VolumePluginBackups,
    BackupFile::VolumeSnapshots,
];

impl BackupStore {
    /// Deletes all files of a backup. May be repeated.
    pub async fn delete_backup(&self, backup: &BackupName) -> Result<()> {
        // Whoever finds the record must not take the backup for whole: if that cannot be written,
        // nothing is deleted.
        self.mark_deleting(backup).await?;
        let folder = self.layout.backup_folder(backup);
        let key = |file| self.layout.key(&Key::Backup(backup.clone(), file));
        let record = key(BackupFile::Record);
        let last = FILES_NAMING_EXTERNAL_DATA.map(key);
        let mut keys = self.list_keys(&folder).await?;
        let all = keys.len();
        keys.retain(|key| *key != record);
        let has_record = keys.len() < all;
        keys.sort_by_cached_key(|key| deletion_order(key, &last));
        self.delete_all(&keys).await?;
        if has_record { self.delete(&record).await } else { Ok(()) }
    }

    /// Writes into the record of a backup that it is being deleted. May be repeated; without a record
    /// there is nothing that could be taken for a backup.
    pub async fn mark_deleting(&self, backup: &BackupName) -> Result<()> {
        let mut record = match self.backup(backup).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(()),
            // Nobody takes it for a backup as it is.
            Err(error @ Error::Unreadable { .. }) if !error.is_retryable() => return Ok(()),
            Err(error) => return Err(error),
        };
        let status = record.status.get_or_insert_default();
        if status.phase == Some(BackupPhase::Deleting) {
            return Ok(());
        }
        status.phase = Some(BackupPhase::Deleting);
        let key = Key::Backup(backup.clone(), BackupFile::Record);
        self.put_bytes(&key, encode::json_indented(&record)?).await
    }

    /// Deletes all files of a restore. May be repeated.
    pub async fn delete_restore(&self, restore: &RestoreName) -> Result<()> {
        let keys = self.list_keys(&self.layout.restore_folder(restore)).await?;
        self.delete_all(&keys).await
    }

    /// Deletes what was kept for a run. May be repeated.
    pub async fn delete_scratch(&self, run: &RunUid) -> Result<()> {
        let keys = self.list_keys(&self.layout.scratch_folder(run)).await?;
        self.delete_all(&keys).await
    }

    /// The keys in a folder, whatever a backend may list.
    async fn list_keys(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.backend.list_objects(&self.bucket, folder);
        let mut keys = self.metadata_call("list", folder, listed).await?;
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
        self.metadata_call("delete", key, deleted).await
    }
}

/// What names data elsewhere after the rest; what stands for a folder after what is in it.
fn deletion_order(key: &str, last: &[String]) -> (bool, std::cmp::Reverse<usize>) {
    (last.iter().any(|last| last == key), std::cmp::Reverse(key.len()))
}
