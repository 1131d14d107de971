//! `bowline version`

use std::time::Duration;

use semver::Version;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{flags, output, server_status};

/// That of this program.
pub(crate) const CLIENT: &str = concat!("v", env!("CARGO_PKG_VERSION"));

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
    output::data(format_args!("Client:\n\tVersion: {CLIENT}\n"))?;
    if args.client_only {
        return Ok(Exit::Success);
    }
    let asked = async {
        let installation = Installation::connect(&args.installation).await?;
        server_status::ask(&installation, args.timeout).await
    };
    let server = asked.await.map_err(|error| {
        error.context("the server version is unknown (--client-only does not ask for it)")
    })?;
    let version = server.status.unwrap_or_default().server_version;
    output::data(format_args!("Server:\n\tVersion: {}\n", output::harmless(&version)))?;
    if let Some(warning) = warning(CLIENT, &version) {
        output::say(format_args!("warning: {warning}"));
    }
    Ok(Exit::Success)
}

/// What to say of a client and a server that were not made for each other.
fn warning(client: &str, server: &str) -> Option<String> {
    let parsed = |text: &str| Version::parse(text.strip_prefix('v').unwrap_or(text)).ok();
    let (ours, theirs) = (parsed(client)?, parsed(server)?);
    let older = match (ours.major, ours.minor).cmp(&(theirs.major, theirs.minor)) {
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
    fn versions_that_differ_in_more_than_the_last_number_are_told() {
        for (client, server, expected) in [
            ("v1.2.3", "v1.2.9", None),
            ("v1.2.3", "1.2.0-rc.1", None),
            ("v1.2.3", "v1.3.0", Some("upgrade the client")),
            ("v2.0.0", "v1.9.0", Some("upgrade the server")),
            ("v1.2.3", "main", None),
            ("v1.2.3", "", None),
        ] {
            let said = warning(client, server);
            assert_eq!(said.is_some(), expected.is_some(), "{client} {server}");
            assert!(said.unwrap_or_default().ends_with(expected.unwrap_or_default()));
        }
    }
}
