//! The repository: access, and initialization.

use std::fs;

use bowline_plugin_sdk::{Code, VolumeSnapshotter as _};

use crate::listing::names;
use crate::test_env::TestEnv;

#[tokio::test]
async fn wrong_password_does_not_open_the_repository() {
    let mut env = TestEnv::new().await;
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    fs::write(env.path("password"), "another").unwrap();
    env.restart().await;
    let other = env.snapshot("r-2").await.unwrap();
    for error in [
        env.plugin.upload_snapshot(&other).await.unwrap_err(),
        env.restore(&snapshot).await.unwrap_err(),
        env.plugin.delete_snapshot(&snapshot).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    }
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
}

#[tokio::test]
async fn concurrent_inits_create_one_repository() {
    let env = TestEnv::new().await;
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..4 {
        // Other processes, as far as the plugin can tell.
        let plugin = bowline_plugin_local_volume::Snapshotter::default();
        plugin.init(&env.config).await.unwrap();
        let snapshot = env.snapshot(&format!("r-{number}")).await.unwrap();
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
    assert_eq!(names(&env.path("repository/keys")).len(), 1);
    assert_eq!(names(&env.path("repository/snapshots")).len(), 4);
}

#[tokio::test]
async fn half_initialized_repository_is_reinitialized_later() {
    let env = TestEnv::new().await;
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let config = env.path("repository/config");
    let bytes = fs::read(&config).unwrap();
    fs::remove_dir_all(env.path("repository")).unwrap();
    fs::create_dir(env.path("repository")).unwrap();
    fs::write(&config, bytes).unwrap();

    let other = env.snapshot("r-2").await.unwrap();
    let error = env.plugin.upload_snapshot(&other).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_mins(11);
    fs::File::open(&config).unwrap().set_modified(long_ago).unwrap();
    env.plugin.upload_snapshot(&other).await.unwrap();
    env.restore(&other).await.unwrap();
}

#[tokio::test]
async fn damaged_repository_is_reported_and_not_restored() {
    let env = TestEnv::new().await;
    fs::write(env.volume().join("file"), crate::sample::pseudo_random_bytes(3_000_000, 1)).unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let data = env.path("repository/data");
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
    let error = env.restore(&snapshot).await.unwrap_err();
    assert!(error.message().contains("the repository"), "{error}");
    assert_eq!(names(&env.path("root")), [".bowline-snapshots", "vol"]);
}
