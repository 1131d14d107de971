//! Deletion that stays consistent if the process is killed halfway.
//!
//! Object stores delete one object at a time. After each deletion the following must hold:
//! - **The leftovers do not look like a backup.** So the commit record is rewritten first, with
//!   phase `Deleting`. Velero does not import such a backup, and Bowline imports it as one that is
//!   being deleted. If the record still said `Completed`, a backup without an archive would be
//!   found, imported and restored from.
//! - **The deletion can be finished**, even with nothing but the bucket. So the record is deleted
//!   last, and the files that name data outside of the bucket (snapshots, copies of volumes) right
//!   before it: as long as that data may exist, so does the file that names it.

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
        // The record must not describe a complete backup any more: if it cannot be rewritten,
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

    /// Marks a backup as being deleted, in its record. May be repeated. Without a record there is
    /// nothing that looks like a backup.
    pub async fn mark_deleting(&self, backup: &BackupName) -> Result<()> {
        let mut record = match self.backup(backup).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(()),
            // An unreadable record does not look like a backup.
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

    /// Deletes the scratch files of a run. May be repeated.
    pub async fn delete_scratch(&self, run: &RunUid) -> Result<()> {
        let keys = self.scratch_keys(run).await?;
        self.delete_all(&keys).await
    }

    /// The keys of the scratch files of a run.
    pub async fn scratch_keys(&self, run: &RunUid) -> Result<Vec<String>> {
        self.list_keys(&self.layout.scratch_folder(run)).await
    }

    /// The common prefix of the keys of a run's scratch files.
    pub fn scratch_folder(&self, run: &RunUid) -> String {
        self.layout.scratch_folder(run)
    }

    /// The keys in a folder. Other keys that a backend may list are ignored.
    async fn list_keys(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.backend.list_objects(&self.bucket, folder);
        let mut keys = self.metadata_call("list", folder, listed).await?;
        keys.retain(|key| key.starts_with(folder));
        Ok(keys)
    }

    /// Deletes as many objects as possible.
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

/// Files that name external data come after the others; an object that stands for a folder comes
/// after the content of the folder.
fn deletion_order(key: &str, last: &[String]) -> (bool, std::cmp::Reverse<usize>) {
    (last.iter().any(|last| last == key), std::cmp::Reverse(key.len()))
}
