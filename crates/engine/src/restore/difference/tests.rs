use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(api_version: &str, kind: &str, rest: &Value) -> Value {
    let mut object = rest.clone();
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object["metadata"]["name"] = "x".into();
    object
}

/// Compares two objects of a kind with these contents. Empty if they are equal.
fn found(api_version: &str, kind: &str, desired: &Value, cluster: &Value) -> Vec<String> {
    let desired = object(api_version, kind, desired);
    let cluster = object(api_version, kind, cluster);
    let found = differs(&desired, &cluster).unwrap_or_default();

    // Invariants for any two objects.
    let patch = merge_patch(&cluster, &desired);
    let mut patched = cluster.clone();
    json_patch::merge(&mut patched, &patch);
    assert_eq!(differs(&desired, &patched), None, "{patch}");
    assert_eq!(found.is_empty(), patch == json!({}), "{found:?} {patch}");
    found
}

const SAME: &[&str] = &[];

fn usual_toleration() -> Value {
    json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "operator": "Exists",
        "tolerationSeconds": 300})
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn server_written_fields_are_no_difference() {
    for (api_version, kind, desired, cluster) in [
        ("v1", "ConfigMap", json!({"data": {"a": "1"}}), json!({"data": {"a": "1"}})),
        (
            "v1",
            "ConfigMap",
            json!({}),
            json!({"metadata": {"uid": "1", "resourceVersion": "2", "generation": 3,
                "creationTimestamp": "t", "managedFields": [{}], "ownerReferences": [{"uid": "2"}],
                "finalizers": ["f"], "selfLink": "/x"}, "status": {"phase": "Active"}}),
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"ports": [{"port": 80}], "selector": {"app": "web"}}}),
            json!({"spec": {
                "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None", "type": "ClusterIP", "selector": {"app": "web"},
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30080}],
            }, "status": {"loadBalancer": {}}}),
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}}}),
            json!({"spec": {
                "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": {"metadata": {"creationTimestamp": null}, "spec": {
                    "containers": [{"name": "a", "image": "i", "imagePullPolicy": "Always",
                        "resources": {}, "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File"}],
                    "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
                    "securityContext": {}, "terminationGracePeriodSeconds": 30}},
            }}),
        ),
        (
            "v1",
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "volumeMounts": []}],
                "volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {
                "containers": [{"name": "a", "volumeMounts": [{"name": "kube-api-access-x",
                    "mountPath": "/t"}]}],
                "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420}},
                    {"name": "v", "emptyDir": {}}],
                "nodeName": "n", "serviceAccountName": "default", "serviceAccount": "default",
                    "priority": 0,
                "tolerations": [usual_toleration()],
            }}),
        ),
        (
            "v1",
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv",
                    "volumeMode": "Filesystem",
                    "storageClassName": "fast"}}),
        ),
        (
            "v1",
            "PersistentVolume",
            json!({"spec": {"claimRef": {"name": "c", "namespace": "n"}}}),
            json!({"spec": {"claimRef": {"name": "c", "namespace": "n", "uid": "1",
                "resourceVersion": "2",
                "apiVersion": "v1", "kind": "PersistentVolumeClaim"}, "volumeMode": "Filesystem"}}),
        ),
        (
            "batch/v1",
            "Job",
            json!({"spec": {"template": {"metadata": {}}}}),
            json!({"spec": {"completions": 1, "parallelism": 1, "suspend": false,
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "1"}},
                "template": {"metadata": {"labels": {"controller-uid": "1", "job-name": "x"}}}}}),
        ),
        (
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            json!({"webhooks": [{"name": "a", "clientConfig": {"service": {"name": "s"}}}]}),
            json!({"webhooks": [{"name": "a", "clientConfig": {"caBundle": "x",
                "service": {"name": "s", "port": 443}},
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {},
                "objectSelector": {}, "timeoutSeconds": 10}]}),
        ),
        (
            "v1",
            "LimitRange",
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}),
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"},
                "default": {"cpu": "1"},
                "defaultRequest": {"cpu": "1"}}]}}),
        ),
        // The order of sets, the spelling of numbers, and fields that neither side sets.
        (
            "rbac.authorization.k8s.io/v1",
            "Role",
            json!({"rules": [{"verbs": ["get", "list"], "resources": ["pods"]}, {"verbs": ["*"]}]}),
            json!({"rules": [{"verbs": ["*"]}, {"verbs": ["list", "get"], "resources": ["pods"]}]}),
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 2.0}}),
            json!({"spec": {"replicas": 2}}),
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 1, "template": {"spec": {"tolerations": []}}}}),
            json!({"spec": {"template": {"spec": {}}}}),
        ),
        (
            "example.io/v1",
            "Widget",
            json!({"spec": {"a": null}}),
            json!({"spec": {}, "status": {"b": 1}}),
        ),
        // Metadata that restores and servers write.
        (
            "v1",
            "ConfigMap",
            json!({"metadata": {"labels": {"velero.io/custom": "x"}}}),
            json!({"metadata": {"labels": {"velero.io/custom": "x", "velero.io/backup-name": "b",
                "velero.io/restore-name": "r"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}}),
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"metadata": {}}}}),
            json!({"spec": {"template": {"metadata": {"annotations":
                {"cni.projectcalico.org/podIP": "10.0.0.1"}}}}}),
        ),
        // Fields that a controller fills in, regardless of their values.
        (
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            json!({"aggregationRule": {}, "rules": []}),
            json!({"aggregationRule": {}, "rules": [{"verbs": ["get"]}]}),
        ),
        (
            "v1",
            "Secret",
            json!({"type": "kubernetes.io/service-account-token", "data": {}}),
            json!({"type": "kubernetes.io/service-account-token", "data": {"token": "x"}}),
        ),
    ] {
        assert_eq!(found(api_version, kind, &desired, &cluster), SAME, "{kind} {desired}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn user_changes_are_differences() {
    for (api_version, kind, desired, cluster, expected) in [
        (
            "v1",
            "ConfigMap",
            json!({"data": {"a.b": "1"}}),
            json!({"data": {"a.b": "2"}}),
            "data[\"a.b\"]",
        ),
        ("v1", "ConfigMap", json!({"data": {}}), json!({"data": {"a": "1"}}), "data.a"),
        ("v1", "ConfigMap", json!({"data": {"a": ""}}), json!({"data": {}}), "data.a"),
        // User-defined keys are not fields, even if they have the name of a field.
        (
            "v1",
            "ConfigMap",
            json!({"data": {}}),
            json!({"data": {"type": "ClusterIP"}}),
            "data.type",
        ),
        ("v1", "Secret", json!({"data": {"a": "1"}}), json!({}), "data"),
        (
            "v1",
            "ConfigMap",
            json!({"metadata": {"labels": {"app": "a"}}}),
            json!({"metadata": {"labels": {"app": "a", "team": "b"}}}),
            "metadata.labels.team",
        ),
        (
            "v1",
            "Service",
            json!({}),
            json!({"metadata": {"annotations": {"service.beta.kubernetes.io/x": "b"}}}),
            "metadata.annotations[\"service.beta.kubernetes.io/x\"]",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 2}}),
            json!({"spec": {"replicas": 3}}),
            "spec.replicas",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 2}}),
            json!({"spec": {}}),
            "spec.replicas",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {}}),
            json!({"spec": {"paused": true}}),
            "spec.paused",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "1"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "2"}]}}}}),
            "spec.template.spec.containers[a].image",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}}}),
            "spec.template.spec.containers",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {"initContainers": [{"name": "a"},
                {"name": "b"}]}}}}),
            json!({"spec": {"template": {"spec": {"initContainers": [{"name": "b"},
                {"name": "a"}]}}}}),
            "spec.template.spec.initContainers[a].name",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {}}}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}),
            "spec.template.spec.nodeSelector",
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {}}}}),
            json!({"spec": {"template": {"spec": {"securityContext": {"runAsUser": 0}}}}}),
            "spec.template.spec.securityContext",
        ),
        // Disabled is not the same as not set.
        (
            "v1",
            "Pod",
            json!({"spec": {}}),
            json!({"spec": {"enableServiceLinks": false}}),
            "spec.enableServiceLinks",
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}}),
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30081}]}}),
            "spec.ports[0]",
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"selector": {"a": "b"}}}),
            json!({"spec": {}}),
            "spec.selector",
        ),
        ("v1", "Service", json!({"spec": {}}), json!({"spec": {"type": "NodePort"}}), "spec.type"),
        // Here a user set a value that servers fill in otherwise.
        (
            "v1",
            "Service",
            json!({"spec": {"clusterIP": "None"}}),
            json!({"spec": {}}),
            "spec.clusterIP",
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}}),
            json!({"spec": {"ingress": [{"from": [{"podSelector": {},
                "namespaceSelector": {}}]}]}}),
            "spec.ingress[0].from[0].namespaceSelector",
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {"ingress": [{"ports": [{"protocol": "TCP"}]}]}}),
            json!({"spec": {"ingress": [{"ports": [{"protocol": "TCP", "port": 443}]}]}}),
            "spec.ingress[0].ports[0]",
        ),
        (
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {}}),
            json!({"spec": {"maxUnavailable": 1}}),
            "spec.maxUnavailable",
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({"subjects": [{"kind": "User", "name": "eve"}]}),
            json!({"subjects": [{"kind": "User", "name": "bob"}]}),
            "subjects[eve]",
        ),
        (
            "example.io/v1",
            "Widget",
            json!({"spec": {}}),
            json!({"spec": {"replicas": 1}}),
            "spec.replicas",
        ),
        ("example.io/v1", "Widget", json!({"spec": {}}), json!({"spec": {"a": []}}), "spec.a"),
        ("example.io/v1", "Widget", json!({"spec": {"tls": {}}}), json!({"spec": {}}), "spec.tls"),
        (
            "example.io/v1",
            "Widget",
            json!({"spec": {"verbs": ["a", "b"]}}),
            json!({"spec": {"verbs": ["b", "a"]}}),
            "spec.verbs[0]",
        ),
        ("v1", "ConfigMap", json!({"data": "broken"}), json!({"data": {"a": "1"}}), "data"),
    ] {
        let found = found(api_version, kind, &desired, &cluster);
        assert_eq!(
            found.first().map(String::as_str),
            Some(expected),
            "{kind} {desired}: {found:?}"
        );
    }
}

