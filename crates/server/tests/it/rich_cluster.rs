//! A cluster with objects of many kinds.

use bowline_testbed::apply::apply;
use kube::Client;
use serde_json::{Value, json};

/// The namespaces that [`objects`] live in.
pub(crate) const NAMESPACES: [&str; 4] = ["shop", "shop-data", "empty", "crowd"];

/// Number of objects in the crowded namespace.
const CROWD: usize = 700;

/// Creates everything.
pub(crate) async fn create(client: &Client) {
    for object in objects() {
        apply(client, object).await.unwrap();
    }
}

/// The objects, in an order in which they can be created.
pub(crate) fn objects() -> Vec<Value> {
    let mut objects = crds();
    objects.extend(NAMESPACES.map(|name| {
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"team": "a"}, "annotations": {"note": "é\n\"x\""}},
        })
    }));
    objects.extend(core_objects());
    objects.extend(access());
    objects.extend(workloads());
    objects.extend(volumes());
    objects.extend(custom_resources());
    objects.extend((0..CROWD).map(|n| config_map("crowd", &format!("m-{n}"), &n.to_string())));
    objects
}

fn config_map(namespace: &str, name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"text": text},
    })
}

fn crd(plural: &str, kind: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.shop.example.io")},
        "spec": {
            "group": "shop.example.io",
            "scope": scope,
            "names": {"plural": plural, "singular": plural.trim_end_matches('s'), "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                },
                {
                    "name": "v1beta1",
                    "served": true,
                    "storage": false,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                },
            ],
        },
    })
}

fn crds() -> Vec<Value> {
    vec![
        crd("discounts", "Discount", "Namespaced"),
        crd("regions", "Region", "Cluster"),
        crd("ghosts", "Ghost", "Namespaced"),
    ]
}

fn custom_resources() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "shop.example.io/v1",
            "kind": "Discount",
            "metadata": {"name": "summer.2026", "namespace": "shop"},
            "spec": {"percent": 12.5, "big": 9_007_199_254_740_993_i64, "nested": {"a": [{"b": null}, [], {}]}},
        }),
        json!({
            "apiVersion": "shop.example.io/v1",
            "kind": "Region",
            "metadata": {"name": "eu-1"},
            "spec": {"html": "<b>&amp;</b>", "unicode": "日本語 🚀 \u{2028}"},
        }),
    ]
}

fn core_objects() -> Vec<Value> {
    let long = "x".repeat(900 << 10);
    vec![
        config_map("shop", "large", &long),
        config_map("shop", "with.dots.and-dashes", "日本語 \u{1F680} \\ \" \t"),
        // Velero unpacks archives into files, whose names may have 255 characters with their ending.
        config_map("shop", &"n".repeat(250), "a long name"),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "binary", "namespace": "shop", "labels": {"app": "web"}},
            "binaryData": {"bytes": "AAECAwQ="},
            "immutable": true,
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "password", "namespace": "shop-data"},
            "type": "Opaque",
            "stringData": {"password": "hunter2"},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "limits", "namespace": "shop"},
            "spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}}]},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quota", "namespace": "shop"},
            "spec": {"hard": {"pods": "100"}},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "db", "namespace": "shop-data"},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]},
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"rules": [{"host": "shop.example.io", "http": {"paths": [{
                "path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "web", "port": {"number": 80}}},
            }]}}]},
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "closed", "namespace": "shop-data"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        }),
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "web"}}},
        }),
        json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "important"},
            "value": 1000,
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "by-hand"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }),
    ]
}

fn access() -> Vec<Value> {
    let subject = json!({"kind": "ServiceAccount", "name": "web", "namespace": "shop"});
    let group = "rbac.authorization.k8s.io";
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "web", "namespace": "shop"},
            "imagePullSecrets": [{"name": "registry"}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "Role",
            "metadata": {"name": "reader", "namespace": "shop"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "RoleBinding",
            "metadata": {"name": "web:reads", "namespace": "shop"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [subject],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "shop:nodes"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "shop:web:nodes"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "shop:nodes"},
            "subjects": [subject],
        }),
    ]
}

fn workloads() -> Vec<Value> {
    let pod = |app: &str| {
        json!({
            "metadata": {"labels": {"app": app}},
            "spec": {
                "priorityClassName": "important",
                "containers": [{"name": "main", "image": "example.io/none:1"}],
            },
        })
    };
    let labels = |app: &str| json!({"matchLabels": {"app": app}});
    vec![
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"replicas": 2, "selector": labels("web"), "template": pod("web")},
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "shop"},
            "spec": {"selector": labels("agent"), "template": pod("agent")},
        }),
        json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "report", "namespace": "shop"},
            "spec": {"schedule": "0 3 * * *", "suspend": true, "jobTemplate": {"spec": {"template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "example.io/none:1"}],
                },
            }}}},
        }),
        json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 5,
            },
        }),
    ]
}

fn volumes() -> Vec<Value> {
    vec![json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "later", "namespace": "shop-data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })]
}
