//! Runs that cannot continue, at each stage, because of their bucket, a plugin or a node. They can be canceled and
//! deleted, end by themselves where there is a bound, and do not block other runs. `cells.rs` lists the cases.

mod cells;
mod gateway;
mod node;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use bowline_api::{Backup, Restore, annotation};
use bowline_engine::journal::{self, BlockStarted, Journal as _, JournalEntry};
use bowline_engine::phase::Stage;
use bowline_server::Options;
use bowline_server::journal::ConfigMapJournal;
use bowline_store::file::{BackupVolumeInfo, Method, PersistentVolumeInfo};
use bowline_store::name::RunUid;
use bowline_store::{BackupName, BackupStore};
use bowline_testbed::apply::apply;
use bowline_testbed::fixture;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{World, eventually, is_available, shared};
use crate::fault_injection;
use crate::support::operations::key;
use crate::support::runs::{Run, is_over, is_waiting, phase, status_field};
use cells::{Act, FINALIZING, Failure, ITEMS, Row, WAITING, rows};
use gateway::{Gateway, Mode};
use node::{Execs, LostNode};

/// Longer than the test.
const LONG: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_secs(1);
/// A bound that runs are to reach, after others were canceled and deleted in good time.
const BOUND: Duration = Duration::from_secs(30);
/// Number of attempts at a stage.
const ATTEMPTS: usize = 3;
const SET: &str = "sdk";
/// Plugins that are there only when runs are to hang. Items are shown to those of [`SET`] before.
const SILENT: &str = "silent";
/// Longer than the test.
const OPERATION: &str = "operation=600000";

/// A world whose server has locations that can fail.
struct OutageWorld {
    world: World,
    /// Bucket of the location `elsewhere`, which has no failure.
    store: BackupStore,
    /// The way to all other locations.
    gateway: Gateway,
}

impl OutageWorld {
    /// A location for each of these failures, and the location `elsewhere`.
    async fn open(name: &str, failures: &[Failure]) -> Self {
        let mut world = World::without_server(name).await;
        world.install_sets().await;
        world.run(options(&world, LONG));
        let store = world.filesystem_location("elsewhere").await;
        let gateway = Gateway::start().await;
        for location in failures.iter().copied().map(location_of) {
            world.credentials(location).await;
            shared().s3.create_bucket(&world.bucket(location)).unwrap();
            let mut spec = world.s3_spec(location);
            spec["credential"]["name"] = json!(location);
            spec["config"]["s3Url"] = json!(format!("http://{}", gateway.address));
            world.location(location, spec).await;
        }
        for location in failures.iter().copied().map(location_of) {
            world.until(location, is_available).await;
        }
        Self { world, store, gateway }
    }

