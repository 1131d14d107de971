//! From a volume to a snapshot to another volume.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bowline_plugin_sdk::{Class, Code, SnapshotId, State, VolumeSnapshotter as _};

use crate::listing::{self, assert_same, names};
use crate::sample;
use crate::test_env::{TestEnv, id_of, persistent_volume};

#[tokio::test]
async fn volume_round_trips_by_clone_and_by_repository() {
    let env = TestEnv::new().await;
    sample::fill_volume(&env.volume());
    let before = listing::of(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    assert_same(&listing::of(&env.clone_of(&snapshot)), &before);
    // The point in time is fixed.
    fs::write(env.volume().join("file"), "changed").unwrap();
    fs::write(env.volume().join("later"), "").unwrap();

    let of_clone = env.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&of_clone), &before);

    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(!env.clone_of(&snapshot).exists(), "the clone is not needed any more");
    let of_repository = env.restore(&snapshot).await.unwrap();
    assert_ne!(of_clone, of_repository);
    assert_same(&listing::of(&of_repository), &before);

    for restored in [&of_clone, &of_repository] {
        let blocks = fs::metadata(restored.join(sample::SPARSE)).unwrap().blocks();
        assert!(blocks < 200, "{restored:?}: a sparse file has {blocks} blocks");
    }
    // Nothing is left beside the volumes.
    let volumes: Vec<String> = names(&env.path("root"))
        .into_iter()
        .filter(|name| !name.starts_with("restored-"))
        .collect();
    assert_eq!(volumes, [".bowline-snapshots", "vol"]);
}

#[tokio::test]
async fn empty_volume_round_trips() {
    let env = TestEnv::new().await;
    let before = listing::of(&env.volume());
    let snapshot = env.snapshot("").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let restored = env.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&restored), &before);
}

#[tokio::test]
async fn same_request_returns_the_same_snapshot() {
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "first").unwrap();
    let (first, second, third) =
        tokio::join!(env.snapshot("r-1"), env.snapshot("r-1"), env.snapshot("r-1"));
    let first = first.unwrap();
    assert_eq!((second.unwrap(), third.unwrap()), (first.clone(), first.clone()));
    assert_eq!(names(&env.state()), [first.as_str()]);

    fs::write(env.volume().join("file"), "second").unwrap();
    assert_eq!(env.snapshot("r-1").await.unwrap(), first);
    let clone = env.clone_of(&first).join("file");
    assert_eq!(fs::read_to_string(&clone).unwrap(), "first");
    env.restart().await;
    assert_eq!(env.snapshot("r-1").await.unwrap(), first);
    env.plugin.upload_snapshot(&first).await.unwrap();
    assert_eq!(env.snapshot("r-1").await.unwrap(), first);

    assert_ne!(env.snapshot("r-2").await.unwrap(), first);
    assert_ne!(env.snapshot("").await.unwrap(), env.snapshot("").await.unwrap());

    // Never that of another volume.
    fs::create_dir(env.path("root/other")).unwrap();
    let error = env.snapshot_of(&env.path("root/other"), "r-1").await.unwrap_err();
    assert!(error.message().contains("already belongs to a snapshot of volume"), "{error}");
}

#[tokio::test]
async fn progress_reports_creation_then_upload() {
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    let created = env.plugin.progress(&snapshot).await.unwrap();
    assert_eq!(created.state, State::Succeeded);
    assert_eq!((created.done, created.total, &*created.units), (7, 7, "Bytes"));
    let method = env.record_of(&snapshot)["cloned"]["method"].as_str().unwrap().to_owned();
    let expected = match method.as_str() {
        "copy" => "copied: 1 files, 7 bytes",
        "reflink" => "cloned by copy-on-write: 1 files, 7 bytes",
        other => panic!("{other}"),
    };
    assert_eq!(created.description, expected);

    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    for _ in 0..2 {
        let uploaded = env.plugin.progress(&snapshot).await.unwrap();
        assert_eq!(uploaded.state, State::Succeeded);
        assert_eq!((uploaded.done, uploaded.total), (7, 7));
        assert_eq!(uploaded.description, "uploaded");
        env.restart().await;
    }
}

