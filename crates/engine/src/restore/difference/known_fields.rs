//! Knowledge about Kubernetes' own kinds: fields that servers and controllers fill in, default values, and lists that
//! are sets.

use bowline_api::label;
use serde_json::Value;

use DefaultValue::{Flag, Number, Text};

use crate::json;

/// The API groups that Kubernetes itself defines.
const GROUPS: [&str; 23] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "extensions",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// True if Kubernetes itself defines an API group. All others are those of custom resources.
pub(super) fn is_builtin_group(group: &str) -> bool {
    GROUPS.contains(&group)
}

/// True if users choose the keys within a field.
pub(super) fn is_user_defined(kind: &str, field: &str) -> bool {
    match field {
        "binaryData" | "capacity" | "data" | "hard" | "nodeSelector" | "openAPIV3Schema"
        | "options" | "overhead" | "parameters" | "requests" | "stringData"
        | "volumeAttributes" => true,
        // In a LimitRange, `limits` is a list of objects that Kubernetes defines.
        "limits" => kind != "LimitRange",
        _ => false,
    }
}

/// True if the order of a list is irrelevant.
pub(super) fn is_set(field: &str) -> bool {
    matches!(
        field,
        "accessModes"
            | "add"
            | "allowedTopologies"
            | "apiGroups"
            | "apiVersions"
            | "categories"
            | "drop"
            | "externalIPs"
            | "hostAliases"
            | "imagePullSecrets"
            | "loadBalancerSourceRanges"
            | "nonResourceURLs"
            | "operations"
            | "policyTypes"
            | "ports"
            | "resourceNames"
            | "resources"
            | "rules"
            | "secrets"
            | "shortNames"
            | "subjects"
            | "tolerations"
            | "topologySpreadConstraints"
            | "verbs"
            | "volumeDevices"
            | "volumeLifecycleModes"
            | "volumeMounts"
            | "volumes"
    )
}

/// The field that identifies the elements of a list.
pub(super) fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "containers"
        | "env"
        | "ephemeralContainers"
        | "imagePullSecrets"
        | "initContainers"
        | "secrets"
        | "versions"
        | "volumes"
        | "webhooks" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        "volumeDevices" => Some("devicePath"),
        _ => None,
    }
}

/// The sibling field that determines whether a field may be set.
pub(super) fn choice_field(field: &str) -> Option<&'static str> {
    match field {
        "rollingUpdate" => Some("type"),
        "sessionAffinityConfig" => Some("sessionAffinity"),
        _ => None,
    }
}

/// True if the API server injected an element into a list of a pod: the volume with the pod's token, and its mounts.
pub(super) fn is_injected(field: &str, element: &Value) -> bool {
    let name = element.get("name").and_then(Value::as_str).unwrap_or_default();
    match field {
        "volumes" | "volumeMounts" => name.starts_with("kube-api-access-"),
        "tolerations" => is_default_toleration(element),
        _ => false,
    }
}

/// True if servers and controllers fill in a field that is not set.
pub(super) fn is_filled_in(kind: &str, field: &str) -> bool {
    match field {
        "caBundle" | "creationTimestamp" | "resourceVersion" | "uid" => true,
        "clusterIP"
        | "clusterIPs"
        | "healthCheckNodePort"
        | "ipFamilies"
        | "ipFamilyPolicy"
        | "nodePort"
        | "targetPort" => kind == "Service",
        "dataSource" | "dataSourceRef" | "storageClassName" | "volumeName" => {
            kind == "PersistentVolumeClaim"
        }
        "claimRef" => kind == "PersistentVolume",
        "imagePullSecrets" | "nodeName" | "overhead" | "preemptionPolicy" | "priority"
        | "priorityClassName" | "serviceAccount" | "serviceAccountName" => kind == "Pod",
        "selector" => kind == "Job",
        "ingressClassName" => kind == "Ingress",
        "policyTypes" => kind == "NetworkPolicy",
        "default" | "defaultRequest" => kind == "LimitRange",
        "listKind" | "singular" => kind == "CustomResourceDefinition",
        _ => false,
    }
}

