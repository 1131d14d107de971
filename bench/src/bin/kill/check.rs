//! What a kill has cost: decided from what plugins, pods, bucket and cluster say.

mod csi;
mod resources;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::Snapshotter;

pub(crate) use csi::{Csi, Made as CsiMade, Record as CsiRecord, Taken};
pub(crate) use resources::VolumeResource;
pub(crate) use volumes::{Deletion, Made, Recorded, Snapshot, left, undeleted};

/// An action and an item that it was shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) plugin: String,
    /// `<resource>/<name>`. Names are unique in a run, so that it makes no difference whether a
    /// namespace is the one in the backup or the one that it is restored into.
    pub(crate) item: String,
}

/// An item that an action was shown, as the plugin has noted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) key: Key,
    /// What it began, if anything.
    pub(crate) operation: Option<String>,
}

/// An operation, as the file in the bucket has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) key: Key,
    pub(crate) id: String,
    pub(crate) is_completed: bool,
}

/// What is known of a run when it should be over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Why it failed, if it says.
    pub(crate) reason: String,
    /// What plugins were shown for it, in order.
    pub(crate) executed: Vec<Executed>,
    /// How many of them there were when all of their results were in the bucket and the server dead.
    pub(crate) recorded: Option<usize>,
    pub(crate) operations: Vec<Operation>,
    /// Warnings that something may be left over.
    pub(crate) leftovers: Vec<Key>,
    /// What a backup has at the plugin that takes snapshots.
    pub(crate) snapshots: Vec<Snapshot>,
    /// The snapshots that its files name.
    pub(crate) records: Vec<Recorded>,
    /// The PersistentVolumes that it should have snapshots of.
    pub(crate) wanted: Vec<String>,
    /// What the snapshots were asked for by that it had when all of them were recorded and the server
    /// dead.
    pub(crate) settled: Option<BTreeSet<String>>,
    /// What was made for a restore.
    pub(crate) made: Vec<Made>,
    /// Its VolumePluginBackups or VolumePluginRestores.
    pub(crate) resources: Vec<VolumeResource>,
    /// Who has taken its snapshots, or made its volumes.
    pub(crate) snapshotter: Snapshotter,
    /// What it has to do with the CSI driver.
    pub(crate) csi: Csi,
    /// Warnings that a snapshot or a volume may be left over.
    pub(crate) notices: Vec<String>,
    /// Objects that should be in its archive, or in the cluster, and are not.
    pub(crate) missing: Vec<String>,
}

impl Run {
    fn explained(&self) -> BTreeMap<&Key, usize> {
        let mut counts = BTreeMap::new();
        for key in &self.leftovers {
            *counts.entry(key).or_default() += 1;
        }
        counts
    }
}

/// Operations, snapshots and volumes that were begun, and that nobody knows nor a warning explains.
pub(crate) fn lost(run: &Run) -> Vec<String> {
    let mut unknown: BTreeMap<&Key, Vec<&str>> = BTreeMap::new();
    for Executed { key, operation } in &run.executed {
        let Some(id) = operation else { continue };
        if !run.operations.iter().any(|one| one.key == *key && one.id == *id) {
            unknown.entry(key).or_default().push(id);
        }
    }
    let explained = run.explained();
    let mut lost = volumes::lost(run);
    lost.extend(csi::lost(run));
    for (key, ids) in unknown {
        let allowed = explained.get(key).copied().unwrap_or_default();
        for id in ids.iter().skip(allowed) {
            let Key { plugin, item } = key;
            lost.push(format!("{}: {plugin} began {id} for {item}, which is lost", run.name));
        }
    }
    lost
}

/// Items and volumes that were shown again without a warning, or although their results were recorded.
pub(crate) fn doubled(run: &Run) -> Vec<String> {
    let mut shown: BTreeMap<&Key, usize> = BTreeMap::new();
    for Executed { key, .. } in &run.executed {
        *shown.entry(key).or_default() += 1;
    }
    let explained = run.explained();
    let mut doubled = volumes::doubled(run);
    doubled.extend(csi::doubled(run));
    doubled.extend(resources::doubled(run));
    for (key, times) in shown {
        let allowed = 1 + explained.get(key).copied().unwrap_or_default();
        for _ in allowed..times {
            let Key { plugin, item } = key;
            doubled.push(format!("{}: {plugin} was shown {item} again in silence", run.name));
        }
    }
    let recorded = run.recorded.unwrap_or(usize::MAX);
    for Executed { key: Key { plugin, item }, .. } in run.executed.iter().skip(recorded) {
        let why = "though its result was recorded";
        doubled.push(format!("{}: {plugin} was shown {item} again {why}", run.name));
    }
    doubled
}

/// Pods that were frozen last, or more often than they were thawed.
pub(crate) fn frozen<'a>(pods: impl IntoIterator<Item = (&'a str, &'a [String])>) -> Vec<String> {
    let mut frozen = Vec::new();
    for (pod, lines) in pods {
        let count = |word: &str| lines.iter().filter(|line| *line == word).count();
        let (freezes, thaws) = (count("freeze"), count("thaw"));
        if lines.last().is_some_and(|line| line == "freeze") || freezes > thaws {
            frozen.push(format!("{pod} is frozen: {freezes} freezes, {thaws} thaws"));
        }
    }
    frozen
}

/// Why a run has not ended as it should.
pub(crate) fn unfinished(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    if run.phase != "Completed" {
        reasons.push(format!("is {}", [run.phase.as_str(), run.reason.as_str()].join(" ").trim()));
    }
    let open = run.operations.iter().filter(|one| !one.is_completed).count();
    if open > 0 {
        reasons.push(format!("has {open} operations that are not completed"));
    }
    reasons.extend(volumes::unfinished(run));
    reasons.extend(csi::unfinished(&run.csi));
    reasons.extend(resources::unfinished(run));
    if !run.missing.is_empty() {
        reasons.push(format!("lacks {}", run.missing.join(", ")));
    }
    if reasons.is_empty() {
        return reasons;
    }
    vec![format!("{} {}", run.name, reasons.join(" and "))]
}

#[cfg(test)]
mod tests;
