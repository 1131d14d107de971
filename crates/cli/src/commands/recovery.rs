//! `bowline recovery`: the objects that a rebuilt cluster needs and backups exclude, in one encrypted file.

pub(crate) mod contents;
mod export;
mod import;
mod key;
mod record;
mod show;
mod source;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;

/// Export and import the credentials and locations that a rebuilt cluster needs
///
/// Backups exclude the credentials that storage locations use: a bucket must not contain its own
/// keys. Without them, a rebuilt cluster cannot read its backups. Keep a recovery file, and the
/// passphrase or identity for it, outside of the cluster and the bucket. The file is in the age
/// format: `age --decrypt FILE | kubectl apply -f -` works without this program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) installation: InstallationArgs,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    Export(export::Args),
    Show(show::Args),
    Import(import::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Export(command) => export::run(command, &installation).await,
        Command::Show(command) => show::run(command).await,
        Command::Import(command) => import::run(command, &installation).await,
    }
}

/// Reminder that a recovery export is due: none was made, or something has changed since.
pub(super) async fn reminder(installation: &Installation) -> Option<String> {
    let state = match source::gather(installation).await {
        Ok(found) => record::state(installation, &found).await,
        Err(error) => Err(error),
    };
    let command = installation.hint("recovery export FILE");
    match state {
        Ok(state) => state.reminder(&command),
        Err(error) => Some(format!(
            "recovery export: cannot check whether one is due: {}",
            crate::output::error_chain(&error)
        )),
    }
}
