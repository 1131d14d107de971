//! Deletion of backups with everything that belongs to them, on a real API server, in real buckets and with
//! snapshots of a real plugin.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequest, PodVolumeBackup, Restore,
    VolumePluginBackup, VolumeSnapshotLocation,
};
use bowline_store::file::{Results, Snapshot};
use bowline_store::{BackupFile, BackupName, BackupStore, Key};
use bowline_testbed::apply::apply;
use bytes::Bytes;
use http::{Method, Uri};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::bed::{World, eventually, filesystem_spec, is_unavailable, shared};
use crate::fault_injection;
use crate::support::operations::OperationWorld;
use crate::support::runs::{application, back_up_and_wait, is_over, is_waiting, phase, pod};

fn name(text: &str) -> BackupName {
    text.parse().unwrap()
}

/// Asks for a backup to be deleted.
async fn request(world: &World, request: &str, backup: &str) {
    let object = json!({"metadata": {"name": request}, "spec": {"backupName": backup}});
    world.create::<DeleteBackupRequest>(object).await;
}

fn is_processed(request: &DeleteBackupRequest) -> bool {
    let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(|phase| phase.to_string() == "Processed")
}

/// Asks for a backup to be deleted, and why it could not be.
async fn refused_request(world: &World, name: &str, backup: &str) -> Vec<String> {
    request(world, name, backup).await;
    world.until(name, is_processed).await.status.unwrap().errors
}

/// Asks for a backup to be deleted, and waits until it is gone.
async fn delete_and_wait(world: &World, name: &str, backup: &str) {
    request(world, name, backup).await;
    world.until_gone::<Backup>(backup).await;
    world.until_gone::<DeleteBackupRequest>(name).await;
}

async fn in_bucket(store: &BackupStore) -> Vec<String> {
    store.list().await.unwrap().backups.iter().map(ToString::to_string).collect()
}

/// Phase in the record of a backup.
async fn recorded_phase(store: &BackupStore, backup: &str) -> Option<BackupPhase> {
    store.backup(&name(backup)).await.unwrap()?.status?.phase
}

async fn phase_of(world: &World, backup: &str) -> String {
    phase(&world.api::<Backup>().get(backup).await.unwrap())
}

async fn put_record(store: &BackupStore, record: &Value) {
    let name = name(record["metadata"]["name"].as_str().unwrap());
    let content = Box::pin(futures::stream::iter([Ok(Bytes::from(record.to_string()))]));
    store.put_stream(&Key::Backup(name, BackupFile::Record), content).await.unwrap();
}

fn record(name: &str, phase: &str, began: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": name, "namespace": "elsewhere", "uid": "their-uid"},
        "spec": {"storageLocation": "theirs"},
        "status": {"phase": phase, "startTimestamp": began, "expiration": "2100-01-01T00:00:00Z"},
    })
}

/// A world with fixture plugins and a backup of an application.
async fn world_with_backup(space: &str) -> (World, BackupStore) {
    let mut world = World::without_server(space).await;
    world.install_fixture().await;
    world.run(world.options());
    let store = world.filesystem_location("default").await;
    let app = format!("{space}-app");
    application(&world.client, &app).await;
    let status = back_up_and_wait(&world, "b", json!({"includedNamespaces": [app]})).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    (world, store)
}

/// The folder of a snapshot location.
fn snapshot_folder(world: &World, location: &str) -> PathBuf {
    world.path("root").join("shelves").join(location)
}

/// A location with a snapshotter of the fixture.
async fn snapshot_location(world: &World, location: &str, snapshotter: &str) {
    let root = snapshot_folder(world, location);
    let spec =
        json!({"provider": format!("fixture.bowline.io/{snapshotter}"), "config": {"root": root}});
    let object = json!({"metadata": {"name": location}, "spec": spec});
    world.create::<VolumeSnapshotLocation>(object).await;
}

