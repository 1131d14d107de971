//! Snapshots, and volumes created from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{CsiSnapshot, RunEvidence};

/// Snapshot that a plugin has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PluginSnapshot {
    pub(crate) id: String,
    /// PersistentVolume that was snapshotted.
    pub(crate) volume: String,
    /// Request that created it.
    pub(crate) request: String,
    pub(crate) is_uploaded: bool,
}

/// Snapshot that the files of a backup name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: String,
    /// PersistentVolume that was snapshotted.
    pub(crate) volume: String,
    pub(crate) is_completed: bool,
}

/// Volume created from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestoredVolume {
    pub(crate) id: String,
    pub(crate) snapshot: String,
    /// Number of PersistentVolumes of the restore that use it.
    pub(crate) uses: usize,
}

/// Leftovers of a backup that should be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeletionEvidence {
    pub(crate) backup: String,
    /// Status of the deletion request, if it still exists.
    pub(crate) request_status: Option<String>,
    /// True if a Backup of that name exists.
    pub(crate) backup_exists: bool,
    /// Its snapshots in the plugin.
    pub(crate) snapshots: Vec<PluginSnapshot>,
    /// Copies of its snapshots.
    pub(crate) uploads: Vec<String>,
    /// Its snapshots in the CSI driver.
    pub(crate) csi: Vec<CsiSnapshot>,
    /// Objects in the cluster for its snapshots.
    pub(crate) csi_objects: Vec<String>,
    /// Its files.
    pub(crate) files: Vec<String>,
    /// Its VolumePluginBackups.
    pub(crate) reports: Vec<String>,
    /// Warnings of the backup that a snapshot may be left over.
    pub(crate) volume_warnings: Vec<String>,
}

/// Warnings, each of which explains one leftover.
pub(super) struct WarningMatcher<'a>(Vec<Option<BTreeSet<&'a str>>>);

impl<'a> WarningMatcher<'a> {
    pub(super) fn new(texts: &'a [String]) -> Self {
        let split_words = |text: &'a String| {
            Some(text.split([' ', ',', ':', ';', '=']).filter(|word| !word.is_empty()).collect())
        };
        Self(texts.iter().map(split_words).collect())
    }

    /// True if another warning contains one of these words; each warning counts once.
    pub(super) fn take_matching(&mut self, any_of: &[&str]) -> bool {
        let matches_any = |notice: &&mut Option<BTreeSet<&str>>| {
            let warning_words = notice.as_ref();
            warning_words.is_some_and(|words| any_of.iter().any(|word| words.contains(word)))
        };
        self.0.iter_mut().find(matches_any).and_then(Option::take).is_some()
    }
}

/// Snapshots that no file names, and volumes without a reference, unless a warning names them.
pub(super) fn lost_resources(run: &RunEvidence) -> Vec<String> {
    let mut notices = WarningMatcher::new(&run.volume_warnings);
    let mut lost = Vec::new();
    for PluginSnapshot { id, volume, request, .. } in &run.snapshots {
        let is_recorded = run.records.iter().any(|one| one.id == *id && one.volume == *volume);
        if !is_recorded && !notices.take_matching(&[request]) {
            lost.push(format!("{}: the snapshot {id} of {volume} is lost", run.name));
        }
    }
    for RestoredVolume { id, snapshot, uses } in &run.restored_volumes {
        if *uses == 0 && !notices.take_matching(&[id, snapshot]) {
            lost.push(format!("{}: the volume {id} from {snapshot} is lost", run.name));
        }
    }
    lost
}

/// Volumes that were snapshotted or created again without a warning, or although the first was recorded.
pub(super) fn repeated_work(run: &RunEvidence) -> Vec<String> {
    let name = &run.name;
    let mut notices = WarningMatcher::new(&run.volume_warnings);
    let mut doubled = Vec::new();
    // Number of snapshots or volumes per source, less the explained ones.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for PluginSnapshot { volume, request, .. } in &run.snapshots {
        let times = counts.entry(format!("{volume} was snapshotted")).or_default();
        *times += usize::from(!notices.take_matching(&[request]));
        if run.recorded_requests.as_ref().is_some_and(|settled| !settled.contains(request)) {
            let reason = "though its snapshot was recorded";
            doubled.push(format!("{name}: {volume} was snapshotted again {reason}"));
        }
    }
    for RestoredVolume { id, snapshot, uses } in &run.restored_volumes {
        let times = counts.entry(format!("a volume was made from {snapshot}")).or_default();
        *times += usize::from(!notices.take_matching(&[id, snapshot]));
        if *uses > 1 {
            doubled.push(format!("{name}: the volume {id} is behind {uses} PersistentVolumes"));
        }
    }
    for (what, times) in counts {
        doubled.extend((1..times).map(|_| format!("{name}: {what} again in silence")));
    }
    let mut recorded: BTreeMap<&str, usize> = BTreeMap::new();
    for SnapshotRecord { volume, .. } in &run.records {
        *recorded.entry(volume).or_default() += 1;
    }
    for (volume, times) in recorded.into_iter().filter(|(_, times)| *times > 1) {
        doubled.push(format!("{name}: {volume} has {times} snapshots on record"));
    }
    doubled
}

