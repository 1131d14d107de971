//! Restores from CSI snapshots, and the deletion of the snapshots, by the real controllers.

use std::path::PathBuf;

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{
    Backup, DeleteBackupRequest, Restore, RestorePhase, RestoreStatus, VolumePluginRestore,
};
use bowline_store::RestoreName;
use bowline_store::file::{Messages, RestoreContent, RestoreVolumeInfo, Results};
use bowline_testbed::apply::apply;
use bowline_testbed::csi::{self, Switches};
use bowline_testbed::{Bed, ControlPlane};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::csi::{APP, CsiScenario, run_csi_scenario};
use crate::support::runs::{is_over, phase};

impl CsiScenario {
    /// Backs up claims, and checks that all snapshots are created.
    async fn back_up_claims(&self, name: &str, group: &str) {
        self.back_up(name, group, json!({})).await;
        let backup = self.backup(name, is_over).await;
        assert_eq!(
            phase(&backup),
            "Completed",
            "{:?}: {:?}",
            backup.status,
            self.errors(name).await
        );
    }

    fn claims_in(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Destroys claims, and waits until they are gone.
    async fn delete_claims(&self, names: &[&str]) {
        let claims = self.claims_in(APP);
        for name in names {
            claims.delete(name, &DeleteParams::default()).await.unwrap();
        }
        for name in names {
            let is_gone = async || claims.get_opt(name).await.unwrap().is_none().then_some(());
            self.until("the end of a claim", is_gone).await;
        }
    }

    async fn restore(&self, name: &str, annotations: Value, spec: Value) -> RestoreStatus {
        let restore = json!({
            "apiVersion": "velero.io/v1", "kind": "Restore",
            "metadata": {"name": name, "namespace": "velero", "annotations": annotations},
            "spec": spec,
        });
        apply(&self.client, restore).await.unwrap();
        let restores: Api<Restore> = Api::namespaced(self.client.clone(), "velero");
        self.until(name, async || {
            let status = restores.get(name).await.unwrap().status?;
            let is_over = matches!(
                status.phase.as_ref()?,
                RestorePhase::Completed
                    | RestorePhase::PartiallyFailed
                    | RestorePhase::Failed
                    | RestorePhase::FailedValidation
            );
            is_over.then_some(status)
        })
        .await
    }

    async fn restore_file<T>(&self, name: &str) -> T
    where
        T: RestoreContent + DeserializeOwned + Default + Send + 'static,
    {
        let name = RestoreName::new(name).unwrap();
        self.store.get_restore_file(&name).await.unwrap().unwrap()
    }

    async fn restore_messages(&self, restore: &str) -> (Vec<String>, Vec<String>) {
        let all = |messages: Messages| {
            let of_namespaces = messages.namespaces.into_values().flatten();
            messages.velero.into_iter().chain(messages.cluster).chain(of_namespaces).collect()
        };
        let results: Results = self.restore_file(restore).await;
        (all(results.errors), all(results.warnings))
    }

    /// The PersistentVolume of a claim, and the folder with its data.
    async fn volume_in(&self, namespace: &str, name: &str) -> (PersistentVolume, PathBuf) {
        let claims = self.claims_in(namespace);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let claim = claims.get(name).await.unwrap();
        assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Bound"), "{namespace}/{name}");
        let volume = volumes.get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap();
        let handle = volume.spec.clone().unwrap().csi.unwrap().volume_handle;
        (volume, self.csi.volume(&handle))
    }

    async fn shown(&self, restore: &str) -> Vec<VolumePluginRestore> {
        let api: Api<VolumePluginRestore> = Api::namespaced(self.client.clone(), "velero");
        let params = ListParams::default().labels(&format!("velero.io/restore-name={restore}"));
        let mut shown = api.list(&params).await.unwrap().items;
        shown.sort_by_key(kube::ResourceExt::name_any);
        shown
    }

    /// Asks for the deletion of a backup. The errors, none if it is gone.
    async fn delete(&self, backup: &str, request: &str) -> Vec<String> {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
            "metadata": {"name": request, "namespace": "velero"}, "spec": {"backupName": backup},
        });
        apply(&self.client, object).await.unwrap();
        let requests: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), "velero");
        let backups: Api<Backup> = Api::namespaced(self.client.clone(), "velero");
        self.until(request, async || {
            let Some(request) = requests.get_opt(request).await.unwrap() else {
                let backup = backups.get_opt(backup).await.unwrap();
                return backup.is_none().then(Vec::new);
            };
            Some(request.status?.errors).filter(|errors| !errors.is_empty())
        })
        .await
    }

    /// Takes a snapshot, or what makes snapshots a group, out of the storage.
    fn delete_from_storage(&self, handle: &str) {
        let folder = self.csi.snapshot(handle);
        let root = folder.ancestors().nth(3).unwrap();
        for kind in ["snapshots", "groups"] {
            let folder = root.join(kind).join(handle);
            if folder.exists() {
                std::fs::remove_dir_all(folder).unwrap();
            }
        }
    }

    async fn objects(&self, kind: &str) -> Vec<Value> {
        let list = self.api(kind).list(&ListParams::default()).await.unwrap();
        list.items.into_iter().map(|one| serde_json::to_value(one).unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_restored_from_csi_snapshots_which_are_deleted_with_their_backup() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let acts = run_csi_scenario(&bed, &plane, None, async |stage| {
        assert_claims_restored_with_data(stage).await;
        assert_unready_claims_are_reported(stage).await;
        assert_missing_driver_is_an_error(stage).await;
        assert_snapshots_deleted_with_backup(stage).await;
    });
    Box::pin(acts).await;
}

/// Claims are restored with their data, in place and as copies.
async fn assert_claims_restored_with_data(stage: &CsiScenario) {
    let names = ["orders", "log"];
    let folders = stage.claims("db", &names).await;
    let (volume, _) = stage.volume_in(APP, "orders").await;
    let volumes: Api<PersistentVolume> = Api::all(stage.client.clone());
    let labelled = json!({"metadata": {"labels": {"team": "x"}}});
    let patch = Patch::Merge(labelled);
    volumes.patch(&volume.name_any(), &PatchParams::default(), &patch).await.unwrap();
    stage.back_up_claims("db", "db").await;
    for folder in &folders {
        std::fs::write(folder.join("file"), "after").unwrap();
    }
    stage.delete_claims(&names).await;

    let status = stage.restore("same", json!({}), json!({"backupName": "db"})).await;
    let (errors, warnings) = stage.restore_messages("same").await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?} {errors:?} {warnings:?}");
    assert_eq!((errors, warnings), (Vec::new(), Vec::new()));
    assert_eq!(status.restore_item_operations_attempted, 2);
    assert_eq!(status.restore_item_operations_completed, 2);
    for name in names {
        let (_, folder) = stage.volume_in(APP, name).await;
        assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "before", "{name}");
    }
    let (volume, _) = stage.volume_in(APP, "orders").await;
    assert_eq!(volume.labels().get("team").map(String::as_str), Some("x"));
    let infos: Vec<RestoreVolumeInfo> = stage.restore_file("same").await;
    let info = infos.iter().find(|info| info.pvc_name == "orders").unwrap();
    assert_eq!(info.pv_name, volume.name_any());
    let snapshot = info.csi_snapshot_info.as_ref().unwrap();
    assert_eq!(snapshot.driver, csi::DRIVER);
    let shown = stage.shown("same").await;
    assert_eq!(shown.len(), 2);
    for one in &shown {
        let status = one.status.as_ref().unwrap();
        assert_eq!(status.phase, Some(VolumePluginPhase::Completed), "{status:?}");
        assert_eq!(one.spec.plugin, format!("velero.io/csi/{}", csi::DRIVER));
    }
    let volume_ids: Vec<&str> =
        shown.iter().map(|one| one.status.as_ref().unwrap().volume_id.as_str()).collect();
    assert!(volume_ids.contains(&volume.name_any().as_str()), "{volume_ids:?}");

    // Once more, beside the first.
    let spec = json!({"backupName": "db", "namespaceMapping": {APP: "copy"}});
    let status = stage.restore("copy", json!({}), spec).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        stage.restore_messages("copy").await
    );
    for name in names {
        let (_, folder) = stage.volume_in("copy", name).await;
        assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "before", "{name}");
    }
    let contents = stage.objects("VolumeSnapshotContent").await;
    assert_eq!(contents.len(), 4);
    for content in &contents {
        assert_eq!(content["spec"]["deletionPolicy"], "Retain");
        assert_eq!(content["metadata"]["name"], content["spec"]["volumeSnapshotRef"]["name"]);
    }
    // Existing claims are unchanged, and nothing is created for them.
    let status = stage.restore("again", json!({}), json!({"backupName": "db"})).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        stage.restore_messages("again").await
    );
    assert_eq!(status.restore_item_operations_attempted, 0);
}

