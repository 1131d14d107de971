use serde_json::{Value, json};

use super::*;

fn backup(uid: &str, phase: &str, started: &str) -> Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": uid},
        "spec": {},
        "status": {"phase": phase, "startTimestamp": started},
    }))
    .unwrap()
}

const DAY: &str = "2026-01-02T03:04:05Z";

fn completed_backup() -> Backup {
    backup("u", "Completed", DAY)
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn volume(value: Value) -> BackupInventory {
    let mut volume = json!({
        "pvcNamespace": "shop", "pvcName": "data", "pvName": "pv-1",
        "snapshotDataMoved": false, "preserveLocalSnapshot": false, "skipped": false,
    });
    let Value::Object(more) = value else { panic!("{value}") };
    for (key, value) in more {
        volume[key] = value;
    }
    BackupInventory { volumes: Some(vec![read(volume)]), ..BackupInventory::default() }
}

fn snapshot(location: &str, id: &str, phase: &str) -> Snapshot {
    read(json!({
        "spec": {"location": location, "persistentVolumeName": "pv-1"},
        "status": {"providerSnapshotID": id, "phase": phase},
    }))
}

/// The only objection to the deletion.
fn reason(backup: &Backup, inventory: &BackupInventory) -> String {
    let mut reasons = plan_deletion(backup, inventory).unwrap_err().messages();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    reasons.remove(0)
}

#[test]
fn each_snapshot_is_deleted_once() {
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
    let inventory = BackupInventory {
        snapshots,
        // One of them is in no other file, because its server was killed before.
        operations: vec![operation("s1", "Completed"), operation("s4", "InProgress")],
        volume_plugin_backups: vec![report],
        ..BackupInventory::default()
    };
    let plan = plan_deletion(&completed_backup(), &inventory).unwrap();
    let found: Vec<_> = plan
        .snapshots
        .iter()
        .map(|snapshot| (snapshot.location.as_str(), snapshot.id.as_str(), snapshot.is_in_progress))
        .collect();
    let expected = [
        ("aws", "s1", false),
        ("aws", "s2", true),
        ("aws", "s3", true),
        ("aws", "s4", true),
        ("other", "s1", false),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.files, FileOwnership::Own);
}

#[test]
fn undeletable_data_blocks_the_deletion() {
    let copy = |id: &str| -> BackupInventory {
        let copy =
            json!({"metadata": {"name": "copy-1"}, "spec": {}, "status": {"snapshotID": id}});
        BackupInventory { pod_volume_backups: vec![read(copy)], ..BackupInventory::default() }
    };
    let upload = |id: &str| -> BackupInventory {
        let upload =
            json!({"metadata": {"name": "up-1"}, "spec": {}, "status": {"snapshotID": id}});
        BackupInventory { data_uploads: vec![read(upload)], ..BackupInventory::default() }
    };
    let content = json!({"metadata": {"name": "vsc-1"}, "status": {"snapshotHandle": "s1"}});
    let csi = BackupInventory { csi_contents: vec![content], ..BackupInventory::default() };
    let without_location = BackupInventory {
        snapshots: vec![snapshot("", "s1", "New")],
        ..BackupInventory::default()
    };
    for (inventory, words) in [
        (copy("k1"), vec!["PodVolumeBackups", "copy-1"]),
        (upload("k1"), vec!["DataUploads", "up-1"]),
        (csi, vec!["CSI snapshots", "vsc-1"]),
        (without_location, vec!["snapshot s1 names no VolumeSnapshotLocation"]),
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
            vec!["snapshots without a location", "shop/data (s9)"],
        ),
    ] {
        let reason = reason(&completed_backup(), &inventory);
        for word in words {
            assert!(reason.contains(word), "no {word:?} in {reason:?}");
        }
    }
}

#[test]
fn backup_without_data_is_deletable() {
    let copy = json!({"metadata": {"name": "c"}, "spec": {}, "status": {"phase": "Failed"}});
    let failed =
        BackupInventory { pod_volume_backups: vec![read(copy)], ..BackupInventory::default() };
    for inventory in [
        BackupInventory::default(),
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
        let expected =
            DeletionPlan { files: FileOwnership::Own, snapshots: Vec::new(), csi: Vec::new() };
        let plan = plan_deletion(&completed_backup(), &inventory);
        assert_eq!(plan.unwrap(), expected, "{inventory:?}");
    }
}

