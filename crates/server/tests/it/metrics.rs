//! Metrics of a running server, on a real API server.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{Backup, BackupPhase, DeleteBackupRequest, Restore, RestorePhase, Schedule};
use bowline_server::Options;
use bowline_testbed::apply::apply;
use kube::api::ListParams;
use serde_json::json;

use crate::bed::{World, eventually};
use crate::support::metrics::{Series, Served, address, scrape};
use crate::support::runs::{application, back_up_and_wait, is_over_or_deleting, pod, restore};

/// All metrics of Velero about features that Bowline has, with their labels.
const VELERO_METRICS: &[(&str, &[&str])] = &[
    ("velero_backup_attempt_total", &["schedule"]),
    ("velero_backup_deletion_attempt_total", &["schedule"]),
    ("velero_backup_deletion_failure_total", &["schedule"]),
    ("velero_backup_deletion_success_total", &["schedule"]),
    ("velero_backup_duration_seconds_bucket", &["le", "schedule"]),
    ("velero_backup_duration_seconds_count", &["schedule"]),
    ("velero_backup_duration_seconds_sum", &["schedule"]),
    ("velero_backup_failure_total", &["schedule"]),
    ("velero_backup_items_errors", &["schedule"]),
    ("velero_backup_items_total", &["schedule"]),
    ("velero_backup_last_status", &["schedule"]),
    ("velero_backup_last_successful_timestamp", &["schedule"]),
    ("velero_backup_location_status_gauge", &["backup_location_name"]),
    ("velero_backup_partial_failure_total", &["schedule"]),
    ("velero_backup_success_total", &["schedule"]),
    ("velero_backup_tarball_size_bytes", &["schedule"]),
    ("velero_backup_total", &[]),
    ("velero_backup_validation_failure_total", &["schedule"]),
    ("velero_backup_warning_total", &["schedule"]),
    ("velero_csi_snapshot_attempt_total", &["backupName", "schedule"]),
    ("velero_csi_snapshot_failure_total", &["backupName", "schedule"]),
    ("velero_csi_snapshot_success_total", &["backupName", "schedule"]),
    ("velero_restore_attempt_total", &["schedule"]),
    ("velero_restore_failed_total", &["schedule"]),
    ("velero_restore_partial_failure_total", &["schedule"]),
    ("velero_restore_success_total", &["schedule"]),
    ("velero_restore_total", &[]),
    ("velero_restore_validation_failed_total", &["schedule"]),
    ("velero_schedule_expected_interval_seconds", &["schedule"]),
    ("velero_volume_snapshot_attempt_total", &["schedule"]),
    ("velero_volume_snapshot_failure_total", &["schedule"]),
    ("velero_volume_snapshot_success_total", &["schedule"]),
];

/// The value of a series of a schedule.
fn schedule_value(served: &Served, name: &str, schedule: &str) -> Option<f64> {
    let labels = [("schedule".to_owned(), schedule.to_owned())].into_iter().collect();
    served.get(&(format!("velero_{name}"), labels)).copied()
}

/// The value of a series without labels.
fn unlabelled_value(served: &Served, name: &str) -> Option<f64> {
    served.get(&(name.to_owned(), BTreeMap::new())).copied()
}

/// Waits until the metrics are as expected: they follow the cluster with a delay.
async fn until(port: u16, what: &str, condition: impl Fn(&Served) -> bool) -> Served {
    eventually(what, async || {
        let served = scrape(port).await;
        if condition(&served) { Ok(served) } else { Err(served) }
    })
    .await
}

/// The metrics of Velero's that are served, with their labels.
fn names(served: &Served) -> BTreeSet<(String, Vec<String>)> {
    let velero_series = served.keys().filter(|(name, _)| name.starts_with("velero_"));
    velero_series.map(|(name, labels)| (name.clone(), labels.keys().cloned().collect())).collect()
}

/// Metrics of objects, which survive the server, unlike counters.
fn restart_stable_series(served: &Served) -> BTreeMap<&Series, f64> {
    const RESTART_STABLE: [&str; 8] = [
        "velero_backup_items_errors",
        "velero_backup_items_total",
        "velero_backup_last_status",
        "velero_backup_last_successful_timestamp",
        "velero_backup_location_status_gauge",
        "velero_backup_total",
        "velero_restore_total",
        "velero_schedule_expected_interval_seconds",
    ];
    let of_objects = served.iter().filter(|((name, _), _)| RESTART_STABLE.contains(&name.as_str()));
    of_objects.map(|(series, value)| (series, *value)).collect()
}

/// Takes a backup that counts as one of a schedule.
async fn back_up_for_schedule(world: &World, name: &str, app: &str) -> Backup {
    let labels = json!({"velero.io/schedule-name": "yearly"});
    let spec = json!({"includedNamespaces": [app]});
    let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    world.create::<Backup>(object).await;
    world.until::<Backup>(name, is_over_or_deleting).await
}

