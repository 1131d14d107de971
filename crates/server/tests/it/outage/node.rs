//! A node whose kubelet does not answer or does not run.

use std::sync::Arc;

use bowline_testbed::apply::apply;
use http::{Method, Uri};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The node.
pub(super) struct LostNode {
    client: Client,
    name: String,
}

impl LostNode {
    /// The API server connects to its kubelet, and hears nothing.
    pub(super) async fn silent(client: &Client, name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                connections.extend(listener.accept().await.ok());
            }
        });
        Self::add(client, name, port).await
    }

    /// The address of the kubelet has no listener.
    pub(super) async fn down(client: &Client, name: &str) -> Self {
        Self::add(client, name, 1).await
    }

    async fn add(client: &Client, name: &str, port: u16) -> Self {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"unschedulable": true},
        });
        apply(client, node).await.unwrap();
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        Self { client: client.clone(), name: name.to_owned() }
    }

    /// A pod on it, with annotations.
    pub(super) async fn add_pod(&self, namespace: &str, name: &str, annotations: &Value) -> Pod {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {"nodeName": self.name, "containers": [{"name": "main", "image": "none"}]},
        });
        apply(&self.client, pod).await.unwrap();
        self.pods(namespace).get(name).await.unwrap()
    }

    /// Removes a pod, as a user who knows that the node is lost.
    pub(super) async fn remove_pod(&self, namespace: &str, name: &str) {
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods(namespace).delete(name, &params).await.unwrap();
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The pods that a server has run commands in, or tried to.
#[derive(Clone, Default)]
pub(super) struct Execs(Arc<Mutex<Vec<String>>>);

impl Execs {
    /// Notes commands; no request fails.
    pub(super) fn watch(&self) -> impl Fn(&Method, &Uri) -> bool + Send + Sync + 'static {
        let Self(asked) = self.clone();
        move |_, uri| {
            if let Some(pod) = uri.path().strip_suffix("/exec") {
                asked.lock().push(pod.rsplit('/').next().unwrap_or_default().to_owned());
            }
            false
        }
    }

    pub(super) fn has(&self, pod: &str) -> bool {
        self.0.lock().iter().any(|asked| asked == pod)
    }
}
