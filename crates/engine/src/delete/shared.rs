//! Snapshots that more than one backup references.
//!
//! A bucket can be copied, and anyone with write access to it can plant a backup that references the snapshots of
//! others. Its deletion or expiry would delete them, while the records of the backups that depend on them would still
//! say `Completed`. So a snapshot that another backup references stays until the last of these backups is deleted. An
//! unreadable file of another backup may reference anything: corrupting it must not release its snapshots.

use std::collections::{BTreeMap, BTreeSet};

use bowline_plugin::error_chain;
use bowline_store::file::{
    BackupContent, BackupVolumeInfo, BowlineBackupInfo, CsiVolumeSnapshotContents, Snapshot,
};
use bowline_store::{BackupName, BackupStore, Error};
use serde::de::DeserializeOwned;

use super::csi::{self, DeletableCsiSnapshot};
use super::objection::{Objection, Objections};
use super::{DeletableSnapshot, DeletionPlan, InventoryError};

/// Data outside the bucket that a backup references. Data in repositories is to be added.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotRef {
    /// A plugin snapshot, by id. Not by location: two locations may refer to the same provider.
    Snapshot(String),
    /// A CSI snapshot.
    CsiSnapshot {
        /// The driver.
        driver: String,
        /// The driver's handle of the snapshot.
        handle: String,
    },
    /// A group of CSI snapshots, which is deleted as a whole.
    CsiGroup {
        /// The driver.
        driver: String,
        /// The driver's handle of the group.
        handle: String,
    },
}

/// A snapshot that stays although a backup that references it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSnapshot {
    /// Display name of the snapshot.
    pub snapshot: String,
    /// The other backup that references it.
    pub other_backup: String,
}

/// Snapshots that a backup references.
#[derive(Debug, Default)]
pub struct BackupPossessions {
    /// References in its readable files.
    pub named: BTreeSet<SnapshotRef>,
    /// Files that exist but are invalid. They may reference anything.
    pub unreadable: Vec<InventoryError>,
}

/// Snapshots that all other backups reference.
#[derive(Clone, Debug, Default)]
pub struct OtherBackups {
    /// References, each with one of the backups that has it.
    pub named: BTreeMap<SnapshotRef, String>,
    /// Backups that may have further references, each with the reason why these are unknown.
    pub unreadable: BTreeMap<String, String>,
}

/// Maximum number of unreadable backups named in a message.
const UNREADABLE_NAMED: usize = 5;

impl OtherBackups {
    /// Adds the references of a backup.
    pub fn add(&mut self, backup: &str, possessions: &BackupPossessions) {
        let named = possessions.named.iter().cloned();
        self.named.extend(named.map(|reference| (reference, backup.to_owned())));
        if let Some(error) = possessions.unreadable.first() {
            self.unreadable.insert(backup.to_owned(), error_chain(error));
        }
    }
}

/// Snapshots that a backup references, according to its files. Each file is judged separately: an invalid one does not
/// invalidate the references of another. A failure that may be temporary, such as a truncated answer, is an error.
pub async fn referenced_snapshots(
    store: &BackupStore,
    name: &BackupName,
) -> Result<BackupPossessions, InventoryError> {
    let mut unreadable = Vec::new();
    let files = &mut unreadable;
    let snapshots: Vec<Snapshot> = read(store, name, "volume snapshots", files).await?;
    let operations_file: BowlineBackupInfo = read(store, name, "volume operations", files).await?;
    let volumes: Vec<BackupVolumeInfo> = read(store, name, "volume info", files).await?;
    let contents: CsiVolumeSnapshotContents = read(store, name, "CSI snapshots", files).await?;
    let mut found = BTreeSet::new();
    let of_files = snapshots.into_iter().map(|one| one.status.provider_snapshot_id);
    let of_operations = operations_file.volume_operations.into_iter().map(|one| one.snapshot_id);
    found.extend(of_files.chain(of_operations).map(SnapshotRef::Snapshot));
    for volume in volumes {
        let native = volume.native_snapshot_info.unwrap_or_default();
        found.insert(SnapshotRef::Snapshot(native.snapshot_handle));
        let csi = volume.csi_snapshot_info.unwrap_or_default();
        let driver = csi.driver;
        found.insert(SnapshotRef::CsiGroup {
            driver: driver.clone(),
            handle: csi.volume_group_snapshot_handle,
        });
        found.insert(SnapshotRef::CsiSnapshot { driver, handle: csi.snapshot_handle });
    }
    for content in contents.0.iter().map(csi::parse_content) {
        found.extend(content_refs(&content));
    }
    // An empty id or handle refers to nothing.
    found.retain(|possession| match possession {
        SnapshotRef::Snapshot(handle)
        | SnapshotRef::CsiSnapshot { handle, .. }
        | SnapshotRef::CsiGroup { handle, .. } => !handle.is_empty(),
    });
    Ok(BackupPossessions { named: found, unreadable })
}

