//! From a volume to a snapshot to another volume.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bowline_plugin_sdk::{Class, Code, SnapshotId, State, VolumeSnapshotter as _};

use crate::listing::{self, assert_same, names};
use crate::place::{Place, id_of, persistent_volume};
use crate::sample;

#[tokio::test]
async fn everything_in_a_volume_survives_by_clone_and_by_repository() {
    let place = Place::new().await;
    sample::make(&place.volume());
    let before = listing::of(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    assert_same(&listing::of(&place.clone_of(&snapshot)), &before);
    // The point in time is fixed.
    fs::write(place.volume().join("file"), "changed").unwrap();
    fs::write(place.volume().join("later"), "").unwrap();

    let of_clone = place.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&of_clone), &before);

    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(!place.clone_of(&snapshot).exists(), "the clone is not needed any more");
    let of_repository = place.restore(&snapshot).await.unwrap();
    assert_ne!(of_clone, of_repository);
    assert_same(&listing::of(&of_repository), &before);

    for made in [&of_clone, &of_repository] {
        let blocks = fs::metadata(made.join(sample::SPARSE)).unwrap().blocks();
        assert!(blocks < 200, "{made:?}: a sparse file has {blocks} blocks");
    }
    // Nothing is left beside the volumes.
    let volumes: Vec<String> = names(&place.path("root"))
        .into_iter()
        .filter(|name| !name.starts_with("restored-"))
        .collect();
    assert_eq!(volumes, [".bowline-snapshots", "vol"]);
}

#[tokio::test]
async fn an_empty_volume_survives() {
    let place = Place::new().await;
    let before = listing::of(&place.volume());
    let snapshot = place.snapshot("").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let made = place.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&made), &before);
}

#[tokio::test]
async fn the_same_request_is_the_same_snapshot_at_any_time() {
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), "first").unwrap();
    let (first, second, third) =
        tokio::join!(place.snapshot("r-1"), place.snapshot("r-1"), place.snapshot("r-1"));
    let first = first.unwrap();
    assert_eq!((second.unwrap(), third.unwrap()), (first.clone(), first.clone()));
    assert_eq!(names(&place.state()), [first.as_str()]);

    fs::write(place.volume().join("file"), "second").unwrap();
    assert_eq!(place.snapshot("r-1").await.unwrap(), first);
    let clone = place.clone_of(&first).join("file");
    assert_eq!(fs::read_to_string(&clone).unwrap(), "first");
    place.restart().await;
    assert_eq!(place.snapshot("r-1").await.unwrap(), first);
    place.plugin.upload_snapshot(&first).await.unwrap();
    assert_eq!(place.snapshot("r-1").await.unwrap(), first);

    assert_ne!(place.snapshot("r-2").await.unwrap(), first);
    assert_ne!(place.snapshot("").await.unwrap(), place.snapshot("").await.unwrap());

    // Never that of another volume.
    fs::create_dir(place.path("root/other")).unwrap();
    let error = place.snapshot_of(&place.path("root/other"), "r-1").await.unwrap_err();
    assert!(error.message().contains("the same request is of volume"), "{error}");
}

#[tokio::test]
async fn progress_tells_of_the_creation_and_then_of_the_upload() {
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    let created = place.plugin.progress(&snapshot).await.unwrap();
    assert_eq!(created.state, State::Succeeded);
    assert_eq!((created.done, created.total, &*created.units), (7, 7, "Bytes"));
    let method = place.record_of(&snapshot)["cloned"]["method"].as_str().unwrap().to_owned();
    let words = match method.as_str() {
        "copy" => "copied plainly: 1 files, 7 bytes",
        "reflink" => "cloned by copy-on-write: 1 files, 7 bytes",
        other => panic!("{other}"),
    };
    assert_eq!(created.description, words);

    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    for _ in 0..2 {
        let uploaded = place.plugin.progress(&snapshot).await.unwrap();
        assert_eq!(uploaded.state, State::Succeeded);
        assert_eq!((uploaded.done, uploaded.total), (7, 7));
        assert_eq!(uploaded.description, "uploaded");
        place.restart().await;
    }
}

