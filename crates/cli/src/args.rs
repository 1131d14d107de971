//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args as _, CommandFactory as _, FromArgMatches as _, Parser};

use crate::commands::Command;
use crate::exit::Exit;
use crate::velero_flags::UnsupportedFlag;
use crate::{output, program};

/// Text below the list of commands.
const WORD_ORDER_HELP: &str = "Both word orders work: `backup get` is the same as `get backups`. The \
                           flags -n, --kubeconfig and --kubecontext can also precede the command.";

/// Back up and restore Kubernetes clusters; a drop-in replacement for Velero
#[derive(Debug, Parser)]
#[command(name = program::NAME, version = concat!("v", env!("CARGO_PKG_VERSION")),
          after_help = WORD_ORDER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which cluster a command talks to.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Path to the kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the in-cluster
    /// configuration]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Kubeconfig context to use [default: the current context]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) kubecontext: Option<String>,
}

/// Which installation a command talks to: a cluster, and the namespace of the server in it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct InstallationArgs {
    /// Namespace of the server [default: `namespace` in ~/.config/velero/config.json, then
    /// $VELERO_NAMESPACE, then velero]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Whom to believe when files are downloaded from a storage location.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// CA certificate file to trust for downloads, in addition to the system's [default: `cacert`
    /// in ~/.config/velero/config.json, then the certificates of the storage location]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    /// Skip TLS certificate verification for downloads. Insecure: anyone on the network path can
    /// read and change the data
    #[arg(long)]
    pub(crate) insecure_skip_tls_verify: bool,
}

/// Complete command line. Velero's global flags may stand before the command; those that have a meaning here are passed
/// on to it.
pub(crate) fn command() -> clap::Command {
    let installation = InstallationArgs::augment_args(clap::Command::new(program::NAME));
    let installation = installation.get_arguments().map(|flag| flag.clone().hide(true));
    // Bowline has no features to enable, and colours only its help, on a terminal.
    let ignored = ["features", "colorized"]
        .map(|name| Arg::new(name).long(name).num_args(1).global(true).hide(true));
    let command = Args::command().bin_name(program::name()).args(installation).args(ignored);
    with_negative_values(command)
}

/// Allows negative durations and numbers, so that `--ttl -1h` is refused by its own rule and not as an unknown flag
/// `-1`.
fn with_negative_values(command: clap::Command) -> clap::Command {
    const NUMERIC_VALUE_NAMES: [&str; 3] = ["DURATION", "NUMBER", "COUNT"];
    let is_numeric = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| NUMERIC_VALUE_NAMES.contains(&name.as_str()))
    };
    command
        .mut_args(|arg| if is_numeric(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(with_negative_values)
}

/// Parses the command line. Help and version are printed here; a mistake is reported in one line with a hint.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args, Exit> {
    let words: Vec<OsString> = words.into_iter().collect();
    let parsed = command().try_get_matches_from(&words);
    let parsed = parsed.and_then(|matches| Args::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Exit::Success
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::CannotRun
        }
        _ => {
            output::print_error(&usage_error(&error, &words));
            Exit::CannotRun
        }
    })
}

/// Message of clap, shortened to one line.
fn usage_error(error: &clap::Error, words: &[OsString]) -> String {
    // This message already contains a hint.
    if let Some(refusal) = UnsupportedFlag::find_in(error) {
        return refusal.to_string();
    }
    if let Some(reason) = unsupported_command_reason(error) {
        return reason.to_owned();
    }
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let listed = |kind, prefix: &str| match error.get(kind) {
        Some(ContextValue::String(word)) => format!("{prefix}{word}"),
        Some(ContextValue::Strings(words)) if !words.is_empty() => {
            format!("{prefix}{}", words.join(", "))
        }
        _ => String::new(),
    };
    let missing = match error.kind() {
        ErrorKind::MissingRequiredArgument => listed(ContextKind::InvalidArg, " "),
        _ => String::new(),
    };
    let allowed = listed(ContextKind::ValidValue, "; possible values are ");
    // The last suggestion is the most similar.
    let closest = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        Some(ContextValue::Strings(words)) => words.last(),
        _ => None,
    };
    let suggestion =
        closest(ContextKind::SuggestedArg).or(closest(ContextKind::SuggestedSubcommand));
    let suggestion =
        suggestion.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default();
    format!("{message}{missing}{suggestion}{allowed}; see `{} --help`", innermost_command(words))
}