#[test]
fn cluster_managed_objects_are_not_compared() {
    let own = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes",
            "namespace": "default"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "view",
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "x",
            "labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}}),
    ];
    for cluster in own {
        let mut desired = cluster.clone();
        desired["data"] = json!({"other": "data"});
        desired["metadata"]["labels"]["velero.io/restore-name"] = json!("r");
        assert_eq!(differs(&desired, &cluster), None, "{cluster}");
        assert_eq!(merge_patch(&cluster, &desired), json!({}), "{cluster}");
        assert_eq!(label_patch(&cluster, &desired), json!({}), "{cluster}");
    }
    // A default role that an administrator has changed belongs to the administrator.
    let mine = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "view", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}});
    let mut desired = mine.clone();
    desired["rules"] = json!([{"verbs": ["get"]}]);
    assert!(differs(&desired, &mine).is_some());
}

#[test]
fn number_of_reported_differences_is_limited() {
    let desired = object("v1", "ConfigMap", &json!({}));
    let data: Map<_, _> = (0..100).map(|key| (key.to_string(), json!("x"))).collect();
    let cluster = object("v1", "ConfigMap", &json!({"data": data}));
    assert_eq!(differs(&desired, &cluster), Some(vec!["data".into()]));
    let desired = object("v1", "ConfigMap", &json!({"data": {}}));
    assert_eq!(differs(&desired, &cluster).map(|found| found.len()), Some(MAX_REPORTED));
}

