//! `bowline version`

use crate::exit::Exit;
use crate::output;

/// Print the version of this program
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run() -> anyhow::Result<Exit> {
    output::data(format_args!("bowline v{}\n", env!("CARGO_PKG_VERSION")))?;
    Ok(Exit::Success)
}
