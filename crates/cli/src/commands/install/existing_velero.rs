//! Running Velero servers: two servers must not work on the same backups.

use anyhow::bail;
use kube::ResourceExt as _;

use crate::installation::Installation;
use crate::server_deployment::{runs_velero, velero_deployments};

/// Refuses to install beside a running Velero: always in this namespace, in another one unless the user requests it.
pub(super) async fn refuse_beside_velero(
    installation: &Installation,
    is_allowed_elsewhere: bool,
) -> anyhow::Result<()> {
    let namespace = installation.namespace();
    let in_namespace = velero_deployments(installation, &installation.api(), "").await?;
    if let Some(velero) = in_namespace.iter().find(|one| runs_velero(one)) {
        bail!(
            "Velero runs in namespace `{namespace}` as Deployment `{}`, and both would process the \
             same backups; `bowline migrate check -n {namespace}` shows what carries over and how \
             to switch",
            velero.name_any()
        );
    }
    if is_allowed_elsewhere {
        return Ok(());
    }
    let elsewhere = format!("metadata.namespace!={namespace}");
    let found = velero_deployments(installation, &installation.cluster_api(), &elsewhere).await?;
    if let Some(velero) = found.iter().find(|one| runs_velero(one)) {
        let velero_namespace = velero.namespace().unwrap_or_default();
        bail!(
            "Velero runs in namespace `{velero_namespace}` as Deployment `{}`; `bowline migrate check -n \
             {velero_namespace}` shows what carries over and how to switch; to run both, with separate \
             backups, add --beside-velero",
            velero.name_any()
        );
    }
    Ok(())
}