/// A default value of the API server.
enum DefaultValue {
    Text(&'static str),
    Number(i64),
    Flag(bool),
}

/// Every kind.
const ANY: &[&str] = &[];
const WORKLOADS: &[&str] =
    &["DaemonSet", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"];
const JOBS: &[&str] = &["CronJob", "Job"];
const SERVICES: &[&str] = &["Service"];
const CLAIMS: &[&str] = &["PersistentVolume", "PersistentVolumeClaim", "StatefulSet"];
const DRIVERS: &[&str] = &["CSIDriver"];
const CLASSES: &[&str] = &["StorageClass"];
const WEBHOOKS: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
const SERVICE_CALLERS: &[&str] = &[
    "APIService",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];
const DEFINITIONS: &[&str] = &["CustomResourceDefinition"];
const RBAC: &[&str] = &["ClusterRoleBinding", "RoleBinding"];

/// Fields of kinds, and their defaults in the API server.
const DEFAULTS: &[(&[&str], &str, DefaultValue)] = &[
    // Pods and pod templates
    (ANY, "apiVersion", Text("v1")),
    (ANY, "defaultMode", Number(0o644)),
    (ANY, "dnsPolicy", Text("ClusterFirst")),
    (ANY, "enableServiceLinks", Flag(true)),
    (ANY, "expirationSeconds", Number(3600)),
    (ANY, "failureThreshold", Number(3)),
    (ANY, "imagePullPolicy", Text("Always")),
    (ANY, "imagePullPolicy", Text("IfNotPresent")),
    (ANY, "periodSeconds", Number(10)),
    (ANY, "preemptionPolicy", Text("PreemptLowerPriority")),
    (ANY, "procMount", Text("Default")),
    (ANY, "protocol", Text("TCP")),
    (ANY, "schedulerName", Text("default-scheduler")),
    (ANY, "scheme", Text("HTTP")),
    (ANY, "service", Text("")),
    (ANY, "successThreshold", Number(1)),
    (ANY, "terminationGracePeriodSeconds", Number(30)),
    (ANY, "terminationMessagePath", Text("/dev/termination-log")),
    (ANY, "terminationMessagePolicy", Text("File")),
    (ANY, "timeoutSeconds", Number(1)),
    (ANY, "type", Text("")),
    // Workloads
    (JOBS, "backoffLimit", Number(6)),
    (JOBS, "completionMode", Text("NonIndexed")),
    (JOBS, "completions", Number(1)),
    (JOBS, "concurrencyPolicy", Text("Allow")),
    (JOBS, "failedJobsHistoryLimit", Number(1)),
    (JOBS, "parallelism", Number(1)),
    (JOBS, "podReplacementPolicy", Text("TerminatingOrFailed")),
    (JOBS, "successfulJobsHistoryLimit", Number(3)),
    (JOBS, "suspend", Flag(false)),
    (WORKLOADS, "maxSurge", Number(0)),
    (WORKLOADS, "maxSurge", Text("25%")),
    (WORKLOADS, "maxUnavailable", Number(1)),
    (WORKLOADS, "maxUnavailable", Text("25%")),
    (WORKLOADS, "partition", Number(0)),
    (WORKLOADS, "podManagementPolicy", Text("OrderedReady")),
    (WORKLOADS, "progressDeadlineSeconds", Number(600)),
    (WORKLOADS, "replicas", Number(1)),
    (WORKLOADS, "revisionHistoryLimit", Number(10)),
    (WORKLOADS, "type", Text("RollingUpdate")),
    (WORKLOADS, "whenDeleted", Text("Retain")),
    (WORKLOADS, "whenScaled", Text("Retain")),
    (&["HorizontalPodAutoscaler"], "minReplicas", Number(1)),
    // Services
    (SERVICES, "allocateLoadBalancerNodePorts", Flag(true)),
    (SERVICES, "externalTrafficPolicy", Text("Cluster")),
    (SERVICES, "internalTrafficPolicy", Text("Cluster")),
    (SERVICES, "sessionAffinity", Text("None")),
    (SERVICES, "timeoutSeconds", Number(10_800)),
    (SERVICES, "type", Text("ClusterIP")),
    // Storage
    (CLAIMS, "kind", Text("PersistentVolumeClaim")),
    (CLAIMS, "persistentVolumeReclaimPolicy", Text("Retain")),
    (CLAIMS, "phase", Text("Pending")),
    (CLAIMS, "volumeMode", Text("Filesystem")),
    (CLASSES, "reclaimPolicy", Text("Delete")),
    (CLASSES, "volumeBindingMode", Text("Immediate")),
    (DRIVERS, "attachRequired", Flag(true)),
    (DRIVERS, "fsGroupPolicy", Text("ReadWriteOnceWithFSType")),
    (DRIVERS, "podInfoOnMount", Flag(false)),
    (DRIVERS, "requiresRepublish", Flag(false)),
    (DRIVERS, "seLinuxMount", Flag(false)),
    (DRIVERS, "storageCapacity", Flag(false)),
    // Others
    (RBAC, "apiGroup", Text("rbac.authorization.k8s.io")),
    (&["Secret"], "type", Text("Opaque")),
    (SERVICE_CALLERS, "port", Number(443)),
    (DEFINITIONS, "preserveUnknownFields", Flag(false)),
    (DEFINITIONS, "strategy", Text("None")),
    (WEBHOOKS, "failurePolicy", Text("Fail")),
    (WEBHOOKS, "matchPolicy", Text("Equivalent")),
    (WEBHOOKS, "reinvocationPolicy", Text("Never")),
    (WEBHOOKS, "scope", Text("*")),
    (WEBHOOKS, "timeoutSeconds", Number(10)),
];

/// True if a value is the default of a field.
pub(super) fn is_default(kind: &str, field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty() || is_default_list(field, list),
        Value::Object(fields) if fields.is_empty() => is_default_if_empty(kind, field),
        Value::Object(fields) => {
            let has_names = !is_user_defined(kind, field)
                && !matches!(field, "annotations" | "labels" | "matchLabels");
            has_names && fields.iter().all(|(field, value)| is_default(kind, field, value))
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) => {
            let is_default = |(kinds, name, default): &(&[&str], &str, DefaultValue)| {
                *name == field
                    && default.equals(value)
                    && (kinds.is_empty() || kinds.contains(&kind))
            };
            DEFAULTS.iter().any(is_default)
        }
    }
}

impl DefaultValue {
    fn equals(&self, value: &Value) -> bool {
        match self {
            Self::Text(text) => value.as_str() == Some(text),
            Self::Number(number) => value.as_i64() == Some(*number),
            Self::Flag(flag) => value.as_bool() == Some(*flag),
        }
    }
}

/// True if an empty object is equivalent to a missing one. Often it is not: an empty selector selects everything.
fn is_default_if_empty(kind: &str, field: &str) -> bool {
    match field {
        "affinity" | "annotations" | "dnsConfig" | "labels" | "loadBalancer" | "matchLabels"
        | "metadata" | "resources" | "rollingUpdate" | "securityContext" | "status"
        | "strategy" | "updateStrategy" => true,
        "namespaceSelector" | "objectSelector" => WEBHOOKS.contains(&kind),
        _ => is_user_defined(kind, field),
    }
}

fn is_default_list(field: &str, list: &[Value]) -> bool {
    match field {
        "tolerations" => list.iter().all(is_default_toleration),
        "volumeLifecycleModes" => list.iter().all(|mode| mode == "Persistent"),
        _ => false,
    }
}

/// True for the tolerations that every pod gets, so that it survives a short absence of its node.
fn is_default_toleration(toleration: &Value) -> bool {
    let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or_default();
    let keys = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    keys.contains(&text("key"))
        && text("effect") == "NoExecute"
        && text("operator") == "Exists"
        && toleration.get("tolerationSeconds").and_then(Value::as_i64) == Some(300)
}

/// True if a server, a controller or a restore writes a label.
pub(super) fn is_system_label(key: &str) -> bool {
    matches!(
        key,
        label::BACKUP_NAME
            | label::RESTORE_NAME
            | "apps.kubernetes.io/pod-index"
            | "batch.kubernetes.io/controller-uid"
            | "batch.kubernetes.io/job-name"
            | "controller-revision-hash"
            | "controller-uid"
            | "job-name"
            | "kubernetes.io/metadata.name"
            | "pod-template-generation"
            | "pod-template-hash"
            | "statefulset.kubernetes.io/pod-name"
    ) || key.starts_with("bowline.io/")
}

/// True if a server or a controller writes an annotation. Many other annotations of Kubernetes' domains are settings of
/// users.
pub(super) fn is_system_annotation(key: &str) -> bool {
    const PREFIXES: [&str; 11] = [
        "apf.kubernetes.io/",
        "autoscaling.alpha.kubernetes.io/",
        "batch.kubernetes.io/",
        "bowline.io/",
        "cni.projectcalico.org/",
        "control-plane.alpha.kubernetes.io/",
        "deployment.kubernetes.io/",
        "endpoints.kubernetes.io/",
        "pv.kubernetes.io/",
        "volume.beta.kubernetes.io/",
        "volume.kubernetes.io/",
    ];
    PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || matches!(
            key,
            "deprecated.daemonset.template.generation"
                | "k8s.v1.cni.cncf.io/network-status"
                | "kubectl.kubernetes.io/last-applied-configuration"
                | "kubernetes.io/service-account.uid"
        )
}

/// Fields of an object that a controller fills in, regardless of the user's values.
pub(super) fn filled_by_controllers(object: &Value) -> Option<&'static str> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    match text("kind") {
        "ClusterRole" if object.get("aggregationRule").is_some_and(Value::is_object) => {
            Some("rules")
        }
        "Secret" if text("type") == "kubernetes.io/service-account-token" => Some("data"),
        _ => None,
    }
}

