//! `bowline restore delete`

use bowline_api::Restore;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::selection::{self, Deletion};

/// Delete restores
///
/// Restored objects are not touched. The server deletes the log and the results of the restore from
/// the storage location.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        Ok(format!(
            "Restore(s) {} will be deleted with their logs and results; restored objects are not \
             touched.",
            names.join(", ")
        ))
    };
    for restore in args.deletion.choose::<Restore>(&installation, question).await? {
        selection::delete(&installation, &restore).await?;
    }
    Ok(Exit::Success)
}
