//! What carries over and what does not. Asks nobody.

mod back;
mod locations;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use bowline_api::{Backup, BackupSpec, label};
use clap::Parser as _;
use kube::ResourceExt as _;
use serde::Serialize;

use super::facts::{Facts, Server};
use crate::commands::server;
use crate::open_runs;
pub(super) use back::back;

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// What was found.
    pub(super) what: String,
    /// What becomes of it.
    pub(super) why: String,
}

/// Whether something carries over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Carries,
    Differs,
    Stays,
}

fn finding(verdict: Verdict, what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding { verdict, what: what.into(), why: why.into() }
}

/// What becomes of an installation of Velero.
pub(super) fn forth(facts: &Facts, open: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !open.is_empty() {
        let why = "Bowline starts work that Velero has in progress again, and its intermediate \
                   results, such as snapshots, may be left over; wait until these runs have ended";
        findings.push(finding(Verdict::Stays, open_runs::named(open), why));
    }
    let with_lost_data = with_lost_data(facts);
    let whole = facts.backups.iter().filter(|backup| !is_among(backup, &with_lost_data)).count();
    let without = |spec: &BackupSpec| methods(spec).is_empty();
    let schedules = facts.schedules.iter().filter(|one| without(&one.spec.template)).count();
    counted(
        &mut findings,
        whole,
        "backup",
        "can be listed, described, restored and deleted, and \
                                             expire as before",
    );
    counted(&mut findings, schedules, "schedule", "continue as before");
    let images = facts.velero.as_ref().map(|server| server.plugins.as_slice());
    locations::judge(&mut findings, facts, images, &locations::FORTH);
    locations::credentials(&mut findings, facts);
    match &facts.velero {
        None => findings.push(finding(
            Verdict::Differs,
            "no Deployment `velero`",
            "the server's flags and plugins could not be read",
        )),
        Some(server) => {
            plugins(&mut findings, server);
            flags(&mut findings, server);
        }
    }
    lacking(&mut findings, facts);
    findings
}

/// What needs no more than the same definitions and buckets.
fn counted(findings: &mut Vec<Finding>, count: usize, noun: &str, why: &str) {
    match count {
        0 => {}
        1 => findings.push(finding(Verdict::Carries, format!("1 {noun}"), why)),
        more => findings.push(finding(Verdict::Carries, format!("{more} {noun}s"), why)),
    }
}

/// Backups with data that this version can neither restore nor delete, as labels name them.
fn with_lost_data(facts: &Facts) -> BTreeSet<&str> {
    facts.pod_volume_backups.iter().chain(&facts.data_uploads).map(String::as_str).collect()
}

fn is_among(backup: &Backup, names: &BTreeSet<&str>) -> bool {
    names.contains(label::value(&backup.name_any()).as_ref())
}

/// Plugins that are object stores and snapshotters of a cloud alone: they ask the cluster for nothing.
const STORES: [&str; 3] =
    ["velero-plugin-for-aws", "velero-plugin-for-microsoft-azure", "velero-plugin-for-gcp"];

