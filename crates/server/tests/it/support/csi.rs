//! A cluster with a CSI driver behind the real snapshot controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_api::{Backup, VolumePluginBackup};
use bowline_store::backend::{self, BuiltIn, filesystem};
use bowline_store::file::{BackupContent, BackupVolumeInfo, Results};
use bowline_store::{BackupName, BackupStore, Prefix};
use bowline_testbed::apply::apply;
use bowline_testbed::csi;
use bowline_testbed::{Bed, ControlPlane, Csi, Node, Poll, node};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::runs::{is_over, phase};

pub(crate) const APP: &str = "shop";
const LIMIT: Duration = Duration::from_mins(3);

/// A cluster with a CSI driver, and a server.
pub(crate) struct CsiScenario {
    pub(crate) client: Client,
    pub(crate) csi: Csi,
    pub(crate) store: BackupStore,
}

pub(crate) fn claim(name: &str, group: &str) -> Value {
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

    /// Waits for something that the driver and its controllers do.
    pub(crate) async fn until<P: Poll>(&self, what: &str, poll: impl AsyncFn() -> P) -> P::Answer {
        bowline_testbed::eventually(what, LIMIT, poll).await
    }

    /// Waits until the cluster has no object of a snapshot.
    pub(crate) async fn until_no_objects(&self) {
        self.until("no VolumeSnapshots and VolumeSnapshotContents remain", async || {
            let snapshots = self.count("VolumeSnapshot").await;
            snapshots + self.count("VolumeSnapshotContent").await == 0
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

    pub(crate) async fn volume_of(&self, name: &str) -> PathBuf {
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

    pub(crate) async fn cancel(&self, name: &str) {
        let backups: Api<Backup> = Api::namespaced(self.client.clone(), "velero");
        let patch = json!({"metadata": {"annotations": {"bowline.io/cancel": "true"}}});
        let patch = kube::api::Patch::Merge(patch);
        backups.patch(name, &kube::api::PatchParams::default(), &patch).await.unwrap();
        let backup = self.backup(name, is_over).await;
        assert_eq!(phase(&backup), "Failed", "{:?}", backup.status);
    }

    pub(crate) async fn get<T>(&self, name: &str) -> T
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

    pub(crate) async fn archive(&self, name: &str) -> BTreeMap<String, Value> {
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

    pub(crate) async fn volume_plugin_backups(&self, backup: &str) -> Vec<VolumePluginBackup> {
        let api: Api<VolumePluginBackup> = Api::namespaced(self.client.clone(), "velero");
        let mut all = api.list(&ListParams::default()).await.unwrap().items;
        all.retain(|one| one.spec.backup == backup);
        all.sort_by_key(kube::ResourceExt::name_any);
        all
    }

    /// Runs a pod with claims and with hooks that stop its work.
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
        // The pod counts in all volumes at once, so that counts of one instant differ by one at most.
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
    // Without a node there is one more case.
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
