//! Runs during changes around them: deleted objects, other servers, an unavailable API server or
//! bucket.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStatus, Restore, RestorePhase};
use bowline_store::BackupName;
use bowline_testbed::apply::apply;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{World, filesystem_spec, is_available};
use crate::fault_injection;
use crate::support::runs::{application, back_up_and_wait, is_over_or_deleting, pod};

/// A resource modifier that changes nothing here.
const RULES: &str = "version: v1\nresourceModifierRules:\n- conditions:\n    groupResource: \
                     configmaps\n    resourceNameRegex: ^none$\n  mergePatches:\n  - patchData: \
                     |\n      data:\n        a: b\n";

fn status(backup: &Backup) -> BackupStatus {
    backup.status.clone().unwrap_or_default()
}

fn is_in_progress(backup: &Backup) -> bool {
    status(backup).phase == Some(BackupPhase::InProgress)
}

/// True if items have been found, so that plugin actions are running.
fn has_items(backup: &Backup) -> bool {
    is_in_progress(backup) && status(backup).progress.is_some_and(|shown| shown.total_items > 0)
}

/// Start of a backup, in seconds.
fn start(backup: &Backup) -> i64 {
    status(backup).start_timestamp.unwrap().0.as_second()
}

/// A world with the plugins of the fixture, and an application with slow pods, one at a time.
async fn world_with_slow_pods(name: &str, app: &str, pods: &[(&str, &str)]) -> World {
    let mut world = World::without_server(name).await;
    world.install_fixture().await;
    application(&world.client, app).await;
    for (name, verbs) in pods {
        apply(&world.client, pod(app, name, verbs)).await.unwrap();
    }
    let options = bowline_server::Options { item_block_worker_count: 1, ..world.options() };
    world.run(options);
    world
}

#[tokio::test]
async fn recreated_backup_is_run_separately() {
    let app = "app-again";
    let world = world_with_slow_pods("again", app, &[("slow", "sleep=3000")]).await;
    let store = world.filesystem_location("default").await;
    let backup = json!({"metadata": {"name": "b"}, "spec": {"includedNamespaces": [app]}});
    let old = world.create::<Backup>(backup.clone()).await;
    world.until("b", has_items).await;
    world.delete::<Backup>("b").await;
    // The same name, and other contents.
    let mut backup = backup;
    backup["spec"]["includedResources"] = json!(["configmaps"]);
    let new = world.create::<Backup>(backup).await;
    assert_ne!(old.uid(), new.uid());
    let ended = world.until::<Backup>("b", is_over_or_deleting).await;
    assert_eq!(ended.uid(), new.uid());
    assert_eq!(status(&ended).phase, Some(BackupPhase::Completed), "{ended:?}");
    let name = BackupName::new("b").unwrap();
    let record = store.backup(&name).await.unwrap().unwrap();
    assert_eq!(record.uid(), new.uid());
    assert_eq!(record.spec.included_resources, ["configmaps"]);
    assert_eq!(record.status.unwrap().start_timestamp, status(&ended).start_timestamp);
}

