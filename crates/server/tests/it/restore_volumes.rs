//! Volumes that plugins create from the snapshots of a backup, on a real API server and with plugins in
//! processes of their own, which `plugins/fixture/README.md` documents.

use std::path::PathBuf;

use bowline_api::annotation::finalizer;
use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{
    Backup, Restore, RestorePhase, RestoreStatus, VolumePluginRestore, VolumePluginRestoreStatus,
    VolumeSnapshotLocation,
};
use bowline_engine::journal::{Journal as _, JournalEntry, VolumeAnswered, VolumeRequested};
use bowline_server::journal::ConfigMapJournal;
use bowline_store::file::{
    BackupVolumeInfo, ResourceIdentifier, RestoreVolumeInfo, Results, Snapshot,
};
use bowline_store::name::RunUid;
use bowline_store::{BackupName, BackupStore, RestoreName};
use bowline_testbed::apply::apply;
use futures::stream;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::bed::{World, eventually, filesystem_spec};
use crate::support::raw_tar::RawTar;
use crate::support::runs::{back_up, is_over, restore, results_of};

/// The versions of the plugin.
const VERSIONS: [&str; 2] = ["vs-v1", "vs-v2"];

/// A server with snapshotters, and a backup of one volume that has a snapshot.
struct VolumeRestoreScenario {
    world: World,
    store: BackupStore,
    app: String,
    volume: String,
    snapshot: Value,
}

impl VolumeRestoreScenario {
    /// A backup of a claim, its volume and the snapshot of that, which is there.
    async fn prepare(name: &str, version: &str) -> Self {
        let mut world = World::without_server(name).await;
        world.install_fixture().await;
        world.run(world.options());
        let store = world.filesystem_location("default").await;
        let root = world.path("disks");
        let data = root.join("snapshots/snap-1/data");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::create_dir_all(root.join("volumes")).unwrap();
        std::fs::write(data.join("ledger"), "42").unwrap();
        std::fs::write(root.join("snapshots/snap-1/tags.json"), "{}").unwrap();
        let ended = r#"{"started": "1", "completes": "1", "error": ""}"#;
        std::fs::write(root.join("snapshots/snap-1/creation.json"), ended).unwrap();
        let spec = json!({
            "provider": format!("fixture.bowline.io/{version}"), "config": {"root": root},
        });
        let location = json!({"metadata": {"name": "disks"}, "spec": spec});
        world.create::<VolumeSnapshotLocation>(location).await;
        let volume = format!("{name}-pv");
        let snapshot = json!({
            "spec": {
                "backupName": "b", "backupUID": "u", "location": "disks",
                "persistentVolumeName": volume, "providerVolumeID": "old", "volumeType": "fixture",
                "volumeAZ": "zone-1", "volumeIOPS": 100,
            },
            "status": {"providerSnapshotID": "snap-1", "phase": "Completed"},
        });
        back_up(&world, "b", &[name]).await;
        Self { world, store, app: format!("{name}-app"), volume, snapshot }
    }

