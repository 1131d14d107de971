use std::os::unix::fs::{PermissionsExt as _, symlink};

use bowline_plugin_sdk::jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::record::UploadRecord;
use crate::tree::clone::{CloneMethod, CloneSummary};

fn state() -> (TempDir, State) {
    let folder = tempfile::tempdir().unwrap();
    let state = State::new(&folder.path().join("state"));
    state.prepare().unwrap();
    (folder, state)
}

fn record(id: &Id) -> Record {
    let cloned = CloneSummary { method: CloneMethod::Copy, files: 0, copied: 0, bytes: 0 };
    Record::new(id.clone(), "/data/vol", None, Timestamp::UNIX_EPOCH, "boot", cloned)
}

/// A snapshot with a file.
fn create_snapshot(state: &State, id: &Id) -> bool {
    let draft = state.create_draft(id).unwrap();
    fs::create_dir(draft.path.join("data")).unwrap();
    fs::write(draft.path.join("data/file"), "").unwrap();
    state.publish_draft(draft, &record(id)).unwrap()
}

fn names(state: &State) -> Vec<String> {
    let entries = fs::read_dir(&state.path).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with(LOCK_FILE)).collect();
    names.sort();
    names
}

#[test]
fn state_folder_must_be_private() {
    let (folder, state) = state();
    let mode = fs::metadata(&state.path).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    state.prepare().unwrap();
    fs::set_permissions(&state.path, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(matches!(state.prepare(), Err(StateError::NotPrivate { .. })));
    let link = folder.path().join("link");
    symlink("state", &link).unwrap();
    assert!(matches!(State::new(&link).prepare(), Err(StateError::NotPrivate { .. })));
    let missing = State::new(&folder.path().join("a/b")).prepare();
    assert!(matches!(missing, Err(StateError::Io { .. })));
}

#[test]
fn snapshot_exists_once_published_and_only_once() {
    let (_folder, state) = state();
    let id = Id::from_request("a");
    let draft = state.create_draft(&id).unwrap();
    assert_eq!(state.record(&id).unwrap(), None);
    drop(draft);
    assert_eq!(names(&state), [""; 0], "a draft that is given up is removed");

    assert!(create_snapshot(&state, &id));
    assert_eq!(state.record(&id).unwrap(), Some(record(&id)));
    assert!(state.has_data(&id));
    assert!(!create_snapshot(&state, &id), "the first one counts");
    assert_eq!(names(&state), [id.as_str()]);

    assert!(state.remove(&id).unwrap());
    assert_eq!(names(&state), [""; 0]);
    assert!(state.remove(&id).unwrap());
}

#[test]
fn clone_being_read_is_not_removed() {
    let (_folder, state) = state();
    let id = Id::from_request("a");
    create_snapshot(&state, &id);
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
fn one_upload_at_a_time_across_processes() {
    let (_folder, state) = state();
    let id = Id::from_request("a");
    assert!(state.lock_upload(&id).is_err());
    create_snapshot(&state, &id);
    let lock = state.lock_upload(&id).unwrap().unwrap();
    assert!(state.lock_upload(&id).unwrap().is_none());
    drop(lock);
    assert!(state.lock_upload(&id).unwrap().is_some());
}

#[test]
fn leftovers_are_removed_when_the_folder_is_unlocked() {
    let (_folder, state) = state();
    let (id, uploaded) = (Id::from_request("a"), Id::from_request("b"));
    create_snapshot(&state, &id);
    create_snapshot(&state, &uploaded);
    let started = Timestamp::UNIX_EPOCH;
    let done = UploadRecord::Done { started, ended: started, bytes: 0 };
    assert!(state.change_record(&uploaded, |record| record.upload = done.clone()).unwrap());
    for leftover in [".new-x/data/a", ".gone-y/b"] {
        fs::create_dir_all(state.path.join(leftover)).unwrap();
    }
    let mut was_exclusive = false;
    let working = state.lock_shared().unwrap();
    state.remove_leftovers(true, || was_exclusive = true).unwrap();
    assert!(!was_exclusive, "what is being made stays");
    let mut expected = [".new-x", id.as_str(), uploaded.as_str()];
    expected.sort_unstable();
    assert_eq!(names(&state), expected);
    drop(working);

    state.remove_leftovers(true, || was_exclusive = true).unwrap();
    assert!(was_exclusive && state.has_data(&uploaded));
    state.remove_leftovers(false, || {}).unwrap();
    let mut expected = [id.as_str(), uploaded.as_str()];
    expected.sort_unstable();
    assert_eq!(names(&state), expected);
    assert!(state.has_data(&id) && !state.has_data(&uploaded));
}

#[test]
fn cancel_request_can_be_set_and_cleared() {
    let (_folder, state) = state();
    let id = Id::from_request("a");
    state.request_cancel(&id).unwrap();
    assert!(!state.is_cancel_requested(&id), "no snapshot was created");
    create_snapshot(&state, &id);
    state.request_cancel(&id).unwrap();
    assert!(state.is_cancel_requested(&id));
    state.clear_cancel_request(&id).unwrap();
    state.clear_cancel_request(&id).unwrap();
    assert!(!state.is_cancel_requested(&id));
}
