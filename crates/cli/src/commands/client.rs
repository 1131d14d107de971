//! `bowline client config`: the user's settings, which Velero's command line reads, too.

use anyhow::bail;

use crate::client_config;
use crate::exit::Exit;
use crate::output;

/// View and change client settings
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// View and change the settings in ~/.config/velero/config.json, which are shared with Velero
    Config {
        #[command(subcommand)]
        command: Config,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Config {
    /// Print settings
    Get {
        /// Settings to print [default: all]
        keys: Vec<String>,
    },
    /// Change settings
    ///
    /// The settings in use are `namespace`, the namespace of the server, and `cacert`, a CA
    /// certificate file to trust for downloads. Other settings are kept for Velero.
    Set {
        /// Settings to change; one without a value is removed
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let Command::Config { command } = &args.command;
    match command {
        Config::Get { keys } => get(keys),
        Config::Set { settings } => set(settings),
    }
}

fn get(keys: &[String]) -> anyhow::Result<Exit> {
    let settings = client_config::settings()?;
    let keys: Vec<&str> = match keys {
        [] => settings.keys().map(String::as_str).collect(),
        keys => keys.iter().map(String::as_str).collect(),
    };
    for key in keys {
        let value = match settings.get(key) {
            None => "<NOT SET>".to_owned(),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        output::print_data(format_args!("{key}: {value}\n"))?;
    }
    Ok(Exit::Success)
}

fn set(changes: &[String]) -> anyhow::Result<Exit> {
    let mut settings = client_config::settings()?;
    for change in changes {
        let Some((key, value)) = change.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            bail!("expected KEY=VALUE, not `{change}`; nothing was changed");
        };
        if key == "namespace" && !value.is_empty() {
            client_config::check_namespace(value)?;
        }
        if value.is_empty() {
            settings.remove(key);
        } else {
            settings.insert(key.to_owned(), value.into());
        }
    }
    client_config::save(&settings)?;
    Ok(Exit::Success)
}
