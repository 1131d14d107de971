use bowline_api::{Backup, BackupStorageLocation, PodVolumeBackup, Schedule, VolumePluginBackup};
use bowline_server::controllers::backup_sync::INCOMPLETE;
use bowline_store::{BackupFile, BackupStore, Key};
use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bed::{World, filesystem_spec};

/// A record as another cluster left it.
fn record(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {
            "name": name,
            "namespace": "elsewhere",
            "uid": "their-uid",
            "resourceVersion": "42",
            "labels": {"velero.io/storage-location": "theirs", "team": "a"},
        },
        "spec": {
            "storageLocation": "theirs",
            "hooks": {"resources": [{"name": "h", "pre": [{"exec": {"command": ["rm"]}}]}]},
        },
        "status": {"phase": phase, "expiration": "2100-01-01T00:00:00Z", "warnings": 2},
    })
}

async fn put_record(store: &BackupStore, record: &Value) {
    let name = record["metadata"]["name"].as_str().unwrap().parse().unwrap();
    let content = Bytes::from(record.to_string());
    let content = Box::pin(futures::stream::iter([Ok(content)]));
    store.put_stream(&Key::Backup(name, BackupFile::Record), content).await.unwrap();
}

fn synced(location: &BackupStorageLocation) -> Option<Time> {
    location.status.as_ref()?.last_synced_time.clone()
}

/// Waits until a whole round has begun and ended from now on.
async fn wait_for_sync_round(world: &World, location: &str) {
    for _ in 0..2 {
        let before = world.until(location, |found| synced(found).is_some()).await;
        let is_later = |found: &BackupStorageLocation| synced(found) > synced(&before);
        world.until(location, is_later).await;
    }
}

fn is_complete(backup: &Backup) -> bool {
    !backup.annotations().contains_key(INCOMPLETE)
}

#[tokio::test]
async fn backup_of_another_cluster_is_imported_with_its_children() {
    let world = World::start("sync-import").await;
    let schedule =
        json!({"metadata": {"name": "nightly"}, "spec": {"schedule": "@every 1h", "template": {}}});
    let schedule = world.create::<Schedule>(schedule).await;
    let store = world.s3_location("l").await;
    let name = "theirs".parse().unwrap();
    let child = |name: &str, status: Value| {
        json!({
            "metadata": {"name": name, "namespace": "elsewhere", "uid": "x", "resourceVersion": "1"},
            "status": status,
        })
    };
    let copies: Vec<PodVolumeBackup> = serde_json::from_value(json!(
        [
            child("copy-1", json!({"phase": "Completed", "snapshotID": "s1"})),
            child("copy-2", json!({"phase": "New"})),
        ]
        .map(|mut copy: Value| {
            copy["apiVersion"] = json!("velero.io/v1");
            copy["kind"] = json!("PodVolumeBackup");
            copy["spec"] = json!({
                "node": "n", "pod": {"name": "p"}, "volume": "v", "repoIdentifier": "",
                "backupStorageLocation": "theirs",
            });
            copy
        })
        .to_vec()
    ))
    .unwrap();
    let snapshots: Vec<VolumePluginBackup> = serde_json::from_value(json!([{
        "apiVersion": "velero.io/v1",
        "kind": "VolumePluginBackup",
        "metadata": {"name": "snap-1"},
        "spec": {"backup": "theirs", "plugin": "velero.io/aws", "volume": "pv-1"},
        "status": {"phase": "Completed", "snapshotID": "s2", "progress": {"totalBytes": 1, "bytesDone": 1}},
    }])).unwrap();
    store.put(&name, &copies).await.unwrap();
    store.put(&name, &snapshots).await.unwrap();
    let mut foreign_record = record("theirs", "PartiallyFailed");
    let owner = |name: &str, uid: &str| json!({"apiVersion": "velero.io/v1", "kind": "Schedule", "name": name, "uid": uid});
    foreign_record["metadata"]["ownerReferences"] =
        json!([owner("nightly", &schedule.uid().unwrap()), owner("dead", "u")]);
    put_record(&store, &foreign_record).await;

    let backup = world.until("theirs", is_complete).await;
    assert_eq!(backup.spec.storage_location, "l");
    assert_eq!(backup.labels()["velero.io/storage-location"], "l");
    assert_eq!(backup.labels()["team"], "a");
    assert!(backup.spec.hooks.resources.is_empty());
    let owners: Vec<_> = backup.owner_references().iter().map(|owner| &owner.name).collect();
    assert_eq!(owners, ["nightly"]);
    let status = backup.status.as_ref().unwrap();
    assert_eq!(
        (status.phase.as_ref().unwrap().to_string().as_str(), status.warnings),
        ("PartiallyFailed", 2)
    );
    let uid = backup.uid().unwrap();
    assert_ne!(uid, "their-uid");
    assert_eq!(backup.annotations()["bowline.io/record-uid"], "their-uid");

    let copy = world.until::<PodVolumeBackup>("copy-1", |_| true).await;
    assert_eq!(copy.labels()["velero.io/backup-uid"], uid);
    assert_eq!(copy.owner_references()[0].uid, uid);
    assert_eq!(copy.spec.backup_storage_location, "l");
    let snapshot = world.until::<VolumePluginBackup>("snap-1", |_| true).await;
    assert_eq!(snapshot.owner_references()[0].uid, uid);
    assert_eq!(snapshot.status.unwrap().snapshot_id, "s2");
    // The backup had not started; in this cluster a server would start it.
    assert!(world.api::<PodVolumeBackup>().get_opt("copy-2").await.unwrap().is_none());
}

