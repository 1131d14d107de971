//! What is looked at in the cluster.

use bowline_api::{
    Backup, BackupRepository, BackupStorageLocation, DataUpload, PodVolumeBackup, Schedule,
    VolumePluginBackup, VolumeSnapshotLocation, label,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Container;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

use crate::commands::install;
use crate::installation::{Installation, is_unknown_kind};
use crate::listing;

/// How many objects of a kind are looked at at most: the answer only has to say whether there are many.
const MOST: u32 = 5000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Velero's server.
    pub(super) velero: Option<Server>,
    /// Ours.
    pub(super) bowline: Option<Server>,
    pub(super) has_node_agent: bool,
    pub(super) backups: Vec<Backup>,
    pub(super) schedules: Vec<Schedule>,
    pub(super) locations: Vec<BackupStorageLocation>,
    pub(super) snapshot_locations: Vec<VolumeSnapshotLocation>,
    /// Of each PodVolumeBackup, the backup that it belongs to, as a label names it.
    pub(super) pod_volume_backups: Vec<String>,
    /// The same of each DataUpload.
    pub(super) data_uploads: Vec<String>,
    pub(super) repositories: usize,
    /// Of each VolumePluginBackup, the plugin that took the snapshot, or the driver.
    pub(super) snapshotters: Vec<String>,
}

/// A server, as its Deployment describes it.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// How many pods of it are wanted.
    pub(super) replicas: i32,
    /// Its flags, without the word `server`.
    pub(super) flags: Vec<String>,
    /// The images of its plugins.
    pub(super) plugins: Vec<String>,
}

/// Looks at an installation.
pub(super) async fn gather(installation: &Installation) -> anyhow::Result<Facts> {
    let daemon_sets: Api<DaemonSet> = installation.api();
    let params = ListParams::default();
    let daemon_sets =
        installation.ask("look for the node agent", daemon_sets.list(&params)).await?;
    Ok(Facts {
        velero: server(installation, "velero").await?,
        bowline: server(installation, install::NAME).await?,
        has_node_agent: daemon_sets.items.iter().any(|set| set.name_any().contains("node-agent")),
        backups: listing::find(installation, &[], None).await?,
        schedules: listing::find(installation, &[], None).await?,
        locations: listing::find(installation, &[], None).await?,
        snapshot_locations: listing::find(installation, &[], None).await?,
        pod_volume_backups: each(installation, backup_of::<PodVolumeBackup>).await?,
        data_uploads: each(installation, backup_of::<DataUpload>).await?,
        repositories: each(installation, |_: &BackupRepository| ()).await?.len(),
        snapshotters: each(installation, |one: &VolumePluginBackup| one.spec.plugin.clone())
            .await?,
    })
}

async fn server(installation: &Installation, name: &str) -> anyhow::Result<Option<Server>> {
    let api: Api<Deployment> = installation.api();
    let doing = format!("look at the Deployment {name}");
    let found = installation.ask(&doing, api.get_opt(name)).await?;
    let Some(spec) = found.and_then(|deployment| deployment.spec) else { return Ok(None) };
    let pod = spec.template.spec.unwrap_or_default();
    let main = pod.containers.into_iter().next().unwrap_or_default();
    let words = main.args.unwrap_or_default().into_iter();
    let flags = words.filter(|word| word != "server").collect();
    let image = |container: Container| container.image.unwrap_or_default();
    Ok(Some(Server {
        replicas: spec.replicas.unwrap_or(1),
        flags,
        plugins: pod.init_containers.unwrap_or_default().into_iter().map(image).collect(),
    }))
}

/// The backup that an object belongs to.
fn backup_of<K: kube::Resource>(object: &K) -> String {
    object.labels().get(label::BACKUP_NAME).cloned().unwrap_or_default()
}

/// Something of each object of a kind; none are there of one that is not installed.
async fn each<K, T>(installation: &Installation, of: impl Fn(&K) -> T) -> anyhow::Result<Vec<T>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let params = ListParams::default().limit(MOST);
    let request = async {
        match api.list(&params).await {
            Err(error) if is_unknown_kind(&error) => Ok(Vec::new()),
            listed => listed.map(|listed| listed.items),
        }
    };
    let doing = format!("list the {}s", K::kind(&()));
    Ok(installation.ask(&doing, request).await?.iter().map(of).collect())
}
