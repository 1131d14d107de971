use bowline_testbed::kwok::{ExecutingPod, NODE};
use bowline_testbed::{Bed, ControlPlane, Kwok, Options, apply};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::eventually;

#[tokio::test]
async fn deployment_of_a_hundred_pods_runs() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let _kwok = Kwok::start(&plane).await.unwrap();
    let client = plane.client().await.unwrap();
    let labels = json!({"app": "crowd"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "crowd", "namespace": "default"},
        "spec": {
            "replicas": 100,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "example.com/none:1"}]},
            },
        },
    });
    apply::apply(&client, deployment).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "default");
    eventually("a hundred pods run", async || {
        let list = pods.list(&ListParams::default().labels("app=crowd")).await.ok()?;
        let runs = |pod: &&Pod| pod.status.as_ref()?.phase.as_deref().map(|p| p == "Running");
        (list.iter().filter(|pod| runs(pod) == Some(true)).count() == 100).then_some(())
    })
    .await;
}

#[tokio::test]
async fn commands_of_the_named_pod_are_executed_and_the_node_stays_ready() {
    let bed = Bed::new().unwrap();
    let folder = bed.subdir("work").unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let executing = ExecutingPod::new("default", "worker", &folder).unwrap();
    let _kwok = Kwok::start_executing(&plane, &executing).await.unwrap();
    let client = plane.client().await.unwrap();
    let main = json!({"name": executing.container(), "image": "example.com/none:1"});
    let other = json!({"name": "other", "image": "example.com/none:1"});
    for name in ["worker", "idle"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [main, other]},
        });
        apply::apply(&client, pod).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    eventually("both pods run", async || {
        let list = pods.list(&ListParams::default()).await.ok()?;
        let runs = |pod: &&Pod| pod.status.as_ref()?.phase.as_deref().map(|p| p == "Running");
        (list.iter().filter(|pod| runs(pod) == Some(true)).count() == 2).then_some(())
    })
    .await;
    let exec = async |pod: &str, container: &str, script: &str| {
        let mut kubectl = plane.kubectl().await.unwrap();
        kubectl.args(["exec", pod, "-c", container, "--", "/bin/sh", "-c", script]);
        let output = kubectl.output().await.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let name = executing.container();
    assert_eq!(exec("worker", name, "echo here; touch mark").await, (true, "here\n".to_owned()));
    assert!(folder.join("mark").exists());
    assert!(!exec("worker", name, "exit 3").await.0);
    for (pod, container) in [("worker", "other"), ("idle", name)] {
        assert!(!exec(pod, container, "touch wrong").await.0, "{pod} {container}");
    }
    assert!(!folder.join("wrong").exists());

    // By it the node is known to live.
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let renewed = async || Some(leases.get_opt(NODE).await.ok()??.spec?.renew_time?.0);
    let first = eventually("the node has a lease", renewed).await;
    eventually("it is renewed", async || (renewed().await? > first).then_some(())).await;
}
