//! Deployment of the server: Pod Security level `restricted`, a read-only root file system, and the token of its
//! account in no container but the server's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::objects::{NAME, NAME_LABEL};
use super::plugins::Plugin;

/// Secret with the credentials for the provider, named as in Velero.
pub(crate) const SECRET: &str = "cloud-credentials";
/// Key in that Secret.
pub(super) const SECRET_KEY: &str = "cloud";
/// User of the server: one that no base image defines.
const USER: u32 = 65532;
/// Port of metrics and health checks.
const METRICS_PORT: u16 = 8085;
/// Folder in which a client in a pod looks for the token of its account.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of a token; the kubelet renews it before. The default of mounted tokens.
const TOKEN_SECONDS: u32 = 3607;
/// Size limit for the binaries of plugins, in GiB.
const PLUGINS_GIB: u32 = 2;
/// Size limit for the log of the container, in GiB.
const LOG_GIB: u32 = 1;
/// Request for disk space of the node. Without it, the request would equal the limit.
const EPHEMERAL_REQUEST: &str = "256Mi";
/// Time for a server to leave its runs in a resumable state.
const GRACE_SECONDS: u32 = 60;
/// Variables in which the libraries of the providers look for credentials.
const CREDENTIAL_VARIABLES: [&str; 4] = [
    "AWS_SHARED_CREDENTIALS_FILE",
    "AZURE_CREDENTIALS_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "ALIBABA_CLOUD_CREDENTIALS_FILE",
];

/// Settings of the server's pods.
#[derive(Debug)]
pub(super) struct ServerPod {
    pub(super) image: String,
    pub(super) replicas: u16,
    pub(super) plugins: Vec<Plugin>,
    /// Parent folder of `filesystem` locations.
    pub(super) filesystem_root: Option<PathBuf>,
    pub(super) flags: Vec<String>,
    pub(super) resources: Resources,
    /// Size limit for temporary files, in GiB; 0 for none.
    pub(super) scratch_gib: u32,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) priority_class: Option<String>,
    pub(super) has_credentials: bool,
}

/// Requests and limits; `0` for none.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) cpu: [String; 2],
    pub(super) memory: [String; 2],
}

pub(super) fn deployment(pod: &ServerPod, namespace: &str, account: &str) -> Value {
    let mut labels = pod.labels.clone();
    labels.insert(NAME_LABEL.to_owned(), NAME.to_owned());
    let mut annotations = json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/port": METRICS_PORT.to_string(),
        "prometheus.io/path": "/metrics",
    });
    for (key, value) in &pod.annotations {
        annotations[key] = json!(value);
    }
    let selector = json!({"matchLabels": {NAME_LABEL: NAME}});
    let mut spec = json!({
        "serviceAccountName": account,
        // Plugins come in third-party images, whose init containers must not have the token: it is mounted for the
        // server alone.
        "automountServiceAccountToken": false,
        // No addresses of all Services as variables, which plugins could see.
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [server(pod)],
        "volumes": volumes(pod),
        // A failing node takes only one of several replicas with it.
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector,
        }],
    });
    let plugins: Vec<Value> = plugins(&pod.plugins);
    if !plugins.is_empty() {
        spec["initContainers"] = json!(plugins);
    }
    if let Some(class) = &pod.priority_class {
        spec["priorityClassName"] = json!(class);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "replicas": pod.replicas,
            "selector": selector,
            // The active server must continue while another starts.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": spec,
            },
        },
    })
}

fn server(pod: &ServerPod) -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let mut environment = vec![
        field("VELERO_NAMESPACE", "metadata.namespace"),
        field("POD_NAME", "metadata.name"),
        json!({"name": "VELERO_SCRATCH_DIR", "value": "/scratch"}),
    ];
    let mut mounts = vec![
        // A plugin must not be able to leave another one there for the next start.
        json!({"name": "plugins", "mountPath": "/plugins", "readOnly": true}),
        json!({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": true}),
        json!({"name": "scratch", "mountPath": "/scratch"}),
        // Third-party plugins need a folder for their files.
        json!({"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"}),
    ];
    if pod.has_credentials {
        mounts.push(json!({"name": "credentials", "mountPath": "/credentials", "readOnly": true}));
        let path = format!("/credentials/{SECRET_KEY}");
        environment
            .extend(CREDENTIAL_VARIABLES.map(|variable| json!({"name": variable, "value": path})));
    }
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "metrics"}});
    let mut arguments = vec!["server".to_owned()];
    arguments.extend(pod.flags.iter().cloned());
    json!({
        "name": NAME,
        "image": pod.image,
        "args": arguments,
        "env": environment,
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": resources(&pod.resources, pod.scratch_gib),
        "securityContext": restricted_security_context(),
        "volumeMounts": mounts,
    })
}

/// Each copies its plugins into the folder that the server reads, as Velero's plugin images do.
fn plugins(plugins: &[Plugin]) -> Vec<Value> {
    let container = |plugin: &Plugin| {
        json!({
            "name": plugin.container,
            "image": plugin.image,
            "securityContext": restricted_security_context(),
            "volumeMounts": [{"name": "plugins", "mountPath": "/target"}],
        })
    };
    plugins.iter().map(container).collect()
}

fn volumes(pod: &ServerPod) -> Vec<Value> {
    let folder = |name: &str, gib: u32| match gib {
        0 => json!({"name": name, "emptyDir": {}}),
        gib => json!({"name": name, "emptyDir": {"sizeLimit": format!("{gib}Gi")}}),
    };
    let mut volumes = vec![
        folder("plugins", PLUGINS_GIB),
        folder("scratch", pod.scratch_gib),
        // Same content as `automountServiceAccountToken` would mount into all containers.
        json!({"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{
                "path": "namespace",
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
            }]}},
        ]}}),
    ];
    if pod.has_credentials {
        volumes.push(json!({"name": "credentials", "secret": {"secretName": SECRET}}));
    }
    volumes
}

/// Keeps one of several servers running while nodes are drained; a single one may be evicted.
pub(super) fn disruption_budget(namespace: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {NAME_LABEL: NAME}}},
    })
}

fn resources(wanted: &Resources, scratch_gib: u32) -> Value {
    let quantities = |index: usize| {
        let each = [("cpu", &wanted.cpu[index]), ("memory", &wanted.memory[index])];
        let given = each.into_iter().filter(|(_, quantity)| *quantity != "0");
        given.map(|(name, quantity)| (name.to_owned(), json!(quantity))).collect::<Map<_, _>>()
    };
    let (mut requests, mut limits) = (quantities(0), quantities(1));
    if scratch_gib > 0 {
        let limit = format!("{}Gi", scratch_gib + PLUGINS_GIB + LOG_GIB);
        requests.insert("ephemeral-storage".to_owned(), json!(EPHEMERAL_REQUEST));
        limits.insert("ephemeral-storage".to_owned(), json!(limit));
    }
    let mut resources = json!({});
    for (name, quantities) in [("requests", requests), ("limits", limits)] {
        if !quantities.is_empty() {
            resources[name] = json!(quantities);
        }
    }
    resources
}

fn restricted_security_context() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}
