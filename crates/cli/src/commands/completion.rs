//! `bowline completion`

use crate::complete::{self, KUBECTL_COMPLETE_COMMAND};
use crate::exit::Exit;
use crate::output;

/// Print a shell completion script for commands, flags and names
///
/// Names of backups, restores and other objects are read from the cluster; if the cluster does not
/// respond in time, completion offers no names.
///
///   bash:        source <(bowline completion bash)
///   zsh:         source <(bowline completion zsh)
///   fish:        bowline completion fish | source
///   PowerShell:  bowline completion powershell | Out-String | Invoke-Expression
///
/// For `kubectl bowline`, save the output of `bowline completion kubectl` as an executable file
/// `kubectl_complete-bowline` in a directory on the PATH.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Shell to print the script for
    shell: Shell,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Kubectl,
    Powershell,
    Zsh,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let script = match args.shell {
        Shell::Bash => complete::script("bash")?,
        Shell::Elvish => complete::script("elvish")?,
        Shell::Fish => complete::script("fish")?,
        Shell::Powershell => complete::script("powershell")?,
        Shell::Zsh => complete::script("zsh")?,
        Shell::Kubectl => {
            format!("#!/bin/sh\nexec kubectl-bowline {KUBECTL_COMPLETE_COMMAND} \"$@\"\n")
        }
    };
    output::print_data(script)?;
    Ok(Exit::Success)
}
