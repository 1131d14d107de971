//! Snapshots of the CSI driver, and volumes created from them.

use std::collections::{BTreeMap, BTreeSet};

use super::RunEvidence;
use super::volumes::WarningMatcher;

/// Snapshot that the driver has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsiSnapshot {
    pub(crate) handle: String,
    /// Its claim, without the namespace.
    pub(crate) claim: String,
    /// VolumeSnapshot that requested it, as `<namespace>/<name>`.
    pub(crate) object: String,
    /// True if it contains the data of the volume.
    pub(crate) has_data: bool,
}

/// Snapshot that the files of a backup name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsiSnapshotRecord {
    /// Claim that was snapshotted.
    pub(crate) claim: String,
    pub(crate) handle: String,
    /// True if the file records it as usable.
    pub(crate) is_succeeded: bool,
    /// Handle of the VolumeSnapshot in the archive, which a restore reads.
    pub(crate) archived: String,
}

/// Volume that the driver has created for a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsiRestoredResource {
    /// Description in words.
    pub(crate) description: String,
    /// Number of them, or of references to it.
    pub(crate) count: usize,
}

/// Evidence about a run from the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsiEvidence {
    /// Claims of which a backup should have snapshots.
    pub(crate) expected_claims: Vec<String>,
    /// Snapshots of a backup that the driver has.
    pub(crate) snapshots: Vec<CsiSnapshot>,
    pub(crate) records: Vec<CsiSnapshotRecord>,
    /// Snapshots at the time when all of them were recorded and the server was dead.
    pub(crate) recorded_handles: Option<BTreeSet<String>>,
    /// Objects in the cluster for its snapshots, although the backup has ended.
    pub(crate) objects: Vec<String>,
    /// Resources created for a restore, each of which must exist once.
    pub(crate) restored: Vec<CsiRestoredResource>,
}

/// Snapshots that no file names, and volumes without a reference, unless a warning names them.
pub(super) fn lost_resources(run: &RunEvidence) -> Vec<String> {
    let mut notices = WarningMatcher::new(&run.volume_warnings);
    let mut lost = Vec::new();
    for CsiSnapshot { handle, claim, object, .. } in &run.csi.snapshots {
        let is_recorded = run.csi.records.iter().any(|one| one.handle == *handle);
        if !is_recorded && !notices.take_matching(&[object]) {
            lost.push(format!("{}: the CSI snapshot {handle} of {claim} is lost", run.name));
        }
    }
    for CsiRestoredResource { description: what, .. } in
        run.csi.restored.iter().filter(|volume| volume.count == 0)
    {
        lost.push(format!("{}: {what} is lost", run.name));
    }
    lost
}

/// Claims with several recorded snapshots or with others than before, and resources created more than once.
pub(super) fn repeated_work(run: &RunEvidence) -> Vec<String> {
    let (name, csi) = (&run.name, &run.csi);
    let mut doubled = Vec::new();
    let mut recorded: BTreeMap<&str, usize> = BTreeMap::new();
    for CsiSnapshotRecord { claim, handle, .. } in &csi.records {
        *recorded.entry(claim).or_default() += 1;
        if csi.recorded_handles.as_ref().is_some_and(|settled| !settled.contains(handle)) {
            let reason = "though one was recorded";
            doubled.push(format!("{name}: {claim} has another CSI snapshot {reason}"));
        }
    }
    for (claim, times) in recorded.into_iter().filter(|(_, times)| *times > 1) {
        doubled.push(format!("{name}: {claim} has {times} CSI snapshots on record"));
    }
    for CsiRestoredResource { description: what, count } in
        csi.restored.iter().filter(|volume| volume.count > 1)
    {
        doubled.push(format!("{name}: {what} is there {count} times"));
    }
    doubled
}

