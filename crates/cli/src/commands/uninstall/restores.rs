//! The finalizers of restores block the deletion of their namespace until a server has deleted their files. So restores
//! are deleted while a server runs, and finalizers that no server removes are removed here.

use std::fmt::Debug;
use std::time::Duration;

use bowline_api::annotation::finalizer;
use bowline_api::{DataDownload, DataUpload, PodVolumeBackup, PodVolumeRestore, Restore};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use super::POLL_INTERVAL;
use crate::installation::{Installation, is_not_found, is_unknown_kind};
use crate::server_deployment::SERVER_CONTAINERS;
use crate::{output, pages};

/// Time for a server to delete the files of all restores.
const SERVER_TIMEOUT: Duration = Duration::from_mins(1);

/// Deletes the restores, and removes all finalizers of Velero that block the namespace.
pub(super) async fn delete_restores(installation: &Installation) -> anyhow::Result<()> {
    let api: Api<Restore> = installation.api();
    let doing = "delete the restores";
    let request = async {
        match api.delete_collection(&DeleteParams::default(), &ListParams::default()).await {
            Err(error) if is_unknown_kind(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    };
    installation.call_api(doing, request).await?;
    if is_server_available(installation).await? {
        let deadline = Instant::now() + SERVER_TIMEOUT;
        while Instant::now() < deadline
            && !objects_with_finalizer::<Restore>(installation, finalizer::RESTORE)
                .await?
                .is_empty()
        {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    remove_finalizer::<Restore>(installation, finalizer::RESTORE).await?;
    // These belong to runs that no server resumes once the namespace is gone.
    remove_finalizer::<DataUpload>(installation, finalizer::DATA_MOVE).await?;
    remove_finalizer::<DataDownload>(installation, finalizer::DATA_MOVE).await?;
    remove_finalizer::<PodVolumeBackup>(installation, finalizer::POD_VOLUME).await?;
    remove_finalizer::<PodVolumeRestore>(installation, finalizer::POD_VOLUME).await
}

/// True if a server is available, Bowline's or Velero's.
async fn is_server_available(installation: &Installation) -> anyhow::Result<bool> {
    let api: Api<Deployment> = installation.api();
    for name in SERVER_CONTAINERS {
        let found =
            installation.call_api("read the server's Deployment", api.get_opt(name)).await?;
        let status = found.and_then(|deployment| deployment.status).unwrap_or_default();
        if status.available_replicas.unwrap_or_default() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Objects of a kind with a finalizer.
async fn objects_with_finalizer<K>(
    installation: &Installation,
    finalizer: &str,
) -> anyhow::Result<Vec<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let doing = format!("list the {}s", K::kind(&()));
    let request = async |params: &ListParams| api.list_metadata(params).await;
    let select = |object: PartialObjectMeta<K>| {
        object.finalizers().iter().any(|one| one == finalizer).then_some(object)
    };
    pages::list_if_served(installation, &doing, ListParams::default(), request, select).await
}

/// Removes a finalizer from all objects of a kind. Finalizers of others stay.
async fn remove_finalizer<K>(installation: &Installation, finalizer: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let objects = objects_with_finalizer::<K>(installation, finalizer).await?;
    for object in &objects {
        let name = object.name_any();
        let remaining: Vec<_> =
            object.finalizers().iter().filter(|one| *one != finalizer).collect();
        let change = Patch::Merge(json!({"metadata": {"finalizers": remaining}}));
        let (doing, params) =
            (format!("remove the finalizer of {} {name}", K::kind(&())), PatchParams::default());
        let request = async {
            match api.patch_metadata(&name, &params, &change).await {
                // The object was deleted meanwhile.
                Err(error) if is_not_found(&error) => Ok(()),
                patched => patched.map(drop),
            }
        };
        installation.call_api(&doing, request).await?;
    }
    if !objects.is_empty() {
        output::print_message(format_args!(
            "{} {}: finalizers removed without a server; their files in the bucket, if any, are \
             kept",
            objects.len(),
            K::plural(&()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_installation::installation_that_answers;

    #[tokio::test]
    async fn objects_beyond_the_last_page_are_not_forgotten() {
        let endless = installation_that_answers(|_| {
            let page = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": {"continue": "next"}, "items": [],
            });
            (200, page)
        });
        let listed = objects_with_finalizer::<Restore>(&endless, finalizer::RESTORE).await;
        let error = listed.unwrap_err().to_string();
        assert!(error.starts_with("cannot list the Restores: "), "{error}");
    }
}
