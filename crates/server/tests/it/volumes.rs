//! Snapshots of volumes by real plugins. `plugins/fixture/README.md` documents the settings of the fixtures.

mod deleted_backups;
mod failures;
mod plugin_resources;
mod subject;
mod suite;

use std::path::PathBuf;

use bowline_api::{Backup, VolumePluginBackup, VolumeSnapshotLocation};
use bowline_store::file::{BackupVolumeInfo, BowlineBackupInfo, Results, Snapshot, SnapshotPhase};
use bowline_store::{BackupName, BackupStore};
use bowline_testbed::apply::apply;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bed::{World, eventually};
use crate::support::runs::{is_over, is_waiting, phase};

/// A server with plugins, locations and volumes.
struct SnapshotWorld {
    world: World,
    store: BackupStore,
    /// The set whose plugin takes snapshots.
    set: &'static str,
}

impl SnapshotWorld {
    async fn start(name: &str, set: &'static str) -> Self {
        let mut world = World::without_server(name).await;
        world.install_sets().await;
        world.run(Self::options(&world));
        let store = world.filesystem_location("default").await;
        Self { world, store, set }
    }

    fn options(world: &World) -> bowline_server::Options {
        bowline_server::Options {
            item_operation_sync_frequency: std::time::Duration::from_secs(1),
            ..world.options()
        }
    }

    /// The folder of volumes and snapshots.
    fn root(&self) -> PathBuf {
        self.world.path("volumes-root")
    }

    /// A VolumeSnapshotLocation of a plugin, with settings besides.
    async fn location(&self, name: &str, plugin: &str, settings: Value) {
        let mut config = json!({"root": self.root()});
        for (key, value) in settings.as_object().unwrap() {
            config[key] = value.clone();
        }
        let spec =
            json!({"provider": format!("{}.bowline.io/{plugin}", self.set), "config": config});
        self.world
            .create::<VolumeSnapshotLocation>(json!({"metadata": {"name": name}, "spec": spec}))
            .await;
    }

    /// A volume with a file in it.
    async fn volume(&self, id: &str) -> String {
        self.disk(id);
        self.volume_of(id, id).await
    }

    /// Storage of a PersistentVolume: a folder with a file.
    fn disk(&self, id: &str) {
        let folder = self.root().join("volumes").join(id);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), id.repeat(1000)).unwrap();
    }

    /// A PersistentVolume that says that a disk is behind it.
    async fn volume_of(&self, name: &str, id: &str) -> String {
        let name = format!("{}-{name}", self.world.namespace);
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {"of": self.world.namespace}},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": "fixture.bowline.io", "volumeHandle": id},
            },
        });
        apply(&self.world.client, object).await.unwrap();
        name
    }

    async fn back_up(&self, name: &str, annotations: Value) {
        self.back_up_with(name, annotations, json!({})).await;
    }

    async fn back_up_with(&self, name: &str, annotations: Value, more: Value) {
        let mut spec = json!({
            "includedResources": ["persistentvolumes"], "includeClusterResources": true,
            "labelSelector": {"matchLabels": {"of": self.world.namespace}},
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let metadata = json!({"name": name, "annotations": annotations});
        self.world.create::<Backup>(json!({"metadata": metadata, "spec": spec})).await;
    }

    async fn ended(&self, name: &str) -> Backup {
        self.world.until(name, is_over::<Backup>).await
    }

    async fn get<T>(&self, name: &str) -> T
    where
        T: bowline_store::file::BackupContent
            + serde::de::DeserializeOwned
            + Default
            + Send
            + 'static,
    {
        self.store.get::<T>(&BackupName::new(name).unwrap()).await.unwrap().unwrap()
    }

    /// The VolumePluginBackups of a backup.
    async fn resources(&self, backup: &str) -> Vec<VolumePluginBackup> {
        let all =
            self.world.api::<VolumePluginBackup>().list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter(|one| one.spec.backup == backup).collect()
    }

    /// Calls of snapshotters of our SDK, in order: call and object.
    fn calls(&self) -> Vec<(String, String)> {
        let calls = std::fs::read_to_string(self.world.path(self.set).join("calls"));
        let calls = calls.unwrap_or_default();
        let of_snapshotters = calls.lines().filter(|line| line.split(' ').nth(1) == Some("vs"));
        let words = of_snapshotters.map(|line| line.split(' ').collect::<Vec<_>>());
        words.map(|words| (words[2].to_owned(), words[4].to_owned())).collect()
    }

    fn called(&self, call: &str) -> usize {
        self.calls().iter().filter(|(called, _)| called == call).count()
    }

    fn snapshots_at_plugin(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root().join("snapshots")) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().file_name().display().to_string()).collect()
    }
}

