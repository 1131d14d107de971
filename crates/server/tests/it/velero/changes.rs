//! Changes to the rich cluster before a restore over it, by users and by modifiers.

use serde_json::{Value, json};

/// An object, and fields that it gets.
pub(super) struct Row {
    pub(super) kind: &'static str,
    namespace: &'static str,
    name: String,
    pub(super) change: Value,
}

impl Row {
    fn new(kind: &'static str, namespace: &'static str, name: &str, change: Value) -> Self {
        Self { kind, namespace, name: name.to_owned(), change }
    }

    /// `ConfigMap shop/m`
    pub(super) fn id(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Objects beside those of the rich cluster, whose fields exclude each other.
pub(super) fn extra_objects() -> Vec<Value> {
    let workload = |kind: &str, name: &str, fields: Value| {
        let mut object = json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "shop-data"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "containers": [{"name": "main", "image": "example.io/none:1"}],
                        "volumes": [{"name": "cache", "emptyDir": {}}],
                    },
                },
            },
        });
        object["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    vec![
        workload("Deployment", "single", json!({"strategy": {"type": "Recreate"}})),
        workload(
            "StatefulSet",
            "db",
            json!({"serviceName": "db", "updateStrategy": {"type": "OnDelete"}}),
        ),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "open", "namespace": "shop"},
            "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 81}]},
        }),
    ]
}

/// Merge patches on objects in the cluster.
#[expect(clippy::too_many_lines, reason = "it is a table")]
pub(super) fn changed() -> Vec<Row> {
    let annotated = json!({"metadata": {"annotations": {"note": "by hand"}}});
    vec![
        Row::new("Namespace", "", "shop", annotated.clone()),
        Row::new("Region", "", "eu-1", json!({"spec": {"html": "<i>", "more": {"a": 1}}})),
        Row::new("PriorityClass", "", "important", json!({"description": "by hand"})),
        Row::new(
            "ConfigMap",
            "shop",
            "with.dots.and-dashes",
            json!({"data": {"text": "changed", "more": "x"}}),
        ),
        Row::new("LimitRange", "shop", "limits", json!({"metadata": {"labels": {"by": "hand"}}})),
        Row::new(
            "ResourceQuota",
            "shop",
            "quota",
            json!({"spec": {"hard": {"pods": "50", "services": "9"}}}),
        ),
        Row::new(
            "Service",
            "shop",
            "web",
            json!({
                "metadata": {"labels": {"by": "hand"}},
                "spec": {
                    "selector": {"app": null, "role": "web"},
                    "ports": [{"port": 8080, "targetPort": 1}],
                    "sessionAffinity": "ClientIP",
                    "type": "NodePort",
                },
            }),
        ),
        Row::new("Service", "shop", "open", json!({"spec": {"type": "ClusterIP"}})),
        Row::new(
            "Ingress",
            "shop",
            "web",
            json!({
                "metadata": {"annotations": {"note": "by hand"}},
                "spec": {"rules": [{"host": "other.example.io"}]},
            }),
        ),
        Row::new(
            "NetworkPolicy",
            "shop-data",
            "closed",
            json!({"spec": {"policyTypes": ["Ingress", "Egress"], "egress": [{}]}}),
        ),
        Row::new(
            "PodDisruptionBudget",
            "shop",
            "web",
            json!({"spec": {"minAvailable": null, "maxUnavailable": 1}}),
        ),
        Row::new(
            "ServiceAccount",
            "shop",
            "web",
            json!({
                "imagePullSecrets": [{"name": "other"}],
                "metadata": {"annotations": {"note": "by hand"}},
            }),
        ),
        Row::new(
            "Role",
            "shop",
            "reader",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}),
        ),
        Row::new(
            "Deployment",
            "shop",
            "web",
            json!({
                "metadata": {"labels": {"app": null, "by": "hand"}},
                "spec": {"replicas": 1, "paused": true, "template": {
                    "metadata": {"annotations": {"note": "by hand"}},
                    "spec": {
                        "priorityClassName": null,
                        "terminationGracePeriodSeconds": 5,
                        "nodeSelector": {"disk": "ssd"},
                        "containers": [
                            {
                                "name": "main",
                                "image": "example.io/none:2",
                                "env": [{"name": "A", "value": "1"}],
                            },
                            {"name": "side", "image": "example.io/side:1"},
                        ],
                    },
                }},
            }),
        ),
        Row::new(
            "Deployment",
            "shop-data",
            "single",
            json!({"spec": {"strategy": {"type": "RollingUpdate"}, "template": {"spec": {
                "volumes": [{"name": "cache", "configMap": {"name": "other"}}],
            }}}}),
        ),
        Row::new(
            "StatefulSet",
            "shop-data",
            "db",
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
        ),
        Row::new(
            "DaemonSet",
            "shop",
            "agent",
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}),
        ),
        Row::new(
            "CronJob",
            "shop",
            "report",
            json!({"spec": {"schedule": "0 4 * * *", "suspend": false, "timeZone": "Etc/UTC"}}),
        ),
        Row::new(
            "HorizontalPodAutoscaler",
            "shop",
            "web",
            json!({"spec": {"minReplicas": 2, "maxReplicas": 9}}),
        ),
        Row::new("PersistentVolumeClaim", "shop-data", "later", annotated),
        Row::new(
            "Discount",
            "shop",
            "summer.2026",
            json!({"spec": {"percent": 50, "big": null, "nested": {"b": {}}}}),
        ),
    ]
}

