//! Disks without room.

use std::fs;

use bowline_plugin_sdk::{Code, State, VolumeSnapshotter as _};

use crate::filesystems::Mounted;
use crate::listing::{self, assert_same, names};
use crate::place::Place;
use crate::sample;

#[tokio::test]
async fn a_clone_that_does_not_fit_is_told_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let _small = Mounted::tmpfs(folder.path(), "2m");
    let state = folder.path().join("state");
    let place = Place::with(&[("stateDir", state.to_str().unwrap())]).await;
    fs::write(place.volume().join("a"), sample::noise(500_000, 1)).unwrap();
    fs::write(place.volume().join("large file"), sample::noise(5_000_000, 2)).unwrap();
    let error = place.snapshot("r-1").await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("cannot clone \"large file\": No space left"), "{error}");
    assert_eq!(names(&state), [""; 0]);

    fs::remove_file(place.volume().join("large file")).unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    assert_same(&listing::of(&place.clone_of(&snapshot)), &listing::of(&place.volume()));
}

#[tokio::test]
async fn a_repository_without_room_is_told_and_can_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let small = Mounted::tmpfs(folder.path(), "3m");
    let repository = folder.path().join("repository");
    let place = Place::with(&[("repository", repository.to_str().unwrap())]).await;
    fs::write(place.volume().join("file"), sample::noise(20_000_000, 1)).unwrap();
    let before = listing::of(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    let error = place.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().contains("No space left"), "{error}");
    assert!(error.message().contains("cannot write data/"), "{error}");
    let State::Failed(told) = place.plugin.progress(&snapshot).await.unwrap().state else {
        panic!("it has failed");
    };
    assert_eq!(told, error.message());
    assert!(place.clone_of(&snapshot).exists());

    small.resize("64m");
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_same(&listing::of(&place.restore(&snapshot).await.unwrap()), &before);
}

#[tokio::test]
async fn a_volume_that_does_not_fit_is_told_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), sample::noise(5_000_000, 1)).unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    let _small = Mounted::tmpfs(&root, "2m");
    let state = place.state().to_str().unwrap().to_owned();
    place.config.insert("roots".to_owned(), root.to_str().unwrap().to_owned());
    place.config.insert("stateDir".to_owned(), state);
    place.restart().await;
    for is_uploaded in [false, true] {
        if is_uploaded {
            place.plugin.upload_snapshot(&snapshot).await.unwrap();
        }
        let error = place.restore(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        assert!(error.message().contains("\"file\""), "{error}");
        assert_eq!(names(&root), [""; 0]);
    }
}