/// True if an object belongs to the cluster itself: servers and controllers write it, and would write it again.
pub(super) fn is_managed_by_cluster(cluster: &Value) -> bool {
    let text = |pointer: &str| json::text(cluster, pointer);
    let metadata = |map: &str, key: &str| {
        let found = cluster.get("metadata").and_then(|metadata| metadata.get(map)?.get(key));
        found.and_then(Value::as_str)
    };
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    match (text("/apiVersion"), text("/kind")) {
        ("v1", "ConfigMap") => matches!(name, "kube-root-ca.crt" | "openshift-service-ca.crt"),
        ("v1", "Service") => (namespace, name) == ("default", "kubernetes"),
        ("v1", "Endpoints") => {
            (namespace, name) == ("default", "kubernetes")
                || metadata("annotations", "endpoints.kubernetes.io/last-change-trigger-time")
                    .is_some()
        }
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            (namespace, name) == ("default", "kubernetes")
                || metadata("labels", "endpointslice.kubernetes.io/managed-by")
                    == Some("endpointslice-controller.k8s.io")
        }
        ("coordination.k8s.io/v1", "Lease") => true,
        ("apiregistration.k8s.io/v1", "APIService") => {
            metadata("labels", "kube-aggregator.kubernetes.io/automanaged").is_some()
        }
        ("rbac.authorization.k8s.io/v1", _) => {
            metadata("labels", "kubernetes.io/bootstrapping") == Some("rbac-defaults")
                && metadata("annotations", "rbac.authorization.kubernetes.io/autoupdate")
                    == Some("true")
        }
        (api_version, _) if api_version.starts_with("flowcontrol.apiserver.k8s.io/") => {
            metadata("annotations", "apf.kubernetes.io/autoupdate-spec") == Some("true")
        }
        _ => false,
    }
}
