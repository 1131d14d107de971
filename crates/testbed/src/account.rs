//! Accounts with their own RBAC rights, for programs that must run with the rights they have when installed.

use std::path::PathBuf;

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use serde_json::{Value, json};

use crate::apply::apply;
use crate::{ControlPlane, Error};

const GROUP: &str = "rbac.authorization.k8s.io";

/// User of a cluster and the rights it has there.
#[derive(Clone, Debug)]
pub struct Account {
    /// Name of the user, and of its roles.
    pub user: String,
    /// Rights in the whole cluster.
    pub cluster_rules: Vec<PolicyRule>,
    /// Namespace in which the user has further rights.
    pub namespace: String,
    /// Rights in that namespace.
    pub own_rules: Vec<PolicyRule>,
}

impl Account {
    /// Grants the rights and returns a kubeconfig of the user, for programs on this machine.
    pub async fn open(&self, plane: &ControlPlane) -> Result<PathBuf, Error> {
        self.grant(&plane.client().await?).await?;
        plane.kubeconfig_here(&self.user)
    }

    /// Grants the rights, also in a namespace that does not exist yet. Rights in other namespaces stay.
    pub async fn grant(&self, client: &Client) -> Result<(), Error> {
        let metadata = json!({"name": self.namespace});
        apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
            .await?;
        for object in self.role_objects() {
            apply(client, object).await?;
        }
        Ok(())
    }

    /// Roles and their bindings.
    pub fn role_objects(&self) -> [Value; 4] {
        let Self { user, cluster_rules, own_rules, .. } = self;
        let namespace = Some(self.namespace.as_str());
        let role = |kind: &str, namespace: Option<&str>, rules: &[PolicyRule]| {
            json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": kind,
                "metadata": {"name": user, "namespace": namespace}, "rules": rules,
            })
        };
        let binding = |kind: &str, namespace: Option<&str>| {
            json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": format!("{kind}Binding"),
                "metadata": {"name": user, "namespace": namespace},
                "roleRef": {"apiGroup": GROUP, "kind": kind, "name": user},
                "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
            })
        };
        [
            role("ClusterRole", None, cluster_rules),
            binding("ClusterRole", None),
            role("Role", namespace, own_rules),
            binding("Role", namespace),
        ]
    }
}