/// Contents of a file; empty if it is missing, or if it is invalid, which is then recorded in the list.
async fn read<T: BackupContent + DeserializeOwned + Default + Send + 'static>(
    store: &BackupStore,
    name: &BackupName,
    what: &'static str,
    unreadable: &mut Vec<InventoryError>,
) -> Result<T, InventoryError> {
    match store.get::<T>(name).await {
        Ok(content) => Ok(content.unwrap_or_default()),
        Err(source @ Error::Unreadable { .. }) if !source.is_retryable() => {
            unreadable.push(InventoryError { what, source });
            Ok(T::default())
        }
        Err(source) => Err(InventoryError { what, source }),
    }
}

fn content_refs(content: &DeletableCsiSnapshot) -> [SnapshotRef; 2] {
    let DeletableCsiSnapshot { driver, handle, group, .. } = content;
    let group = SnapshotRef::CsiGroup { driver: driver.clone(), handle: group.clone() };
    [SnapshotRef::CsiSnapshot { driver: driver.clone(), handle: handle.clone() }, group]
}

/// Removes the snapshots that other backups reference from a plan, and returns each with the name of such a backup. The
/// members of a group are deleted together, so they stay together. If snapshots remain in the plan, and an unreadable
/// backup may reference them, returns the objections to the plan.
pub fn exclude_shared(
    plan: &mut DeletionPlan,
    others: &OtherBackups,
) -> Result<Vec<SharedSnapshot>, Objections> {
    let referenced_elsewhere = &others.named;
    let mut shared = Vec::new();
    plan.snapshots.retain(|DeletableSnapshot { id, .. }| {
        let Some(by) = referenced_elsewhere.get(&SnapshotRef::Snapshot(id.as_str().to_owned()))
        else {
            return true;
        };
        shared.push(SharedSnapshot { snapshot: id.as_str().to_owned(), other_backup: by.clone() });
        false
    });
    let referenced_by = |content: &DeletableCsiSnapshot| {
        content_refs(content).iter().find_map(|one| referenced_elsewhere.get(one)).cloned()
    };
    let groups: BTreeMap<(String, String), String> = plan
        .csi
        .iter()
        .filter(|content| !content.group.is_empty())
        .filter_map(|one| Some(((one.driver.clone(), one.group.clone()), referenced_by(one)?)))
        .collect();
    plan.csi.retain(|content| {
        let of_group = groups.get(&(content.driver.clone(), content.group.clone()));
        let Some(by) = referenced_by(content).or_else(|| of_group.cloned()) else { return true };
        shared.push(SharedSnapshot { snapshot: content.handle.clone(), other_backup: by });
        false
    });
    if others.unreadable.is_empty() || (plan.snapshots.is_empty() && plan.csi.is_empty()) {
        return Ok(shared);
    }
    let named = others.unreadable.iter().take(UNREADABLE_NAMED);
    let objections = named.map(|(backup, reason)| against_unreadable(backup, reason));
    Err(Objections(objections.collect()))
}