    /// A namespace with a claim that has annotations.
    async fn application(&self, app: &str, annotations: &Value) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app}});
        apply(&self.world.client, namespace).await.unwrap();
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": app, "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": {"requests": {"storage": "1Mi"}},
            },
        });
        apply(&self.world.client, claim).await.unwrap();
    }

    async fn back_up(&self, name: &str, app: &str, location: &str, spec: Value) {
        let mut spec = spec;
        spec["includedNamespaces"] = json!([app]);
        spec["storageLocation"] = json!(location);
        if spec["includedResources"].is_null() {
            spec["includedResources"] = json!(["persistentvolumeclaims"]);
        }
        self.world.create::<Backup>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// Begins a restore of a backup into a namespace of its own.
    async fn restore(&self, row: &Row, backup: &str, from: &str, spec: Value) {
        let mut spec = spec;
        spec["backupName"] = json!(backup);
        spec["namespaceMapping"] = json!({from: app_of(row)});
        self.world.create::<Restore>(json!({"metadata": {"name": row.name}, "spec": spec})).await;
    }

    /// Begins a backup for each row, of a claim whose operation does not end.
    async fn begin_backups(&self, rows: &[Row]) {
        let starting = rows.iter().map(async |row| {
            self.application(&app_of(row), &json!({key(SET, "do"): OPERATION})).await;
            let spec = json!({"itemOperationTimeout": "1h"});
            self.back_up(&row.name, &app_of(row), location_of(row.failure), spec).await;
        });
        join_all(starting).await;
    }

    /// Begins a restore for each row, of a claim whose operation does not end.
    async fn begin_restores(&self, source: &str, rows: &[Row]) {
        self.application(source, &json!({key(SET, "do"): OPERATION})).await;
        let locations: HashSet<&str> = rows.iter().map(|row| location_of(row.failure)).collect();
        for location in &locations {
            let spec = json!({"itemOperationTimeout": "1s"});
            self.back_up(&format!("src-{location}"), source, location, spec).await;
        }
        for location in &locations {
            self.world.until::<Backup>(&format!("src-{location}"), is_over).await;
        }
        for row in rows {
            let backup = format!("src-{}", location_of(row.failure));
            self.restore(row, &backup, source, json!({})).await;
        }
    }

    async fn until_waiting<K: Run>(&self, rows: &[Row]) {
        join_all(rows.iter().map(|row| self.world.until::<K>(&row.name, is_waiting))).await;
    }

    /// Sets the stages of these runs, as if the server had ended there.
    async fn set_stages<K: Run>(&self, rows: &[Row]) {
        let set = rows.iter().map(async |row| {
            self.world.patch::<K>(&row.name, json!({"status": {"phase": row.stage}})).await;
        });
        join_all(set).await;
    }

    /// Adds to the journal of a run that no server works on.
    async fn append_records<K: Run>(&self, row: &Row, records: &[JournalEntry]) {
        let uid = self.uid::<K>(row).await;
        let (client, namespace) = (self.world.client.clone(), &self.world.namespace);
        let (kind, uid) = (K::kind(&()).into_owned(), RunUid::new(uid).unwrap());
        let opened = ConfigMapJournal::open(client, namespace, &uid, &kind, &row.name).await;
        let journal = opened.unwrap().0.with_location(location_of(row.failure));
        for record in records {
            journal.append(record).await.unwrap();
        }
    }

    /// Sets the attempts of these runs to the limit, as if servers had died.
    async fn append_attempts<K: Run>(&self, rows: &[Row]) {
        for row in rows_with_act(rows, Act::Attempts) {
            let at = Timestamp::now();
            let attempt = match row.stage {
                ITEMS => JournalEntry::Attempt { at },
                WAITING => JournalEntry::StageAttempt { stage: Stage::Waiting, at },
                _ => JournalEntry::StageAttempt { stage: Stage::Finalizing, at },
            };
            self.append_records::<K>(row, &vec![attempt; ATTEMPTS]).await;
        }
    }

    async fn uid<K: Run>(&self, row: &Row) -> String {
        self.world.api::<K>().get(&row.name).await.unwrap().uid().unwrap()
    }

    /// Number of calls of a plugin in a run.
    fn calls(&self, call: &str, uid: &str) -> usize {
        let calls = std::fs::read_to_string(self.world.path(SET).join("calls"));
        let is_meant = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            words[2] == call && words[3] == uid
        };
        calls.unwrap_or_default().lines().filter(is_meant).count()
    }

    /// Waits until the items of a run have been shown to a plugin so often.
    async fn until_shown<K: Run>(&self, row: &Row, count: usize) {
        let uid = self.uid::<K>(row).await;
        eventually(&format!("{row:?} is shown"), async || self.calls("execute", &uid) >= count)
            .await;
    }

    async fn pages(&self) -> Vec<ConfigMap> {
        let params = ListParams::default().labels("bowline.io/journal");
        self.world.api::<ConfigMap>().list(&params).await.unwrap().items
    }

    /// Whose journals are there.
    async fn journals(&self) -> HashSet<String> {
        self.pages().await.iter().map(run_of).cloned().collect()
    }

    /// Waits until none of these has a journal.
    async fn until_journals_removed(&self, is_meant: impl Fn(&String) -> bool) {
        eventually("no journal remains", async || {
            let mut remaining = self.journals().await;
            remaining.retain(&is_meant);
            if remaining.is_empty() { Ok(()) } else { Err(remaining) }
        })
        .await;
    }

    /// Waits until all of these wait for their buckets, as their journals say.
    async fn until_waiting_for_bucket(&self, runs: &[&Row]) {
        eventually("all wait for their buckets", async || {
            let pages = self.pages().await;
            let is_lost = |page: &&ConfigMap| {
                let records = page.data.iter().flat_map(|data| data.values());
                records.into_iter().any(|record| record.contains("bucketLost"))
            };
            let lost: HashSet<&String> = pages.iter().filter(is_lost).map(run_of).collect();
            let missing: Vec<_> = runs.iter().filter(|row| !lost.contains(&row.name)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} do not wait")) }
        })
        .await;
    }

    /// Waiting runs do not block others, although they are in progress in the same namespaces. The server knows older
    /// runs by then.
    async fn lets_others_pass(&self, namespaces: &str) {
        let spec = json!({"includedResources": ["configmaps"]});
        self.back_up("next", namespaces, "elsewhere", spec).await;
        let next = self.world.until::<Backup>("next", is_over).await;
        assert_eq!(phase(&next), "Completed", "{next:?}");
    }

    /// Cancels and deletes. Returns the uids of the deleted runs, with their cells.
    async fn act<'a, K: Run>(&self, rows: &'a [Row]) -> Vec<(&'a Row, String)> {
        let cancel: Value = json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}});
        let acts = rows.iter().map(async |row| match row.act {
            Act::Cancel => {
                self.world.patch::<K>(&row.name, cancel.clone()).await;
                None
            }
            Act::Delete => {
                let uid = self.uid::<K>(row).await;
                self.world.delete::<K>(&row.name).await;
                Some((row, uid))
            }
            Act::Time | Act::Attempts => None,
        });
        join_all(acts).await.into_iter().flatten().collect()
    }

    /// Waits for the end of the canceled runs.
    async fn assert_canceled<K: Run>(&self, rows: &[Row]) {
        let each = rows_with_act(rows, Act::Cancel).map(async |row| {
            let run = self.assert_failed::<K>(row, "canceled: ").await;
            if has_operation(row) {
                let uid = run.uid().unwrap();
                let is_stopped = async || self.calls("cancel", &uid) > 0;
                eventually(&format!("the operation of {row:?} is canceled"), is_stopped).await;
            }
        });
        join_all(each).await;
    }

    /// Waits for the end of the runs with a bound, whose reason names the bound.
    async fn assert_bound_reached<K: Run>(&self, rows: &[Row], act: Act, expected: &str) {
        join_all(rows_with_act(rows, act).map(|row| self.assert_failed::<K>(row, expected))).await;
    }

    async fn assert_failed<K: Run>(&self, row: &Row, expected: &str) -> K {
        let run = self.world.until::<K>(&row.name, is_over).await;
        let reason = status_field(&run, "failureReason");
        let reason = reason.as_str().unwrap_or_default();
        assert_eq!(phase(&run), "Failed", "{row:?} {run:?}");
        assert!(reason.contains(expected), "{row:?}: {reason}");
        run
    }

    /// Runs that only a bound ends have not ended, so the bound has not ended the others.
    async fn are_not_over<K: Run>(&self, rows: &[Row]) {
        for row in rows_with_act(rows, Act::Time) {
            let run = self.world.api::<K>().get(&row.name).await.unwrap();
            assert!(!is_over(&run), "{row:?} {run:?}");
        }
    }

    /// Waits for the end of the runs that continue without the missing part.
    async fn assert_partially_failed<K: Run>(&self, rows: &[Row]) {
        let each = rows_with_act(rows, Act::Time).map(async |row| {
            let run = self.world.until::<K>(&row.name, is_over).await;
            assert_eq!(phase(&run), "PartiallyFailed", "{row:?} {run:?}");
        });
        join_all(each).await;
    }

    /// Ends the server, and starts another.
    async fn restart(&mut self, options: Options) {
        self.world.end().await.unwrap();
        self.world.run(options);
    }
}

