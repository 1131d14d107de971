//! Objects like those of a cluster in use: kinds, numbers and sizes.
//!
//! Every object follows from the seed and its index alone. None of them causes repeated work of the controllers:
//! nothing is scheduled, started or provisioned, and nothing adopts anything.

use serde_json::{Value, json};

use super::content::{Kind, content};
use super::prng::Prng;

/// One namespace and the objects in it.
pub(crate) const PER_NAMESPACE: usize = 200;

/// API group of the two custom resources.
pub(crate) const GROUP: &str = "bench.bowline.io";

/// Number and size of the objects that a server must not hold in memory all at once.
const BIG_SECRETS: usize = 500;
const BIG_SECRET_BYTES: usize = 900 * 1024;

/// Objects that fill a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// This many objects of many kinds.
    Mix {
        /// Number of objects.
        objects: usize,
        /// Seed of all randomness.
        seed: u64,
    },
    /// A few hundred Secrets of almost the largest possible size.
    BigSecrets {
        /// Seed of all randomness.
        seed: u64,
    },
}

/// Object and the request that creates it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    /// Path to which it is posted.
    pub(crate) collection: String,
    /// Field manager.
    pub(crate) manager: &'static str,
    pub(crate) body: Value,
}

/// Number of objects of each kind in a full namespace.
const SHARES: [(Kind, usize); 16] = [
    (Kind::ConfigMap, 36),
    (Kind::Secret, 36),
    (Kind::Pod, 24),
    (Kind::ReplicaSet, 16),
    (Kind::Service, 16),
    (Kind::Deployment, 14),
    (Kind::ServiceAccount, 14),
    (Kind::RoleBinding, 8),
    (Kind::PersistentVolumeClaim, 6),
    (Kind::Role, 6),
    (Kind::Ingress, 5),
    (Kind::Job, 5),
    (Kind::Endpoints, 4),
    (Kind::NetworkPolicy, 4),
    (Kind::Certificate, 3),
    (Kind::Database, 2),
];

const APPS: [&str; 12] = [
    "api", "auth", "billing", "cart", "catalog", "checkout", "gateway", "mailer", "search",
    "shipping", "web", "worker",
];

const MANAGERS: [&str; 4] = ["argocd-controller", "helm", "kubectl-client-side-apply", "terraform"];

impl Load {
    /// Number of objects, namespaces included.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Mix { objects, .. } => objects,
            Self::BigSecrets { .. } => BIG_SECRETS + 1,
        }
    }

    /// Namespaces, which must exist before everything else.
    pub(crate) fn namespaces(self) -> impl Iterator<Item = Object> {
        self.namespaces_after(0)
    }

    /// Namespaces beyond those of a smaller load of so many objects.
    pub(crate) fn namespaces_after(self, smaller: usize) -> impl Iterator<Item = Object> {
        let count = match self {
            Self::Mix { objects, .. } => objects.div_ceil(PER_NAMESPACE),
            Self::BigSecrets { .. } => 1,
        };
        (smaller.div_ceil(PER_NAMESPACE)..count).map(namespace)
    }

    /// Everything in the namespaces.
    pub(crate) fn contents(self) -> Box<dyn Iterator<Item = Object> + Send> {
        self.contents_after(0)
    }

    /// Everything in the namespaces beyond the objects of a smaller load of so many objects.
    pub(crate) fn contents_after(self, smaller: usize) -> Box<dyn Iterator<Item = Object> + Send> {
        match self {
            Self::Mix { objects, seed } => {
                let is_namespace = |index: &usize| index.is_multiple_of(PER_NAMESPACE);
                let indices = (smaller..objects).filter(move |index| !is_namespace(index));
                Box::new(indices.map(move |index| object(seed, index)))
            }
            Self::BigSecrets { seed } => {
                Box::new((0..BIG_SECRETS).map(move |index| big_secret(seed, index)))
            }
        }
    }
}

