//! Objects of a cluster.

use serde_json::{Value, json};

pub(crate) fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name},
        "status": {"phase": "Active"},
    })
}

pub(crate) fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

pub(crate) fn config_map(namespace: &str, name: &str) -> Value {
    object("v1", "ConfigMap", namespace, name)
}

pub(crate) fn pod(namespace: &str, name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let mut pod = object("v1", "Pod", namespace, name);
    pod["spec"] = json!({"containers": [{"name": "main"}], "volumes": volumes});
    pod["status"] = json!({"phase": "Running"});
    pod
}

pub(crate) fn claim(namespace: &str, name: &str, volume: &str) -> Value {
    let mut claim = object("v1", "PersistentVolumeClaim", namespace, name);
    claim["spec"] = json!({"volumeName": volume});
    claim["status"] = json!({"phase": "Bound"});
    claim
}

pub(crate) fn with_hooks(mut pod: Value, pre: &str, post: &str) -> Value {
    pod["metadata"]["annotations"] = json!({
        "pre.hook.backup.velero.io/command": pre,
        "post.hook.backup.velero.io/command": post,
    });
    pod
}