fn options(world: &World, bucket_wait_timeout: Duration) -> Options {
    Options {
        bucket_wait_timeout,
        run_attempts: ATTEMPTS,
        concurrent_backups: 100,
        concurrent_restores: 100,
        store_validation_frequency: Duration::from_hours(1),
        backup_sync_period: Duration::from_hours(1),
        ..world.options()
    }
}

/// Every run must be brought to its end within ten minutes. A bucket that does not answer is given up after a minute for
/// each call, so that an operation behind it is stopped only after two or three of them.
const STOP_LIMIT: Duration = Duration::from_mins(5);

/// The location whose bucket fails.
fn location_of(failure: Failure) -> &'static str {
    match failure {
        Failure::BucketAway => "away",
        Failure::BucketRefuses => "refuses",
        Failure::SecretGone => "secretless",
        Failure::PluginHangs | Failure::NodeAway => "elsewhere",
    }
}

/// The namespace of a run.
fn app_of(row: &Row) -> String {
    format!("app-{}", row.name)
}

/// True if a run has an operation that can be canceled.
fn has_operation(row: &Row) -> bool {
    match row.failure {
        // Behind the operations of a backup there are none any more.
        Failure::BucketAway | Failure::BucketRefuses | Failure::SecretGone => {
            row.kind == cells::Kind::Restore || row.stage != FINALIZING
        }
        Failure::PluginHangs => false,
        Failure::NodeAway => row.kind == cells::Kind::Backup,
    }
}