#[test]
fn same_copy_in_bucket_and_cluster_is_reported_once() {
    let mut inventory =
        volume(json!({"backupMethod": "PodVolumeBackup", "pvbInfo": {"snapshotHandle": "k0"}}));
    for number in 0..7 {
        let (name, id) = (format!("copy-{number}"), format!("k{number}"));
        let copy = json!({"metadata": {"name": name}, "spec": {}, "status": {"snapshotID": id}});
        inventory.pod_volume_backups.extend([read(copy.clone()), read(copy)]);
    }
    let reason = reason(&completed_backup(), &inventory);
    assert!(reason.ends_with("copy-0, copy-1, copy-2, copy-3, copy-4 and 2 more"), "{reason}");
}

#[test]
fn old_backups_without_volume_info_go_by_their_status_counts() {
    let mut backup = completed_backup();
    backup.status.as_mut().unwrap().csi_volume_snapshots_completed = 2;
    let old = BackupInventory::default();
    assert!(reason(&backup, &old).contains("CSI snapshots"));
    backup.spec.snapshot_move_data = Some(true);
    assert!(plan_deletion(&backup, &old).is_ok());
    backup.status.as_mut().unwrap().backup_item_operations_completed = 1;
    assert!(reason(&backup, &old).contains("DataUploads"));
    // A newer backup lists its volumes, here none.
    let new = BackupInventory { volumes: Some(Vec::new()), ..BackupInventory::default() };
    assert!(plan_deletion(&backup, &new).is_ok());
}

#[test]
fn files_deleted_by_an_earlier_attempt_are_not_required() {
    let inventory = volume(json!({
        "backupMethod": "NativeSnapshot", "nativeSnapshotInfo": {"snapshotHandle": "s9"},
    }));
    assert!(plan_deletion(&completed_backup(), &inventory).is_err());
    assert!(plan_deletion(&backup("u", "Deleting", DAY), &inventory).is_ok());
    let record = Some(backup("u", "Deleting", DAY));
    assert!(plan_deletion(&completed_backup(), &BackupInventory { record, ..inventory }).is_ok());
}

