//! Real Velero with our resource definitions, and our types with Velero's.

use bowline_api::{Backup, BackupPhase, Restore, RestorePhase, crds};
use bowline_testbed::{Bed, ControlPlane, Options, S3, Velero, apply, velero};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::{eventually, run_for_output};

#[tokio::test]
async fn velero_backs_up_and_restores_with_bowlines_crds() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    for crd in crds::all() {
        apply::apply(&client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "precious"}}),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "treasure", "namespace": "precious"},
            "data": {"gold": "much"},
        }),
    ] {
        apply::apply(&client, object).await.unwrap();
    }
    let velero = Velero::start(&plane, &s3, velero::Options::default()).await.unwrap();

    let include = "--include-namespaces=precious";
    let mut create = velero.command();
    run_for_output(create.args(["backup", "create", "first", include, "--wait"])).await.unwrap();
    let backups: Api<Backup> = Api::namespaced(client.clone(), velero::NAMESPACE);
    let backup = backups.get("first").await.unwrap();
    let status = backup.status.clone().unwrap_or_default();
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    let progress = status.progress.expect("Velero counts its items");
    assert!(progress.items_backed_up >= 2, "{progress:?}");
    assert!(velero.bucket().join("backups/first/velero-backup.json").is_file());

    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete("precious", &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", async || {
        namespaces.get_opt("precious").await.ok()?.is_none().then_some(())
    })
    .await;
    let mut create = velero.command();
    run_for_output(create.args(["restore", "create", "back", "--from-backup=first", "--wait"]))
        .await
        .unwrap();
    let restores: Api<Restore> = Api::namespaced(client.clone(), velero::NAMESPACE);
    let status = restores.get("back").await.unwrap().status.unwrap_or_default();
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let maps: Api<ConfigMap> = Api::namespaced(client, "precious");
    assert_eq!(maps.get("treasure").await.unwrap().data.unwrap()["gold"], "much");
}

/// A field that a newer Velero has added, at three depths. Our definitions keep unknown fields, and
/// the newer Velero has installed its own definitions.
#[tokio::test]
async fn unknown_fields_survive_read_modify_write_with_both_crds() {
    let own_crds = crds::all().into_iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let text = Velero::crds().await.unwrap();
    let mut of_velero: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    // Velero prints a list of one document or several documents, depending on its version.
    if let [list] = of_velero.as_slice()
        && let Some(items) = list.get("items").and_then(Value::as_array)
    {
        of_velero = items.clone();
    }
    let newer = of_velero.into_iter().map(add_future_fields).collect();
    let (with_own_crds, under_newer) =
        tokio::join!(rewrite_with_crds(own_crds), rewrite_with_crds(newer));
    for written in [with_own_crds, under_newer] {
        for path in FUTURE_FIELDS {
            assert_eq!(written.pointer(path), Some(&json!("kept")), "{path} in {written:#}");
        }
        assert_eq!(written.pointer("/spec/storageLocation"), Some(&json!("changed")));
    }
}

const FUTURE_FIELDS: [&str; 3] = ["/spec/future", "/spec/hooks/future", "/status/future"];

fn future_backup() -> Value {
    let future = json!("kept");
    json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"future": future, "hooks": {"future": future}, "storageLocation": "first"},
        "status": {"future": future, "phase": "Completed"},
    })
}

/// Definition of Backup as a newer Velero might have it; the others are unchanged.
fn add_future_fields(mut crd: Value) -> Value {
    if crd.pointer("/spec/names/kind") == Some(&json!("Backup")) {
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
        for parent in ["spec", "spec/properties/hooks", "status"] {
            let properties = crd.pointer_mut(&format!("{schema}/{parent}/properties")).unwrap();
            properties["future"] = json!({"type": "string"});
        }
    }
    crd
}

/// Installs the definitions, writes a Backup as a newer Velero would, and reads, changes and writes
/// it with our type. Returns the stored object.
async fn rewrite_with_crds(definitions: Vec<Value>) -> Value {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let client: Client = plane.client().await.unwrap();
    for crd in definitions {
        apply::apply(&client, crd).await.unwrap();
    }
    apply::apply(&client, future_backup()).await.unwrap();

    let backups: Api<Backup> = Api::namespaced(client.clone(), "default");
    let mut backup = backups.get("one").await.unwrap();
    backup.spec.storage_location = String::from("changed");
    backups.replace(&backup.name_any(), &PostParams::default(), &backup).await.unwrap();

    let kind = kube::core::ApiResource::erase::<Backup>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(client, "default", &kind);
    serde_json::to_value(raw.get("one").await.unwrap()).unwrap()
}
