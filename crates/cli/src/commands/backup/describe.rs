//! `bowline backup describe`: the state of a backup in the cluster and in its storage location.

mod deletion;
mod freeze;
pub(crate) mod json;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use bowline_api::download_request::DownloadTargetKind;
use bowline_api::{Backup, DeleteBackupRequest};
use bowline_store::file::{BackupOperation, BackupVolumeInfo, ResourceList, Results};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::describe::{DescribableRun, Fetched, FetchedVolumeProgress, file};
use crate::download::Downloads;
use crate::installation::Installation;

/// Files of a backup in the storage location. A file that was not requested is absent.
#[derive(Debug, Default)]
pub(crate) struct Files {
    results: Option<Fetched<Results>>,
    volumes: Option<Fetched<Vec<BackupVolumeInfo>>>,
    operations: Option<Fetched<Vec<BackupOperation>>>,
    resources: Option<Fetched<ResourceList>>,
    /// Not a file: state of the requests to delete the backup.
    deletions: Option<Fetched<Vec<DeleteBackupRequest>>>,
}

#[cfg(feature = "testing")]
impl Files {
    /// Files with these contents.
    pub(crate) fn downloaded(
        results: Results,
        volumes: Vec<BackupVolumeInfo>,
        operations: Vec<BackupOperation>,
        resources: ResourceList,
    ) -> Self {
        Self {
            results: Some(Ok(results)),
            volumes: Some(Ok(volumes)),
            operations: Some(Ok(operations)),
            resources: Some(Ok(resources)),
            deletions: None,
        }
    }
}

impl DescribableRun for Backup {
    type Files = Files;

    async fn fetch(&self, downloads: &Downloads, details: bool) -> Files {
        let status = self.status.clone().unwrap_or_default();
        let name = self.name_any();
        let has_results = status.errors > 0 || status.warnings > 0;
        let has_operations = details && status.backup_item_operations_attempted > 0;
        let (results, volumes, operations, resources) = tokio::join!(
            file(downloads, &name, DownloadTargetKind::BackupResults, has_results),
            file(downloads, &name, DownloadTargetKind::BackupVolumeInfos, true),
            file(downloads, &name, DownloadTargetKind::BackupItemOperations, has_operations),
            file(downloads, &name, DownloadTargetKind::BackupResourceList, details),
        );
        Files { results, volumes, operations, resources, deletions: None }
    }

    async fn fetch_related(&self, installation: &Installation, files: &mut Files) {
        files.deletions = Some(deletion::find(installation, self).await);
    }

    fn text(&self, files: &Files, transfers: &FetchedVolumeProgress, details: bool) -> String {
        text::render(self, files, transfers, details)
    }

    fn json(&self, files: &Files, transfers: &FetchedVolumeProgress, details: bool) -> Value {
        json::render(self, files, transfers, details)
    }
}
