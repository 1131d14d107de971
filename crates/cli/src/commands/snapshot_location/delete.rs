//! `bowline snapshot-location delete`

use bowline_api::{Backup, VolumeSnapshotLocation};
use kube::ResourceExt;

use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{listing, output};

/// Forget a location for snapshots of volumes
///
/// No snapshot is touched. But those that were taken with the location can be neither restored nor
/// deleted until there is one of the same name again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The locations to forget
    #[arg(required_unless_present_any = ["all", "selector"])]
    names: Vec<String>,

    /// Forget all locations
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Forget the locations with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Do not ask whether this is meant
    #[arg(long)]
    confirm: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let locations: Vec<VolumeSnapshotLocation> =
        listing::find(&installation, &args.names, selector).await?;
    if locations.is_empty() {
        output::say("no snapshot locations found");
        return Ok(Exit::Success);
    }
    let names: Vec<String> = locations.iter().map(ResourceExt::name_any).collect();
    let backups: Vec<Backup> = listing::find(&installation, &[], None).await?;
    let question = format!(
        "The cluster will forget the snapshot location(s) {}; the snapshots stay.",
        names.join(", ")
    );
    for name in &names {
        if let Some(warning) = warning(name, &backups) {
            output::say(format_args!("warning: {warning}"));
        }
    }
    if !confirm(args.confirm, &question)? {
        output::say("nothing is deleted");
        return Ok(Exit::Success);
    }
    for name in &names {
        listing::delete::<VolumeSnapshotLocation>(&installation, name).await?;
        output::say(format_args!("snapshot location `{name}` is deleted"));
    }
    Ok(Exit::Success)
}

/// What is lost with a location, if anything is.
fn warning(location: &str, backups: &[Backup]) -> Option<String> {
    let needs_it = |backup: &&Backup| {
        let snapshots = backup.status.as_ref().map(|status| status.volume_snapshots_attempted);
        snapshots.is_some_and(|snapshots| snapshots > 0)
            && backup.spec.volume_snapshot_locations.iter().any(|name| name == location)
    };
    let backups = match backups.iter().filter(needs_it).count() {
        0 => return None,
        1 => "1 backup has, or may have,".to_owned(),
        count => format!("{count} backups have, or may have,"),
    };
    Some(format!(
        "{backups} snapshots that were taken with `{location}`: without a location of that name they \
         can be neither restored nor deleted"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_backups_with_snapshots_need_a_location() {
        let backup = |locations: &[&str], snapshots: i64| -> Backup {
            serde_json::from_value(json!({
                "metadata": {"name": "b"}, "spec": {"volumeSnapshotLocations": locations},
                "status": {"volumeSnapshotsAttempted": snapshots},
            }))
            .unwrap()
        };
        let backups = [
            backup(&["near", "far"], 2),
            backup(&["far"], 1),
            backup(&["other"], 0),
            backup(&[], 0),
        ];
        assert!(warning("near", &backups).unwrap().starts_with("1 backup has, or may have, snap"));
        assert!(warning("far", &backups).unwrap().starts_with("2 backups have"));
        assert_eq!(warning("other", &backups), None);
    }
}
