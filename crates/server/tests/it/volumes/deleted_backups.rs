//! Backups that are deleted or not resumed: the journal has what they created, and cleanup deletes it.

use std::path::PathBuf;

use bowline_api::{
    Backup, BackupPhase, BackupStatus, BackupStorageLocation, VolumeSnapshotLocation,
};
use bowline_engine::journal::{BlockStarted, Intent, Journal as _, JournalEntry, SnapshotIntent};
use bowline_engine::phase::Stage;
use bowline_server::journal::ConfigMapJournal;
use bowline_store::BackupName;
use bowline_store::file::{BowlineBackupInfo, ResourceIdentifier, Snapshot};
use bowline_store::name::RunUid;
use bowline_testbed::apply::apply;
use http::{Method, Uri};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::SnapshotWorld;
use crate::bed::eventually;
use crate::fault_injection;
use crate::support::operations::key;
use crate::support::raw_tar::gzip;
use crate::support::runs::{is_waiting, phase};

/// The existing journal pages.
async fn pages(trial: &SnapshotWorld) -> Vec<ConfigMap> {
    let params = ListParams::default().labels("bowline.io/journal");
    trial.world.api::<ConfigMap>().list(&params).await.unwrap().items
}

/// The folder of the backup `b` in the bucket.
fn folder(trial: &SnapshotWorld) -> PathBuf {
    trial.world.path("root").join("default/backups/b")
}

/// A backup that waits for its upload, and whose server has ended. Its snapshot exists.
async fn interrupted_backup(name: &str, upload: &str) -> (SnapshotWorld, Backup) {
    let mut trial = SnapshotWorld::start(name, "sdk").await;
    trial.location("snaps", "vs-v2", json!({"upload-ms": upload})).await;
    trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    let backup = trial.world.until("b", is_waiting::<Backup>).await;
    eventually("the upload begins", async || trial.called("upload-snapshot") > 0).await;
    trial.world.end().await.unwrap();
    assert_eq!(trial.snapshots_at_plugin().len(), 1);
    assert_eq!(pages(&trial).await[0].annotations()["bowline.io/storage-location"], "default");
    (trial, backup)
}

fn start_server(trial: &mut SnapshotWorld) {
    let options = SnapshotWorld::options(&trial.world);
    trial.world.run(options);
}