fn status_phase(resource: &VolumePluginBackup) -> String {
    let status = resource.status.as_ref().unwrap();
    status.phase.as_ref().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_waits_for_uploads_across_a_restart() {
    let mut trial = SnapshotWorld::start("volumes-restart", "sdk").await;
    let slow = json!({"create-ms": "300", "upload-ms": "4000"});
    trial.location("snaps", "vs-v2", slow).await;
    trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    trial.world.until("b", is_waiting::<Backup>).await;
    eventually("an upload has begun", async || {
        if trial.called("upload-snapshot") > 0 { Ok(()) } else { Err(trial.calls()) }
    })
    .await;
    trial.world.end().await.unwrap();
    let backup = trial.world.api::<Backup>().get("b").await.unwrap();
    assert!(is_waiting(&backup), "{}", phase(&backup));
    assert_eq!(trial.called("snapshot-uploaded"), 0);
    let shown = trial.resources("b").await;
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    let uid = backup.uid().unwrap();
    for (label, value) in [
        ("velero.io/backup-name", "b"),
        ("velero.io/backup-uid", uid.as_str()),
        ("bowline.io/managed", "true"),
    ] {
        assert_eq!(shown.labels().get(label).map(String::as_str), Some(value), "{label}");
    }
    assert_eq!(shown.owner_references()[0].uid, uid);
    let options = SnapshotWorld::options(&trial.world);
    trial.world.run(options);
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "Completed");
    assert_eq!(trial.called("create-snapshot"), 1, "{:?}", trial.calls());
    assert_eq!(trial.called("upload-snapshot"), 2, "it is asked for again, which is harmless");
    let own: BowlineBackupInfo = trial.get("b").await;
    assert_eq!(own.volume_operations.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_type_comes_from_backup_then_location_then_server() {
    let mut trial = SnapshotWorld::start("volumes-types", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.volume("one").await;
    let key = bowline_api::annotation::SNAPSHOT_TYPE;
    let local = json!({key: "local"});
    trial.back_up("by-backup", local.clone()).await;
    assert_eq!(phase(&trial.ended("by-backup").await), "Completed");
    assert_eq!(trial.called("upload-snapshot"), 0);

    let marked = json!({"metadata": {"annotations": local}});
    trial.world.patch::<VolumeSnapshotLocation>("snaps", marked).await;
    trial.back_up("by-location", json!({})).await;
    assert_eq!(phase(&trial.ended("by-location").await), "Completed");
    assert_eq!(trial.called("upload-snapshot"), 0);

    trial.back_up("against-location", json!({key: "cloud"})).await;
    assert_eq!(phase(&trial.ended("against-location").await), "Completed");
    assert_eq!(trial.called("upload-snapshot"), 1);

    // Without a setting of either, the server's `--default-snapshot-type` applies.
    trial.world.end().await.unwrap();
    let unmarked = json!({"metadata": {"annotations": {key: null}}});
    trial.world.patch::<VolumeSnapshotLocation>("snaps", unmarked).await;
    let options = bowline_server::Options {
        default_snapshot_type: bowline_api::snapshot_type::SnapshotType::Local,
        ..SnapshotWorld::options(&trial.world)
    };
    trial.world.run(options);
    trial.back_up("by-server", json!({})).await;
    assert_eq!(phase(&trial.ended("by-server").await), "Completed");
    assert_eq!(trial.called("upload-snapshot"), 1);
    trial.back_up("against-server", json!({key: "auto"})).await;
    assert_eq!(phase(&trial.ended("against-server").await), "Completed");
    assert_eq!(trial.called("upload-snapshot"), 2);

    trial.back_up("nonsense", json!({key: "tape"})).await;
    let backup = trial.ended("nonsense").await;
    assert_eq!(phase(&backup), "FailedValidation");
    let errors = backup.status.unwrap().validation_errors.join("; ");
    assert!(errors.contains("`auto`, `cloud` or `local`"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_snapshot_type_warns_without_an_upload_stage() {
    let trial = SnapshotWorld::start("volumes-cloud", "go").await;
    trial.location("snaps", "vs-v1", json!({})).await;
    trial.volume("one").await;
    trial.back_up("b", json!({bowline_api::annotation::SNAPSHOT_TYPE: "cloud"})).await;
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "Completed", "it is no error");
    let results: Results = trial.get("b").await;
    let warnings = format!("{:?}", results.warnings);
    assert!(warnings.contains("has no upload stage"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_canceled_during_upload_leaves_no_snapshot() {
    let trial = SnapshotWorld::start("volumes-cancel", "sdk").await;
    trial.location("snaps", "vs-v2", json!({"upload-ms": "600000"})).await;
    trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    trial.world.until("b", is_waiting::<Backup>).await;
    let cancel = json!({"metadata": {"annotations": {bowline_api::annotation::CANCEL: "true"}}});
    trial.world.patch::<Backup>("b", cancel).await;
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "Failed");
    assert!(backup.status.unwrap().failure_reason.starts_with("canceled"));
    assert_eq!(trial.snapshots_at_plugin(), Vec::<String>::new(), "{:?}", trial.calls());
    let snapshots: Vec<Snapshot> = trial.get("b").await;
    assert!(snapshots.is_empty(), "{snapshots:?}");
    let shown = trial.resources("b").await;
    assert_eq!(shown.iter().map(status_phase).collect::<Vec<_>>(), ["Canceled"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_snapshot_is_an_error_on_its_volume_only() {
    let trial = SnapshotWorld::start("volumes-bad", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    let good = trial.volume("one").await;
    let bad = trial.volume("error").await;
    let missing = trial.volume_of("nowhere", "nowhere").await;
    trial.back_up("b", json!({})).await;
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let status = backup.status.unwrap();
    assert_eq!(status.volume_snapshots_completed, 1);
    let results: Results = trial.get("b").await;
    let errors = results.errors.cluster.join("\n");
    for words in ["volume error cannot be snapshotted", "volume nowhere not found", &bad, &missing]
    {
        assert!(errors.contains(words), "no {words:?} in {errors}");
    }
    assert!(!errors.contains(&good), "{errors}");
    let snapshots: Vec<Snapshot> = trial.get("b").await;
    let phases: Vec<_> = snapshots.iter().map(|one| one.status.phase.clone().unwrap()).collect();
    assert_eq!(phases, [SnapshotPhase::Failed, SnapshotPhase::Completed], "{snapshots:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_location_is_reported_with_its_reason() {
    for (name, plugin, settings, words) in [
        ("volumes-noplugin", "vs-v9", json!({}), "no plugin for volume snapshots"),
        ("volumes-refused", "vs-v2", json!({"fail": "wrong credentials"}), "wrong credentials"),
        ("volumes-file", "vs-v2", json!({"credentialsFile": "/etc/passwd"}), "must not be set"),
    ] {
        let trial = SnapshotWorld::start(name, "sdk").await;
        trial.location("snaps", plugin, settings).await;
        trial.volume("one").await;
        trial.back_up("b", json!({})).await;
        let backup = trial.ended("b").await;
        assert_eq!(phase(&backup), "PartiallyFailed", "{name}");
        let results: Results = trial.get("b").await;
        let errors = results.errors.cluster.join("\n");
        assert!(errors.contains(words), "no {words:?} in {errors}");
        let infos: Vec<BackupVolumeInfo> = trial.get("b").await;
        assert!(infos.iter().all(|info| info.skipped), "{name}: {infos:?}");
    }
}
