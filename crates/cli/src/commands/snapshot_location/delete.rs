//! `bowline snapshot-location delete`

use bowline_api::{Backup, VolumeSnapshotLocation};

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::selection::{self, Deletion};
use crate::{listing, output};

/// Delete volume snapshot locations
///
/// Snapshots are not touched, but those taken with the location can be neither restored nor deleted
/// until a location of the same name exists again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        let backups: Vec<Backup> = listing::find(&installation, &[], None).await?;
        for warning in names.iter().filter_map(|name| lost_snapshots_warning(name, &backups)) {
            output::print_message(format_args!("warning: {warning}"));
        }
        Ok(format!(
            "Snapshot location(s) {} will be deleted; the snapshots are kept.",
            names.join(", ")
        ))
    };
    for location in args.deletion.choose::<VolumeSnapshotLocation>(&installation, question).await? {
        selection::delete(&installation, &location).await?;
    }
    Ok(Exit::Success)
}

/// Warning about snapshots that are lost with a location, if there are any.
fn lost_snapshots_warning(location: &str, backups: &[Backup]) -> Option<String> {
    let needs_location = |backup: &&Backup| {
        let snapshots = backup.status.as_ref().map(|status| status.volume_snapshots_attempted);
        snapshots.is_some_and(|snapshots| snapshots > 0)
            && backup.spec.volume_snapshot_locations.iter().any(|name| name == location)
    };
    let backups = match backups.iter().filter(needs_location).count() {
        0 => return None,
        1 => "1 backup".to_owned(),
        count => format!("{count} backups"),
    };
    Some(format!(
        "{backups} may have snapshots of location `{location}`, which cannot be restored or \
         deleted without a location of that name"
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
        assert!(
            lost_snapshots_warning("near", &backups)
                .unwrap()
                .starts_with("1 backup may have snapshots")
        );
        assert!(lost_snapshots_warning("far", &backups).unwrap().starts_with("2 backups may have"));
        assert_eq!(lost_snapshots_warning("other", &backups), None);
    }
}
