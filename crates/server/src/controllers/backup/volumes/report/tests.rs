use bowline_api::VolumePluginBackupStatus;
use bowline_engine::snapshotter::volume_id;
use bowline_plugin::{Code, Error, OperationId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldsV1, ManagedFieldsEntry, ObjectMeta, Time,
};
use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn operation(kind: Kind, state: State) -> Operation {
    let (plugin, id) = ("x.io/a".parse().unwrap(), OperationId::new("snap-1").unwrap());
    let timeout = Duration::from_hours(4);
    let started = Operation::started(kind, plugin, volume_id("pv-1"), id, at(0), timeout);
    Operation { state, ..started }
}

/// A plugin's own resource, created at 0 and last written at a time.
fn plugin_resource(phase: &str, written: Timestamp) -> VolumePluginBackup {
    let entry = |fields, time| ManagedFieldsEntry {
        manager: Some("a-plugin".to_owned()),
        time: Some(Time(time)),
        fields_v1: Some(FieldsV1(fields)),
        ..ManagedFieldsEntry::default()
    };
    let fields = vec![
        entry(json!({"f:status": {"f:phase": {}}}), written),
        // Another writer labels it all the time, which is no sign of life of the plugin.
        entry(json!({"f:metadata": {"f:labels": {}}}), at(1_000_000)),
    ];
    let metadata = ObjectMeta {
        managed_fields: Some(fields),
        creation_timestamp: Some(Time(at(0))),
        ..ObjectMeta::default()
    };
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
fn plugin_resource_is_read_until_the_operation_ends() {
    let reported_state =
        |phase: &str, second| reported_progress(&plugin_resource(phase, at(0)), at(second)).state;
    for second in [10, 600, 6000] {
        assert_eq!(reported_state("InProgress", second), PluginState::Running, "silence is no end");
        assert_eq!(reported_state("Uploading", second), PluginState::Running);
        assert_eq!(reported_state("", second), PluginState::Running);
        assert_eq!(reported_state("completed", second), PluginState::Succeeded);
        assert_eq!(reported_state("FAILED", second), PluginState::Failed("why".to_owned()));
        assert_eq!(
            reported_state("Canceled", second),
            PluginState::Failed("canceled why".to_owned())
        );
    }
    let progress = reported_progress(&plugin_resource("InProgress", at(0)), at(1));
    assert_eq!((progress.done, progress.total, progress.units.as_str()), (4, 9, "Bytes"));
    assert_eq!(progress.started, Some(at(0)), "one that exists was begun");
    assert_eq!(progress.description, "why");
    // Description with which a timed-out operation is reported.
    let done = reported_progress(&plugin_resource("Done", at(0)), at(600)).description;
    assert_eq!(
        done,
        format!("phase Done; why; the VolumePluginBackup is unchanged since {}", at(0))
    );
    assert!(is_stale(&plugin_resource("Done", at(0)), at(600)));
    assert!(!is_stale(&plugin_resource("Done", at(1)), at(600)));
    assert!(!is_stale(&plugin_resource("completed", at(0)), at(6000)));
    let mut files = plugin_resource("InProgress", at(0));
    files.status.as_mut().unwrap().progress = VolumePluginProgress {
        units: "Files".to_owned(),
        units_done: 12,
        total_units: 40,
        ..VolumePluginProgress::default()
    };
    let files = reported_progress(&files, at(1));
    assert_eq!((files.done, files.total, files.units.as_str()), (12, 40, "Files"));
    let bare = VolumePluginBackup { status: None, ..plugin_resource("x", at(0)) };
    assert_eq!(reported_progress(&bare, at(1)).state, PluginState::Running);
}

#[test]
fn unreadable_plugin_resource_decides_nothing() {
    let creation = operation(Kind::SnapshotCreation, State::InProgress);
    let upload = operation(Kind::SnapshotUpload, State::InProgress);
    let running = Progress { done: 4, ..Progress::default() };
    let ended = Progress { state: PluginState::Succeeded, ..Progress::default() };
    let answer = |code| Err(Error::new(code, "no"));
    let unheard = || PluginReport::Unreadable("it is gone".to_owned());
    // The answer of a plugin takes precedence.
    for report in [PluginReport::Absent, unheard(), PluginReport::Reported(running.clone())] {
        assert_eq!(combine_progress(&creation, Ok(ended.clone()), report).unwrap(), ended);
    }
    // A plugin that writes a resource instead reports through that.
    let report = PluginReport::Reported(running.clone());
    for code in [Code::Unimplemented, Code::Unavailable] {
        assert_eq!(
            combine_progress(&creation, answer(code), report.clone()).unwrap(),
            running,
            "{code:?}"
        );
    }
    // A failed GET, or a resource that is deleted for a moment: the operation continues as before.
    let progress = combine_progress(&creation, answer(Code::Unimplemented), unheard()).unwrap();
    assert_eq!(
        (progress.state, progress.description.as_str()),
        (PluginState::Running, "it is gone")
    );
    // No resource was ever seen: the plugin has none, and its answer decides.
    let none = combine_progress(&creation, answer(Code::Unimplemented), PluginReport::Absent);
    assert_eq!(none.unwrap_err().class(), Class::Unimplemented);
    // A definite error of the plugin stays an error.
    assert!(combine_progress(&creation, answer(Code::NotFound), report).is_err());
    assert!(combine_progress(&creation, answer(Code::Unavailable), unheard()).is_err());
    // The progress of an upload is shown, but does not end it.
    let progress =
        combine_progress(&upload, answer(Code::Unimplemented), PluginReport::Reported(ended))
            .unwrap();
    assert_eq!(progress.state, PluginState::Running);
}

#[test]
fn the_end_in_a_resource_counts_only_without_an_answer() {
    let creation = operation(Kind::SnapshotCreation, State::InProgress);
    let upload = operation(Kind::SnapshotUpload, State::InProgress);
    let running = Progress { done: 4, ..Progress::default() };
    for phase in ["Completed", "Failed", "Canceled"] {
        let ended = reported_progress(&plugin_resource(phase, at(0)), at(1));
        let report = || PluginReport::Reported(ended.clone());
        // `Progress` answers that the snapshot is being created, so the resource does not count.
        let answered = combine_progress(&creation, Ok(running.clone()), report()).unwrap();
        assert_eq!(answered.state, PluginState::Running, "{phase}");
        for code in [Code::Unimplemented, Code::Unavailable, Code::NotFound, Code::Unknown] {
            let error = || Err(Error::new(code, "no"));
            let unanswered = combine_progress(&creation, error(), report());
            assert_eq!(unanswered.unwrap(), ended, "{phase} {code:?}");
            let of_upload = combine_progress(&upload, error(), report());
            assert!(
                !of_upload.is_ok_and(|progress| progress.state != PluginState::Running),
                "{phase} {code:?}"
            );
        }
    }
}

#[test]
fn running_resource_is_ended_with_its_operations() {
    let end = |phase: &str, states: &[State]| {
        let of: Vec<Operation> =
            states.iter().map(|state| operation(Kind::SnapshotCreation, state.clone())).collect();
        let of: Vec<&Operation> = of.iter().collect();
        [true, false].map(|is_ours| resource_end(&plugin_resource(phase, at(0)), is_ours, &of))
    };
    let failed = |reason: &str| State::Failed(reason.into());
    let for_both_owners = |word: ResourceEnd| [word.clone(), word];
    for phase in ["Completed", "failed", "CANCELED"] {
        assert_eq!(end(phase, &[failed("no")]), for_both_owners(ResourceEnd::Keep), "{phase}");
    }
    for phase in ["failed", "CANCELED"] {
        assert_eq!(end(phase, &[]), for_both_owners(ResourceEnd::Keep), "{phase}");
    }
    // Another word for the end.
    assert_eq!(end("Done", &[State::Completed]), for_both_owners(ResourceEnd::Keep));
    // A plugin that has crashed writes none.
    let completed = ResourceEnd::End(VolumePluginPhase::Completed, String::new());
    for phase in ["", "New", "InProgress"] {
        assert_eq!(
            end(phase, &[State::Completed]),
            for_both_owners(completed.clone()),
            "{phase:?}"
        );
        let open = [State::Completed, State::InProgress];
        assert_eq!(end(phase, &open), for_both_owners(ResourceEnd::Keep), "{phase:?}");
    }
    let timed_out = ResourceEnd::End(VolumePluginPhase::Failed, "timed out".to_owned());
    assert_eq!(end("Done", &[failed("timed out")]), for_both_owners(timed_out));
    let canceled = ResourceEnd::End(VolumePluginPhase::Canceled, "canceled: by a user".to_owned());
    assert_eq!(end("InProgress", &[failed("canceled: by a user")]), for_both_owners(canceled));
    let [ours, theirs] = end("InProgress", &[]);
    assert_eq!(ours, ResourceEnd::Remove);
    assert!(matches!(theirs, ResourceEnd::End(VolumePluginPhase::Failed, _)), "{theirs:?}");
    // A snapshot that was taken, and that the backup has no operation for, is not one of the
    // backup.
    let [ours, theirs] = end("Completed", &[]);
    assert_eq!(ours, ResourceEnd::Keep);
    assert!(matches!(theirs, ResourceEnd::End(VolumePluginPhase::Failed, _)), "{theirs:?}");
}
