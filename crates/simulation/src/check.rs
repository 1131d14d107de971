//! What must hold when everything is over: judged from the cluster, the bucket and the plugins.

use std::collections::BTreeSet;
use std::io::Read as _;

use bowline_engine::leftover::LEFT_OVER;
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::log::ServerLog;
use crate::plan::{APPS, RESTORED, contents};
use crate::world::State;

/// Checks everything.
pub(crate) fn at_the_end(state: &mut State, log: &ServerLog) {
    let log = log.text();
    let leftovers: Vec<&str> = log.lines().filter(|line| line.contains(LEFT_OVER)).collect();
    let is_reported = |line: &&str| line.contains("level=warning") || line.contains("level=error");
    let problems: Vec<&str> = log.lines().filter(is_reported).collect();
    let mut found = state.bucket.damages();
    found.extend(state.pods.frozen().into_iter().map(|pod| format!("{pod} is left frozen")));
    found.extend(uncommitted(state));
    found.extend(missing_from_archives(state));
    found.extend(missing_from_restore(state));
    found.extend(lost_snapshots(state, &leftovers));
    found.extend(lost_operations(state, &problems));
    for violation in found {
        state.violate(violation);
    }
}

/// Content of a gzip file with JSON in the bucket.
fn json(state: &State, key: &str) -> Value {
    let Some(content) = state.bucket.get(key) else { return Value::Null };
    let mut text = Vec::new();
    let read = MultiGzDecoder::new(&content[..]).read_to_end(&mut text);
    read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Backups that claim to be usable and are not in the bucket, and those in the bucket that the cluster has lost.
fn uncommitted(state: &State) -> Vec<String> {
    let mut found = Vec::new();
    for backup in state.objects.list("Backup") {
        let name = backup["metadata"]["name"].as_str().unwrap_or_default();
        let phase = backup["status"]["phase"].as_str().unwrap_or_default();
        if ["Completed", "PartiallyFailed"].contains(&phase) && !state.bucket.is_committed(name) {
            found.push(format!("{name} is {phase}, and is not in the bucket"));
        }
    }
    found
}

/// Objects that a backup without errors lacks.
fn missing_from_archives(state: &State) -> Vec<String> {
    let mut found = Vec::new();
    for backup in state.objects.list("Backup") {
        let name = backup["metadata"]["name"].as_str().unwrap_or_default();
        let app = backup["spec"]["includedNamespaces"][0].as_str().unwrap_or_default();
        if backup["status"]["phase"] != "Completed" {
            continue;
        }
        let Some(archive) = state.bucket.get(&format!("backups/{name}/{name}.tar.gz")) else {
            found.push(format!("{name} is Completed, and has no archive"));
            continue;
        };
        let paths = paths_in(archive);
        for (resource, object) in contents(app) {
            if !paths.contains(&format!("resources/{resource}/namespaces/{app}/{object}.json")) {
                found.push(format!("{name} is Completed, and lacks {resource}/{object}"));
            }
        }
    }
    found
}

/// Paths in an archive, as far as it can be read.
fn paths_in(archive: &[u8]) -> BTreeSet<String> {
    let mut archive = tar::Archive::new(MultiGzDecoder::new(archive));
    let Ok(entries) = archive.entries() else { return BTreeSet::new() };
    let path = |entry: tar::Entry<'_, _>| Some(entry.path().ok()?.to_string_lossy().into_owned());
    entries.map_while(Result::ok).filter_map(path).collect()
}

/// Objects that a restore without errors has not created.
fn missing_from_restore(state: &State) -> Vec<String> {
    if phase_of(state, "Restore", "restore").as_deref() != Some("Completed") {
        return Vec::new();
    }
    let exists = |resource: &str, name: &str| {
        let Some(place) = state.objects.place("", resource) else { return false };
        state.objects.get(&(place, RESTORED.to_owned(), name.to_owned())).is_some()
    };
    let missing = contents(APPS[0]).into_iter().filter(|(resource, name)| !exists(resource, name));
    missing
        .map(|(resource, name)| format!("the restore is Completed, and lacks {resource}/{name}"))
        .collect()
}

/// Snapshots that no file names, unless they were reported as leftovers.
fn lost_snapshots(state: &State, leftovers: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (id, snapshot) in &state.disks.snapshots {
        let folder = format!("backups/{0}/{0}", snapshot.backup);
        let records = json(state, &format!("{folder}-volumesnapshots.json.gz"));
        let mut records = records.as_array().into_iter().flatten();
        if records.any(|record| record["status"]["providerSnapshotID"] == *id) {
            continue;
        }
        let results = json(state, &format!("{folder}-results.gz"));
        let volume = snapshot.volume.trim_end_matches("-disk");
        let names_it = |text: &str| {
            text.contains(LEFT_OVER) && (text.contains(volume) || text.contains(id.as_str()))
        };
        let is_reported =
            leftovers.iter().any(|line| names_it(line)) || has_text(&results, &names_it);
        if !is_reported {
            found.push(format!("{id} of {} has no record in {}", snapshot.volume, snapshot.backup));
        }
    }
    found
}

/// True if one of the texts in a value is such.
fn has_text(value: &Value, matches: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => matches(text),
        Value::Array(all) => all.iter().any(|one| has_text(one, matches)),
        Value::Object(all) => all.values().any(|one| has_text(one, matches)),
        _ => false,
    }
}

/// Operations that no file names and nothing tells of, or that a file says are not over.
fn lost_operations(state: &State, problems: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (id, operation) in &state.disks.operations {
        let Some((folder, run)) = operation.run.split_once('/') else { continue };
        let (kind, prefix) =
            if folder == "restores" { ("Restore", "restore-") } else { ("Backup", "") };
        let phase = phase_of(state, kind, run);
        // With a backup, the records of its operations are deleted. A run that has failed may have had no bucket for
        // them.
        if phase.is_none() || phase.as_deref() == Some("Failed") {
            if !operation.is_over() {
                found.push(format!("{id} of {run} is left running"));
            }
            continue;
        }
        let file = format!("{folder}/{run}/{prefix}{run}");
        let records = json(state, &format!("{file}-itemoperations.json.gz"));
        let mut records = records.as_array().into_iter().flatten();
        if let Some(record) = records.find(|record| record["spec"]["operationID"] == *id) {
            let phase = record["status"]["phase"].as_str().unwrap_or_default();
            if !["Completed", "Failed", "Canceled"].contains(&phase) {
                found.push(format!("{id} of {run} is {phase:?} for ever"));
            }
            continue;
        }
        // It was called again, or has failed, or was interrupted: whatever it was, the run or the log reports the item.
        let results = json(state, &format!("{file}-results.gz")).to_string();
        let is_reported =
            problems.iter().any(|line| line.contains(&operation.item) && line.contains(run));
        if !is_reported && !results.contains(&operation.item) {
            found.push(format!("{id} for {} of {run} is lost", operation.item));
        }
    }
    found
}

/// Phase of a run, if it exists.
fn phase_of(state: &State, kind: &str, name: &str) -> Option<String> {
    let runs = state.objects.list(kind);
    let run = runs.iter().find(|run| run["metadata"]["name"] == name)?;
    Some(run["status"]["phase"].as_str().unwrap_or_default().to_owned())
}
