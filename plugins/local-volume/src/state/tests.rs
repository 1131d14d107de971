use std::os::unix::fs::{PermissionsExt as _, symlink};

use bowline_plugin_sdk::jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::record::Upload;
use crate::tree::clone::{Cloned, Method};

fn state() -> (TempDir, State) {
    let folder = tempfile::tempdir().unwrap();
    let state = State::new(&folder.path().join("state"));
    state.prepare().unwrap();
    (folder, state)
}

fn record(id: &Id) -> Record {
    let cloned = Cloned { method: Method::Copy, files: 0, copied: 0, bytes: 0 };
    Record::new(id.clone(), "/data/vol", None, Timestamp::UNIX_EPOCH, "boot", cloned)
}

/// A snapshot with a file.
fn make(state: &State, id: &Id) -> bool {
    let draft = state.draft(id).unwrap();
    fs::create_dir(draft.path.join("data")).unwrap();
    fs::write(draft.path.join("data/file"), "").unwrap();
    state.keep(draft, &record(id)).unwrap()
}

fn names(state: &State) -> Vec<String> {
    let entries = fs::read_dir(&state.path).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with(LOCK)).collect();
    names.sort();
    names
}

#[test]
fn the_folder_must_be_ours_alone() {
    let (folder, state) = state();
    let mode = fs::metadata(&state.path).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    state.prepare().unwrap();
    fs::set_permissions(&state.path, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(matches!(state.prepare(), Err(Failed::NotPrivate { .. })));
    let link = folder.path().join("link");
    symlink("state", &link).unwrap();
    assert!(matches!(State::new(&link).prepare(), Err(Failed::NotPrivate { .. })));
    let missing = State::new(&folder.path().join("a/b")).prepare();
    assert!(matches!(missing, Err(Failed::Io { .. })));
}

#[test]
fn a_snapshot_is_there_when_it_is_kept_and_only_once() {
    let (_folder, state) = state();
    let id = Id::of_request("a");
    let draft = state.draft(&id).unwrap();
    assert_eq!(state.record(&id).unwrap(), None);
    drop(draft);
    assert_eq!(names(&state), [""; 0], "a draft that is given up is removed");

    assert!(make(&state, &id));
    assert_eq!(state.record(&id).unwrap(), Some(record(&id)));
    assert!(state.has_data(&id));
    assert!(!make(&state, &id), "the first one counts");
    assert_eq!(names(&state), [id.as_str()]);

    assert!(state.remove(&id).unwrap());
    assert_eq!(names(&state), [""; 0]);
    assert!(state.remove(&id).unwrap());
}

#[test]
fn a_clone_that_is_read_is_not_removed() {
    let (_folder, state) = state();
    let id = Id::of_request("a");
    make(&state, &id);
    let reader = state.lock_data(&id).unwrap().unwrap();
    let other = state.lock_data(&id).unwrap().unwrap();
    assert!(!state.remove_data(&id).unwrap());
    assert!(!state.remove(&id).unwrap());
    drop((reader, other));
    assert!(state.remove_data(&id).unwrap());
    assert!(!state.has_data(&id));
    assert!(state.lock_data(&id).unwrap().is_none());
    assert!(state.record(&id).unwrap().is_some(), "the record stays");
}

#[test]
fn one_upload_at_a_time_even_over_processes() {
    let (_folder, state) = state();
    let id = Id::of_request("a");
    assert!(state.lock_upload(&id).is_err());
    make(&state, &id);
    let lock = state.lock_upload(&id).unwrap().unwrap();
    assert!(state.lock_upload(&id).unwrap().is_none());
    drop(lock);
    assert!(state.lock_upload(&id).unwrap().is_some());
}

#[test]
fn leftovers_are_swept_when_nobody_is_at_work() {
    let (_folder, state) = state();
    let (id, uploaded) = (Id::of_request("a"), Id::of_request("b"));
    make(&state, &id);
    make(&state, &uploaded);
    let started = Timestamp::UNIX_EPOCH;
    let done = Upload::Done { started, ended: started, bytes: 0 };
    assert!(state.change(&uploaded, |record| record.upload = done.clone()).unwrap());
    for left in [".new-x/data/a", ".gone-y/b"] {
        fs::create_dir_all(state.path.join(left)).unwrap();
    }
    let mut was_alone = false;
    let working = state.share().unwrap();
    state.sweep(true, || was_alone = true).unwrap();
    assert!(!was_alone, "what is being made stays");
    let mut expected = [".new-x", id.as_str(), uploaded.as_str()];
    expected.sort_unstable();
    assert_eq!(names(&state), expected);
    drop(working);

    state.sweep(true, || was_alone = true).unwrap();
    assert!(was_alone && state.has_data(&uploaded));
    state.sweep(false, || {}).unwrap();
    let mut expected = [id.as_str(), uploaded.as_str()];
    expected.sort_unstable();
    assert_eq!(names(&state), expected);
    assert!(state.has_data(&id) && !state.has_data(&uploaded));
}

#[test]
fn a_wish_to_cancel_can_be_told_and_taken_back() {
    let (_folder, state) = state();
    let id = Id::of_request("a");
    state.ask_to_cancel(&id).unwrap();
    assert!(!state.is_asked_to_cancel(&id), "there is no snapshot");
    make(&state, &id);
    state.ask_to_cancel(&id).unwrap();
    assert!(state.is_asked_to_cancel(&id));
    state.forget_cancel(&id).unwrap();
    state.forget_cancel(&id).unwrap();
    assert!(!state.is_asked_to_cancel(&id));
}
