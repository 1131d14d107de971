//! Compatibility of an installation after a switch. Sends no request.

mod locations;
#[cfg(test)]
mod tests;
mod to_velero;

use std::collections::BTreeSet;

use bowline_api::{Backup, BackupSpec, label};
use clap::Parser as _;
use kube::ResourceExt as _;
use serde::Serialize;

use super::facts::{Facts, Server};
use crate::active_runs;
use crate::commands::server;
pub(super) use to_velero::check_switch_to_velero;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) verdict: MigrationVerdict,
    /// Subject of the finding.
    pub(super) what: String,
    /// Consequence for it.
    pub(super) reason: String,
}

/// Verdict on a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MigrationVerdict {
    Carries,
    Differs,
    Stays,
}

fn finding(
    verdict: MigrationVerdict,
    what: impl Into<String>,
    reason: impl Into<String>,
) -> Finding {
    Finding { verdict, what: what.into(), reason: reason.into() }
}

/// Findings for a switch from Velero.
pub(super) fn check_switch_to_bowline(facts: &Facts, active: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !active.is_empty() {
        let reason = "Bowline repeats these runs from the start, unless only plugin operations are \
                      still running; snapshots of the first attempt may be left over; wait until \
                      the runs have ended";
        findings.push(finding(MigrationVerdict::Stays, active_runs::first_names(active), reason));
    }
    let unsupported = backups_with_unsupported_data(facts);
    let supported =
        facts.backups.iter().filter(|backup| !is_named_in(backup, &unsupported)).count();
    let is_supported = |spec: &BackupSpec| unsupported_methods(spec).is_empty();
    let schedules = facts.schedules.iter().filter(|one| is_supported(&one.spec.template)).count();
    push_count(
        &mut findings,
        supported,
        "backup",
        "can be listed, described, restored and deleted, and expire as before",
    );
    push_count(&mut findings, schedules, "schedule", "continue as before");
    let images = facts.velero.as_ref().map(|server| server.plugins.as_slice());
    locations::check_locations(&mut findings, facts, images, &locations::TO_BOWLINE);
    locations::check_credentials(&mut findings, facts);
    match &facts.velero {
        None => findings.push(finding(
            MigrationVerdict::Differs,
            "no Deployment `velero`",
            "the server's flags and plugins could not be read",
        )),
        Some(server) => {
            push_plugins(&mut findings, server);
            push_flags(&mut findings, server);
        }
    }
    push_unsupported(&mut findings, facts);
    findings
}

/// Objects that need only the same definitions and buckets.
fn push_count(findings: &mut Vec<Finding>, count: usize, noun: &str, reason: &str) {
    match count {
        0 => {}
        1 => findings.push(finding(MigrationVerdict::Carries, format!("1 {noun}"), reason)),
        more => {
            findings.push(finding(MigrationVerdict::Carries, format!("{more} {noun}s"), reason));
        }
    }
}

/// Backups with data that this version can neither restore nor delete, by the names in labels.
fn backups_with_unsupported_data(facts: &Facts) -> BTreeSet<&str> {
    facts.pod_volume_backups.iter().chain(&facts.data_uploads).map(String::as_str).collect()
}

fn is_named_in(backup: &Backup, names: &BTreeSet<&str>) -> bool {
    names.contains(label::value(&backup.name_any()).as_ref())
}

/// Plugins that are only object stores and snapshotters of a cloud: they send no request to the cluster.
const STORE_PLUGINS: [&str; 3] =
    ["velero-plugin-for-aws", "velero-plugin-for-microsoft-azure", "velero-plugin-for-gcp"];

/// Differences that plugins may notice, except for stores and snapshotters of a cloud.
const ACTION_PLUGIN_NOTICES: [(&str, &str); 3] = [
    (
        "permissions of plugins",
        "plugins share the server's ServiceAccount, which is cluster-admin in Velero but not in \
         Bowline: an action that creates or deletes objects needs its own ClusterRole; see \
         \"Permissions\" in docs/plugins.md",
    ),
    (
        "concurrent item action calls",
        "Bowline calls a plugin with up to 32 items in parallel, Velero with one at a time; name \
         plugins that do not support this with the server flag --serial-plugin",
    ),
    (
        "the Deployment",
        "the Deployment and its container are named `bowline`: a plugin that reads its own \
         Deployment under the name `velero` does not find it",
    ),
];

fn push_plugins(findings: &mut Vec<Finding>, server: &Server) {
    for image in &server.plugins {
        let reason = "Bowline runs the same binary; `bowline plugin inspect` lists its plugins";
        findings.push(finding(MigrationVerdict::Carries, format!("plugin {image}"), reason));
    }
    let may_have_actions =
        |image: &String| !STORE_PLUGINS.iter().any(|store| image.contains(store));
    if server.plugins.iter().any(may_have_actions) {
        findings.extend(
            ACTION_PLUGIN_NOTICES
                .map(|(what, reason)| finding(MigrationVerdict::Differs, what, reason)),
        );
    }
    if server.plugins.iter().any(|image| image.contains("velero-plugin-for-aws")) {
        findings.push(finding(
            MigrationVerdict::Differs,
            "backup locations of the provider aws",
            "no plugin is required in Bowline; an installed plugin is used",
        ));
    }
}

