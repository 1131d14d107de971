//! Whether Velero can take over from an installation of ours.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::locations::{self, FILESYSTEM, is_folder};
use super::{Finding, Verdict, counted, finding};
use crate::commands::migrate::facts::{Facts, Server};
use crate::commands::migrate::providers::{Served, served};
use crate::open_runs;

/// What the names of our own plugins begin with.
const OURS: &str = "bowline.io/";

/// Whether Velero can take over from an installation of ours.
pub(in super::super) fn back(facts: &Facts, open: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !open.is_empty() {
        let why = "Velero would mark these runs as failed and leave their unfinished work behind; \
                   wait until they have ended, or cancel them";
        findings.push(finding(Verdict::Stays, open_runs::named(open), why));
    }
    folders(&mut findings, facts);
    let plugins = facts.velero.as_ref().map(|server| server.plugins.as_slice());
    locations::judge(&mut findings, facts, plugins, &locations::BACK);
    snapshots(&mut findings, facts, plugins);
    let running = |server: &Option<Server>| server.as_ref().is_some_and(|one| one.replicas > 0);
    if running(&facts.bowline) && running(&facts.velero) {
        findings.push(finding(
            Verdict::Stays,
            "both servers are scaled up in this namespace",
            "two servers would process the same resources; stop one of them",
        ));
    }
    findings
}

/// What is in folders of our server, which Velero cannot read, and what is not.
fn folders(findings: &mut Vec<Finding>, facts: &Facts) {
    let folders: BTreeSet<String> = facts
        .locations
        .iter()
        .filter(|one| is_folder(&one.spec.provider))
        .map(kube::ResourceExt::name_any)
        .collect();
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for backup in &facts.backups {
        *held.entry(&backup.spec.storage_location).or_default() += 1;
    }
    for name in &folders {
        let backups = held.get(name.as_str()).copied().unwrap_or_default();
        findings.push(finding(
            Verdict::Stays,
            format!("backup location {name} ({FILESYSTEM})"),
            format!(
                "Velero does not support this provider and cannot read the {backups} backups \
                     in the location"
            ),
        ));
    }
    let default = facts
        .locations
        .iter()
        .find(|one| one.spec.default)
        .map_or_else(|| "default".to_owned(), kube::ResourceExt::name_any);
    let (stay, go): (Vec<_>, Vec<_>) = facts.schedules.iter().partition(|schedule| {
        let named = &schedule.spec.template.storage_location;
        folders.contains(if named.is_empty() { &default } else { named })
    });
    for schedule in stay {
        findings.push(finding(
            Verdict::Stays,
            format!("schedule {}", schedule.name_any()),
            "backups of this schedule go to such a location, which Velero cannot use",
        ));
    }
    let elsewhere =
        facts.backups.iter().filter(|backup| !folders.contains(&backup.spec.storage_location));
    counted(
        findings,
        elsewhere.count(),
        "backup",
        "can be listed, described and restored, and \
                                                    expire as before",
    );
    counted(findings, go.len(), "schedule", "continue as before");
}

/// What becomes of our records of snapshots, and of snapshots that our own plugins took.
fn snapshots(findings: &mut Vec<Finding>, facts: &Facts, images: Option<&[String]>) {
    if facts.snapshotters.is_empty() {
        return;
    }
    findings.push(finding(
        Verdict::Differs,
        format!("{} VolumePluginBackups", facts.snapshotters.len()),
        "Velero neither knows nor needs them; the snapshots are also in Velero's own records",
    ));
    let mut ours: BTreeMap<&str, usize> = BTreeMap::new();
    for plugin in facts.snapshotters.iter().filter(|plugin| plugin.starts_with(OURS)) {
        *ours.entry(plugin).or_default() += 1;
    }
    for (plugin, count) in ours {
        let by = served(plugin, &[], images.unwrap_or_default());
        if !matches!(by, Served::By(_)) {
            findings.push(finding(
                Verdict::Stays,
                format!("{count} snapshots of {plugin}"),
                "Velero can restore and delete them only with this plugin; add it with `velero \
                 plugin add`",
            ));
        }
    }
}