#[test]
fn hostile_objects_are_compared_in_time() {
    let nested = |leaf: i64| {
        let mut value = json!({"verbs": leaf});
        for _ in 0..60 {
            value = json!({"rules": [value, {"verbs": [leaf]}]});
        }
        object("rbac.authorization.k8s.io/v1", "Role", &value)
    };
    let (desired, cluster) = (nested(1), nested(2));
    assert!(differs(&desired, &cluster).is_some());
    assert_eq!(differs(&desired, &desired), None);
    let patch = merge_patch(&cluster, &desired);
    assert_eq!(patch["rules"], desired["rules"]);
    let list = |leaf: i64| (0..60).fold(json!(leaf), |value, _| json!([value]));
    let (desired, cluster) = (json!({"spec": list(1)}), json!({"spec": list(2)}));
    assert_eq!(merge_patch(&cluster, &desired), desired);
}

#[test]
fn patch_keeps_server_defaults() {
    for (api_version, kind, desired, cluster, expected) in [
        (
            "v1",
            "Service",
            json!({"metadata": {"labels": {"velero.io/restore-name": "r", "app": "web"}},
                "spec": {"selector": {"a": "b"}, "type": "ClusterIP"}}),
            json!({"metadata": {"labels": {"velero.io/restore-name": "old", "team": "x"},
                "uid": "1"},
                "spec": {"clusterIP": "10.0.0.1", "selector": {"a": "c", "d": "e"}},
                    "status": {"x": 1}}),
            json!({"metadata": {"labels": {"velero.io/restore-name": "r", "app": "web",
                "team": null}},
                "spec": {"selector": {"a": "b", "d": null}}}),
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "2"},
                {"name": "b"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [
                {"name": "b", "resources": {}},
                {"name": "a", "image": "1", "args": ["x"], "imagePullPolicy": "Always"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [
                {"name": "a", "image": "2", "imagePullPolicy": "Always"},
                {"name": "b", "resources": {}}]}}}}),
        ),
        (
            "v1",
            "Pod",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "kube-api-access-x"}]}}),
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}},
                {"name": "kube-api-access-x"}]}}),
        ),
        (
            "v1",
            "Pod",
            json!({"spec": {"tolerations": [usual_toleration(), {"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "a"}, usual_toleration()]}}),
        ),
        (
            "example.io/v1",
            "Widget",
            json!({"spec": {"list": [{"a": 1, "b": null}], "gone": null}}),
            json!({"spec": {"list": [{"a": 2, "c": 3}], "gone": 1}}),
            json!({"spec": {"list": [{"a": 1}], "gone": null}}),
        ),
    ] {
        let desired = object(api_version, kind, &desired);
        let cluster = object(api_version, kind, &cluster);
        assert_eq!(merge_patch(&cluster, &desired), expected, "{kind}");
    }
}

/// The API server refuses fields of another choice, and has filled them in itself.
#[test]
fn patch_removes_fields_of_another_choice() {
    let usual = json!({"maxSurge": "25%", "maxUnavailable": "25%"});
    let affinity = json!({"clientIP": {"timeoutSeconds": 10_800}});
    for (api_version, kind, desired, cluster, patch) in [
        (
            "apps/v1",
            "Deployment",
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": usual}}}),
            json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}),
        ),
        (
            "v1",
            "Service",
            json!({"spec": {"sessionAffinity": "None"}}),
            json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": affinity}}),
            json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}}),
        ),
    ] {
        let [desired, cluster] = [desired, cluster].map(|rest| object(api_version, kind, &rest));
        assert_eq!(merge_patch(&cluster, &desired), patch);
        assert_eq!(differs(&desired, &cluster).unwrap().len(), 2);
    }
    // The same choice, with the values that the server fills in for it.
    let desired = json!({"spec": {"strategy": {"type": "RollingUpdate"}}});
    let cluster = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": usual}}});
    assert_eq!(found("apps/v1", "Deployment", &desired, &cluster), SAME);
}

