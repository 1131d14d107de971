//! `bowline bug`

use crate::exit::Exit;
use crate::{output, program};

/// Where the project's issues are.
const ISSUES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues/new");

/// Print what to write into a report of a mistake of ours, and where to send it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run() -> anyhow::Result<Exit> {
    output::say(format_args!("open {ISSUES} and paste what follows"));
    output::data(report(program::name(), std::env::consts::OS, std::env::consts::ARCH))?;
    Ok(Exit::Success)
}

fn report(program: &str, system: &str, machine: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "**What I did**, command by command:\n\
         \n\
         **What I expected**:\n\
         \n\
         **What happened instead**:\n\
         \n\
         **The support bundle** of `{program} debug --backup NAME` or `--restore NAME`. It has no Secrets; \
         look through it all the same before you attach it.\n\
         \n\
         **Versions**\n\
         - client: v{version} on {system}/{machine}\n\
         - server, of `{program} version`:\n\
         - Kubernetes, of `kubectl version`:\n\
         - cloud or machines, storage, plugins:\n"
    )
}
