//! VolumePluginBackups and VolumePluginRestores, whoever writes them.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase};

use super::Run;

/// A VolumePluginBackup or VolumePluginRestore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeResource {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) snapshot: String,
    pub(crate) phase: VolumePluginPhase,
    /// Whether it has the labels of its run, and the run as its owner.
    pub(crate) is_owned: bool,
    /// Whether the server has made it.
    pub(crate) is_managed: bool,
}

impl VolumeResource {
    /// Whether it says that the snapshot or the volume is there, or will be.
    fn is_good(&self) -> bool {
        self.phase.outcome().is_none_or(|outcome| outcome == VolumePluginOutcome::Completed)
    }
}

/// What the resources of a run are about.
fn snapshots(run: &Run) -> BTreeSet<&str> {
    let taken = run.records.iter().filter(|one| one.is_completed).map(|one| one.id.as_str());
    let restored = run.made.iter().filter(|one| one.uses > 0).map(|one| one.snapshot.as_str());
    taken.chain(restored).collect()
}

/// Snapshots that several resources say are there, and resources that say so of a snapshot that the backup does not
/// have, nor the plugin.
pub(super) fn doubled(run: &Run) -> Vec<String> {
    let mut good: BTreeMap<&str, Vec<&VolumeResource>> = BTreeMap::new();
    for resource in run.resources.iter().filter(|resource| resource.is_good()) {
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
    // One that is there without a record is lost, unless a warning names it.
    let is_there = |id: &str| run.snapshots.iter().any(|one| one.id == *id);
    let is_known =
        |id: &str| run.records.iter().any(|one| one.id == *id) || is_there(id) || is_of_csi(id);
    // A restore has only resources of snapshots that exist.
    for resource in run.resources.iter().filter(|one| one.kind == "VolumePluginBackup") {
        let VolumeResource { name, snapshot, phase, .. } = resource;
        if resource.is_good() && !is_known(snapshot) {
            let what = format!("the VolumePluginBackup {name} is {phase}");
            doubled.push(format!("{}: {what}, and there is no {snapshot}", run.name));
        }
    }
    doubled
}

/// Resources that have not ended or do not belong to the run, and snapshots and volumes without one.
pub(super) fn unfinished(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    for VolumeResource { kind, name, phase, is_owned, .. } in &run.resources {
        if !phase.is_terminal() {
            reasons.push(format!("has left the {kind} {name} {phase}"));
        }
        if !is_owned {
            reasons.push(format!("does not own the {kind} {name}"));
        }
    }
    for snapshot in snapshots(run) {
        let of_snapshot = |one: &&VolumeResource| {
            one.snapshot == snapshot && one.phase.outcome() == Some(VolumePluginOutcome::Completed)
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
    use super::super::{Made, Recorded};
    use super::*;
    use crate::plan::Snapshotter;

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

    /// A backup with the snapshot `s`.
    fn backup(resources: &[VolumeResource]) -> Run {
        Run {
            name: "b".into(),
            records: vec![Recorded { id: "s".into(), volume: "v".into(), is_completed: true }],
            resources: resources.to_vec(),
            snapshotter: Snapshotter::PluginWrites,
            ..Run::default()
        }
    }

    #[test]
    fn a_snapshot_on_record_has_one_resource_and_others_have_none_that_is_good() {
        let (fine, failed) = (resource("a", "s", "Completed"), resource("b", "s", "Failed"));
        assert_eq!(doubled(&backup(&[fine.clone(), failed])), [""; 0]);
        for phase in ["completed", "InProgress"] {
            let second = backup(&[fine.clone(), resource("b", "s", phase)]);
            assert_eq!(doubled(&second), ["b: s has 2 VolumePluginBackups"]);
        }
        assert_eq!(doubled(&backup(&[fine.clone(), resource("b", "t", "Failed")])), [""; 0]);
        let unknown = backup(&[fine.clone(), resource("b", "t", "Completed")]);
        let expected = "b: the VolumePluginBackup b is Completed, and there is no t";
        assert_eq!(doubled(&unknown), [expected]);
        let of_restore = VolumeResource { kind: "VolumePluginRestore".into(), ..fine };
        assert_eq!(doubled(&Run { records: Vec::new(), ..backup(&[of_restore]) }), [""; 0]);
    }

    #[test]
    fn a_run_is_unfinished_without_resources_that_have_ended_and_are_its() {
        let fine = resource("a", "s", "Completed");
        assert_eq!(unfinished(&backup(std::slice::from_ref(&fine))), [""; 0]);
        let open = resource("b", "s", "InProgress");
        let unowned = VolumeResource { is_owned: false, ..fine.clone() };
        let managed = VolumeResource { is_managed: true, ..fine.clone() };
        for (resources, expected) in [
            (vec![fine.clone(), open], "has left the VolumePluginBackup b InProgress"),
            (vec![unowned], "does not own the VolumePluginBackup a"),
            (vec![resource("a", "s", "Failed")], "has no completed resource of s"),
            (vec![managed.clone()], "has a VolumePluginBackup a that its plugin has not written"),
        ] {
            assert_eq!(unfinished(&backup(&resources)), [expected]);
        }
        let by_server = Snapshotter::ServerWrites;
        assert_eq!(unfinished(&Run { snapshotter: by_server, ..backup(&[managed]) }), [""; 0]);
        let restore = |uses| Run {
            made: vec![Made { id: "vol".into(), snapshot: "s".into(), uses }],
            ..Run::default()
        };
        assert_eq!(unfinished(&restore(1)), ["has no completed resource of s"]);
        assert_eq!(unfinished(&restore(0)), [""; 0]);
    }
}
