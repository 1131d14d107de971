//! Snapshots by a CSI driver behind the real snapshot controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_api::{Backup, VolumePluginBackup};
use bowline_store::backend::{self, BuiltIn, filesystem};
use bowline_store::file::{BackupContent, BackupOperation, BackupVolumeInfo, Outcome, Results};
use bowline_store::{BackupName, BackupStore, Prefix};
use bowline_testbed::apply::apply;
use bowline_testbed::csi::{self, Switches};
use bowline_testbed::{Bed, ControlPlane, Csi, Node, node};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::csi_restore::{assert_application_restored, assert_group_deleted_with_backup};
use crate::operations::{is_over, is_waiting, phase};

pub(crate) const APP: &str = "shop";
const LIMIT: Duration = Duration::from_mins(3);

/// A cluster with a CSI driver, and a server.
pub(crate) struct CsiScenario {
    pub(crate) client: Client,
    pub(crate) csi: Csi,
    pub(crate) store: BackupStore,
}

fn claim(name: &str, group: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": APP, "labels": {"of": group}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": csi::CLASS,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

impl CsiScenario {
    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }

    async fn count(&self, kind: &str) -> usize {
        self.api(kind).list(&ListParams::default()).await.unwrap().items.len()
    }

    /// Waits for something that comes by itself.
    pub(crate) async fn until<T>(&self, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(found) = check().await {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Nothing of a snapshot is left in the cluster.
    pub(crate) async fn until_no_objects(&self) {
        self.until("the end of all objects", async || {
            let snapshots = self.count("VolumeSnapshot").await;
            (snapshots + self.count("VolumeSnapshotContent").await == 0).then_some(())
        })
        .await;
    }

    /// Claims with volumes, each with a file in it.
    pub(crate) async fn claims(&self, group: &str, names: &[&str]) -> Vec<PathBuf> {
        // Created, not applied: a restore would write back who owned their fields, with which the provisioner's own
        // update conflicts, and it waits for seconds before the next.
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), APP);
        for name in names {
            let claim = serde_json::from_value(claim(name, group)).unwrap();
            claims.create(&PostParams::default(), &claim).await.unwrap();
        }
        let mut folders = Vec::new();
        for name in names {
            let folder = self.volume_of(name).await;
            std::fs::write(folder.join("file"), "before").unwrap();
            folders.push(folder);
        }
        folders
    }

    async fn volume_of(&self, name: &str) -> PathBuf {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), APP);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        self.until(name, async || {
            let claim = claims.get(name).await.unwrap();
            let is_bound = claim.status?.phase.as_deref() == Some("Bound");
            let volume = claim.spec?.volume_name.filter(|_| is_bound)?;
            let volume = volumes.get(&volume).await.unwrap();
            Some(self.csi.volume(&volume.spec?.csi?.volume_handle))
        })
        .await
    }

    pub(crate) async fn back_up(&self, name: &str, group: &str, more: Value) {
        let mut spec = json!({
            "includedNamespaces": [APP],
            "labelSelector": {"matchLabels": {"of": group}},
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let backup = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": name, "namespace": "velero"}, "spec": spec,
        });
        apply(&self.client, backup).await.unwrap();
    }

    pub(crate) async fn backup(&self, name: &str, condition: impl Fn(&Backup) -> bool) -> Backup {
        let backups: Api<Backup> = Api::namespaced(self.client.clone(), "velero");
        self.until(name, async || {
            let backup = backups.get(name).await.unwrap();
            condition(&backup).then_some(backup)
        })
        .await
    }

    async fn cancel(&self, name: &str) {
        let backups: Api<Backup> = Api::namespaced(self.client.clone(), "velero");
        let patch = json!({"metadata": {"annotations": {"bowline.io/cancel": "true"}}});
        let patch = kube::api::Patch::Merge(patch);
        backups.patch(name, &kube::api::PatchParams::default(), &patch).await.unwrap();
        let backup = self.backup(name, is_over).await;
        assert_eq!(phase(&backup), "Failed", "{:?}", backup.status);
    }

    async fn get<T>(&self, name: &str) -> T
    where
        T: BackupContent + DeserializeOwned + Default + Send + 'static,
    {
        self.store.get::<T>(&BackupName::new(name).unwrap()).await.unwrap().unwrap()
    }

    pub(crate) async fn errors(&self, name: &str) -> Vec<String> {
        let results: Results = self.get(name).await;
        let of_namespaces = results.errors.namespaces.into_values().flatten();
        results
            .errors
            .velero
            .into_iter()
            .chain(results.errors.cluster)
            .chain(of_namespaces)
            .collect()
    }

    /// The volumes of a backup, by claim.
    pub(crate) async fn infos(&self, name: &str) -> BTreeMap<String, BackupVolumeInfo> {
        let infos: Vec<BackupVolumeInfo> = self.get(name).await;
        infos.into_iter().map(|info| (info.pvc_name.clone(), info)).collect()
    }

    async fn archive(&self, name: &str) -> BTreeMap<String, Value> {
        let contents = self.store.contents(&BackupName::new(name).unwrap()).await.unwrap().unwrap();
        let bytes = contents.try_collect::<Vec<_>>().await.unwrap().concat();
        let mut tar = tar::Archive::new(flate2::read::MultiGzDecoder::new(&bytes[..]));
        let entries = tar.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            (path, serde_json::from_reader(entry).unwrap_or_default())
        });
        entries.collect()
    }

    async fn volume_plugin_backups(&self, backup: &str) -> Vec<VolumePluginBackup> {
        let api: Api<VolumePluginBackup> = Api::namespaced(self.client.clone(), "velero");
        let mut all = api.list(&ListParams::default()).await.unwrap().items;
        all.retain(|one| one.spec.backup == backup);
        all.sort_by_key(kube::ResourceExt::name_any);
        all
    }

    /// Runs a pod with hooks that stop what it does, and claims.
    pub(crate) async fn pod(&self, name: &str, claims: &[&str]) {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let mounts: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "mountPath": format!("/data/{claim}")}))
            .collect();
        let stop = "kill -STOP $(cat /tmp/writer)";
        let resume_writer = "kill -CONT $(cat /tmp/writer)";
        // It counts in all its volumes at once, so that those of one instant differ by one at most.
        let count = "n=0; while :; do n=$((n+1)); for d in /data/*; do echo $n >> $d/n; done; sleep 0.02; done";
        let script = format!("({count}) & echo $! > /tmp/writer; wait");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": APP, "labels": {"of": name},
                "annotations": {
                    "pre.hook.backup.velero.io/command": json!(["sh", "-c", stop]).to_string(),
                    "post.hook.backup.velero.io/command": json!(["sh", "-c", resume_writer]).to_string(),
                },
            },
            "spec": {
                "terminationGracePeriodSeconds": 0, "volumes": volumes,
                "containers": [{
                    "name": "main", "image": node::IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script], "volumeMounts": mounts,
                }],
            },
        });
        apply(&self.client, pod).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), APP);
        let running = kube::runtime::conditions::is_pod_running();
        let running = kube::runtime::wait::await_condition(pods, name, running);
        tokio::time::timeout(LIMIT, running).await.unwrap().unwrap();
    }
}

