//! `bowline backup logs`

use std::time::Duration;

use anyhow::bail;
use bowline_api::Backup;
use bowline_api::download_request::DownloadTargetKind;

use crate::args::{InstallationArgs, TrustArgs};
use crate::exit::Exit;
use crate::flags;
use crate::installation::Installation;
use crate::listing::{self, Kind};
use crate::logs::{self, Log};
use crate::run::Run as _;

/// Print the log of a backup
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The backup
    name: String,

    /// How long the server may take to hand it out
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = flags::timeout)]
    timeout: Duration,

    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let name = &args.name;
    let backup: Backup = listing::get(&installation, name).await?;
    if let Err(reason) = backup.has_files() {
        bail!("backup `{name}` has no log yet: {reason}");
    }
    let log = Log {
        noun: Backup::NOUN,
        name,
        kind: DownloadTargetKind::BackupLog,
        location: &backup.spec.storage_location,
        timeout: args.timeout,
        trust: &args.trust,
    };
    logs::print(&installation, log).await
}
