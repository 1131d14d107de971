//! `bowline plugin`: for authors and operators of plugins.

mod add;
mod check;
pub(crate) mod get;
mod inspect;
mod remove;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bowline_plugin::Kind;
use bowline_plugin_host::inspect::trait_and_version;
use serde_json::{Value, json};

use crate::args::InstallationArgs;
use crate::exit::Exit;

/// Manage the server's plugins, and inspect and check plugin binaries of Velero or Bowline
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) installation: InstallationArgs,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    Get(get::Args),
    Add(add::Args),
    Remove(remove::Args),
    Inspect(inspect::Args),
    Check(check::Args),
}

/// How to print what was found.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Human-readable text
    Table,
    /// JSON for programs
    Json,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { installation, command } = args;
    match command {
        Command::Get(command) => get::run(&command, &installation).await,
        Command::Add(command) => add::run(&command, &installation).await,
        Command::Remove(command) => remove::run(&command, &installation).await,
        Command::Inspect(command) => inspect::run(command).await,
        Command::Check(command) => check::run(command).await,
    }
}

/// Absolute path of the binary. A bare name is a file of this folder, never a program of the `PATH`.
fn absolute_path(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
}

/// Identity of a plugin, for programs.
fn identity(kind: Kind, name: &str) -> Value {
    let (kind, version) = trait_and_version(kind);
    json!({"kind": kind, "name": name, "version": version})
}

/// Longest text of a plugin that is quoted.
const MAX_QUOTE_CHARS: usize = 500;

/// Message of a plugin, in one line of harmless characters. A plugin may send anything.
fn single_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let printable =
        line.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    let mut quoted: String = printable.take(MAX_QUOTE_CHARS).collect();
    if quoted.len() < line.len() && line.chars().count() > MAX_QUOTE_CHARS {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_text_becomes_one_short_printable_line() {
        assert_eq!(single_line("panic:  oh\n\tgoroutine 1"), "panic: oh goroutine 1");
        assert_eq!(single_line("\u{1b}[2Jgone"), "\u{fffd}[2Jgone");
        assert_eq!(single_line(&"ä".repeat(MAX_QUOTE_CHARS)), "ä".repeat(MAX_QUOTE_CHARS));
        let cut = single_line(&"ä".repeat(MAX_QUOTE_CHARS + 1));
        assert_eq!(cut, "ä".repeat(MAX_QUOTE_CHARS) + "…");
    }
}
