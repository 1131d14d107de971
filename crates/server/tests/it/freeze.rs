//! Two-stage snapshots with real hooks, on a real node, because hooks run in real containers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_api::Backup;
use bowline_store::file::FreezeWindow;
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Node, fixture, node};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bed::{LIMIT, eventually};
use crate::support::runs::{is_over, is_waiting, phase};

const APP: &str = "app-frozen";

/// A cluster with a node, a pod with hooks, and volumes that belong to it.
struct FreezeScenario {
    client: Client,
    folder: PathBuf,
}

impl FreezeScenario {
    /// One call of the plugin, with its time in Unix milliseconds.
    fn calls(&self, call: &str) -> Vec<i64> {
        let calls = std::fs::read_to_string(self.folder.join("state/calls")).unwrap_or_default();
        let words = calls.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let meant = words.filter(|words| words[1] == "vs" && words[2] == call);
        meant.map(|words| words[0].parse().unwrap()).collect()
    }

    fn clear_calls(&self) {
        std::fs::remove_file(self.folder.join("state/calls")).unwrap();
    }

    /// A location that every volume belongs to from now on.
    async fn location(&self, plugin: &str, settings: &Value) {
        let mut config = json!({"root": self.folder.join("volumes")});
        for (key, value) in settings.as_object().unwrap() {
            config[key] = value.clone();
        }
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
            "metadata": {"name": "snaps", "namespace": "velero"},
            "spec": {"provider": format!("fixture.bowline.io/{plugin}"), "config": config},
        });
        apply(&self.client, location).await.unwrap();
    }

    /// A pod with hooks and so many volumes, which an ItemBlockAction says belong to it.
    async fn pod(&self, name: &str, volumes: usize) {
        let mut related = Vec::new();
        for number in 0..volumes {
            let id = format!("{name}-{number}");
            let data = self.folder.join("volumes/volumes").join(&id);
            std::fs::create_dir_all(&data).unwrap();
            std::fs::write(data.join("file"), "x".repeat(1000)).unwrap();
            related.push(format!("persistentvolumes//{id}"));
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": id, "labels": {"of": name}},
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": "fixture.bowline.io", "volumeHandle": id},
                },
            });
            apply(&self.client, volume).await.unwrap();
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": APP, "labels": {"of": name},
                "annotations": {
                    "pre.hook.backup.velero.io/command": json!(["touch", "/tmp/frozen"]).to_string(),
                    "post.hook.backup.velero.io/command": json!(["rm", "/tmp/frozen"]).to_string(),
                    "fixture.bowline.io/additional": related.join(","),
                },
            },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": node::IMAGE, "imagePullPolicy": "Never",
                    "command": ["sleep", "1000"],
                }],
            },
        });
        apply(&self.client, pod).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), APP);
        let running = kube::runtime::conditions::is_pod_running();
        let running = kube::runtime::wait::await_condition(pods, name, running);
        tokio::time::timeout(LIMIT, running).await.unwrap().unwrap();
    }

    async fn back_up(&self, name: &str, of: &str, annotations: Value) {
        let backup = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": name, "namespace": "velero", "annotations": annotations},
            "spec": {
                "includedNamespaces": [APP], "includeClusterResources": true,
                "labelSelector": {"matchLabels": {"of": of}},
            },
        });
        apply(&self.client, backup).await.unwrap();
    }

    async fn until(&self, name: &str, condition: impl Fn(&Backup) -> bool) -> Backup {
        let backups: Api<Backup> = Api::namespaced(self.client.clone(), "velero");
        eventually(&format!("backup {name} is as expected"), async || {
            let backup = backups.get(name).await.unwrap();
            if condition(&backup) { Ok(backup) } else { Err(backup) }
        })
        .await
    }

    async fn window(&self, name: &str) -> FreezeWindow {
        let backup = self.until(name, is_over).await;
        assert_eq!(phase(&backup), "Completed", "{:?}", backup.status);
        let mut windows = backup.status.unwrap().freeze_windows;
        assert_eq!(windows.len(), 1, "{windows:?}");
        windows.remove(0)
    }
}

