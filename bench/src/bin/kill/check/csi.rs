//! Snapshots of the CSI driver, and volumes that are made from them.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::volumes::Notices;

/// A snapshot that the driver has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) handle: String,
    /// The claim that it is of, without its namespace.
    pub(crate) claim: String,
    /// The VolumeSnapshot that it was asked for by, as `<namespace>/<name>`.
    pub(crate) object: String,
    /// Whether what was in the volume is in it.
    pub(crate) has_data: bool,
}

/// A snapshot that the files of a backup name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The claim that it is of.
    pub(crate) claim: String,
    pub(crate) handle: String,
    /// Whether the file says that it is there to be used.
    pub(crate) is_succeeded: bool,
    /// The handle that the VolumeSnapshot in the archive has, which a restore reads.
    pub(crate) archived: String,
}

/// A volume that the driver has made for a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// What it is, in words.
    pub(crate) what: String,
    /// How many there are of it, or point to it.
    pub(crate) count: usize,
}

/// What a run has to do with the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Csi {
    /// The claims that a backup should have snapshots of.
    pub(crate) wanted: Vec<String>,
    /// What a backup has at the driver.
    pub(crate) taken: Vec<Taken>,
    pub(crate) records: Vec<Record>,
    /// What it had there when all of it was recorded and the server dead.
    pub(crate) settled: Option<BTreeSet<String>>,
    /// What stands for its snapshots in the cluster, though the backup is over.
    pub(crate) objects: Vec<String>,
    /// What was made for a restore, of each of which there must be one.
    pub(crate) made: Vec<Made>,
}

/// Snapshots that no file names, and volumes that nothing points to, unless a warning does.
pub(super) fn lost(run: &Run) -> Vec<String> {
    let mut notices = Notices::new(&run.notices);
    let mut lost = Vec::new();
    for Taken { handle, claim, object, .. } in &run.csi.taken {
        let is_recorded = run.csi.records.iter().any(|one| one.handle == *handle);
        if !is_recorded && !notices.explain(&[object]) {
            lost.push(format!("{}: the CSI snapshot {handle} of {claim} is lost", run.name));
        }
    }
    for Made { what, .. } in run.csi.made.iter().filter(|made| made.count == 0) {
        lost.push(format!("{}: {what} is lost", run.name));
    }
    lost
}

/// Claims that have several snapshots on record or others than before, and what was made more than once.
pub(super) fn doubled(run: &Run) -> Vec<String> {
    let (name, csi) = (&run.name, &run.csi);
    let mut doubled = Vec::new();
    let mut recorded: BTreeMap<&str, usize> = BTreeMap::new();
    for Record { claim, handle, .. } in &csi.records {
        *recorded.entry(claim).or_default() += 1;
        if csi.settled.as_ref().is_some_and(|settled| !settled.contains(handle)) {
            let why = "though one was recorded";
            doubled.push(format!("{name}: {claim} has another CSI snapshot {why}"));
        }
    }
    for (claim, times) in recorded.into_iter().filter(|(_, times)| *times > 1) {
        doubled.push(format!("{name}: {claim} has {times} CSI snapshots on record"));
    }
    for Made { what, count } in csi.made.iter().filter(|made| made.count > 1) {
        doubled.push(format!("{name}: {what} is there {count} times"));
    }
    doubled
}

