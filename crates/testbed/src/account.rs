//! Accounts with rights of their own, for programs that are to work as they do where they are installed.

use std::path::PathBuf;

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use serde_json::{Value, json};

use crate::apply::apply;
use crate::{ControlPlane, Error};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Who a program is to a cluster, and what it may do there.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its name, which its roles have, too.
    pub user: String,
    /// What it may do everywhere.
    pub cluster_rules: Vec<PolicyRule>,
    /// The namespace in which it may do more.
    pub namespace: String,
    /// What it may do there.
    pub own_rules: Vec<PolicyRule>,
}

impl Account {
    /// Grants the rights, and returns the kubeconfig of whoever has them, for programs on this machine.
    pub async fn open(&self, plane: &ControlPlane) -> Result<PathBuf, Error> {
        self.grant(&plane.client().await?).await?;
        plane.kubeconfig_here(&self.user)
    }

    /// Grants the rights, also in a namespace that is not there yet. Those in other namespaces stay.
    pub async fn grant(&self, client: &Client) -> Result<(), Error> {
        let metadata = json!({"name": self.namespace});
        apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
            .await?;
        for object in self.role_objects() {
            apply(client, object).await?;
        }
        Ok(())
    }

    /// The roles and their bindings.
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