/// Definitions of the custom resources in the mix.
pub(crate) fn definitions() -> [Value; 2] {
    [("Certificate", "certificates"), ("Database", "databases")].map(|(kind, plural)| {
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": anything, "status": anything},
                    }},
                }],
            },
        })
    })
}

fn namespace_name(number: usize) -> String {
    format!("bench-{number:05}")
}

fn namespace(number: usize) -> Object {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": namespace_name(number),
            "labels": {
                "team": format!("team-{:02}", number % 20),
                "pod-security.kubernetes.io/warn": "privileged",
            },
            "annotations": {"example.com/cost-center": format!("cc-{}", 1000 + number)},
        },
    });
    Object { collection: "/api/v1/namespaces".to_owned(), manager: "terraform", body }
}

fn big_secret(seed: u64, index: usize) -> Object {
    let namespace = namespace_name(0);
    let characters = BIG_SECRET_BYTES / 3 * 4;
    let body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("big-{index:03}"), "namespace": namespace},
        "type": "Opaque",
        "data": {"blob": Prng::new(seed, index).base64(characters)},
    });
    let collection = format!("/api/v1/namespaces/{namespace}/secrets");
    Object { collection, manager: "helm", body }
}

/// Kind in a slot of a namespace. A stride that shares no factor with the number of slots mixes the kinds, so that a
/// namespace that is not full has some of each.
fn kind_in(slot: usize) -> Kind {
    let mut position = (slot * 97) % (PER_NAMESPACE - 1);
    for (kind, share) in SHARES {
        if position < share {
            return kind;
        }
        position -= share;
    }
    // Not reached while the shares fill a namespace, which a test ensures.
    Kind::ConfigMap
}

/// Object with this index, which is not that of a namespace.
fn object(seed: u64, index: usize) -> Object {
    let mut dice = Prng::new(seed, index);
    let (number, slot) = (index / PER_NAMESPACE, index % PER_NAMESPACE);
    let (namespace, kind) = (namespace_name(number), kind_in(slot - 1));
    let app = dice.pick(&APPS);
    let name = format!("{app}-{slot:03}-{}", dice.suffix());
    let manager = dice.pick(&MANAGERS);

    let (api, plural, mut body) = content(kind, &namespace, app, &name, &mut dice);
    body["apiVersion"] = json!(api);
    body["kind"] = json!(format!("{kind:?}"));
    body["metadata"] = metadata(&namespace, app, &name, manager, &mut dice);
    if manager == "kubectl-client-side-apply" {
        // Annotation that `kubectl apply` leaves, except where it would be unusually long.
        let applied = body.to_string();
        if applied.len() < 8 * 1024 {
            body["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
                json!(applied);
        }
    }
    let root = if api.contains('/') { "apis" } else { "api" };
    Object { collection: format!("/{root}/{api}/namespaces/{namespace}/{plural}"), manager, body }
}

fn metadata(namespace: &str, app: &str, name: &str, manager: &str, dice: &mut Prng) -> Value {
    let mut annotations = json!({
        "example.com/owner": format!("{app}-team@example.com"),
        "example.com/revision": dice.base64(40),
    });
    match manager {
        "helm" => {
            annotations["meta.helm.sh/release-name"] = json!(app);
            annotations["meta.helm.sh/release-namespace"] = json!(namespace);
        }
        "argocd-controller" => {
            annotations["argocd.argoproj.io/tracking-id"] =
                json!(format!("{app}:{namespace}/{name}"));
        }
        _ => {}
    }
    json!({
        "name": name,
        "namespace": namespace,
        "labels": {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/instance": name,
            "app.kubernetes.io/component": dice.pick(&["backend", "cache", "frontend", "job"]),
            "app.kubernetes.io/part-of": "shop",
            "app.kubernetes.io/managed-by": manager,
            "helm.sh/chart": format!("{app}-{}.{}.0", dice.below(9), dice.below(40)),
        },
        "annotations": annotations,
    })
}

#[cfg(test)]
mod tests;