/// Objects that are put in the place of those in the backup, and that cannot become them again.
pub(super) fn replaced() -> Vec<Row> {
    let group = "rbac.authorization.k8s.io";
    vec![
        Row::new("ConfigMap", "shop", "binary", json!({"binaryData": {"bytes": "AAAA"}})),
        Row::new(
            "RoleBinding",
            "shop",
            "web:reads",
            json!({"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"}}),
        ),
    ]
}

/// Objects that are deleted.
pub(super) fn deleted() -> Vec<Row> {
    vec![
        Row::new("ConfigMap", "shop", &"n".repeat(250), json!({})),
        Row::new("Secret", "shop-data", "password", json!({})),
        Row::new("Service", "shop-data", "db", json!({})),
        Row::new("StorageClass", "", "by-hand", json!({})),
    ]
}

/// Differences that [`MODIFIERS`] make.
pub(super) const MODIFIED: [&str; 14] = [
    "ConfigMap shop/binary",
    "ConfigMap shop/with.dots.and-dashes",
    "CronJob shop/report",
    "DaemonSet shop/agent",
    "Deployment shop/web",
    "Discount shop/summer.2026",
    "PersistentVolumeClaim shop-data/later",
    "PodDisruptionBudget shop/web",
    "Region /eu-1",
    "Role shop/reader",
    "RoleBinding shop/web:reads",
    "Service shop-data/db",
    "Service shop/web",
    "ServiceAccount shop/web",
];

/// Objects for which [`MODIFIERS`] fail.
pub(super) const MODIFIERS_FAIL: [&str; 3] = ["ingresses", "password", "binary"];

/// Rules of all sorts, with all conditions.
pub(super) const MODIFIERS: &str = r#"
version: v1
resourceModifierRules:
# All operations, on what is chosen by its name.
- conditions:
    groupResource: configmaps
    namespaces: [shop]
    resourceNameRegex: "^with"
  patches:
  - {operation: add, path: /metadata/labels, value: '{"tier": "gold"}'}
  - {operation: copy, from: /data/text, path: /data/copied}
  - {operation: move, from: /data/text, path: /data/moved}
  - {operation: add, path: /data/number, value: "\"10\""}
  - {operation: test, path: /data/number, value: "\"10\""}
  - {operation: replace, path: /data/copied, value: "copied: yes"}
# A test that fails is no error, and nothing is changed.
- conditions:
    groupResource: configmaps
    resourceNameRegex: "^n+$"
  patches:
  - {operation: remove, path: /data/text}
  - {operation: test, path: /metadata/namespace, value: elsewhere}
# Another namespace.
- conditions:
    groupResource: configmaps
    namespaces: ["shop-*"]
  patches:
  - {operation: add, path: /data/never, value: never}
