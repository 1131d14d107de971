//! Compatibility of an installation of Bowline with Velero.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::locations::{self, FILESYSTEM, is_filesystem};
use super::{Finding, MigrationVerdict, finding, push_count};
use crate::active_runs;
use crate::commands::migrate::facts::{Facts, Server};
use crate::commands::migrate::providers::{ProviderSupport, provider_support};

/// Prefix of the names of Bowline's own plugins.
const OWN_PLUGIN_PREFIX: &str = "bowline.io/";

/// Findings for a switch to Velero.
pub(in super::super) fn check_switch_to_velero(facts: &Facts, active: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !active.is_empty() {
        let reason = "Velero would mark these runs as failed and leave their unfinished work \
                      behind; wait until they have ended, or cancel them";
        findings.push(finding(MigrationVerdict::Stays, active_runs::first_names(active), reason));
    }
    push_filesystem_locations(&mut findings, facts);
    let plugins = facts.velero.as_ref().map(|server| server.plugins.as_slice());
    locations::check_locations(&mut findings, facts, plugins, &locations::TO_VELERO);
    push_snapshots(&mut findings, facts, plugins);
    let running = |server: &Option<Server>| server.as_ref().is_some_and(|one| one.replicas > 0);
    if running(&facts.bowline) && running(&facts.velero) {
        findings.push(finding(
            MigrationVerdict::Stays,
            "both servers are scaled up in this namespace",
            "two servers would process the same resources; stop one of them",
        ));
    }
    findings
}

/// Content of `filesystem` locations, which Velero cannot read, and of the others.
fn push_filesystem_locations(findings: &mut Vec<Finding>, facts: &Facts) {
    let folders: BTreeSet<String> = facts
        .locations
        .iter()
        .filter(|one| is_filesystem(&one.spec.provider))
        .map(kube::ResourceExt::name_any)
        .collect();
    let mut backups_by_location: BTreeMap<&str, usize> = BTreeMap::new();
    for backup in &facts.backups {
        *backups_by_location.entry(&backup.spec.storage_location).or_default() += 1;
    }
    for name in &folders {
        let backups = backups_by_location.get(name.as_str()).copied().unwrap_or_default();
        findings.push(finding(
            MigrationVerdict::Stays,
            format!("backup location {name} ({FILESYSTEM})"),
            format!(
                "Velero does not support this provider and cannot read the {backups} backups in \
                 the location"
            ),
        ));
    }
    let default = facts
        .locations
        .iter()
        .find(|one| one.spec.default)
        .map_or_else(|| "default".to_owned(), kube::ResourceExt::name_any);
    let (affected, unaffected): (Vec<_>, Vec<_>) = facts.schedules.iter().partition(|schedule| {
        let location = &schedule.spec.template.storage_location;
        folders.contains(if location.is_empty() { &default } else { location })
    });
    for schedule in affected {
        findings.push(finding(
            MigrationVerdict::Stays,
            format!("schedule {}", schedule.name_any()),
            "backups of this schedule go to such a location, which Velero cannot use",
        ));
    }
    let elsewhere =
        facts.backups.iter().filter(|backup| !folders.contains(&backup.spec.storage_location));
    push_count(
        findings,
        elsewhere.count(),
        "backup",
        "can be listed, described and restored, and expire as before",
    );
    push_count(findings, unaffected.len(), "schedule", "continue as before");
}

/// Consequences for Bowline's records of snapshots, and for snapshots taken by its own plugins.
fn push_snapshots(findings: &mut Vec<Finding>, facts: &Facts, images: Option<&[String]>) {
    if facts.snapshotters.is_empty() {
        return;
    }
    findings.push(finding(
        MigrationVerdict::Differs,
        format!("{} VolumePluginBackups", facts.snapshotters.len()),
        "Velero ignores them; the backup files also list the snapshots in Velero's format",
    ));
    let mut own_plugins: BTreeMap<&str, usize> = BTreeMap::new();
    for plugin in facts.snapshotters.iter().filter(|plugin| plugin.starts_with(OWN_PLUGIN_PREFIX)) {
        *own_plugins.entry(plugin).or_default() += 1;
    }
    for (plugin, count) in own_plugins {
        let support = provider_support(plugin, &[], images.unwrap_or_default());
        if !matches!(support, ProviderSupport::Plugin(_)) {
            findings.push(finding(
                MigrationVerdict::Stays,
                format!("{count} snapshots of {plugin}"),
                "Velero can restore and delete them only with this plugin; add it with `velero \
                 plugin add`",
            ));
        }
    }
}
