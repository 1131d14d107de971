//! One suite for all snapshotters: Velero's plugin for AWS, plugins built with its framework in Go and
//! with our SDK, and our plugin for local volumes. It backs up a volume with data, destroys it, restores the data into
//! another volume, and deletes the backup.

use std::fmt::Debug;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_api::{
    Backup, DeleteBackupRequest, Restore, RestorePhase, VolumePluginBackup, VolumePluginRestore,
    VolumeSnapshotLocation,
};
use bowline_store::file::{BackupContent, BackupVolumeInfo, Method, Outcome, Results, Snapshot};
use bowline_store::file::{BowlineBackupInfo, SnapshotPhase};
use bowline_store::{BackupName, BackupStore};
use bowline_testbed::apply::apply;
use flate2::read::MultiGzDecoder;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::subject::{
    AwsSnapshotter, Disk, FixtureSnapshotter, LocalVolumeSnapshotter, TestedSnapshotter, content,
};
use crate::bed::{World, eventually};
use crate::support::runs::{is_over, phase, restore, results_of};

/// A server, a bucket, and an application whose claims have disks of a snapshotter.
pub(super) struct SnapshotterScenario<S> {
    pub(super) world: World,
    pub(super) store: BackupStore,
    pub(super) subject: S,
    app: String,
}

impl<S: TestedSnapshotter> SnapshotterScenario<S> {
    /// With a location `snaps`.
    pub(super) async fn prepare(mut world: World, subject: S) -> Self {
        let options = bowline_server::Options {
            item_operation_sync_frequency: Duration::from_secs(1),
            ..world.options()
        };
        world.run(options);
        let store = world.filesystem_location("default").await;
        let app = format!("{}-app", world.namespace);
        let stage = Self { world, store, subject, app };
        stage.put_credentials().await;
        let mut spec =
            json!({"provider": stage.subject.provider(), "config": stage.subject.config()});
        if stage.subject.credentials().is_some() {
            spec["credential"] = json!({"name": "snaps", "key": "cloud"});
        }
        let location = json!({"metadata": {"name": "snaps"}, "spec": spec});
        stage.world.create::<VolumeSnapshotLocation>(location).await;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": stage.app}});
        apply(&stage.world.client, namespace).await.unwrap();
        for disk in stage.subject.disks() {
            stage.put_claim(&disk).await;
        }
        stage
    }

    /// Writes the Secret of the location, as the subject has it now.
    pub(super) async fn put_credentials(&self) {
        if let Some((text, _)) = self.subject.credentials() {
            self.world.secret("snaps", &text).await;
        }
    }

    pub(super) fn volume(&self, disk: &str) -> String {
        format!("{}-{disk}", self.world.namespace)
    }

