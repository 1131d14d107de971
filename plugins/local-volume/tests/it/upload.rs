//! The second stage: canceled, done again, done by two at once.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_plugin_sdk::{Code, SnapshotId, State, VolumeSnapshotter as _};

use crate::listing::{self, assert_same, names};
use crate::place::Place;
use crate::sample;
use crate::stages::until;

/// Enough to be in the middle of it for a while.
pub(crate) fn fill(volume: &Path) {
    for number in 0..40 {
        fs::write(volume.join(format!("{number:02}")), sample::noise(2_000_000, number)).unwrap();
    }
}

/// Waits until an upload is in the middle.
async fn in_the_middle(place: &Place, snapshot: &SnapshotId) {
    let wait = async {
        loop {
            let progress = place.plugin.progress(snapshot).await.unwrap();
            assert!(progress.done <= progress.total, "{progress:?}");
            if progress.state == State::Running && progress.done > 0 {
                assert_eq!((progress.total, &*progress.units), (80_000_000, "Bytes"));
                assert!(progress.done < progress.total, "it was too fast for the test");
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), wait).await.expect("it does not begin");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_can_be_canceled_and_done_again() {
    let mut place = Place::new().await;
    fill(&place.volume());
    let before = listing::of(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    let (uploaded, took) = tokio::join!(place.plugin.upload_snapshot(&snapshot), async {
        in_the_middle(&place, &snapshot).await;
        let began = Instant::now();
        place.plugin.cancel(&snapshot).await.unwrap();
        until(|| place.record_of(&snapshot)["upload"]["state"] == "failed").await;
        began.elapsed()
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
    assert!(took < Duration::from_secs(2), "it took {took:?} to stop");
    assert_eq!(names(&place.path("repository/snapshots")), [""; 0], "no part counts as a snapshot");
    for _ in 0..2 {
        let progress = place.plugin.progress(&snapshot).await.unwrap();
        assert_eq!(progress.state, State::Failed("canceled".to_owned()));
        place.restart().await;
    }
    place.plugin.cancel(&snapshot).await.unwrap();

    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    place.plugin.cancel(&snapshot).await.unwrap();
    assert_eq!(place.plugin.progress(&snapshot).await.unwrap().state, State::Succeeded);
    let made = place.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&made), &before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_keeps_to_its_limit_and_can_be_canceled_all_the_same() {
    let place = Place::with(&[("uploadLimit", "1000000")]).await;
    // Many files are read by many threads, which share the limit.
    for number in 0..20 {
        fs::write(place.volume().join(number.to_string()), sample::noise(100_000, number)).unwrap();
    }
    let snapshot = place.snapshot("r-1").await.unwrap();
    let began = Instant::now();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(1900), "{:?}", began.elapsed());

    let place = Place::with(&[("uploadLimit", "1000")]).await;
    fill(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    let (uploaded, ()) = tokio::join!(place.plugin.upload_snapshot(&snapshot), async {
        until(|| place.record_of(&snapshot)["upload"]["state"] == "begun").await;
        place.plugin.cancel(&snapshot).await.unwrap();
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_calls_at_once_upload_once_and_both_learn_the_end() {
    let place = Place::new().await;
    fill(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    let plugin = &place.plugin;
    let (first, second, ()) =
        tokio::join!(plugin.upload_snapshot(&snapshot), plugin.upload_snapshot(&snapshot), async {
            in_the_middle(&place, &snapshot).await;
        });
    first.unwrap();
    second.unwrap();
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
    // All was read once.
    assert_eq!(plugin.progress(&snapshot).await.unwrap().done, 80_000_000);

    let began = Instant::now();
    plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "it is there already");
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_does_not_end_the_upload() {
    let place = Place::new().await;
    fill(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    {
        let mut call = Box::pin(place.plugin.upload_snapshot(&snapshot));
        tokio::select! {
            biased;
            _ = &mut call => panic!("it was too fast for the test"),
            () = in_the_middle(&place, &snapshot) => {}
        }
    }
    until(|| place.record_of(&snapshot)["upload"]["state"] == "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_cancels_but_does_not_upload_at_the_same_time() {
    let place = Place::new().await;
    fill(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    // Shares no memory that matters, only the files.
    let other = bowline_plugin_local_volume::Snapshotter::default();
    other.init(&place.config).await.unwrap();
    let (uploaded, ()) = tokio::join!(place.plugin.upload_snapshot(&snapshot), async {
        in_the_middle(&place, &snapshot).await;
        let error = other.upload_snapshot(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(other.progress(&snapshot).await.unwrap().state, State::Running);
        other.cancel(&snapshot).await.unwrap();
    });
    assert_eq!(uploaded.unwrap_err().message(), "canceled");
    other.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_ends_an_upload() {
    let place = Place::new().await;
    fill(&place.volume());
    for other_process in [false, true] {
        let snapshot = place.snapshot("r-1").await.unwrap();
        let other = bowline_plugin_local_volume::Snapshotter::default();
        other.init(&place.config).await.unwrap();
        let deleter = if other_process { &other } else { &place.plugin };
        let (uploaded, ()) = tokio::join!(place.plugin.upload_snapshot(&snapshot), async {
            in_the_middle(&place, &snapshot).await;
            deleter.delete_snapshot(&snapshot).await.unwrap();
        });
        assert_eq!(uploaded.unwrap_err().message(), "canceled");
        until(|| names(&place.state()).is_empty()).await;
        assert_eq!(names(&place.path("repository/snapshots")), [""; 0]);
    }
}

#[tokio::test]
async fn an_upload_that_was_interrupted_is_told_and_done_again() {
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    let path = place.state().join(snapshot.as_str()).join("record.json");
    let mut record = place.record_of(&snapshot);
    record["upload"] = serde_json::json!({"state": "begun", "started": "2026-11-01T00:00:00Z"});
    fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    place.restart().await;
    // A server that asks before it calls again must not wait for what nobody does.
    let progress = place.plugin.progress(&snapshot).await.unwrap();
    assert_eq!(progress.state, State::Succeeded);
    assert!(progress.description.ends_with("can be done again"), "{progress:?}");
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn an_upload_whose_end_was_not_noted_is_found_in_the_repository() {
    let mut place = Place::with(&[("keepLocal", "true")]).await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    let path = place.state().join(snapshot.as_str()).join("record.json");
    until(|| place.record_of(&snapshot)["isOnDisk"] == true).await;
    let before = fs::read(&path).unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    fs::write(&path, before).unwrap();
    place.restart().await;
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
}

#[tokio::test]
async fn what_was_uploaded_before_is_not_uploaded_again() {
    let place = Place::new().await;
    let size = |place: &Place| -> u64 {
        let mut total = 0;
        for (path, _) in listing::of(&place.path("repository/data")) {
            let found = fs::metadata(place.path("repository/data").join(path)).unwrap();
            total += if found.is_file() { found.len() } else { 0 };
        }
        total
    };
    fs::write(place.volume().join("large"), sample::noise(8_000_000, 1)).unwrap();
    fs::write(place.volume().join("text"), "compressible ".repeat(100_000)).unwrap();
    let first = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&first).await.unwrap();
    let once = size(&place);
    assert!((8_000_000..8_300_000).contains(&once), "{once}");
    fs::write(place.volume().join("small"), "new").unwrap();
    fs::rename(place.volume().join("large"), place.volume().join("moved")).unwrap();
    let second = place.snapshot("r-2").await.unwrap();
    place.plugin.upload_snapshot(&second).await.unwrap();
    let twice = size(&place);
    assert!(twice - once < 20_000, "{}", twice - once);
}

#[tokio::test]
async fn what_cannot_be_uploaded_whole_is_not_uploaded_at_all() {
    let place = Place::new().await;
    fs::write(place.volume().join("good"), "content").unwrap();
    let bad = place.volume().join("bad\nfile");
    fs::write(&bad, "content").unwrap();
    let name = &b"user.\xff"[..];
    rustix::fs::lsetxattr(&bad, name, b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    let error = place.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().starts_with(r#"cannot upload "bad\nfile": "#), "{error}");
    assert!(error.message().contains("is no UTF-8"), "{error}");
    assert_eq!(names(&place.path("repository/snapshots")), [""; 0]);
    assert!(place.clone_of(&snapshot).exists());
    assert_same(
        &listing::of(&place.restore(&snapshot).await.unwrap()),
        &listing::of(&place.volume()),
    );
}
