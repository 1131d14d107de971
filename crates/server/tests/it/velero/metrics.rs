//! Metrics of Velero and of Bowline after the same runs.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{Backup, BackupPhase, BackupSpec, DeleteBackupRequest, RestorePhase};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, S3, Velero, velero};
use kube::{Api, Client};
use serde_json::json;

use super::harness::{
    BowlineServer, NAMESPACE, back_up, create_location, eventually, install, restore,
};

use crate::support::metrics::{Series, Served, address, scrape};
use crate::support::runs::application;

const APP: &str = "told";
/// Metrics of Velero that Bowline lacks: there are no repositories here.
const VELERO_ONLY: [&str; 1] = ["velero_repo_maintenance_"];
/// Gauges with names like counters. Their values depend on the time of the scrape.
const GAUGES: [&str; 3] =
    ["velero_backup_total", "velero_restore_total", "velero_backup_items_total"];

async fn labelled(client: &Client, namespace: &str, name: &str) {
    let backup = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"velero.io/schedule-name": "yearly"},
        },
        "spec": {"includedNamespaces": [APP]},
    });
    apply(client, backup).await.unwrap();
    let backups: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let phase = eventually(&format!("{name} has ended"), async || {
        let phase = backups.get(name).await.unwrap().status?.phase?;
        phase.is_terminal().then_some(phase)
    })
    .await;
    assert_eq!(phase, BackupPhase::Completed, "{name}");
}

/// Backups with and without a schedule, a refused one, restores, and a deletion.
async fn run_backups_restores_and_deletion(client: &Client, namespace: &str, by: &str) {
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "yearly", "namespace": namespace},
        "spec": {"schedule": "0 0 1 1 *", "template": {"includedNamespaces": [APP]}},
    });
    apply(client, schedule).await.unwrap();
    let spec = BackupSpec { included_namespaces: vec![APP.to_owned()], ..BackupSpec::default() };
    let [first, unexpired, second, wrong] =
        ["first", "kept", "second", "wrong"].map(|name| format!("{by}-{name}"));
    // Gauges of the last backup refer to existing backups.
    for name in [&first, &unexpired] {
        let status = back_up(client, namespace, name, spec.clone()).await;
        assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    }
    labelled(client, namespace, &second).await;
    let spec = BackupSpec { storage_location: "nowhere".to_owned(), ..spec };
    let status = back_up(client, namespace, &wrong, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::FailedValidation), "{status:?}");
    let mapping = json!({APP: format!("{by}-{APP}")});
    let spec = json!({"backupName": second, "namespaceMapping": mapping});
    let status = restore(client, namespace, &format!("{by}-back"), spec).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let spec = json!({"backupName": "none"});
    let status = restore(client, namespace, &format!("{by}-nothing"), spec).await;
    assert_eq!(status.phase, Some(RestorePhase::FailedValidation), "{status:?}");
    let request = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {
            "name": format!("{by}-away"), "namespace": namespace,
            "labels": {"velero.io/backup-name": first},
        },
        "spec": {"backupName": first},
    });
    apply(client, request).await.unwrap();
    let requests: Api<DeleteBackupRequest> = Api::namespaced(client.clone(), namespace);
    let backups: Api<Backup> = Api::namespaced(client.clone(), namespace);
    eventually("the first one is deleted", async || {
        let backup = backups.get_opt(&first).await.unwrap();
        let request = requests.get_opt(&format!("{by}-away")).await.unwrap();
        (backup.is_none() && request.is_none()).then_some(())
    })
    .await;
}

fn is_velero_series((name, _): &Series) -> bool {
    name.starts_with("velero_") && !VELERO_ONLY.iter().any(|prefix| name.starts_with(prefix))
}

