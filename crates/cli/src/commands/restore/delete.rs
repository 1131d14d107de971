//! `bowline restore delete`

use bowline_api::Restore;
use kube::ResourceExt as _;

use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{listing, output};

/// Forget restores
///
/// What was restored stays as it is. The server deletes the log and the results of the restore from
/// the storage location.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The restores to forget
    #[arg(required_unless_present_any = ["all", "selector"])]
    names: Vec<String>,

    /// Forget all restores
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Forget the restores with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Do not ask whether this is meant
    #[arg(long)]
    confirm: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let restores: Vec<Restore> = listing::find(&installation, &args.names, selector).await?;
    if restores.is_empty() {
        output::say("no restores found");
        return Ok(Exit::Success);
    }
    let names: Vec<String> = restores.iter().map(kube::ResourceExt::name_any).collect();
    let question = format!(
        "The restore(s) {} will be forgotten, with their logs and results; what they restored stays.",
        names.join(", ")
    );
    if !confirm(args.confirm, &question)? {
        output::say("nothing is deleted");
        return Ok(Exit::Success);
    }
    for restore in &restores {
        let name = restore.name_any();
        listing::delete::<Restore>(&installation, &name).await?;
        // Its files go first; until then it is there.
        let told = if restore.finalizers().is_empty() { "is deleted" } else { "is being deleted" };
        output::say(format_args!("restore `{name}` {told}"));
    }
    Ok(Exit::Success)
}
