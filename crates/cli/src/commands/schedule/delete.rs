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
/// Their backups stay, unless the schedule was created with --use-owner-references-in-backup: then they
/// vanish from the cluster, and come back from the storage location.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        Ok(format!(
            "The schedule(s) {} will be deleted; what is in the storage location stays.",
            names.join(", ")
        ))
    };
    for schedule in args.deletion.choose::<Schedule>(&installation, question).await? {
        selection::delete(&installation, &schedule).await?;
        if schedule.spec.use_owner_references_in_backup == Some(true) {
            output::say(format_args!(
                "the backups of `{}` belong to it and vanish from the cluster; those in the storage \
                 location come back",
                schedule.name_any()
            ));
        }
    }
    Ok(Exit::Success)
}
