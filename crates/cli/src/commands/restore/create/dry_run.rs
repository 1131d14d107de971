//! `bowline restore create --dry-run`: the plan of a restore.
//!
//! It runs in this process, with the permissions of the user. The files that only the server can open, the archive and
//! the volume information of the backup, are downloaded with DownloadRequests; everything else is done with dry-run
//! requests to the API server, which stores nothing.

mod show;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bowline_api::download_request::DownloadTargetKind;
use bowline_api::{Backup, BackupStorageLocation, PodVolumeBackup, Restore, label};
use bowline_engine::cluster::ApiServer;
use bowline_engine::download::BackupVolumes;
use bowline_engine::restore::order::Priorities;
use bowline_engine::restore::request::{self, Defaults, Facts, Lookup, PreparedRestore};
use bowline_engine::restore::{FatalError, Options, plan};
use bowline_engine::unpack::{self, Contents, UnpackError, UnpackLimits};
use bowline_store::decode::Limits;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::source::SourceBackups;
use crate::args::TrustArgs;
use crate::download::Downloads;
use crate::exit::{Exit, shutdown_signal};
use crate::installation::{Installation, is_not_found};
use crate::listing::{self, ObjectFormat};
use crate::output::{self, Spinner};
use crate::run::Run as _;

/// Longest wait for the server to provide a file.
const FILE_TIMEOUT: Duration = Duration::from_mins(1);
/// Number of parallel requests, and of parallel items.
const MAX_REQUESTS: usize = 16;
const MAX_ITEMS: usize = 48;
/// Objects per answer of the API server.
const PAGE_SIZE: u32 = 500;
/// Stands for the UID of the restore, which does not exist.
const DRY_RUN_UID: &str = "dry-run";

pub(super) async fn run(
    installation: &Installation,
    restore: Restore,
    source: SourceBackups,
    trust: &TrustArgs,
    output: Option<ObjectFormat>,
) -> anyhow::Result<Exit> {
    let name = restore.name_any();
    let request = match prepare_request(installation, restore, source).await?.outcome {
        Ok(request) => request,
        Err(errors) => return show::show_refused(&name, &errors.messages(), output),
    };
    let backup = request.backup.clone();
    if let Err(reason) = backup.has_files() {
        bail!("backup `{}` has no archive: {reason}", backup.name_any());
    }
    let location = &backup.spec.storage_location;
    let downloads = Downloads::new(installation, location, trust, FILE_TIMEOUT).await?;
    let asked_to_end = shutdown_signal()?;
    let planned = async {
        let (contents, volumes) = Box::pin(fetch(installation, &downloads, &backup)).await?;
        let _spinner = Spinner::start("validating objects with the API server");
        let run = plan::Run {
            request,
            cluster: Arc::new(ApiServer::new(installation.client(), PAGE_SIZE).dry_run()),
            contents,
            volumes,
            options: options(installation),
        };
        match plan::run(run, Timestamp::now()).await {
            Ok(plan) => Ok(Ok(plan)),
            // The server would refuse it, too.
            Err(damaged @ FatalError::Damaged { .. }) => Ok(Err(damaged.error_chain())),
            Err(error) => Err(error).context("cannot plan the restore"),
        }
    };
    let plan = tokio::select! {
        // Boxed, since it contains all the downloads.
        planned = Box::pin(planned) => planned?,
        exit = asked_to_end => {
            downloads.delete_open_requests().await;
            return Ok(exit);
        }
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(reason) => return show::show_refused(&name, &[reason], output),
    };
    show::show_plan(&name, &backup.name_any(), &plan, output)?;
    Ok(if plan.would_fail() { Exit::Failed } else { Exit::Success })
}

fn options(installation: &Installation) -> Options {
    let defaults = Defaults::default();
    let resource_timeout = defaults.resource_timeout.to_std().unwrap_or_default();
    Options {
        requests: MAX_REQUESTS,
        items: MAX_ITEMS,
        scratch: std::env::temp_dir(),
        unpack_limits: UnpackLimits::default(),
        namespace: installation.namespace().to_owned(),
        priorities: Priorities::default(),
        resource_timeout,
        terminating_timeout: resource_timeout,
    }
}