    fn objects(&self) -> [Value; 2] {
        let Self { app, volume, .. } = self;
        [
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
                    "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "disks",
                    "volumeMode": "Filesystem",
                    "csi": {"driver": "fixture.bowline.io", "volumeHandle": "old"},
                    "claimRef": {
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data",
                        "namespace": app,
                    },
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": app},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
                    "resources": {"requests": {"storage": "1Mi"}}, "volumeName": volume,
                },
            }),
        ]
    }

    /// Writes the files of the backup as they are to be.
    async fn store_backup(&self) {
        let name = BackupName::new("b").unwrap();
        let [mut volume, mut claim] = self.objects();
        volume["status"] = json!({"phase": "Bound"});
        volume["spec"]["claimRef"]["uid"] = json!("of another life");
        claim["status"] = json!({"phase": "Bound"});
        let mut tar = RawTar::default();
        tar.object("persistentvolumes", &volume);
        tar.object("persistentvolumeclaims", &claim);
        let archive = Box::pin(stream::iter([Ok(tar.end().into())]));
        self.store.put_contents(&name, archive).await.unwrap();
        let snapshots: Vec<Snapshot> = serde_json::from_value(json!([self.snapshot])).unwrap();
        self.store.put(&name, &snapshots).await.unwrap();
        let infos = json!([{"pvName": self.volume, "backupMethod": "NativeSnapshot"}]);
        let infos: Vec<BackupVolumeInfo> = serde_json::from_value(infos).unwrap();
        self.store.put(&name, &infos).await.unwrap();
    }

    async fn restore(&self, name: &str, spec: Value) -> (RestoreStatus, Results) {
        self.store_backup().await;
        let mut spec = spec;
        spec["backupName"] = json!("b");
        let status = restore(&self.world, name, spec).await;
        (status, results_of(&self.store, name).await)
    }

    async fn persistent_volume(&self, name: &str) -> Option<PersistentVolume> {
        Api::all(self.world.client.clone()).get_opt(name).await.unwrap()
    }

    async fn claim(&self, namespace: &str) -> Option<PersistentVolumeClaim> {
        let api = Api::namespaced(self.world.client.clone(), namespace);
        api.get_opt("data").await.unwrap()
    }

    /// Waits until the claim has its volume.
    async fn until_bound(&self, namespace: &str) -> PersistentVolumeClaim {
        eventually("the claim is bound", async || {
            let claim = self.claim(namespace).await.expect("the claim is there");
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Bound") { Ok(claim) } else { Err(claim) }
        })
        .await
    }

    /// Storage of a PersistentVolume: its handle and the data.
    async fn volume_handle_and_data(&self, name: &str) -> (String, String) {
        let volume = self.persistent_volume(name).await.expect("the volume is there");
        let handle = volume.spec.unwrap().csi.unwrap().volume_handle;
        let data = self.disk(&handle).join("ledger");
        (handle, std::fs::read_to_string(data).unwrap())
    }

    fn disk(&self, handle: &str) -> PathBuf {
        self.world.path("disks").join("volumes").join(handle)
    }

    async fn shown(&self) -> Vec<VolumePluginRestore> {
        let api = self.world.api::<VolumePluginRestore>();
        api.list(&ListParams::default()).await.unwrap().items
    }
}

fn status_of(shown: &VolumePluginRestore) -> &VolumePluginRestoreStatus {
    shown.status.as_ref().expect("it has a status")
}

#[tokio::test]
async fn volume_is_restored_with_data_and_bound_claim() {
    for version in VERSIONS {
        let stage = VolumeRestoreScenario::prepare(&format!("disk-{version}"), version).await;
        let (status, results) = stage.restore("r", json!({})).await;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
        assert_eq!(results, Results::default());
        let (handle, data) = stage.volume_handle_and_data(&stage.volume).await;
        assert_eq!((handle.as_str(), data.as_str()), ("vol-snap-1-1", "42"));
        let about = std::fs::read_to_string(stage.disk("vol-snap-1-1.json")).unwrap();
        let about: Value = serde_json::from_str(&about).unwrap();
        assert_eq!(about, json!({"type": "fixture", "zone": "zone-1", "iops": "100"}));
        let claim = stage.until_bound(&stage.app).await;
        assert_eq!(claim.spec.unwrap().volume_name.as_deref(), Some(stage.volume.as_str()));

        let owner = stage.world.api::<Restore>().get("r").await.unwrap();
        let shown = stage.shown().await;
        let [shown] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(shown.name_any(), format!("r-{}", stage.volume));
        assert_eq!(shown.owner_references()[0].uid, owner.uid().unwrap());
        assert_eq!(shown.labels()["velero.io/restore-name"], "r");
        assert_eq!(shown.labels()["velero.io/restore-uid"], owner.uid().unwrap());
        assert_eq!(shown.labels()["bowline.io/managed"], "true");
        assert_eq!(shown.spec.snapshot_id, "snap-1");
        assert_eq!(shown.spec.backup, "b");
        assert_eq!(shown.spec.plugin, format!("fixture.bowline.io/{version}"));
        let status = status_of(shown);
        assert_eq!(status.phase, Some(VolumePluginPhase::Completed));
        assert_eq!(status.volume_id, stage.volume);
        assert!(status.start_timestamp.is_some() && status.completion_timestamp.is_some());

        let name = RestoreName::new("r").unwrap();
        let infos = stage.store.get_restore_file::<Vec<RestoreVolumeInfo>>(&name).await.unwrap();
        let infos = serde_json::to_value(infos).unwrap();
        assert_eq!(infos[0]["restoreMethod"], "NativeSnapshot");
        assert_eq!(infos[0]["nativeSnapshotInfo"]["snapshotHandle"], "snap-1");
        assert_eq!(infos[0]["pvName"], stage.volume.as_str());

        // A second restore leaves a volume alone that is in use.
        let (status, results) = stage.restore("again", json!({})).await;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
        assert!(!stage.disk("vol-snap-1-2").exists());
        assert_eq!(stage.shown().await.len(), 1);

        // The VolumePluginRestore belongs to the restore.
        let name = format!("r-{}", stage.volume);
        stage.world.delete::<Restore>("r").await;
        stage.world.until_gone::<VolumePluginRestore>(&name).await;
    }
}