#[tokio::test]
async fn deleted_backup_holds_its_slot_until_stopped_and_leaves_nothing() {
    let app = "app-deleted";
    let pods: Vec<String> = (0..4).map(|number| format!("slow-{number}")).collect();
    let pods: Vec<_> = pods.iter().map(|name| (name.as_str(), "sleep=8000")).collect();
    let world = world_with_slow_pods("deleted", app, &pods).await;
    let store = world.filesystem_location("default").await;
    let backup = |name: &str, kinds: &[&str]| {
        let spec = json!({"includedNamespaces": [app], "includedResources": kinds});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    world.create::<Backup>(backup("b", &["pods"])).await;
    world.until("b", has_items).await;
    let deleted = Timestamp::now().as_second();
    world.delete::<Backup>("b").await;
    world.create::<Backup>(backup("c", &["configmaps"])).await;
    let c = world.until::<Backup>("c", is_over_or_deleting).await;
    assert_eq!(status(&c).phase, Some(BackupPhase::Completed), "{c:?}");
    // Times are in whole seconds. One call takes eight, of which one is under way; all of
    // them take more than a minute.
    let waited = start(&c) - deleted;
    assert!((4..40).contains(&waited), "{waited} s");
    let listed = store.list().await.unwrap().backups;
    assert_eq!(listed, ["c".parse().unwrap()]);
}

#[tokio::test]
async fn recreated_restore_is_run_separately() {
    let app = "app-replaced";
    let world = world_with_slow_pods("replaced", app, &[("slow", "log=info")]).await;
    world.filesystem_location("default").await;
    apply(&world.client, pod(app, "slow", "sleep=4000")).await.unwrap();
    let spec = json!({"includedNamespaces": [app]});
    assert_eq!(back_up_and_wait(&world, "b", spec).await.phase, Some(BackupPhase::Completed));
    let restore = |into: &str| {
        let spec = json!({"backupName": "b", "namespaceMapping": {app: into}});
        json!({"metadata": {"name": "r"}, "spec": spec})
    };
    world.create::<Restore>(restore("app-replaced-old")).await;
    let phase = |restore: &Restore| restore.status.as_ref().and_then(|s| s.phase.clone());
    let is_in_progress = |restore: &Restore| phase(restore) == Some(RestorePhase::InProgress);
    let old = world.until::<Restore>("r", is_in_progress).await;
    // A user removes the finalizer.
    world.delete::<Restore>("r").await;
    world.patch::<Restore>("r", json!({"metadata": {"finalizers": null}})).await;
    let new = world.create::<Restore>(restore("app-replaced-new")).await;
    assert_ne!(old.uid(), new.uid());
    let is_over_or_deleting =
        |restore: &Restore| phase(restore).is_some_and(|phase| phase.is_terminal());
    let ended = world.until::<Restore>("r", is_over_or_deleting).await;
    assert_eq!(ended.uid(), new.uid());
    assert!(ended.finalizers().iter().any(|name| name.contains("restore")), "it was begun");
    let pods = Api::<Pod>::namespaced(world.client.clone(), "app-replaced-new");
    assert!(pods.get_opt("slow").await.unwrap().is_some(), "{ended:?}");
}

#[tokio::test]
async fn backup_with_a_name_conflict_at_its_end_keeps_its_counts() {
    let app = "app-record";
    let world = world_with_slow_pods("record", app, &[("wrong", "sleep=2000,error=no luck")]).await;
    let store = world.filesystem_location("default").await;
    let spec = json!({"includedNamespaces": [app]});
    world.create::<Backup>(json!({"metadata": {"name": "b"}, "spec": spec})).await;
    world.until("b", has_items).await;
    let mut other = Backup::new("b", bowline_api::BackupSpec::default());
    other.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000009".into());
    other.status = Some(BackupStatus { phase: Some(BackupPhase::Failed), ..Default::default() });
    store.commit(&other).await.unwrap();
    let ended = world.until::<Backup>("b", is_over_or_deleting).await;
    let BackupStatus { phase, errors, progress, failure_reason, .. } = status(&ended);
    assert_eq!(phase, Some(BackupPhase::Failed), "{ended:?}");
    // The conflict is found before or after the archive is written.
    let reasons = ["another backup of the same name", "already exists"];
    assert!(reasons.iter().any(|reason| failure_reason.contains(reason)), "{failure_reason}");
    assert_eq!(errors, 3, "two of the plugin and this one: {ended:?}");
    assert!(progress.unwrap().items_backed_up > 0, "{ended:?}");
    let record = store.backup(&BackupName::new("b").unwrap()).await.unwrap().unwrap();
    assert_eq!(record.uid(), other.uid());
}

#[tokio::test]
async fn short_api_server_outage_fails_no_run() {
    let mut world = World::without_server("busy").await;
    application(&world.client, "busy-app").await;
    world.credentials("s3").await;
    crate::bed::shared().s3.create_bucket(&world.bucket("wanted")).unwrap();
    let map = |name: &str, text: &str| json!({"metadata": {"name": name}, "data": {"rules": text}});
    world.create::<ConfigMap>(map("policy", "version: v1\nvolumePolicies: []\n")).await;
    world.create::<ConfigMap>(map("modifier", RULES)).await;
    // Each address fails once, at its next request.
    let (is_busy, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashMap::new())));
    let judge = {
        let (is_busy, failed) = (Arc::clone(&is_busy), Arc::clone(&failed));
        move |method: &Method, uri: &http::Uri| {
            let asks = ["locations", "/namespaces", "/configmaps/", "/secrets/", "/backups/"];
            let query = uri.query().unwrap_or_default();
            // Not what watches do, nor the engine, which asks for pages.
            let is_one = !query.contains("watch=") && !query.contains("limit=");
            let is_asked = asks.iter().any(|part| {
                if part.starts_with("/n") {
                    uri.path().ends_with(part)
                } else {
                    uri.path().contains(part)
                }
            });
            if method != Method::GET || !is_one || !is_asked || !is_busy.load(Ordering::SeqCst) {
                return false;
            }
            let mut failed = failed.lock();
            let count: &mut u32 = failed.entry(uri.path().to_owned()).or_default();
            *count += 1;
            *count <= 1
        }
    };
    let options = bowline_server::Options {
        store_validation_frequency: Duration::from_hours(1),
        backup_sync_period: Duration::from_hours(1),
        ..world.options()
    };
    world.run_through(options, |client| fault_injection::faulty_client(client, judge));
    let mut spec = world.s3_spec("wanted");
    spec["default"] = json!(true);
    world.location("wanted", spec).await;
    world.until("wanted", is_available).await;
    // This location must not become the default: a server that starts would mark it.
    world.filesystem_location("default").await;

    is_busy.store(true, Ordering::SeqCst);
    let spec = json!({
        "includedNamespaces": ["busy-app"],
        "resourcePolicy": {"kind": "configmap", "name": "policy"},
    });
    world.create::<Backup>(json!({"metadata": {"name": "b"}, "spec": spec})).await;
    let backup = world.until::<Backup>("b", is_over_or_deleting).await;
    assert_eq!(status(&backup).phase, Some(BackupPhase::Completed), "{backup:?}");
    assert_eq!(backup.spec.storage_location, "wanted");

    let failed_paths: Vec<String> = failed.lock().drain().map(|(path, _)| path).collect();
    for part in ["backupstoragelocations", "volumesnapshot", "/namespaces", "policy", "secrets/s3"]
    {
        assert!(
            failed_paths.iter().any(|path| path.contains(part)),
            "no {part} in {failed_paths:?}"
        );
    }
    let spec = json!({
        "backupName": "b", "namespaceMapping": {"busy-app": "busy-copy"},
        "resourceModifier": {"kind": "configmap", "name": "modifier"},
    });
    world.create::<Restore>(json!({"metadata": {"name": "r"}, "spec": spec})).await;
    let is_over_or_deleting = |restore: &Restore| {
        let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
        phase.is_some_and(RestorePhase::is_terminal)
    };
    let restore = world.until::<Restore>("r", is_over_or_deleting).await;
    let status = restore.status.unwrap();
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let failed_paths: Vec<String> = failed.lock().drain().map(|(path, _)| path).collect();
    for part in ["backups/b", "backupstoragelocations/wanted", "modifier", "secrets/s3"] {
        assert!(
            failed_paths.iter().any(|path| path.contains(part)),
            "no {part} in {failed_paths:?}"
        );
    }
}

