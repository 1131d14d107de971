use bowline_api::{BackupStorageLocation, DownloadRequest};
use bowline_server::controllers::download_request::ERROR;
use bowline_store::BackupStore;
use bytes::Bytes;
use kube::ResourceExt as _;
use serde_json::json;

use crate::bed::{World, filesystem_spec, is_unavailable};
use crate::http;

/// Asks for a file and waits for the answer.
async fn ask(world: &World, kind: &str, name: &str) -> DownloadRequest {
    let request = format!("{name}-{}", kind.to_lowercase());
    let target = json!({"kind": kind, "name": name});
    let request = json!({"metadata": {"name": request}, "spec": {"target": target}});
    let request = world.create::<DownloadRequest>(request).await;
    let is_answered = |request: &DownloadRequest| {
        let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
        phase.is_some_and(bowline_api::download_request::DownloadRequestPhase::is_terminal)
    };
    world.until(&request.name_any(), is_answered).await
}

fn url(request: &DownloadRequest) -> &str {
    &request.status.as_ref().unwrap().download_url
}

fn error(request: &DownloadRequest) -> Option<&str> {
    request.annotations().get(ERROR).map(String::as_str)
}

/// A backup and a restore with logs, in a location.
async fn with_logs(world: &World, store: &BackupStore, location: &str) {
    let log = |text: &'static str| -> bowline_plugin::ByteStream {
        Box::pin(futures::stream::iter([Ok(Bytes::from(text))]))
    };
    store.put_log(&"b".parse().unwrap(), log("log of b")).await.unwrap();
    store.put_contents(&"b".parse().unwrap(), log("archive of b")).await.unwrap();
    store.put_restore_log(&"r".parse().unwrap(), log("log of r")).await.unwrap();
    let spec = json!({"storageLocation": location});
    let backup = json!({"metadata": {"name": "b"}, "spec": spec, "status": {"phase": "Completed"}});
    world.create::<bowline_api::Backup>(backup).await;
    // Ended, so that no server processes it.
    let status = json!({"phase": "Completed"});
    let restore = json!({"metadata": {"name": "r"}, "spec": {"backupName": "b"}, "status": status});
    world.create::<bowline_api::Restore>(restore).await;
}

async fn assert_downloads(world: &World) {
    for (kind, name, content) in [
        ("BackupLog", "b", "log of b"),
        ("BackupContents", "b", "archive of b"),
        ("RestoreLog", "r", "log of r"),
    ] {
        let request = ask(world, kind, name).await;
        assert_eq!(error(&request), None, "{kind}");
        let (status, found) = http::get(url(&request)).await;
        assert_eq!((status, String::from_utf8(found).unwrap().as_str()), (200, content), "{kind}");
        let expiration = request.status.unwrap().expiration.unwrap().0;
        let remaining_seconds = jiff::Timestamp::now().duration_until(expiration).as_secs();
        assert!((500..=600).contains(&remaining_seconds), "{remaining_seconds}");
    }
    // Old backups lack files of newer ones: the link leads to a 404.
    let missing = ask(world, "CSIBackupVolumeSnapshots", "b").await;
    assert!(error(&missing).unwrap().contains("is not in the storage location"), "{missing:?}");
    assert_eq!(http::get(url(&missing)).await.0, 404);
}

#[tokio::test]
async fn files_in_s3_can_be_downloaded() {
    let world = World::start("download-s3").await;
    let store = world.s3_location("l").await;
    with_logs(&world, &store, "l").await;
    assert_downloads(&world).await;
}

#[tokio::test]
async fn files_in_a_folder_can_be_downloaded_only_with_a_valid_link() {
    let world = World::start("download-folder").await;
    let store = world.filesystem_location("l").await;
    with_logs(&world, &store, "l").await;
    assert_downloads(&world).await;
    let request = ask(&world, "RestoreResults", "r").await;
    let (base, token) = url(&request).rsplit_once('/').unwrap();
    assert_eq!(http::get(&format!("{base}/9{token}")).await.0, 403);
    assert_eq!(http::get(&format!("{base}/")).await.0, 404);
}