    /// A claim that is bound to a disk.
    async fn put_claim(&self, disk: &Disk) {
        let mut spec = disk.source.clone();
        spec["capacity"] = json!({"storage": "1Gi"});
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        spec["persistentVolumeReclaimPolicy"] = json!("Retain");
        spec["storageClassName"] = json!("disks");
        let metadata = json!({"name": self.volume(disk.name), "labels": disk.labels});
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec,
        });
        apply(&self.world.client, object).await.unwrap();
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": disk.name, "namespace": self.app},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": self.volume(disk.name),
            },
        });
        apply(&self.world.client, claim).await.unwrap();
        self.until_bound(disk.name).await;
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.world.client.clone(), &self.app)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.world.client.clone())
    }

    async fn until_bound(&self, claim: &str) {
        eventually("the claim is bound", async || {
            let found = self.claims().get(claim).await.unwrap();
            found.status.and_then(|status| status.phase).as_deref() == Some("Bound")
        })
        .await;
    }

    /// Spec of a backup of the application.
    pub(super) fn spec(&self) -> Value {
        json!({"includedNamespaces": [self.app]})
    }

    /// Takes a backup of the application.
    pub(super) async fn back_up(&self, name: &str) -> Backup {
        let object = json!({"metadata": {"name": name}, "spec": self.spec()});
        self.world.create::<Backup>(object).await;
        self.world.until(name, is_over::<Backup>).await
    }

    /// A file of the backup.
    pub(super) async fn get<T>(&self, backup: &str) -> T
    where
        T: BackupContent + DeserializeOwned + Default + Send + 'static,
    {
        self.store.get::<T>(&BackupName::new(backup).unwrap()).await.unwrap().unwrap()
    }

    pub(super) async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        self.world.api::<K>().list(&ListParams::default()).await.unwrap().items
    }

    /// The claims, their volumes and the disks are gone.
    async fn delete_all_volumes(&self) {
        let now = DeleteParams::default();
        for disk in self.subject.disks() {
            self.claims().delete(disk.name, &now).await.unwrap();
            self.volumes().delete(&self.volume(disk.name), &now).await.unwrap();
        }
        for disk in self.subject.disks() {
            eventually("the claim and the volume are gone", async || {
                let volume = self.volumes().get_opt(&self.volume(disk.name)).await.unwrap();
                volume.is_none() && self.claims().get_opt(disk.name).await.unwrap().is_none()
            })
            .await;
        }
        self.subject.destroy_disks();
    }

    /// Searches everything that is shown for the secrets of the location.
    pub(super) async fn assert_no_secret_leaks(&self) {
        if let Some((_, secrets)) = self.subject.credentials() {
            self.assert_no_leaks_of(&secrets).await;
        }
    }

    /// Searches everything that users and programs can read about runs for secrets.
    pub(super) async fn assert_no_leaks_of(&self, secrets: &[String]) {
        let mut outputs: Vec<(String, String)> = Vec::new();
        for file in files(&self.world.path("root")) {
            // Temporary objects of a run may be deleted meanwhile.
            let Ok(bytes) = std::fs::read(&file) else { continue };
            let name = file.display().to_string();
            let mut text = Vec::new();
            if name.ends_with("gz") {
                MultiGzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
            } else {
                text = bytes;
            }
            outputs.push((name, String::from_utf8_lossy(&text).into_owned()));
        }
        assert!(outputs.iter().any(|(name, _)| name.ends_with("-logs.gz")), "there are files");
        outputs.push(("backups".to_owned(), text(&self.list::<Backup>().await)));
        outputs.push(("restores".to_owned(), text(&self.list::<Restore>().await)));
        outputs.push(("snapshots".to_owned(), text(&self.list::<VolumePluginBackup>().await)));
        outputs.push(("volumes".to_owned(), text(&self.list::<VolumePluginRestore>().await)));
        outputs.push(("events".to_owned(), text(&self.list::<Event>().await)));
        for (source, text) in &outputs {
            let found = secrets.iter().find(|secret| text.contains(secret.as_str()));
            assert!(found.is_none(), "a secret is in {source}");
        }
    }

    /// From the first backup to its deletion. Returns the specs of the volumes that were made.
    async fn assert_full_cycle(&self) -> Vec<Value> {
        self.assert_backed_up().await;
        let specs = self.assert_restored().await;
        self.assert_no_secret_leaks().await;
        delete_backup(&self.world, "b").await;
        assert_eq!(self.subject.remaining_snapshots(), [""; 0]);
        specs
    }

    async fn assert_backed_up(&self) {
        let (disks, uploads) = (self.subject.disks(), self.subject.uploads());
        let backup = self.back_up("b").await;
        let results: Results = self.get("b").await;
        assert_eq!(phase(&backup), "Completed", "{results:?}");
        assert_eq!(results, Results::default());
        let status = backup.status.clone().unwrap();
        let count = i64::try_from(disks.len()).unwrap();
        let counts = [status.volume_snapshots_attempted, status.volume_snapshots_completed];
        assert_eq!(counts.map(i64::from), [count, count]);
        assert_eq!(status.backup_item_operations_attempted, 0, "those are of items");

        let snapshots: Vec<Snapshot> = self.get("b").await;
        let infos: Vec<BackupVolumeInfo> = self.get("b").await;
        let shown = self.list::<VolumePluginBackup>().await;
        let stored: Vec<VolumePluginBackup> = self.get("b").await;
        let own: BowlineBackupInfo = self.get("b").await;
        assert_eq!([snapshots.len(), infos.len(), shown.len(), stored.len()], [disks.len(); 4]);
        assert_eq!(own.volume_operations.len(), 2 * disks.len(), "creations and uploads");
        for disk in &disks {
            let volume = self.volume(disk.name);
            let is_of = |snapshot: &&Snapshot| snapshot.spec.persistent_volume_name == volume;
            let snapshot = snapshots.iter().find(is_of).expect("each volume has one");
            let id = &snapshot.status.provider_snapshot_id;
            assert!(self.subject.has_snapshot(id), "{id}");
            let Snapshot { spec, status, .. } = snapshot;
            assert_eq!(spec.backup_uid, backup.uid().unwrap());
            assert_eq!((spec.backup_name.as_str(), spec.location.as_str()), ("b", "snaps"));
            assert_eq!((spec.volume_type.as_str(), spec.volume_iops), (disk.kind, disk.iops));
            assert_eq!(spec.volume_az, disk.zone);
            assert_eq!(status.phase, Some(SnapshotPhase::Completed));

            let info = infos.iter().find(|info| info.pv_name == volume).unwrap();
            assert_eq!(info.backup_method, Some(Method::NativeSnapshot));
            assert_eq!((&info.result, info.skipped), (&Some(Outcome::Succeeded), false));
            assert_eq!((info.pvc_name.as_str(), &info.pvc_namespace), (disk.name, &self.app));
            let native = info.native_snapshot_info.as_ref().unwrap();
            assert_eq!((&native.snapshot_handle, native.phase.as_str()), (id, "Completed"));
            assert_eq!(
                (native.volume_type.as_str(), native.volume_az.as_str()),
                (disk.kind, disk.zone)
            );

            for resource in [&shown, &stored] {
                let of_volume = resource.iter().find(|one| one.spec.volume == volume).unwrap();
                let status = of_volume.status.as_ref().unwrap();
                assert_eq!(&of_volume.name_any(), id, "an object can be called so");
                assert_eq!(&status.snapshot_id, id);
                assert_eq!(status.phase.as_ref().unwrap().to_string(), "Completed");
                assert!(is_plugin_of(&of_volume.spec.plugin, &self.subject.provider()));
                assert_eq!(status.progress.bytes_done, status.progress.total_bytes);
                assert_eq!(status.progress.total_bytes > 0, uploads, "{status:?}");
            }
        }
    }

    /// After a disaster the volumes are made from the snapshots. Returns their specs.
    pub(super) async fn assert_restored(&self) -> Vec<Value> {
        self.delete_all_volumes().await;
        let status = restore(&self.world, "r", json!({"backupName": "b"})).await;
        let results = results_of(&self.store, "r").await;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
        assert_eq!(results, Results::default());
        let shown = self.list::<VolumePluginRestore>().await;
        assert_eq!(shown.len(), self.subject.disks().len());
        let mut specs = Vec::new();
        for disk in self.subject.disks() {
            self.until_bound(disk.name).await;
            let volume = self.volumes().get(&self.volume(disk.name)).await.unwrap();
            let spec = serde_json::to_value(volume.spec).unwrap();
            assert_eq!(self.subject.read(&spec), content(disk.name));
            for (kind, before) in disk.source.as_object().unwrap() {
                // Its place has changed, and its contents have not.
                assert_eq!(&spec[kind] == before, kind == "nodeAffinity", "{spec}");
            }
            let is_of = |one: &&VolumePluginRestore| {
                one.status.as_ref().unwrap().volume_id == self.volume(disk.name)
            };
            let shown = shown.iter().find(is_of).expect("each volume has one");
            let phase = shown.status.as_ref().unwrap().phase.as_ref().unwrap();
            assert_eq!(phase.to_string(), "Completed");
            assert!(is_plugin_of(&shown.spec.plugin, &self.subject.provider()));
            specs.push(spec);
        }
        specs
    }
}