/// A claim whose volume cannot be created is reported with the driver's reason; a claim that waits for its first
/// consumer is not waited for.
async fn assert_unready_claims_are_reported(stage: &CsiScenario) {
    stage.claims("ready", &["bad", "good"]).await;
    stage.back_up_claims("ready", "ready").await;
    stage.delete_claims(&["bad", "good"]).await;
    let fail_volume = vec!["shop/bad".to_owned()];
    stage.csi.set_switches(&Switches { fail_volume, ..Switches::default() }).unwrap();
    let spec = json!({"backupName": "ready", "itemOperationTimeout": "10s"});
    let status = stage.restore("bad", json!({}), spec).await;
    let (errors, _) = stage.restore_messages("bad").await;
    assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed), "{errors:?}");
    let [error] = &errors[..] else { panic!("{errors:#?}") };
    for part in ["persistentvolumeclaims/bad", "timed out", "ProvisioningFailed"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let phases: Vec<_> =
        stage.shown("bad").await.into_iter().filter_map(|one| one.status?.phase).collect();
    assert_eq!(phases, [VolumePluginPhase::Failed, VolumePluginPhase::Completed]);
    stage.csi.set_switches(&Switches::default()).unwrap();
    stage.delete_claims(&["bad", "good"]).await;

    // The class is another one now, which the backup does not know.
    let rules = json!({
        "version": "v1",
        "resourceModifierRules": [{
            "conditions": {"groupResource": "persistentvolumeclaims"},
            "mergePatches": [{"patchData": json!({"spec": {"storageClassName": csi::WAIT_FOR_CONSUMER_CLASS}}).to_string()}],
        }],
    });
    let modifiers = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "late", "namespace": "velero"}, "data": {"rules": rules.to_string()},
    });
    apply(&stage.client, modifiers).await.unwrap();
    let spec = json!({
        "backupName": "ready", "resourceModifier": {"kind": "configmap", "name": "late"},
    });
    let status = stage.restore("late", json!({}), spec).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        stage.restore_messages("late").await
    );
    assert_eq!(status.restore_item_operations_attempted, 0);
    let claims = stage.claims_in(APP);
    assert_eq!(claims.get("good").await.unwrap().status.unwrap().phase.as_deref(), Some("Pending"));
    stage.delete_claims(&["bad", "good"]).await;
}

