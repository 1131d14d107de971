//! Facts about an installation, read from the cluster.

use bowline_api::{
    Backup, BackupRepository, BackupStorageLocation, DataUpload, PodVolumeBackup, Schedule,
    VolumePluginBackup, VolumeSnapshotLocation, label,
};
use bowline_server::preflight::is_velero_server;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Container;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

use crate::commands::install;
use crate::installation::Installation;
use crate::{listing, pages, server_deployment};

/// Collected facts.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Velero's server.
    pub(super) velero: Option<Server>,
    /// Bowline's server.
    pub(super) bowline: Option<Server>,
    pub(super) has_node_agent: bool,
    pub(super) backups: Vec<Backup>,
    pub(super) schedules: Vec<Schedule>,
    pub(super) locations: Vec<BackupStorageLocation>,
    pub(super) snapshot_locations: Vec<VolumeSnapshotLocation>,
    /// Backup of each PodVolumeBackup, by the name in its label.
    pub(super) pod_volume_backups: Vec<String>,
    /// The same for each DataUpload.
    pub(super) data_uploads: Vec<String>,
    pub(super) repositories: usize,
    /// Plugin or driver that took the snapshot of each VolumePluginBackup.
    pub(super) snapshotters: Vec<String>,
}

impl Facts {
    /// True if there are no backups, schedules or locations.
    pub(super) fn is_empty(&self) -> bool {
        self.backups.is_empty()
            && self.schedules.is_empty()
            && self.locations.is_empty()
            && self.snapshot_locations.is_empty()
    }
}

/// Server, as its Deployment describes it.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// Name of the Deployment.
    pub(super) name: String,
    /// Desired number of pods.
    pub(super) replicas: i32,
    /// Flags, without the word `server`.
    pub(super) flags: Vec<String>,
    /// Images of its plugins.
    pub(super) plugins: Vec<String>,
}

/// Collects the facts about an installation.
pub(super) async fn gather(installation: &Installation) -> anyhow::Result<Facts> {
    let daemon_sets: Api<DaemonSet> = installation.api();
    let params = ListParams::default();
    let daemon_sets =
        installation.call_api("list the DaemonSets", daemon_sets.list(&params)).await?;
    Ok(Facts {
        velero: find_velero_server(installation).await?,
        bowline: find_bowline_server(installation).await?,
        has_node_agent: daemon_sets.items.iter().any(|set| set.name_any().contains("node-agent")),
        backups: listing::find(installation, &[], None).await?,
        schedules: listing::find(installation, &[], None).await?,
        locations: listing::find(installation, &[], None).await?,
        snapshot_locations: listing::find(installation, &[], None).await?,
        pod_volume_backups: list_all(installation, backup_label::<PodVolumeBackup>).await?,
        data_uploads: list_all(installation, backup_label::<DataUpload>).await?,
        repositories: list_all(installation, |_: &BackupRepository| ()).await?.len(),
        snapshotters: list_all(installation, |one: &VolumePluginBackup| one.spec.plugin.clone())
            .await?,
    })
}

/// Velero's server, whatever the name of its Deployment; of several, one that has pods.
async fn find_velero_server(installation: &Installation) -> anyhow::Result<Option<Server>> {
    let found =
        server_deployment::velero_deployments(installation, &installation.api(), "").await?;
    let servers = found.into_iter().filter_map(read_server);
    Ok(servers.max_by_key(|server| server.replicas))
}

async fn find_bowline_server(installation: &Installation) -> anyhow::Result<Option<Server>> {
    let (api, name): (Api<Deployment>, _) = (installation.api(), install::NAME);
    let doing = format!("read Deployment {name}");
    Ok(installation.call_api(&doing, api.get_opt(name)).await?.and_then(read_server))
}

/// Server in a Deployment: the container with Velero's, or the first one.
fn read_server(deployment: Deployment) -> Option<Server> {
    let name = deployment.name_any();
    let spec = deployment.spec?;
    let pod = spec.template.spec.unwrap_or_default();
    let index = pod.containers.iter().position(is_velero_server).unwrap_or_default();
    let main = pod.containers.into_iter().nth(index).unwrap_or_default();
    // The first word of a command is the program.
    let words = main.command.unwrap_or_default().into_iter().skip(1);
    let words = words.chain(main.args.unwrap_or_default());
    let flags = words.filter(|word| word != "server").collect();
    let image = |container: Container| container.image.unwrap_or_default();
    Some(Server {
        name,
        replicas: spec.replicas.unwrap_or(1),
        flags,
        plugins: pod.init_containers.unwrap_or_default().into_iter().map(image).collect(),
    })
}

/// Backup that an object belongs to.
fn backup_label<K: kube::Resource>(object: &K) -> String {
    object.labels().get(label::BACKUP_NAME).cloned().unwrap_or_default()
}

/// A value from each object of a kind; none if the kind is not installed.
async fn list_all<K, T>(
    installation: &Installation,
    extract: impl Fn(&K) -> T,
) -> anyhow::Result<Vec<T>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let doing = format!("list the {}s", K::kind(&()));
    let request = async |params: &ListParams| api.list(params).await;
    let select = |object: K| Some(extract(&object));
    pages::list_if_served(installation, &doing, ListParams::default(), request, select).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_is_read_from_its_container_among_sidecars() {
        let deployment = json!({
            "metadata": {"name": "backups-velero"},
            "spec": {"selector": {}, "template": {"spec": {
                "initContainers": [{"name": "p", "image": "x/plugin:v1"}],
                "containers": [
                    {"name": "proxy", "image": "x/proxy", "args": ["--listen"]},
                    {
                        "name": "velero", "image": "mirror.example/v:1",
                        "command": ["/velero", "server", "--log-level=debug"], "args": ["--features="],
                    },
                ],
            }}},
        });
        let server = read_server(serde_json::from_value(deployment).unwrap()).unwrap();
        assert_eq!((server.name.as_str(), server.replicas), ("backups-velero", 1));
        assert_eq!(server.flags, ["--log-level=debug", "--features="]);
        assert_eq!(server.plugins, ["x/plugin:v1"]);
    }
}
