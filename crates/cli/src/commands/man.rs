//! `bowline man`

use std::path::PathBuf;

use anyhow::Context as _;

use crate::exit::Exit;
use crate::{args, output, program};

/// Write manual pages, one per command
///
/// Show one with `man ./bowline-backup-create.1`, or write them to a directory in the MANPATH.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory to write to; created if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let folder = args.dir.display();
    let cannot = || format!("cannot write manual pages to {folder}");
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    // Pages are named after the program, however it was started.
    let command = args::command().bin_name(program::NAME).disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir).with_context(cannot)?;
    output::print_message(format_args!("manual pages written to {folder}"));
    Ok(Exit::Success)
}
