//! Kinds that the simulated API server serves, and their discovery.

use serde_json::{Value, json};

/// Kind of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) name: String,
    pub(crate) plural: String,
    pub(crate) is_namespaced: bool,
}

/// Group, kind and plural of the built-in kinds in version v1, and true if they are namespaced.
const BUILT_IN: [(&str, &str, &str, bool); 14] = [
    ("", "Namespace", "namespaces", false),
    ("", "Pod", "pods", true),
    ("", "ConfigMap", "configmaps", true),
    ("", "Secret", "secrets", true),
    ("", "ServiceAccount", "serviceaccounts", true),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("", "PersistentVolume", "persistentvolumes", false),
    ("", "Service", "services", true),
    ("apps", "Deployment", "deployments", true),
    ("storage.k8s.io", "StorageClass", "storageclasses", false),
    ("coordination.k8s.io", "Lease", "leases", true),
    ("events.k8s.io", "Event", "events", true),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", false),
];

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// All kinds: the built-in ones, and those of the definitions of Velero and Bowline.
pub(crate) fn all() -> Vec<Kind> {
    let built_in = BUILT_IN.iter().map(|&(group, kind, plural, is_namespaced)| Kind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        name: kind.to_owned(),
        plural: plural.to_owned(),
        is_namespaced,
    });
    let defined = bowline_api::crds::all().into_iter().map(|definition| Kind {
        group: definition.spec.group,
        version: definition.spec.versions.first().map(|one| one.name.clone()).unwrap_or_default(),
        name: definition.spec.names.kind,
        plural: definition.spec.names.plural,
        is_namespaced: definition.spec.scope == "Namespaced",
    });
    built_in.chain(defined).collect()
}

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// Aggregated discovery of the core group, or of the others.
pub(crate) fn discovery(kinds: &[Kind], is_core: bool) -> Value {
    let mut groups: Vec<(&str, &str, Vec<Value>)> = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.group.is_empty() == is_core) {
        let resource = json!({
            "resource": kind.plural,
            "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.name},
            "scope": if kind.is_namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": kind.name.to_lowercase(),
            "verbs": VERBS,
        });
        let same =
            |one: &&mut (&str, &str, Vec<Value>)| one.0 == kind.group && one.1 == kind.version;
        match groups.iter_mut().find(same) {
            Some(group) => group.2.push(resource),
            None => groups.push((&kind.group, &kind.version, vec![resource])),
        }
    }
    let items: Vec<Value> = groups
        .into_iter()
        .map(|(group, version, resources)| {
            json!({
                "metadata": {"name": group},
                "versions": [{
                    "version": version, "freshness": "Current", "resources": resources,
                }],
            })
        })
        .collect();
    json!({
        "apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList",
        "metadata": {}, "items": items,
    })
}
