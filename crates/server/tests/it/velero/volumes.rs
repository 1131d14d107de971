//! Snapshots by Bowline, restored by Velero on the same cluster and by Bowline on another cluster.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{
    Backup, BackupPhase, BackupSpec, RestorePhase, VolumePluginBackup, VolumePluginBackupStatus,
    VolumePluginRestore,
};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Velero, fixture, velero};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::harness::{self, BowlineServer, back_up, eventually, until_there, velero_output};
use crate::bed::{World, shared};

/// The versions of the plugin. Velero knows the first one only, which the second one serves as well
/// where it is not asked for more.
const VERSIONS: [&str; 2] = ["vs-v1", "vs-v2"];
/// Contents of the volumes.
const DATA: &str = "a page of the ledger\n";

/// An application with a volume, and its backup, both named after the version of the plugin.
struct Ledger {
    version: &'static str,
    /// Folder of the disks of all clusters.
    disks: PathBuf,
}

impl Ledger {
    fn namespace(&self) -> String {
        format!("ledger-{}", self.version)
    }

    fn volume(&self) -> String {
        format!("ledger-disk-{}", self.version)
    }

    fn backup(&self) -> String {
        format!("by-{}", self.version)
    }

    fn disk(&self, id: &str) -> PathBuf {
        self.disks.join("volumes").join(id)
    }

    fn objects(&self) -> [Value; 4] {
        let (namespace, volume) = (self.namespace(), self.volume());
        let metadata = |name: &str| json!({"name": name, "namespace": namespace});
        [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("about"),
                "data": {"version": self.version},
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
                    "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "disks",
                    "csi": {
                        "driver": "fixture.bowline.io",
                        "volumeHandle": format!("{}-fast", self.version),
                    },
                    "claimRef": {
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data",
                        "namespace": namespace,
                    },
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata("data"),
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
                    "resources": {"requests": {"storage": "1Mi"}}, "volumeName": volume,
                },
            }),
        ]
    }

    async fn create(&self, client: &Client) {
        let disk = self.disk(&format!("{}-fast", self.version));
        std::fs::create_dir_all(&disk).unwrap();
        std::fs::write(disk.join("page"), DATA).unwrap();
        for object in self.objects() {
            apply(client, object).await.unwrap();
        }
        self.wait_until_bound(client).await;
    }

    /// Deletes all its objects, and keeps the disks.
    async fn delete_objects(&self, client: &Client) {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        namespaces.delete(&self.namespace(), &DeleteParams::default()).await.unwrap();
        volumes.delete(&self.volume(), &DeleteParams::default()).await.unwrap();
        eventually("the ledger is gone", async || {
            let namespace = namespaces.get_opt(&self.namespace()).await.unwrap();
            let volume = volumes.get_opt(&self.volume()).await.unwrap();
            (namespace.is_none() && volume.is_none()).then_some(())
        })
        .await;
    }

    /// Path of the disks for servers in a namespace.
    async fn create_snapshot_location(&self, client: &Client, namespace: &str) {
        let location = json!({
            "apiVersion": "velero.io/v1",
            "kind": "VolumeSnapshotLocation",
            "metadata": {"name": self.version, "namespace": namespace},
            "spec": {
                "provider": format!("fixture.bowline.io/{}", self.version),
                "config": {"root": self.disks},
            },
        });
        apply(client, location).await.unwrap();
    }

    /// Waits until the claim has its volume.
    async fn wait_until_bound(&self, client: &Client) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &self.namespace());
        let what = format!("the claim of {} is bound", self.namespace());
        let bound = eventually(&what, async || {
            let claim = claims.get("data").await.unwrap();
            (claim.status.as_ref()?.phase.as_deref()? == "Bound").then_some(claim)
        })
        .await;
        assert_eq!(bound.spec.unwrap().volume_name, Some(self.volume()));
    }

    /// Everything is back, on a disk that was made from the snapshot as the `number`th one.
    async fn assert_restored(&self, client: &Client, number: usize) {
        self.wait_until_bound(client).await;
        let about: ConfigMap = until_there(client, &self.namespace(), "about").await;
        assert_eq!(about.data.unwrap()["version"], self.version);
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volume = volumes.get(&self.volume()).await.unwrap();
        let handle = volume.spec.unwrap().csi.unwrap().volume_handle;
        assert_eq!(handle, format!("vol-{}-{number}", self.snapshot()));
        assert_eq!(std::fs::read_to_string(self.disk(&handle).join("page")).unwrap(), DATA);
        let metadata = std::fs::read_to_string(self.disk(&format!("{handle}.json"))).unwrap();
        let metadata_json: Value = serde_json::from_str(&metadata).unwrap();
        assert_eq!(metadata_json, json!({"type": "fixture", "zone": "", "iops": "100"}));
    }

    fn snapshot(&self) -> String {
        format!("snap-{}-fast-1", self.version)
    }
}

/// The status of the one snapshot of a backup.
async fn shown(client: &Client, namespace: &str, backup: &str) -> Option<VolumePluginBackup> {
    let api: Api<VolumePluginBackup> = Api::namespaced(client.clone(), namespace);
    let mut all = api.list(&ListParams::default()).await.unwrap().items;
    all.retain(|one| one.spec.backup == backup);
    assert!(all.len() < 2, "{all:?}");
    all.pop()
}

