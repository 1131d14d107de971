//! Snapshots, and volumes that are made from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Run, Taken};

/// A snapshot that a plugin has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    /// The PersistentVolume that it is of.
    pub(crate) volume: String,
    /// What it was asked for by.
    pub(crate) request: String,
    pub(crate) is_uploaded: bool,
}

/// A snapshot that the files of a backup name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) id: String,
    /// The PersistentVolume that it is of.
    pub(crate) volume: String,
    pub(crate) is_completed: bool,
}

/// A volume that was made from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) snapshot: String,
    /// How many PersistentVolumes of the restore it is behind.
    pub(crate) uses: usize,
}

/// What is left of a backup that should be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub(crate) backup: String,
    /// What the request for it says, if it is still there.
    pub(crate) answer: Option<String>,
    /// Whether there is a Backup of that name.
    pub(crate) is_there: bool,
    /// What it has at the plugin.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Copies of its snapshots.
    pub(crate) uploads: Vec<String>,
    /// What it has at the CSI driver.
    pub(crate) csi: Vec<Taken>,
    /// What stands for snapshots of it in the cluster.
    pub(crate) csi_objects: Vec<String>,
    /// Its files.
    pub(crate) files: Vec<String>,
    /// Its VolumePluginBackups.
    pub(crate) reports: Vec<String>,
    /// Warnings of the backup that a snapshot may be left over.
    pub(crate) notices: Vec<String>,
}

/// Warnings, each of which explains one thing.
pub(super) struct Notices<'a>(Vec<Option<BTreeSet<&'a str>>>);

impl<'a> Notices<'a> {
    pub(super) fn new(texts: &'a [String]) -> Self {
        let words = |text: &'a String| {
            Some(text.split([' ', ',', ':', ';', '=']).filter(|word| !word.is_empty()).collect())
        };
        Self(texts.iter().map(words).collect())
    }

    /// Whether there is one more that has one of these words.
    pub(super) fn explain(&mut self, any_of: &[&str]) -> bool {
        let fits = |notice: &&mut Option<BTreeSet<&str>>| {
            let words = notice.as_ref();
            words.is_some_and(|words| any_of.iter().any(|word| words.contains(word)))
        };
        self.0.iter_mut().find(fits).and_then(Option::take).is_some()
    }
}

/// Snapshots that no file names, and volumes that nothing points to, unless a warning does.
pub(super) fn lost(run: &Run) -> Vec<String> {
    let mut notices = Notices::new(&run.notices);
    let mut lost = Vec::new();
    for Snapshot { id, volume, request, .. } in &run.snapshots {
        let is_recorded = run.records.iter().any(|one| one.id == *id && one.volume == *volume);
        if !is_recorded && !notices.explain(&[request]) {
            lost.push(format!("{}: the snapshot {id} of {volume} is lost", run.name));
        }
    }
    for Made { id, snapshot, uses } in &run.made {
        if *uses == 0 && !notices.explain(&[id, snapshot]) {
            lost.push(format!("{}: the volume {id} from {snapshot} is lost", run.name));
        }
    }
    lost
}

/// Volumes that were snapshotted or made again without a warning, or although it was recorded that
/// they were.
pub(super) fn doubled(run: &Run) -> Vec<String> {
    let name = &run.name;
    let mut notices = Notices::new(&run.notices);
    let mut doubled = Vec::new();
    // By what it is of: how often it is there, less the times that are explained.
    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for Snapshot { volume, request, .. } in &run.snapshots {
        let times = there.entry(format!("{volume} was snapshotted")).or_default();
        *times += usize::from(!notices.explain(&[request]));
        if run.settled.as_ref().is_some_and(|settled| !settled.contains(request)) {
            let why = "though its snapshot was recorded";
            doubled.push(format!("{name}: {volume} was snapshotted again {why}"));
        }
    }
    for Made { id, snapshot, uses } in &run.made {
        let times = there.entry(format!("a volume was made from {snapshot}")).or_default();
        *times += usize::from(!notices.explain(&[id, snapshot]));
        if *uses > 1 {
            doubled.push(format!("{name}: the volume {id} is behind {uses} PersistentVolumes"));
        }
    }
    for (what, times) in there {
        doubled.extend((1..times).map(|_| format!("{name}: {what} again in silence")));
    }
    let mut recorded: BTreeMap<&str, usize> = BTreeMap::new();
    for Recorded { volume, .. } in &run.records {
        *recorded.entry(volume).or_default() += 1;
    }
    for (volume, times) in recorded.into_iter().filter(|(_, times)| *times > 1) {
        doubled.push(format!("{name}: {volume} has {times} snapshots on record"));
    }
    doubled
}

