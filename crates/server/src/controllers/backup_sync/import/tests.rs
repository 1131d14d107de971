use bowline_api::{BackupStatus, PodVolumeBackupStatus, VolumePluginBackupStatus};
use serde_json::json;

use super::*;

const PLACE: Place<'static> = Place { namespace: "velero", location: "here" };

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

fn verdict(phase: Option<&str>, expiration: Option<&str>) -> Result<String, Reason> {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    match decide(record(phase, expiration), &PLACE, &schedules(), now) {
        Verdict::Create(backup) => Ok(backup.status.unwrap().phase.unwrap().to_string()),
        Verdict::Skip(reason) => Err(reason),
    }
}

#[test]
fn what_has_ended_is_taken_in_as_it_is() {
    for phase in ["Completed", "PartiallyFailed", "Failed", "Deleting"] {
        assert_eq!(verdict(Some(phase), None), Ok(phase.to_owned()));
    }
}

#[test]
fn what_another_cluster_works_on_is_taken_in_only_when_it_has_expired() {
    for text in [
        "WaitingForPluginOperations",
        "WaitingForPluginOperationsPartiallyFailed",
        "Finalizing",
        "FinalizingPartiallyFailed",
    ] {
        let not_ended = Err(Reason::NotEnded(text.into()));
        assert_eq!(verdict(Some(text), None), not_ended);
        assert_eq!(verdict(Some(text), Some("2026-01-01T00:00:01Z")), not_ended);
        let expired = verdict(Some(text), Some("2025-12-31T23:59:59Z"));
        assert_eq!(expired, Ok("PartiallyFailed".to_owned()));
    }
}

#[test]
fn nothing_is_taken_in_that_would_be_run() {
    let expired = Some("2020-01-01T00:00:00Z");
    assert_eq!(verdict(None, expired), Err(Reason::NoRecordPhase(None)));
    for phase in ["", "New", "Queued", "ReadyToStart", "InProgress", "FailedValidation", "X"] {
        let refused = Err(Reason::NoRecordPhase(Some(phase.into())));
        assert_eq!(verdict(Some(phase), expired), refused, "{phase}");
    }
    let statusless = Backup { status: None, ..record(None, None) };
    let verdict = decide(statusless, &PLACE, &[], at(0));
    assert_eq!(verdict, Verdict::Skip(Reason::NoRecordPhase(None)));
}

#[test]
fn a_backup_belongs_to_this_cluster_from_then_on() {
    let verdict = decide(record(Some("Completed"), None), &PLACE, &schedules(), at(0));
    let Verdict::Create(backup) = verdict else { panic!("{verdict:?}") };
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
    assert_eq!(super::schedules(&record(None, None)), ["alive", "reborn", "dead"]);
}

#[test]
fn a_long_name_of_a_location_becomes_a_label_as_velero_makes_it() {
    let long = "x".repeat(100);
    let place = Place { location: &long, ..PLACE };
    let verdict = decide(record(Some("Completed"), None), &place, &[], at(0));
    let Verdict::Create(backup) = verdict else { panic!("{verdict:?}") };
    assert_eq!(backup.labels()[label::STORAGE_LOCATION], label::value(&long));
    assert_eq!(backup.spec.storage_location, long);
    assert_eq!(backup.metadata.owner_references, None);
}

fn taken_in() -> Backup {
    let mut backup = Backup { status: Some(BackupStatus::default()), ..Backup::default() };
    backup.metadata.name = Some("b".to_owned());
    backup.metadata.uid = Some("our-uid".to_owned());
    backup
}

#[test]
fn what_belongs_to_a_backup_comes_with_it() {
    let theirs: PodVolumeBackup = serde_json::from_value(json!({
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
    let ours = child(theirs, &PLACE, &taken_in()).unwrap();
    assert_eq!(
        serde_json::to_value(&ours.metadata).unwrap(),
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
    assert_eq!(ours.spec.backup_storage_location, "here");
    assert_eq!(ours.status.unwrap().snapshot_id, "s");
}

#[test]
fn work_that_has_not_ended_is_not_taken_in_if_somebody_would_go_on_with_it() {
    let is_taken_in = |phase: Option<&str>| {
        let status = PodVolumeBackupStatus { phase: phase.map(Into::into), ..Default::default() };
        let copy = PodVolumeBackup { status: Some(status), ..Default::default() };
        let status =
            VolumePluginBackupStatus { phase: phase.map(Into::into), ..Default::default() };
        let snapshot = VolumePluginBackup { status: Some(status), ..Default::default() };
        let ours = taken_in();
        (child(copy, &PLACE, &ours).is_some(), child(snapshot, &PLACE, &ours).is_some())
    };
    for phase in ["Completed", "Failed", "Canceled"] {
        assert_eq!(is_taken_in(Some(phase)), (true, true), "{phase}");
    }
    // A plugin may have any word for the end of its snapshot, and nobody goes on with that.
    for phase in ["", "New", "Accepted", "Prepared", "InProgress", "Canceling", "Done"] {
        assert_eq!(is_taken_in(Some(phase)), (false, true), "{phase}");
    }
    assert_eq!(is_taken_in(None), (false, true));
}

/// Decision 032: a record that expired long ago would have its snapshots deleted within a minute.
#[test]
fn what_is_taken_in_does_not_expire_in_the_moment_of_its_import() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let expiration = |text: Option<&str>| {
        let taken = decide(record(Some("Completed"), text), &PLACE, &schedules(), now);
        let Verdict::Create(backup) = taken else { panic!("it is taken in") };
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
fn what_servers_note_for_themselves_is_not_taken_in() {
    let mut theirs = record(Some("Completed"), None);
    for key in [annotation::CANCEL, annotation::RETENTION_GAVE_UP, annotation::SNAPSHOT_TYPE] {
        theirs.annotations_mut().insert(key.to_owned(), "true".to_owned());
    }
    let Verdict::Create(backup) = decide(theirs, &PLACE, &schedules(), at(0)) else {
        panic!("it is taken in")
    };
    let annotations = backup.annotations();
    assert!(!annotations.contains_key(annotation::CANCEL));
    assert!(!annotations.contains_key(annotation::RETENTION_GAVE_UP));
    assert!(annotations.contains_key(annotation::SNAPSHOT_TYPE));
    assert!(annotations.contains_key("velero.io/resource-timeout"));
}
