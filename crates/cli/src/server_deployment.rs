//! The Deployment of the server, whoever installed it.

use anyhow::bail;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::Value;

use crate::installation::Installation;

/// What the server's container is called: as we install it, and as Velero does.
pub(crate) const CONTAINERS: [&str; 2] = ["bowline", "velero"];
/// More Deployments than the namespace of a server has.
const MOST: u32 = 500;

/// A Deployment with the server's container in it.
#[derive(Debug)]
pub(crate) struct ServerDeployment {
    pub(crate) name: String,
    pub(crate) pod: PodSpec,
    pub(crate) server: Container,
}

impl ServerDeployment {
    pub(crate) async fn find(installation: &Installation) -> anyhow::Result<Self> {
        let api = installation.api::<Deployment>();
        let params = ListParams::default().limit(MOST);
        let list = installation.ask("list the Deployments", api.list(&params)).await?;
        match Self::choose(list.items) {
            Some(found) => Ok(found),
            None => bail!(
                "there is no Deployment of a server in namespace `{}`; name the server's with \
                 --namespace",
                installation.namespace()
            ),
        }
    }

    /// Ours before Velero's, which may be there without pods.
    fn choose(deployments: Vec<Deployment>) -> Option<Self> {
        let mut found: Vec<(usize, Self)> = deployments
            .into_iter()
            .filter_map(|deployment| {
                let name = deployment.name_any();
                let pod = deployment.spec?.template.spec?;
                let place = |container: &Container| {
                    CONTAINERS.iter().position(|name| *name == container.name)
                };
                let server =
                    pod.containers.iter().min_by_key(|one| place(one).unwrap_or(usize::MAX))?;
                let (place, server) = (place(server)?, server.clone());
                Some((place, Self { name, pod, server }))
            })
            .collect();
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().next().map(|(_, deployment)| deployment)
    }

    /// Changes the pod's template. A list of objects with names is merged by them, so that the rest
    /// stays.
    pub(crate) async fn change(
        &self,
        installation: &Installation,
        pod: Value,
    ) -> anyhow::Result<()> {
        let api = installation.api::<Deployment>();
        let change = serde_json::json!({"spec": {"template": {"spec": pod}}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(change));
        let doing = format!("change the Deployment `{}`", self.name);
        installation.ask(&doing, api.patch(&self.name, &params, &patch)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_known_by_its_container_and_ours_comes_first() {
        let deployment = |name: &str, containers: &[&str]| -> Deployment {
            let containers: Vec<Value> =
                containers.iter().map(|name| json!({"name": name})).collect();
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"selector": {}, "template": {"spec": {"containers": containers}}},
            }))
            .unwrap()
        };
        let others =
            || vec![deployment("web", &["nginx"]), deployment("velero", &["side", "velero"])];
        let found = ServerDeployment::choose(others()).unwrap();
        assert_eq!((found.name.as_str(), found.server.name.as_str()), ("velero", "velero"));
        let mut all = others();
        all.push(deployment("b", &["bowline"]));
        assert_eq!(ServerDeployment::choose(all).unwrap().name, "b");
        assert!(ServerDeployment::choose(vec![deployment("web", &["nginx"])]).is_none());
    }
}
