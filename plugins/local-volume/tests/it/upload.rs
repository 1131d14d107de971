//! The second stage: canceled, repeated, and run by two callers at once.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_plugin_sdk::{Code, SnapshotId, State, VolumeSnapshotter as _};
use bowline_testbed::eventually;

use crate::listing::{self, assert_same, names};
use crate::sample;
use crate::stages::wait_until;
use crate::test_env::TestEnv;

/// Enough to be in the middle of it for a while.
pub(crate) fn fill_volume(volume: &Path) {
    for number in 0..40 {
        fs::write(
            volume.join(format!("{number:02}")),
            sample::pseudo_random_bytes(2_000_000, number),
        )
        .unwrap();
    }
}

/// Waits until an upload is in the middle.
async fn wait_for_partial_upload(env: &TestEnv, snapshot: &SnapshotId) {
    eventually("the upload has begun", Duration::from_mins(1), async || {
        let progress = env.plugin.progress(snapshot).await.unwrap();
        assert!(progress.done <= progress.total, "{progress:?}");
        if progress.state != State::Running || progress.done == 0 {
            return false;
        }
        assert_eq!((progress.total, &*progress.units), (80_000_000, "Bytes"));
        assert!(progress.done < progress.total, "it was too fast for the test");
        true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_can_be_canceled_and_repeated() {
    let mut env = TestEnv::new().await;
    fill_volume(&env.volume());
    let before = listing::of(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    let (uploaded, took) = tokio::join!(env.plugin.upload_snapshot(&snapshot), async {
        wait_for_partial_upload(&env, &snapshot).await;
        let began = Instant::now();
        env.plugin.cancel(&snapshot).await.unwrap();
        wait_until("the upload has failed", || {
            env.record_of(&snapshot)["upload"]["state"] == "failed"
        })
        .await;
        began.elapsed()
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
    assert!(took < Duration::from_secs(2), "it took {took:?} to stop");
    assert_eq!(names(&env.path("repository/snapshots")), [""; 0], "no part counts as a snapshot");
    for _ in 0..2 {
        let progress = env.plugin.progress(&snapshot).await.unwrap();
        assert_eq!(progress.state, State::Failed("canceled".to_owned()));
        env.restart().await;
    }
    env.plugin.cancel(&snapshot).await.unwrap();

    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    env.plugin.cancel(&snapshot).await.unwrap();
    assert_eq!(env.plugin.progress(&snapshot).await.unwrap().state, State::Succeeded);
    let restored = env.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&restored), &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limited_upload_can_be_canceled() {
    let env = TestEnv::with(&[("uploadLimit", "1000000")]).await;
    // Many files are read by many threads, which share the limit.
    for number in 0..20 {
        fs::write(
            env.volume().join(number.to_string()),
            sample::pseudo_random_bytes(100_000, number),
        )
        .unwrap();
    }
    let snapshot = env.snapshot("r-1").await.unwrap();
    let began = Instant::now();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(1900), "{:?}", began.elapsed());

    let env = TestEnv::with(&[("uploadLimit", "1000")]).await;
    fill_volume(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    let (uploaded, ()) = tokio::join!(env.plugin.upload_snapshot(&snapshot), async {
        wait_until("the upload has begun", || {
            env.record_of(&snapshot)["upload"]["state"] == "begun"
        })
        .await;
        env.plugin.cancel(&snapshot).await.unwrap();
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_calls_share_one_upload_and_its_outcome() {
    let env = TestEnv::new().await;
    fill_volume(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    let plugin = &env.plugin;
    let (first, second, ()) =
        tokio::join!(plugin.upload_snapshot(&snapshot), plugin.upload_snapshot(&snapshot), async {
            wait_for_partial_upload(&env, &snapshot).await;
        });
    first.unwrap();
    second.unwrap();
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
    // All was read once.
    assert_eq!(plugin.progress(&snapshot).await.unwrap().done, 80_000_000);

    let began = Instant::now();
    plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "it is there already");
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_call_does_not_end_the_upload() {
    let env = TestEnv::new().await;
    fill_volume(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    {
        let mut call = Box::pin(env.plugin.upload_snapshot(&snapshot));
        tokio::select! {
            biased;
            _ = &mut call => panic!("it was too fast for the test"),
            () = wait_for_partial_upload(&env, &snapshot) => {}
        }
    }
    wait_until("the upload has ended", || env.record_of(&snapshot)["upload"]["state"] == "done")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_process_can_cancel_but_not_upload_concurrently() {
    let env = TestEnv::new().await;
    fill_volume(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    // Shares no memory that matters, only the files.
    let other = bowline_plugin_local_volume::Snapshotter::default();
    other.init(&env.config).await.unwrap();
    let (uploaded, ()) = tokio::join!(env.plugin.upload_snapshot(&snapshot), async {
        wait_for_partial_upload(&env, &snapshot).await;
        let error = other.upload_snapshot(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(other.progress(&snapshot).await.unwrap().state, State::Running);
        other.cancel(&snapshot).await.unwrap();
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
    other.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_ends_a_running_upload() {
    let env = TestEnv::new().await;
    fill_volume(&env.volume());
    for other_process in [false, true] {
        let snapshot = env.snapshot("r-1").await.unwrap();
        let other = bowline_plugin_local_volume::Snapshotter::default();
        other.init(&env.config).await.unwrap();
        let deleter = if other_process { &other } else { &env.plugin };
        let (uploaded, ()) = tokio::join!(env.plugin.upload_snapshot(&snapshot), async {
            wait_for_partial_upload(&env, &snapshot).await;
            deleter.delete_snapshot(&snapshot).await.unwrap();
        });
        assert_eq!(uploaded.unwrap_err().message(), "canceled");
        wait_until("nothing remains", || names(&env.state()).is_empty()).await;
        assert_eq!(names(&env.path("repository/snapshots")), [""; 0]);
    }
}

#[tokio::test]
async fn interrupted_upload_is_reported_and_repeated() {
    let mut env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    let path = env.state().join(snapshot.as_str()).join("record.json");
    let mut record = env.record_of(&snapshot);
    record["upload"] = serde_json::json!({"state": "begun", "started": "2026-11-01T00:00:00Z"});
    fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    env.restart().await;
    // A server that asks before it calls again must not wait for what nobody does.
    let progress = env.plugin.progress(&snapshot).await.unwrap();
    assert_eq!(progress.state, State::Succeeded);
    assert!(progress.description.ends_with("can be repeated"), "{progress:?}");
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn unrecorded_upload_is_found_in_the_repository() {
    let mut env = TestEnv::with(&[("keepLocal", "true")]).await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    let path = env.state().join(snapshot.as_str()).join("record.json");
    wait_until("the record is on disk", || env.record_of(&snapshot)["isOnDisk"] == true).await;
    let before = fs::read(&path).unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    fs::write(&path, before).unwrap();
    env.restart().await;
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
}

#[tokio::test]
async fn unchanged_data_is_not_uploaded_again() {
    let env = TestEnv::new().await;
    let size = |env: &TestEnv| -> u64 {
        let mut total = 0;
        for (path, _) in listing::of(&env.path("repository/data")) {
            let found = fs::metadata(env.path("repository/data").join(path)).unwrap();
            total += if found.is_file() { found.len() } else { 0 };
        }
        total
    };
    fs::write(env.volume().join("large"), sample::pseudo_random_bytes(8_000_000, 1)).unwrap();
    fs::write(env.volume().join("text"), "compressible ".repeat(100_000)).unwrap();
    let first = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&first).await.unwrap();
    let once = size(&env);
    assert!((8_000_000..8_300_000).contains(&once), "{once}");
    fs::write(env.volume().join("small"), "new").unwrap();
    fs::rename(env.volume().join("large"), env.volume().join("moved")).unwrap();
    let second = env.snapshot("r-2").await.unwrap();
    env.plugin.upload_snapshot(&second).await.unwrap();
    let twice = size(&env);
    assert!(twice - once < 20_000, "{}", twice - once);
}

#[tokio::test]
async fn incomplete_upload_is_discarded() {
    let env = TestEnv::new().await;
    fs::write(env.volume().join("good"), "content").unwrap();
    let bad = env.volume().join("bad\nfile");
    fs::write(&bad, "content").unwrap();
    let name = &b"user.\xff"[..];
    rustix::fs::lsetxattr(&bad, name, b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    let error = env.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().starts_with(r#"cannot upload "bad\nfile": "#), "{error}");
    assert!(error.message().contains("is not valid UTF-8"), "{error}");
    assert_eq!(names(&env.path("repository/snapshots")), [""; 0]);
    assert!(env.clone_of(&snapshot).exists());
    assert_same(&listing::of(&env.restore(&snapshot).await.unwrap()), &listing::of(&env.volume()));
}