/// Snapshots that a backup lacks, and objects that it has left in the cluster.
pub(super) fn unfinished_reasons(csi: &CsiEvidence) -> Vec<String> {
    let mut reasons = Vec::new();
    for claim in &csi.expected_claims {
        let is_of_claim =
            |record: &&CsiSnapshotRecord| record.claim == *claim && record.is_succeeded;
        let Some(CsiSnapshotRecord { handle, archived, .. }) = csi.records.iter().find(is_of_claim)
        else {
            reasons.push(format!("has no CSI snapshot of {claim} on record"));
            continue;
        };
        match csi.snapshots.iter().find(|one| one.handle == *handle && one.claim == *claim) {
            None => reasons.push(format!("lacks the CSI snapshot {handle} of {claim}")),
            Some(CsiSnapshot { has_data: false, .. }) => {
                reasons.push(format!("lacks what was in {claim} in its CSI snapshot {handle}"));
            }
            Some(_) => {}
        }
        if archived != handle {
            reasons.push(format!("has {archived:?} in its archive for {handle} of {claim}"));
        }
    }
    reasons.extend(csi.objects.iter().map(|object| format!("has left the {object}")));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(handle: &str, object: &str) -> CsiSnapshot {
        let (handle, object) = (handle.into(), object.into());
        CsiSnapshot { handle, claim: "c".into(), object, has_data: true }
    }

    fn record(handle: &str) -> CsiSnapshotRecord {
        let (handle, archived) = (handle.to_owned(), handle.to_owned());
        CsiSnapshotRecord { claim: "c".into(), handle, is_succeeded: true, archived }
    }

    /// Backup of the claim `c`.
    fn backup(at_driver: &[(&str, &str)], records: &[&str], notices: &[&str]) -> RunEvidence {
        RunEvidence {
            name: "b".into(),
            csi: CsiEvidence {
                expected_claims: vec!["c".into()],
                snapshots: at_driver
                    .iter()
                    .map(|(handle, object)| snapshot(handle, object))
                    .collect(),
                records: records.iter().map(|handle| record(handle)).collect(),
                ..CsiEvidence::default()
            },
            volume_warnings: notices.iter().map(|&text| text.to_owned()).collect(),
            ..RunEvidence::default()
        }
    }

    #[test]
    fn snapshot_is_lost_if_no_file_or_warning_names_it() {
        let notice = "persistentvolumeclaims/c: the VolumeSnapshot n/v1 may be left over: why";
        let both = [("s1", "n/v1"), ("s2", "n/v2")];
        for (run, expected) in [
            (backup(&[("s1", "n/v1")], &["s1"], &[]), 0),
            (backup(&[("s1", "n/v1")], &[], &[]), 1),
            (backup(&both, &["s2"], &[]), 1),
            (backup(&both, &["s2"], &[notice]), 0),
            (backup(&both, &["s1"], &[notice]), 1),
            (backup(&both, &[], &[notice]), 1),
        ] {
            assert_eq!(lost_resources(&run).len(), expected, "{run:?}");
        }
    }

    #[test]
    fn claim_with_two_records_or_a_new_one_is_repeated_work() {
        let clean = backup(&[("s1", "n/v1")], &["s1"], &[]);
        assert_eq!(repeated_work(&clean), Vec::<String>::new());
        let twice = backup(&[("s1", "n/v1")], &["s1", "s2"], &[]);
        assert_eq!(repeated_work(&twice), ["b: c has 2 CSI snapshots on record"]);
        let mut again = clean;
        again.csi.recorded_handles = Some(BTreeSet::from(["s1".to_owned(), "s0".to_owned()]));
        assert_eq!(repeated_work(&again), Vec::<String>::new());
        again.csi.recorded_handles = Some(BTreeSet::from(["s0".to_owned()]));
        assert_eq!(
            repeated_work(&again),
            ["b: c has another CSI snapshot though one was recorded"]
        );
    }

    #[test]
    fn each_restored_resource_exists_exactly_once() {
        let run = |count| {
            let restored = vec![CsiRestoredResource { description: "the volume v".into(), count }];
            RunEvidence {
                name: "r".into(),
                csi: CsiEvidence { restored, ..CsiEvidence::default() },
                ..RunEvidence::default()
            }
        };
        assert_eq!([lost_resources(&run(1)).len(), repeated_work(&run(1)).len()], [0, 0]);
        assert_eq!(lost_resources(&run(0)), ["r: the volume v is lost"]);
        assert_eq!(repeated_work(&run(2)), ["r: the volume v is there 2 times"]);
    }

    #[test]
    fn backup_is_unfinished_without_snapshots_or_with_leftover_objects() {
        let complete = backup(&[("s1", "n/v1")], &["s1"], &[]).csi;
        assert_eq!(unfinished_reasons(&complete), Vec::<String>::new());
        let mut empty = complete.clone();
        empty.snapshots[0].has_data = false;
        let mut failed = complete.clone();
        failed.records[0].is_succeeded = false;
        let mut wrong = complete.clone();
        wrong.records[0].archived = "s9".into();
        let untidy = CsiEvidence { objects: vec!["VolumeSnapshot n/v1".into()], ..complete };
        for (csi, expected) in [
            (backup(&[("s1", "n/v1")], &[], &[]).csi, "has no CSI snapshot of c on record"),
            (failed, "has no CSI snapshot of c on record"),
            (backup(&[], &["s1"], &[]).csi, "lacks the CSI snapshot s1 of c"),
            (empty, "lacks what was in c in its CSI snapshot s1"),
            (wrong, "has \"s9\" in its archive for s1 of c"),
            (untidy, "has left the VolumeSnapshot n/v1"),
        ] {
            assert_eq!(unfinished_reasons(&csi), [expected]);
        }
    }
}
