//! `bowline restore describe`: the state of a restore in the cluster and in its storage location.

mod json;
#[cfg(test)]
mod tests;
mod text;
mod volumes;

use bowline_api::Restore;
use bowline_api::download_request::DownloadTargetKind;
use bowline_store::file::{ResourceList, RestoreOperation, RestoreVolumeInfo, Results};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::describe::{DescribableRun, Fetched, FetchedVolumeProgress, file};
use crate::download::Downloads;

/// Files of a restore in the storage location. A file that was not requested is absent.
#[derive(Debug, Default)]
pub(crate) struct Files {
    results: Option<Fetched<Results>>,
    volumes: Option<Fetched<Vec<RestoreVolumeInfo>>>,
    operations: Option<Fetched<Vec<RestoreOperation>>>,
    resources: Option<Fetched<ResourceList>>,
}

#[cfg(feature = "testing")]
impl Files {
    /// Files with these contents.
    pub(crate) fn downloaded(
        results: Results,
        volumes: Vec<RestoreVolumeInfo>,
        operations: Vec<RestoreOperation>,
        resources: ResourceList,
    ) -> Self {
        Self {
            results: Some(Ok(results)),
            volumes: Some(Ok(volumes)),
            operations: Some(Ok(operations)),
            resources: Some(Ok(resources)),
        }
    }
}

impl DescribableRun for Restore {
    type Files = Files;

    async fn fetch(&self, downloads: &Downloads, details: bool) -> Files {
        let status = self.status.clone().unwrap_or_default();
        let name = self.name_any();
        let has_results = status.errors > 0 || status.warnings > 0;
        let has_operations = details && status.restore_item_operations_attempted > 0;
        let (results, volumes, operations, resources) = tokio::join!(
            file(downloads, &name, DownloadTargetKind::RestoreResults, has_results),
            file(downloads, &name, DownloadTargetKind::RestoreVolumeInfo, true),
            file(downloads, &name, DownloadTargetKind::RestoreItemOperations, has_operations),
            file(downloads, &name, DownloadTargetKind::RestoreResourceList, details),
        );
        Files { results, volumes, operations, resources }
    }

    fn text(&self, files: &Files, transfers: &FetchedVolumeProgress, details: bool) -> String {
        text::render(self, files, transfers, details)
    }

    fn json(&self, files: &Files, transfers: &FetchedVolumeProgress, details: bool) -> Value {
        json::render(self, files, transfers, details)
    }
}
