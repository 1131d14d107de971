//! What must hold when everything is over: judged from the cluster, the bucket and the plugins.

use std::io::Read as _;

use bowline_engine::leftover::LEFT_OVER;
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::log::ServerLog;
use crate::world::State;

/// Checks everything.
pub(crate) fn at_the_end(state: &mut State, log: &ServerLog) {
    let log = log.text();
    let leftovers: Vec<&str> = log.lines().filter(|line| line.contains(LEFT_OVER)).collect();
    let mut found = state.bucket.damages();
    found.extend(state.pods.frozen().into_iter().map(|pod| format!("{pod} is left frozen")));
    found.extend(uncommitted(state));
    found.extend(lost_snapshots(state, &leftovers));
    found.extend(lost_operations(state, &leftovers));
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
        let results = json(state, &format!("{folder}-results.gz")).to_string();
        let volume = snapshot.volume.trim_end_matches("-disk");
        let is_reported = leftovers.iter().any(|line| line.contains(volume) || line.contains(id))
            || results.contains(LEFT_OVER) && results.contains(volume);
        if !is_reported {
            found.push(format!("{id} of {} has no record in {}", snapshot.volume, snapshot.backup));
        }
    }
    found
}

/// Operations that no file names, or without an end.
fn lost_operations(state: &State, leftovers: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (id, operation) in &state.disks.operations {
        let Some((folder, run)) = operation.run.split_once('/') else { continue };
        // With a backup, the records of its operations are deleted.
        if folder == "backups" && state.bucket.is_doomed(run) {
            continue;
        }
        let prefix = if folder == "restores" { "restore-" } else { "" };
        let folder = format!("{folder}/{run}/{prefix}{run}");
        let records = json(state, &format!("{folder}-itemoperations.json.gz"));
        let mut records = records.as_array().into_iter().flatten();
        match records.find(|record| record["spec"]["operationID"] == *id) {
            Some(record) => {
                let phase = record["status"]["phase"].as_str().unwrap_or_default();
                if !["Completed", "Failed", "Canceled"].contains(&phase) {
                    found.push(format!("{id} of {run} is {phase:?} for ever"));
                }
            }
            None => {
                let results = json(state, &format!("{folder}-results.gz")).to_string();
                let is_reported = leftovers.iter().any(|line| line.contains(&operation.item))
                    || results.contains(LEFT_OVER) && results.contains(&operation.item);
                if !is_reported && !operation.is_canceled {
                    found.push(format!("{id} for {} of {run} is lost", operation.item));
                }
            }
        }
    }
    found
}