/// Puts a snapshot where its plugin would have, and returns it as a backup names it.
fn snapshot(world: &World, location: &str, id: &str) -> Snapshot {
    let folder = snapshot_folder(world, location).join("snapshots").join(id);
    std::fs::create_dir_all(folder.join("data")).unwrap();
    std::fs::write(folder.join("tags.json"), "{}").unwrap();
    serde_json::from_value(json!({
        "spec": {"backupName": "b", "location": location, "persistentVolumeName": "pv"},
        "status": {"providerSnapshotID": id, "phase": "Completed"},
    }))
    .unwrap()
}

fn snapshot_exists(world: &World, location: &str, id: &str) -> bool {
    snapshot_folder(world, location).join("snapshots").join(id).exists()
}

#[tokio::test]
async fn backup_is_deleted_with_its_files_and_restores_only() {
    let world = World::start("deletion-whole").await;
    let store = world.s3_location("default").await;
    application(&world.client, "deletion-whole-app").await;
    for backup in ["b", "other"] {
        back_up_and_wait(&world, backup, json!({"includedNamespaces": ["deletion-whole-app"]}))
            .await;
        let mapping = json!({"deletion-whole-app": format!("deletion-whole-{backup}")});
        let spec = json!({"backupName": backup, "namespaceMapping": mapping});
        let object = json!({"metadata": {"name": format!("of-{backup}")}, "spec": spec});
        world.create::<Restore>(object).await;
        world.until::<Restore>(&format!("of-{backup}"), is_over).await;
        let report = json!({
            "metadata": {"name": format!("report-{backup}")},
            "spec": {"backup": backup, "plugin": "example.io/p", "volume": "pv"},
        });
        world.create::<VolumePluginBackup>(report).await;
    }
    // A second request is answered together with the first.
    request(&world, "again", "b").await;
    delete_and_wait(&world, "request", "b").await;
    world.until_gone::<DeleteBackupRequest>("again").await;

    assert_eq!(in_bucket(&store).await, ["other"]);
    assert!(world.api::<Restore>().get_opt("of-b").await.unwrap().is_none());
    let results = store.get_restore_file::<Results>(&"of-b".parse().unwrap()).await.unwrap();
    assert_eq!(results, None);
    assert!(world.api::<VolumePluginBackup>().get_opt("report-b").await.unwrap().is_none());
    assert_eq!(recorded_phase(&store, "other").await, Some(BackupPhase::Completed));
    assert_eq!(phase_of(&world, "other").await, "Completed");
    world.until::<Restore>("of-other", is_over).await;
    world.until::<VolumePluginBackup>("report-other", |_| true).await;
    let results = store.get_restore_file::<Results>(&"of-other".parse().unwrap()).await.unwrap();
    assert!(results.is_some());
}

