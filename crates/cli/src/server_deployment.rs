//! Deployment of the server, however it was installed.

use anyhow::bail;
use bowline_server::preflight::is_velero_server;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use crate::installation::Installation;
use crate::pages;

/// Names of the server's container: as Bowline and as Velero install it.
pub(crate) const SERVER_CONTAINERS: [&str; 2] = ["bowline", "velero"];

/// Deployment that contains the server's container.
#[derive(Debug)]
pub(crate) struct ServerDeployment {
    pub(crate) name: String,
    pub(crate) pod: PodSpec,
    pub(crate) server: Container,
}

impl ServerDeployment {
    pub(crate) async fn find(installation: &Installation) -> anyhow::Result<Self> {
        let doing = "list the Deployments";
        let all = list(installation, &installation.api(), doing, "", |_| true).await?;
        match Self::choose(all) {
            Some(found) => Ok(found),
            None => bail!(
                "no server Deployment found in namespace `{}`; name the server's namespace with \
                 --namespace",
                installation.namespace()
            ),
        }
    }

    /// Bowline's before Velero's, which may be scaled to zero.
    fn choose(deployments: Vec<Deployment>) -> Option<Self> {
        let mut found: Vec<(usize, Self)> = deployments
            .into_iter()
            .filter_map(|deployment| {
                let name = deployment.name_any();
                let pod = deployment.spec?.template.spec?;
                let rank = |container: &Container| {
                    SERVER_CONTAINERS.iter().position(|name| *name == container.name)
                };
                let server =
                    pod.containers.iter().min_by_key(|one| rank(one).unwrap_or(usize::MAX))?;
                let (rank, server) = (rank(server)?, server.clone());
                Some((rank, Self { name, pod, server }))
            })
            .collect();
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().next().map(|(_, deployment)| deployment)
    }

    /// Changes the pod template. Lists of named objects are merged by name, so that the rest stays.
    pub(crate) async fn patch_pod(
        &self,
        installation: &Installation,
        pod: Value,
    ) -> anyhow::Result<()> {
        let api = installation.api::<Deployment>();
        let change = serde_json::json!({"spec": {"template": {"spec": pod}}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(change));
        let doing = format!("change Deployment `{}`", self.name);
        installation.call_api(&doing, api.patch(&self.name, &params, &patch)).await?;
        Ok(())
    }
}

/// Deployments of Velero's server, with pods or without, recognised by their container: a release of the chart may give
/// them any name. `fields` is a field selector.
pub(crate) async fn velero_deployments(
    installation: &Installation,
    api: &Api<Deployment>,
    fields: &str,
) -> anyhow::Result<Vec<Deployment>> {
    list(installation, api, "list the Deployments of Velero", fields, has_velero_server).await
}

/// Deployments that match a condition.
pub(crate) async fn list(
    installation: &Installation,
    api: &Api<Deployment>,
    doing: &str,
    fields: &str,
    predicate: impl Fn(&Deployment) -> bool,
) -> anyhow::Result<Vec<Deployment>> {
    let params = ListParams::default().fields(fields);
    let request = async |params: &ListParams| api.list(params).await;
    let select = |deployment| predicate(&deployment).then_some(deployment);
    pages::list(installation, doing, params, request, select).await
}

/// True if a Deployment is one of Velero's server, with pods or without.
fn has_velero_server(deployment: &Deployment) -> bool {
    containers(deployment).any(is_velero_server)
}

/// True if a Deployment runs Velero's server. One without pods is kept for the way back.
pub(crate) fn runs_velero(deployment: &Deployment) -> bool {
    let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    replicas > 0 && has_velero_server(deployment)
}

/// True if a Deployment is one of a server, Bowline's or Velero's, by its container or by its names.
pub(crate) fn is_server(deployment: &Deployment) -> bool {
    let is_ours_or_veleros = |name: &str| SERVER_CONTAINERS.contains(&name);
    is_ours_or_veleros(&deployment.name_any())
        || containers(deployment).any(|one| is_velero_server(one) || is_ours_or_veleros(&one.name))
}

fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.into_iter().flat_map(|pod| &pod.containers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_is_recognized_by_its_container_and_bowline_comes_first() {
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

    #[test]
    fn velero_is_recognized_by_its_container_and_not_running_at_zero_replicas() {
        for (name, replicas, image, args, [runs, is_one]) in [
            ("velero", 1, "velero/velero:v1.18.3", "server", [true, true]),
            ("velero", 0, "velero/velero:v1.18.3", "server", [false, true]),
            ("backups-velero", 1, "velero/velero:v1.18.3", "server", [true, true]),
            ("velero", 1, "bowline:v0.1.0", "server", [false, true]),
            ("x", 1, "velero/velero:v1.18.3", "node-agent", [false, false]),
        ] {
            let container = json!({"name": "c", "image": image, "args": [args]});
            let deployment = serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {
                    "replicas": replicas, "selector": {},
                    "template": {"spec": {"containers": [container]}},
                },
            }))
            .unwrap();
            assert_eq!(runs_velero(&deployment), runs, "{name} {replicas} {image} {args}");
            assert_eq!(is_server(&deployment), is_one, "{name} {replicas} {image} {args}");
        }
    }
}
