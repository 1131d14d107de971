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
    let begun = Operation::begun(kind, plugin, volume_id("pv-1"), id, at(0), timeout);
    Operation { state, ..begun }
}

/// A plugin's own resource, created at 0 and last written at a time.
fn theirs(phase: &str, written: Timestamp) -> VolumePluginBackup {
    let entry = |fields, time| ManagedFieldsEntry {
        manager: Some("a-plugin".to_owned()),
        time: Some(Time(time)),
        fields_v1: Some(FieldsV1(fields)),
        ..ManagedFieldsEntry::default()
    };
    let fields = vec![
        entry(json!({"f:status": {"f:phase": {}}}), written),
        // Somebody labels it all the time, which is no sign of life of the plugin.
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
fn a_plugins_own_resource_is_heard_for_as_long_as_it_takes() {
    let told = |phase: &str, second| observed(&theirs(phase, at(0)), at(second)).state;
    for second in [10, 600, 6000] {
        assert_eq!(told("InProgress", second), Told::Running, "silence is no end");
        assert_eq!(told("Uploading", second), Told::Running);
        assert_eq!(told("", second), Told::Running);
        assert_eq!(told("completed", second), Told::Succeeded);
        assert_eq!(told("FAILED", second), Told::Failed("why".to_owned()));
        assert_eq!(told("Canceled", second), Told::Failed("canceled why".to_owned()));
    }
    let progress = observed(&theirs("InProgress", at(0)), at(1));
    assert_eq!((progress.done, progress.total, progress.units.as_str()), (4, 9, "Bytes"));
    assert_eq!(progress.started, Some(at(0)), "one that exists was begun");
    assert_eq!(progress.description, "why");
    // What an operation that times out is told with.
    let done = observed(&theirs("Done", at(0)), at(600)).description;
    assert_eq!(
        done,
        format!("phase Done; why; the VolumePluginBackup is unchanged since {}", at(0))
    );
    assert!(is_silent(&theirs("Done", at(0)), at(600)));
    assert!(!is_silent(&theirs("Done", at(1)), at(600)));
    assert!(!is_silent(&theirs("completed", at(0)), at(6000)));
    let mut files = theirs("InProgress", at(0));
    files.status.as_mut().unwrap().progress = VolumePluginProgress {
        units: "Files".to_owned(),
        units_done: 12,
        total_units: 40,
        ..VolumePluginProgress::default()
    };
    let files = observed(&files, at(1));
    assert_eq!((files.done, files.total, files.units.as_str()), (12, 40, "Files"));
    let bare = VolumePluginBackup { status: None, ..theirs("x", at(0)) };
    assert_eq!(observed(&bare, at(1)).state, Told::Running);
}

#[test]
fn a_resource_that_cannot_be_seen_decides_nothing() {
    let creation = operation(Kind::SnapshotCreation, State::InProgress);
    let upload = operation(Kind::SnapshotUpload, State::InProgress);
    let running = Progress { done: 4, ..Progress::default() };
    let ended = Progress { state: Told::Succeeded, ..Progress::default() };
    let answer = |code| Err(Error::new(code, "no"));
    let unheard = || PluginReport::Unheard("it is gone".to_owned());
    // A plugin that answers is believed.
    for report in [PluginReport::Absent, unheard(), PluginReport::Told(running.clone())] {
        assert_eq!(combine(&creation, Ok(ended.clone()), report).unwrap(), ended);
    }
    // One that writes a resource instead is heard through that.
    let told = PluginReport::Told(running.clone());
    for code in [Code::Unimplemented, Code::Unavailable] {
        assert_eq!(combine(&creation, answer(code), told.clone()).unwrap(), running, "{code:?}");
    }
    // A lost GET, or a resource that is deleted for a moment: it goes on as before.
    let kept = combine(&creation, answer(Code::Unimplemented), unheard()).unwrap();
    assert_eq!((kept.state, kept.description.as_str()), (Told::Running, "it is gone"));
    // Nothing was ever seen of one: then the plugin has none, and its answer decides.
    let none = combine(&creation, answer(Code::Unimplemented), PluginReport::Absent);
    assert_eq!(none.unwrap_err().class(), Class::Unimplemented);
    // What the plugin knows better stays an error.
    assert!(combine(&creation, answer(Code::NotFound), told).is_err());
    assert!(combine(&creation, answer(Code::Unavailable), unheard()).is_err());
    // An upload is told of, and not ended.
    let told = combine(&upload, answer(Code::Unimplemented), PluginReport::Told(ended)).unwrap();
    assert_eq!(told.state, Told::Running);
}

#[test]
fn the_end_in_a_resource_counts_only_without_an_answer() {
    let creation = operation(Kind::SnapshotCreation, State::InProgress);
    let upload = operation(Kind::SnapshotUpload, State::InProgress);
    let running = Progress { done: 4, ..Progress::default() };
    for phase in ["Completed", "Failed", "Canceled"] {
        let ended = observed(&theirs(phase, at(0)), at(1));
        let report = || PluginReport::Told(ended.clone());
        // `Progress` answers: the snapshot is being made, whatever the resource says.
        let answered = combine(&creation, Ok(running.clone()), report()).unwrap();
        assert_eq!(answered.state, Told::Running, "{phase}");
        for code in [Code::Unimplemented, Code::Unavailable, Code::NotFound, Code::Unknown] {
            let error = || Err(Error::new(code, "no"));
            let unanswered = combine(&creation, error(), report());
            assert_eq!(unanswered.unwrap(), ended, "{phase} {code:?}");
            let of_upload = combine(&upload, error(), report());
            assert!(!of_upload.is_ok_and(|told| told.state != Told::Running), "{phase} {code:?}");
        }
    }
}

#[test]
fn a_resource_that_says_that_it_goes_on_is_ended_when_nothing_does() {
    let end = |phase: &str, states: &[State]| {
        let of: Vec<Operation> =
            states.iter().map(|state| operation(Kind::SnapshotCreation, state.clone())).collect();
        let of: Vec<&Operation> = of.iter().collect();
        [true, false].map(|is_ours| last_word(&theirs(phase, at(0)), is_ours, &of))
    };
    let failed = |reason: &str| State::Failed(reason.to_owned());
    let both = |word: LastWord| [word.clone(), word];
    for phase in ["Completed", "failed", "CANCELED"] {
        assert_eq!(end(phase, &[failed("no")]), both(LastWord::Keep), "{phase}");
    }
    for phase in ["failed", "CANCELED"] {
        assert_eq!(end(phase, &[]), both(LastWord::Keep), "{phase}");
    }
    // Another word for the end.
    assert_eq!(end("Done", &[State::Completed]), both(LastWord::Keep));
    // A plugin that has died has none.
    let completed = LastWord::End(VolumePluginPhase::Completed, String::new());
    for phase in ["", "New", "InProgress"] {
        assert_eq!(end(phase, &[State::Completed]), both(completed.clone()), "{phase:?}");
        let open = [State::Completed, State::InProgress];
        assert_eq!(end(phase, &open), both(LastWord::Keep), "{phase:?}");
    }
    let timed_out = LastWord::End(VolumePluginPhase::Failed, "timed out".to_owned());
    assert_eq!(end("Done", &[failed("timed out")]), both(timed_out));
    let canceled = LastWord::End(VolumePluginPhase::Canceled, "canceled: by a user".to_owned());
    assert_eq!(end("InProgress", &[failed("canceled: by a user")]), both(canceled));
    let [ours, theirs] = end("InProgress", &[]);
    assert_eq!(ours, LastWord::Remove);
    assert!(matches!(theirs, LastWord::End(VolumePluginPhase::Failed, _)), "{theirs:?}");
    // One that was taken, and that nobody has heard of, is none that the backup has.
    let [ours, theirs] = end("Completed", &[]);
    assert_eq!(ours, LastWord::Keep);
    assert!(matches!(theirs, LastWord::End(VolumePluginPhase::Failed, _)), "{theirs:?}");
}
