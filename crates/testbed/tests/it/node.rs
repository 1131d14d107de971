use bowline_testbed::{Bed, ControlPlane, Node, Options, apply, node};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::json;

use crate::{eventually, run_for_output};

#[tokio::test]
async fn containers_run_with_volumes_and_commands_return_their_exit_code() {
    if !node::require_for_test("containers_run_with_volumes_and_commands_return_their_exit_code") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let node = Node::start(&plane).await.unwrap();
    let client = plane.client().await.unwrap();
    let volume = node.volume("data").unwrap();
    for object in storage(&volume) {
        apply::apply(&client, object).await.unwrap();
    }
    apply::apply(&client, pod_with_volumes()).await.unwrap();
    until_running(&client, "app").await;

    // The claim was bound by the scheduler, and the init container wrote to the volume.
    let first = eventually("the volume is written", async || {
        std::fs::read_to_string(volume.join("first")).ok()
    });
    assert_eq!(first.await.trim(), "init was here");

    let exec = async |script: &str| {
        let mut kubectl = plane.kubectl().await.unwrap();
        run_for_output(kubectl.args(["exec", "app", "-c", "main", "--", "sh", "-c", script])).await
    };
    assert_eq!(exec("cat /data/first").await.unwrap(), "init was here");
    let refused = exec("echo not today >&2; exit 42").await.unwrap_err();
    assert!(refused.contains("exit code 42") && refused.contains("not today"), "{refused}");
    let mut kubectl = plane.kubectl().await.unwrap();
    assert_eq!(
        run_for_output(kubectl.args(["logs", "app", "-c", "main"])).await.unwrap(),
        "main runs"
    );
}

#[tokio::test]
async fn two_nodes_on_one_machine_are_isolated() {
    if !node::require_for_test("two_nodes_on_one_machine_do_not_meet") {
        return;
    }
    let start = || async {
        let bed = Bed::isolated().unwrap();
        let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
        let node = Node::start(&plane).await.unwrap();
        run_pod(&plane.client().await.unwrap(), "alone").await;
        (plane, node)
    };
    let (one, other) = tokio::join!(start(), start());
    drop(one);
    // The cleanup there did not affect the processes here.
    let mut kubectl = other.0.kubectl().await.unwrap();
    let exec_output =
        run_for_output(kubectl.args(["exec", "alone", "--", "echo", "still here"])).await;
    assert_eq!(exec_output.unwrap(), "still here");
}

/// Creates a pod that does nothing, and waits until it does.
pub(crate) async fn run_pod(client: &Client, name: &str) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [
            {"name": "main", "image": node::IMAGE, "imagePullPolicy": "Never"},
        ]},
    });
    apply::apply(client, pod).await.unwrap();
    until_running(client, name).await;
}

async fn until_running(client: &Client, name: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    eventually(&format!("pod {name} runs"), async || {
        let status = pods.get(name).await.ok()?.status?;
        status.container_statuses?.iter().all(|container| container.ready).then_some(())
    })
    .await;
}

fn storage(folder: &std::path::Path) -> [serde_json::Value; 3] {
    let on_node = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node::NAME]},
    ]}]});
    [
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "data"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "local": {"path": folder},
                "nodeAffinity": {"required": on_node},
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }),
    ]
}

fn pod_with_volumes() -> serde_json::Value {
    let container = |name: &str, script: &str| {
        json!({
            "name": name,
            "image": node::IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "app", "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [container("init", "echo init was here > /data/first")],
            "containers": [container("main", "echo main runs; exec sleep 600")],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    })
}