/// Deletes a backup, and waits until it and what shows its snapshots are gone.
pub(super) async fn delete_backup(world: &World, name: &str) {
    let metadata = json!({"name": format!("delete-{name}")});
    let object = json!({"metadata": metadata, "spec": {"backupName": name}});
    world.create::<DeleteBackupRequest>(object).await;
    world.until_gone::<Backup>(name).await;
    eventually("the VolumePluginBackups are gone", async || {
        let all = world.api::<VolumePluginBackup>().list(&ListParams::default()).await.unwrap();
        all.items.iter().all(|one| one.spec.backup != name)
    })
    .await;
}

/// True if a plugin belongs to a provider, whose name may be short.
fn is_plugin_of(plugin: &str, provider: &str) -> bool {
    plugin == provider || plugin == format!("velero.io/{provider}")
}

fn text(objects: &[impl Serialize]) -> String {
    serde_json::to_string(objects).unwrap()
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_framework_snapshotter_passes_the_full_cycle() {
    let world = World::without_server("suite-go-v1").await;
    let fixture = FixtureSnapshotter::of_set(&world, "go", "vs-v1").await;
    SnapshotterScenario::prepare(world, fixture).await.assert_full_cycle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sdk_snapshotters_of_both_versions_pass_the_full_cycle() {
    for version in ["vs-v1", "vs-v2"] {
        let world = World::without_server(&format!("suite-sdk-{version}")).await;
        let fixture = FixtureSnapshotter::of_set(&world, "sdk", version).await;
        SnapshotterScenario::prepare(world, fixture).await.assert_full_cycle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_snapshotter_without_framework_passes_the_full_cycle() {
    let world = World::without_server("suite-go-v2").await;
    let fixture = FixtureSnapshotter::in_go_without_framework(&world).await;
    SnapshotterScenario::prepare(world, fixture).await.assert_full_cycle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_aws_plugin_passes_the_full_cycle() {
    let world = World::without_server("suite-aws").await;
    let aws = AwsSnapshotter::new(&world).await;
    let stage = SnapshotterScenario::prepare(world, aws).await;
    let specs = stage.assert_full_cycle().await;
    let [fast, in_tree] = &specs[..] else { panic!("{specs:?}") };
    let restored = stage.subject.restored_volume(fast);
    assert_eq!((restored.volume_type.as_str(), restored.iops), ("io1", Some(300)));
    assert_eq!(restored.zone, "us-east-1a");
    assert_eq!(restored.tags["team"], "fast", "the tags of the volume come back with it");
    assert_eq!(restored.tags["velero.io/backup"], "b");
    assert_eq!(restored.tags["velero.io/pv"], stage.volume("fast"));
    let restored = stage.subject.restored_volume(in_tree);
    assert_eq!((restored.volume_type.as_str(), restored.iops), ("gp3", None));
    let calls = stage.subject.ec2.calls();
    for (action, count) in [("CreateSnapshot", 2), ("CreateVolume", 2), ("DeleteSnapshot", 2)] {
        let called = calls.iter().filter(|call| *call == action).count();
        assert_eq!(called, count, "{action}: {calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_volumes_pass_the_full_cycle_with_a_repository_in_a_folder() {
    let world = World::without_server("suite-local").await;
    let local = LocalVolumeSnapshotter::with_folder(&world).await;
    SnapshotterScenario::prepare(world, local).await.assert_full_cycle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_volumes_pass_the_full_cycle_with_a_repository_in_a_bucket() {
    let world = World::without_server("suite-local-s3").await;
    let local = LocalVolumeSnapshotter::with_bucket(&world).await;
    SnapshotterScenario::prepare(world, local).await.assert_full_cycle().await;
}