#[test]
fn labels_alone_can_be_patched() {
    let desired = json!({"metadata": {"labels": {"velero.io/backup-name": "b",
        "velero.io/restore-name": "r", "app": "x"}}});
    let cluster = json!({"metadata": {"labels": {"velero.io/backup-name": "b"}}});
    let expected = json!({"metadata": {"labels": {"velero.io/restore-name": "r"}}});
    assert_eq!(label_patch(&cluster, &desired), expected);
    assert_eq!(label_patch(&desired, &desired), json!({}));
    assert_eq!(
        label_patch(&json!({}), &desired)["metadata"]["labels"].as_object().unwrap().len(),
        2
    );
}

#[test]
fn service_account_patch_only_adds() {
    let cluster = json!({
        "metadata": {"labels": {"a": "cluster"}, "annotations": {"b": "cluster"}},
        "secrets": [{"name": "token-1"}],
        "imagePullSecrets": [{"name": "pull"}],
    });
    let desired = json!({
        "metadata": {"labels": {"a": "backup", "c": "backup", "velero.io/restore-name": "r"},
            "annotations": {"b": "backup"}},
        "secrets": [{"name": "token-2"}, {"name": "token-1"}],
        "imagePullSecrets": [{"name": "pull"}],
    });
    let expected = json!({
        "metadata": {"labels": {"c": "backup"}},
        "secrets": [{"name": "token-1"}, {"name": "token-2"}],
    });
    assert_eq!(service_account_patch(&cluster, &desired), expected);
    assert_eq!(service_account_patch(&cluster, &cluster), json!({}));
    assert_eq!(service_account_patch(&json!({}), &json!({})), json!({}));
    assert_eq!(service_account_patch(&json!({}), &cluster), cluster);
}