async fn set_up(client: &Client) {
    for crd in bowline_api::crds::all() {
        apply(client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    for namespace in ["velero", APP] {
        let metadata = json!({"name": namespace});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        apply(client, namespace).await.unwrap();
    }
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": "velero"},
        "spec": crate::bed::filesystem_spec("bucket"),
    });
    apply(client, location).await.unwrap();
}

async fn store(root: &Path) -> BackupStore {
    let options = filesystem::Options { root: root.to_owned(), downloads: None };
    let built_in = BuiltIn { filesystem: Some(options), ..BuiltIn::default() };
    let opened = backend::open("filesystem", &BTreeMap::default(), None, &built_in).await;
    BackupStore::new(opened.unwrap(), "bucket", &Prefix::default())
}

/// Plays on a stage with a server at work.
pub(crate) async fn run_csi_scenario(
    bed: &Bed,
    plane: &ControlPlane,
    node: Option<&Node>,
    act: impl AsyncFnOnce(&CsiScenario),
) {
    run_csi_scenario_as(crate::bed::server_of(plane, "velero").await, bed, plane, node, act).await;
}

/// The same, with a server that has the rights of this client.
pub(crate) async fn run_csi_scenario_as(
    server: Client,
    bed: &Bed,
    plane: &ControlPlane,
    node: Option<&Node>,
    act: impl AsyncFnOnce(&CsiScenario),
) {
    crate::bed::install_log_subscriber();
    let client = plane.client().await.unwrap();
    // Without a node there is one more thing to try.
    let options = csi::Options { groups: node.is_none(), ..csi::Options::default() };
    let csi = Csi::start(plane, node, options).await.unwrap();
    set_up(&client).await;
    let root = bed.subdir("root").unwrap();
    std::fs::create_dir(root.join("bucket")).unwrap();
    let store = store(&root).await;
    let options = bowline_server::Options {
        filesystem_root: Some(root),
        plugin_dir: bed.subdir("plugins").unwrap(),
        scratch_dir: bed.subdir("scratch").unwrap(),
        item_operation_sync_frequency: Duration::from_secs(1),
        ..bowline_server::Options::default()
    };
    let stop = CancellationToken::new();
    let server = bowline_server::run(server, options, stop.clone().cancelled_owned());
    let work = async {
        let stage = CsiScenario { client: client.clone(), csi, store };
        let locations: Api<bowline_api::BackupStorageLocation> =
            Api::namespaced(client.clone(), "velero");
        stage
            .until("the location", async || {
                let location = locations.get("default").await.unwrap();
                crate::bed::is_available(&location).then_some(())
            })
            .await;
        act(&stage).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(server, work);
    ended.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn application_is_frozen_until_snapshots_are_taken_not_until_ready() {
    if !node::require_for_test("an_application_is_frozen_until_its_driver_has_the_snapshots") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let node = Node::start(&plane).await.unwrap();
    Box::pin(run_csi_scenario(&bed, &plane, Some(&node), assert_one_freeze_window)).await;
}

fn phase_of(one: &VolumePluginBackup) -> String {
    one.status.as_ref().and_then(|status| status.phase.as_ref()).unwrap().to_string()
}

/// Two claims of a pod are of one instant, and slow ones do not hold the freeze.
async fn assert_one_freeze_window(stage: &CsiScenario) {
    stage.claims("db", &["orders", "log"]).await;
    stage.pod("db", &["orders", "log"]).await;
    let ready_after_ms = 10_000;
    stage.csi.set_switches(&Switches { ready_after_ms, ..Switches::default() }).unwrap();
    stage.back_up("frozen", "db", json!({})).await;
    let waiting = stage.backup("frozen", is_waiting).await;
    assert_eq!(phase(&waiting), "WaitingForPluginOperations", "{:?}", waiting.status);
    stage
        .until("two VolumePluginBackups in progress", async || {
            let shown = stage.volume_plugin_backups("frozen").await;
            let phases: Vec<String> = shown.iter().map(phase_of).collect();
            (phases == ["InProgress", "InProgress"]).then_some(())
        })
        .await;
    let backup = stage.backup("frozen", is_over).await;
    assert_eq!(stage.errors("frozen").await, [""; 0]);
    assert_eq!(phase(&backup), "Completed", "{:?}", backup.status);
    let status = backup.status.unwrap();
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (2, 2)
    );
    let [window] = &status.freeze_windows[..] else { panic!("{:?}", status.freeze_windows) };
    println!("frozen for {} ms", window.milliseconds);
    let ready_after = i64::try_from(ready_after_ms).unwrap();
    assert!(window.milliseconds * 2 < ready_after, "frozen for {} ms", window.milliseconds);

    let infos = stage.infos("frozen").await;
    let mut counts = Vec::new();
    for (claim, info) in &infos {
        assert_eq!(info.result, Some(Outcome::Succeeded), "{claim}");
        let csi = info.csi_snapshot_info.as_ref().unwrap();
        let counted = std::fs::read_to_string(stage.csi.snapshot(&csi.snapshot_handle).join("n"));
        counts.push(counted.unwrap().lines().last().unwrap().parse::<i64>().unwrap());
        assert_eq!((csi.driver.as_str(), csi.ready_to_use), (csi::DRIVER, Some(true)));
        assert!(info.completion_timestamp.is_some() && info.start_timestamp.is_some());
    }
    assert_eq!(counts.len(), 2, "{infos:?}");
    assert!((counts[0] - counts[1]).abs() <= 1, "of one instant: {counts:?}");

    let archive = stage.archive("frozen").await;
    let claim = &archive["resources/persistentvolumeclaims/namespaces/shop/orders.json"];
    let name = claim["metadata"]["annotations"]["velero.io/volume-snapshot-name"].as_str().unwrap();
    let path =
        format!("resources/volumesnapshots.snapshot.storage.k8s.io/namespaces/shop/{name}.json");
    let snapshot = &archive[&path];
    assert_eq!(snapshot["status"]["readyToUse"], true, "as it was at the end");
    let handle = &infos["orders"].csi_snapshot_info.as_ref().unwrap().snapshot_handle;
    let marks = &snapshot["metadata"]["annotations"];
    assert_eq!(marks["velero.io/csi-volumesnapshot-handle"], *handle);
    let class = "resources/volumesnapshotclasses.snapshot.storage.k8s.io/cluster/folders.json";
    assert!(archive.contains_key(class));

    let shown = stage.volume_plugin_backups("frozen").await;
    for one in &shown {
        let status = one.status.as_ref().unwrap();
        assert_eq!(phase_of(one), "Completed");
        assert!(status.progress.total_bytes > 0, "{status:?}");
        assert_eq!(status.progress.total_bytes, status.progress.bytes_done);
        assert_eq!(one.spec.plugin, format!("velero.io/csi/{}", csi::DRIVER));
    }
    // The snapshots are the driver's alone now.
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), 2);
    assert_application_restored(stage, "frozen", "db", &["orders", "log"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn csi_driver_failures_are_reported_and_leave_nothing() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    run_csi_scenario(&bed, &plane, None, async |stage| {
        Box::pin(assert_half_of_the_snapshots_fail(stage)).await;
        Box::pin(assert_unready_snapshot_times_out(stage)).await;
        Box::pin(assert_canceled_backup_leaves_no_snapshot(stage)).await;
        Box::pin(assert_group_snapshot(stage)).await;
        Box::pin(assert_missing_class_is_reported(stage)).await;
    })
    .await;
}

/// A driver that fails half of its snapshots gives exactly those errors.
async fn assert_half_of_the_snapshots_fail(stage: &CsiScenario) {
    let names = ["half-0", "half-1", "half-2", "half-3"];
    stage.claims("half", &names).await;
    let fail_create = ["shop/half-1", "shop/half-3"].map(str::to_owned).to_vec();
    stage.csi.set_switches(&Switches { fail_create, ..Switches::default() }).unwrap();
    stage.back_up("half", "half", json!({})).await;
    let backup = stage.backup("half", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let status = backup.status.unwrap();
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (4, 2)
    );
    let errors = stage.errors("half").await;
    assert_eq!(errors.len(), 2, "{errors:#?}");
    let infos = stage.infos("half").await;
    for (name, fails) in names.into_iter().zip([false, true, false, true]) {
        let claim_errors =
            errors.iter().filter(|text| text.contains(&format!("persistentvolumeclaims/{name}:")));
        assert_eq!(claim_errors.count(), usize::from(fails), "{name} of {errors:#?}");
        let result = if fails { Outcome::Failed } else { Outcome::Succeeded };
        assert_eq!(infos[name].result, Some(result), "{name}");
    }
    stage.csi.set_switches(&Switches::default()).unwrap();
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), 2);
}

