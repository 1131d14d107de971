use bowline_testbed::{Bed, ControlPlane, Kwok, Options, apply};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::eventually;

#[tokio::test]
async fn a_deployment_of_a_hundred_pods_runs() {
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