#[tokio::test]
async fn snapshots_are_deleted_with_their_backup() {
    let (world, store) = world_with_backup("deletion-snapshots").await;
    for (location, snapshotter) in [("one", "vs-v1"), ("two", "vs-v2")] {
        snapshot_location(&world, location, snapshotter).await;
    }
    let mut snapshots: Vec<Snapshot> =
        (0..20).map(|number| snapshot(&world, "one", &format!("s{number}"))).collect();
    snapshots.push(snapshot(&world, "two", "s0"));
    // The snapshot was never created, so no plugin is called for it.
    let mut failed = snapshot(&world, "two", "of-another");
    failed.status.provider_snapshot_id = String::new();
    snapshots.push(failed);
    store.put(&name("b"), &snapshots).await.unwrap();
    delete_and_wait(&world, "request", "b").await;
    for number in 0..20 {
        assert!(!snapshot_exists(&world, "one", &format!("s{number}")), "{number}");
    }
    assert!(!snapshot_exists(&world, "two", "s0"));
    assert!(snapshot_exists(&world, "two", "of-another"));
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn missing_snapshot_location_blocks_the_deletion() {
    let (world, store) = world_with_backup("deletion-location").await;
    snapshot_location(&world, "known", "vs-v1").await;
    snapshot_location(&world, "strange", "not-installed").await;
    let snapshots = ["known", "missing", "strange"].map(|at| snapshot(&world, at, "s1")).to_vec();
    store.put(&name("b"), &snapshots).await.unwrap();
    let errors = refused_request(&world, "first", "b").await;
    assert_eq!(errors.len(), 2, "{errors:?}");
    let prefix = "backup deletion failed: error getting volume snapshotter for location";
    assert!(errors[0].starts_with(&format!("{prefix} \"missing\": ")), "{errors:?}");
    assert!(errors[0].contains("not found") && errors[0].ends_with("left over: s1"));
    assert!(errors[1].starts_with(&format!("{prefix} \"strange\": ")), "{errors:?}");
    assert!(
        errors[1].contains("no plugin for volume snapshots by fixture.bowline.io/not-installed")
    );
    for location in ["known", "missing", "strange"] {
        assert!(snapshot_exists(&world, location, "s1"), "{location}");
    }
    assert_eq!(phase_of(&world, "b").await, "Completed");
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Completed));

    snapshot_location(&world, "missing", "vs-v2").await;
    let provider = json!({"spec": {"provider": "fixture.bowline.io/vs-v1"}});
    world.patch::<VolumeSnapshotLocation>("strange", provider).await;
    delete_and_wait(&world, "second", "b").await;
    world.until_gone::<DeleteBackupRequest>("first").await;
    for location in ["known", "missing", "strange"] {
        assert!(!snapshot_exists(&world, location, "s1"), "{location}");
    }
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn undeletable_snapshot_keeps_the_backup_record() {
    let (world, store) = world_with_backup("deletion-stuck").await;
    snapshot_location(&world, "one", "vs-v1").await;
    let snapshots = ["good", "stuck"].map(|id| snapshot(&world, "one", id)).to_vec();
    store.put(&name("b"), &snapshots).await.unwrap();
    // The plugin expects a folder.
    let stuck = snapshot_folder(&world, "one").join("snapshots/stuck");
    std::fs::remove_dir_all(&stuck).unwrap();
    std::fs::write(&stuck, "").unwrap();

    let errors = refused_request(&world, "first", "b").await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("error deleting snapshot stuck: "), "{errors:?}");
    assert!(!snapshot_exists(&world, "one", "good"));
    assert_eq!(phase_of(&world, "b").await, "Deleting");
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Deleting));
    let named: Vec<Snapshot> = store.get(&name("b")).await.unwrap().unwrap();
    assert_eq!(named.len(), 2);

    std::fs::remove_file(&stuck).unwrap();
    delete_and_wait(&world, "second", "b").await;
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn unreachable_bucket_is_reported_and_deletes_nothing() {
    let hour = Duration::from_hours(1);
    let world = World::start_with("deletion-away", |options| {
        options.store_validation_frequency = hour;
        options.backup_sync_period = hour;
    })
    .await;
    let store = world.filesystem_location("default").await;
    application(&world.client, "deletion-away-app").await;
    back_up_and_wait(&world, "b", json!({"includedNamespaces": ["deletion-away-app"]})).await;
    // As if the filesystem of the folder were not mounted.
    let (root, away) = (world.path("root").join("default"), world.path("root").join("away"));
    std::fs::rename(&root, &away).unwrap();
    let errors = refused_request(&world, "first", "b").await;
    assert!(errors[0].starts_with("backup deletion failed: error getting"), "{errors:?}");
    assert_eq!(phase_of(&world, "b").await, "Completed");
    std::fs::rename(&away, &root).unwrap();
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Completed));
    delete_and_wait(&world, "second", "b").await;
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn unsupported_copies_keep_the_backup_record() {
    let (world, store) = world_with_backup("deletion-copies").await;
    let copies: Vec<PodVolumeBackup> = serde_json::from_value(json!([{
        "apiVersion": "velero.io/v1",
        "kind": "PodVolumeBackup",
        "metadata": {"name": "copy-1"},
        "spec": {
            "node": "n", "pod": {}, "volume": "v", "repoIdentifier": "",
            "backupStorageLocation": "default",
        },
        "status": {"phase": "Completed", "snapshotID": "k1"},
    }]))
    .unwrap();
    store.put(&name("b"), &copies).await.unwrap();
    let errors = refused_request(&world, "first", "b").await;
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("PodVolumeBackups") && errors[0].contains("copy-1"), "{errors:?}");
    assert_eq!(phase_of(&world, "b").await, "Completed");
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Completed));
}

