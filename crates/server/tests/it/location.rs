use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_api::BackupStorageLocation;
use bowline_testbed::fixture;
use http::Method;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::bed::{World, eventually, filesystem_spec, is_available, is_unavailable, shared};
use crate::fault_injection;

fn message(location: &BackupStorageLocation) -> &str {
    &location.status.as_ref().unwrap().message
}

#[tokio::test]
async fn location_becomes_available_with_its_bucket() {
    let world = World::start("location-bucket").await;
    world.credentials("s3").await;
    world.location("l", world.s3_spec("l")).await;
    let location = world.until("l", is_unavailable).await;
    let expected = "BackupStorageLocation \"l\" is unavailable: ";
    assert!(message(&location).starts_with(expected), "{location:?}");
    assert!(message(&location).contains("does not exist: create it"), "{location:?}");

    shared().s3.create_bucket(&world.bucket("l")).unwrap();
    let location = world.until("l", is_available).await;
    assert_eq!(message(&location), "");
    assert!(location.status.unwrap().last_validation_time.is_some());
}

#[tokio::test]
async fn credentials_are_reread_and_never_leaked() {
    let world = World::start("location-credentials").await;
    shared().s3.create_bucket(&world.bucket("l")).unwrap();
    let id = &shared().s3.credentials().access_key;
    let wrong = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=hunter2\n");
    world.location("l", world.s3_spec("l")).await;
    let location = world.until("l", is_unavailable).await;
    assert!(message(&location).contains("Secret `s3` does not exist"), "{location:?}");

    world.secret("s3", &wrong).await;
    let refused = |location: &BackupStorageLocation| message(location).contains("not accepted");
    let location = world.until("l", refused).await;
    assert!(!message(&location).contains("hunter2"), "{location:?}");

    world.credentials("s3").await;
    world.until("l", is_available).await;

    world.delete::<Secret>("s3").await;
    world.until("l", is_unavailable).await;
}

#[tokio::test]
async fn invalid_location_is_reported() {
    let world = World::start("location-mistakes").await;
    world.credentials("s3").await;
    let change = |pointer: &str, value: Value| {
        let mut spec = world.s3_spec("l");
        *spec.pointer_mut(pointer).unwrap() = value;
        spec
    };
    let certificates = json!({
        "bucket": "b", "caCert": "eA==", "caCertRef": {"name": "s3", "key": "cloud"},
    });
    std::fs::create_dir_all(world.path("root").join("strange/elsewhere")).unwrap();
    std::fs::write(world.path("root").join("strange/elsewhere/file"), "").unwrap();
    for (name, spec, expected) in [
        ("key", change("/credential/key", json!("other")), "the Secret `s3` has no key `other`"),
        (
            "provider",
            change("/provider", json!("gcp")),
            "no object store plugin is installed for provider `gcp`",
        ),
        ("certificates", change("/objectStorage", certificates), "both caCert and caCertRef"),
        ("config", change("/config", json!({"credentialsFile": "/etc/passwd"})), "must not be set"),
        (
            "address",
            change("/config/s3Url", json!("http://169.254.169.254")),
            "does not allow such addresses",
        ),
        ("missing", filesystem_spec("missing"), "missing"),
        ("strange", filesystem_spec("strange"), "invalid top-level directories: [elsewhere]"),
    ] {
        world.location(name, spec).await;
        let location = world.until(name, is_unavailable).await;
        assert!(message(&location).contains(expected), "{name}: {location:?}");
    }
}

#[tokio::test]
async fn location_is_checked_on_spec_changes_only() {
    let hour = std::time::Duration::from_hours(1);
    let world = World::start_with("location-quiet", |options| {
        options.store_validation_frequency = hour;
        options.backup_sync_period = hour;
    })
    .await;
    world.filesystem_location("quiet").await;
    let synced = |location: &BackupStorageLocation| {
        location.status.as_ref().is_some_and(|status| status.last_synced_time.is_some())
    };
    let quiet = world.until("quiet", synced).await;

    // Meanwhile another one is checked again and again, each time because it changed.
    world.location("loud", filesystem_spec("loud")).await;
    world.until("loud", is_unavailable).await;
    std::fs::create_dir(world.path("root").join("other")).unwrap();
    for _ in 0..3 {
        let spec = json!({"spec": {"objectStorage": {"bucket": "other"}}});
        world.patch::<BackupStorageLocation>("loud", spec).await;
        world.until("loud", is_available).await;
        let spec = json!({"spec": {"objectStorage": {"bucket": "loud"}}});
        world.patch::<BackupStorageLocation>("loud", spec).await;
        world.until("loud", is_unavailable).await;
    }
    let after = world.until("quiet", is_available).await;
    assert_eq!(after.metadata.resource_version, quiet.metadata.resource_version);
}