/// Which snapshots a backup should have and has not, and what it has left in the cluster.
pub(super) fn unfinished(csi: &Csi) -> Vec<String> {
    let mut reasons = Vec::new();
    for claim in &csi.wanted {
        let is_it = |one: &&Record| one.claim == *claim && one.is_succeeded;
        let Some(Record { handle, archived, .. }) = csi.records.iter().find(is_it) else {
            reasons.push(format!("has no CSI snapshot of {claim} on record"));
            continue;
        };
        match csi.taken.iter().find(|one| one.handle == *handle && one.claim == *claim) {
            None => reasons.push(format!("lacks the CSI snapshot {handle} of {claim}")),
            Some(Taken { has_data: false, .. }) => {
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

    fn taken(handle: &str, object: &str) -> Taken {
        let (handle, object) = (handle.into(), object.into());
        Taken { handle, claim: "c".into(), object, has_data: true }
    }

    fn record(handle: &str) -> Record {
        let (handle, archived) = (handle.to_owned(), handle.to_owned());
        Record { claim: "c".into(), handle, is_succeeded: true, archived }
    }

    /// A backup of the claim `c`.
    fn backup(at_driver: &[(&str, &str)], records: &[&str], notices: &[&str]) -> Run {
        Run {
            name: "b".into(),
            csi: Csi {
                wanted: vec!["c".into()],
                taken: at_driver.iter().map(|(handle, object)| taken(handle, object)).collect(),
                records: records.iter().map(|handle| record(handle)).collect(),
                ..Csi::default()
            },
            notices: notices.iter().map(|&text| text.to_owned()).collect(),
            ..Run::default()
        }
    }

    #[test]
    fn a_snapshot_is_lost_if_neither_a_file_nor_a_warning_names_it() {
        let notice = "persistentvolumeclaims/c: the VolumeSnapshot n/v1 that was made for it may be \
                      left over: why";
        let both = [("s1", "n/v1"), ("s2", "n/v2")];
        for (run, expected) in [
            (backup(&[("s1", "n/v1")], &["s1"], &[]), 0),
            (backup(&[("s1", "n/v1")], &[], &[]), 1),
            (backup(&both, &["s2"], &[]), 1),
            (backup(&both, &["s2"], &[notice]), 0),
            (backup(&both, &["s1"], &[notice]), 1),
            (backup(&both, &[], &[notice]), 1),
        ] {
            assert_eq!(lost(&run).len(), expected, "{run:?}");
        }
    }

    #[test]
    fn a_claim_is_doubled_if_it_has_two_records_or_another_than_before() {
        let fine = backup(&[("s1", "n/v1")], &["s1"], &[]);
        assert_eq!(doubled(&fine), Vec::<String>::new());
        let twice = backup(&[("s1", "n/v1")], &["s1", "s2"], &[]);
        assert_eq!(doubled(&twice), ["b: c has 2 CSI snapshots on record"]);
        let mut again = fine;
        again.csi.settled = Some(BTreeSet::from(["s1".to_owned(), "s0".to_owned()]));
        assert_eq!(doubled(&again), Vec::<String>::new());
        again.csi.settled = Some(BTreeSet::from(["s0".to_owned()]));
        assert_eq!(doubled(&again), ["b: c has another CSI snapshot though one was recorded"]);
    }

    #[test]
    fn there_is_one_of_what_was_made_for_a_restore() {
        let run = |count| {
            let made = vec![Made { what: "the volume v".into(), count }];
            Run { name: "r".into(), csi: Csi { made, ..Csi::default() }, ..Run::default() }
        };
        assert_eq!([lost(&run(1)).len(), doubled(&run(1)).len()], [0, 0]);
        assert_eq!(lost(&run(0)), ["r: the volume v is lost"]);
        assert_eq!(doubled(&run(2)), ["r: the volume v is there 2 times"]);
    }

    #[test]
    fn a_backup_is_unfinished_without_its_snapshots_or_with_objects_left() {
        let fine = backup(&[("s1", "n/v1")], &["s1"], &[]).csi;
        assert_eq!(unfinished(&fine), Vec::<String>::new());
        let mut empty = fine.clone();
        empty.taken[0].has_data = false;
        let mut failed = fine.clone();
        failed.records[0].is_succeeded = false;
        let mut wrong = fine.clone();
        wrong.records[0].archived = "s9".into();
        let untidy = Csi { objects: vec!["VolumeSnapshot n/v1".into()], ..fine };
        for (csi, expected) in [
            (backup(&[("s1", "n/v1")], &[], &[]).csi, "has no CSI snapshot of c on record"),
            (failed, "has no CSI snapshot of c on record"),
            (backup(&[], &["s1"], &[]).csi, "lacks the CSI snapshot s1 of c"),
            (empty, "lacks what was in c in its CSI snapshot s1"),
            (wrong, "has \"s9\" in its archive for s1 of c"),
            (untidy, "has left the VolumeSnapshot n/v1"),
        ] {
            assert_eq!(unfinished(&csi), [expected]);
        }
    }
}