#[tokio::test]
async fn running_backup_is_stopped_and_deleted() {
    let trial = OperationWorld::start("deletion-running").await;
    trial.add_claim("sdk", "sdk", "operation=600000").await;
    let backup = trial.back_up("b", json!({})).await;
    trial.world.until::<Backup>("b", is_waiting).await;
    let operations = trial.operations(&backup).await;
    delete_and_wait(&trial.world, "request", "b").await;
    assert!(trial.was_canceled("sdk", &operations["sdk"]), "{operations:?}");
    assert_eq!(in_bucket(&trial.store).await, [""; 0]);
    trial.until_journals_removed().await;
}

#[tokio::test]
async fn failing_delete_item_action_keeps_the_archive() {
    let mut world = World::without_server("deletion-items").await;
    world.install_sets().await;
    world.run(world.options());
    let store = world.filesystem_location("default").await;
    let app = "app-deletion-items";
    application(&world.client, app).await;
    for name in ["one", "two"] {
        apply(&world.client, pod(app, name, "")).await.unwrap();
    }
    let spec = json!({"includedNamespaces": [app]});
    let status = back_up_and_wait(&world, "b", spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    // The log of this plugin set cannot be written.
    let deleted_items_file = world.path("sdk").join("deleted");
    std::fs::create_dir(&deleted_items_file).unwrap();
    let errors = refused_request(&world, "first", "b").await;
    assert_eq!(errors.len(), 2, "{errors:?}");
    for (error, name) in errors.iter().zip(["one", "two"]) {
        let expected =
            format!("pods/{app}/{name}: the delete item action sdk.bowline.io/dia failed: ");
        assert!(error.starts_with(&expected), "{error}");
    }
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Deleting));
    assert!(store.contents(&name("b")).await.unwrap().is_some());

    std::fs::remove_dir(&deleted_items_file).unwrap();
    delete_and_wait(&world, "second", "b").await;
    let pods = ["one", "two"].map(|name| format!("Pod/{app}/{name}"));
    for (set, times) in [("go", 2), ("sdk", 1)] {
        let shown = std::fs::read_to_string(world.path(set).join("deleted")).unwrap();
        let shown: Vec<&str> = shown.lines().collect();
        assert_eq!(shown, vec![&pods; times].into_iter().flatten().collect::<Vec<_>>(), "{set}");
    }
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn unfulfillable_requests_get_velero_error_messages() {
    let world = World::start("deletion-words").await;
    world.filesystem_location("default").await;
    world.filesystem_location("closed").await;
    let read_only = json!({"spec": {"accessMode": "ReadOnly"}});
    world.patch::<BackupStorageLocation>("closed", read_only).await;
    world.location("away", filesystem_spec("missing")).await;
    world.until("away", is_unavailable).await;
    for location in ["closed", "away", "gone"] {
        let backup = json!({
            "metadata": {"name": format!("in-{location}")},
            "spec": {"storageLocation": location},
            "status": {"phase": "Completed"},
        });
        world.create::<Backup>(backup).await;
    }
    let cannot = "cannot delete backup because backup storage location";
    for (number, (backup, expected)) in [
        ("", "spec.backupName is required".to_owned()),
        ("none", "backup not found".to_owned()),
        ("../restores", "backup not found".to_owned()),
        ("in-gone", "backup storage location gone not found".to_owned()),
        ("in-closed", format!("{cannot} closed is currently in read-only mode")),
        ("in-away", format!("{cannot} away is currently in Unavailable state")),
    ]
    .into_iter()
    .enumerate()
    {
        let errors = refused_request(&world, &format!("request-{number}"), backup).await;
        assert_eq!(errors, [format!("backup deletion failed: {expected}")]);
    }
    for location in ["closed", "away", "gone"] {
        assert_eq!(phase_of(&world, &format!("in-{location}")).await, "Completed");
    }
    // A backup that was refused before its start has stored nothing.
    let status = back_up_and_wait(&world, "wrong", json!({"storageLocation": "gone"})).await;
    assert_eq!(status.phase, Some(BackupPhase::FailedValidation), "{status:?}");
    delete_and_wait(&world, "wrong", "wrong").await;
}

