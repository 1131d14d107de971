//! `bowline schedule delete`

use bowline_api::Schedule;
use kube::ResourceExt as _;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output;
use crate::selection::{self, Deletion};

/// Delete schedules
///
/// Backups are kept, unless the schedule was created with --use-owner-references-in-backup: with
/// it, the Backups are deleted from the cluster, and the next sync recreates them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        Ok(format!(
            "Schedule(s) {} will be deleted; the contents of the storage location are kept.",
            names.join(", ")
        ))
    };
    for schedule in args.deletion.choose::<Schedule>(&installation, question).await? {
        selection::delete(&installation, &schedule).await?;
        if schedule.spec.use_owner_references_in_backup == Some(true) {
            output::print_message(format_args!(
                "backups of `{}` are owned by it and disappear from the cluster; those in the \
                 storage location are synced again",
                schedule.name_any()
            ));
        }
    }
    Ok(Exit::Success)
}