/// Without the driver a claim is an error and not created, unless it may be empty; and the backup keeps
/// its record.
async fn assert_missing_driver_is_an_error(stage: &CsiScenario) {
    let drivers: Api<CSIDriver> = Api::all(stage.client.clone());
    let driver = drivers.get(csi::DRIVER).await.unwrap();
    drivers.delete(csi::DRIVER, &DeleteParams::default()).await.unwrap();
    let spec = json!({"backupName": "ready"});
    let status = stage.restore("none", json!({}), spec.clone()).await;
    let (errors, _) = stage.restore_messages("none").await;
    assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed));
    let not_installed: Vec<&String> =
        errors.iter().filter(|error| error.contains("is not installed")).collect();
    assert_eq!((errors.len(), not_installed.len()), (2, 2), "{errors:#?}");
    let claims = stage.claims_in(APP);
    assert!(claims.get_opt("good").await.unwrap().is_none());

    let allowed = json!({"bowline.io/allow-empty-volumes": "true"});
    let status = stage.restore("empty", allowed, spec).await;
    let (_, warnings) = stage.restore_messages("empty").await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        stage.restore_messages("empty").await
    );
    let empty_warnings =
        warnings.iter().filter(|text| text.contains("the claim is created empty: "));
    assert_eq!(empty_warnings.count(), 2, "{warnings:#?}");
    let claim_spec = claims.get("good").await.unwrap().spec.unwrap();
    assert!(claim_spec.data_source.is_none() && claim_spec.data_source_ref.is_none());
    stage.delete_claims(&["bad", "good"]).await;

    let before = stage.csi.snapshots().unwrap();
    let errors = stage.delete("ready", "refused").await;
    assert!(errors.iter().any(|error| error.contains("is not installed")), "{errors:?}");
    assert_eq!(stage.csi.snapshots().unwrap(), before);
    let backup = stage.backup("ready", |_| true).await;
    assert_eq!(phase(&backup), "Completed");
    let mut driver = serde_json::to_value(driver).unwrap();
    driver["apiVersion"] = json!("storage.k8s.io/v1");
    driver["kind"] = json!("CSIDriver");
    driver["metadata"] = json!({"name": csi::DRIVER});
    apply(&stage.client, driver).await.unwrap();
}