#[tokio::test]
async fn interrupted_deletion_is_resumed_by_the_next_server() {
    let mut world = World::without_server("deletion-resumed").await;
    let store = world.filesystem_store("l").await;
    let began = "2026-01-02T03:04:05Z";
    let mut requests = Vec::new();
    for backup in ["left", "reborn"] {
        put_record(&store, &record(backup, "Completed", began)).await;
        let object = json!({
            "metadata": {"name": backup, "labels": {"velero.io/storage-location": "l"}},
            "spec": {"storageLocation": "l"},
            "status": {"phase": "Completed", "startTimestamp": began},
        });
        requests.push((backup, world.create::<Backup>(object).await.uid().unwrap()));
    }
    // This request was for a Backup that is gone; another Backup now has its name.
    requests[1].1 = "of-the-old-one".to_owned();
    // The files of this Backup are gone already.
    let object = json!({
        "metadata": {"name": "bare"},
        "spec": {"storageLocation": "l"},
        "status": {"phase": "Deleting", "startTimestamp": began},
    });
    requests.push(("bare", world.create::<Backup>(object).await.uid().unwrap()));
    requests.push(("gone", "u".to_owned()));
    for (backup, uid) in &requests {
        world
            .create::<DeleteBackupRequest>(json!({
                "metadata": {"name": backup, "labels": {"velero.io/backup-uid": uid}},
                "spec": {"backupName": backup},
                "status": {"phase": "InProgress"},
            }))
            .await;
    }
    world.location("l", filesystem_spec("l")).await;
    world.patch::<BackupStorageLocation>("l", json!({"status": {"phase": "Available"}})).await;
    world.run(world.options());
    for backup in ["left", "bare"] {
        world.until_gone::<Backup>(backup).await;
    }
    for (request, _) in &requests {
        world.until_gone::<DeleteBackupRequest>(request).await;
    }
    assert_eq!(in_bucket(&store).await, ["reborn"]);
    assert_eq!(phase_of(&world, "reborn").await, "Completed");
}

#[tokio::test]
async fn server_exit_after_file_deletion_leaves_a_deleting_backup() {
    let mut world = World::without_server("deletion-ended").await;
    let fails =
        |method: &Method, uri: &Uri| *method == Method::DELETE && uri.path().contains("/backups/");
    world.run_through(world.options(), move |client| fault_injection::faulty_client(client, fails));
    let store = world.filesystem_location("default").await;
    application(&world.client, "deletion-ended-app").await;
    back_up_and_wait(&world, "b", json!({"includedNamespaces": ["deletion-ended-app"]})).await;
    request(&world, "request", "b").await;
    eventually("the files are deleted", async || in_bucket(&store).await.is_empty()).await;
    world.end().await.unwrap();
    assert_eq!(phase_of(&world, "b").await, "Deleting");
    let remaining_request = world.api::<DeleteBackupRequest>().get("request").await.unwrap();
    assert_eq!(
        remaining_request.status.as_ref().unwrap().phase.as_ref().unwrap().to_string(),
        "InProgress"
    );
    let uid = world.api::<Backup>().get("b").await.unwrap().uid().unwrap();
    assert_eq!(remaining_request.labels()["velero.io/backup-uid"], uid);
    world.run(world.options());
    world.until_gone::<Backup>("b").await;
    world.until_gone::<DeleteBackupRequest>("request").await;
}