#[tokio::test]
async fn failed_volume_is_reported_and_its_claim_not_created() {
    let mut stage = VolumeRestoreScenario::prepare("disk-broken", "vs-v2").await;
    let whole = stage.snapshot.clone();
    let change = |pointer: &str, value: &str| {
        let mut changed = whole.clone();
        *changed.pointer_mut(pointer).unwrap() = value.into();
        changed
    };
    let rows = [
        (
            change("/status/providerSnapshotID", "snap-2"),
            "plugin fixture.bowline.io/vs-v2 created no volume from snapshot snap-2: snapshot \
             snap-2 not found",
            true,
        ),
        (
            change("/spec/location", "nowhere"),
            "the VolumeSnapshotLocation nowhere cannot be used: not found",
            false,
        ),
        (
            change("/status/phase", "Failed"),
            "the data of the volume is not in the backup: its snapshot or copy failed",
            false,
        ),
    ];
    for (number, (snapshot, reason, is_asked)) in rows.into_iter().enumerate() {
        stage.snapshot = snapshot;
        let name = format!("r{number}");
        let (status, results) = stage.restore(&name, json!({})).await;
        assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed), "{results:?}");
        assert_eq!(status.errors, 2, "{results:?}");
        assert!(results.errors.cluster[0].contains(reason), "{results:?}");
        let about_claim = &results.errors.namespaces[&stage.app][0];
        assert!(about_claim.contains(reason), "{about_claim}");
        assert!(about_claim.contains("--allow-empty-volumes"), "{about_claim}");
        assert!(stage.persistent_volume(&stage.volume).await.is_none());
        assert!(stage.claim(&stage.app).await.is_none());
        let mut shown = stage.shown().await;
        shown.retain(|shown| shown.labels()["velero.io/restore-name"] == name);
        assert_eq!(shown.len(), usize::from(is_asked), "{shown:?}");
        if let Some(shown) = shown.first() {
            assert_eq!(status_of(shown).phase, Some(VolumePluginPhase::Failed));
            assert_eq!(status_of(shown).message, reason);
            assert!(status_of(shown).completion_timestamp.is_some());
        }
    }
    assert_eq!(std::fs::read_dir(stage.world.path("disks/volumes")).unwrap().count(), 0);
}

#[tokio::test]
async fn volume_is_restored_beside_the_original() {
    let stage = VolumeRestoreScenario::prepare("disk-beside", "vs-v2").await;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": stage.app}});
    apply(&stage.world.client, namespace).await.unwrap();
    for object in stage.objects() {
        apply(&stage.world.client, object).await.unwrap();
    }
    stage.until_bound(&stage.app).await;
    let copy = format!("{}-copy", stage.app);
    let (status, results) =
        stage.restore("r", json!({"namespaceMapping": {&stage.app: copy}})).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
    let claim = stage.until_bound(&copy).await;
    let name = claim.spec.unwrap().volume_name.unwrap();
    assert!(name.starts_with("velero-clone-"), "{name}");
    assert_eq!(
        stage.volume_handle_and_data(&name).await,
        ("vol-snap-1-1".to_owned(), "42".to_owned())
    );
    let restored = stage.persistent_volume(&name).await.unwrap();
    assert_eq!(restored.annotations()["velero.io/original-pv-name"], stage.volume);
    let before = stage.persistent_volume(&stage.volume).await.unwrap();
    assert_eq!(before.spec.unwrap().csi.unwrap().volume_handle, "old");
    let shown = stage.shown().await;
    assert_eq!(shown.len(), 1);
    assert_eq!(status_of(&shown[0]).volume_id, name);
}