/// Whose journal a page is of.
fn run_of(page: &ConfigMap) -> &String {
    &page.annotations()["bowline.io/run-name"]
}

fn rows_with_act(rows: &[Row], act: Act) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.act == act)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_ends_with_a_refusing_bucket_or_missing_secret() {
    let failures = [Failure::BucketRefuses, Failure::SecretGone];
    let mut outage = OutageWorld::open("outage", &failures).await;
    let (backups, restores) = rows(&failures);
    outage.begin_backups(&backups).await;
    outage.begin_restores("app-outage-src", &restores).await;
    outage.until_waiting::<Backup>(&backups).await;
    outage.until_waiting::<Restore>(&restores).await;
    outage.world.end().await.unwrap();

    // All of them are resumed with the failure present.
    outage.set_stages::<Backup>(&backups).await;
    outage.set_stages::<Restore>(&restores).await;
    outage.append_attempts::<Backup>(&backups).await;
    outage.append_attempts::<Restore>(&restores).await;
    outage.gateway.set(Mode::Refuses);
    outage.world.delete::<Secret>("secretless").await;
    outage.world.run(options(&outage.world, LONG));
    let all = backups.iter().chain(&restores);
    let waiting: Vec<&Row> = all.filter(|row| row.act != Act::Attempts).collect();
    outage.until_waiting_for_bucket(&waiting).await;

    outage.lets_others_pass("app-backup-bucketrefuses-*").await;
    let deleted = outage.act::<Backup>(&backups).await;
    outage.act::<Restore>(&restores).await;
    outage.assert_canceled::<Backup>(&backups).await;
    outage.assert_canceled::<Restore>(&restores).await;
    // These were deleted between two attempts, and their buckets do not answer.
    for (row, uid) in deleted.iter().filter(|(row, _)| has_operation(row)) {
        let is_stopped = async || outage.calls("cancel", uid) > 0;
        eventually(&format!("the operation of {row:?} is canceled"), is_stopped).await;
    }
    let reason = format!("the server stopped {ATTEMPTS} times");
    outage.assert_bound_reached::<Backup>(&backups, Act::Attempts, &reason).await;
    outage.assert_bound_reached::<Restore>(&restores, Act::Attempts, &reason).await;
    outage.are_not_over::<Backup>(&backups).await;
    outage.are_not_over::<Restore>(&restores).await;

    outage.restart(options(&outage.world, SHORT)).await;
    let reason = "the bucket was unavailable for";
    outage.assert_bound_reached::<Backup>(&backups, Act::Time, reason).await;
    outage.assert_bound_reached::<Restore>(&restores, Act::Time, reason).await;
    let deleted = rows_with_act(&restores, Act::Delete);
    join_all(deleted.map(|row| outage.world.until_gone::<Restore>(&row.name))).await;

    // Of each run the bucket still has files, and of a backup that was deleted perhaps the record. None is
    // forgotten until the bucket can be used, and all are then.
    let kept_journals = outage.journals().await;
    for row in rows_with_act(&backups, Act::Delete) {
        assert!(
            kept_journals.contains(&row.name),
            "{row:?} is forgotten, and its bucket has not said anything"
        );
    }
    outage.gateway.set(Mode::Open);
    outage.world.credentials("secretless").await;
    outage.restart(options(&outage.world, LONG)).await;
    outage.until_journals_removed(|_| true).await;
}