#[tokio::test(flavor = "multi_thread")]
async fn bowline_snapshots_are_restored_by_velero_and_in_another_cluster() {
    crate::bed::install_log_subscriber();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = &shared().s3;
    let client = plane.client().await.unwrap();
    harness::install(&client).await;
    let disks = bed.subdir("disks").unwrap();
    let ledgers = VERSIONS.map(|version| Ledger { version, disks: disks.clone() });

    // Backups by a server of ours.
    harness::create_location(&client, s3, harness::NAMESPACE).await;
    let plugin = fixture::rust_plugins().await.unwrap();
    let plugins = bed.subdir("plugins").unwrap();
    symlink(&plugin, plugins.join("fixture")).unwrap();
    let server = BowlineServer::start_with(&bed, &plane, |options| {
        options.namespace = harness::NAMESPACE.to_owned();
        options.plugin_dir = plugins;
    });
    let mut snapshots = Vec::new();
    for ledger in &ledgers {
        ledger.create(&client).await;
        ledger.create_snapshot_location(&client, harness::NAMESPACE).await;
        let spec = BackupSpec {
            included_namespaces: vec![ledger.namespace()],
            volume_snapshot_locations: vec![ledger.version.to_owned()],
            ..BackupSpec::default()
        };
        let status = back_up(&client, harness::NAMESPACE, &ledger.backup(), spec).await;
        assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
        assert_eq!(status.volume_snapshots_completed, 1, "{status:?}");
        snapshots.push(shown(&client, harness::NAMESPACE, &ledger.backup()).await.unwrap());
        ledger.delete_objects(&client).await;
    }
    server.end();

    // A cluster that has the bucket and the disks in common with the first one, and nothing else.
    let mut second = World::without_server("second-cluster").await;
    second.install_fixture().await;
    second.run(second.options());
    second.credentials("s3").await;
    for ledger in &ledgers {
        ledger.create_snapshot_location(&second.client, &second.namespace).await;
    }
    second.location(velero::LOCATION, harness::location(s3)).await;

    velero_restores(&plane, &client, &ledgers, plugin).await;
    for (ledger, snapshot) in ledgers.iter().zip(&snapshots) {
        assert_restored_in_another_cluster(&second, ledger, snapshot).await;
    }
}

/// Velero finds the backups, shows their snapshots, and restores objects and volumes.
async fn velero_restores(
    plane: &ControlPlane,
    client: &Client,
    ledgers: &[Ledger],
    plugin: PathBuf,
) {
    let options = velero::Options { plugins: vec![plugin], ..velero::Options::default() };
    let running = Velero::start(plane, &shared().s3, options).await.unwrap();
    for ledger in ledgers {
        ledger.create_snapshot_location(client, velero::NAMESPACE).await;
        let backup = ledger.backup();
        until_there::<Backup>(client, velero::NAMESPACE, &backup).await;
        let listed = velero_output(&running, &["backup", "get", &backup]).await;
        assert!(listed.contains(&backup) && listed.contains("Completed"), "{listed}");
        let describe = ["backup", "describe", &backup, "--details", "--colorized=false"];
        let described = velero_output(&running, &describe).await;
        let lines: Vec<_> = described.lines().map(normalized_line).collect();
        for wanted in [
            "Phase: Completed".to_owned(),
            "Velero-Native Snapshots:".to_owned(),
            format!("{}:", ledger.volume()),
            format!("Snapshot ID: {}", ledger.snapshot()),
            "Type: fixture".to_owned(),
            "IOPS: 100".to_owned(),
            "Result: succeeded".to_owned(),
            format!("- {}/data", ledger.namespace()),
        ] {
            assert!(lines.contains(&wanted), "no {wanted:?} in:\n{described}");
        }
        let spec = json!({"backupName": backup});
        let name = format!("theirs-{}", ledger.version);
        let status = harness::restore(client, velero::NAMESPACE, &name, spec).await;
        let description =
            velero_output(&running, &["restore", "describe", &name, "--details"]).await;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{description}");
        ledger.assert_restored(client, 1).await;
    }
}

/// A line without what only aligns it.
fn normalized_line(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Another cluster has the same data about the snapshot as the first one, and restores from it.
async fn assert_restored_in_another_cluster(
    world: &World,
    ledger: &Ledger,
    snapshot: &VolumePluginBackup,
) {
    let backup = ledger.backup();
    until_there::<Backup>(&world.client, &world.namespace, &backup).await;
    let synced = eventually("the snapshot is shown in the other cluster", async || {
        shown(&world.client, &world.namespace, &backup).await
    })
    .await;
    let status = synced.status.clone().unwrap();
    assert_eq!(status, snapshot.status.clone().unwrap());
    assert_eq!(synced.spec, snapshot.spec);
    assert_final_progress(ledger, &status);

    let restore = format!("ours-{}", ledger.version);
    let spec = json!({"backupName": backup});
    let status = harness::restore(&world.client, &world.namespace, &restore, spec).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    ledger.assert_restored(&world.client, 2).await;
    let restored: VolumePluginRestore =
        until_there(&world.client, &world.namespace, &format!("{restore}-{}", ledger.volume()))
            .await;
    assert_eq!(restored.spec.snapshot_id, ledger.snapshot());
    assert_eq!(restored.labels()["velero.io/restore-name"], restore);
    assert_eq!(restored.status.unwrap().phase, Some(VolumePluginPhase::Completed));
}

/// The final progress: only a plugin of version 2 knows of bytes.
fn assert_final_progress(ledger: &Ledger, status: &VolumePluginBackupStatus) {
    assert_eq!(status.phase, Some(VolumePluginPhase::Completed));
    assert_eq!(status.snapshot_id, ledger.snapshot());
    let bytes = if ledger.version == "vs-v2" { DATA.len().try_into().unwrap() } else { 0 };
    assert_eq!((status.progress.bytes_done, status.progress.total_bytes), (bytes, bytes));
}