/// Names with a meaning for the rules, and some without.
const FIELDS: [&str; 24] = [
    "spec",
    "data",
    "labels",
    "annotations",
    "matchLabels",
    "volumes",
    "volumeMounts",
    "containers",
    "ports",
    "rules",
    "verbs",
    "tolerations",
    "name",
    "mountPath",
    "type",
    "replicas",
    "strategy",
    "clusterIP",
    "uid",
    "protocol",
    "status",
    "namespaceSelector",
    "example.io/a",
    "controller-uid",
];

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(1.0)),
        prop::sample::select(vec!["", "a", "b", "TCP", "ClusterIP", "kube-api-access-1"])
            .prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(5, 64, 5, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            3 => prop::collection::btree_map(prop::sample::select(&FIELDS[..]), inner, 0..6)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(),
                    value)).collect()),
        ]
    })
}

fn kinds() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![
        ("v1", "Pod"),
        ("v1", "Service"),
        ("v1", "ConfigMap"),
        ("apps/v1", "Deployment"),
        ("example.io/v1", "Widget"),
    ])
}

proptest! {
    #[test]
    fn patched_object_has_no_differences((api_version, kind) in kinds(), ours in values(),
        cluster in values()) {
        let of = |rest: &Value| {
            let mut object = json!({"metadata": rest.get("spec"), "spec": rest,
                "data": rest.get("data")});
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            object
        };
        let (ours, cluster) = (of(&ours), of(&cluster));
        let patch = merge_patch(&cluster, &ours);
        let mut patched = cluster.clone();
        json_patch::merge(&mut patched, &patch);
        prop_assert_eq!(differs(&ours, &patched), None, "{}", patch);
        prop_assert_eq!(merge_patch(&patched, &ours), json!({}));
        prop_assert_eq!(differs(&ours, &cluster).is_none(), patch == json!({}));
        prop_assert_eq!(differs(&ours, &ours), None);
    }
}