#[tokio::test]
async fn deleting_leaves_nothing_and_may_be_done_twice() {
    let place = Place::new().await;
    fs::write(place.volume().join("file"), sample::noise(100_000, 1)).unwrap();
    let local = place.snapshot("r-1").await.unwrap();
    let uploaded = place.snapshot("r-2").await.unwrap();
    place.plugin.upload_snapshot(&uploaded).await.unwrap();
    for snapshot in [&local, &uploaded] {
        for _ in 0..2 {
            place.plugin.delete_snapshot(snapshot).await.unwrap();
        }
        let error = place.plugin.progress(snapshot).await.unwrap_err();
        assert_eq!(error.class(), Class::Permanent, "{error}");
        assert_eq!(place.restore(snapshot).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(names(&place.state()), [""; 0]);
    assert_eq!(names(&place.path("repository/snapshots")), [""; 0]);
    assert_eq!(names(&place.path("root")), [".bowline-snapshots", "vol"]);
}

#[tokio::test]
async fn a_snapshot_can_be_restored_and_deleted_where_its_record_is_not() {
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    // As on a new node after the loss of the old one.
    fs::remove_dir_all(place.state()).unwrap();
    place.restart().await;
    let made = place.restore(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "content");
    place.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(place.restore(&snapshot).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_clone_is_kept_if_that_is_wanted() {
    let mut place = Place::with(&[("keepLocal", "true")]).await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(place.clone_of(&snapshot).exists());
    // It is used even if the repository is gone.
    fs::rename(place.path("repository"), place.path("away")).unwrap();
    let made = place.restore(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "content");
    fs::rename(place.path("away"), place.path("repository")).unwrap();

    place.config.remove("keepLocal");
    place.restart().await;
    until(|| !place.clone_of(&snapshot).exists()).await;
}

#[tokio::test]
async fn without_a_repository_there_is_nothing_to_upload() {
    let mut place = Place::new().await;
    place.config.remove("repository");
    place.restart().await;
    let snapshot = place.snapshot("r-1").await.unwrap();
    let error = place.plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert_eq!(error.class(), Class::Unimplemented);
    place.restore(&snapshot).await.unwrap();
    place.plugin.delete_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn a_volume_is_found_set_and_found_again() {
    let place = Place::new().await;
    for kind in ["local", "hostPath"] {
        let path = format!("{}/", place.volume().display());
        let item = persistent_volume(kind, &path);
        let volume = place.plugin.get_volume_id(&item).await.unwrap().unwrap();
        assert_eq!(volume, id_of(&place.volume()));
        let info = place.plugin.get_volume_info(&volume, "").await.unwrap();
        assert_eq!((info.volume_type.as_str(), info.iops), ("local", None));

        let snapshot = place.snapshot_of(&place.volume(), kind).await.unwrap();
        let made = id_of(&place.restore(&snapshot).await.unwrap());
        let changed = place.plugin.set_volume_id(&item, &made).await.unwrap();
        assert_eq!(place.plugin.get_volume_id(&changed).await.unwrap(), Some(made));
    }
    let other = persistent_volume("nfs", "/data");
    assert_eq!(place.plugin.get_volume_id(&other).await.unwrap(), None);
    let volume = id_of(&place.volume());
    assert!(place.plugin.set_volume_id(&other, &volume).await.is_err());
}

#[tokio::test]
async fn a_clone_that_may_have_been_lost_with_the_node_is_not_uploaded() {
    let mut place = Place::new().await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    until(|| place.record_of(&snapshot)["isOnDisk"] == true).await;
    let edit = |place: &Place, is_on_disk: bool| {
        let mut record = place.record_of(&snapshot);
        record["boot"] = "another".into();
        record["isOnDisk"] = is_on_disk.into();
        let path = place.state().join(snapshot.as_str()).join("record.json");
        fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    };
    edit(&place, false);
    place.restart().await;
    for error in [
        place.plugin.upload_snapshot(&snapshot).await.unwrap_err(),
        place.snapshot("r-1").await.unwrap_err(),
        place.restore(&snapshot).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.message().contains("the node went down"), "{error}");
    }
    edit(&place, true);
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
}

#[tokio::test]
async fn what_was_left_behind_by_a_kill_is_removed_at_the_next_start() {
    let mut place = Place::new().await;
    let snapshot = place.snapshot("r-1").await.unwrap();
    for left in [".new-lv-x/data/a", ".gone-y/b"] {
        fs::create_dir_all(place.state().join(left)).unwrap();
    }
    fs::create_dir_all(place.path("root/.bowline-restore-z/c")).unwrap();
    place.restart().await;
    until(|| names(&place.state()) == [snapshot.as_str()]).await;
    until(|| names(&place.path("root")) == [".bowline-snapshots", "vol"]).await;
}

#[tokio::test]
async fn a_half_made_snapshot_does_not_count() {
    let place = Place::new().await;
    let snapshot = SnapshotId::new(format!("lv-{}", "0".repeat(32))).unwrap();
    fs::create_dir_all(place.clone_of(&snapshot)).unwrap();
    assert_eq!(place.plugin.progress(&snapshot).await.unwrap_err().class(), Class::Permanent);
    assert_eq!(place.plugin.upload_snapshot(&snapshot).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(place.restore(&snapshot).await.unwrap_err().code(), Code::NotFound);
}

/// Waits for something that happens behind a call.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), wait).await.expect("it takes too long");
}
