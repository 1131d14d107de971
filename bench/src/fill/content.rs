//! Kinds of the mix, and the content of an object of each.

use serde_json::{Value, json};

use super::prng::Prng;

/// Kind in the mix, spelled as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Certificate,
    ConfigMap,
    Database,
    Deployment,
    Endpoints,
    Ingress,
    Job,
    NetworkPolicy,
    PersistentVolumeClaim,
    Pod,
    ReplicaSet,
    Role,
    RoleBinding,
    Secret,
    Service,
    ServiceAccount,
}

/// Group and version, plural, and the fields specific to the kind.
pub(super) fn content(
    kind: Kind,
    namespace: &str,
    app: &str,
    name: &str,
    dice: &mut Prng,
) -> (&'static str, &'static str, Value) {
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    match kind {
        Kind::Certificate => ("bench.bowline.io/v1", "certificates", certificate(name, dice)),
        Kind::ConfigMap => ("v1", "configmaps", config_map(dice)),
        Kind::Database => ("bench.bowline.io/v1", "databases", database(dice)),
        Kind::Deployment => ("apps/v1", "deployments", workload(name, dice)),
        Kind::Endpoints => ("v1", "endpoints", endpoints(dice)),
        Kind::Ingress => ("networking.k8s.io/v1", "ingresses", ingress(app, namespace)),
        Kind::Job => ("batch/v1", "jobs", job(name, dice)),
        Kind::NetworkPolicy => ("networking.k8s.io/v1", "networkpolicies", network_policy(app)),
        Kind::PersistentVolumeClaim => ("v1", "persistentvolumeclaims", claim(name, dice)),
        Kind::Pod => ("v1", "pods", json!({"spec": pod_spec("Always", dice)})),
        Kind::ReplicaSet => ("apps/v1", "replicasets", workload(name, dice)),
        Kind::Role => (RBAC, "roles", role(dice)),
        Kind::RoleBinding => (RBAC, "rolebindings", role_binding(namespace, app)),
        Kind::Secret => ("v1", "secrets", secret(dice)),
        Kind::Service => ("v1", "services", service(app, dice)),
        Kind::ServiceAccount => ("v1", "serviceaccounts", service_account(app)),
    }
}

fn config_map(dice: &mut Prng) -> Value {
    let mut data = json!({});
    for file in ["application.properties", "logging.properties"].iter().take(1 + dice.below(2)) {
        let size = dice.size();
        data[file] = json!(dice.settings(size));
    }
    json!({"data": data})
}

fn secret(dice: &mut Prng) -> Value {
    match dice.below(3) {
        0 => json!({
            "type": "Opaque",
            "data": {"username": dice.base64(12), "password": dice.base64(32)},
        }),
        1 => json!({
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": dice.base64(2400), "tls.key": dice.base64(2200)},
        }),
        _ => {
            let size = dice.size();
            json!({"type": "helm.sh/release.v1", "data": {"release": dice.base64(size)}})
        }
    }
}

/// Deployment or ReplicaSet that runs nothing. Its selector matches no existing object.
fn workload(name: &str, dice: &mut Prng) -> Value {
    let labels = json!({"workload": name});
    json!({"spec": {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod_spec("Always", dice)},
    }})
}

fn job(name: &str, dice: &mut Prng) -> Value {
    json!({"spec": {
        "suspend": true,
        "backoffLimit": 3,
        "template": {
            "metadata": {"labels": {"workload": name}},
            "spec": pod_spec("Never", dice),
        },
    }})
}

/// One to three containers. The named scheduler does not exist, so the pod stays unscheduled without endless retries.
fn pod_spec(restart_policy: &str, dice: &mut Prng) -> Value {
    let containers: Vec<Value> = ["main", "proxy", "exporter"][..=dice.below(3)]
        .iter()
        .map(|container| container_named(container, dice))
        .collect();
    json!({
        "schedulerName": "none",
        "restartPolicy": restart_policy,
        "serviceAccountName": "default",
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000},
        "terminationGracePeriodSeconds": 30,
        "containers": containers,
        "volumes": [
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    })
}

