//! The repository itself: who may open it, and how it comes about.

use std::fs;

use bowline_plugin_sdk::{Code, VolumeSnapshotter as _};

use crate::listing::names;
use crate::place::Place;

#[tokio::test]
async fn another_password_does_not_open_it() {
    let mut place = Place::new().await;
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    fs::write(place.path("password"), "another").unwrap();
    place.restart().await;
    let other = place.snapshot("r-2").await.unwrap();
    for error in [
        place.plugin.upload_snapshot(&other).await.unwrap_err(),
        place.restore(&snapshot).await.unwrap_err(),
        place.plugin.delete_snapshot(&snapshot).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    }
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
}

#[tokio::test]
async fn many_who_make_it_at_once_make_one() {
    let place = Place::new().await;
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..4 {
        // Other processes, as far as the plugin can tell.
        let plugin = bowline_plugin_local_volume::Snapshotter::default();
        plugin.init(&place.config).await.unwrap();
        let snapshot = place.snapshot(&format!("r-{number}")).await.unwrap();
        uploads.spawn(async move {
            match plugin.upload_snapshot(&snapshot).await {
                // Somebody else is just at it.
                Err(error) if error.code() == Code::Unavailable => {
                    plugin.upload_snapshot(&snapshot).await
                }
                uploaded => uploaded,
            }
        });
    }
    for uploaded in uploads.join_all().await {
        uploaded.unwrap();
    }
    assert_eq!(names(&place.path("repository/keys")).len(), 1);
    assert_eq!(names(&place.path("repository/snapshots")).len(), 4);
}

#[tokio::test]
async fn one_that_was_made_by_half_is_made_again_after_a_while() {
    let place = Place::new().await;
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let config = place.path("repository/config");
    let bytes = fs::read(&config).unwrap();
    fs::remove_dir_all(place.path("repository")).unwrap();
    fs::create_dir(place.path("repository")).unwrap();
    fs::write(&config, bytes).unwrap();

    let other = place.snapshot("r-2").await.unwrap();
    let error = place.plugin.upload_snapshot(&other).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_mins(11);
    fs::File::open(&config).unwrap().set_modified(long_ago).unwrap();
    place.plugin.upload_snapshot(&other).await.unwrap();
    place.restore(&other).await.unwrap();
}

#[tokio::test]
async fn damage_is_told_and_nothing_of_it_is_restored() {
    let place = Place::new().await;
    fs::write(place.volume().join("file"), crate::sample::noise(3_000_000, 1)).unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let data = place.path("repository/data");
    let mut damaged = 0;
    for folder in names(&data) {
        for pack in names(&data.join(&folder)) {
            let path = data.join(&folder).join(pack);
            let mut bytes = fs::read(&path).unwrap();
            if bytes.len() > 1_000_000 {
                bytes[500_000] ^= 1;
                fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let error = place.restore(&snapshot).await.unwrap_err();
    assert!(error.message().contains("the repository"), "{error}");
    assert_eq!(names(&place.path("root")), [".bowline-snapshots", "vol"]);
}
