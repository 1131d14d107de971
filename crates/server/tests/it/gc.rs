//! Deletion of expired backups, on a real API server and in real buckets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequest, PodVolumeBackup,
    ServerStatusRequest,
};
use bowline_server::Options;
use bowline_store::BackupName;
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bed::{World, eventually, filesystem_spec, is_unavailable};
use crate::fault_injection;
use crate::support::runs::{application, back_up_and_wait};

/// Does everything each second.
fn with_short_periods(options: &mut Options) {
    options.garbage_collection_frequency = Duration::from_secs(1);
}

fn failure_label(backup: &Backup) -> Option<&str> {
    backup.labels().get("velero.io/gc-failure").map(String::as_str)
}

async fn requests(world: &World) -> Vec<DeleteBackupRequest> {
    world.api::<DeleteBackupRequest>().list(&ListParams::default()).await.unwrap().items
}

/// A Backup that is over, and expired long ago.
fn expired(name: &str, location: &str, phase: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"storageLocation": location},
        "status": {"phase": phase, "expiration": "2020-01-01T00:00:00Z"},
    })
}

#[tokio::test]
async fn expired_backup_is_deleted_with_its_files() {
    let world = World::start_with("gc-expired", with_short_periods).await;
    let store = world.filesystem_location("default").await;
    application(&world.client, "gc-expired-app").await;
    let spec = |ttl: &str| json!({"includedNamespaces": ["gc-expired-app"], "ttl": ttl});
    let kept_status = back_up_and_wait(&world, "kept", spec("1h0m0s")).await;
    assert_eq!(kept_status.phase, Some(BackupPhase::Completed), "{kept_status:?}");
    let object = json!({"metadata": {"name": "short"}, "spec": spec("1s")});
    world.create::<Backup>(object).await;
    world.until_gone::<Backup>("short").await;
    let names = store.list().await.unwrap().backups;
    assert_eq!(names, ["kept".parse::<BackupName>().unwrap()]);
    assert!(world.api::<Backup>().get_opt("kept").await.unwrap().is_some());
    eventually("no request remains", async || requests(&world).await.is_empty()).await;
}

#[tokio::test]
async fn obstacle_is_shown_in_the_failure_label() {
    let world = World::start_with("gc-kept", with_short_periods).await;
    world.filesystem_location("default").await;
    application(&world.client, "gc-kept-app").await;
    world.create::<Backup>(expired("homeless", "nowhere", "Completed")).await;
    world.until::<Backup>("homeless", |found| failure_label(found) == Some("BSLNotFound")).await;
    let read_only = json!({"spec": {"accessMode": "ReadOnly"}});
    let spec = json!({"includedNamespaces": ["gc-kept-app"]});
    back_up_and_wait(&world, "b", spec).await;
    world.patch::<BackupStorageLocation>("default", read_only).await;
    let over = json!({"status": {"expiration": "2020-01-01T00:00:00Z"}});
    world.patch::<Backup>("b", over).await;
    world.until::<Backup>("b", |found| failure_label(found) == Some("BSLReadOnly")).await;
    assert!(requests(&world).await.is_empty(), "nobody was asked");
    // A backup that never stored anything needs no location.
    world.create::<Backup>(expired("refused", "nowhere", "FailedValidation")).await;
    world.until_gone::<Backup>("refused").await;

    let writable = json!({"spec": {"accessMode": "ReadWrite"}});
    world.patch::<BackupStorageLocation>("default", writable).await;
    world.until_gone::<Backup>("b").await;
    assert!(world.api::<Backup>().get_opt("homeless").await.unwrap().is_some());
}

#[tokio::test]
async fn failed_deletion_is_requested_again_one_at_a_time() {
    let world = World::start_with("gc-again", with_short_periods).await;
    let store = world.filesystem_location("default").await;
    application(&world.client, "gc-again-app").await;
    back_up_and_wait(&world, "b", json!({"includedNamespaces": ["gc-again-app"]})).await;
    // File-system copies, which this version cannot delete.
    let copies: Vec<PodVolumeBackup> = serde_json::from_value(json!([{
        "apiVersion": "velero.io/v1",
        "kind": "PodVolumeBackup",
        "metadata": {"name": "copy"},
        "spec": {
            "node": "n", "pod": {"name": "p"}, "volume": "v", "repoIdentifier": "",
            "backupStorageLocation": "default", "uploaderType": "kopia",
        },
        "status": {"phase": "Completed", "snapshotID": "s"},
    }]))
    .unwrap();
    store.put(&"b".parse().unwrap(), &copies).await.unwrap();
    let over = json!({"status": {"expiration": "2020-01-01T00:00:00Z"}});
    world.patch::<Backup>("b", over).await;
    let mut request_uids = BTreeSet::new();
    eventually("three requests were made", async || {
        let found = requests(&world).await;
        assert!(found.len() <= 1, "{found:?}");
        // Without this the deletion would not spare a restore.
        let is_labeled = |request: &DeleteBackupRequest| {
            request.labels().get("bowline.io/requested-by").is_some_and(|by| by == "retention")
        };
        assert!(found.iter().all(is_labeled), "{found:?}");
        request_uids.extend(found.iter().filter_map(kube::ResourceExt::uid));
        if request_uids.len() < 3 { Err(request_uids.len()) } else { Ok(()) }
    })
    .await;
    assert!(world.api::<Backup>().get_opt("b").await.unwrap().is_some());
}