/// Snapshots that a backup lacks.
pub(super) fn unfinished_reasons(run: &RunEvidence) -> Vec<String> {
    let mut reasons = Vec::new();
    for volume in &run.expected_volumes {
        let is_of_volume =
            |record: &&SnapshotRecord| record.volume == *volume && record.is_completed;
        let Some(recorded) = run.records.iter().find(is_of_volume) else {
            reasons.push(format!("has no completed snapshot of {volume} on record"));
            continue;
        };
        match run.snapshots.iter().find(|one| one.id == recorded.id && one.volume == *volume) {
            None => reasons.push(format!("lacks the snapshot {} of {volume}", recorded.id)),
            Some(PluginSnapshot { is_uploaded: false, id, .. }) if run.snapshotter.is_v2() => {
                reasons.push(format!("has not uploaded {id} of {volume}"));
            }
            Some(_) => {}
        }
    }
    reasons
}

/// Snapshots that a deleted backup has left, and their copies, unless a warning named them before.
pub(crate) fn leftovers(deletion: &DeletionEvidence) -> Vec<String> {
    let mut notices = WarningMatcher::new(&deletion.volume_warnings);
    let leftover_text =
        |resource: String| format!("{} was deleted, and {resource} is left", deletion.backup);
    let mut leftovers = Vec::new();
    for PluginSnapshot { id, volume, request, .. } in &deletion.snapshots {
        if !notices.take_matching(&[request]) {
            leftovers.push(leftover_text(format!("the snapshot {id} of {volume}")));
        }
    }
    for CsiSnapshot { handle, claim, object, .. } in &deletion.csi {
        if !notices.take_matching(&[object]) {
            leftovers.push(leftover_text(format!("the CSI snapshot {handle} of {claim}")));
        }
    }
    leftovers.extend(
        deletion.uploads.iter().map(|id| leftover_text(format!("a copy of the snapshot {id}"))),
    );
    leftovers
}

