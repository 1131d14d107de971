//! Contents of an archive, as requests that create them.
//!
//! Enough of a restore to measure its lowest possible duration: fields that belong to the former cluster are removed,
//! and nothing is looked up, chosen or compared.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use flate2::read::MultiGzDecoder;
use serde_json::Value;

/// Resources that no restore brings back.
const NEVER_RESTORED: [&str; 5] = [
    "nodes",
    "events",
    "events.events.k8s.io",
    "csinodes.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
];

/// Metadata that belongs to the object and not to its cluster.
const KEPT_METADATA_FIELDS: [&str; 5] =
    ["name", "namespace", "labels", "annotations", "finalizers"];

/// Labels that tie the selector and the pods of a Job to its former UID.
const CONTROLLER_UID: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Largest object that is read.
const MAX_OBJECT_BYTES: u64 = 16 << 20;

/// Request that creates an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateRequest {
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

/// All requests of an archive, in the order in which they must be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CreateRequests {
    pub(crate) definitions: Vec<CreateRequest>,
    pub(crate) namespaces: Vec<CreateRequest>,
    pub(crate) others: Vec<CreateRequest>,
}

pub(crate) fn read(tarball: &Path) -> anyhow::Result<CreateRequests> {
    let file = File::open(tarball).context("cannot open the archive")?;
    let mut tar = tar::Archive::new(MultiGzDecoder::new(std::io::BufReader::new(file)));
    let mut posts = CreateRequests::default();
    for entry in tar.entries().context("cannot read the archive")? {
        let entry = entry.context("cannot read the archive")?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let Some((resource, namespace)) = item_location(&path) else { continue };
        let mut json = Vec::new();
        entry.take(MAX_OBJECT_BYTES).read_to_end(&mut json).context("cannot read the archive")?;
        let object = serde_json::from_slice(&json).with_context(|| format!("in {path}"))?;
        let post =
            create_request(resource, namespace, object).with_context(|| format!("in {path}"))?;
        match resource {
            "customresourcedefinitions.apiextensions.k8s.io" => posts.definitions.push(post),
            "namespaces" => posts.namespaces.push(post),
            _ => posts.others.push(post),
        }
    }
    Ok(posts)
}

/// Resource and namespace of a restorable item, from its path. An item in a folder for its version is in the archive a
/// second time without it.
fn item_location(path: &str) -> Option<(&str, Option<&str>)> {
    let parts: Vec<&str> = path.split('/').collect();
    let (resource, namespace) = match parts[..] {
        ["resources", resource, "cluster", _] => (resource, None),
        ["resources", resource, "namespaces", namespace, _] => (resource, Some(namespace)),
        _ => return None,
    };
    (!NEVER_RESTORED.contains(&resource)).then_some((resource, namespace))
}

fn create_request(
    resource: &str,
    namespace: Option<&str>,
    mut object: Value,
) -> anyhow::Result<CreateRequest> {
    let api = object["apiVersion"].as_str().context("an object has no apiVersion")?;
    let root = if api.contains('/') { "apis" } else { "api" };
    let plural = resource.split('.').next().unwrap_or_default();
    let namespace = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
    let path = format!("/{root}/{api}/{namespace}{plural}?fieldManager=bench");
    strip_server_fields(resource, &mut object);
    Ok(CreateRequest { path, body: serde_json::to_vec(&object)? })
}

/// Removes fields that the API server would reject, or that a client does not send.
fn strip_server_fields(resource: &str, object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| KEPT_METADATA_FIELDS.contains(&field.as_str()));
    }
    match resource {
        "services" => {
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
                && spec.get("clusterIP").is_none_or(|address| address != "None")
            {
                spec.remove("clusterIP");
                spec.remove("clusterIPs");
            }
        }
        "jobs.batch" => {
            for labels in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
                if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
                    labels.retain(|label, _| !CONTROLLER_UID.contains(&label.as_str()));
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn item_is_read_once_and_only_if_restorable() {
        assert_eq!(item_location("resources/pods/namespaces/a/b.json"), Some(("pods", Some("a"))));
        assert_eq!(
            item_location("resources/namespaces/cluster/a.json"),
            Some(("namespaces", None))
        );
        for path in [
            "metadata/version",
            "resources/pods/v1-preferredversion/namespaces/a/b.json",
            "resources/namespaces/v1-preferredversion/cluster/a.json",
            "resources/events/namespaces/a/b.json",
            "resources/nodes/cluster/a.json",
        ] {
            assert_eq!(item_location(path), None, "{path}");
        }
    }

    #[test]
    fn object_is_posted_to_its_collection_without_server_fields() {
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "uid": "1", "managedFields": [], "labels": {"a": "b"}},
            "spec": {
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "1"}},
                "template": {"metadata": {"labels": {"controller-uid": "1", "x": "y"}}},
            },
            "status": {"active": 1},
        });
        let request = create_request("jobs.batch", Some("n"), job).unwrap();
        assert_eq!(request.path, "/apis/batch/v1/namespaces/n/jobs?fieldManager=bench");
        let expected = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "labels": {"a": "b"}},
            "spec": {
                "selector": {"matchLabels": {}},
                "template": {"metadata": {"labels": {"x": "y"}}},
            },
        });
        assert_eq!(serde_json::from_slice::<Value>(&request.body).unwrap(), expected);
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {}});
        let request = create_request("clusterroles.rbac.authorization.k8s.io", None, role).unwrap();
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles?fieldManager=bench";
        assert_eq!(request.path, path);
    }

    #[test]
    fn headless_service_stays_headless_and_others_get_a_new_address() {
        for (address, expected) in [
            (json!("None"), json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            (json!("10.96.0.7"), json!({})),
        ] {
            let mut service = json!({"spec": {"clusterIP": address, "clusterIPs": [address]}});
            strip_server_fields("services", &mut service);
            assert_eq!(service["spec"], expected);
        }
    }
}
