//! Velero's server, where one runs: two servers must not work on the same backups.

use anyhow::bail;
use bowline_server::check::is_velero_server;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::installation::Installation;

/// What Velero's installer and its chart call the Deployment.
const VELERO: &str = "velero";
/// More Deployments than one namespace has, or than are called alike.
const MOST: u32 = 500;

/// Refuses to install beside a Velero that runs: in this namespace in any case, in another one unless that is
/// meant.
pub(super) async fn refuse(installation: &Installation, is_meant: bool) -> anyhow::Result<()> {
    let namespace = installation.namespace();
    let here: Api<Deployment> = installation.api();
    let params = ListParams::default().limit(MOST);
    let here = installation.ask("look for Velero", here.list(&params)).await?.items;
    if let Some(velero) = here.iter().find(|one| runs_velero(one)) {
        bail!(
            "Velero runs in namespace `{namespace}`, as Deployment `{}`, and both would work on the \
             same backups; `bowline migrate check -n {namespace}` says what carries over and how to \
             switch",
            velero.name_any()
        );
    }
    if is_meant {
        return Ok(());
    }
    let elsewhere = format!("metadata.name={VELERO},metadata.namespace!={namespace}");
    let all: Api<Deployment> = installation.cluster_api();
    let params = ListParams::default().fields(&elsewhere).limit(MOST);
    let found = installation.ask("look for Velero", all.list(&params)).await?.items;
    if let Some(velero) = found.iter().find(|one| runs_velero(one)) {
        let theirs = velero.namespace().unwrap_or_default();
        bail!(
            "Velero runs in namespace `{theirs}`; `bowline migrate check -n {theirs}` says what carries \
             over and how to switch; to have both, each for backups of its own, say --beside-velero"
        );
    }
    Ok(())
}

/// Whether a Deployment runs Velero's server. One without pods is kept for the way back.
fn runs_velero(deployment: &Deployment) -> bool {
    let Some(spec) = &deployment.spec else { return false };
    let containers = spec.template.spec.iter().flat_map(|pod| &pod.containers);
    spec.replicas.unwrap_or(1) > 0 && containers.into_iter().any(is_velero_server)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn velero_is_known_by_what_it_runs_and_one_without_pods_does_not_matter() {
        for (replicas, image, args, expected) in [
            (1, "velero/velero:v1.18.3", "server", true),
            (0, "velero/velero:v1.18.3", "server", false),
            (1, "bowline:v0.1.0", "server", false),
            (1, "velero/velero:v1.18.3", "node-agent", false),
        ] {
            let container = json!({"name": "velero", "image": image, "args": [args]});
            let deployment = serde_json::from_value(json!({
                "metadata": {"name": "velero"},
                "spec": {
                    "replicas": replicas, "selector": {},
                    "template": {"spec": {"containers": [container]}},
                },
            }));
            assert_eq!(runs_velero(&deployment.unwrap()), expected, "{image} {args}");
        }
    }
}
