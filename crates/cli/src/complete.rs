//! Completes words in a shell, with names from the cluster.
//!
//! Shell scripts ask with an environment variable, kubectl with the word `__complete`. Errors are never printed: they
//! would appear in the middle of the line being typed.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bowline_api::{
    Backup, BackupRepository, BackupStorageLocation, Restore, Schedule, VolumeSnapshotLocation,
};
use clap_complete::engine::{self, ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::runtime;
use tokio::time::timeout;

use crate::args::{self, ClusterArgs, InstallationArgs};
use crate::installation::Installation;
use crate::listing::ResourceKind;
use crate::program;

/// Variable with the name of the asking shell. Not the usual name, which other programs may use too.
const SHELL_VARIABLE: &str = "BOWLINE_COMPLETE";
/// Word with which kubectl asks.
pub(crate) const KUBECTL_COMPLETE_COMMAND: &str = "__complete";
/// Directive for kubectl: do not complete file names.
const NO_FILE_COMPLETION: &str = ":4";
/// Longest wait for the cluster, short enough for a user who is typing.
const CLUSTER_TIMEOUT: Duration = Duration::from_millis(1500);
/// More names than a user can choose from.
const MAX_NAMES: u32 = 500;

/// Source of names.
type CandidateSource = fn() -> Vec<CompletionCandidate>;

/// Answers a shell that asks for completions. False if none does.
pub(crate) fn complete_if_requested() -> bool {
    let words: Vec<OsString> = std::env::args_os().collect();
    let folder = std::env::current_dir().ok();
    if words.get(1).is_some_and(|word| word == KUBECTL_COMPLETE_COMMAND) {
        print(&kubectl_candidates(&words, folder.as_deref()).unwrap_or_default());
        return true;
    }
    let Some(shell) = std::env::var_os(SHELL_VARIABLE).filter(|shell| !shell.is_empty()) else {
        return false;
    };
    let typed = words.iter().position(|word| word == "--").map_or(&[][..], |at| &words[at + 1..]);
    let shells = Shells::builtins();
    let shell = shell.to_str().and_then(|shell| shells.completer(shell));
    if let Some(shell) = shell.filter(|_| !typed.is_empty()) {
        let mut command = command();
        let mut answer = Vec::new();
        if shell
            .write_complete(&mut command, typed.to_vec(), folder.as_deref(), &mut answer)
            .is_ok()
        {
            print(&answer);
        }
    }
    true
}

/// Script that connects a shell to these completions.
pub(crate) fn script(shell: &str) -> anyhow::Result<String> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).context("unsupported shell")?;
    let (name, mut script) = (program::NAME, Vec::new());
    shell.write_registration(SHELL_VARIABLE, name, name, name, &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

fn print(answer: &[u8]) {
    // The shell has gone away, so there is nothing to report to.
    let _ = io::stdout().write_all(answer);
}

/// One candidate per line, with its description after a tab, and the directive at the end.
fn kubectl_candidates(words: &[OsString], folder: Option<&Path>) -> Option<Vec<u8>> {
    let typed = words.get(2..).filter(|typed| !typed.is_empty())?;
    let mut line = vec![OsString::from(program::NAME)];
    line.extend_from_slice(typed);
    let last = line.len() - 1;
    let candidates = engine::complete(&mut command(), line, last, folder).ok()?;
    let mut answer = Vec::new();
    // Flags are offered once one has been started, as kubectl does.
    let wants_flags = typed.last().is_some_and(|word| !word.is_empty());
    for candidate in candidates {
        let value = candidate.get_value().to_str()?;
        if value.starts_with('-') && !wants_flags {
            continue;
        }
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        writeln!(answer, "{value}\t{help}").ok()?;
    }
    writeln!(answer, "{NO_FILE_COMPLETION}").ok()?;
    Some(answer)
}

/// Command line with sources of names.
fn command() -> clap::Command {
    let mut command = with_name_candidates(args::command(), None, false);
    command.build();
    command
}

/// `noun` is the resource of the command; `is_new` means that its name must not exist yet.
fn with_name_candidates(
    command: clap::Command,
    noun: Option<CandidateSource>,
    is_new: bool,
) -> clap::Command {
    let is_new = is_new || command.get_name() == "create";
    let noun = candidates_for_noun(command.get_name()).or(noun);
    let source = |argument: &str| match argument {
        "name" | "names" => noun.filter(|_| !is_new),
        argument => candidates_for_flag(argument),
    };
    let command = command.mut_args(|argument| match source(argument.get_id().as_str()) {
        Some(source) => argument.add(ArgValueCandidates::new(source)),
        None => argument,
    });
    command.mut_subcommands(|inner| with_name_candidates(inner, noun, is_new))
}

/// Source of names for a noun, singular or plural.
fn candidates_for_noun(word: &str) -> Option<CandidateSource> {
    Some(match word.trim_end_matches('s') {
        "backup" => object_names::<Backup>,
        "restore" => object_names::<Restore>,
        "schedule" => object_names::<Schedule>,
        "backup-location" => object_names::<BackupStorageLocation>,
        "snapshot-location" => object_names::<VolumeSnapshotLocation>,
        "repo" => object_names::<BackupRepository>,
        _ => return None,
    })
}

/// Source of values for a flag.
fn candidates_for_flag(id: &str) -> Option<CandidateSource> {
    Some(match id {
        "from_backup" | "backup" => object_names::<Backup>,
        "restore" => object_names::<Restore>,
        "from_schedule" => object_names::<Schedule>,
        "storage_location" => object_names::<BackupStorageLocation>,
        "volume_snapshot_locations" => object_names::<VolumeSnapshotLocation>,
        "namespace" | "include_namespaces" | "exclude_namespaces" => namespace_names,
        _ => return None,
    })
}

fn object_names<K: ResourceKind>() -> Vec<CompletionCandidate> {
    list_names(Installation::api::<K>)
}

fn namespace_names() -> Vec<CompletionCandidate> {
    list_names(Installation::cluster_api::<Namespace>)
}

/// Names of existing objects, if the cluster answers in time.
fn list_names<K>(api: impl FnOnce(&Installation) -> Api<K>) -> Vec<CompletionCandidate>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let words: Vec<String> =
        std::env::args_os().filter_map(|word| word.into_string().ok()).collect();
    let installation = installation(&words);
    let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let found = async {
        let api = api(&Installation::connect(&installation).await.ok()?);
        api.list_metadata(&ListParams::default().limit(MAX_NAMES)).await.ok()
    };
    let found = runtime.block_on(async { timeout(CLUSTER_TIMEOUT, found).await });
    let Ok(Some(found)) = found else { return Vec::new() };
    found.items.iter().map(|object| CompletionCandidate::new(object.name_any())).collect()
}