/// Objection to a deletion while the files of another backup are unreadable.
pub fn against_unreadable(backup: &str, reason: &str) -> Objection {
    Objection::UnreadableBackup { backup: backup.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bowline_plugin::SnapshotId;
    use bowline_store::backend::Memory;
    use bowline_store::{BackupFile, Key, Prefix, encode};
    use bytes::Bytes;
    use serde_json::json;

    use super::super::FileOwnership;
    use super::*;

    fn csi(handle: &str, group: &str) -> DeletableCsiSnapshot {
        DeletableCsiSnapshot {
            driver: "d".into(),
            handle: handle.into(),
            group: group.into(),
            ..DeletableCsiSnapshot::default()
        }
    }

    fn plan() -> DeletionPlan {
        let snapshot = |id: &str| DeletableSnapshot {
            location: "l".into(),
            id: SnapshotId::new(id).unwrap(),
            volume: "pv".into(),
            is_in_progress: false,
        };
        DeletionPlan {
            files: FileOwnership::Own,
            snapshots: vec![snapshot("snap-1"), snapshot("snap-2")],
            csi: vec![csi("h1", ""), csi("h2", ""), csi("m1", "g"), csi("m2", "g")],
        }
    }

    fn store() -> BackupStore {
        let memory = Memory::with_bucket("bucket");
        BackupStore::new(Arc::new(memory), "bucket", &Prefix::default())
    }

    /// Decision 032: a planted record with the handles of others.
    #[tokio::test]
    async fn no_snapshot_that_another_backup_names_is_deleted() {
        let (store, victim) = (store(), BackupName::new("victim").unwrap());
        let volumes: Vec<BackupVolumeInfo> = serde_json::from_value(json!([
            {"backupMethod": "CSISnapshot", "csiSnapshotInfo":
                {"snapshotHandle": "h1", "driver": "d", "vscName": "x", "size": 1}},
            {"backupMethod": "CSISnapshot", "csiSnapshotInfo":
                {"snapshotHandle": "m2", "driver": "d", "vscName": "x", "size": 1}},
            {"backupMethod": "NativeSnapshot", "nativeSnapshotInfo":
                {"snapshotHandle": "snap-1", "volumeType": "t", "volumeAZ": "", "iops": ""}},
        ]))
        .unwrap();
        store.put(&victim, &volumes).await.unwrap();
        let mut others = OtherBackups::default();
        others.add("victim", &referenced_snapshots(&store, &victim).await.unwrap());
        let mut planted = plan();
        let shared = exclude_shared(&mut planted, &others).unwrap();
        let ids: Vec<&str> = planted.snapshots.iter().map(|one| one.id.as_str()).collect();
        let handles: Vec<&str> = planted.csi.iter().map(|one| one.handle.as_str()).collect();
        assert_eq!((ids, handles), (vec!["snap-2"], vec!["h2"]));
        let names: Vec<&str> = shared.iter().map(|one| one.snapshot.as_str()).collect();
        assert_eq!(names, ["snap-1", "h1", "m1", "m2"], "a group stays as a whole");
        assert!(shared.iter().all(|one| one.other_backup == "victim"));
    }

    #[tokio::test]
    async fn snapshot_named_by_one_backup_is_deleted() {
        let (store, other) = (store(), BackupName::new("other").unwrap());
        let nothing = referenced_snapshots(&store, &other).await.unwrap();
        assert!(nothing.named.is_empty() && nothing.unreadable.is_empty());
        let snapshots: Vec<Snapshot> = serde_json::from_value(json!([
            {"spec": {"backupName": "other", "location": "l"}, "status": {"providerSnapshotID": ""}},
        ]))
        .unwrap();
        store.put(&other, &snapshots).await.unwrap();
        let named = referenced_snapshots(&store, &other).await.unwrap().named;
        assert!(named.is_empty(), "{named:?}");
        let mut whole = plan();
        assert_eq!(exclude_shared(&mut whole, &OtherBackups::default()).unwrap(), vec![]);
        assert_eq!(whole, plan());
    }

    async fn put(store: &BackupStore, backup: &BackupName, file: BackupFile, content: Vec<u8>) {
        let content = Box::pin(futures::stream::iter([Ok(Bytes::from(content))]));
        store.put_stream(&Key::Backup(backup.clone(), file), content).await.unwrap();
    }

    fn snapshots(ids: &[&str]) -> Vec<Snapshot> {
        let one = |id: &&str| {
            json!({"spec": {"backupName": "victim", "location": "l"},
                "status": {"providerSnapshotID": id}})
        };
        serde_json::from_value(ids.iter().map(one).collect()).unwrap()
    }

    /// As when the connection breaks while the file is being read.
    #[tokio::test]
    async fn a_file_that_was_cut_off_does_not_say_that_a_backup_names_nothing() {
        let (store, victim) = (store(), BackupName::new("victim").unwrap());
        let whole = encode::json_gzip(&snapshots(&["snap-1", "snap-2"])).unwrap();
        put(&store, &victim, BackupFile::VolumeSnapshots, whole[..whole.len() / 2].to_vec()).await;
        let error = referenced_snapshots(&store, &victim).await.unwrap_err();
        assert!(error.source.is_retryable(), "{error:?}");
    }

    #[tokio::test]
    async fn damaged_file_of_a_backup_frees_no_snapshot_it_may_name() {
        let (store, victim) = (store(), BackupName::new("victim").unwrap());
        store.put(&victim, &snapshots(&["snap-1"])).await.unwrap();
        let spoiled = encode::json_gzip(&"nothing").unwrap().to_vec();
        put(&store, &victim, BackupFile::VolumeInfos, spoiled).await;
        let found = referenced_snapshots(&store, &victim).await.unwrap();
        let named = SnapshotRef::Snapshot("snap-1".to_owned());
        assert_eq!(found.named, BTreeSet::from([named]), "the other files count");
        let mut others = OtherBackups::default();
        others.add("victim", &found);
        let reasons = exclude_shared(&mut plan(), &others).unwrap_err().messages();
        assert_eq!(reasons.len(), 1);
        for part in ["backup victim may refer to the same", "volume info", "delete victim --forget"]
        {
            assert!(reasons[0].contains(part), "{part}: {reasons:?}");
        }
        // Known shared snapshots stay, and then no doubt remains.
        let shared = plan().snapshots.into_iter().take(1).collect();
        let mut shared = DeletionPlan { snapshots: shared, csi: Vec::new(), ..plan() };
        assert_eq!(exclude_shared(&mut shared, &others).unwrap().len(), 1);
        assert!(shared.snapshots.is_empty());
    }
}
