use bowline_api::{BackupStatus, PodVolumeBackupStatus, VolumePluginBackupStatus};
use serde_json::json;

use super::*;

const TARGET: ImportTarget<'static> = ImportTarget { namespace: "velero", location: "here" };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A record as another cluster left it.
fn record(phase: Option<&str>, expiration: Option<&str>) -> Backup {
    serde_json::from_value(json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {
            "name": "b",
            "generateName": "b-",
            "namespace": "other-velero",
            "uid": "their-uid",
            "resourceVersion": "42",
            "generation": 7,
            "creationTimestamp": "2020-01-01T00:00:00Z",
            "deletionTimestamp": "2020-01-02T00:00:00Z",
            "finalizers": ["example.com/never"],
            "managedFields": [{"manager": "velero"}],
            "labels": {"velero.io/storage-location": "there", "team": "a"},
            "annotations": {
                "velero.io/resource-timeout": "10m0s",
                (annotation::RECORD_UID): "of-an-older-one",
            },
            "ownerReferences": [
                {"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "alive", "uid": "1"},
                {"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "reborn", "uid": "2"},
                {"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "dead", "uid": "3"},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "alive", "uid": "1"},
            ],
        },
        "spec": {
            "storageLocation": "there",
            "ttl": "720h0m0s",
            "hooks": {"resources": [{"name": "evil", "pre": [{"exec": {"command": ["rm"]}}]}]},
            "future": {"kept": true},
        },
        "status": {"phase": phase, "expiration": expiration, "errors": 3, "future": 1},
    }))
    .unwrap()
}

fn schedules() -> [(String, String); 2] {
    [("alive", "1"), ("reborn", "22")].map(|(name, uid)| (name.to_owned(), uid.to_owned()))
}

fn decide_phase(phase: Option<&str>, expiration: Option<&str>) -> Result<String, SkipReason> {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    match decide(record(phase, expiration), &TARGET, &schedules(), now) {
        ImportDecision::Create(backup) => Ok(backup.status.unwrap().phase.unwrap().to_string()),
        ImportDecision::Skip(reason) => Err(reason),
    }
}

#[test]
fn finished_backups_are_imported_unchanged() {
    for phase in ["Completed", "PartiallyFailed", "Failed", "Deleting"] {
        assert_eq!(decide_phase(Some(phase), None), Ok(phase.to_owned()));
    }
}

#[test]
fn unfinished_backups_are_imported_only_after_expiry() {
    for text in [
        "WaitingForPluginOperations",
        "WaitingForPluginOperationsPartiallyFailed",
        "Finalizing",
        "FinalizingPartiallyFailed",
    ] {
        let not_ended = Err(SkipReason::NotEnded(text.into()));
        assert_eq!(decide_phase(Some(text), None), not_ended);
        assert_eq!(decide_phase(Some(text), Some("2026-01-01T00:00:01Z")), not_ended);
        let expired = decide_phase(Some(text), Some("2025-12-31T23:59:59Z"));
        assert_eq!(expired, Ok("PartiallyFailed".to_owned()));
    }
}

#[test]
fn backups_that_would_run_are_not_imported() {
    let expired = Some("2020-01-01T00:00:00Z");
    assert_eq!(decide_phase(None, expired), Err(SkipReason::NotTerminal(None)));
    for phase in ["", "New", "Queued", "ReadyToStart", "InProgress", "FailedValidation", "X"] {
        let refused = Err(SkipReason::NotTerminal(Some(phase.into())));
        assert_eq!(decide_phase(Some(phase), expired), refused, "{phase}");
    }
    let statusless = Backup { status: None, ..record(None, None) };
    let decision = decide(statusless, &TARGET, &[], at(0));
    assert_eq!(decision, ImportDecision::Skip(SkipReason::NotTerminal(None)));
}

#[test]
fn imported_backup_belongs_to_this_cluster() {
    let decision = decide(record(Some("Completed"), None), &TARGET, &schedules(), at(0));
    let ImportDecision::Create(backup) = decision else { panic!("{decision:?}") };
    assert_eq!(
        serde_json::to_value(&backup.metadata).unwrap(),
        json!({
            "name": "b",
            "namespace": "velero",
            "labels": {"velero.io/storage-location": "here", "team": "a"},
            "annotations": {
                "velero.io/resource-timeout": "10m0s",
                (INCOMPLETE): "true",
                (annotation::RECORD_UID): "their-uid",
            },
            "ownerReferences": [
                {"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "alive", "uid": "1"},
            ],
        })
    );
    assert_eq!(backup.spec.storage_location, "here");
    assert_eq!(backup.spec.hooks, BackupHooks::default());
    assert_eq!(backup.spec.unknown.0["future"], json!({"kept": true}));
    let status = backup.status.unwrap();
    assert_eq!((status.errors, &status.unknown.0["future"]), (3, &json!(1)));
    assert_eq!(super::owner_schedules(&record(None, None)), ["alive", "reborn", "dead"]);
}

#[test]
fn long_location_name_is_hashed_into_a_label_as_in_velero() {
    let long = "x".repeat(100);
    let target = ImportTarget { location: &long, ..TARGET };
    let decision = decide(record(Some("Completed"), None), &target, &[], at(0));
    let ImportDecision::Create(backup) = decision else { panic!("{decision:?}") };
    assert_eq!(backup.labels()[label::STORAGE_LOCATION], label::value(&long));
    assert_eq!(backup.spec.storage_location, long);
    assert_eq!(backup.metadata.owner_references, None);
}

fn imported_backup() -> Backup {
    let mut backup = Backup { status: Some(BackupStatus::default()), ..Backup::default() };
    backup.metadata.name = Some("b".to_owned());
    backup.metadata.uid = Some("our-uid".to_owned());
    backup
}

#[test]
fn children_are_imported_with_their_backup() {
    let original: PodVolumeBackup = serde_json::from_value(json!({
        "apiVersion": "velero.io/v1",
        "kind": "PodVolumeBackup",
        "metadata": {
            "name": "b-1",
            "namespace": "other-velero",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {"velero.io/backup-uid": "their-uid", "velero.io/pvc-uid": "p"},
            "ownerReferences": [
                {"apiVersion": "velero.io/v1", "kind": "Backup", "name": "b", "uid": "their-uid"},
            ],
        },
        "spec": {"backupStorageLocation": "there", "volume": "data", "node": "n", "pod": {}, "repoIdentifier": ""},
        "status": {"phase": "Completed", "snapshotID": "s"},
    }))
    .unwrap();
    let imported = import_child(original, &TARGET, &imported_backup()).unwrap();
    assert_eq!(
        serde_json::to_value(&imported.metadata).unwrap(),
        json!({
            "name": "b-1",
            "namespace": "velero",
            "labels": {
                "velero.io/backup-name": "b",
                "velero.io/backup-uid": "our-uid",
                "velero.io/pvc-uid": "p",
            },
            "ownerReferences": [{
                "apiVersion": "velero.io/v1",
                "kind": "Backup",
                "name": "b",
                "uid": "our-uid",
                "controller": true,
            }],
        })
    );
    assert_eq!(imported.spec.backup_storage_location, "here");
    assert_eq!(imported.status.unwrap().snapshot_id, "s");
}

#[test]
fn unfinished_children_are_not_imported() {
    let is_taken_in = |phase: Option<&str>| {
        let status = PodVolumeBackupStatus { phase: phase.map(Into::into), ..Default::default() };
        let copy = PodVolumeBackup { status: Some(status), ..Default::default() };
        let status =
            VolumePluginBackupStatus { phase: phase.map(Into::into), ..Default::default() };
        let snapshot = VolumePluginBackup { status: Some(status), ..Default::default() };
        let backup = imported_backup();
        (
            import_child(copy, &TARGET, &backup).is_some(),
            import_child(snapshot, &TARGET, &backup).is_some(),
        )
    };
    for phase in ["Completed", "Failed", "Canceled"] {
        assert_eq!(is_taken_in(Some(phase)), (true, true), "{phase}");
    }
    // A plugin may have any word for the end of its snapshot, and no plugin continues the work.
    for phase in ["", "New", "Accepted", "Prepared", "InProgress", "Canceling", "Done"] {
        assert_eq!(is_taken_in(Some(phase)), (false, true), "{phase}");
    }
    assert_eq!(is_taken_in(None), (false, true));
}

/// Decision 032: a record that expired long ago would have its snapshots deleted within a minute.
#[test]
fn imported_backup_has_a_grace_period_before_expiry() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let expiration = |text: Option<&str>| {
        let imported = decide(record(Some("Completed"), text), &TARGET, &schedules(), now);
        let ImportDecision::Create(backup) = imported else { panic!("it is taken in") };
        backup.status.unwrap().expiration.map(|time| time.0.to_string())
    };
    let tomorrow = Some("2026-01-02T00:00:00Z".to_owned());
    assert_eq!(expiration(Some("2020-01-01T00:00:00Z")), tomorrow);
    assert_eq!(expiration(Some("2026-01-01T00:00:01Z")), tomorrow);
    let later = "2026-02-01T00:00:00Z";
    assert_eq!(expiration(Some(later)), Some(later.to_owned()));
    assert_eq!(expiration(None), None, "it is kept for ever");
}

#[test]
fn server_annotations_are_not_imported() {
    let mut original = record(Some("Completed"), None);
    for key in [annotation::CANCEL, annotation::RETENTION_GAVE_UP, annotation::SNAPSHOT_TYPE] {
        original.annotations_mut().insert(key.to_owned(), "true".to_owned());
    }
    let ImportDecision::Create(backup) = decide(original, &TARGET, &schedules(), at(0)) else {
        panic!("it is taken in")
    };
    let annotations = backup.annotations();
    assert!(!annotations.contains_key(annotation::CANCEL));
    assert!(!annotations.contains_key(annotation::RETENTION_GAVE_UP));
    assert!(annotations.contains_key(annotation::SNAPSHOT_TYPE));
    assert!(annotations.contains_key("velero.io/resource-timeout"));
}
