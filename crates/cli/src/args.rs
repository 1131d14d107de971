//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args as _, CommandFactory as _, FromArgMatches as _, Parser};

use crate::commands::Command;
use crate::exit::Exit;
use crate::velero_flags::Refusal;
use crate::{output, program};

/// Said below the list of commands.
const BOTH_ORDERS: &str = "Both orders of words work: `backup get` is `get backups`. The flags -n, \
                           --kubeconfig and --kubecontext may stand before the command, too.";

/// Backs up and restores Kubernetes clusters; a drop-in for Velero.
#[derive(Debug, Parser)]
#[command(name = program::NAME, version = concat!("v", env!("CARGO_PKG_VERSION")),
          after_help = BOTH_ORDERS)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which cluster a command talks to.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file to use [default: $KUBECONFIG, then ~/.kube/config, then the pod's own]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig to use [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) kubecontext: Option<String>,
}

/// Which installation a command talks to: a cluster, and the namespace of the server in it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Which installation")]
pub(crate) struct InstallationArgs {
    /// The namespace of the server [default: `namespace` in ~/.config/velero/config.json, then
    /// $VELERO_NAMESPACE, then velero]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Whom to believe when files are downloaded from a storage location.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// A file with certificates to trust, besides the system's, when downloading [default: `cacert`
    /// in ~/.config/velero/config.json, then those of the storage location]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    /// Download without checking certificates. Insecure: anybody on the way can read and change what
    /// is downloaded
    #[arg(long)]
    pub(crate) insecure_skip_tls_verify: bool,
}

/// The command line that is understood. Velero's flags for all commands may stand before the command;
/// those that say something here are handed on to it.
pub(crate) fn command() -> clap::Command {
    let installation = InstallationArgs::augment_args(clap::Command::new(program::NAME));
    let installation = installation.get_arguments().map(|flag| flag.clone().hide(true));
    // Ours has no features to switch on, and colours only help, on a terminal.
    let ignored = ["features", "colorized"]
        .map(|name| Arg::new(name).long(name).num_args(1).global(true).hide(true));
    Args::command().bin_name(program::name()).args(installation).args(ignored)
}

/// Parses the command line. Help and version are printed here; a mistake is told in one line that
/// says what to do.
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
            output::error(&mistake(&error, &words));
            Exit::CannotRun
        }
    })
}

/// What clap says in several lines, in one.
fn mistake(error: &clap::Error, words: &[OsString]) -> String {
    // It says what to do by itself.
    if let Some(refusal) = Refusal::behind(error) {
        return refusal.to_string();
    }
    let text = error.to_string();
    let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let listed = |kind, before: &str| match error.get(kind) {
        Some(ContextValue::String(word)) => format!("{before}{word}"),
        Some(ContextValue::Strings(words)) if !words.is_empty() => {
            format!("{before}{}", words.join(", "))
        }
        _ => String::new(),
    };
    let missing = match error.kind() {
        ErrorKind::MissingRequiredArgument => listed(ContextKind::InvalidArg, " "),
        _ => String::new(),
    };
    let allowed = listed(ContextKind::ValidValue, "; possible values are ");
    // The last is the most alike.
    let alike = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        Some(ContextValue::Strings(words)) => words.last(),
        _ => None,
    };
    let meant = alike(ContextKind::SuggestedArg).or(alike(ContextKind::SuggestedSubcommand));
    let meant = meant.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default();
    format!("{what}{missing}{meant}{allowed}; see `{} --help`", command_of(words))
}

/// The innermost command that was named.
fn command_of(words: &[OsString]) -> String {
    let root = self::command();
    let mut command = &root;
    let mut path = program::name().to_owned();
    for word in words.iter().skip(1) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            path = format!("{path} {}", inner.get_name());
        }
    }
    path
}