# What becomes of it is refused by the API server.
- conditions:
    groupResource: configmaps
    labelSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}
  patches:
  - {operation: add, path: /data, value: '{"number": 10}'}
# Conditions look at what was before the first rule.
- conditions:
    groupResource: deployments.apps
    labelSelector: {matchLabels: {app: web}}
    matches: [{path: /spec/replicas, value: "2"}]
  patches:
  - {operation: replace, path: /spec/replicas, value: "0"}
  - {operation: add, path: /spec/template/spec/containers/0/env, value: '[{"name": "A", "value": "1"}]'}
  - {operation: add, path: /spec/template/spec/containers/0/env/-, value: '{"name": "B", "value": "2"}'}
- conditions:
    groupResource: deployments.apps
    matches:
    - {path: /spec/replicas, value: "2"}
    - {path: /spec/template/spec/containers/0/name, value: main}
  strategicPatches:
  - patchData: |
      spec:
        template:
          spec:
            priorityClassName: null
            containers:
            - name: main
              env: [{name: B, $patch: delete}, {name: C, value: "3"}]
            - name: side
              image: example.io/side:1
  - patchData: '{"metadata": {"annotations": {"note": "modified"}}}'
- conditions:
    groupResource: deployments.apps
    matches: [{path: /spec/replicas, value: "0"}, {path: /metadata/labels/app, value: web}]
  patches:
  - {operation: add, path: /spec/paused, value: "true"}
- conditions:
    groupResource: daemonsets.apps
  strategicPatches:
  - patchData: |
      spec:
        updateStrategy: {$retainKeys: [type], type: OnDelete}
        template: {spec: {tolerations: [{operator: Exists}]}}
- conditions:
    groupResource: cronjobs.batch
  strategicPatches:
  - patchData: |
      spec:
        suspend: false
        jobTemplate: {spec: {template: {spec: {
          containers: [{$patch: replace}, {name: other, image: "example.io/other:1"}]}}}}
- conditions:
    groupResource: services
    namespaces: [shop]
    resourceNameRegex: ^web$
  strategicPatches:
  - patchData: |
      spec:
        ports:
        - {port: 80, name: http, targetPort: 8080}
        - {port: 443, name: https}
- conditions:
    groupResource: services
    namespaces: [shop-data]
  mergePatches:
  - patchData: |
      metadata: {labels: {tier: gold}}
      spec: {selector: {app: null, role: db}}
  - patchData: '{"spec": {"ports": [{"port": 5433}]}}'
- conditions:
    groupResource: serviceaccounts
    resourceNameRegex: web
  mergePatches:
  - patchData: '{"imagePullSecrets": null, "automountServiceAccountToken": false}'
- conditions:
    groupResource: "*.rbac.authorization.k8s.io"
  patches:
  - {operation: add, path: /metadata/annotations, value: '{"note": "a \"b\""}'}
- conditions:
    groupResource: persistentvolumeclaims
  patches:
  - {operation: replace, path: /spec/storageClassName, value: other}
  - {operation: replace, path: /spec/resources/requests/storage, value: 2Gi}
- conditions:
    groupResource: poddisruptionbudgets.policy
  patches:
  - {operation: replace, path: /spec/minAvailable, value: "1"}
- conditions:
    groupResource: discounts.shop.example.io
  patches:
  - {operation: remove, path: /spec/nested/a/1}
  - {operation: add, path: /spec/nested/a/0, value: "null"}
- conditions:
    groupResource: discounts.shop.example.io
  mergePatches:
  - patchData: '{"spec": {"percent": null, "html": "<b>"}}'
- conditions:
    groupResource: regions.shop.example.io
    namespaces: [nowhere]
  mergePatches:
  - patchData: 'spec: {everywhere: true}'
# Kinds of other groups have no strategic merge.
- conditions:
    groupResource: ingresses.networking.k8s.io
  strategicPatches:
  - patchData: 'spec: {ingressClassName: other}'
- conditions:
    groupResource: secrets
    resourceNameRegex: password
  patches:
  - {operation: remove, path: /data/nothing}
"#;