// The longest test, so its name sorts first.
#[tokio::test(flavor = "multi_thread")]
async fn runs_end_when_their_bucket_stays_unreachable() {
    let failures = [Failure::BucketAway];
    let mut outage = OutageWorld::open("outage-away", &failures).await;
    let (backups, restores) = rows(&failures);
    outage.begin_backups(&backups).await;
    outage.begin_restores("app-outage-away-src", &restores).await;
    outage.until_waiting::<Backup>(&backups).await;
    outage.until_waiting::<Restore>(&restores).await;
    outage.world.end().await.unwrap();

    outage.set_stages::<Backup>(&backups).await;
    outage.set_stages::<Restore>(&restores).await;
    outage.append_attempts::<Backup>(&backups).await;
    outage.append_attempts::<Restore>(&restores).await;
    // A bucket that is away takes a minute to be found so. An earlier server has found it so once.
    let at = Timestamp::now() - SignedDuration::from_hours(1);
    let lost = [JournalEntry::BucketLost { at, stage: None }];
    for row in rows_with_act(&backups, Act::Time) {
        outage.append_records::<Backup>(row, &lost).await;
    }
    for row in rows_with_act(&restores, Act::Time) {
        outage.append_records::<Restore>(row, &lost).await;
    }
    outage.gateway.set(Mode::Away);
    outage.world.run(options(&outage.world, SHORT));
    outage.lets_others_pass("app-backup-bucketaway-*").await;
    let deleted = outage.act::<Backup>(&backups).await;
    let restores_deleted = outage.act::<Restore>(&restores).await;
    outage.assert_canceled::<Backup>(&backups).await;
    outage.assert_canceled::<Restore>(&restores).await;
    let all = deleted.iter().chain(&restores_deleted);
    for (row, uid) in all.filter(|(row, _)| has_operation(row)) {
        let is_stopped = async || outage.calls("cancel", uid) > 0;
        bowline_testbed::eventually(&format!("{row:?} ends"), STOP_LIMIT, is_stopped).await;
    }
    let reason = format!("the server stopped {ATTEMPTS} times");
    outage.assert_bound_reached::<Backup>(&backups, Act::Attempts, &reason).await;
    outage.assert_bound_reached::<Restore>(&restores, Act::Attempts, &reason).await;
    let reason = "the bucket was unavailable for";
    outage.assert_bound_reached::<Backup>(&backups, Act::Time, reason).await;
    outage.assert_bound_reached::<Restore>(&restores, Act::Time, reason).await;
    let kept_journals = outage.journals().await;
    for (row, _) in &deleted {
        assert!(
            kept_journals.contains(&row.name),
            "{row:?} is forgotten, and its bucket has not said anything"
        );
    }
    outage.gateway.set(Mode::Open);
    // The Restores stay for as long as it takes to find out that files cannot be deleted, which is minutes.
    for (row, _) in &restores_deleted {
        outage.world.until_gone::<Restore>(&row.name).await;
    }
    outage.restart(options(&outage.world, LONG)).await;
    outage.until_journals_removed(|_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_ends_with_a_hanging_plugin() {
    let mut outage = OutageWorld::open("outage-hangs", &[]).await;
    let (backups, restores) = rows(&[Failure::PluginHangs]);
    let (finalizing, others): (Vec<Row>, Vec<Row>) =
        backups.iter().cloned().partition(|row| row.stage == FINALIZING);
    let hangs = |stage: &str| match stage {
        WAITING => json!({key(SILENT, "do"): format!("{OPERATION},cancel-hang")}),
        _ => json!({key(SILENT, "do"): "hang"}),
    };
    let source = |stage: &str| format!("app-outage-hangs-{}", stage.to_lowercase());
    for stage in [ITEMS, WAITING] {
        outage.application(&source(stage), &hangs(stage)).await;
        outage.back_up(&source(stage), &source(stage), "elsewhere", json!({})).await;
    }
    for row in &finalizing {
        // Stored again at the end, and passed again to the plugins of that time.
        let mut annotations = hangs(row.stage);
        annotations[key(SET, "do")] = json!(OPERATION);
        annotations[key(SET, "post-operation")] =
            json!(format!("persistentvolumeclaims/{}/c", app_of(row)));
        outage.application(&app_of(row), &annotations).await;
        outage.back_up(&row.name, &app_of(row), "elsewhere", json!({})).await;
    }
    for row in &others {
        outage.application(&app_of(row), &hangs(row.stage)).await;
    }
    outage.until_waiting::<Backup>(&finalizing).await;
    for stage in [ITEMS, WAITING] {
        outage.world.until::<Backup>(&source(stage), is_over).await;
    }
    outage.world.end().await.unwrap();
    outage.set_stages::<Backup>(&finalizing).await;
    install_silent_plugin(&outage.world).await;

    let options = options(&outage.world, LONG);
    outage.world.run(Options { plugin_call_timeout: Some(BOUND), ..options });
    let spec = |row: &Row| match (row.stage, row.act) {
        (WAITING, Act::Time) => json!({"itemOperationTimeout": "1s"}),
        _ => json!({"itemOperationTimeout": "1h"}),
    };
    for row in &others {
        outage.back_up(&row.name, &app_of(row), "elsewhere", spec(row)).await;
    }
    for row in &restores {
        outage.restore(row, &source(row.stage), &source(row.stage), spec(row)).await;
    }
    for row in &finalizing {
        outage.until_shown::<Backup>(row, 2).await;
    }
    for row in others.iter().filter(|row| row.stage == ITEMS) {
        outage.until_shown::<Backup>(row, 1).await;
    }
    for row in restores.iter().filter(|row| row.stage == ITEMS) {
        outage.until_shown::<Restore>(row, 1).await;
    }
    let is_at = |row: &&Row| row.stage == WAITING && row.act != Act::Time;
    for row in others.iter().filter(is_at) {
        outage.world.until::<Backup>(&row.name, is_waiting).await;
    }
    for row in restores.iter().filter(is_at) {
        outage.world.until::<Restore>(&row.name, is_waiting).await;
    }
    outage.act::<Backup>(&backups).await;
    outage.act::<Restore>(&restores).await;
    let is_deleted = |row: &&Row| row.act == Act::Delete;
    let deleted: HashSet<String> =
        backups.iter().chain(&restores).filter(is_deleted).map(|row| row.name.clone()).collect();
    let calls: Vec<Row> = backups.iter().filter(|row| row.stage != WAITING).cloned().collect();
    let restored: Vec<Row> = restores.iter().filter(|row| row.stage != WAITING).cloned().collect();
    outage.assert_canceled::<Backup>(&calls).await;
    outage.assert_canceled::<Restore>(&restored).await;
    outage.are_not_over::<Backup>(&calls).await;
    outage.are_not_over::<Restore>(&restored).await;
    outage.assert_canceled::<Backup>(&backups).await;
    outage.assert_canceled::<Restore>(&restores).await;
    outage.until_journals_removed(|name| deleted.contains(name)).await;
    for row in rows_with_act(&restores, Act::Delete) {
        outage.world.until_gone::<Restore>(&row.name).await;
    }
    outage.assert_partially_failed::<Backup>(&backups).await;
    outage.assert_partially_failed::<Restore>(&restores).await;
    outage.until_journals_removed(|_| true).await;
}

/// Lets servers that are started from now on have plugins of the domain [`SILENT`].
async fn install_silent_plugin(world: &World) {
    let plugin = world.path("plugins").join(SILENT);
    let binary = fixture::rust_plugins().await.unwrap();
    let binary = binary.display();
    let script =
        format!("#!/bin/sh\nFIXTURE_DOMAIN='{SILENT}.bowline.io' exec '{binary}' \"$@\"\n");
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one walk through all cells")]
async fn every_run_ends_with_an_unreachable_node() {
    let mut outage = OutageWorld::open("outage-node", &[]).await;
    let silent = LostNode::silent(&outage.world.client, "outage-silent").await;
    let down = LostNode::down(&outage.world.client, "outage-down").await;
    let (backups, restores) = rows(&[Failure::NodeAway]);
    let (finalizing, others): (Vec<Row>, Vec<Row>) =
        restores.iter().cloned().partition(|row| row.stage == FINALIZING);
    let thaw = json!({
        annotation::hook::POST_COMMAND: "thaw", annotation::hook::POST_TIMEOUT: "10s",
    });
    // Some that begin when their node is away already.
    let mut live = Vec::new();
    for (name, node, act) in [
        ("down-cancel", &down, Act::Cancel),
        ("down-delete", &down, Act::Delete),
        ("silent-cancel", &silent, Act::Cancel),
        ("silent-delete", &silent, Act::Delete),
        ("silent-time", &silent, Act::Time),
    ] {
        let row = Row { name: name.to_owned(), act, ..backups[0].clone() };
        outage.application(&app_of(&row), &json!({})).await;
        node.add_pod(&app_of(&row), name, &thaw).await;
        live.push(row);
    }
    let (claims, pods) = ("app-outage-node-claims", "app-outage-node-pods");
    outage.begin_backups(&backups).await;
    outage.begin_restores(claims, &finalizing).await;
    outage.application(pods, &json!({})).await;
    silent.add_pod(pods, "p", &json!({annotation::hook::RESTORE_COMMAND: "go-on"})).await;
    let spec = json!({"includedResources": ["pods"]});
    outage.back_up("pods", pods, "elsewhere", spec.clone()).await;
    let backed_up = outage.world.until::<Backup>("pods", is_over).await;
    assert_eq!(phase(&backed_up), "Completed", "{backed_up:?}");
    outage.until_waiting::<Backup>(&backups).await;
    outage.until_waiting::<Restore>(&finalizing).await;
    outage.world.end().await.unwrap();

    outage.set_stages::<Backup>(&backups).await;
    outage.set_stages::<Restore>(&finalizing).await;
    let namespace = outage.world.namespace.clone();
    for row in &backups {
        let pod = down.add_pod(&namespace, &row.name, &thaw).await;
        let (namespace, name, uid) = (namespace.clone(), pod.name_any(), pod.uid().unwrap());
        let frozen = journal::Pod { namespace, name, uid, ran: Vec::new() };
        let started = BlockStarted { block: 1000, pods: vec![frozen], ..BlockStarted::default() };
        outage.append_records::<Backup>(row, &[JournalEntry::BlockStarted(started)]).await;
    }
    // The restored claims are waited for as if a driver had to make their volumes.
    let volume = BackupVolumeInfo {
        pvc_namespace: claims.to_owned(),
        pvc_name: "c".to_owned(),
        backup_method: Some(Method::CsiSnapshot),
        pv_info: Some(PersistentVolumeInfo::default()),
        ..BackupVolumeInfo::default()
    };
    let name = BackupName::new("src-elsewhere").unwrap();
    outage.store.put(&name, &vec![volume]).await.unwrap();

    let options = Options { resource_timeout: BOUND, ..options(&outage.world, LONG) };
    let execs = Execs::default();
    let watch = execs.watch();
    outage
        .world
        .run_through(options.clone(), move |client| fault_injection::faulty_client(client, watch));
    for row in &others {
        outage.restore(row, "pods", pods, json!({})).await;
    }
    for row in &live {
        outage.back_up(&row.name, &app_of(row), "elsewhere", spec.clone()).await;
    }
    for row in backups.iter().chain(&live).filter(|row| row.stage == ITEMS) {
        let what = format!("{row:?} thaws");
        eventually(&what, async || execs.has(&row.name)).await;
    }
    for row in &others {
        let pods: Api<Pod> = Api::namespaced(outage.world.client.clone(), &app_of(row));
        let what = format!("{row:?} has its pod");
        eventually(&what, async || pods.get_opt("p").await.unwrap().is_some()).await;
    }
    for row in &finalizing {
        let restore = outage.world.api::<Restore>().get(&row.name).await.unwrap();
        assert_eq!(phase(&restore), FINALIZING, "{row:?}");
    }
    let deleted = outage.act::<Backup>(&backups).await;
    outage.act::<Backup>(&live).await;
    let since = Instant::now();
    outage.act::<Restore>(&restores).await;
    outage.assert_canceled::<Restore>(&restores).await;
    for row in rows_with_act(&restores, Act::Delete) {
        outage.world.until_gone::<Restore>(&row.name).await;
    }
    outage.are_not_over::<Restore>(&restores).await;
    outage.assert_canceled::<Backup>(&backups).await;
    for row in rows_with_act(&live, Act::Cancel) {
        outage.assert_failed::<Backup>(row, "canceled: ").await;
    }
    assert!(since.elapsed() < Duration::from_mins(1), "pods are tried: {:?}", since.elapsed());
    for (row, uid) in &deleted {
        eventually(&format!("{row:?} ends"), async || outage.calls("cancel", uid) > 0).await;
    }
    let silent_ones = |name: &String| name.starts_with("silent-");
    outage.until_journals_removed(silent_ones).await;
    outage.assert_partially_failed::<Backup>(&live).await;
    outage.assert_partially_failed::<Restore>(&restores).await;

    // Unreached pods may still be frozen, and stay in the journal until they are thawed.
    let kept_journals = outage.journals().await;
    for row in backups.iter().chain(&live).filter(|row| !silent_ones(&row.name)) {
        assert!(
            kept_journals.contains(&row.name),
            "{row:?} is forgotten, and its pod may be frozen"
        );
    }
    for row in &backups {
        down.remove_pod(&namespace, &row.name).await;
    }
    for row in live.iter().filter(|row| !silent_ones(&row.name)) {
        down.remove_pod(&app_of(row), &row.name).await;
    }
    outage.restart(options).await;
    outage.until_journals_removed(|_| true).await;
}

/// Ignored by default, since the client retries an upload with random pauses, which takes from seconds to many minutes.
#[ignore = "takes many minutes; bench/full runs it"]
#[tokio::test(flavor = "multi_thread")]
async fn backup_that_loses_its_bucket_keeps_its_operations() {
    let outage = OutageWorld::open("outage-kept", &[Failure::BucketAway]).await;
    let app = "app-outage-kept";
    outage.application(app, &json!({key(SET, "do"): OPERATION})).await;
    let slow = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "d", "namespace": app, "annotations": {key(SET, "do"): "sleep=20000"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    apply(&outage.world.client, slow).await.unwrap();
    outage.back_up("b", app, "away", json!({"itemOperationTimeout": "1h"})).await;
    let backup = outage.world.api::<Backup>().get("b").await.unwrap();
    let uid = backup.uid().unwrap();
    // While the second item is with the plugin, the block of the first has ended.
    eventually("both items are shown", async || outage.calls("execute", &uid) > 1).await;
    outage.gateway.set(Mode::Away);
    bowline_testbed::eventually(
        "the backup waits for the bucket",
        Duration::from_mins(20),
        async || {
            let pages = outage.pages().await;
            let mut records =
                pages.iter().flat_map(|page| page.data.iter().flat_map(|data| data.values()));
            records.any(|record| record.contains("bucketLost"))
        },
    )
    .await;
    outage.gateway.set(Mode::Open);
    let resumed =
        outage.world.until::<Backup>("b", |backup| is_waiting(backup) || is_over(backup)).await;
    assert_eq!(phase(&resumed), WAITING, "{resumed:?}");
    assert_eq!(outage.calls("cancel", &uid), 0, "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_lost_during_a_backup_delays_neither_its_cancel_nor_others() {
    let mut outage = OutageWorld::open("outage-live", &[Failure::BucketAway]).await;
    let app = "app-outage-live";
    outage.application(app, &json!({key(SET, "do"): format!("sleep=3000,{OPERATION}")})).await;
    outage.back_up("b", app, "away", json!({"itemOperationTimeout": "1h"})).await;
    let has_items =
        |backup: &Backup| status_field(backup, "progress")["totalItems"].as_i64() > Some(0);
    let backup = outage.world.until::<Backup>("b", has_items).await;
    outage.gateway.set(Mode::Away);
    let uid = backup.uid().unwrap();
    eventually("the item is shown", async || outage.calls("execute", &uid) > 0).await;
    let since = Instant::now();
    let cancel = json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}});
    outage.world.patch::<Backup>("b", cancel).await;
    let ended = outage.world.until::<Backup>("b", is_over).await;
    assert!(since.elapsed() < Duration::from_mins(1), "{:?}", since.elapsed());
    let reason = status_field(&ended, "failureReason");
    assert!(reason.as_str().unwrap().starts_with("canceled: "), "{ended:?}");
    assert!(outage.calls("cancel", &uid) > 0, "{ended:?}");
    outage.gateway.set(Mode::Open);
    // Its files in the bucket are deleted by cleanup at the latest.
    outage.restart(options(&outage.world, LONG)).await;
    outage.until_journals_removed(|_| true).await;
}
