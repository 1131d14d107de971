//! `bowline backup-location delete`

use bowline_api::{Backup, BackupRepository, BackupStorageLocation, label};
use kube::ResourceExt as _;

use super::super::backup::phase;
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, ResourceKind};
use crate::output;
use crate::selection::{self, Deletion};

/// Delete backup storage locations
///
/// Bucket contents are not touched. The backups and repositories of the location are removed from
/// the cluster with it; they reappear when a location for the same bucket is created.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        Ok(format!(
            "Location(s) {} and their backups will be removed from the cluster; the buckets are \
             not touched.",
            names.join(", ")
        ))
    };
    for location in args.deletion.choose::<BackupStorageLocation>(&installation, question).await? {
        selection::delete(&installation, &location).await?;
        let name = location.name_any();
        remove_backup_resources(&installation, &name).await?;
        for repository in objects_of_location::<BackupRepository>(&installation, &name).await? {
            listing::delete::<BackupRepository>(&installation, &repository.name_any()).await?;
        }
    }
    Ok(Exit::Success)
}

/// Deletes the Backups of a location from the cluster; without the location they cannot be used.
async fn remove_backup_resources(
    installation: &Installation,
    location: &str,
) -> anyhow::Result<()> {
    let (ended, running): (Vec<Backup>, Vec<Backup>) = objects_of_location(installation, location)
        .await?
        .into_iter()
        .partition(|backup| phase(backup).is_terminal());
    for backup in &ended {
        listing::delete::<Backup>(installation, &backup.name_any()).await?;
    }
    if !ended.is_empty() {
        output::print_message(format_args!(
            "backups of the location removed from the cluster: {}",
            ended.len()
        ));
    }
    for backup in running {
        let (name, phase) = (backup.name_any(), phase(&backup));
        output::print_message(format_args!(
            "warning: backup `{name}` of the location is {phase} and was kept"
        ));
    }
    Ok(())
}

/// Objects that belong to a location.
async fn objects_of_location<K: ResourceKind>(
    installation: &Installation,
    location: &str,
) -> anyhow::Result<Vec<K>> {
    let selector = format!("{}={}", label::STORAGE_LOCATION, label::value(location));
    listing::find(installation, &[], Some(&selector)).await
}