/// Waits until the cluster has the Event `RetentionDelayed` of a Backup.
async fn until_held(world: &World, backup: &str) {
    let fields = format!("involvedObject.name={backup},reason=RetentionDelayed");
    let held_events = ListParams::default().fields(&fields);
    eventually(&format!("{backup} has an Event RetentionDelayed"), async || {
        !world.api::<Event>().list(&held_events).await.unwrap().items.is_empty()
    })
    .await;
}

#[tokio::test]
async fn deletion_limit_survives_a_restart() {
    let mut world = World::without_server("gc-limit").await;
    let options = || {
        let mut options = world.options();
        with_short_periods(&mut options);
        Options { garbage_collection_limit: 1, ..options }
    };
    let (first, second) = (options(), options());
    world.create::<Backup>(expired("first", "nowhere", "FailedValidation")).await;
    world.run(first);
    world.until_gone::<Backup>("first").await;
    world.create::<Backup>(expired("second", "nowhere", "FailedValidation")).await;
    until_held(&world, "second").await;
    world.end().await.unwrap();

    world.run(second);
    world.create::<Backup>(expired("third", "nowhere", "FailedValidation")).await;
    until_held(&world, "third").await;
    for backup in ["second", "third"] {
        assert!(world.api::<Backup>().get_opt(backup).await.unwrap().is_some(), "{backup} is gone");
    }
    let count = world.api::<ConfigMap>().get("bowline-retention").await.unwrap();
    assert!(count.data.unwrap()["deletions"].ends_with(" 1\n"));
    // Deleting the count is the way out for those who want all of them gone.
    world.delete::<ConfigMap>("bowline-retention").await;
    let until_deleted = |name: &'static str| world.until_gone::<Backup>(name);
    let one_of_both = tokio::select! {
        () = until_deleted("second") => "second",
        () = until_deleted("third") => "third",
    };
    assert!(["second", "third"].contains(&one_of_both));
}

#[tokio::test]
async fn nothing_expires_while_the_clocks_differ() {
    let mut world = World::without_server("gc-clock").await;
    let options = || {
        let mut options = world.options();
        with_short_periods(&mut options);
        options
    };
    let (first, second) = (options(), options());
    world.create::<Backup>(expired("b", "nowhere", "FailedValidation")).await;
    world.run_through(first, |client| {
        fault_injection::dated_client(client, "Wed, 01 Jan 2020 00:00:00 GMT")
    });
    until_held(&world, "b").await;
    assert!(requests(&world).await.is_empty(), "nobody was asked");
    assert!(world.api::<Backup>().get_opt("b").await.unwrap().is_some());
    world.end().await.unwrap();
    world.run(second);
    world.until_gone::<Backup>("b").await;
}

#[tokio::test]
async fn restores_are_not_listed_while_the_location_is_unavailable() {
    let mut world = World::without_server("gc-lists").await;
    let mut options = world.options();
    with_short_periods(&mut options);
    // Its bucket is not there.
    world.location("away", filesystem_spec("away")).await;
    world.create::<Backup>(expired("b", "away", "Completed")).await;
    let (lists, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (list_count, read_count) = (Arc::clone(&lists), Arc::clone(&reads));
    world.run_through(options, move |client| {
        fault_injection::faulty_client(client, move |method, uri| {
            let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
            if *method == Method::GET && uri.path().ends_with("/restores") && !is_watch {
                list_count.fetch_add(1, Ordering::Relaxed);
            }
            if *method == Method::GET && uri.path().ends_with("/backupstoragelocations/away") {
                read_count.fetch_add(1, Ordering::Relaxed);
            }
            false
        })
    });
    world.until("away", is_unavailable).await;
    eventually("the location is read five times", async || {
        let count = reads.load(Ordering::Relaxed);
        if count < 5 { Err(count) } else { Ok(()) }
    })
    .await;
    let lists = lists.load(Ordering::Relaxed);
    assert!(lists <= 2, "{lists} lists: only those of a server that starts");
}

#[tokio::test]
async fn server_status_request_returns_version_and_plugins() {
    let mut world = World::without_server("gc-status").await;
    world.install_fixture().await;
    world.run(world.options());
    let request = |name: &str, status: Value| json!({"metadata": {"name": name}, "spec": {}, "status": status});
    world.create::<ServerStatusRequest>(request("ask", json!({}))).await;
    let answered = |found: &ServerStatusRequest| {
        found.status.as_ref().is_some_and(|status| status.processed_timestamp.is_some())
    };
    let status = world.until("ask", answered).await.status.unwrap();
    assert_eq!(status.phase.unwrap().to_string(), "Processed");
    assert!(status.server_version.contains(env!("CARGO_PKG_VERSION")), "{}", status.server_version);
    let plugins: Vec<_> =
        status.plugins.iter().map(|plugin| (plugin.kind.as_str(), plugin.name.as_str())).collect();
    assert!(plugins.contains(&("ObjectStore", "fixture.bowline.io/os")), "{plugins:?}");
    assert!(plugins.is_sorted());
    let old = json!({"phase": "Processed", "processedTimestamp": "2020-01-01T00:00:00Z"});
    world.create::<ServerStatusRequest>(request("old", old)).await;
    world.until_gone::<ServerStatusRequest>("old").await;
}
