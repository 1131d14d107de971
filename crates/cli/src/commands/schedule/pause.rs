//! `bowline schedule pause` and `bowline schedule unpause`

use bowline_api::Schedule;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::create::Skip;
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::selection::Selection;
use crate::{listing, output};

/// Flags of both.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Selection,

    #[command(flatten)]
    skip: Skip,
}

/// Pauses schedules, or lets them go on. One that is so already stays as it is.
pub(crate) async fn run(
    args: &Args,
    paused: bool,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let state = if paused { "paused" } else { "unpaused" };
    for schedule in args.which.find::<Schedule>(&installation).await? {
        let name = schedule.name_any();
        if schedule.spec.paused == paused {
            output::say(format_args!("schedule `{name}` is already {state}"));
            continue;
        }
        let fields = change(paused, args.skip.skip_immediately);
        listing::change::<Schedule>(&installation, &name, &fields).await?;
        output::say(format_args!("schedule `{name}` is {state}"));
    }
    Ok(Exit::Success)
}

/// As Velero does it, an earlier wish to leave a time out is forgotten.
fn change(paused: bool, skip_immediately: Option<bool>) -> Value {
    json!({"spec": {"paused": paused, "skipImmediately": skip_immediately}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_wish_to_skip_is_forgotten() {
        assert_eq!(change(true, None), json!({"spec": {"paused": true, "skipImmediately": null}}));
        let skipped = json!({"spec": {"paused": false, "skipImmediately": true}});
        assert_eq!(change(false, Some(true)), skipped);
    }
}