fn container_named(name: &str, dice: &mut Prng) -> Value {
    let variables: Vec<Value> = (0..3 + dice.below(15))
        .map(|number| match number % 4 {
            0 => json!({
                "name": format!("SECRET_{number}"),
                "valueFrom": {"secretKeyRef": {"name": "keys", "key": format!("k{number}")}},
            }),
            _ => json!({"name": format!("SETTING_{number}"), "value": dice.base64(16)}),
        })
        .collect();
    let probe = json!({
        "httpGet": {"path": "/healthz", "port": 8080},
        "periodSeconds": 10,
        "failureThreshold": 3,
    });
    json!({
        "name": name,
        "image": format!("registry.example.com/shop/{name}:1.{}.{}", dice.below(40), dice.below(9)),
        "args": ["--listen=:8080", "--log-format=json", "--config=/etc/app/config.yaml"],
        "env": variables,
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "512Mi"},
        },
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app", "readOnly": true},
            {"name": "keys", "mountPath": "/etc/keys", "readOnly": true},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    })
}

fn service(app: &str, dice: &mut Prng) -> Value {
    let mut spec = json!({
        "selector": {"app.kubernetes.io/name": app},
        "ports": [
            {"name": "http", "port": 80, "targetPort": "http"},
            {"name": "metrics", "port": 9090, "targetPort": 9090},
        ],
    });
    if dice.below(3) == 0 {
        spec["clusterIP"] = json!("None");
    }
    json!({"spec": spec})
}

/// Addresses outside the cluster, of no Service.
fn endpoints(dice: &mut Prng) -> Value {
    let addresses: Vec<Value> =
        (0..=dice.below(6)).map(|host| json!({"ip": format!("192.0.2.{}", 1 + host)})).collect();
    json!({"subsets": [{"addresses": addresses, "ports": [{"name": "sql", "port": 5432}]}]})
}

fn service_account(app: &str) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "imagePullSecrets": [{"name": format!("{app}-registry")}],
    })
}

fn role(dice: &mut Prng) -> Value {
    let rules: Vec<Value> = (0..=dice.below(4))
        .map(|number| {
            json!({
                "apiGroups": ["", "apps"],
                "resources": ["configmaps", "pods", "deployments"],
                "resourceNames": [format!("name-{number}")],
                "verbs": ["get", "list", "watch", "patch"],
            })
        })
        .collect();
    json!({"rules": rules})
}

fn role_binding(namespace: &str, app: &str) -> Value {
    json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": app},
        "subjects": [{"kind": "ServiceAccount", "name": app, "namespace": namespace}],
    })
}

/// Claim for a volume that does not exist: it stays pending, and none is provisioned.
fn claim(name: &str, dice: &mut Prng) -> Value {
    json!({"spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "standard",
        "volumeName": format!("pvc-{name}"),
        "resources": {"requests": {"storage": format!("{}Gi", 1 + dice.below(100))}},
    }})
}

fn ingress(app: &str, namespace: &str) -> Value {
    let host = format!("{app}.{namespace}.example.com");
    let backend = json!({"service": {"name": app, "port": {"number": 80}}});
    json!({"spec": {
        "ingressClassName": "nginx",
        "tls": [{"hosts": [host], "secretName": format!("{app}-tls")}],
        "rules": [{
            "host": host,
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
        }],
    }})
}

fn network_policy(app: &str) -> Value {
    let from = json!({"namespaceSelector": {"matchLabels": {"team": "team-00"}}});
    json!({"spec": {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [from], "ports": [{"protocol": "TCP", "port": 8080}]}],
    }})
}

fn certificate(name: &str, dice: &mut Prng) -> Value {
    json!({
        "spec": {
            "secretName": format!("{name}-tls"),
            "dnsNames": [format!("{name}.example.com"), format!("www.{name}.example.com")],
            "issuerRef": {"kind": "ClusterIssuer", "name": "letsencrypt"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "serial": dice.base64(24)},
    })
}

fn database(dice: &mut Prng) -> Value {
    let size = dice.size();
    json!({"spec": {"engine": "postgres", "version": "17", "settings": dice.settings(size)}})
}