/// A snapshot that never can be used is an operation that times out.
async fn assert_unready_snapshot_times_out(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    stage.claims("never", &["soon", "never"]).await;
    let never_ready = vec!["shop/never".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("never", "never", json!({"itemOperationTimeout": "8s"})).await;
    let backup = stage.backup("never", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let errors = stage.errors("never").await;
    assert_eq!(errors.len(), 1, "{errors:#?}");
    for part in ["velero-never-", "timed out", "is not ready to use"] {
        assert!(errors[0].contains(part), "{part} in {errors:?}");
    }
    let operations: Vec<BackupOperation> = stage.get("never").await;
    assert_eq!(operations.len(), 2);
    let infos = stage.infos("never").await;
    assert_eq!(infos["never"].result, Some(Outcome::Failed));
    assert_eq!(infos["soon"].result, Some(Outcome::Succeeded));
    // The claim does not name a snapshot that is gone.
    let archive = stage.archive("never").await;
    let named = |claim: &str| {
        let stored =
            &archive[&format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json")];
        stored["metadata"]["annotations"]["velero.io/volume-snapshot-name"].is_string()
    };
    assert!(named("soon") && !named("never"));
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 1);
    stage.csi.set_switches(&Switches::default()).unwrap();
}

/// Of a backup that is cancelled no snapshot is left.
async fn assert_canceled_backup_leaves_no_snapshot(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    stage.claims("cancel", &["cancel-0", "cancel-1"]).await;
    let never_ready = vec!["*".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("cancel", "cancel", json!({})).await;
    stage.backup("cancel", is_waiting).await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2);
    stage.cancel("cancel").await;
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap(), before);
    for (_, info) in stage.infos("cancel").await {
        assert_eq!(info.csi_snapshot_info.unwrap().snapshot_handle, "");
    }
    stage.csi.set_switches(&Switches::default()).unwrap();
}

/// Claims of a volume group are snapshotted by one call, and deleted by one.
async fn assert_group_snapshot(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    for name in ["group-0", "group-1"] {
        let mut claim = claim(name, "group");
        claim["metadata"]["labels"]["velero.io/volume-group"] = "Group_1".into();
        apply(&stage.client, claim).await.unwrap();
        let folder = stage.volume_of(name).await;
        std::fs::write(folder.join("file"), name).unwrap();
    }
    let groups = || {
        let calls = stage.csi.calls().unwrap();
        let calls = calls.into_iter().filter(|call| call.error.is_none());
        calls.map(|call| call.method).filter(|method| method.contains("Group")).collect::<Vec<_>>()
    };
    stage.back_up("group", "group", json!({})).await;
    let backup = stage.backup("group", is_over).await;
    assert_eq!(stage.errors("group").await, [""; 0]);
    assert_eq!(phase(&backup), "Completed");
    let calls = groups();
    assert_eq!(calls.iter().filter(|one| *one == "CreateVolumeGroupSnapshot").count(), 1);
    for (name, info) in stage.infos("group").await {
        let csi = info.csi_snapshot_info.unwrap();
        assert_ne!(csi.volume_group_snapshot_handle, "", "{name}");
        let saved = std::fs::read_to_string(stage.csi.snapshot(&csi.snapshot_handle).join("file"));
        assert_eq!(saved.unwrap(), name);
    }
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2);
    assert!(!groups().contains(&"DeleteVolumeGroupSnapshot".to_owned()), "they are kept");

    let never_ready = vec!["*".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("group-off", "group", json!({})).await;
    stage.backup("group-off", is_waiting).await;
    stage.cancel("group-off").await;
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2, "those of the first");
    stage.csi.set_switches(&Switches::default()).unwrap();
    assert_group_deleted_with_backup(stage, "group", &before).await;
}

/// A claim whose driver has no class is told.
async fn assert_missing_class_is_reported(stage: &CsiScenario) {
    stage.claims("none", &["lonely"]).await;
    let classes = stage.api("VolumeSnapshotClass");
    classes.delete(csi::SNAPSHOT_CLASS, &DeleteParams::default()).await.unwrap();
    stage.back_up("none", "none", json!({})).await;
    let backup = stage.backup("none", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let errors = stage.errors("none").await;
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains("there is no VolumeSnapshotClass for its driver"), "{errors:?}");
    let infos = stage.infos("none").await;
    assert!(infos["lonely"].skipped, "{infos:?}");
}
