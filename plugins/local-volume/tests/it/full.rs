//! Full disks.

use std::fs;

use bowline_plugin_sdk::{Code, State, VolumeSnapshotter as _};

use crate::filesystems::MountedFilesystem;
use crate::listing::{self, assert_same, names};
use crate::sample;
use crate::test_env::TestEnv;

#[tokio::test]
async fn clone_without_space_is_reported_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let _small = MountedFilesystem::tmpfs(folder.path(), "2m");
    let state = folder.path().join("state");
    let env = TestEnv::with(&[("stateDir", state.to_str().unwrap())]).await;
    fs::write(env.volume().join("a"), sample::pseudo_random_bytes(500_000, 1)).unwrap();
    fs::write(env.volume().join("large file"), sample::pseudo_random_bytes(5_000_000, 2)).unwrap();
    let error = env.snapshot("r-1").await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("cannot clone \"large file\": No space left"), "{error}");
    assert_eq!(names(&state), [""; 0]);

    fs::remove_file(env.volume().join("large file")).unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    assert_same(&listing::of(&env.clone_of(&snapshot)), &listing::of(&env.volume()));
}

#[tokio::test]
async fn full_repository_is_reported_and_the_upload_can_be_retried() {
    let folder = tempfile::tempdir().unwrap();
    let small = MountedFilesystem::tmpfs(folder.path(), "3m");
    let repository = folder.path().join("repository");
    let env = TestEnv::with(&[("repository", repository.to_str().unwrap())]).await;
    fs::write(env.volume().join("file"), sample::pseudo_random_bytes(20_000_000, 1)).unwrap();
    let before = listing::of(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    let error = env.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().contains("No space left"), "{error}");
    assert!(error.message().contains("cannot write data/"), "{error}");
    let State::Failed(reason) = env.plugin.progress(&snapshot).await.unwrap().state else {
        panic!("it has failed");
    };
    assert_eq!(reason, error.message());
    assert!(env.clone_of(&snapshot).exists());

    small.resize("64m");
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_same(&listing::of(&env.restore(&snapshot).await.unwrap()), &before);
}

#[tokio::test]
async fn volume_without_space_is_reported_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), sample::pseudo_random_bytes(5_000_000, 1)).unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    let _small = MountedFilesystem::tmpfs(&root, "2m");
    let state = env.state().to_str().unwrap().to_owned();
    env.config.insert("roots".to_owned(), root.to_str().unwrap().to_owned());
    env.config.insert("stateDir".to_owned(), state);
    env.restart().await;
    for is_uploaded in [false, true] {
        if is_uploaded {
            env.plugin.upload_snapshot(&snapshot).await.unwrap();
        }
        let error = env.restore(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        assert!(error.message().contains("\"file\""), "{error}");
        assert_eq!(names(&root), [""; 0]);
    }
}