/// Actions that have happened once or more, with their counts.
const EXPECTED_COUNTS: [(&str, &str, f64); 11] = [
    ("velero_backup_attempt_total", "", 2.0),
    ("velero_backup_attempt_total", "yearly", 1.0),
    ("velero_backup_deletion_attempt_total", "", 1.0),
    ("velero_backup_deletion_success_total", "", 1.0),
    ("velero_backup_success_total", "", 2.0),
    ("velero_backup_success_total", "yearly", 1.0),
    ("velero_backup_validation_failure_total", "", 1.0),
    ("velero_restore_attempt_total", "", 1.0),
    ("velero_restore_attempt_total", "yearly", 1.0),
    ("velero_restore_success_total", "yearly", 1.0),
    ("velero_restore_validation_failed_total", "", 1.0),
];

/// Both have counted the same things, and Bowline counts exactly. Velero's number may be higher:
/// its controllers read from a cache that can lack their own last write, so that one refused
/// restore is sometimes counted twice.
fn assert_counts_agree(velero: &BTreeMap<&Series, f64>, bowline: &BTreeMap<&Series, f64>) {
    let expected = |series: &Series| {
        let (name, labels) = series;
        let matches_series = |(expected, schedule, _): &&(&str, &str, f64)| {
            name == expected && labels.get("schedule").is_some_and(|label| label == schedule)
        };
        EXPECTED_COUNTS.iter().find(matches_series).map_or(0.0, |(.., count)| *count)
    };
    let happened = velero.keys().map(|series| (*series, expected(series))).collect();
    assert_eq!(*bowline, happened);
    for (series, count) in happened {
        let velero_count = velero[series];
        assert!(
            velero_count >= count && (velero_count > 0.0) == (count > 0.0),
            "{series:?}: {velero_count}"
        );
    }
}

/// The counted values.
fn counters(served: &Served) -> BTreeMap<&Series, f64> {
    let is_counter = |series: &&Series| {
        is_velero_series(series)
            && series.0.ends_with("_total")
            && !GAUGES.contains(&series.0.as_str())
    };
    let counters = served.iter().filter(|(series, _)| is_counter(series));
    counters.map(|(series, value)| (series, *value)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_and_bowline_export_the_same_metrics() {
    crate::bed::install_log_subscriber();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    install(&client).await;
    application(&client, APP).await;

    let (port, address_of_velero) = address();
    let arguments = vec![format!("--metrics-address={address_of_velero}")];
    let options = velero::Options { arguments, ..velero::Options::default() };
    let running = Velero::start(&plane, &s3, options).await.unwrap();
    run_backups_restores_and_deletion(&client, velero::NAMESPACE, "v").await;
    let velero = scrape(port).await;
    drop(running);

    create_location(&client, &s3, NAMESPACE).await;
    let (port, metrics_address) = address();
    let server = BowlineServer::start_with(&bed, &plane, |options| {
        options.namespace = NAMESPACE.to_owned();
        options.metrics_address = metrics_address;
    });
    run_backups_restores_and_deletion(&client, NAMESPACE, "b").await;
    let bowline = scrape(port).await;
    server.end();

    let expected: BTreeSet<&Series> =
        velero.keys().filter(|series| is_velero_series(series)).collect();
    assert!(expected.len() > 70, "{expected:#?}");
    let missing: Vec<_> =
        expected.into_iter().filter(|series| !bowline.contains_key(*series)).collect();
    assert!(missing.is_empty(), "Velero tells what we do not: {missing:#?}");
    assert_counts_agree(&counters(&velero), &counters(&bowline));
    for schedule in ["", "yearly"] {
        for name in ["velero_backup_last_status", "velero_backup_items_errors"] {
            let labels = [("schedule".to_owned(), schedule.to_owned())].into_iter().collect();
            let series = (name.to_owned(), labels);
            let (theirs, ours) = (velero.get(&series), bowline.get(&series));
            assert!(theirs.is_some(), "{series:?}");
            assert_eq!(theirs, ours, "{series:?}");
        }
    }
}
