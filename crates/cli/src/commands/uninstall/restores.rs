//! Restores hold their namespace back until a server has deleted their files. So they go while one runs,
//! and what no server lets go of is let go here.

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

use super::LOOK;
use crate::installation::{Installation, is_not_found, is_unknown_kind};
use crate::output;
use crate::server_deployment::CONTAINERS;

/// How long a server has to delete the files of all restores.
const SERVER_LIMIT: Duration = Duration::from_mins(1);
/// Objects in one answer, and the most answers of one kind.
const PAGE: u32 = 500;
const MOST_PAGES: usize = 200;

/// Deletes the restores, and sees to it that nothing of Velero's holds the namespace back.
pub(super) async fn let_go(installation: &Installation) -> anyhow::Result<()> {
    let api: Api<Restore> = installation.api();
    let doing = "delete the restores";
    let request = async {
        match api.delete_collection(&DeleteParams::default(), &ListParams::default()).await {
            Err(error) if is_unknown_kind(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    };
    installation.ask(doing, request).await?;
    if server_is_there(installation).await? {
        let deadline = Instant::now() + SERVER_LIMIT;
        while Instant::now() < deadline
            && !held::<Restore>(installation, finalizer::RESTORE).await?.is_empty()
        {
            tokio::time::sleep(LOOK).await;
        }
    }
    release::<Restore>(installation, finalizer::RESTORE).await?;
    // These are of runs that nobody goes on with once the namespace is gone.
    release::<DataUpload>(installation, finalizer::DATA_MOVE).await?;
    release::<DataDownload>(installation, finalizer::DATA_MOVE).await?;
    release::<PodVolumeBackup>(installation, finalizer::POD_VOLUME).await?;
    release::<PodVolumeRestore>(installation, finalizer::POD_VOLUME).await
}

/// Whether a server is ready to work, ours or Velero's.
async fn server_is_there(installation: &Installation) -> anyhow::Result<bool> {
    let api: Api<Deployment> = installation.api();
    for name in CONTAINERS {
        let found = installation.ask("read the server's Deployment", api.get_opt(name)).await?;
        let status = found.and_then(|deployment| deployment.status).unwrap_or_default();
        if status.available_replicas.unwrap_or_default() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Objects of a kind with a finalizer.
async fn held<K>(
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
    let mut params = ListParams::default().limit(PAGE);
    let mut held = Vec::new();
    for _ in 0..MOST_PAGES {
        let request = async {
            match api.list_metadata(&params).await {
                Err(error) if is_unknown_kind(&error) => Ok(None),
                page => page.map(Some),
            }
        };
        let Some(page) = installation.ask(&doing, request).await? else { break };
        let is_held =
            |object: &PartialObjectMeta<K>| object.finalizers().iter().any(|one| one == finalizer);
        held.extend(page.items.into_iter().filter(is_held));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            break;
        }
    }
    Ok(held)
}

/// Takes a finalizer off all objects of a kind. What others hold stays held.
async fn release<K>(installation: &Installation, finalizer: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let held = held::<K>(installation, finalizer).await?;
    for object in &held {
        let name = object.name_any();
        let kept: Vec<_> = object.finalizers().iter().filter(|one| *one != finalizer).collect();
        let change = Patch::Merge(json!({"metadata": {"finalizers": kept}}));
        let (doing, params) =
            (format!("remove the finalizer of {} {name}", K::kind(&())), PatchParams::default());
        let request = async {
            match api.patch_metadata(&name, &params, &change).await {
                // Somebody has been faster.
                Err(error) if is_not_found(&error) => Ok(()),
                patched => patched.map(drop),
            }
        };
        installation.ask(&doing, request).await?;
    }
    if !held.is_empty() {
        output::say(format_args!(
            "{} {}: finalizers removed without a server; their files in the bucket, if any, are \
             kept",
            held.len(),
            K::plural(&()),
        ));
    }
    Ok(())
}