/// Snapshots go with their backup. One that cannot keeps it, and the next try finishes that.
async fn assert_snapshots_deleted_with_backup(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    assert_eq!(before.len(), 4);
    let handles: Vec<String> = stage
        .infos("ready")
        .await
        .into_values()
        .map(|info| info.csi_snapshot_info.unwrap().snapshot_handle)
        .collect();
    let stuck = handles[0].clone();
    let fail_delete = vec![stuck.clone()];
    stage.csi.set_switches(&Switches { fail_delete, ..Switches::default() }).unwrap();
    let errors = stage.delete("ready", "stuck").await;
    let [error] = &errors[..] else { panic!("{errors:#?}") };
    assert!(error.contains(&stuck) && error.contains("Failed to delete snapshot"), "{error}");
    let remaining = stage.csi.snapshots().unwrap();
    assert_eq!(remaining.len(), 3, "the other is gone");
    assert!(remaining.contains(&stuck));
    let backup = stage.backup("ready", |_| true).await;
    assert_eq!(phase(&backup), "Deleting");

    stage.csi.set_switches(&Switches::default()).unwrap();
    assert_eq!(stage.delete("ready", "unstuck").await, [""; 0]);
    let remaining = stage.csi.snapshots().unwrap();
    assert_eq!(remaining.len(), 2);
    // A snapshot that is already gone from the storage is no error.
    stage.delete_from_storage(&remaining[0]);
    assert_eq!(stage.delete("db", "all").await, [""; 0]);
    assert_eq!(stage.csi.snapshots().unwrap(), [""; 0]);
    // Objects of restores stay, and so do the volumes.
    assert!(!stage.objects("VolumeSnapshotContent").await.is_empty());
    let (_, folder) = stage.volume_in("copy", "orders").await;
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "before");
}

