//! `bowline backup cancel` and `bowline restore cancel`.

use bowline_api::annotation;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::run::Run;
use crate::{listing, output, wait};

/// Flags of a command that cancels runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names to cancel
    #[arg(required = true)]
    names: Vec<String>,

    /// Wait until each run has ended
    #[arg(short, long)]
    wait: bool,
}

/// Asks the server to cancel runs. A run that has ended stays as it is.
pub(crate) async fn run<R: Run>(
    args: Args,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let runs: Vec<R> = listing::find(&installation, &args.names, None).await?;
    let mut canceled = Vec::new();
    for run in runs {
        let (noun, name) = (R::NOUN, run.name_any());
        if run.summary().stage.is_terminal() {
            let state = run.state();
            output::print_message(format_args!(
                "{noun} `{name}` has already ended ({state}); nothing to cancel"
            ));
            continue;
        }
        let change = json!({ "metadata": { "annotations": { annotation::CANCEL: "true" } } });
        let api = installation.api::<R>();
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        let request = api.patch(&name, &params, &change);
        let doing = format!("cancel {noun} `{name}`");
        canceled.push(installation.call_api(&doing, request).await?);
        output::print_message(format_args!("{noun} `{name}`: cancellation requested"));
    }
    if args.wait {
        for run in &canceled {
            // A cancelled run is expected to end as Failed.
            wait::for_end(&installation, run, wait::WaitReason::Cancel).await?;
        }
    }
    Ok(Exit::Success)
}
