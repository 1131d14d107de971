//! `bowline schedule pause` and `bowline schedule unpause`

use bowline_api::Schedule;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::selection::Selection;
use crate::{flags, listing, output};

/// Flags of both.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,

    /// Skip the missed backup after unpausing; a value given to `schedule unpause` takes precedence
    /// [default: the server's]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    skip_immediately: Option<bool>,
}

/// Pauses or resumes schedules. Those already in that state stay as they are.
pub(crate) async fn run(
    args: &Args,
    paused: bool,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let state = if paused { "paused" } else { "unpaused" };
    for schedule in args.selection.find::<Schedule>(&installation).await? {
        let name = schedule.name_any();
        if schedule.spec.paused == paused {
            output::print_message(format_args!("schedule `{name}` is already {state}"));
            continue;
        }
        let fields = pause_patch(paused, args.skip_immediately);
        listing::patch::<Schedule>(&installation, &name, &fields).await?;
        output::print_message(format_args!("schedule `{name}` is {state}"));
    }
    Ok(Exit::Success)
}

/// As in Velero, an earlier request to skip is dropped.
fn pause_patch(paused: bool, skip_immediately: Option<bool>) -> Value {
    json!({"spec": {"paused": paused, "skipImmediately": skip_immediately}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_skip_immediately_is_cleared() {
        assert_eq!(
            pause_patch(true, None),
            json!({"spec": {"paused": true, "skipImmediately": null}})
        );
        let skipped = json!({"spec": {"paused": false, "skipImmediately": true}});
        assert_eq!(pause_patch(false, Some(true)), skipped);
    }
}
