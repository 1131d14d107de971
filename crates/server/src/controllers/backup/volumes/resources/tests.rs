use bowline_api::volume_plugin::VolumePluginProgress;
use bowline_engine::operation::{Kind, State};
use bowline_plugin::{OperationId, Progress};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};

use super::*;
use crate::patch::FIELD_MANAGER;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn operation(kind: Kind, state: State, done: i64, total: i64) -> Operation {
    let item = bowline_engine::snapshotter::volume_id("pv-1");
    let (plugin, id) = ("x.io/a".parse().unwrap(), OperationId::new("snap-1").unwrap());
    let started = Operation::started(kind, plugin, item, id, at(0), Duration::from_hours(4));
    let progress = Progress { done, total, units: "Bytes".to_owned(), ..Progress::default() };
    Operation { state, progress, ..started }
}

#[test]
fn snapshot_phase_follows_from_creation_and_upload() {
    use State::{Completed, Failed, InProgress, New};
    let failed = |reason: &str| Failed(reason.into());
    for (creation, upload, phase) in [
        (New, Some(New), "New"),
        (Completed, Some(New), "InProgress"),
        (Completed, Some(InProgress), "InProgress"),
        (InProgress, None, "InProgress"),
        (Completed, None, "Completed"),
        (Completed, Some(Completed), "Completed"),
        (failed("no room"), Some(failed("it was not begun")), "Failed"),
        (Completed, Some(failed("disk full")), "Failed"),
        (Completed, Some(failed("canceled: by a user")), "Canceled"),
        (failed("no room"), Some(New), "InProgress"),
    ] {
        let case = format!("{creation:?} {upload:?}");
        let creation = operation(Kind::SnapshotCreation, creation, 0, 0);
        let upload = upload.map(|state| operation(Kind::SnapshotUpload, state, 0, 0));
        let of: Vec<_> = [Some(&creation), upload.as_ref()].into_iter().flatten().collect();
        let status = resource_status(&VolumePluginBackupStatus::default(), &of, at(9));
        assert_eq!(status.phase.unwrap().as_str(), phase, "{case}");
        let has_ended = !matches!(phase, "New" | "InProgress");
        assert_eq!(status.completion_timestamp.is_some(), has_ended, "{case}");
    }
}

#[test]
fn bytes_come_from_the_upload_and_are_never_negative() {
    let creation = operation(Kind::SnapshotCreation, State::Completed, 5, 5);
    for ((done, total), state, expected) in [
        ((0, 0), State::New, (0, 5)),
        ((0, 0), State::InProgress, (0, 5)),
        ((0, 0), State::Completed, (5, 5)),
        ((30, 90), State::InProgress, (30, 90)),
        ((-3, -1), State::InProgress, (0, 5)),
        ((95, 90), State::InProgress, (95, 90)),
        ((30, 90), State::Completed, (90, 90)),
        ((30, 90), State::Failed("no".into()), (30, 90)),
        ((0, 0), State::Failed("canceled: by a user".into()), (0, 5)),
        ((0, 0), State::Failed("disk full".into()), (0, 5)),
        ((7, 0), State::Completed, (7, 0)),
    ] {
        let upload = operation(Kind::SnapshotUpload, state.clone(), done, total);
        let status =
            resource_status(&VolumePluginBackupStatus::default(), &[&creation, &upload], at(9));
        let shown = (status.progress.bytes_done, status.progress.total_bytes);
        assert_eq!(shown, expected, "{done} of {total}, {state:?}");
    }
    let mut files = operation(Kind::SnapshotCreation, State::InProgress, 3, 9);
    "Files".clone_into(&mut files.progress.units);
    let before = VolumePluginBackupStatus::default();
    let shown = resource_status(&before, &[&files], at(9)).progress;
    assert_eq!((shown.bytes_done, shown.total_bytes), (0, 0));
    assert_eq!((shown.units.as_str(), shown.units_done, shown.total_units), ("Files", 3, 9));
    let ended = Operation { state: State::Completed, ..files.clone() };
    assert_eq!(resource_status(&before, &[&ended], at(9)).progress.units_done, 9);
    // An upload that counts bytes takes over.
    let upload = operation(Kind::SnapshotUpload, State::InProgress, 1, 4);
    let shown = resource_status(&before, &[&ended, &upload], at(9)).progress;
    assert_eq!((shown.bytes_done, shown.total_bytes, shown.units.as_str()), (1, 4, ""));
}

#[test]
fn completion_time_is_kept_once_set() {
    let creation = operation(Kind::SnapshotCreation, State::Completed, 0, 0);
    let first = resource_status(&VolumePluginBackupStatus::default(), &[&creation], at(9));
    let again = resource_status(&first, &[&creation], at(99));
    assert_eq!(first, again, "so that nothing is written again");
}

/// A plugin's own resource, last written at a time.
fn plugin_resource(phase: &str, written: Timestamp) -> VolumePluginBackup {
    let entry = ManagedFieldsEntry {
        manager: Some("a-plugin".to_owned()),
        time: Some(Time(written)),
        fields_v1: Some(FieldsV1(json!({"f:status": {"f:phase": {}}}))),
        ..ManagedFieldsEntry::default()
    };
    let metadata = ObjectMeta { managed_fields: Some(vec![entry]), ..ObjectMeta::default() };
    let progress =
        VolumePluginProgress { total_bytes: 9, bytes_done: 4, ..VolumePluginProgress::default() };
    let status = VolumePluginBackupStatus {
        phase: Some(phase.into()),
        message: "why".to_owned(),
        progress,
        ..VolumePluginBackupStatus::default()
    };
    VolumePluginBackup { metadata, status: Some(status), ..VolumePluginBackup::default() }
}

#[test]
fn foreign_status_writer_is_detected() {
    assert!(has_other_writer(&plugin_resource("New", at(0))));
    let mut own_resource = plugin_resource("New", at(0));
    for entry in own_resource.metadata.managed_fields.iter_mut().flatten() {
        entry.manager = Some(FIELD_MANAGER.to_owned());
    }
    assert!(!has_other_writer(&own_resource));
    let mut labels = plugin_resource("New", at(0));
    for entry in labels.metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = Some(FieldsV1(json!({"f:metadata": {}})));
    }
    assert!(!has_other_writer(&labels), "who only labels it does not write it");
}