/// Flags of Velero's server that Bowline's supports.
fn push_flags(findings: &mut Vec<Finding>, server: &Server) {
    for words in group_flag_values(&server.flags) {
        if unsupported_default(&words).is_some() {
            // Reported with the missing methods.
            continue;
        }
        let name = format!("server flag {}", words.join(" "));
        findings.push(match parse_server_flag(&words) {
            Some(line) if line.warnings().is_empty() => {
                finding(MigrationVerdict::Carries, name, "")
            }
            Some(line) => finding(MigrationVerdict::Differs, name, line.warnings().join("; ")),
            None => finding(
                MigrationVerdict::Stays,
                name,
                "not supported in this version; omit it if you do not need it",
            ),
        });
    }
}

/// Words of those flags that Bowline's server supports and uses.
pub(super) fn supported_flags(server: &Server) -> Vec<&str> {
    let is_supported = |words: &Vec<&str>| {
        unsupported_default(words).is_none()
            && parse_server_flag(words).is_some_and(|line| line.warnings().is_empty())
    };
    group_flag_values(&server.flags).into_iter().filter(is_supported).flatten().collect()
}

/// Value of a flag for Bowline's server, if it accepts the flag.
fn parse_server_flag(words: &[&str]) -> Option<server::ServerCommandLine> {
    server::ServerCommandLine::try_parse_from(
        std::iter::once("server").chain(words.iter().copied()),
    )
    .ok()
}

/// Each flag with its value, if that is a separate word.
fn group_flag_values(words: &[String]) -> Vec<Vec<&str>> {
    let mut flags: Vec<Vec<&str>> = Vec::new();
    for word in words {
        match flags.last_mut() {
            Some(flag) if !word.starts_with('-') => flag.push(word),
            _ => flags.push(vec![word]),
        }
    }
    flags
}

const NO_FILE_SYSTEM_BACKUP: &str = "this version has no file-system backup";
const NO_DATA_MOVER: &str = "this version has no data mover";

/// Reason why a flag makes an unsupported method the default.
fn unsupported_default(words: &[&str]) -> Option<&'static str> {
    let [word] = words else { return None };
    let (flag, value) = word.split_once('=').unwrap_or((word, "true"));
    match flag {
        _ if value != "true" => None,
        "--default-volumes-to-fs-backup" => Some(NO_FILE_SYSTEM_BACKUP),
        "--default-snapshot-move-data" => Some(NO_DATA_MOVER),
        _ => None,
    }
}

/// Methods that this version does not support.
fn push_unsupported(findings: &mut Vec<Finding>, facts: &Facts) {
    if facts.has_node_agent {
        findings.push(finding(
            MigrationVerdict::Stays,
            "the node agent",
            format!(
                "{NO_FILE_SYSTEM_BACKUP} and no data mover, so Bowline does not use the node \
                 agent; keep its DaemonSet if you may switch back"
            ),
        ));
    }
    for (count, noun, reason) in [
        (facts.pod_volume_backups.len(), "PodVolumeBackups", NO_FILE_SYSTEM_BACKUP),
        (facts.data_uploads.len(), "DataUploads", NO_DATA_MOVER),
        (facts.repositories, "BackupRepositories", NO_FILE_SYSTEM_BACKUP),
    ] {
        if count > 0 {
            let reason = format!("{reason}: only Velero can restore and delete the data in them");
            findings.push(finding(MigrationVerdict::Stays, format!("{count} {noun}"), reason));
        }
    }
    let unsupported = backups_with_unsupported_data(facts);
    let backups = facts.backups.iter().filter(|backup| is_named_in(backup, &unsupported)).count();
    if backups > 0 {
        findings.push(finding(
            MigrationVerdict::Stays,
            format!("{backups} of {} backups", facts.backups.len()),
            "Bowline lists and describes these backups and restores their objects, but not this \
             data; it does not delete them when they expire",
        ));
    }
    for schedule in &facts.schedules {
        for reason in unsupported_methods(&schedule.spec.template) {
            let what = format!("schedule {}", schedule.name_any());
            let reason = format!("{reason}: backups of this schedule would report errors");
            findings.push(finding(MigrationVerdict::Stays, what, reason));
        }
    }
    for words in facts.velero.iter().flat_map(|server| group_flag_values(&server.flags)) {
        if let Some(unsupported) = unsupported_default(&words) {
            let reason = format!(
                "{unsupported}: each volume without another method would be reported as an error"
            );
            findings.push(finding(
                MigrationVerdict::Stays,
                format!("the default {}", words.join(" ")),
                reason,
            ));
        }
    }
}

/// Methods of a backup that this version does not support.
fn unsupported_methods(spec: &BackupSpec) -> Vec<&'static str> {
    let mut methods = Vec::new();
    if spec.default_volumes_to_fs_backup == Some(true) {
        methods.push("file-system backup of volumes is not supported in this version");
    }
    if spec.snapshot_move_data == Some(true) {
        methods.push("moving snapshot data is not supported in this version");
    }
    methods
}