#[tokio::test]
async fn unfinished_or_unrecorded_backup_is_not_imported() {
    let world = World::start("sync-skip").await;
    let store = world.filesystem_location("l").await;
    // An expired backup would be deleted at once.
    let read_only = json!({"spec": {"accessMode": "ReadOnly"}});
    world.patch::<BackupStorageLocation>("l", read_only).await;
    for phase in ["New", "InProgress", "Finalizing", "WaitingForPluginOperations"] {
        put_record(&store, &record(&phase.to_lowercase(), phase)).await;
    }
    let mut expired = record("expired", "Finalizing");
    expired["status"]["expiration"] = json!("2020-01-01T00:00:00Z");
    put_record(&store, &expired).await;
    let archive = Box::pin(futures::stream::iter([Ok(Bytes::from("x"))]));
    store.put_contents(&"half".parse().unwrap(), archive).await.unwrap();
    let mut other = record("renamed", "Completed");
    other["metadata"]["name"] = json!("another");
    let content = Box::pin(futures::stream::iter([Ok(Bytes::from(other.to_string()))]));
    let key = Key::Backup("renamed".parse().unwrap(), BackupFile::Record);
    store.put_stream(&key, content).await.unwrap();
    // A bad backup does not prevent the sync of others.
    put_record(&store, &record("zz-good", "Failed")).await;

    world.until("zz-good", is_complete).await;
    let expired = world.until("expired", is_complete).await;
    assert_eq!(expired.status.unwrap().phase.unwrap().to_string(), "PartiallyFailed");
    wait_for_sync_round(&world, "l").await;
    let mut names: Vec<_> = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
    names.sort_by_key(kube::ResourceExt::name_any);
    let names: Vec<_> = names.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, ["expired", "zz-good"]);
}

#[tokio::test]
async fn only_backups_without_files_are_deleted() {
    let world = World::start("sync-orphan").await;
    let store = world.filesystem_location("l").await;
    world.filesystem_location("other").await;
    put_record(&store, &record("kept", "Completed")).await;
    put_record(&store, &record("lost", "Completed")).await;
    world.until("kept", is_complete).await;
    world.until("lost", is_complete).await;
    let backup = |name: &str, location: &str, phase: &str| {
        json!({
            "metadata": {"name": name, "labels": {"velero.io/storage-location": location}},
            "spec": {"storageLocation": location},
            "status": {"phase": phase},
        })
    };
    world.create::<Backup>(backup("failed", "l", "Failed")).await;
    world.create::<Backup>(backup("refused", "l", "FailedValidation")).await;
    world.create::<Backup>(backup("of-nobody", "gone", "Completed")).await;

    store.delete_backup(&"lost".parse().unwrap()).await.unwrap();
    world.until_gone::<Backup>("lost").await;
    wait_for_sync_round(&world, "l").await;
    for name in ["kept", "failed", "refused", "of-nobody"] {
        world.until::<Backup>(name, |_| true).await;
    }
}