/// Uid, phase, start and end of a Backup or a record, and the uid in the annotation.
type RunFacts = (&'static str, &'static str, &'static str, &'static str, Option<&'static str>);

fn backup_with((uid, phase, started, ended, record_uid): RunFacts) -> Backup {
    let mut backup = backup(uid, phase, started);
    let status = backup.status.as_mut().unwrap();
    status.completion_timestamp = (!ended.is_empty()).then(|| read(json!(ended)));
    let annotation = record_uid.map(|uid| (annotation::RECORD_UID.to_owned(), uid.to_owned()));
    backup.metadata.annotations = annotation.map(|annotation| [annotation].into());
    backup
}

#[test]
fn files_of_another_backup_of_the_same_name_are_kept() {
    const END: &str = "2026-01-02T03:05:00Z";
    const LATER: &str = "2026-01-02T03:05:01Z";
    const FRACTION: &str = "2026-01-02T03:05:00.7Z";
    let other_record: RunFacts = ("v", "Completed", DAY, END, None);
    let deleting: RunFacts = ("v", "Deleting", DAY, END, None);
    let nameless: RunFacts = ("", "Completed", DAY, END, None);
    let exact: RunFacts = ("v", "Completed", DAY, FRACTION, None);
    for (what, backup_facts, record, expected) in [
        ("the same", ("v", "Completed", DAY, END, None), other_record, FileOwnership::Own),
        (
            "the same, at whatever times",
            ("v", "Failed", LATER, LATER, None),
            other_record,
            FileOwnership::Own,
        ),
        ("taken in", ("u", "Completed", DAY, END, Some("v")), other_record, FileOwnership::Own),
        (
            "taken in, before it expired",
            ("u", "Failed", DAY, "", Some("v")),
            other_record,
            FileOwnership::Own,
        ),
        (
            "taken in, without a uid",
            ("u", "Failed", DAY, END, Some("")),
            nameless,
            FileOwnership::Own,
        ),
        (
            "replaced since",
            ("u", "Completed", DAY, END, Some("w")),
            other_record,
            FileOwnership::OfAnother,
        ),
        ("not noted", ("u", "Completed", DAY, END, None), other_record, FileOwnership::Own),
        ("not noted, and cut", ("u", "Completed", DAY, END, None), exact, FileOwnership::Own),
        (
            "not noted, and going here",
            ("u", "Deleting", DAY, END, None),
            other_record,
            FileOwnership::Own,
        ),
        (
            "not noted, and going there",
            ("u", "Completed", DAY, END, None),
            deleting,
            FileOwnership::Own,
        ),
        // The same schedule in two clusters: ours has failed, since the other cluster's files existed.
        (
            "the same second",
            ("u", "Failed", DAY, DAY, None),
            other_record,
            FileOwnership::OfAnother,
        ),
        (
            "the same seconds",
            ("u", "Failed", DAY, END, None),
            other_record,
            FileOwnership::OfAnother,
        ),
        (
            "another end",
            ("u", "Completed", DAY, LATER, None),
            other_record,
            FileOwnership::OfAnother,
        ),
        (
            "another beginning",
            ("u", "Completed", END, END, None),
            other_record,
            FileOwnership::OfAnother,
        ),
        ("no end", ("u", "Completed", DAY, "", None), other_record, FileOwnership::OfAnother),
        (
            "going, with another end",
            ("u", "Deleting", DAY, DAY, None),
            other_record,
            FileOwnership::OfAnother,
        ),
    ] {
        assert_eq!(
            file_ownership(&backup_with(backup_facts), &backup_with(record)),
            expected,
            "{what}"
        );
    }
    let never = Backup { status: None, ..completed_backup() };
    let record = Backup { status: None, ..backup_with(other_record) };
    assert_eq!(
        file_ownership(&never, &record),
        FileOwnership::OfAnother,
        "nothing is said of either"
    );
}

#[test]
fn data_of_another_backup_of_the_same_name_is_kept() {
    let inventory = BackupInventory {
        record: Some(backup("v", "Completed", DAY)),
        snapshots: vec![snapshot("aws", "s1", "Completed")],
        ..BackupInventory::default()
    };
    let nothing =
        DeletionPlan { files: FileOwnership::OfAnother, snapshots: Vec::new(), csi: Vec::new() };
    assert_eq!(plan_deletion(&backup("u", "Failed", DAY), &inventory).unwrap(), nothing);
    let synced = plan_deletion(&backup("u", "Completed", DAY), &inventory).unwrap();
    assert_eq!((synced.files, synced.snapshots.len()), (FileOwnership::Own, 1));
}

#[test]
fn possible_user_snapshot_blocks_the_deletion() {
    let content = json!({
        "metadata": {"name": "vsc-1"}, "spec": {"driver": "a.driver"},
        "status": {"snapshotHandle": "s1"},
    });
    let inventory = BackupInventory { csi_undecided: vec![content], ..BackupInventory::default() };
    let reason = reason(&completed_backup(), &inventory);
    assert!(reason.contains("may not have created") && reason.contains("vsc-1"), "{reason}");
    // An earlier attempt has deleted the files with this information, and the snapshots before them.
    let plan = plan_deletion(&backup("u", "Deleting", DAY), &inventory).unwrap();
    assert_eq!(plan.csi, []);
}

/// `trials.md`, defect 19: the files of a backup whose record named another one were deleted.
#[test]
fn record_of_another_backup_keeps_the_files() {
    let inventory = BackupInventory { belongs_to_another: true, ..BackupInventory::default() };
    let backup = Backup::default();
    assert_eq!(plan_deletion(&backup, &inventory).unwrap().files, FileOwnership::OfAnother);
}

#[test]
fn unconfirmed_deletion_does_not_hide_lost_snapshots() {
    let lost = volume(json!({
        "backupMethod": "NativeSnapshot", "result": "succeeded",
        "nativeSnapshotInfo": {"snapshotHandle": "s1"},
    }));
    let deleting = backup("u", "Deleting", DAY);
    assert!(plan_deletion(&deleting, &lost).is_ok(), "an interrupted deletion has deleted it");
    let mut unconfirmed = deleting.clone();
    let before = (annotation::PHASE_BEFORE_DELETION.to_owned(), "Completed".to_owned());
    unconfirmed.metadata.annotations = Some([before].into());
    assert!(reason(&unconfirmed, &lost).contains("s1"), "nothing was deleted yet");
    let inventory = BackupInventory { record: Some(deleting), ..lost };
    assert!(plan_deletion(&unconfirmed, &inventory).is_ok(), "the record says that it was");
}