#[tokio::test]
async fn plugin_owned_resources_and_existing_names_are_left_alone() {
    let stage = VolumeRestoreScenario::prepare("disk-own", "vs-v2").await;
    let spec = json!({"snapshotID": "snap-1", "backup": "b", "plugin": "fixture.bowline.io/vs-v2"});
    let of_plugin = json!({
        "metadata": {"name": "by-the-plugin"}, "spec": spec,
        "status": {"phase": "completed", "volumeID": "vol-snap-1-1"},
    });
    stage.world.create::<VolumePluginRestore>(of_plugin).await;
    let (status, results) = stage.restore("r", json!({})).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
    let shown = stage.shown().await;
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(shown.name_any(), "by-the-plugin");
    assert_eq!(shown.labels()["velero.io/restore-name"], "r");
    assert_eq!(shown.owner_references()[0].name, "r");
    assert_eq!(status_of(shown).phase.as_ref().unwrap().to_string(), "completed");

    // Another object has the name that ours would have.
    let volumes: Api<PersistentVolume> = Api::all(stage.world.client.clone());
    let name = format!("s-{}", stage.volume);
    let other = json!({"metadata": {"name": name}, "spec": spec});
    stage.world.create::<VolumePluginRestore>(other).await;
    let copy = format!("{}-copy", stage.app);
    let (status, results) =
        stage.restore("s", json!({"namespaceMapping": {&stage.app: copy}})).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
    assert!(volumes.get_opt(&stage.volume).await.unwrap().is_some());
    let mut own_resources = stage.shown().await;
    own_resources.retain(|shown| shown.labels().get("bowline.io/managed").is_some());
    let [ours] = &own_resources[..] else { panic!("{own_resources:?}") };
    assert!(ours.name_any().starts_with(&format!("{name}-")), "{}", ours.name_any());
    assert_eq!(status_of(ours).phase, Some(VolumePluginPhase::Completed));
}

#[tokio::test]
async fn resources_of_an_earlier_server_are_adopted_or_ended() {
    let mut stage = VolumeRestoreScenario::prepare("disk-later", "vs-v2").await;
    stage.store_backup().await;
    stage.world.end().await.unwrap();
    let spec = json!({"backupName": "b"});
    let asked = json!({"metadata": {"name": "r"}, "spec": spec});
    let uid = stage.world.create::<Restore>(asked).await.uid().unwrap();
    let of_before = |name: &str, snapshot: &str, phase: &str| {
        let labels = json!({
            "velero.io/restore-name": "r", "velero.io/restore-uid": uid,
            "bowline.io/managed": "true",
        });
        let plugin = "fixture.bowline.io/vs-v2";
        json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"snapshotID": snapshot, "backup": "b", "plugin": plugin},
            "status": {"phase": phase, "volumeID": "x", "message": "of before"},
        })
    };
    let name = format!("r-{}", stage.volume);
    for resource in [
        of_before(&name, "snap-1", "Failed"),
        of_before("forgotten", "snap-2", "InProgress"),
        of_before("ended", "snap-3", "Completed"),
    ] {
        // Written by a server; resources of other writers are left alone.
        let params = kube::api::PostParams {
            field_manager: Some("bowline".to_owned()),
            ..kube::api::PostParams::default()
        };
        let mut resource = resource;
        resource["apiVersion"] = json!("velero.io/v1");
        resource["kind"] = json!("VolumePluginRestore");
        let resource: VolumePluginRestore = serde_json::from_value(resource).unwrap();
        stage.world.api().create(&params, &resource).await.unwrap();
    }
    let options = stage.world.options();
    stage.world.run(options);
    let is_over = |shown: &VolumePluginRestore| {
        status_of(shown).phase.as_ref().is_some_and(VolumePluginPhase::is_terminal)
    };
    let forgotten = stage.world.until("forgotten", is_over).await;
    assert_eq!(status_of(&forgotten).phase, Some(VolumePluginPhase::Failed));
    assert_eq!(
        status_of(&forgotten).message,
        "the restore ended before the plugin completed this volume"
    );
    let restore = stage.world.api::<Restore>().get("r").await.unwrap();
    assert_eq!(restore.status.unwrap().phase, Some(RestorePhase::Completed));
    let shown = stage.world.api::<VolumePluginRestore>().get(&name).await.unwrap();
    assert_eq!(status_of(&shown).phase, Some(VolumePluginPhase::Completed));
    assert_eq!(status_of(&shown).message, "");
    assert_eq!(status_of(&shown).volume_id, stage.volume);
    let ended = stage.world.api::<VolumePluginRestore>().get("ended").await.unwrap();
    assert_eq!(status_of(&ended).message, "of before");
    assert_eq!(stage.shown().await.len(), 3);
}