/// Installation selected by an incomplete line.
fn installation(words: &[String]) -> InstallationArgs {
    InstallationArgs {
        namespace: flag_value(words, "--namespace", Some("-n")).map(str::to_owned),
        cluster: ClusterArgs {
            kubeconfig: flag_value(words, "--kubeconfig", None).map(PathBuf::from),
            kubecontext: flag_value(words, "--kubecontext", None).map(str::to_owned),
        },
    }
}

/// Value of a flag: the rest of its word, or the next word.
fn flag_value<'a>(words: &'a [String], long: &str, short: Option<&str>) -> Option<&'a str> {
    let in_pairs = words.iter().zip(words.iter().skip(1).map(Some).chain([None]));
    let mut values = in_pairs.filter_map(|(word, next)| {
        if word == long || Some(word.as_str()) == short {
            return next.map(String::as_str);
        }
        let rest = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        let short = || short.and_then(|short| word.strip_prefix(short));
        rest.or_else(|| short().map(|rest| rest.strip_prefix('=').unwrap_or(rest)))
    });
    values.next().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_in_an_incomplete_command_line() {
        for (line, expected) in [
            ("bowline backup get -n here", Some("here")),
            ("bowline -nhere backup get", Some("here")),
            ("bowline -n=here backup get", Some("here")),
            ("bowline --namespace=here backup get", Some("here")),
            ("bowline backup get --namespace here x", Some("here")),
            ("bowline backup get", None),
            ("bowline backup get -n", None),
            ("bowline backup get --namespace=", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(flag_value(&words, "--namespace", Some("-n")), expected, "{line}");
        }
    }

    #[test]
    fn names_are_completed_only_where_the_object_must_exist() {
        let root = with_name_candidates(args::command(), None, false);
        let has = |path: &[&str], argument: &str| {
            let mut command = &root;
            for word in path {
                command = command.find_subcommand(word).unwrap();
            }
            let argument = command.get_arguments().find(|a| a.get_id() == argument).unwrap();
            argument.get::<ArgValueCandidates>().is_some()
        };
        assert!(has(&["backup", "describe"], "names"));
        assert!(has(&["describe", "backups"], "names"));
        assert!(has(&["schedule", "pause"], "names"));
        assert!(has(&["backup", "logs"], "name"));
        assert!(has(&["restore", "create"], "from_backup"));
        assert!(has(&["backup"], "namespace"));
        assert!(!has(&["backup", "create"], "name"));
        assert!(!has(&["create", "schedule"], "name"));
        assert!(!has(&["backup", "get"], "output"));
    }
}
