//! What more than one backup names.
//!
//! A bucket can be copied, and whoever can write into one can plant a backup that names the snapshots of others. Deleted,
//! or expired, it would take them along, and the records of those that depend on them would go on to say `Completed`.
//! So what another backup names stays, and goes with the last of them.

use std::collections::{BTreeMap, BTreeSet};

use bowline_store::file::{BackupVolumeInfo, CsiVolumeSnapshotContents, Own, Snapshot};
use bowline_store::{BackupName, BackupStore};

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

/// What a backup names, as far as its files say.
pub async fn possessions(
    store: &BackupStore,
    name: &BackupName,
) -> Result<BTreeSet<Possession>, LookError> {
    let failed = |what| move |source| LookError { what, source };
    let snapshots = store.get::<Vec<Snapshot>>(name).await.map_err(failed("volume snapshots"))?;
    let own = store.get::<Own>(name).await.map_err(failed("volume operations"))?;
    let volumes = store.get::<Vec<BackupVolumeInfo>>(name).await.map_err(failed("volume info"))?;
    let contents = store.get::<CsiVolumeSnapshotContents>(name).await;
    let contents = contents.map_err(failed("CSI snapshots"))?.unwrap_or_default();
    let mut found = BTreeSet::new();
    let of_files = snapshots.into_iter().flatten().map(|one| one.status.provider_snapshot_id);
    let of_operations = own.unwrap_or_default().volume_operations;
    found.extend(of_files.map(Possession::Snapshot));
    found.extend(of_operations.into_iter().map(|one| Possession::Snapshot(one.snapshot_id)));
    for volume in volumes.into_iter().flatten() {
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
    Ok(found)
}

fn of_content(content: &Content) -> [Possession; 2] {
    let Content { driver, handle, group, .. } = content;
    let group = Possession::CsiGroup { driver: driver.clone(), handle: group.clone() };
    [Possession::CsiSnapshot { driver: driver.clone(), handle: handle.clone() }, group]
}

/// Takes out of a plan what other backups name, each with the name of one that does. The members of a group go
/// together, so they stay together.
pub fn keep_shared(
    plan: &mut Plan,
    elsewhere: &BTreeMap<Possession, String>,
) -> Vec<SharedSnapshot> {
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
    kept
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bowline_plugin::SnapshotId;
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
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

    /// The chain of `security.md`, F1: a planted record with the handles of others.
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
        let named = possessions(&store, &victim).await.unwrap();
        let elsewhere =
            named.into_iter().map(|possession| (possession, "victim".to_owned())).collect();
        let mut planted = plan();
        let kept = keep_shared(&mut planted, &elsewhere);
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
        assert!(nothing.is_empty());
        let snapshots: Vec<Snapshot> = serde_json::from_value(json!([
            {"spec": {"backupName": "other", "location": "l"}, "status": {"providerSnapshotID": ""}},
        ]))
        .unwrap();
        store.put(&other, &snapshots).await.unwrap();
        let named = possessions(&store, &other).await.unwrap();
        assert!(named.is_empty(), "{named:?}");
        let mut whole = plan();
        assert_eq!(keep_shared(&mut whole, &BTreeMap::new()), []);
        assert_eq!(whole, plan());
    }
}