async fn until_journal_removed(trial: &SnapshotWorld) {
    eventually("the journal goes", async || pages(trial).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_deleted_without_a_server_leaves_nothing() {
    let (mut trial, _) = interrupted_backup("gone-away", "600000").await;
    trial.world.delete::<Backup>("b").await;
    assert!(folder(&trial).exists());
    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
    assert!(trial.called("cancel-snapshot") > 0, "its upload is told to stop: {:?}", trial.calls());
    let files = std::fs::read_dir(folder(&trial)).map_or(0, Iterator::count);
    assert_eq!(files, 0, "without a record nobody finds them");
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_backup_keeps_its_snapshots_after_its_object_is_deleted() {
    let (mut trial, backup) = interrupted_backup("gone-whole", "600000").await;
    // As if the server had ended right after its last write to the bucket.
    let status = BackupStatus { phase: Some(BackupPhase::Completed), ..BackupStatus::default() };
    let record = Backup { status: Some(status), ..backup };
    trial.store.commit(&record).await.unwrap();
    trial.world.delete::<Backup>("b").await;
    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin().len(), 1, "{:?}", trial.calls());
    assert!(trial.store.exists(&BackupName::new("b").unwrap()).await.unwrap());
    trial.world.until::<Backup>("b", |found| phase(found) == "Completed").await;
}

/// Runs a server until it has cleaned up once: that begins when the server does, and a server ends after it.
async fn run_one_cleanup(trial: &mut SnapshotWorld, other: &str) {
    start_server(trial);
    let spec = json!({"includedNamespaces": ["none"]});
    trial.world.create::<Backup>(json!({"metadata": {"name": other}, "spec": spec})).await;
    trial.ended(other).await;
    trial.world.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_is_kept_until_its_snapshots_are_deleted() {
    let (mut trial, _) = interrupted_backup("gone-later", "600000").await;
    trial.world.delete::<Backup>("b").await;
    trial.world.delete::<VolumeSnapshotLocation>("snaps").await;
    run_one_cleanup(&mut trial, "other").await;
    assert!(!pages(&trial).await.is_empty(), "nothing else knows of the snapshot");
    assert_eq!(trial.snapshots_at_plugin().len(), 1);
    trial.location("snaps", "vs-v2", json!({})).await;
    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

/// Writes the journal of a deleted backup that had asked for a snapshot and did not get the answer.
async fn journal_in_flight_snapshot(trial: &SnapshotWorld) {
    let client = trial.world.client.clone();
    let run_uid = RunUid::new("0d9a5a1b-6f0c-4f35-9c3e-8d0a3f6e2c3e").unwrap();
    let opened =
        ConfigMapJournal::open(client, &trial.world.namespace, &run_uid, "Backup", "b").await;
    let wanted = SnapshotIntent {
        location: "snaps".to_owned(),
        volume: "one".to_owned(),
        zone: String::new(),
        request: "r1".to_owned(),
        created: None,
    };
    let item = ResourceIdentifier {
        resource: "persistentvolumes".to_owned(),
        name: "pv-one".to_owned(),
        ..ResourceIdentifier::default()
    };
    let plugin = "sdk.bowline.io/vs-v2".to_owned();
    let intent = Intent { plugin, item, snapshot: Some(wanted), csi: None };
    let started = BlockStarted { intents: vec![intent], ..BlockStarted::default() };
    let journal = opened.unwrap().0.with_location("default");
    journal.append(&JournalEntry::BlockStarted(started)).await.unwrap();
}

/// Puts a file into the bucket that belongs to no backup of this test: a location that is completely empty may not be
/// mounted.
fn add_other_file(trial: &SnapshotWorld) {
    let other = trial.world.path("root").join("default/backups/other-cluster");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("file"), "of another cluster").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_flight_snapshot_is_reclaimed_once_where_no_config_map_can_be_created() {
    let mut trial = SnapshotWorld::start("gone-quota", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.disk("one");
    trial.world.end().await.unwrap();
    journal_in_flight_snapshot(&trial).await;
    add_other_file(&trial);
    let options = SnapshotWorld::options(&trial.world);
    trial.world.run_through(options, |client| {
        let is_refused = |method: &Method, uri: &Uri| {
            method == Method::POST && uri.path().ends_with("/configmaps")
        };
        fault_injection::faulty_client(client, is_refused)
    });
    until_journal_removed(&trial).await;
    assert_eq!(trial.called("create-snapshot"), 1, "{:?}", trial.calls());
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_flight_snapshot_of_a_deleted_backup_is_found_by_tag() {
    let mut trial = SnapshotWorld::start("gone-in-flight", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.disk("one");
    trial.world.end().await.unwrap();
    // The snapshot was created, and the server died before the answer arrived.
    let snapshot = trial.root().join("snapshots/snap-one-0");
    std::fs::create_dir_all(snapshot.join("data")).unwrap();
    let tags = json!({"bowline.io/request-id": "r1"}).to_string();
    std::fs::write(snapshot.join("tags.json"), tags).unwrap();
    assert_eq!(trial.snapshots_at_plugin().len(), 1);
    journal_in_flight_snapshot(&trial).await;
    add_other_file(&trial);

    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_that_is_kept_does_not_grow_with_each_cleanup() {
    let mut trial = SnapshotWorld::start("gone-pages", "sdk").await;
    trial.world.end().await.unwrap();
    // Without its VolumeSnapshotLocation, the snapshot cannot be asked for.
    journal_in_flight_snapshot(&trial).await;
    add_other_file(&trial);
    start_server(&mut trial);
    eventually("the absence of a record is journaled", async || pages(&trial).await.len() == 2)
        .await;
    trial.world.end().await.unwrap();
    run_one_cleanup(&mut trial, "second").await;
    run_one_cleanup(&mut trial, "third").await;
    assert_eq!(pages(&trial).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_deleted_with_an_unreadable_snapshot_list_leaves_no_snapshot() {
    let trial = SnapshotWorld::start("gone-unreadable", "sdk").await;
    trial.location("snaps", "vs-v2", json!({"upload-ms": "600000"})).await;
    trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    trial.world.until("b", is_waiting::<Backup>).await;
    assert_eq!(trial.snapshots_at_plugin().len(), 1);
    let list = folder(&trial).join("b-volumesnapshots.json.gz");
    assert!(list.exists());
    // Not a list. A file that is cut off would be read once more.
    std::fs::write(list, gzip(b"{}")).unwrap();
    trial.world.delete::<Backup>("b").await;
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_that_another_server_was_ending_is_not_resumed() {
    let (mut trial, backup) = interrupted_backup("gone-ending", "600000").await;
    // As if the server had ended before it deleted anything.
    let (client, run_uid) =
        (trial.world.client.clone(), RunUid::new(backup.uid().unwrap()).unwrap());
    let opened =
        ConfigMapJournal::open(client, &trial.world.namespace, &run_uid, "Backup", "b").await;
    opened.unwrap().0.end_without_bucket(Stage::Waiting).await.unwrap();
    start_server(&mut trial);
    let status = trial.ended("b").await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
    assert!(trial.called("cancel-snapshot") > 0, "{:?}", trial.calls());
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
    until_journal_removed(&trial).await;
}

/// Lets the bucket refuse a file: links are not followed. Returns where the file is now.
fn refuse_file(trial: &SnapshotWorld, file: &str) -> (PathBuf, PathBuf) {
    let (shown, moved) = (folder(trial).join(file), trial.world.path("kept"));
    std::fs::rename(&shown, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &shown).unwrap();
    (shown, moved)
}

/// Waits until the run was resumed and left again, twice.
async fn until_resumed_twice(trial: &SnapshotWorld) {
    let writer = async || {
        let last = pages(trial).await.into_iter().max_by_key(ResourceExt::name_any).unwrap();
        last.annotations()["bowline.io/journal-writer"].clone()
    };
    for _ in 0..2 {
        let before = writer().await;
        eventually("it is taken up", async || writer().await != before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_file_is_not_treated_as_empty() {
    let (mut trial, _) = interrupted_backup("gone-refused", "1000").await;
    let (shown, moved) = refuse_file(&trial, "b-bowline.json.gz");
    start_server(&mut trial);
    until_resumed_twice(&trial).await;
    assert!(std::fs::symlink_metadata(&shown).unwrap().is_symlink(), "it was overwritten");
    std::fs::rename(&moved, &shown).unwrap();
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "Completed");
    let own: BowlineBackupInfo = trial.get("b").await;
    assert_eq!(own.volume_operations.len(), 2, "{own:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_with_unreadable_files_can_be_canceled() {
    let (mut trial, _) = interrupted_backup("gone-cancel", "600000").await;
    refuse_file(&trial, "b-bowline.json.gz");
    start_server(&mut trial);
    until_resumed_twice(&trial).await;
    let cancel = json!({"metadata": {"annotations": {bowline_api::annotation::CANCEL: "true"}}});
    trial.world.patch::<Backup>("b", cancel).await;
    let backup = trial.ended("b").await;
    let status = backup.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
    let reason = status.failure_reason;
    assert!(reason.starts_with("canceled: "), "{reason}");
    assert!(reason.contains("is a symbolic link"), "{reason}");
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "the journal knows of it");
}

/// Lets the bucket refuse to say whether it has the record of the backup. Returns what does so.
fn refuse_record(trial: &SnapshotWorld) -> PathBuf {
    let record = folder(trial).join("velero-backup.json");
    std::os::unix::fs::symlink(trial.world.path("nowhere"), &record).unwrap();
    record
}

/// As if the server had ended at another stage.
async fn set_phase(trial: &SnapshotWorld, phase: &str) {
    trial.world.patch::<Backup>("b", json!({"status": {"phase": phase}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_waits_and_resumes_when_its_bucket_refuses_after_a_handover() {
    let (mut trial, _) = interrupted_backup("gone-items", "600000").await;
    let record = refuse_record(&trial);
    set_phase(&trial, "InProgress").await;
    start_server(&mut trial);
    until_resumed_twice(&trial).await;
    assert_eq!(phase(&trial.world.api::<Backup>().get("b").await.unwrap()), "InProgress");
    assert_eq!(trial.snapshots_at_plugin().len(), 1, "{:?}", trial.calls());
    // The backup waits for as long as necessary, also after another restart.
    trial.world.end().await.unwrap();
    assert!(!pages(&trial).await.is_empty(), "nothing else knows of the snapshot");
    start_server(&mut trial);
    until_resumed_twice(&trial).await;
    std::fs::remove_file(&record).unwrap();
    trial.world.until("b", is_waiting::<Backup>).await;
    assert_eq!(trial.snapshots_at_plugin().len(), 1, "{:?}", trial.calls());
    assert_eq!(trial.called("create-snapshot"), 1, "it is taken over: {:?}", trial.calls());
}

fn start_server_with_short_bucket_wait(trial: &mut SnapshotWorld) {
    let bucket_wait_timeout = std::time::Duration::from_secs(1);
    let options =
        bowline_server::Options { bucket_wait_timeout, ..SnapshotWorld::options(&trial.world) };
    trial.world.run(options);
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_ends_without_snapshots_after_the_bucket_wait_timeout() {
    let (mut trial, _) = interrupted_backup("gone-bound", "600000").await;
    refuse_record(&trial);
    set_phase(&trial, "InProgress").await;
    start_server_with_short_bucket_wait(&mut trial);
    let status = trial.ended("b").await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
    let reason = status.failure_reason;
    for words in ["the bucket was unavailable for", "is a symbolic link"] {
        assert!(reason.contains(words), "no {words:?} in {reason}");
    }
    assert!(trial.called("cancel-snapshot") > 0, "its upload is told to stop: {:?}", trial.calls());
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "the journal knows of it");
    until_journal_removed(&trial).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_backup_without_its_bucket_are_named_and_reclaimed() {
    let (mut trial, _) = interrupted_backup("gone-reclaim", "600000").await;
    let record = refuse_record(&trial);
    set_phase(&trial, "InProgress").await;
    trial.world.delete::<VolumeSnapshotLocation>("snaps").await;
    start_server_with_short_bucket_wait(&mut trial);
    let status = trial.ended("b").await.status.unwrap();
    let leftover = &trial.snapshots_at_plugin()[0];
    assert!(status.failure_reason.contains(leftover), "no {leftover} in {}", status.failure_reason);
    trial.world.end().await.unwrap();
    assert!(!pages(&trial).await.is_empty(), "nothing else knows of the snapshot");
    std::fs::remove_file(&record).unwrap();
    trial.location("snaps", "vs-v2", json!({})).await;
    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn location_changed_to_another_bucket_does_not_decide_about_snapshots() {
    let (mut trial, _) = interrupted_backup("gone-moved", "600000").await;
    let record = refuse_record(&trial);
    set_phase(&trial, "Finalizing").await;
    start_server_with_short_bucket_wait(&mut trial);
    let status = trial.ended("b").await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
    trial.world.end().await.unwrap();
    std::fs::remove_file(&record).unwrap();
    let other = trial.world.path("root").join("other/backups/x");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("file"), "of another cluster").unwrap();
    let bucket = |name: &str| json!({"spec": {"objectStorage": {"bucket": name}}});
    trial.world.patch::<BackupStorageLocation>("default", bucket("other")).await;
    run_one_cleanup(&mut trial, "other").await;
    assert_eq!(trial.snapshots_at_plugin().len(), 1, "{:?}", trial.calls());
    assert!(!pages(&trial).await.is_empty(), "nothing else knows of the snapshot");
    trial.world.patch::<BackupStorageLocation>("default", bucket("default")).await;
    start_server(&mut trial);
    until_journal_removed(&trial).await;
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_of_a_deleted_backup_spares_a_new_one_of_the_same_name() {
    let trial = SnapshotWorld::start("gone-namesake", "sdk").await;
    trial.location("snaps", "vs-v2", json!({"upload-ms": "600000"})).await;
    trial.volume("one").await;
    let namespace = &trial.world.namespace;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "c", "namespace": namespace, "labels": {"of": namespace},
            // So that the new backup has written its files before the old one has stopped.
            "annotations": {key("sdk", "do"): "operation=600000,cancel-ignore"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    apply(&trial.world.client, claim).await.unwrap();
    let kinds = json!({"includedResources": ["persistentvolumes", "persistentvolumeclaims"]});
    trial.back_up_with("b", json!({}), kinds.clone()).await;
    let old = trial.world.until("b", is_waiting::<Backup>).await.uid().unwrap();
    trial.world.delete::<Backup>("b").await;
    trial.back_up_with("b", json!({}), kinds).await;
    let is_new = |backup: &Backup| backup.uid().unwrap() != old && is_waiting(backup);
    trial.world.until("b", is_new).await;
    let params = ListParams::default().labels(&format!("bowline.io/journal={old}"));
    eventually("the journal of the deleted backup goes", async || {
        trial.world.api::<ConfigMap>().list(&params).await.unwrap().items.is_empty()
    })
    .await;
    let recorded: Vec<Snapshot> = trial.get("b").await;
    let recorded: Vec<String> =
        recorded.into_iter().map(|snapshot| snapshot.status.provider_snapshot_id).collect();
    assert_eq!(trial.snapshots_at_plugin(), recorded, "each backup has had a snapshot of its own");
    assert_eq!(recorded.len(), 1);
}
