//! What a kill has cost: decided from what plugins, pods, bucket and cluster say.

mod csi;
mod resources;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::SnapshotterMode;

pub(crate) use csi::{
    CsiEvidence, CsiRestoredResource as CsiMade, CsiSnapshot, CsiSnapshotRecord as CsiRecord,
};
pub(crate) use resources::VolumeResource;
pub(crate) use volumes::{
    DeletionEvidence, PluginSnapshot, RestoredVolume, SnapshotRecord, leftovers, undeleted_reasons,
};

/// An action and an item that it was shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ActionOnItem {
    pub(crate) plugin: String,
    /// `<resource>/<name>`. Names are unique in a run, so that it makes no difference whether a
    /// namespace is the one in the backup or the one that it is restored into.
    pub(crate) item: String,
}

/// An item that an action was shown, as the plugin has noted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutedAction {
    pub(crate) key: ActionOnItem,
    /// What it began, if anything.
    pub(crate) operation: Option<String>,
}

/// An operation, as the file in the bucket has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) key: ActionOnItem,
    pub(crate) id: String,
    pub(crate) is_completed: bool,
}

/// What is known of a run when it should be over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunEvidence {
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Why it failed, if it says.
    pub(crate) reason: String,
    /// What plugins were shown for it, in order.
    pub(crate) executed: Vec<ExecutedAction>,
    /// How many of them there were when all of their results were in the bucket and the server dead.
    pub(crate) executed_when_recorded: Option<usize>,
    pub(crate) operations: Vec<Operation>,
    /// Warnings that something may be left over.
    pub(crate) leftover_warnings: Vec<ActionOnItem>,
    /// What a backup has at the plugin that takes snapshots.
    pub(crate) snapshots: Vec<PluginSnapshot>,
    /// The snapshots that its files name.
    pub(crate) records: Vec<SnapshotRecord>,
    /// The PersistentVolumes that it should have snapshots of.
    pub(crate) expected_volumes: Vec<String>,
    /// What the snapshots were asked for by that it had when all of them were recorded and the server
    /// dead.
    pub(crate) recorded_requests: Option<BTreeSet<String>>,
    /// What was made for a restore.
    pub(crate) restored_volumes: Vec<RestoredVolume>,
    /// Its VolumePluginBackups or VolumePluginRestores.
    pub(crate) resources: Vec<VolumeResource>,
    /// Who has taken its snapshots, or made its volumes.
    pub(crate) snapshotter: SnapshotterMode,
    /// What it has to do with the CSI driver.
    pub(crate) csi: CsiEvidence,
    /// Warnings that a snapshot or a volume may be left over.
    pub(crate) volume_warnings: Vec<String>,
    /// Objects that should be in its archive, or in the cluster, and are not.
    pub(crate) missing: Vec<String>,
}

impl RunEvidence {
    fn count_leftover_warnings(&self) -> BTreeMap<&ActionOnItem, usize> {
        let mut counts = BTreeMap::new();
        for key in &self.leftover_warnings {
            *counts.entry(key).or_default() += 1;
        }
        counts
    }
}

/// Operations, snapshots and volumes that were begun, and that nobody knows nor a warning explains.
pub(crate) fn lost_resources(run: &RunEvidence) -> Vec<String> {
    let mut unknown: BTreeMap<&ActionOnItem, Vec<&str>> = BTreeMap::new();
    for ExecutedAction { key, operation } in &run.executed {
        let Some(id) = operation else { continue };
        if !run.operations.iter().any(|one| one.key == *key && one.id == *id) {
            unknown.entry(key).or_default().push(id);
        }
    }
    let explained = run.count_leftover_warnings();
    let mut lost = volumes::lost_resources(run);
    lost.extend(csi::lost_resources(run));
    for (key, ids) in unknown {
        let allowed = explained.get(key).copied().unwrap_or_default();
        for id in ids.iter().skip(allowed) {
            let ActionOnItem { plugin, item } = key;
            lost.push(format!("{}: {plugin} began {id} for {item}, which is lost", run.name));
        }
    }
    lost
}

/// Items and volumes that were shown again without a warning, or although their results were recorded.
pub(crate) fn repeated_work(run: &RunEvidence) -> Vec<String> {
    let mut shown: BTreeMap<&ActionOnItem, usize> = BTreeMap::new();
    for ExecutedAction { key, .. } in &run.executed {
        *shown.entry(key).or_default() += 1;
    }
    let explained = run.count_leftover_warnings();
    let mut doubled = volumes::repeated_work(run);
    doubled.extend(csi::repeated_work(run));
    doubled.extend(resources::repeated_work(run));
    for (key, times) in shown {
        let allowed = 1 + explained.get(key).copied().unwrap_or_default();
        for _ in allowed..times {
            let ActionOnItem { plugin, item } = key;
            doubled.push(format!("{}: {plugin} was shown {item} again in silence", run.name));
        }
    }
    let recorded = run.executed_when_recorded.unwrap_or(usize::MAX);
    for ExecutedAction { key: ActionOnItem { plugin, item }, .. } in
        run.executed.iter().skip(recorded)
    {
        let reason = "though its result was recorded";
        doubled.push(format!("{}: {plugin} was shown {item} again {reason}", run.name));
    }
    doubled
}

/// Pods that were frozen last, or more often than they were thawed.
pub(crate) fn frozen_pods<'a>(
    pods: impl IntoIterator<Item = (&'a str, &'a [String])>,
) -> Vec<String> {
    let mut frozen = Vec::new();
    for (pod, lines) in pods {
        let count = |event: &str| lines.iter().filter(|line| *line == event).count();
        let (freezes, thaws) = (count("freeze"), count("thaw"));
        if lines.last().is_some_and(|line| line == "freeze") || freezes > thaws {
            frozen.push(format!("{pod} is frozen: {freezes} freezes, {thaws} thaws"));
        }
    }
    frozen
}

/// Why a run has not ended as it should.
pub(crate) fn unfinished_reasons(run: &RunEvidence) -> Vec<String> {
    let mut reasons = Vec::new();
    if run.phase != "Completed" {
        reasons.push(format!("is {}", [run.phase.as_str(), run.reason.as_str()].join(" ").trim()));
    }
    let open = run.operations.iter().filter(|one| !one.is_completed).count();
    if open > 0 {
        reasons.push(format!("has {open} operations that are not completed"));
    }
    reasons.extend(volumes::unfinished_reasons(run));
    reasons.extend(csi::unfinished_reasons(&run.csi));
    reasons.extend(resources::unfinished_reasons(run));
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
