//! The same story told to Prometheus by Velero and by us.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{Backup, BackupPhase, BackupSpec, DeleteBackupRequest, RestorePhase};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, S3, Velero, velero};
use kube::{Api, Client};
use serde_json::json;

use super::stage::{Bowline, NAMESPACE, back_up, eventually, install, locate, restore};
use crate::backup::application;
use crate::metrics::{Series, Served, address, scrape};

const APP: &str = "told";
/// What Velero tells and we do not: there are no repositories here.
const NOT_OURS: [&str; 1] = ["velero_repo_maintenance_"];
/// Gauges whose names end as those of counters do. What they say depends on when they are asked.
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

/// Backups of no schedule and of one, one that is refused, restores, and a deletion.
async fn happens(client: &Client, namespace: &str, by: &str) {
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "yearly", "namespace": namespace},
        "spec": {"schedule": "0 0 1 1 *", "template": {"includedNamespaces": [APP]}},
    });
    apply(client, schedule).await.unwrap();
    let spec = BackupSpec { included_namespaces: vec![APP.to_owned()], ..BackupSpec::default() };
    let [first, kept, second, wrong] =
        ["first", "kept", "second", "wrong"].map(|name| format!("{by}-{name}"));
    // What is told of the last one is told of those that are there.
    for name in [&first, &kept] {
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

fn is_theirs((name, _): &Series) -> bool {
    name.starts_with("velero_") && !NOT_OURS.iter().any(|prefix| name.starts_with(prefix))
}

/// What has happened once or more, as it is to be counted.
const HAPPENED: [(&str, &str, f64); 11] = [
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

/// Both have counted the same things, and we what has happened. Velero's number may be higher: its
/// controllers read from a cache that can lack what they have just written, so that one refused
/// restore is at times counted twice.
fn agree(theirs: &BTreeMap<&Series, f64>, ours: &BTreeMap<&Series, f64>) {
    let expected = |series: &Series| {
        let (name, labels) = series;
        let told = |(told, schedule, _): &&(&str, &str, f64)| {
            name == told && labels.get("schedule").is_some_and(|label| label == schedule)
        };
        HAPPENED.iter().find(told).map_or(0.0, |(.., count)| *count)
    };
    let happened = theirs.keys().map(|series| (*series, expected(series))).collect();
    assert_eq!(*ours, happened);
    for (series, count) in happened {
        let theirs = theirs[series];
        assert!(theirs >= count && (theirs > 0.0) == (count > 0.0), "{series:?}: {theirs}");
    }
}

/// What was counted.
fn counted(served: &Served) -> BTreeMap<&Series, f64> {
    let is_counter = |series: &&Series| {
        is_theirs(series) && series.0.ends_with("_total") && !GAUGES.contains(&series.0.as_str())
    };
    let counters = served.iter().filter(|(series, _)| is_counter(series));
    counters.map(|(series, value)| (series, *value)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_is_told_the_same_by_velero_and_by_us() {
    crate::bed::listen();
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
    happens(&client, velero::NAMESPACE, "v").await;
    let theirs = scrape(port).await;
    drop(running);

    locate(&client, &s3, NAMESPACE).await;
    let (port, metrics_address) = address();
    let server = Bowline::start_with(&bed, &plane, |options| {
        options.namespace = NAMESPACE.to_owned();
        options.metrics_address = metrics_address;
    });
    happens(&client, NAMESPACE, "b").await;
    let ours = scrape(port).await;
    server.end();

    let expected: BTreeSet<&Series> = theirs.keys().filter(|series| is_theirs(series)).collect();
    assert!(expected.len() > 70, "{expected:#?}");
    let missing: Vec<_> =
        expected.into_iter().filter(|series| !ours.contains_key(*series)).collect();
    assert!(missing.is_empty(), "Velero tells what we do not: {missing:#?}");
    agree(&counted(&theirs), &counted(&ours));
    for schedule in ["", "yearly"] {
        for name in ["velero_backup_last_status", "velero_backup_items_errors"] {
            let labels = [("schedule".to_owned(), schedule.to_owned())].into_iter().collect();
            let series = (name.to_owned(), labels);
            let (theirs, ours) = (theirs.get(&series), ours.get(&series));
            assert!(theirs.is_some(), "{series:?}");
            assert_eq!(theirs, ours, "{series:?}");
        }
    }
}