async fn set_up(bed: &Bed, client: &Client, folder: &Path) {
    for crd in bowline_api::crds::all() {
        apply(client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    for namespace in ["velero", APP] {
        let metadata = json!({"name": namespace});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        apply(client, namespace).await.unwrap();
    }
    let plugin = fixture::rust_plugins().await.unwrap();
    let script = format!(
        "#!/bin/sh\nFIXTURE_STATE_DIR='{}' exec '{}' \"$@\"\n",
        folder.join("state").display(),
        plugin.display()
    );
    let path = bed.subdir("plugins").unwrap().join("fixture");
    std::fs::write(&path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
}

/// Seed 004, and what follows from it.
#[tokio::test(flavor = "multi_thread")]
async fn application_is_frozen_for_snapshots_not_for_uploads() {
    if !node::require_for_test(
        "an_application_is_frozen_for_its_snapshots_and_not_for_their_uploads",
    ) {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let _node = Node::start(&plane).await.unwrap();
    let client = plane.client().await.unwrap();
    let folder = bed.subdir("plugin").unwrap();
    set_up(&bed, &client, &folder).await;
    let root = bed.subdir("root").unwrap();
    std::fs::create_dir(root.join("bucket")).unwrap();
    let options = bowline_server::Options {
        filesystem_root: Some(root),
        plugin_dir: bed.subdir("plugins").unwrap(),
        scratch_dir: bed.subdir("scratch").unwrap(),
        item_operation_sync_frequency: Duration::from_secs(1),
        snapshot_upload_concurrency: 20,
        ..bowline_server::Options::default()
    };
    let stop = CancellationToken::new();
    // In this runtime, whose threads are in the network of the bed.
    let server = crate::bed::server_of(&plane, "velero").await;
    let server = bowline_server::run(server, options, stop.clone().cancelled_owned());
    let work = async {
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": "velero"},
            "spec": crate::bed::filesystem_spec("bucket"),
        });
        apply(&client, location).await.unwrap();
        let locations: Api<bowline_api::BackupStorageLocation> =
            Api::namespaced(client.clone(), "velero");
        eventually("the location is available", async || {
            crate::bed::is_available(&locations.get("default").await.unwrap())
        })
        .await;
        let stage = FreezeScenario { client: client.clone(), folder };
        assert_freeze_excludes_uploads(&stage).await;
        assert_snapshot_without_upload(&stage).await;
        assert_freeze_of_many_volumes(&stage).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(server, work);
    ended.unwrap();
}

/// A snapshot that takes 50 ms, and an upload that takes 10 s.
async fn assert_freeze_excludes_uploads(stage: &FreezeScenario) {
    stage.location("vs-v2", &json!({"snapshot-ms": "50", "upload-ms": "10000"})).await;
    stage.pod("db", 1).await;
    stage.back_up("two-stages", "db", json!({})).await;
    stage.until("two-stages", is_waiting).await;
    assert!(stage.calls("snapshot-uploaded").is_empty(), "it waits for the upload");
    let window = stage.window("two-stages").await;
    let [created] = stage.calls("create-snapshot")[..] else { panic!("one snapshot") };
    let [began] = stage.calls("upload-snapshot")[..] else { panic!("one upload") };
    let [uploaded] = stage.calls("snapshot-uploaded")[..] else { panic!("it was uploaded") };
    let froze = window.start_timestamp.unwrap().0.as_millisecond();
    let thawed = froze + window.milliseconds;
    assert!(froze <= created && created + 50 <= thawed, "{froze} {created} {thawed}");
    assert!(thawed <= began, "thawed at {thawed}, uploads from {began}");
    let upload = uploaded - began;
    assert!(upload >= 10_000, "{upload}");
    assert!(window.milliseconds * 5 < upload, "frozen for {} ms of {upload}", window.milliseconds);
}

/// A snapshot of type `local` is not uploaded, and a plugin without an upload stage is no error.
async fn assert_snapshot_without_upload(stage: &FreezeScenario) {
    stage.clear_calls();
    let key = bowline_api::annotation::SNAPSHOT_TYPE;
    stage.back_up("local", "db", json!({key: "local"})).await;
    stage.window("local").await;
    assert_eq!(stage.calls("snapshot-created").len(), 1);
    assert!(stage.calls("upload-snapshot").is_empty());
    stage.location("vs-v1", &json!({})).await;
    stage.back_up("without", "db", json!({})).await;
    stage.window("without").await;
    assert_eq!(stage.calls("snapshot-created").len(), 2);
    assert!(stage.calls("upload-snapshot").is_empty());
}

/// Twenty volumes freeze a pod for little longer than one.
async fn assert_freeze_of_many_volumes(stage: &FreezeScenario) {
    stage.location("vs-v2", &json!({"snapshot-ms": "1000"})).await;
    stage.pod("many", 20).await;
    stage.back_up("one", "db", json!({})).await;
    let one = stage.window("one").await.milliseconds;
    stage.back_up("many", "many", json!({})).await;
    let many = stage.window("many").await.milliseconds;
    println!("frozen for one volume {one} ms, for twenty {many} ms");
    assert!(many * 2 <= one * 3, "{many} ms for twenty, {one} ms for one");
}