#[tokio::test]
async fn empty_location_deletes_no_backup() {
    let world = World::start("sync-empty").await;
    let store = world.filesystem_location("l").await;
    put_record(&store, &record("a", "Completed")).await;
    put_record(&store, &record("b", "Completed")).await;
    world.until("a", is_complete).await;
    world.until("b", is_complete).await;
    // As if the filesystem of the folder were not mounted.
    let backups = world.path("root").join("l/backups");
    std::fs::rename(&backups, world.path("root").join("elsewhere")).unwrap();
    wait_for_sync_round(&world, "l").await;
    for name in ["a", "b"] {
        world.until::<Backup>(name, |_| true).await;
    }
    // The folder is back, without one of them.
    std::fs::rename(world.path("root").join("elsewhere"), &backups).unwrap();
    store.delete_backup(&"a".parse().unwrap()).await.unwrap();
    world.until_gone::<Backup>("a").await;
}

#[tokio::test]
async fn incomplete_import_is_finished_after_a_restart() {
    let mut world = World::without_server("sync-resume").await;
    // The server was killed after it created the Backup.
    let backup = json!({
        "metadata": {
            "name": "b",
            "labels": {"velero.io/storage-location": "l"},
            "annotations": {(INCOMPLETE): "true"},
        },
        "spec": {"storageLocation": "l"},
        "status": {"phase": "Completed"},
    });
    let backup = world.create::<Backup>(backup).await;
    let copies: Vec<PodVolumeBackup> = serde_json::from_value(json!([{
        "apiVersion": "velero.io/v1",
        "kind": "PodVolumeBackup",
        "metadata": {"name": "copy"},
        "spec": {
            "node": "n", "pod": {}, "volume": "v", "repoIdentifier": "", "backupStorageLocation": "x",
        },
        "status": {"phase": "Completed"},
    }])).unwrap();
    let store = world.filesystem_store("l").await;
    store.put(&"b".parse().unwrap(), &copies).await.unwrap();
    put_record(&store, &record("b", "Completed")).await;
    world.location("l", filesystem_spec("l")).await;
    world.run(world.options());
    let copy = world.until::<PodVolumeBackup>("copy", |_| true).await;
    assert_eq!(copy.owner_references()[0].uid, backup.uid().unwrap());
    world.until("b", is_complete).await;
}

fn condition<'a>(location: &'a BackupStorageLocation, type_: &str) -> Option<&'a Condition> {
    let conditions = &location.status.as_ref()?.conditions;
    conditions.iter().find(|condition| condition.type_ == type_)
}

#[tokio::test]
async fn failed_sync_and_skipped_backups_are_shown_in_conditions() {
    let world = World::start("sync-told").await;
    let store = world.filesystem_location("l").await;
    put_record(&store, &record("good", "Completed")).await;
    world.until::<Backup>("good", is_complete).await;
    let has = |type_: &'static str, status: &'static str| {
        move |found: &BackupStorageLocation| {
            condition(found, type_).is_some_and(|condition| condition.status == status)
        }
    };
    let well = world.until("l", has("Synced", "True")).await;
    assert_eq!(condition(&well, "Degraded"), None);
    // The location itself can be used; what is in it cannot be listed.
    let folder = world.path("root").join("l").join("backups");
    let aside = folder.with_file_name("metadata");
    std::fs::rename(&folder, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &folder).unwrap();
    let failing = world.until("l", has("Synced", "False")).await;
    let message = &condition(&failing, "Synced").unwrap().message;
    assert!(message.contains("symbolic link"), "{message}");
    let before = synced(&failing);
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    // An unreadable one.
    let broken =
        json!({"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": "broken"}});
    let mut broken = broken.to_string();
    broken.truncate(broken.len() - 1);
    let content = Box::pin(futures::stream::iter([Ok(Bytes::from(broken))]));
    let key = Key::Backup("broken".parse().unwrap(), BackupFile::Record);
    store.put_stream(&key, content).await.unwrap();
    let well = world.until("l", has("Degraded", "True")).await;
    assert!(has("Synced", "True")(&well) && synced(&well) > before, "{well:?}");
    let message = &condition(&well, "Degraded").unwrap().message;
    assert!(message.starts_with("1 backup is not synced into the cluster: broken: "), "{message}");
    assert!(world.api::<Backup>().get_opt("good").await.unwrap().is_some());
}
