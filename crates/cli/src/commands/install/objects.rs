//! Objects to install besides the definitions. Sends no request.

use std::collections::BTreeMap;

use bowline_api::access::{self, Profile};
use bowline_api::label;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::server_pod::{self, ServerPod};

/// Name of the server's objects in their namespace.
pub(crate) const NAME: &str = "bowline";
/// Label by which they are found.
pub(crate) const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Label with the manager of an object.
pub(crate) const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";

/// Label with the Pod Security level of a namespace.
const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";
/// The strictest level.
const RESTRICTED: &str = "restricted";

/// Settings of an installation.
#[derive(Debug)]
pub(super) struct InstallPlan {
    pub(super) namespace: String,
    pub(super) profile: Profile,
    /// Credentials for the provider.
    pub(super) secret: Option<Vec<u8>>,
    pub(super) backups: Option<Location>,
    /// Provider of snapshots, and its settings.
    pub(super) snapshots: Option<(String, BTreeMap<String, String>)>,
    /// Existing service account to use.
    pub(super) service_account: Option<String>,
    pub(super) service_account_annotations: BTreeMap<String, String>,
    pub(super) pod: ServerPod,
    /// Messages about flags that change nothing.
    pub(super) warnings: Vec<String>,
}

/// Storage of backups.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) provider: String,
    pub(super) bucket: String,
    pub(super) prefix: String,
    pub(super) certificates: Option<Vec<u8>>,
    pub(super) config: BTreeMap<String, String>,
}

/// Label of the ClusterRole with its profile.
pub(super) const PROFILE_LABEL: &str = "bowline.io/profile";

/// Name of the server's cluster-scoped objects: a cluster may have several installations.
pub(crate) fn cluster_name(namespace: &str) -> String {
    format!("{NAME}-{namespace}")
}

/// All objects, in the order in which they can be created.
pub(super) fn all(plan: &InstallPlan) -> Vec<Value> {
    let mut objects = vec![namespace(plan)];
    if plan.service_account.is_none() {
        objects.push(service_account(plan));
    }
    objects.extend(roles(plan));
    objects.extend(secret(plan));
    objects.extend(backup_location(plan));
    objects.extend(snapshot_location(plan));
    let account = plan.service_account.as_deref().unwrap_or(NAME);
    objects.push(server_pod::disruption_budget(&plan.namespace));
    objects.push(server_pod::deployment(&plan.pod, &plan.namespace, account));
    for object in &mut objects {
        let labels = &mut object["metadata"]["labels"];
        labels[NAME_LABEL] = json!(NAME);
        labels[MANAGED_BY_LABEL] = json!(NAME);
    }
    objects
}

/// Kind and name of an object, for messages.
pub(super) fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// True if objects of a kind belong to the user once they exist.
pub(super) fn is_user_managed(kind: &str) -> bool {
    matches!(kind, "Namespace" | "Secret" | "BackupStorageLocation" | "VolumeSnapshotLocation")
}

/// Message for an existing namespace, which is not changed. Only a new one gets labels.
pub(super) fn kept_namespace_message(labels: &BTreeMap<String, String>) -> String {
    if labels.get(POD_SECURITY_LABEL).is_some_and(|level| level == RESTRICTED) {
        return "up to date".to_owned();
    }
    format!(
        "kept unchanged, so its pods are not restricted to the Pod Security level \
             `{RESTRICTED}`"
    )
}

fn namespace(plan: &InstallPlan) -> Value {
    let mut labels =
        json!({POD_SECURITY_LABEL: RESTRICTED, format!("{POD_SECURITY_LABEL}-version"): "latest"});
    for mode in ["audit", "warn"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = json!(RESTRICTED);
        labels[format!("pod-security.kubernetes.io/{mode}-version")] = json!("latest");
    }
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": plan.namespace, "labels": labels},
    })
}

fn service_account(plan: &InstallPlan) -> Value {
    let mut account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": plan.namespace},
    });
    if !plan.service_account_annotations.is_empty() {
        account["metadata"]["annotations"] = json!(plan.service_account_annotations);
    }
    account
}

/// Roles and their bindings.
fn roles(wish: &InstallPlan) -> [Value; 4] {
    const API: &str = "rbac.authorization.k8s.io/v1";
    let (namespace, cluster_role) = (&wish.namespace, cluster_name(&wish.namespace));
    let account = wish.service_account.as_deref().unwrap_or(NAME);
    let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": namespace}]);
    let reference = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    [
        json!({
            "apiVersion": API, "kind": "ClusterRole",
            "metadata": {
                "name": cluster_role,
                "labels": {PROFILE_LABEL: wish.profile.as_str()},
            },
            "rules": access::cluster_rules(wish.profile),
        }),
        json!({
            "apiVersion": API, "kind": "ClusterRoleBinding",
            "metadata": {"name": cluster_role},
            "roleRef": reference("ClusterRole", &cluster_role),
            "subjects": subjects,
        }),
        json!({
            "apiVersion": API, "kind": "Role",
            "metadata": {"name": NAME, "namespace": namespace},
            "rules": access::own_rules(),
        }),
        json!({
            "apiVersion": API, "kind": "RoleBinding",
            "metadata": {"name": NAME, "namespace": namespace},
            "roleRef": reference("Role", NAME),
            "subjects": subjects,
        }),
    ]
}

fn secret(plan: &InstallPlan) -> Option<Value> {
    let credentials = plan.secret.clone()?;
    Some(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": server_pod::SECRET, "namespace": plan.namespace,
            // A bucket must not hold its own keys; `bowline recovery export` keeps them elsewhere.
            "labels": {label::EXCLUDE_FROM_BACKUP: "true"},
        },
        "type": "Opaque",
        "data": {server_pod::SECRET_KEY: ByteString(credentials)},
    }))
}

fn backup_location(plan: &InstallPlan) -> Option<Value> {
    let Location { provider, bucket, prefix, certificates, config } = plan.backups.as_ref()?;
    let mut storage = json!({"bucket": bucket});
    if !prefix.is_empty() {
        storage["prefix"] = json!(prefix);
    }
    if let Some(certificates) = certificates {
        storage["caCert"] = json!(ByteString(certificates.clone()));
    }
    let mut spec = json!({"provider": provider, "default": true, "objectStorage": storage});
    if !config.is_empty() {
        spec["config"] = json!(config);
    }
    Some(json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": plan.namespace},
        "spec": spec,
    }))
}

fn snapshot_location(plan: &InstallPlan) -> Option<Value> {
    let (provider, config) = plan.snapshots.as_ref()?;
    let mut spec = json!({"provider": provider});
    if !config.is_empty() {
        spec["config"] = json!(config);
    }
    Some(json!({
        "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
        "metadata": {"name": "default", "namespace": plan.namespace},
        "spec": spec,
    }))
}
