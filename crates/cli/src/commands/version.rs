//! `bowline version`

use std::time::Duration;

use semver::Version;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{flags, output, server_status};

/// Version of this program.
pub(crate) const CLIENT_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Start of the version that a Bowline server reports.
const SERVER_VERSION_PREFIX: &str = "bowline-";

/// Print the versions of the client and the server
///
/// Exits with 2 if no server reports its version.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print only the client version, without contacting the cluster
    #[arg(long)]
    client_only: bool,

    /// Time limit for the server to respond
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = flags::timeout)]
    timeout: Duration,

    #[command(flatten)]
    installation: InstallationArgs,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Exit> {
    output::print_data(format_args!("Client:\n\tVersion: {CLIENT_VERSION}\n"))?;
    if args.client_only {
        return Ok(Exit::Success);
    }
    let status = async {
        let installation = Installation::connect(&args.installation).await?;
        server_status::request_status(&installation, args.timeout).await
    };
    let server = status.await.map_err(|error| {
        error.context("the server version is unknown (hint: --client-only skips the server)")
    })?;
    let version = server.status.unwrap_or_default().server_version;
    output::print_data(format_args!(
        "Server:\n\tVersion: {}\n",
        output::strip_control_chars(&version)
    ))?;
    if let Some(warning) = version_warning(CLIENT_VERSION, &version) {
        output::print_message(format_args!("warning: {warning}"));
    }
    Ok(Exit::Success)
}

/// Warning about a client and a server whose versions do not match.
fn version_warning(client: &str, server: &str) -> Option<String> {
    let parsed = |text: &str| {
        // Bowline's server reports `bowline-0.1.0`, Velero's `v1.18.3`.
        let text = text.strip_prefix(SERVER_VERSION_PREFIX).unwrap_or(text);
        Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()
    };
    let (client_version, server_version) = (parsed(client)?, parsed(server)?);
    let older = match (client_version.major, client_version.minor)
        .cmp(&(server_version.major, server_version.minor))
    {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Less => "client",
        std::cmp::Ordering::Greater => "server",
    };
    Some(format!(
        "client {client} and server {server} have different versions; upgrade the {older}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_differ_beyond_the_patch_number_are_reported() {
        for (client, server, expected) in [
            ("v1.2.3", "v1.2.9", None),
            ("v1.2.3", "1.2.0-rc.1", None),
            ("v1.2.3", "v1.3.0", Some("upgrade the client")),
            ("v2.0.0", "v1.9.0", Some("upgrade the server")),
            ("v0.1.0", "bowline-0.1.2", None),
            ("v0.1.0", "bowline-0.2.0", Some("upgrade the client")),
            ("v0.2.0", "bowline-0.1.0", Some("upgrade the server")),
            ("v1.2.3", "main", None),
            ("v1.2.3", "", None),
        ] {
            let warning = version_warning(client, server);
            assert_eq!(warning.is_some(), expected.is_some(), "{client} {server}");
            assert!(warning.unwrap_or_default().ends_with(expected.unwrap_or_default()));
        }
    }
}
