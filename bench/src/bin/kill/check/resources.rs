//! VolumePluginBackups and VolumePluginRestores, written by the server or a plugin.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase};

use super::RunEvidence;

/// VolumePluginBackup or VolumePluginRestore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeResource {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) snapshot: String,
    pub(crate) phase: VolumePluginPhase,
    /// True if it has the labels of its run, and the run as its owner.
    pub(crate) is_owned: bool,
    /// True if the server created it.
    pub(crate) is_managed: bool,
}

impl VolumeResource {
    /// True if it reports that the snapshot or the volume exists, or will.
    fn is_not_failed(&self) -> bool {
        self.phase.outcome().is_none_or(|outcome| outcome == VolumePluginOutcome::Completed)
    }
}

/// Snapshots that the resources of a run should name.
fn expected_snapshots(run: &RunEvidence) -> BTreeSet<&str> {
    let backed_up = run.records.iter().filter(|one| one.is_completed).map(|one| one.id.as_str());
    let restored =
        run.restored_volumes.iter().filter(|one| one.uses > 0).map(|one| one.snapshot.as_str());
    backed_up.chain(restored).collect()
}

/// Snapshots that several resources report as existing, and resources that report one that neither the backup nor the
/// plugin has.
pub(super) fn repeated_work(run: &RunEvidence) -> Vec<String> {
    let mut good: BTreeMap<&str, Vec<&VolumeResource>> = BTreeMap::new();
    for resource in run.resources.iter().filter(|resource| resource.is_not_failed()) {
        good.entry(&resource.snapshot).or_default().push(resource);
    }
    let mut doubled = Vec::new();
    for (snapshot, resources) in &good {
        if let [first, _, ..] = resources[..] {
            let (count, kind) = (resources.len(), &first.kind);
            doubled.push(format!("{}: {snapshot} has {count} {kind}s", run.name));
        }
    }
    let is_of_csi = |id: &str| run.csi.records.iter().any(|one| one.handle == *id);
    // An existing snapshot without a record is lost, unless a warning names it.
    let is_there = |id: &str| run.snapshots.iter().any(|one| one.id == *id);
    let is_known =
        |id: &str| run.records.iter().any(|one| one.id == *id) || is_there(id) || is_of_csi(id);
    // A restore has only resources of snapshots that exist.
    for resource in run.resources.iter().filter(|one| one.kind == "VolumePluginBackup") {
        let VolumeResource { name, snapshot, phase, .. } = resource;
        if resource.is_not_failed() && !is_known(snapshot) {
            let problem = format!("the VolumePluginBackup {name} is {phase}");
            doubled.push(format!("{}: {problem}, and there is no {snapshot}", run.name));
        }
    }
    doubled
}

/// Resources that have not ended or do not belong to the run, and snapshots and volumes without one.
pub(super) fn unfinished_reasons(run: &RunEvidence) -> Vec<String> {
    let mut reasons = Vec::new();
    for VolumeResource { kind, name, phase, is_owned, .. } in &run.resources {
        if !phase.is_terminal() {
            reasons.push(format!("has left the {kind} {name} {phase}"));
        }
        if !is_owned {
            reasons.push(format!("does not own the {kind} {name}"));
        }
    }
    for snapshot in expected_snapshots(run) {
        let of_snapshot = |resource: &&VolumeResource| {
            resource.snapshot == snapshot
                && resource.phase.outcome() == Some(VolumePluginOutcome::Completed)
        };
        match run.resources.iter().find(of_snapshot) {
            None => reasons.push(format!("has no completed resource of {snapshot}")),
            Some(VolumeResource { kind, name, is_managed: true, .. })
                if run.snapshotter.writes_resources() =>
            {
                reasons.push(format!("has a {kind} {name} that its plugin has not written"));
            }
            Some(_) => {}
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::super::{RestoredVolume, SnapshotRecord};
    use super::*;
    use crate::plan::SnapshotterMode;

    fn resource(name: &str, snapshot: &str, phase: &str) -> VolumeResource {
        VolumeResource {
            kind: "VolumePluginBackup".into(),
            name: name.into(),
            snapshot: snapshot.into(),
            phase: VolumePluginPhase::from(phase),
            is_owned: true,
            is_managed: false,
        }
    }

    /// Backup with the snapshot `s`.
    fn backup(resources: &[VolumeResource]) -> RunEvidence {
        RunEvidence {
            name: "b".into(),
            records: vec![SnapshotRecord {
                id: "s".into(),
                volume: "v".into(),
                is_completed: true,
            }],
            resources: resources.to_vec(),
            snapshotter: SnapshotterMode::PluginWrites,
            ..RunEvidence::default()
        }
    }

    #[test]
    fn recorded_snapshot_has_one_resource_and_others_none_that_succeeded() {
        let (fine, failed) = (resource("a", "s", "Completed"), resource("b", "s", "Failed"));
        assert_eq!(repeated_work(&backup(&[fine.clone(), failed])), [""; 0]);
        for phase in ["completed", "InProgress"] {
            let second = backup(&[fine.clone(), resource("b", "s", phase)]);
            assert_eq!(repeated_work(&second), ["b: s has 2 VolumePluginBackups"]);
        }
        assert_eq!(repeated_work(&backup(&[fine.clone(), resource("b", "t", "Failed")])), [""; 0]);
        let unknown = backup(&[fine.clone(), resource("b", "t", "Completed")]);
        let expected = "b: the VolumePluginBackup b is Completed, and there is no t";
        assert_eq!(repeated_work(&unknown), [expected]);
        let of_restore = VolumeResource { kind: "VolumePluginRestore".into(), ..fine };
        assert_eq!(
            repeated_work(&RunEvidence { records: Vec::new(), ..backup(&[of_restore]) }),
            [""; 0]
        );
    }

    #[test]
    fn run_is_unfinished_without_its_own_terminal_resources() {
        let complete = resource("a", "s", "Completed");
        assert_eq!(unfinished_reasons(&backup(std::slice::from_ref(&complete))), [""; 0]);
        let open = resource("b", "s", "InProgress");
        let unowned = VolumeResource { is_owned: false, ..complete.clone() };
        let managed = VolumeResource { is_managed: true, ..complete.clone() };
        for (resources, expected) in [
            (vec![complete.clone(), open], "has left the VolumePluginBackup b InProgress"),
            (vec![unowned], "does not own the VolumePluginBackup a"),
            (vec![resource("a", "s", "Failed")], "has no completed resource of s"),
            (vec![managed.clone()], "has a VolumePluginBackup a that its plugin has not written"),
        ] {
            assert_eq!(unfinished_reasons(&backup(&resources)), [expected]);
        }
        let by_server = SnapshotterMode::ServerWrites;
        assert_eq!(
            unfinished_reasons(&RunEvidence { snapshotter: by_server, ..backup(&[managed]) }),
            [""; 0]
        );
        let restore = |uses| RunEvidence {
            restored_volumes: vec![RestoredVolume { id: "vol".into(), snapshot: "s".into(), uses }],
            ..RunEvidence::default()
        };
        assert_eq!(unfinished_reasons(&restore(1)), ["has no completed resource of s"]);
        assert_eq!(unfinished_reasons(&restore(0)), [""; 0]);
    }
}
