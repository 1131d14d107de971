//! `bowline backup describe`: what is known of a backup, in the cluster and in its storage location.

mod freeze;
mod json;
#[cfg(test)]
mod tests;
mod text;

use bowline_api::Backup;
use bowline_api::download_request::DownloadTargetKind;
use bowline_store::file::{BackupOperation, BackupVolumeInfo, ResourceList, Results};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::args::{InstallationArgs, TrustArgs};
use crate::describe::{self, Described, Fetched, Format, Transfers, Wish, file};
use crate::download::Downloads;
use crate::exit::Exit;
use crate::installation::Installation;

/// Show what is known of backups
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The backups to describe [default: all]
    names: Vec<String>,

    /// Describe only backups with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Show every object, volume and operation as well
    #[arg(long)]
    details: bool,

    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "plaintext")]
    output: Format,

    #[command(flatten)]
    trust: TrustArgs,
}

/// What the storage location holds of a backup. A file that was not asked for is nothing.
#[derive(Debug, Default)]
pub(crate) struct Files {
    results: Option<Fetched<Results>>,
    volumes: Option<Fetched<Vec<BackupVolumeInfo>>>,
    operations: Option<Fetched<Vec<BackupOperation>>>,
    resources: Option<Fetched<ResourceList>>,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let Args { names, selector, details, output, trust } = &args;
    let (selector, details, output) = (selector.as_deref(), *details, *output);
    describe::run::<Backup>(Wish { names, selector, details, output, trust }, installation).await
}

impl Described for Backup {
    type Files = Files;

    async fn location(&self, _: &Installation) -> anyhow::Result<String> {
        Ok(self.spec.storage_location.clone())
    }

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
        Files { results, volumes, operations, resources }
    }

    fn text(&self, files: &Files, transfers: &Transfers, details: bool) -> String {
        text::render(self, files, transfers, details)
    }

    fn json(&self, files: &Files, transfers: &Transfers, details: bool) -> Value {
        json::render(self, files, transfers, details)
    }
}