#[tokio::test]
async fn finished_backups_do_not_trigger_namespace_lists() {
    let mut world = World::without_server("many-old").await;
    world.filesystem_store("default").await;
    world.location("default", filesystem_spec("default")).await;
    let backup = |name: &str, phase: Option<&str>| -> Value {
        let spec = json!({"storageLocation": "default", "includedNamespaces": ["none"]});
        let mut backup = json!({"metadata": {"name": name}, "spec": spec});
        if let Some(phase) = phase {
            backup["status"] = json!({"phase": phase});
        }
        backup
    };
    for number in 0..60 {
        world.create::<Backup>(backup(&format!("old-{number}"), Some("Failed"))).await;
    }
    // Two observations are needed before it ends, and two backups wait for it meanwhile.
    world.create::<Backup>(backup("lost", Some("InProgress"))).await;
    for name in ["new-1", "new-2"] {
        world.create::<Backup>(backup(name, None)).await;
    }
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    let count = move |_: &Method, uri: &http::Uri| {
        let query = uri.query().unwrap_or_default();
        if uri.path() == "/api/v1/namespaces" && !query.contains("limit=") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        false
    };
    let options = bowline_server::Options { concurrent_backups: 1, ..world.options() };
    world.run_through(options, |client| fault_injection::faulty_client(client, count));
    for name in ["new-1", "new-2"] {
        world.until::<Backup>(name, is_over_or_deleting).await;
    }
    let all = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
    assert!(all.iter().all(is_over_or_deleting));
    let lists = lists.load(Ordering::SeqCst);
    assert!((2..15).contains(&lists), "{lists} lists: each run needs one, the queue a few");
}

#[tokio::test]
async fn stopping_server_finishes_its_block_and_leaves_the_rest() {
    let app = "app-ending";
    let mut world =
        world_with_slow_pods("ending", app, &[("slow-1", "sleep=3000"), ("slow-2", "sleep=3000")])
            .await;
    world.filesystem_location("default").await;
    let spec = json!({"includedNamespaces": [app]});
    world.create::<Backup>(json!({"metadata": {"name": "b"}, "spec": spec})).await;
    world.until("b", has_items).await;
    let since = Instant::now();
    world.end().await.unwrap();
    // Three actions process each pod. The rest would take at least five times as long.
    assert!(since.elapsed() < Duration::from_secs(12), "{:?}", since.elapsed());
    let backup = world.api::<Backup>().get("b").await.unwrap();
    assert_eq!(status(&backup).phase, Some(BackupPhase::InProgress), "{backup:?}");
    world.run(world.options());
    let backup = world.until::<Backup>("b", is_over_or_deleting).await;
    assert_eq!(status(&backup).phase, Some(BackupPhase::Completed), "{backup:?}");
}