/// The snapshots of a group go with their backup, by one call: the driver deletes none of them alone. If it
/// cannot, the backup stays, and the next try finishes it.
pub(crate) async fn assert_group_deleted_with_backup(
    stage: &CsiScenario,
    backup: &str,
    before: &[String],
) {
    let infos = stage.infos(backup).await;
    let handles: Vec<String> =
        infos.into_values().map(|info| info.csi_snapshot_info.unwrap().snapshot_handle).collect();
    assert_eq!(stage.csi.groups().unwrap().len(), 1);
    let fail_delete = vec![handles[0].clone()];
    stage.csi.set_switches(&Switches { fail_delete, ..Switches::default() }).unwrap();
    let errors = stage.delete(backup, "group-stuck").await;
    let [error] = &errors[..] else { panic!("{errors:#?}") };
    for part in ["group of CSI snapshots", "Failed to delete group snapshot"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let found = stage.backup(backup, |_| true).await;
    assert_eq!(phase(&found), "Deleting");
    assert_eq!(stage.csi.groups().unwrap().len(), 1, "it is there until all of it is deleted");

    stage.csi.set_switches(&Switches::default()).unwrap();
    assert_eq!(stage.delete(backup, "group-unstuck").await, [""; 0]);
    assert_eq!(stage.csi.snapshots().unwrap(), before);
    assert_eq!(stage.csi.groups().unwrap(), [""; 0]);
    let calls = stage.csi.calls().unwrap();
    let alone =
        calls.iter().filter(|call| call.method == "DeleteSnapshot" && handles.contains(&call.id));
    assert_eq!(alone.count(), 0, "they go together");
    // A snapshot that is already gone from the storage, as after a kill, is no error.
    stage.back_up_claims("group-gone", "group").await;
    for info in stage.infos("group-gone").await.into_values() {
        let csi = info.csi_snapshot_info.unwrap();
        stage.delete_from_storage(&csi.snapshot_handle);
        stage.delete_from_storage(&csi.volume_group_snapshot_handle);
    }
    assert_eq!(stage.delete("group-gone", "group-gone").await, [""; 0]);
    // Objects that were created for the deletion are gone.
    for kind in ["VolumeSnapshotContent", "VolumeSnapshot"] {
        assert_eq!(stage.objects(kind).await, [] as [Value; 0]);
    }
}

/// An application on a node that went on after its backup, and was destroyed, comes back with what its volumes had
/// when it was frozen.
pub(crate) async fn assert_application_restored(
    stage: &CsiScenario,
    backup: &str,
    pod: &str,
    claims: &[&str],
) {
    let read = |folder: PathBuf| std::fs::read_to_string(folder.join("n")).unwrap();
    let infos = stage.infos(backup).await;
    let frozen: Vec<String> = claims
        .iter()
        .map(|&claim| infos[claim].csi_snapshot_info.as_ref().unwrap())
        .map(|csi| read(stage.csi.snapshot(&csi.snapshot_handle)))
        .collect();
    for (claim, frozen) in claims.iter().zip(&frozen) {
        let (_, folder) = stage.volume_in(APP, claim).await;
        let is_writing = async || (read(folder.clone()).len() > frozen.len()).then_some(());
        stage.until("more than there was", is_writing).await;
    }
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), APP);
    pods.delete(pod, &DeleteParams::default()).await.unwrap();
    let is_deleted = async || pods.get_opt(pod).await.unwrap().is_none().then_some(());
    stage.until("the end of the pod", is_deleted).await;
    stage.delete_claims(claims).await;

    let status = stage.restore("back", json!({}), json!({"backupName": backup})).await;
    let messages = stage.restore_messages("back").await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}: {messages:?}");
    let runs = async || {
        let found = pods.get_opt(pod).await.unwrap()?;
        (found.status?.phase.as_deref() == Some("Running")).then_some(())
    };
    stage.until("the pod to run", runs).await;
    for (claim, frozen) in claims.iter().zip(&frozen) {
        let (_, folder) = stage.volume_in(APP, claim).await;
        let now = read(folder);
        // The application counts on from the restored data.
        let more = now.strip_prefix(frozen.as_str());
        assert!(more.is_some_and(|more| more.is_empty() || more.starts_with("1\n")), "{claim}");
    }
}
