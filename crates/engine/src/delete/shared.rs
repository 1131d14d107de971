//! What more than one backup names.
//!
//! A bucket can be copied, and whoever can write into one can plant a backup that names the snapshots of others. Deleted,
//! or expired, it would take them along, and the records of those that depend on them would go on to say `Completed`.
//! So what another backup names stays, and goes with the last of them. A file of another backup that cannot be read may
//! name anything: whoever spoils it must not free what it names.

use std::collections::{BTreeMap, BTreeSet};

use bowline_plugin::one_line;
use bowline_store::file::{
    BackupContent, BackupVolumeInfo, CsiVolumeSnapshotContents, Own, Snapshot,
};
use bowline_store::{BackupName, BackupStore, Error};
use serde::de::DeserializeOwned;

use super::csi::{self, Content};
use super::{Doomed, LookError, Plan};

/// Something outside of the bucket that a backup names. Data in repositories is to join.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Possession {
    /// A snapshot of a plugin, by its id. Not by its location: the same provider may be known by two.
    Snapshot(String),
    /// A snapshot of a CSI driver.
    CsiSnapshot {
        /// The driver.
        driver: String,
        /// What it calls the snapshot.
        handle: String,
    },
    /// A group of snapshots of a CSI driver, which goes as a whole.
    CsiGroup {
        /// The driver.
        driver: String,
        /// What it calls the group.
        handle: String,
    },
}

/// Something that stays, though a backup that names it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSnapshot {
    /// What users call it.
    pub snapshot: String,
    /// The other backup that names it.
    pub by: String,
}

/// What a backup names.
#[derive(Debug, Default)]
pub struct BackupPossessions {
    /// What those of its files name that can be read.
    pub named: BTreeSet<Possession>,
    /// The files that are there and are not what they should be. They may name anything.
    pub unreadable: Vec<LookError>,
}

/// What all backups but one name.
#[derive(Clone, Debug, Default)]
pub struct OtherBackups {
    /// What they name, each with one that does.
    pub named: BTreeMap<Possession, String>,
    /// Those that may name more, each with the reason why that is not known.
    pub unreadable: BTreeMap<String, String>,
}

/// How many backups that cannot be read are named.
const UNREADABLE_NAMED: usize = 5;

impl OtherBackups {
    /// Adds what a backup names.
    pub fn add(&mut self, backup: &str, possessions: &BackupPossessions) {
        let named = possessions.named.iter().cloned();
        self.named.extend(named.map(|possession| (possession, backup.to_owned())));
        if let Some(error) = possessions.unreadable.first() {
            self.unreadable.insert(backup.to_owned(), one_line(error));
        }
    }
}

/// What a backup names, as far as its files say. Each is judged by itself: one that is spoiled does not take back what
/// another one says. What may be otherwise the next time, as an answer that was cut off, is an error.
pub async fn possessions(
    store: &BackupStore,
    name: &BackupName,
) -> Result<BackupPossessions, LookError> {
    let mut unreadable = Vec::new();
    let files = &mut unreadable;
    let snapshots: Vec<Snapshot> = read(store, name, "volume snapshots", files).await?;
    let own: Own = read(store, name, "volume operations", files).await?;
    let volumes: Vec<BackupVolumeInfo> = read(store, name, "volume info", files).await?;
    let contents: CsiVolumeSnapshotContents = read(store, name, "CSI snapshots", files).await?;
    let mut found = BTreeSet::new();
    let of_files = snapshots.into_iter().map(|one| one.status.provider_snapshot_id);
    let of_operations = own.volume_operations.into_iter().map(|one| one.snapshot_id);
    found.extend(of_files.chain(of_operations).map(Possession::Snapshot));
    for volume in volumes {
        let native = volume.native_snapshot_info.unwrap_or_default();
        found.insert(Possession::Snapshot(native.snapshot_handle));
        let csi = volume.csi_snapshot_info.unwrap_or_default();
        let driver = csi.driver;
        found.insert(Possession::CsiGroup {
            driver: driver.clone(),
            handle: csi.volume_group_snapshot_handle,
        });
        found.insert(Possession::CsiSnapshot { driver, handle: csi.snapshot_handle });
    }
    for content in contents.0.iter().map(csi::read) {
        found.extend(of_content(&content));
    }
    // What has no name is nothing.
    found.retain(|possession| match possession {
        Possession::Snapshot(handle)
        | Possession::CsiSnapshot { handle, .. }
        | Possession::CsiGroup { handle, .. } => !handle.is_empty(),
    });
    Ok(BackupPossessions { named: found, unreadable })
}

