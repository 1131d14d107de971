//! Flags after `--`, for the installed server.

use anyhow::{anyhow, bail};
use clap::Parser as _;

use crate::commands::server::ServerCommandLine;
use crate::velero_flags::UnsupportedFlag;

/// Flags for the server. An invalid flag is reported now, not by a pod that does not start.
pub(super) fn parse(flags: &[String]) -> anyhow::Result<ServerCommandLine> {
    let words = std::iter::once("server").chain(flags.iter().map(String::as_str));
    ServerCommandLine::try_parse_from(words).map_err(|error| {
        if let Some(refusal) = UnsupportedFlag::find_in(&error) {
            return anyhow!("server flags are not valid: {refusal}");
        }
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        anyhow!("server flags are not valid: {message}; see `bowline server --help`")
    })
}

/// Refuses an identity for the server: all pods of the Deployment would share it, and each would resume the runs of
/// another.
pub(super) fn refuse_identity(flags: &[String]) -> anyhow::Result<()> {
    let is_identity = |flag: &String| flag == "--identity" || flag.starts_with("--identity=");
    if flags.iter().any(is_identity) {
        bail!(
            "--identity is not supported for an installed server: all its pods would use the same \
             identity and take the Lease from each other; omit it, so that each pod uses its own \
             name"
        );
    }
    Ok(())
}