/// What plugins may notice, apart from stores and snapshotters of a cloud.
const NOTICED: [(&str, &str); 3] = [
    (
        "permissions of plugins",
        "plugins share the server's ServiceAccount, which is cluster-admin in Velero but not in \
         Bowline: an action that creates or deletes objects needs its own ClusterRole; see \
         \"Rights\" in docs/plugins.md",
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

fn plugins(findings: &mut Vec<Finding>, server: &Server) {
    for image in &server.plugins {
        let why = "Bowline runs the same binary; `bowline plugin inspect` lists its plugins";
        findings.push(finding(Verdict::Carries, format!("plugin {image}"), why));
    }
    let may_have_actions = |image: &String| !STORES.iter().any(|store| image.contains(store));
    if server.plugins.iter().any(may_have_actions) {
        findings.extend(NOTICED.map(|(what, why)| finding(Verdict::Differs, what, why)));
    }
    if server.plugins.iter().any(|image| image.contains("velero-plugin-for-aws")) {
        findings.push(finding(
            Verdict::Differs,
            "backup locations of the provider aws",
            "no plugin is required in Bowline; an installed plugin is used",
        ));
    }
}

/// Which flags of Velero's server ours takes.
fn flags(findings: &mut Vec<Finding>, server: &Server) {
    for words in with_values(&server.flags) {
        if asks_for_more(&words).is_some() {
            // That is told with what this version lacks.
            continue;
        }
        let name = format!("server flag {}", words.join(" "));
        findings.push(match taken(&words) {
            Some(line) if line.notes().is_empty() => finding(Verdict::Carries, name, ""),
            Some(line) => finding(Verdict::Differs, name, line.notes().join("; ")),
            None => finding(
                Verdict::Stays,
                name,
                "not supported in this version; omit it if you do not need it",
            ),
        });
    }
}

/// The words of those flags that our server takes and makes use of.
pub(super) fn taken_flags(server: &Server) -> Vec<&str> {
    let goes = |words: &Vec<&str>| {
        asks_for_more(words).is_none() && taken(words).is_some_and(|line| line.notes().is_empty())
    };
    with_values(&server.flags).into_iter().filter(goes).flatten().collect()
}

/// What our server reads from a flag, if it takes it.
fn taken(words: &[&str]) -> Option<server::Line> {
    server::Line::try_parse_from(std::iter::once("server").chain(words.iter().copied())).ok()
}

/// Each flag with the value that follows it as a word of its own, if one does.
fn with_values(words: &[String]) -> Vec<Vec<&str>> {
    let mut flags: Vec<Vec<&str>> = Vec::new();
    for word in words {
        match flags.last_mut() {
            Some(flag) if !word.starts_with('-') => flag.push(word),
            _ => flags.push(vec![word]),
        }
    }
    flags
}

const LACKS: &str = "this version has no file-system backup";
const MOVES: &str = "this version has no data mover";

/// Why a flag makes a method the default that this version does not have.
fn asks_for_more(words: &[&str]) -> Option<&'static str> {
    let [word] = words else { return None };
    let (flag, value) = word.split_once('=').unwrap_or((word, "true"));
    match flag {
        _ if value != "true" => None,
        "--default-volumes-to-fs-backup" => Some(LACKS),
        "--default-snapshot-move-data" => Some(MOVES),
        _ => None,
    }
}

/// Methods that this version does not have.
fn lacking(findings: &mut Vec<Finding>, facts: &Facts) {
    if facts.has_node_agent {
        findings.push(finding(
            Verdict::Stays,
            "the node agent",
            format!("{LACKS} and no data mover, so it is not used; leave it for Velero"),
        ));
    }
    for (count, noun, why) in [
        (facts.pod_volume_backups.len(), "PodVolumeBackups", LACKS),
        (facts.data_uploads.len(), "DataUploads", MOVES),
        (facts.repositories, "BackupRepositories", LACKS),
    ] {
        if count > 0 {
            let why = format!("{why}: only Velero can restore and delete the data in them");
            findings.push(finding(Verdict::Stays, format!("{count} {noun}"), why));
        }
    }
    let lost = with_lost_data(facts);
    let backups = facts.backups.iter().filter(|backup| is_among(backup, &lost)).count();
    if backups > 0 {
        findings.push(finding(
            Verdict::Stays,
            format!("{backups} of {} backups", facts.backups.len()),
            "these backups contain such data: they are listed and described, and their objects can \
             be restored but not their data; they are kept after they expire",
        ));
    }
    for schedule in &facts.schedules {
        for why in methods(&schedule.spec.template) {
            let what = format!("schedule {}", schedule.name_any());
            let why = format!("{why}: backups of this schedule would report errors");
            findings.push(finding(Verdict::Stays, what, why));
        }
    }
    for words in facts.velero.iter().flat_map(|server| with_values(&server.flags)) {
        if let Some(why) = asks_for_more(&words) {
            let why = format!("{why}: volumes without another method would be reported");
            findings.push(finding(Verdict::Stays, format!("the default {}", words.join(" ")), why));
        }
    }
}

/// What a backup wants that this version does not have.
fn methods(spec: &BackupSpec) -> Vec<&'static str> {
    let mut methods = Vec::new();
    if spec.default_volumes_to_fs_backup == Some(true) {
        methods.push("file-system backup of volumes is not supported in this version");
    }
    if spec.snapshot_move_data == Some(true) {
        methods.push("moving snapshot data is not supported in this version");
    }
    methods
}
