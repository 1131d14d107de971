//! `bowline completion`

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::exit::Exit;
use crate::output;

/// Print a script that completes commands and flags in a shell
///
/// For bash: source <(bowline completion bash)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell that will read the script
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::args::Args::command(), "bowline", &mut script);
    output::data(String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