#[tokio::test]
async fn velero_dashboards_work_across_a_restart() {
    const APP: &str = "app-metrics";
    let mut world = World::without_server("metrics").await;
    world.install_fixture().await;
    let (port, metrics_address) = address();
    let options = || Options { metrics_address, ..world.options() };
    let (first, second) = (options(), options());
    world.run(first);
    world.filesystem_location("default").await;
    application(&world.client, APP).await;
    let spec = json!({"schedule": "0 0 1 1 *", "template": {}});
    world.create::<Schedule>(json!({"metadata": {"name": "yearly"}, "spec": spec})).await;

    let spec = json!({"includedNamespaces": [APP]});
    for name in ["good", "kept"] {
        let status = back_up_and_wait(&world, name, spec.clone()).await;
        assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    }
    let kept_status = world.api::<Backup>().get("kept").await.unwrap().status.unwrap();
    apply(&world.client, pod(APP, "bad", "error=the disk is full")).await.unwrap();
    let partly = back_up_for_schedule(&world, "partly", APP).await.status.unwrap();
    assert_eq!(partly.phase, Some(BackupPhase::PartiallyFailed), "{partly:?}");
    let spec = json!({"backupName": "kept", "namespaceMapping": {APP: "app-metrics-2"}});
    let status = restore(&world, "back", spec).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let status = restore(&world, "nothing", json!({"backupName": "none"})).await;
    assert_eq!(status.phase, Some(RestorePhase::FailedValidation), "{status:?}");
    let request = json!({"metadata": {"name": "away"}, "spec": {"backupName": "good"}});
    world.create::<DeleteBackupRequest>(request).await;
    world.until_gone::<Backup>("good").await;
    world.until_gone::<DeleteBackupRequest>("away").await;

    let served = until(port, "two backups are left", |served| {
        unlabelled_value(served, "velero_backup_total") == Some(2.0)
            && schedule_value(served, "backup_deletion_success_total", "") == Some(1.0)
    })
    .await;
    let expected = VELERO_METRICS.iter().map(|(name, labels)| {
        ((*name).to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())
    });
    assert_eq!(names(&served), expected.collect::<BTreeSet<_>>());
    let of_none = |name: &str| schedule_value(&served, name, "");
    let of_yearly = |name: &str| schedule_value(&served, name, "yearly");
    for (name, none, yearly) in [
        ("backup_attempt_total", 2.0, 1.0),
        ("backup_success_total", 2.0, 0.0),
        ("backup_partial_failure_total", 0.0, 1.0),
        ("backup_failure_total", 0.0, 0.0),
        ("backup_validation_failure_total", 0.0, 0.0),
        ("backup_deletion_attempt_total", 1.0, 0.0),
        ("backup_deletion_failure_total", 0.0, 0.0),
        ("backup_last_status", 1.0, 0.0),
        ("backup_duration_seconds_count", 2.0, 1.0),
        ("restore_attempt_total", 2.0, 0.0),
        ("restore_success_total", 1.0, 0.0),
        ("restore_validation_failed_total", 1.0, 0.0),
        ("volume_snapshot_attempt_total", 0.0, 0.0),
    ] {
        assert_eq!((of_none(name), of_yearly(name)), (Some(none), Some(yearly)), "{name}");
    }
    // Counts below 2^53, exact as they are.
    let exact = |count: i64| Some(f64::from(i32::try_from(count).unwrap()));
    assert_eq!(of_none("backup_items_total"), exact(kept_status.progress.unwrap().total_items));
    assert_eq!(of_yearly("backup_items_errors"), exact(partly.errors));
    let ended = kept_status.completion_timestamp.unwrap().0.as_second();
    assert_eq!(of_none("backup_last_successful_timestamp"), exact(ended));
    assert_eq!(of_yearly("backup_last_successful_timestamp"), None);
    assert_eq!(unlabelled_value(&served, "velero_restore_total"), Some(2.0));
    assert!(of_yearly("schedule_expected_interval_seconds") >= Some(365.0 * 86_400.0));
    assert!(of_none("backup_tarball_size_bytes") > Some(100.0));

    world.end().await.unwrap();
    world.run(second);
    let again = until(port, "what is told of objects is told again", |served| {
        unlabelled_value(served, "velero_backup_total").is_some()
    })
    .await;
    assert_eq!(restart_stable_series(&again), restart_stable_series(&served));
    assert_eq!(schedule_value(&again, "backup_attempt_total", ""), Some(0.0));
    assert_eq!(schedule_value(&again, "restore_attempt_total", "yearly"), Some(0.0));

    world.delete::<Schedule>("yearly").await;
    let is_of_yearly = |(_, labels): &&Series| labels.values().any(|value| value == "yearly");
    until(port, "its series are gone", |served| !served.keys().any(|key| is_of_yearly(&key))).await;
    assert_eq!(world.api::<Restore>().list(&ListParams::default()).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn standby_server_exports_no_object_metrics() {
    let mut world = World::without_server("metrics-waits").await;
    let (_, first) = address();
    let (port, second) = address();
    world.run(Options { identity: "a".to_owned(), metrics_address: first, ..world.options() });
    world.filesystem_location("default").await;
    let object = json!({
        "metadata": {"name": "old"}, "spec": {},
        "status": {"phase": "Completed", "completionTimestamp": "2026-01-01T00:00:00Z"},
    });
    world.create::<Backup>(object).await;
    let mut other = world.second_server_world();
    other.run(Options { identity: "b".to_owned(), metrics_address: second, ..world.options() });
    let served = scrape(port).await;
    assert_eq!(
        schedule_value(&served, "backup_attempt_total", ""),
        Some(0.0),
        "counters are there"
    );
    assert_eq!(restart_stable_series(&served), BTreeMap::new());
    world.end().await.unwrap();
    let served = until(port, "it has taken over", |served| {
        unlabelled_value(served, "velero_backup_total") == Some(1.0)
    })
    .await;
    let last = schedule_value(&served, "backup_last_successful_timestamp", "");
    assert_eq!(last, Some(1_767_225_600.0), "as the first one told");
    other.end().await.unwrap();
}