/// Which snapshots a backup should have and has not.
pub(super) fn unfinished(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    for volume in &run.wanted {
        let is_it = |one: &&Recorded| one.volume == *volume && one.is_completed;
        let Some(recorded) = run.records.iter().find(is_it) else {
            reasons.push(format!("has no completed snapshot of {volume} on record"));
            continue;
        };
        match run.snapshots.iter().find(|one| one.id == recorded.id && one.volume == *volume) {
            None => reasons.push(format!("lacks the snapshot {} of {volume}", recorded.id)),
            Some(Snapshot { is_uploaded: false, id, .. }) if run.snapshotter.is_v2() => {
                reasons.push(format!("has not uploaded {id} of {volume}"));
            }
            Some(_) => {}
        }
    }
    reasons
}

/// Snapshots that a deleted backup has left, and their copies, unless a warning said so before.
pub(crate) fn left(deletion: &Deletion) -> Vec<String> {
    let mut notices = Notices::new(&deletion.notices);
    let told = |what: String| format!("{} was deleted, and {what} is left", deletion.backup);
    let mut left = Vec::new();
    for Snapshot { id, volume, request, .. } in &deletion.snapshots {
        if !notices.explain(&[request]) {
            left.push(told(format!("the snapshot {id} of {volume}")));
        }
    }
    for Taken { handle, claim, object, .. } in &deletion.csi {
        if !notices.explain(&[object]) {
            left.push(told(format!("the CSI snapshot {handle} of {claim}")));
        }
    }
    left.extend(deletion.uploads.iter().map(|id| told(format!("a copy of the snapshot {id}"))));
    left
}

