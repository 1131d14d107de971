use serde_json::{Value, json};

use super::*;

fn backup(uid: &str, phase: &str, began: &str) -> Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": uid},
        "spec": {},
        "status": {"phase": phase, "startTimestamp": began},
    }))
    .unwrap()
}

const DAY: &str = "2026-01-02T03:04:05Z";

fn ours() -> Backup {
    backup("u", "Completed", DAY)
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn volume(value: Value) -> Holdings {
    let mut volume = json!({
        "pvcNamespace": "shop", "pvcName": "data", "pvName": "pv-1",
        "snapshotDataMoved": false, "preserveLocalSnapshot": false, "skipped": false,
    });
    let Value::Object(more) = value else { panic!("{value}") };
    for (key, value) in more {
        volume[key] = value;
    }
    Holdings { volumes: Some(vec![read(volume)]), ..Holdings::default() }
}

fn snapshot(location: &str, id: &str, phase: &str) -> Snapshot {
    read(json!({
        "spec": {"location": location, "persistentVolumeName": "pv-1"},
        "status": {"providerSnapshotID": id, "phase": phase},
    }))
}

/// The only reason that speaks against it.
fn reason(backup: &Backup, holdings: &Holdings) -> String {
    let mut reasons = plan(backup, holdings).unwrap_err();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    reasons.remove(0)
}

#[test]
fn every_snapshot_that_was_taken_is_deleted_once() {
    let snapshots = vec![
        snapshot("aws", "s1", "Completed"),
        snapshot("aws", "s1", "Completed"),
        snapshot("other", "s1", "Failed"),
        snapshot("aws", "s2", "New"),
        snapshot("aws", "s3", "Completed"),
        snapshot("aws", "", "Failed"),
    ];
    let report = read(json!({
        "metadata": {"name": "s3"},
        "spec": {},
        "status": {"phase": "InProgress", "snapshotID": "s3"},
    }));
    let operation = |id: &str, phase: &str| {
        read(json!({
            "location": "aws", "snapshotID": id, "volume": "pv-1", "status": {"phase": phase},
        }))
    };
    let holdings = Holdings {
        snapshots,
        // One of them is in no other file: its server was killed before that was written.
        operations: vec![operation("s1", "Completed"), operation("s4", "InProgress")],
        volume_plugin_backups: vec![report],
        ..Holdings::default()
    };
    let plan = plan(&ours(), &holdings).unwrap();
    let found: Vec<_> = plan
        .snapshots
        .iter()
        .map(|doomed| (doomed.location.as_str(), doomed.id.as_str(), doomed.is_under_way))
        .collect();
    let expected = [
        ("aws", "s1", false),
        ("aws", "s2", true),
        ("aws", "s3", true),
        ("aws", "s4", true),
        ("other", "s1", false),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.files, Files::Own);
}

#[test]
fn data_that_cannot_be_deleted_keeps_its_record() {
    let copy = |id: &str| -> Holdings {
        let copy =
            json!({"metadata": {"name": "copy-1"}, "spec": {}, "status": {"snapshotID": id}});
        Holdings { pod_volume_backups: vec![read(copy)], ..Holdings::default() }
    };
    let upload = |id: &str| -> Holdings {
        let upload =
            json!({"metadata": {"name": "up-1"}, "spec": {}, "status": {"snapshotID": id}});
        Holdings { data_uploads: vec![read(upload)], ..Holdings::default() }
    };
    let content = json!({"metadata": {"name": "vsc-1"}, "status": {"snapshotHandle": "s1"}});
    let csi = Holdings { csi_contents: vec![content], ..Holdings::default() };
    let homeless = Holdings { snapshots: vec![snapshot("", "s1", "New")], ..Holdings::default() };
    for (holdings, words) in [
        (copy("k1"), vec!["PodVolumeBackups", "copy-1"]),
        (upload("k1"), vec!["DataUploads", "up-1"]),
        (csi, vec!["CSI snapshots", "vsc-1"]),
        (homeless, vec!["the snapshot s1 names no location"]),
        (
            volume(json!({"backupMethod": "PodVolumeBackup", "pvbInfo": {"snapshotHandle": "k"}})),
            vec!["PodVolumeBackups", "shop/data"],
        ),
        (
            volume(json!({"backupMethod": "CSISnapshot", "result": "succeeded"})),
            vec!["CSI snapshots", "shop/data"],
        ),
        (
            volume(json!({
                "backupMethod": "CSISnapshot", "snapshotDataMoved": true,
                "csiSnapshotInfo": {"snapshotHandle": "gone"},
                "snapshotDataMovementInfo": {"snapshotHandle": "k"},
            })),
            vec!["DataUploads", "shop/data"],
        ),
        (volume(json!({"backupMethod": "Photograph"})), vec!["shop/data (Photograph)"]),
        (
            volume(json!({
                "backupMethod": "NativeSnapshot", "nativeSnapshotInfo": {"snapshotHandle": "s9"},
            })),
            vec!["where they were taken", "shop/data (s9)"],
        ),
    ] {
        let reason = reason(&ours(), &holdings);
        for word in words {
            assert!(reason.contains(word), "no {word:?} in {reason:?}");
        }
    }
}

#[test]
fn what_holds_nothing_is_deleted() {
    let copy = json!({"metadata": {"name": "c"}, "spec": {}, "status": {"phase": "Failed"}});
    let failed = Holdings { pod_volume_backups: vec![read(copy)], ..Holdings::default() };
    for holdings in [
        Holdings::default(),
        failed,
        volume(json!({"backupMethod": "CSISnapshot", "result": "failed"})),
        volume(json!({"backupMethod": "PodVolumeBackup", "result": "failed", "pvbInfo": {}})),
        volume(json!({
            "skipped": true, "backupMethod": "CSISnapshot",
            "csiSnapshotInfo": {"snapshotHandle": "k"},
        })),
        volume(json!({"skipped": true, "skippedReason": "no plugin"})),
        volume(json!({"backupMethod": "NativeSnapshot", "result": "failed"})),
    ] {
        let expected = Plan { files: Files::Own, snapshots: Vec::new(), csi: Vec::new() };
        assert_eq!(plan(&ours(), &holdings), Ok(expected), "{holdings:?}");
    }
}

#[test]
fn the_same_copy_in_the_bucket_and_in_the_cluster_is_told_once() {
    let mut holdings =
        volume(json!({"backupMethod": "PodVolumeBackup", "pvbInfo": {"snapshotHandle": "k0"}}));
    for number in 0..7 {
        let (name, id) = (format!("copy-{number}"), format!("k{number}"));
        let copy = json!({"metadata": {"name": name}, "spec": {}, "status": {"snapshotID": id}});
        holdings.pod_volume_backups.extend([read(copy.clone()), read(copy)]);
    }
    let reason = reason(&ours(), &holdings);
    assert!(reason.ends_with("copy-0, copy-1, copy-2, copy-3, copy-4 and 2 more"), "{reason}");
}

#[test]
fn backups_that_are_too_old_to_name_their_data_are_taken_at_their_word() {
    let mut backup = ours();
    backup.status.as_mut().unwrap().csi_volume_snapshots_completed = 2;
    let old = Holdings::default();
    assert!(reason(&backup, &old).contains("CSI snapshots"));
    backup.spec.snapshot_move_data = Some(true);
    assert!(plan(&backup, &old).is_ok());
    backup.status.as_mut().unwrap().backup_item_operations_completed = 1;
    assert!(reason(&backup, &old).contains("DataUploads"));
    // A newer one says what it has, here nothing.
    let new = Holdings { volumes: Some(Vec::new()), ..Holdings::default() };
    assert!(plan(&backup, &new).is_ok());
}

#[test]
fn files_that_an_earlier_try_deleted_are_not_missed() {
    let holdings = volume(json!({
        "backupMethod": "NativeSnapshot", "nativeSnapshotInfo": {"snapshotHandle": "s9"},
    }));
    assert!(plan(&ours(), &holdings).is_err());
    assert!(plan(&backup("u", "Deleting", DAY), &holdings).is_ok());
    let record = Some(backup("u", "Deleting", DAY));
    assert!(plan(&ours(), &Holdings { record, ..holdings }).is_ok());
}

/// Which uid, phase, beginning and end a Backup or a record has, and which uid was noted.
type Facts = (&'static str, &'static str, &'static str, &'static str, Option<&'static str>);

fn known_as((uid, phase, began, ended, noted): Facts) -> Backup {
    let mut backup = backup(uid, phase, began);
    let status = backup.status.as_mut().unwrap();
    status.completion_timestamp = (!ended.is_empty()).then(|| read(json!(ended)));
    let noted = noted.map(|noted| (annotation::RECORD_UID.to_owned(), noted.to_owned()));
    backup.metadata.annotations = noted.map(|noted| [noted].into());
    backup
}

#[test]
fn files_of_another_backup_with_the_same_name_stay() {
    const END: &str = "2026-01-02T03:05:00Z";
    const LATER: &str = "2026-01-02T03:05:01Z";
    const FRACTION: &str = "2026-01-02T03:05:00.7Z";
    let theirs: Facts = ("v", "Completed", DAY, END, None);
    let going: Facts = ("v", "Deleting", DAY, END, None);
    let nameless: Facts = ("", "Completed", DAY, END, None);
    let exact: Facts = ("v", "Completed", DAY, FRACTION, None);
    for (what, ours, record, expected) in [
        ("the same", ("v", "Completed", DAY, END, None), theirs, Files::Own),
        ("the same, at whatever times", ("v", "Failed", LATER, LATER, None), theirs, Files::Own),
        ("taken in", ("u", "Completed", DAY, END, Some("v")), theirs, Files::Own),
        ("taken in, before it expired", ("u", "Failed", DAY, "", Some("v")), theirs, Files::Own),
        ("taken in, without a uid", ("u", "Failed", DAY, END, Some("")), nameless, Files::Own),
        ("replaced since", ("u", "Completed", DAY, END, Some("w")), theirs, Files::OfAnother),
        ("not noted", ("u", "Completed", DAY, END, None), theirs, Files::Own),
        ("not noted, and cut", ("u", "Completed", DAY, END, None), exact, Files::Own),
        ("not noted, and going here", ("u", "Deleting", DAY, END, None), theirs, Files::Own),
        ("not noted, and going there", ("u", "Completed", DAY, END, None), going, Files::Own),
        // The same schedule in two clusters: ours has failed, since theirs was there.
        ("the same second", ("u", "Failed", DAY, DAY, None), theirs, Files::OfAnother),
        ("the same seconds", ("u", "Failed", DAY, END, None), theirs, Files::OfAnother),
        ("another end", ("u", "Completed", DAY, LATER, None), theirs, Files::OfAnother),
        ("another beginning", ("u", "Completed", END, END, None), theirs, Files::OfAnother),
        ("no end", ("u", "Completed", DAY, "", None), theirs, Files::OfAnother),
        ("going, with another end", ("u", "Deleting", DAY, DAY, None), theirs, Files::OfAnother),
    ] {
        assert_eq!(whose(&known_as(ours), &known_as(record)), expected, "{what}");
    }
    let never = Backup { status: None, ..ours() };
    let record = Backup { status: None, ..known_as(theirs) };
    assert_eq!(whose(&never, &record), Files::OfAnother, "nothing is said of either");
}

#[test]
fn nothing_is_deleted_of_what_another_backup_of_the_same_name_holds() {
    let holdings = Holdings {
        record: Some(backup("v", "Completed", DAY)),
        snapshots: vec![snapshot("aws", "s1", "Completed")],
        ..Holdings::default()
    };
    let nothing = Plan { files: Files::OfAnother, snapshots: Vec::new(), csi: Vec::new() };
    assert_eq!(plan(&backup("u", "Failed", DAY), &holdings), Ok(nothing));
    let taken_in = plan(&backup("u", "Completed", DAY), &holdings).unwrap();
    assert_eq!((taken_in.files, taken_in.snapshots.len()), (Files::Own, 1));
}

#[test]
fn a_snapshot_that_a_user_may_have_taken_speaks_against_a_deletion() {
    let content = json!({
        "metadata": {"name": "vsc-1"}, "spec": {"driver": "a.driver"},
        "status": {"snapshotHandle": "s1"},
    });
    let holdings = Holdings { csi_undecided: vec![content], ..Holdings::default() };
    let reason = reason(&ours(), &holdings);
    assert!(reason.contains("whether it took them") && reason.contains("vsc-1"), "{reason}");
    // An earlier try has deleted what would say so, and the snapshots before that.
    let plan = plan(&backup("u", "Deleting", DAY), &holdings).unwrap();
    assert_eq!(plan.csi, []);
}

/// `trials.md`, defect 19: the files of a backup whose record named another one were deleted.
#[test]
fn a_record_that_names_another_backup_keeps_the_files() {
    let holdings = Holdings { is_of_another: true, ..Holdings::default() };
    let backup = Backup::default();
    assert_eq!(plan(&backup, &holdings).unwrap().files, Files::OfAnother);
}