#[tokio::test]
async fn deletion_leaves_nothing_and_is_idempotent() {
    let env = TestEnv::new().await;
    fs::write(env.volume().join("file"), sample::pseudo_random_bytes(100_000, 1)).unwrap();
    let local = env.snapshot("r-1").await.unwrap();
    let uploaded = env.snapshot("r-2").await.unwrap();
    env.plugin.upload_snapshot(&uploaded).await.unwrap();
    for snapshot in [&local, &uploaded] {
        for _ in 0..2 {
            env.plugin.delete_snapshot(snapshot).await.unwrap();
        }
        let error = env.plugin.progress(snapshot).await.unwrap_err();
        assert_eq!(error.class(), Class::Permanent, "{error}");
        assert_eq!(env.restore(snapshot).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(names(&env.state()), [""; 0]);
    assert_eq!(names(&env.path("repository/snapshots")), [""; 0]);
    assert_eq!(names(&env.path("root")), [".bowline-snapshots", "vol"]);
}

#[tokio::test]
async fn snapshot_without_a_local_record_can_be_restored_and_deleted() {
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    // As on a new node after the loss of the old one.
    fs::remove_dir_all(env.state()).unwrap();
    env.restart().await;
    let restored = env.restore(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(restored.join("file")).unwrap(), "content");
    env.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(env.restore(&snapshot).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn clone_is_kept_with_keep_local() {
    let mut env = TestEnv::with(&[("keepLocal", "true")]).await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(env.clone_of(&snapshot).exists());
    // It is used even if the repository is gone.
    fs::rename(env.path("repository"), env.path("away")).unwrap();
    let restored = env.restore(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(restored.join("file")).unwrap(), "content");
    fs::rename(env.path("away"), env.path("repository")).unwrap();

    env.config.remove("keepLocal");
    env.restart().await;
    wait_until("the clone is removed", || !env.clone_of(&snapshot).exists()).await;
}

#[tokio::test]
async fn upload_is_unimplemented_without_a_repository() {
    let mut env = TestEnv::new().await;
    env.config.remove("repository");
    env.restart().await;
    let snapshot = env.snapshot("r-1").await.unwrap();
    let error = env.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert_eq!(error.class(), Class::Unimplemented);
    env.restore(&snapshot).await.unwrap();
    env.plugin.delete_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn volume_id_round_trips_through_the_persistent_volume() {
    let env = TestEnv::new().await;
    for kind in ["local", "hostPath"] {
        let path = format!("{}/", env.volume().display());
        let item = persistent_volume(kind, &path);
        let volume = env.plugin.get_volume_id(&item).await.unwrap().unwrap();
        assert_eq!(volume, id_of(&env.volume()));
        let info = env.plugin.get_volume_info(&volume, "").await.unwrap();
        assert_eq!((info.volume_type.as_str(), info.iops), ("local", None));

        let snapshot = env.snapshot_of(&env.volume(), kind).await.unwrap();
        let restored = id_of(&env.restore(&snapshot).await.unwrap());
        let changed = env.plugin.set_volume_id(&item, &restored).await.unwrap();
        assert_eq!(env.plugin.get_volume_id(&changed).await.unwrap(), Some(restored));
    }
    let other = persistent_volume("nfs", "/data");
    assert_eq!(env.plugin.get_volume_id(&other).await.unwrap(), None);
    let volume = id_of(&env.volume());
    assert!(env.plugin.set_volume_id(&other, &volume).await.is_err());
}

#[tokio::test]
async fn clone_not_synced_before_a_reboot_is_not_uploaded() {
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    wait_until("the record is on disk", || env.record_of(&snapshot)["isOnDisk"] == true).await;
    let edit = |env: &TestEnv, is_on_disk: bool| {
        let mut record = env.record_of(&snapshot);
        record["boot"] = "another".into();
        record["isOnDisk"] = is_on_disk.into();
        let path = env.state().join(snapshot.as_str()).join("record.json");
        fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    };
    edit(&env, false);
    env.restart().await;
    for error in [
        env.plugin.upload_snapshot(&snapshot).await.unwrap_err(),
        env.snapshot("r-1").await.unwrap_err(),
        env.restore(&snapshot).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.message().contains("the node failed"), "{error}");
    }
    edit(&env, true);
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn leftovers_of_a_kill_are_removed_at_the_next_start() {
    let mut env = TestEnv::new().await;
    let snapshot = env.snapshot("r-1").await.unwrap();
    for leftover in [".new-lv-x/data/a", ".gone-y/b"] {
        fs::create_dir_all(env.state().join(leftover)).unwrap();
    }
    fs::create_dir_all(env.path("root/.bowline-restore-z/c")).unwrap();
    env.restart().await;
    wait_until("only the snapshot remains", || names(&env.state()) == [snapshot.as_str()]).await;
    wait_until("only the volume and the directory of snapshots remain", || {
        names(&env.path("root")) == [".bowline-snapshots", "vol"]
    })
    .await;
}

#[tokio::test]
async fn unpublished_snapshot_is_ignored() {
    let env = TestEnv::new().await;
    let snapshot = SnapshotId::new(format!("lv-{}", "0".repeat(32))).unwrap();
    fs::create_dir_all(env.clone_of(&snapshot)).unwrap();
    assert_eq!(env.plugin.progress(&snapshot).await.unwrap_err().class(), Class::Permanent);
    assert_eq!(env.plugin.upload_snapshot(&snapshot).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(env.restore(&snapshot).await.unwrap_err().code(), Code::NotFound);
}

/// Waits for something that happens behind a call.
pub(crate) async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let limit = std::time::Duration::from_mins(1);
    bowline_testbed::eventually(description, limit, async || condition()).await;
}