#[tokio::test]
async fn half_deleted_backup_of_another_cluster_is_imported_and_deleted() {
    let world = World::start("deletion-half").await;
    let store = world.filesystem_location("l").await;
    put_record(&store, &record("half", "Deleting", "2026-01-02T03:04:05Z")).await;
    world.until::<Backup>("half", |backup| phase(backup) == "Deleting").await;
    delete_and_wait(&world, "request", "half").await;
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

#[tokio::test]
async fn other_backup_of_the_same_name_in_the_bucket_is_kept() {
    let world = World::start("deletion-name").await;
    let store = world.filesystem_location("l").await;
    let failed = json!({
        "metadata": {"name": "b"},
        "spec": {"storageLocation": "l"},
        "status": {"phase": "Failed", "startTimestamp": "2026-01-01T00:00:00Z"},
    });
    let failed = world.create::<Backup>(failed).await;
    // The same schedule has made one elsewhere, in the same second.
    put_record(&store, &record("b", "Completed", "2026-01-01T00:00:00Z")).await;
    request(&world, "request", "b").await;
    // The other one takes its place in the cluster.
    let other = world.until::<Backup>("b", |backup| backup.uid() != failed.uid()).await;
    assert_eq!(phase(&other), "Completed");
    world.until_gone::<DeleteBackupRequest>("request").await;
    assert_eq!(recorded_phase(&store, "b").await, Some(BackupPhase::Completed));
    // This Backup is known to be the one in the bucket, and is deleted with its files.
    delete_and_wait(&world, "again", "b").await;
    assert_eq!(in_bucket(&store).await, [""; 0]);
}

/// A backup in the bucket `l` and its Backup, in a world without a server.
async fn completed(world: &World, store: &BackupStore, backup: &str) {
    let began = "2026-01-02T03:04:05Z";
    put_record(store, &record(backup, "Completed", began)).await;
    let object = json!({
        "metadata": {"name": backup, "labels": {"velero.io/storage-location": "l"}},
        "spec": {"storageLocation": "l"},
        "status": {"phase": "Completed", "startTimestamp": began},
    });
    world.create::<Backup>(object).await;
}

/// The location of these backups, as a server has found it usable.
async fn usable_location(world: &World) {
    world.location("l", filesystem_spec("l")).await;
    world.patch::<BackupStorageLocation>("l", json!({"status": {"phase": "Available"}})).await;
}

#[tokio::test]
async fn snapshot_shared_by_two_backups_is_deleted_when_both_are_deleted_at_once() {
    let mut world = World::without_server("deletion-both").await;
    world.install_fixture().await;
    let store = world.filesystem_store("l").await;
    usable_location(&world).await;
    snapshot_location(&world, "one", "vs-v1").await;
    let backups: Vec<(String, String)> = (0..3)
        .flat_map(|pair| ["a", "b"].map(|of| (format!("{of}{pair}"), format!("s{pair}"))))
        .collect();
    for (backup, shared) in &backups {
        completed(&world, &store, backup).await;
        let own = format!("own-{backup}");
        let snapshots = [shared.as_str(), &own].map(|id| snapshot(&world, "one", id)).to_vec();
        store.put(&name(backup), &snapshots).await.unwrap();
        request(&world, backup, backup).await;
    }
    world.run(world.options());
    for (backup, _) in &backups {
        world.until_gone::<Backup>(backup).await;
    }
    for (backup, shared) in &backups {
        assert!(!snapshot_exists(&world, "one", &format!("own-{backup}")), "{backup}");
        assert!(!snapshot_exists(&world, "one", shared), "{shared} of {backup} is left");
    }
}

#[tokio::test]
async fn api_server_failure_is_not_counted_as_a_server_restart() {
    let mut world = World::without_server("deletion-failing").await;
    let store = world.filesystem_store("l").await;
    usable_location(&world).await;
    completed(&world, &store, "b").await;
    let gave_up = json!({"metadata": {"annotations": {"bowline.io/retention-gave-up": "true"}}});
    world.patch::<Backup>("b", gave_up).await;
    // Two servers have ended, and four are too many.
    let object = json!({
        "metadata": {"name": "request", "annotations": {"bowline.io/deletion-attempts": "2"}},
        "spec": {"backupName": "b"},
    });
    world.create::<DeleteBackupRequest>(object).await;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    world.run_through(world.options(), move |client| {
        fault_injection::faulty_client(client, move |method, uri| {
            let is_asked = *method == Method::GET && uri.path().ends_with("/podvolumebackups");
            is_asked
                && uri.query().is_some_and(|query| query.contains("labelSelector"))
                && count.fetch_add(1, Ordering::Relaxed) < 3
        })
    });
    let request = world.until::<DeleteBackupRequest>("request", |request| {
        is_processed(request) || failed.load(Ordering::Relaxed) >= 3
    });
    let request = request.await;
    assert!(!is_processed(&request), "{:?}", request.status);
    // A user has asked again, so that retention may, too.
    let backup = world.api::<Backup>().get_opt("b").await.unwrap();
    let annotations = backup.map(|backup| backup.annotations().clone()).unwrap_or_default();
    assert!(!annotations.contains_key("bowline.io/retention-gave-up"), "{annotations:?}");
    world.until_gone::<Backup>("b").await;
    world.until_gone::<DeleteBackupRequest>("request").await;
}

/// Asks for the deletion of the backup `b`, which has expired.
async fn request_by_retention(world: &World) {
    let labels = json!({"bowline.io/requested-by": "retention"});
    let object =
        json!({"metadata": {"name": "request", "labels": labels}, "spec": {"backupName": "b"}});
    world.create::<DeleteBackupRequest>(object).await;
}

/// A restore of the backup `b` that has not begun.
fn new_restore() -> Value {
    json!({"metadata": {"name": "r"}, "spec": {"backupName": "b"}})
}

/// True if restores are checked before the deletion starts. If the check fails, nothing changes.
fn is_read_of_restore(method: &Method, uri: &Uri) -> bool {
    *method == Method::GET && uri.path().ends_with("/restores/r")
}

/// Waits until the request by retention is refused because of the restore, which has changed nothing.
async fn assert_kept_for_restore(world: &World, store: &BackupStore) {
    let errors = world.until("request", is_processed).await.status.unwrap().errors;
    assert!(errors.iter().any(|error| error.contains("in use by restore r")), "{errors:?}");
    assert_eq!(phase_of(world, "b").await, "Completed");
    assert_eq!(in_bucket(store).await, ["b"]);
    let restore = world.api::<Restore>().get("r").await.unwrap();
    assert!(restore.metadata.deletion_timestamp.is_none(), "{restore:?}");
}

#[tokio::test]
async fn retention_deletes_no_backup_that_is_being_restored() {
    let mut world = World::without_server("deletion-in-use").await;
    let store = world.filesystem_store("l").await;
    usable_location(&world).await;
    completed(&world, &store, "b").await;
    world.create::<Restore>(new_restore()).await;
    request_by_retention(&world).await;
    world.run_through(world.options(), |client| {
        fault_injection::faulty_client(client, is_read_of_restore)
    });
    assert_kept_for_restore(&world, &store).await;
}

#[tokio::test]
async fn restore_created_while_retention_begins_to_delete_its_backup_keeps_it() {
    let mut world = World::without_server("deletion-late-use").await;
    let store = world.filesystem_store("l").await;
    usable_location(&world).await;
    completed(&world, &store, "b").await;
    request_by_retention(&world).await;
    let namespace = world.namespace.clone();
    let create = move || {
        let created = async {
            let api = Api::<Restore>::namespaced(shared().client().await, &namespace);
            let mut restore = new_restore();
            restore["apiVersion"] = json!("velero.io/v1");
            restore["kind"] = json!("Restore");
            let restore = serde_json::from_value(restore).unwrap();
            api.create(&PostParams::default(), &restore).await.unwrap();
        };
        tokio::runtime::Runtime::new().unwrap().block_on(created);
    };
    // Right before the first change of the Backup, which makes it `Deleting`.
    let create = Mutex::new(Some(create));
    world.run_through(world.options(), move |client| {
        fault_injection::faulty_client(client, move |method, uri| {
            if *method == Method::PATCH
                && uri.path().ends_with("/backups/b")
                && let Some(create) = create.lock().take()
            {
                std::thread::spawn(create).join().unwrap();
            }
            is_read_of_restore(method, uri)
        })
    });
    assert_kept_for_restore(&world, &store).await;
}
