//! `bowline plugin get`

use std::time::Duration;

use bowline_api::ServerStatusRequest;
use bowline_api::server_status_request::PluginInfo;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::ObjectFormat;
use crate::{flags, listing, output, server_status};

/// How plugins are printed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Human-readable table
    Table,
    /// Answer of the server as JSON
    Json,
    /// Answer of the server as YAML
    Yaml,
    /// One name of a plugin per line
    Name,
}

/// List the server's plugins
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time limit for the server to respond
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = flags::timeout)]
    timeout: Duration,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let mut answer = server_status::request_status(&installation, args.timeout).await?;
    sort_plugins(&mut answer);
    match args.output {
        Format::Json => output::print_data(listing::format_value(&answer, ObjectFormat::Json)?)?,
        Format::Yaml => output::print_data(listing::format_value(&answer, ObjectFormat::Yaml)?)?,
        Format::Name => {
            let plugins = answer.status.unwrap_or_default().plugins;
            let line = |plugin: &PluginInfo| output::strip_control_chars(&plugin.name) + "\n";
            output::print_data(plugins.iter().map(line).collect::<String>())?;
        }
        Format::Table => output::print_data(table(&answer.status.unwrap_or_default().plugins))?,
    }
    Ok(Exit::Success)
}

fn sort_plugins(answer: &mut ServerStatusRequest) {
    // Only the answer is of interest, not the metadata of the request.
    answer.metadata.managed_fields = None;
    if let Some(status) = &mut answer.status {
        status.plugins.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    }
}

fn table(plugins: &[PluginInfo]) -> String {
    let row = |plugin: &PluginInfo| {
        [&plugin.name, &plugin.kind].map(|text| output::strip_control_chars(text))
    };
    output::table(["NAME", "KIND"], plugins.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plugins_are_sorted_by_kind_and_name() {
        let mut answer: ServerStatusRequest = serde_json::from_value(json!({
            "metadata": {"name": "r"}, "status": {"plugins": [
                {"name": "velero.io/pod", "kind": "BackupItemAction"},
                {"name": "velero.io/aws", "kind": "VolumeSnapshotter"},
                {"name": "velero.io/aws", "kind": "ObjectStore"},
                {"name": "velero.io/crd", "kind": "BackupItemAction"},
            ]},
        }))
        .unwrap();
        sort_plugins(&mut answer);
        insta::assert_snapshot!(table(&answer.status.unwrap().plugins));
    }
}
