//! `bowline bug`

use crate::exit::Exit;
use crate::{output, program};

/// Address for new issues of the project.
const ISSUES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues/new");

/// Print a bug report template and the address to send it to
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run() -> anyhow::Result<Exit> {
    output::print_message(format_args!("open {ISSUES} and paste the following"));
    output::print_data(report(program::name(), std::env::consts::OS, std::env::consts::ARCH))?;
    Ok(Exit::Success)
}

fn report(program: &str, system: &str, machine: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "**Steps to reproduce**, command by command:\n\
         \n\
         **Expected result**:\n\
         \n\
         **Actual result**:\n\
         \n\
         **Support bundle** from `{program} debug --backup NAME` or `--restore NAME`. The \
         bundle contains no Secrets; review it before you attach it.\n\
         \n\
         **Versions**\n\
         - client: v{version} on {system}/{machine}\n\
         - server, from `{program} version`:\n\
         - Kubernetes, from `kubectl version`:\n\
         - cloud or hardware, storage, plugins:\n"
    )
}