#[tokio::test]
async fn unavailable_file_is_answered_with_the_reason() {
    let world = World::start("download-refused").await;
    world.location("down", filesystem_spec("down")).await;
    world.until("down", is_unavailable).await;
    // Ended, so that no server processes it.
    let backup = |name: &str, location: &str| {
        let spec = json!({"storageLocation": location});
        json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Failed"}})
    };
    world.create::<bowline_api::Backup>(backup("in-down", "down")).await;
    world.create::<bowline_api::Backup>(backup("nowhere", "gone")).await;
    world.create::<bowline_api::Backup>(backup("new", "")).await;
    for (name, spec) in
        [("r", json!({"backupName": "gone"})), ("scheduled", json!({"scheduleName": "s"}))]
    {
        let status = json!({"phase": "Failed"});
        let restore = json!({"metadata": {"name": name}, "spec": spec, "status": status});
        world.create::<bowline_api::Restore>(restore).await;
    }
    for (kind, name, expected) in [
        ("BackupLog", "unknown", "backup `unknown` does not exist"),
        ("RestoreLog", "unknown", "restore `unknown` does not exist"),
        ("RestoreLog", "r", "backup `gone` does not exist"),
        ("RestoreLog", "scheduled", "the restore `scheduled` has no backup yet"),
        ("BackupLog", "in-down", "the storage location `down` is unavailable"),
        ("BackupLog", "nowhere", "storage location `gone` of the backup does not exist"),
        ("BackupLog", "new", "the backup `new` has no storage location yet"),
    ] {
        let request = ask(&world, kind, name).await;
        assert_eq!(error(&request), Some(expected), "{kind} {name}");
        assert_eq!(url(&request), "", "{kind} {name}");
    }
}

#[tokio::test]
async fn every_download_target_is_answered() {
    let world = World::start("download-kinds").await;
    let store = world.filesystem_location("l").await;
    with_logs(&world, &store, "l").await;
    let kinds = bowline_api::download_request::DownloadTargetKind::KNOWN;
    assert_eq!(kinds.len(), 14);
    for kind in kinds {
        let name = if kind.starts_with("Restore") { "r" } else { "b" };
        assert!(url(&ask(&world, kind, name).await).starts_with("http://127.0.0.1:"), "{kind}");
    }
}

#[tokio::test]
async fn only_expired_download_requests_are_deleted() {
    let world = World::start("download-expired").await;
    let request = |name: &str, phase: &str, expiration: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {"target": {"kind": "BackupLog", "name": "b"}},
            "status": {"phase": phase, "expiration": expiration},
        })
    };
    let past = "2020-01-01T00:00:00Z";
    world.create::<DownloadRequest>(request("kept", "Processed", "2100-01-01T00:00:00Z")).await;
    world.create::<DownloadRequest>(request("processed", "Processed", past)).await;
    world.create::<DownloadRequest>(request("new", "New", past)).await;
    world.until_gone::<DownloadRequest>("processed").await;
    world.until_gone::<DownloadRequest>("new").await;
    world.until::<DownloadRequest>("kept", |_| true).await;
}

#[tokio::test]
async fn recovered_location_is_used_again() {
    let world = World::start("download-back").await;
    let store = world.filesystem_location("l").await;
    with_logs(&world, &store, "l").await;
    let root = world.path("root");
    std::fs::rename(root.join("l"), root.join("away")).unwrap();
    world.until("l", is_unavailable).await;
    let refused = ask(&world, "BackupLog", "b").await;
    assert!(error(&refused).unwrap().contains("unavailable"), "{refused:?}");
    std::fs::rename(root.join("away"), root.join("l")).unwrap();
    world.until::<BackupStorageLocation>("l", crate::bed::is_available).await;
    let request = ask(&world, "RestoreLog", "r").await;
    assert_eq!(http::get(url(&request)).await.0, 200);
}