#[tokio::test]
async fn server_marks_the_default_location_if_none_is_marked() {
    let mut world = World::without_server("location-default").await;
    world.location("default", filesystem_spec("a")).await;
    world.run(world.options());
    let is_default = |location: &BackupStorageLocation| location.spec.default;
    let default = world.until("default", is_default).await;

    // Two locations of the same second are ordered by name.
    let created = default.metadata.creation_timestamp.unwrap().0;
    eventually("the next second has begun", async || {
        jiff::Timestamp::now().as_second() > created.as_second()
    })
    .await;
    let mut spec = filesystem_spec("b");
    spec["default"] = json!(true);
    world.location("newer", spec).await;
    world.until("default", |location: &BackupStorageLocation| !location.spec.default).await;
    assert!(world.until("newer", is_unavailable).await.spec.default);
}

#[tokio::test]
async fn failed_list_at_startup_does_not_end_the_server() {
    let mut world = World::without_server("location-late").await;
    world.location("default", filesystem_spec("a")).await;
    let failures = Arc::new(AtomicUsize::new(0));
    let failed = Arc::clone(&failures);
    world.run_through(world.options(), move |client| {
        fault_injection::faulty_client(client, move |method, uri| {
            let query = uri.query().unwrap_or_default();
            let is_plain_list = *method == Method::GET
                && uri.path().ends_with("/backupstoragelocations")
                && !query.contains("watch=")
                && !query.contains("limit=");
            is_plain_list && failed.fetch_add(1, Ordering::Relaxed) < 2
        })
    });
    world.until("default", |location: &BackupStorageLocation| location.spec.default).await;
    assert!(failures.load(Ordering::Relaxed) > 2, "the list was tried again");
    world.until("default", is_unavailable).await;
    world.end().await.unwrap();
}

#[tokio::test]
async fn plugin_receives_credentials_as_a_file() {
    let mut world = World::without_server("location-plugin").await;
    let plugin = fixture::rust_plugins().await.unwrap();
    symlink(plugin, world.path("plugins").join("fixture")).unwrap();
    world.secret("s3", "hunter2").await;
    world.run(world.options());
    let mut spec = filesystem_spec("bucket");
    spec["provider"] = json!("fixture.bowline.io/os");
    spec["config"] = json!({"root": world.path("root")});
    spec["credential"] = json!({"name": "s3", "key": "cloud"});
    std::fs::create_dir(world.path("root").join("bucket")).unwrap();
    world.location("l", spec).await;
    world.until("l", is_available).await;
    let [folder] = &entries(&world.path("scratch"))[..] else { panic!("one private directory") };
    let [file] = &files(folder)[..] else { panic!("one private file") };
    assert_eq!(std::fs::read_to_string(file).unwrap(), "hunter2");

    std::fs::create_dir_all(world.path("root").join("bucket/strange")).unwrap();
    std::fs::write(world.path("root").join("bucket/strange/file"), "").unwrap();
    world.until("l", is_unavailable).await;
    world.delete::<BackupStorageLocation>("l").await;
    // Its credentials are removed at the next check of any location.
    world.location("other", filesystem_spec("other")).await;
    world.until("other", is_unavailable).await;
    assert_eq!(files(folder), Vec::<std::path::PathBuf>::new());
    world.end().await.unwrap();
}

/// Files in a folder, besides the lock of its server.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let is_lock = |path: &std::path::PathBuf| path.file_name().is_some_and(|name| name == ".lock");
    entries(folder).into_iter().filter(|path| !is_lock(path)).collect()
}

fn entries(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn repaired_location_is_rechecked_before_refusing_a_backup() {
    // No other check occurs in time.
    let never = |options: &mut bowline_server::Options| {
        options.store_validation_frequency = std::time::Duration::from_hours(1);
    };
    let world = World::start_with("location-mended", never).await;
    world.location("default", crate::bed::filesystem_spec("default")).await;
    world.until("default", is_unavailable).await;
    let spec = serde_json::json!({"storageLocation": "default", "includedNamespaces": ["none"]});
    let back_up = async |name: &str| {
        let backup = serde_json::json!({"metadata": {"name": name}, "spec": spec});
        world.create::<bowline_api::Backup>(backup).await;
        let backup = world
            .until::<bowline_api::Backup>(name, crate::support::runs::is_over_or_deleting)
            .await;
        backup.status.unwrap().phase
    };
    assert_eq!(back_up("early").await, Some(bowline_api::BackupPhase::FailedValidation));
    std::fs::create_dir(world.path("root").join("default")).unwrap();
    let phase = back_up("late").await;
    assert_ne!(phase, Some(bowline_api::BackupPhase::FailedValidation));
    world.until("default", is_available).await;
}