/// Request that the server would make of the restore, or all validation errors.
async fn prepare_request(
    installation: &Installation,
    mut restore: Restore,
    source: SourceBackups,
) -> anyhow::Result<PreparedRestore> {
    let location = match source.server_choice(&restore.spec) {
        Some(backup) => {
            let name = &backup.spec.storage_location;
            let found = listing::get_opt::<BackupStorageLocation>(installation, name).await?;
            found.map_or(Lookup::Missing, Lookup::Found)
        }
        None => Lookup::Missing,
    };
    let modifiers = match &restore.spec.resource_modifier {
        Some(reference) => find_modifiers(installation, &reference.name).await?,
        None => Lookup::Missing,
    };
    restore.metadata.namespace = Some(installation.namespace().to_owned());
    restore.metadata.uid = Some(DRY_RUN_UID.to_owned());
    let facts = Facts { backups: Ok(source.backups), location, modifiers };
    Ok(request::prepare(&restore, &facts, &Defaults::default(), Timestamp::now()))
}

async fn find_modifiers(
    installation: &Installation,
    name: &str,
) -> anyhow::Result<Lookup<BTreeMap<String, String>>> {
    let api = installation.api::<ConfigMap>();
    let request = async {
        match api.get(name).await {
            Err(error) if is_not_found(&error) => Ok(None),
            got => got.map(Some),
        }
    };
    let found = installation.call_api(&format!("read ConfigMap `{name}`"), request).await?;
    Ok(found.map_or(Lookup::Missing, |map| Lookup::Found(map.data.unwrap_or_default())))
}

/// Downloads the archive and the volume information of the backup.
async fn fetch(
    installation: &Installation,
    downloads: &Downloads,
    backup: &Backup,
) -> anyhow::Result<(Contents, BackupVolumes)> {
    let _spinner = Spinner::start("downloading the archive of the backup");
    let name = backup.name_any();
    let (contents, infos, snapshots, copies) = tokio::join!(
        download_contents(downloads, &name),
        downloads.json_or_default(DownloadTargetKind::BackupVolumeInfos, &name),
        downloads.json_or_default(DownloadTargetKind::BackupVolumeSnapshots, &name),
        list_pod_volume_backups(installation, &name),
    );
    let cannot = |part: &str| format!("cannot read {part} of backup `{name}`");
    let volumes = BackupVolumes {
        infos: infos.with_context(|| cannot("the volumes"))?,
        snapshots: snapshots.with_context(|| cannot("the snapshots"))?,
        pod_volume_backups: copies?,
    };
    Ok((contents.with_context(|| cannot("the archive"))?, volumes))
}

/// Downloads the archive and unpacks it meanwhile.
async fn download_contents(downloads: &Downloads, backup: &str) -> anyhow::Result<Contents> {
    let limit = Limits::ARCHIVE.packed;
    let body = downloads.open(DownloadTargetKind::BackupContents, backup, limit).await?;
    let (reader, download) = body.into_reader();
    let unpacked = tokio::task::spawn_blocking(move || {
        unpack::unpack(reader, &std::env::temp_dir(), UnpackLimits::default())
    });
    let (downloaded, unpacked) = tokio::join!(download, unpacked);
    // An incomplete download looks like a damaged archive, and is not.
    downloaded?;
    let unpacked = unpacked.map_err(|_| anyhow!("the archive was not unpacked completely"))?;
    unpacked.map_err(unpack_error)
}

/// A dry run does not know the flags of the server.
fn unpack_error(error: UnpackError) -> anyhow::Error {
    match error {
        UnpackError::TooLarge(limit) if limit.flag().is_some() => {
            let flag = limit.flag().unwrap_or_default();
            anyhow!(
                "{error}; hint: a dry run has the default limits of the server; restore without \
                 --dry-run if {flag} of the server is higher"
            )
        }
        error => error.into(),
    }
}

/// PodVolumeBackups of a backup. They are not available as a file.
async fn list_pod_volume_backups(
    installation: &Installation,
    backup: &str,
) -> anyhow::Result<Vec<PodVolumeBackup>> {
    let selector = format!("{}={}", label::BACKUP_NAME, label::value(backup));
    let params = ListParams::default().labels(&selector);
    let api = installation.api::<PodVolumeBackup>();
    match installation.call_api("list the PodVolumeBackups", api.list(&params)).await {
        Ok(list) => Ok(list.items),
        Err(error) => {
            output::print_message(format_args!("warning: {}", output::error_chain(&error)));
            Ok(Vec::new())
        }
    }
}
