//! Cost of a kill: decided from evidence of plugins, pods, bucket and cluster.

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

/// Action and an item passed to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ActionOnItem {
    pub(crate) plugin: String,
    /// `<resource>/<name>`. Names are unique in a run, so the namespace in the backup and the one restored into need
    /// not be distinguished.
    pub(crate) item: String,
}

/// Call of an action with an item, as the plugin has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutedAction {
    pub(crate) key: ActionOnItem,
    /// Operation that the call started, if any.
    pub(crate) operation: Option<String>,
}

/// Operation as recorded in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) key: ActionOnItem,
    pub(crate) id: String,
    pub(crate) is_completed: bool,
}

/// Evidence about a run when it should have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunEvidence {
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Reason for its failure, if it gives one.
    pub(crate) reason: String,
    /// Calls of plugins for it, in order.
    pub(crate) executed: Vec<ExecutedAction>,
    /// Number of calls when all of their results were in the bucket and the server was dead.
    pub(crate) executed_when_recorded: Option<usize>,
    pub(crate) operations: Vec<Operation>,
    /// Warnings about possible leftovers.
    pub(crate) leftover_warnings: Vec<ActionOnItem>,
    /// Snapshots of a backup in the snapshot plugin.
    pub(crate) snapshots: Vec<PluginSnapshot>,
    /// Snapshots that its files name.
    pub(crate) records: Vec<SnapshotRecord>,
    /// PersistentVolumes of which it should have snapshots.
    pub(crate) expected_volumes: Vec<String>,
    /// Requests of its snapshots at the time when all of them were recorded and the server was dead.
    pub(crate) recorded_requests: Option<BTreeSet<String>>,
    /// Volumes created for a restore.
    pub(crate) restored_volumes: Vec<RestoredVolume>,
    /// Its VolumePluginBackups or VolumePluginRestores.
    pub(crate) resources: Vec<VolumeResource>,
    /// Plugin that took its snapshots, or created its volumes.
    pub(crate) snapshotter: SnapshotterMode,
    /// Evidence from the CSI driver.
    pub(crate) csi: CsiEvidence,
    /// Warnings that a snapshot or a volume may be left over.
    pub(crate) volume_warnings: Vec<String>,
    /// Objects that are missing from its archive, or from the cluster.
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

/// Started operations, snapshots and volumes that no record names and no warning explains.
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

/// Items and volumes processed again without a warning, or although their results were recorded.
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

/// Pods whose last event is a freeze, or that were frozen more often than thawed.
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

/// Reasons why a run has not ended as it should.
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