/// Reason why a command of Velero does not exist here, if it is one.
fn unsupported_command_reason(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    match word.as_str() {
        "restic" => Some(
            "`restic` is not supported: Velero 1.10 renamed the command to `repo`; see `bowline \
             repo --help`",
        ),
        "node-agent" => Some(
            "`node-agent` is not supported: this version has no node agent and no file-system \
             backup of pod volumes; use volume snapshots instead",
        ),
        "data-mover" => Some(
            "`data-mover` is not supported: this version has no data mover; use snapshot locations \
             whose plugin uploads snapshots instead",
        ),
        _ => None,
    }
}

/// Innermost command that was named, up to the first word that is not a command.
fn innermost_command(words: &[OsString]) -> String {
    let root = self::command();
    let mut command = &root;
    let mut path = program::name().to_owned();
    let mut is_value = false;
    for word in words.iter().skip(1) {
        // The value of a flag before the command is not a command, whatever its text.
        if std::mem::take(&mut is_value) {
            continue;
        }
        let text = word.to_string_lossy();
        if text.starts_with('-') {
            is_value = [&root, command].iter().any(|command| has_value_after(command, &text));
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            path = format!("{path} {}", inner.get_name());
        } else {
            break;
        }
    }
    path
}

/// True if a flag of a command is followed by its value.
fn has_value_after(command: &clap::Command, flag: &str) -> bool {
    let is_meant = |arg: &&Arg| match flag.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| *flag == format!("-{short}")),
    };
    command.get_arguments().filter(is_meant).any(|arg| arg.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error message for an invalid command line.
    fn usage_error_for(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let parsed = command().try_get_matches_from(&words);
        usage_error(&parsed.map(drop).unwrap_err(), &words)
    }

    #[test]
    fn usage_error_points_to_help_of_the_innermost_command() {
        for (line, help) in [
            ("bowline bakcup create q", "`bowline --help`"),
            ("bowline -n velero bakcup create q", "`bowline --help`"),
            ("bowline backup crate q", "`bowline backup --help`"),
            ("bowline --namespace=velero backup create q --nope", "`bowline backup create --help`"),
            ("bowline -n backup backup create q --nope", "`bowline backup create --help`"),
        ] {
            let error = usage_error_for(line);
            assert!(error.ends_with(&format!("; see {help}")), "{line}: {error}");
        }
    }

    #[test]
    fn negative_value_is_refused_as_a_value_not_as_a_flag() {
        for (line, reason) in [
            ("bowline backup create b --ttl -1h", "must not be negative"),
            ("bowline schedule create s --schedule @daily --ttl -1h", "must not be negative"),
            ("bowline backup create b --parallel-files-upload -3", "-3 is not in 0"),
            ("bowline server --resource-timeout -5s", "must not be negative"),
            ("bowline server --concurrent-backups -1", "must be a number from 1 to 1000"),
        ] {
            let error = usage_error_for(line);
            assert!(error.contains("invalid value") && error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn unsupported_velero_commands_are_refused_with_a_reason() {
        for (line, reason) in [
            ("velero restic repo get", "`bowline repo --help`"),
            ("velero node-agent server", "this version has no node agent"),
            ("velero data-mover backup", "this version has no data mover"),
        ] {
            let error = usage_error_for(line);
            assert!(error.contains(reason) && !error.contains("did you mean"), "{line}: {error}");
        }
    }
}
