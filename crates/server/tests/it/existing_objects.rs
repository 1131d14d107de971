//! Existing objects in a restore: fields that the API server sets are no difference, and changes of users are.

use bowline_engine::restore::difference::differs;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind, TypeMeta};
use kube::discovery::pinned_kind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::bed::World;

/// A manifest with only the required fields of its kind, a change of one of them, and an additional field.
struct Sparse {
    kind: (&'static str, &'static str),
    fields: Value,
    change: Value,
    addition: Value,
}

fn pod_template() -> Value {
    json!({
        "metadata": {"labels": {"app": "a"}},
        // The API server sets the restart policy before a backup reads a pod.
        "spec": {
            "restartPolicy": "Always",
            "containers": [{"name": "c", "image": "registry.example/c:1", "ports": [{"containerPort": 80}]}],
        },
    })
}

fn sparse_objects() -> Vec<Sparse> {
    let selector = json!({"matchLabels": {"app": "a"}});
    let sparse = |kind, fields, change, addition| Sparse { kind, fields, change, addition };
    let job = json!({"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.example/c:1"}],
    }}});
    vec![
        sparse(
            ("v1", "ConfigMap"),
            json!({"data": {"a": "1"}}),
            json!({"data": {"a": "2"}}),
            json!({"data": {"b": "1"}}),
        ),
        sparse(
            ("v1", "Service"),
            json!({"spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}}),
            json!({"spec": {"selector": {"app": "b"}}}),
            json!({"spec": {"sessionAffinity": "ClientIP"}}),
        ),
        sparse(
            ("v1", "PersistentVolumeClaim"),
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}},
            }}),
            json!({"metadata": {"labels": {"app": "b"}}}),
            json!({"metadata": {"annotations": {"note": "mine"}}}),
        ),
        sparse(
            ("v1", "Pod"),
            json!({"spec": pod_template()["spec"]}),
            json!({"metadata": {"labels": {"app": "b"}}}),
            json!({"metadata": {"annotations": {"note": "mine"}}}),
        ),
        sparse(
            ("apps/v1", "Deployment"),
            json!({"spec": {"replicas": 2, "selector": selector, "template": pod_template()}}),
            json!({"spec": {"replicas": 3}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}),
        ),
        sparse(
            ("apps/v1", "StatefulSet"),
            json!({"spec": {
                "replicas": 2, "serviceName": "s", "selector": selector, "template": pod_template(),
            }}),
            json!({"spec": {"replicas": 3}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}),
        ),
        sparse(
            ("apps/v1", "DaemonSet"),
            json!({"spec": {"selector": selector, "template": pod_template()}}),
            json!({"spec": {"minReadySeconds": 5}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}),
        ),
        sparse(
            ("batch/v1", "CronJob"),
            json!({"spec": {"schedule": "0 1 * * *", "jobTemplate": {"spec": job}}}),
            json!({"spec": {"schedule": "0 2 * * *"}}),
            json!({"spec": {"suspend": true}}),
        ),
        sparse(
            ("networking.k8s.io/v1", "Ingress"),
            json!({"spec": {"rules": [{"host": "a.example", "http": {"paths": [{
                "path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "s", "port": {"number": 80}}},
            }]}}]}}),
            json!({"spec": {"rules": [{"host": "b.example"}]}}),
            json!({"spec": {"tls": [{"hosts": ["a.example"]}]}}),
        ),
        sparse(
            ("networking.k8s.io/v1", "NetworkPolicy"),
            json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}}),
            json!({"spec": {"ingress": [{"ports": [{"port": 81}]}]}}),
            json!({"spec": {"egress": [{}], "policyTypes": ["Ingress", "Egress"]}}),
        ),
        sparse(
            ("autoscaling/v2", "HorizontalPodAutoscaler"),
            json!({"spec": {
                "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"},
                "metrics": [{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80},
                }}],
            }}),
            json!({"spec": {"maxReplicas": 4}}),
            json!({"spec": {"minReplicas": 2}}),
        ),
        sparse(
            ("policy/v1", "PodDisruptionBudget"),
            json!({"spec": {"selector": selector, "minAvailable": 1}}),
            json!({"spec": {"minAvailable": 2}}),
            json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}),
        ),
        sparse(
            ("rbac.authorization.k8s.io/v1", "Role"),
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}),
            json!({"metadata": {"labels": {"team": "b"}}}),
        ),
    ]
}

async fn api_of(client: &Client, namespace: &str, kind: (&str, &str)) -> Api<DynamicObject> {
    let types = TypeMeta { api_version: kind.0.to_owned(), kind: kind.1.to_owned() };
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let (resource, _) = pinned_kind(client, &kind).await.unwrap();
    Api::namespaced_with(client.clone(), namespace, &resource)
}

#[tokio::test]
async fn only_changes_of_users_make_an_existing_object_different() {
    let world = World::without_server("existing-objects").await;
    for Sparse { kind, fields, change, addition } in sparse_objects() {
        let api = api_of(&world.client, &world.namespace, kind).await;
        for (name, change) in [("changed", change), ("extended", addition)] {
            let mut desired = fields.clone();
            desired["apiVersion"] = json!(kind.0);
            desired["kind"] = json!(kind.1);
            desired["metadata"] = json!({"name": name, "namespace": world.namespace});
            let created: DynamicObject = serde_json::from_value(desired.clone()).unwrap();
            let created = api.create(&PostParams::default(), &created).await.unwrap();
            let filled_in = serde_json::to_value(&created).unwrap();
            assert_eq!(differs(&desired, &filled_in), None, "{kind:?} as created");
            let patch = Patch::Merge(change);
            api.patch(&created.name_any(), &PatchParams::default(), &patch).await.unwrap();
            let found = serde_json::to_value(api.get(name).await.unwrap()).unwrap();
            assert!(differs(&desired, &found).is_some(), "{kind:?} {name}: {found}");
        }
    }
}
