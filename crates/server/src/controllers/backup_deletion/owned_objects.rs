//! Objects in the cluster that belong to a backup.

use std::fmt::Debug;

use bowline_api::{DataUpload, PodVolumeBackup, VolumePluginBackup, label};
use bowline_store::BackupName;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::list::list_all;
use crate::patch;
use crate::server::Context;

#[derive(Debug, Default)]
pub(super) struct OwnedObjects {
    pub(super) pod_volume_backups: Vec<PodVolumeBackup>,
    pub(super) data_uploads: Vec<DataUpload>,
    pub(super) volume_plugin_backups: Vec<VolumePluginBackup>,
}

pub(super) async fn find_owned(
    context: &Context,
    backup: &BackupName,
) -> kube::Result<OwnedObjects> {
    let value = label::value(backup.as_str());
    let of_backup = format!("{}={value}", label::BACKUP_NAME);
    // Plugins create these themselves, perhaps without labels.
    let is_report = |report: &VolumePluginBackup| {
        let name = report.labels().get(label::BACKUP_NAME);
        report.spec.backup == backup.as_str() || name.is_some_and(|name| *name == value)
    };
    let mut reports: Vec<VolumePluginBackup> = list(context, None).await?;
    reports.retain(is_report);
    Ok(OwnedObjects {
        pod_volume_backups: list(context, Some(&of_backup)).await?,
        data_uploads: list(context, Some(&of_backup)).await?,
        volume_plugin_backups: reports,
    })
}

/// All objects of a kind, or those that match a selector. None if the kind is not installed.
pub(super) async fn list<K>(context: &Context, selector: Option<&str>) -> kube::Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned,
{
    let api = context.api::<K>();
    let params =
        ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
    match list_all(&api, params).await {
        Err(error) if patch::is_not_found(&error) => Ok(Vec::new()),
        listed => listed,
    }
}
