//! `bowline completion`

use crate::complete::{self, KUBECTL_WORD};
use crate::exit::Exit;
use crate::output;

/// Print a script that completes commands, flags and names in a shell
///
/// Names of backups, restores and the like come from the cluster; one that does not answer in time has
/// none.
///
///   bash:        source <(bowline completion bash)
///   zsh:         source <(bowline completion zsh)
///   fish:        bowline completion fish | source
///   PowerShell:  bowline completion powershell | Out-String | Invoke-Expression
///
/// For `kubectl bowline`, save what `bowline completion kubectl` prints as an executable file
/// `kubectl_complete-bowline` somewhere on the PATH.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Who will read the script
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
        Shell::Kubectl => format!("#!/bin/sh\nexec kubectl-bowline {KUBECTL_WORD} \"$@\"\n"),
    };
    output::data(script)?;
    Ok(Exit::Success)
}