/// What a file holds; nothing if it is not there, or is not what it should be, which is then in the list.
async fn read<T: BackupContent + DeserializeOwned + Default + Send + 'static>(
    store: &BackupStore,
    name: &BackupName,
    what: &'static str,
    unreadable: &mut Vec<LookError>,
) -> Result<T, LookError> {
    match store.get::<T>(name).await {
        Ok(content) => Ok(content.unwrap_or_default()),
        Err(source @ Error::Unreadable { .. }) if !source.is_retryable() => {
            unreadable.push(LookError { what, source });
            Ok(T::default())
        }
        Err(source) => Err(LookError { what, source }),
    }
}

fn of_content(content: &Content) -> [Possession; 2] {
    let Content { driver, handle, group, .. } = content;
    let group = Possession::CsiGroup { driver: driver.clone(), handle: group.clone() };
    [Possession::CsiSnapshot { driver: driver.clone(), handle: handle.clone() }, group]
}

/// Takes out of a plan what other backups name, each with the name of one that does. The members of a group go
/// together, so they stay together. If something is left in the plan, and a backup that cannot be read may name it, these
/// are the reasons against the plan.
pub fn keep_shared(
    plan: &mut Plan,
    others: &OtherBackups,
) -> Result<Vec<SharedSnapshot>, Vec<String>> {
    let elsewhere = &others.named;
    let mut kept = Vec::new();
    plan.snapshots.retain(|Doomed { id, .. }| {
        let Some(by) = elsewhere.get(&Possession::Snapshot(id.as_str().to_owned())) else {
            return true;
        };
        kept.push(SharedSnapshot { snapshot: id.as_str().to_owned(), by: by.clone() });
        false
    });
    let claimed =
        |content: &Content| of_content(content).iter().find_map(|one| elsewhere.get(one)).cloned();
    let groups: BTreeMap<(String, String), String> = plan
        .csi
        .iter()
        .filter(|content| !content.group.is_empty())
        .filter_map(|one| Some(((one.driver.clone(), one.group.clone()), claimed(one)?)))
        .collect();
    plan.csi.retain(|content| {
        let of_group = groups.get(&(content.driver.clone(), content.group.clone()));
        let Some(by) = claimed(content).or_else(|| of_group.cloned()) else { return true };
        kept.push(SharedSnapshot { snapshot: content.handle.clone(), by });
        false
    });
    if others.unreadable.is_empty() || (plan.snapshots.is_empty() && plan.csi.is_empty()) {
        return Ok(kept);
    }
    let reasons = others.unreadable.iter().take(UNREADABLE_NAMED);
    Err(reasons.map(|(backup, reason)| against_unreadable(backup, reason)).collect())
}