/// Reasons why a backup is not deleted.
pub(crate) fn undeleted_reasons(deletion: &DeletionEvidence) -> Vec<String> {
    let DeletionEvidence {
        backup,
        request_status: answer,
        backup_exists: is_there,
        csi_objects,
        files,
        reports,
        ..
    } = deletion;
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

    fn plugin_snapshot(id: &str, volume: &str, request: &str) -> PluginSnapshot {
        let (id, volume, request) = (id.into(), volume.into(), request.into());
        PluginSnapshot { id, volume, request, is_uploaded: true }
    }

    fn snapshot_record(id: &str, volume: &str) -> SnapshotRecord {
        SnapshotRecord { id: id.into(), volume: volume.into(), is_completed: true }
    }

    fn restored_volume(id: &str, snapshot: &str, uses: usize) -> RestoredVolume {
        RestoredVolume { id: id.into(), snapshot: snapshot.into(), uses }
    }

    fn leftover_warning(request: &str) -> String {
        format!("persistentvolumes/v: may be left over; if it exists, its tag is t={request}")
    }

    /// Backup of the volume `v`.
    fn backup(snapshots: &[(&str, &str)], records: &[&str], notices: &[&str]) -> RunEvidence {
        RunEvidence {
            name: "b".into(),
            snapshots: snapshots
                .iter()
                .map(|(id, request)| plugin_snapshot(id, "v", request))
                .collect(),
            records: records.iter().map(|id| snapshot_record(id, "v")).collect(),
            expected_volumes: vec!["v".into()],
            volume_warnings: notices.iter().map(|request| leftover_warning(request)).collect(),
            ..RunEvidence::default()
        }
    }

    #[test]
    fn snapshot_is_lost_if_no_file_or_warning_names_it() {
        let cases = [
            (backup(&[("s1", "r1")], &["s1"], &[]), 0),
            (backup(&[("s1", "r1")], &[], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r3"]), 1),
            // A warning explains one, and not one whose name has the same beginning.
            (backup(&[("s1", "r1"), ("s3", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r11"]), 1),
            // The same id, and another volume.
            (
                RunEvidence {
                    records: vec![snapshot_record("s1", "w")],
                    ..backup(&[("s1", "r1")], &[], &[])
                },
                1,
            ),
        ];
        for (run, expected) in cases {
            assert_eq!(lost_resources(&run).len(), expected, "{run:?}");
        }
    }

    #[test]
    fn second_snapshot_without_warning_or_after_the_record_is_repeated_work() {
        let cases = [
            (backup(&[("s1", "r1")], &["s1"], &[]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &[]), 1),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r1"]), 0),
            (backup(&[("s1", "r1"), ("s2", "r2")], &["s2"], &["r3"]), 1),
            (backup(&[("s1", "r1")], &["s1", "s2"], &[]), 1),
        ];
        for (run, expected) in cases {
            assert_eq!(repeated_work(&run).len(), expected, "{run:?}");
        }
        let mut again = backup(&[("s1", "r2")], &["s1"], &[]);
        again.recorded_requests = Some(BTreeSet::from(["r2".to_owned()]));
        assert_eq!(repeated_work(&again), Vec::<String>::new());
        again.recorded_requests = Some(BTreeSet::from(["r1".to_owned()]));
        assert_eq!(
            repeated_work(&again),
            ["b: v was snapshotted again though its snapshot was recorded"]
        );
    }

    #[test]
    fn backup_is_unfinished_without_its_snapshots() {
        let complete = backup(&[("s1", "r1")], &["s1"], &[]);
        assert_eq!(unfinished_reasons(&complete), Vec::<String>::new());
        let mut local = complete.clone();
        local.snapshots[0].is_uploaded = false;
        let mut failed = complete.clone();
        failed.records[0].is_completed = false;
        for (run, expected) in [
            (backup(&[("s1", "r1")], &[], &[]), "has no completed snapshot of v on record"),
            (failed, "has no completed snapshot of v on record"),
            (backup(&[], &["s1"], &[]), "lacks the snapshot s1 of v"),
            (local, "has not uploaded s1 of v"),
        ] {
            assert_eq!(unfinished_reasons(&run), [expected]);
        }
    }

    #[test]
    fn unreferenced_volume_is_lost_and_repeated_work_without_a_warning() {
        let run = |volumes: &[&RestoredVolume], notices: &[&str]| RunEvidence {
            name: "r".into(),
            restored_volumes: volumes.iter().map(|&one| one.clone()).collect(),
            volume_warnings: notices.iter().map(|&text| text.to_owned()).collect(),
            ..RunEvidence::default()
        };
        let (first, second) = (restored_volume("vol-1", "s", 0), restored_volume("vol-2", "s", 1));
        let of_snapshot = "the server stopped while plugin p created a volume from snapshot s; the \
                           volume, if it exists, may be left over";
        let of_volume = "volume vol-1, which plugin p created from snapshot t, is left over: why";
        let other = "volume vol-11, which plugin p created from snapshot s1, is left over: why";
        for (run, expected) in [
            (run(&[&second], &[]), [0, 0]),
            (run(&[&first], &[]), [1, 0]),
            (run(&[&first, &second], &[]), [1, 1]),
            (run(&[&first, &second], &[of_snapshot]), [0, 0]),
            (run(&[&second, &first], &[of_volume]), [0, 0]),
            (run(&[&second, &first], &[other]), [1, 1]),
            (run(&[&restored_volume("vol-3", "t", 2)], &[]), [0, 1]),
        ] {
            assert_eq!(
                [lost_resources(&run).len(), repeated_work(&run).len()],
                expected,
                "{run:?}"
            );
        }
    }

    #[test]
    fn backup_is_deleted_when_nothing_is_left() {
        let deleted = DeletionEvidence { backup: "b".into(), ..DeletionEvidence::default() };
        assert_eq!((leftovers(&deleted).len(), undeleted_reasons(&deleted).len()), (0, 0));
        let mut partly_deleted = deleted.clone();
        partly_deleted.snapshots.push(plugin_snapshot("s", "v", "r"));
        assert_eq!(leftovers(&partly_deleted), ["b was deleted, and the snapshot s of v is left"]);
        partly_deleted.volume_warnings.push(leftover_warning("r"));
        assert_eq!(leftovers(&partly_deleted), Vec::<String>::new());
        partly_deleted.uploads.push("s".into());
        assert_eq!(
            leftovers(&partly_deleted),
            ["b was deleted, and a copy of the snapshot s is left"]
        );
        let snapshot = CsiSnapshot {
            handle: "h".into(),
            claim: "c".into(),
            object: "n/v".into(),
            has_data: true,
        };
        let mut at_driver = DeletionEvidence { csi: vec![snapshot], ..deleted.clone() };
        assert_eq!(leftovers(&at_driver), ["b was deleted, and the CSI snapshot h of c is left"]);
        at_driver.volume_warnings = vec!["the VolumeSnapshot n/v may be left over: why".into()];
        assert_eq!(leftovers(&at_driver), Vec::<String>::new());
        for (deletion, expected) in [
            (
                DeletionEvidence { request_status: Some("no".into()), ..deleted.clone() },
                "its deletion says no",
            ),
            (DeletionEvidence { backup_exists: true, ..deleted.clone() }, "the Backup is there"),
            (
                DeletionEvidence { files: vec!["f".into()], ..deleted.clone() },
                "the file f is there",
            ),
            (
                DeletionEvidence {
                    csi_objects: vec!["VolumeSnapshot v".into()],
                    ..deleted.clone()
                },
                "the VolumeSnapshot v is there",
            ),
            (
                DeletionEvidence { reports: vec!["s".into()], ..deleted },
                "the VolumePluginBackup s is there",
            ),
        ] {
            assert_eq!(undeleted_reasons(&deletion), [format!("b is not deleted: {expected}")]);
        }
    }
}