/// Why a backup is not deleted.
pub(crate) fn undeleted(deletion: &Deletion) -> Vec<String> {
    let Deletion { backup, answer, is_there, csi_objects, files, reports, .. } = deletion;
    let mut reasons = Vec::new();
    if let Some(answer) = answer {
        reasons.push(format!("its deletion says {answer}"));
    }
    if *is_there {
        reasons.push("the Backup is there".to_owned());
    }
    reasons.extend(csi_objects.iter().map(|object| format!("the {object} is there")));
    for (what, names) in [("file", files), ("VolumePluginBackup", reports)] {
        reasons.extend(names.iter().map(|name| format!("the {what} {name} is there")));
    }
    if reasons.is_empty() {
        return reasons;
    }
    vec![format!("{backup} is not deleted: {}", reasons.join(", "))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str, volume: &str, request: &str) -> Snapshot {
        let (id, volume, request) = (id.into(), volume.into(), request.into());
        Snapshot { id, volume, request, is_uploaded: true }
    }

    fn recorded(id: &str, volume: &str) -> Recorded {
        Recorded { id: id.into(), volume: volume.into(), is_completed: true }
    }

    fn made(id: &str, snapshot: &str, uses: usize) -> Made {
        Made { id: id.into(), snapshot: snapshot.into(), uses }
    }

    fn notice(request: &str) -> String {
        format!("persistentvolumes/v: may be left over: look for the tag t={request}")
    }

    /// A backup of the volume `v`.
    fn backup(taken: &[(&str, &str)], records: &[&str], notices: &[&str]) -> Run {
        Run {
            name: "b".into(),
            snapshots: taken.iter().map(|(id, request)| snapshot(id, "v", request)).collect(),
            records: records.iter().map(|id| recorded(id, "v")).collect(),
            wanted: vec!["v".into()],
            notices: notices.iter().map(|request| notice(request)).collect(),
            ..Run::default()
        }
    }

    #[test]
    fn a_snapshot_is_lost_if_neither_a_file_nor_a_warning_names_it() {
        let cases = [
            (backup(&[("s1", "r1")], &["s1"], &[]), 0),
            (backup(&[("s1", "r1")], &[], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r3"]), 1),
            // A warning explains one, and not one whose name begins alike.
            (backup(&[("s1", "r1"), ("s3", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r11"]), 1),
            // The same id, and another volume.
            (Run { records: vec![recorded("s1", "w")], ..backup(&[("s1", "r1")], &[], &[]) }, 1),
        ];
        for (run, expected) in cases {
            assert_eq!(lost(&run).len(), expected, "{run:?}");
        }
    }

    #[test]
    fn a_volume_is_doubled_if_it_is_snapshotted_again_without_a_warning_or_after_its_record() {
        let cases = [
            (backup(&[("s1", "r1")], &["s1"], &[]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r3"]), 1),
            (backup(&[("s1", "r1")], &["s1", "s2"], &[]), 1),
        ];
        for (run, expected) in cases {
            assert_eq!(doubled(&run).len(), expected, "{run:?}");
        }
        let mut again = backup(&[("s1", "r2")], &["s1"], &[]);
        again.settled = Some(BTreeSet::from(["r2".to_owned()]));
        assert_eq!(doubled(&again), Vec::<String>::new());
        again.settled = Some(BTreeSet::from(["r1".to_owned()]));
        assert_eq!(
            doubled(&again),
            ["b: v was snapshotted again though its snapshot was recorded"]
        );
    }

    #[test]
    fn a_backup_is_unfinished_without_its_snapshots() {
        let fine = backup(&[("s1", "r1")], &["s1"], &[]);
        assert_eq!(unfinished(&fine), Vec::<String>::new());
        let mut local = fine.clone();
        local.snapshots[0].is_uploaded = false;
        let mut failed = fine.clone();
        failed.records[0].is_completed = false;
        for (run, expected) in [
            (backup(&[("s1", "r1")], &[], &[]), "has no completed snapshot of v on record"),
            (failed, "has no completed snapshot of v on record"),
            (backup(&[], &["s1"], &[]), "lacks the snapshot s1 of v"),
            (local, "has not uploaded s1 of v"),
        ] {
            assert_eq!(unfinished(&run), [expected]);
        }
    }

    #[test]
    fn a_volume_that_nothing_points_to_is_lost_and_doubled_without_a_warning() {
        let run = |made: &[&Made], notices: &[&str]| Run {
            name: "r".into(),
            made: made.iter().map(|&one| one.clone()).collect(),
            notices: notices.iter().map(|&text| text.to_owned()).collect(),
            ..Run::default()
        };
        let (first, second) = (made("vol-1", "s", 0), made("vol-2", "s", 1));
        let of_snapshot = "the server ended while p made a volume from the snapshot s for it: it \
                           may be left over";
        let of_volume = "the volume vol-1, which was made for it, is left over: why";
        let other = "the volume vol-11, which was made from s1, is left over: why";
        for (run, expected) in [
            (run(&[&second], &[]), [0, 0]),
            (run(&[&first], &[]), [1, 0]),
            (run(&[&first, &second], &[]), [1, 1]),
            (run(&[&first, &second], &[of_snapshot]), [0, 0]),
            (run(&[&second, &first], &[of_volume]), [0, 0]),
            (run(&[&second, &first], &[other]), [1, 1]),
            (run(&[&made("vol-3", "t", 2)], &[]), [0, 1]),
        ] {
            assert_eq!([lost(&run).len(), doubled(&run).len()], expected, "{run:?}");
        }
    }

    #[test]
    fn a_backup_is_deleted_when_nothing_is_left_of_it() {
        let gone = Deletion { backup: "b".into(), ..Deletion::default() };
        assert_eq!((left(&gone).len(), undeleted(&gone).len()), (0, 0));
        let mut kept = gone.clone();
        kept.snapshots.push(snapshot("s", "v", "r"));
        assert_eq!(left(&kept), ["b was deleted, and the snapshot s of v is left"]);
        kept.notices.push(notice("r"));
        assert_eq!(left(&kept), Vec::<String>::new());
        kept.uploads.push("s".into());
        assert_eq!(left(&kept), ["b was deleted, and a copy of the snapshot s is left"]);
        let taken =
            Taken { handle: "h".into(), claim: "c".into(), object: "n/v".into(), has_data: true };
        let mut at_driver = Deletion { csi: vec![taken], ..gone.clone() };
        assert_eq!(left(&at_driver), ["b was deleted, and the CSI snapshot h of c is left"]);
        at_driver.notices = vec!["the VolumeSnapshot n/v may be left over: why".into()];
        assert_eq!(left(&at_driver), Vec::<String>::new());
        for (deletion, expected) in [
            (Deletion { answer: Some("no".into()), ..gone.clone() }, "its deletion says no"),
            (Deletion { is_there: true, ..gone.clone() }, "the Backup is there"),
            (Deletion { files: vec!["f".into()], ..gone.clone() }, "the file f is there"),
            (
                Deletion { csi_objects: vec!["VolumeSnapshot v".into()], ..gone.clone() },
                "the VolumeSnapshot v is there",
            ),
            (Deletion { reports: vec!["s".into()], ..gone }, "the VolumePluginBackup s is there"),
        ] {
            assert_eq!(undeleted(&deletion), [format!("b is not deleted: {expected}")]);
        }
    }
}