/// What speaks against a deletion while the files of another backup cannot be read, and the way out.
pub fn against_unreadable(backup: &str, reason: &str) -> String {
    format!(
        "backup {backup} may name the same snapshots, and its files cannot be read: {reason}; hint: delete backup \
         {backup} first; if that is refused as well, run `bowline backup delete {backup} --forget` and remove \
         its files from the bucket"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bowline_plugin::SnapshotId;
    use bowline_store::backend::Memory;
    use bowline_store::{BackupFile, Key, Prefix, encode};
    use bytes::Bytes;
    use serde_json::json;

    use super::super::Files;
    use super::*;

    fn csi(handle: &str, group: &str) -> Content {
        Content {
            driver: "d".into(),
            handle: handle.into(),
            group: group.into(),
            ..Content::default()
        }
    }

    fn plan() -> Plan {
        let snapshot = |id: &str| Doomed {
            location: "l".into(),
            id: SnapshotId::new(id).unwrap(),
            volume: "pv".into(),
            is_under_way: false,
        };
        Plan {
            files: Files::Own,
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
        others.add("victim", &possessions(&store, &victim).await.unwrap());
        let mut planted = plan();
        let kept = keep_shared(&mut planted, &others).unwrap();
        let ids: Vec<&str> = planted.snapshots.iter().map(|one| one.id.as_str()).collect();
        let handles: Vec<&str> = planted.csi.iter().map(|one| one.handle.as_str()).collect();
        assert_eq!((ids, handles), (vec!["snap-2"], vec!["h2"]));
        let told: Vec<&str> = kept.iter().map(|kept| kept.snapshot.as_str()).collect();
        assert_eq!(told, ["snap-1", "h1", "m1", "m2"], "a group stays as a whole");
        assert!(kept.iter().all(|kept| kept.by == "victim"));
    }

    #[tokio::test]
    async fn what_one_backup_alone_names_goes_with_it() {
        let (store, other) = (store(), BackupName::new("other").unwrap());
        let nothing = possessions(&store, &other).await.unwrap();
        assert!(nothing.named.is_empty() && nothing.unreadable.is_empty());
        let snapshots: Vec<Snapshot> = serde_json::from_value(json!([
            {"spec": {"backupName": "other", "location": "l"}, "status": {"providerSnapshotID": ""}},
        ]))
        .unwrap();
        store.put(&other, &snapshots).await.unwrap();
        let named = possessions(&store, &other).await.unwrap().named;
        assert!(named.is_empty(), "{named:?}");
        let mut whole = plan();
        assert_eq!(keep_shared(&mut whole, &OtherBackups::default()), Ok(vec![]));
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

    /// As when the connection breaks while the file is read.
    #[tokio::test]
    async fn a_file_that_was_cut_off_does_not_say_that_a_backup_names_nothing() {
        let (store, victim) = (store(), BackupName::new("victim").unwrap());
        let whole = encode::json_gzip(&snapshots(&["snap-1", "snap-2"])).unwrap();
        put(&store, &victim, BackupFile::VolumeSnapshots, whole[..whole.len() / 2].to_vec()).await;
        let error = possessions(&store, &victim).await.unwrap_err();
        assert!(error.source.is_retryable(), "{error:?}");
    }

    #[tokio::test]
    async fn whoever_spoils_a_file_of_a_backup_frees_nothing_that_it_may_name() {
        let (store, victim) = (store(), BackupName::new("victim").unwrap());
        store.put(&victim, &snapshots(&["snap-1"])).await.unwrap();
        let spoiled = encode::json_gzip(&"nothing").unwrap().to_vec();
        put(&store, &victim, BackupFile::VolumeInfos, spoiled).await;
        let found = possessions(&store, &victim).await.unwrap();
        let named = Possession::Snapshot("snap-1".to_owned());
        assert_eq!(found.named, BTreeSet::from([named]), "the other files count");
        let mut others = OtherBackups::default();
        others.add("victim", &found);
        let reasons = keep_shared(&mut plan(), &others).unwrap_err();
        assert_eq!(reasons.len(), 1);
        for part in ["backup victim may name the same", "volume info", "delete victim --forget"] {
            assert!(reasons[0].contains(part), "{part}: {reasons:?}");
        }
        // What is known to be shared stays, and then there is nothing to be in doubt about.
        let shared = plan().snapshots.into_iter().take(1).collect();
        let mut shared = Plan { snapshots: shared, csi: Vec::new(), ..plan() };
        assert_eq!(keep_shared(&mut shared, &others).unwrap().len(), 1);
        assert!(shared.snapshots.is_empty());
    }
}