#[tokio::test]
async fn volume_creation_progress_is_shown() {
    let stage = VolumeRestoreScenario::prepare("disk-progress", "vs-v2").await;
    let slow = json!({"spec": {"config": {"volume-ms": "3000"}}});
    stage.world.patch::<VolumeSnapshotLocation>("disks", slow).await;
    let watching = eventually("progress is shown", async || {
        let has_progress = |one: &VolumePluginRestore| status_of(one).progress.total_bytes > 0;
        stage.shown().await.into_iter().find(has_progress)
    });
    let ((status, results), shown) = tokio::join!(stage.restore("r", json!({})), watching);
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
    assert_eq!(status_of(&shown).phase, Some(VolumePluginPhase::InProgress));
    let progress = &status_of(&shown).progress;
    assert_eq!(progress.total_bytes, 2, "the plugin has two bytes to copy");
    assert!(progress.bytes_done < 2, "{progress:?}");
    let ended = stage.shown().await;
    assert_eq!(status_of(&ended[0]).progress.bytes_done, 2);
}

#[tokio::test]
async fn journal_of_a_deleted_restore_is_kept_until_its_volumes_are_used() {
    let mut world = World::without_server("volumes-deleted").await;
    world.filesystem_store("default").await;
    world.location("default", filesystem_spec("default")).await;
    let metadata = json!({"name": "r", "finalizers": [finalizer::RESTORE]});
    let (spec, status) = (json!({"backupName": "gone"}), json!({"phase": "InProgress"}));
    let restore = json!({"metadata": metadata, "spec": spec, "status": status});
    let run = RunUid::new(world.create::<Restore>(restore).await.uid().unwrap()).unwrap();
    let opened =
        ConfigMapJournal::open(world.client.clone(), &world.namespace, &run, "Restore", "r").await;
    let journal = opened.unwrap().0.with_location("default");
    let volume = "volumes-deleted-pv";
    let requested = VolumeRequested {
        item: ResourceIdentifier { name: volume.to_owned(), ..ResourceIdentifier::default() },
        name: volume.to_owned(),
        ..VolumeRequested::default()
    };
    journal.append(&JournalEntry::VolumeRequested(requested)).await.unwrap();
    let ended = VolumeAnswered { block: 0, volume: Some("vol-1".to_owned()) };
    journal.append(&JournalEntry::VolumeAnswered(ended)).await.unwrap();
    world.api::<Restore>().delete("r", &DeleteParams::default()).await.unwrap();
    world.run(world.options());
    world.until_gone::<Restore>("r").await;
    world.end().await.unwrap();

    // Cleanup begins when the server does, and a server ends after it.
    world.run(world.options());
    let spec = json!({"includedNamespaces": ["none"], "storageLocation": "default"});
    world.create::<Backup>(json!({"metadata": {"name": "other"}, "spec": spec})).await;
    world.until("other", is_over::<Backup>).await;
    world.end().await.unwrap();
    let params = ListParams::default().labels(&format!("bowline.io/journal={run}"));
    let pages: Api<ConfigMap> = world.api();
    let there = pages.list(&params).await.unwrap().items;
    assert!(!there.is_empty(), "nothing else knows of the volume");

    let source = json!({"driver": "none.example.io", "volumeHandle": "vol-1"});
    let spec =
        json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "csi": source});
    let used = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec,
    });
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let used = serde_json::from_value(used).unwrap();
    volumes.create(&PostParams::default(), &used).await.unwrap();
    world.run(world.options());
    eventually("the journal is deleted", async || {
        pages.list(&params).await.unwrap().items.is_empty()
    })
    .await;
}
