//! The plugin under Velero, which knows only version 1.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bowline_testbed::{Bed, ControlPlane, Options, S3, Velero, apply, eventually, velero};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::listing::{self, assert_same, names};
use crate::process::BINARY;
use crate::sample;
use crate::test_env::TestEnv;

const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn velero_backs_a_volume_up_and_restores_it() {
    let env = TestEnv::new().await;
    sample::fill_volume(&env.volume());
    let before = listing::of(&env.volume());
    let bed = Bed::new().unwrap();
    let cluster = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = cluster.client().await.unwrap();
    for crd in bowline_api::crds::all() {
        apply::apply(&client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    let options = velero::Options { plugins: vec![BINARY.into()], ..velero::Options::default() };
    let velero = Velero::start(&cluster, &s3, options).await.unwrap();
    for object in objects(&env) {
        apply::apply(&client, object).await.unwrap();
    }
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    eventually("the volume is bound", WAIT_TIMEOUT, async || is_bound(&volumes).await).await;

    let run = async |arguments: &[&str]| {
        let output = velero.command().args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let output = run(&[
        "backup",
        "create",
        "one",
        "--include-namespaces=app",
        "--snapshot-volumes",
        "--volume-snapshot-locations=local",
        "--wait",
    ])
    .await;
    assert!(output.contains("with status: Completed"), "{output}");
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);

    remove(&client).await;
    fs::remove_dir_all(env.volume()).unwrap();
    let output = run(&["restore", "create", "two", "--from-backup=one", "--wait"]).await;
    assert!(output.contains("with status: Completed"), "{output}");
    let restored = volumes.get("volume").await.unwrap().spec.unwrap();
    let path = PathBuf::from(restored.host_path.unwrap().path);
    assert!(path.starts_with(env.path("root")), "{path:?}");
    assert_ne!(path, env.volume());
    assert_same(&listing::of(&path), &before);
}

fn objects(env: &TestEnv) -> [Value; 4] {
    let volume = json!({
        "hostPath": {"path": env.volume()},
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
    });
    let claim = json!({
        "volumeName": "volume",
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    });
    [
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "VolumeSnapshotLocation",
            "metadata": {"name": "local", "namespace": velero::NAMESPACE},
            "spec": {"provider": bowline_plugin_local_volume::NAME, "config": env.config},
        }),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "app"}}),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "volume"},
            "spec": volume,
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "claim", "namespace": "app"},
            "spec": claim,
        }),
    ]
}

async fn is_bound(volumes: &Api<PersistentVolume>) -> bool {
    let found = volumes.get("volume").await.unwrap();
    found.status.and_then(|status| status.phase).as_deref() == Some("Bound")
}

/// Removes the claim, its volume and the namespace, as after a disaster.
async fn remove(client: &Client) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "app");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let now = DeleteParams::default();
    claims.delete("claim", &now).await.unwrap();
    volumes.delete("volume", &now).await.unwrap();
    namespaces.delete("app", &now).await.unwrap();
    // The controllers that would let it go may not all run here.
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    eventually("the volume is gone", WAIT_TIMEOUT, async || {
        let _ = volumes.patch("volume", &PatchParams::default(), &free).await;
        volumes.get_opt("volume").await.unwrap().is_none()
    })
    .await;
    eventually("the namespace is gone", WAIT_TIMEOUT, async || {
        namespaces.get_opt("app").await.unwrap().is_none()
    })
    .await;
}
