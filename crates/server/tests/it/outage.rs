//! Runs whose buckets cannot be used, at each stage: they can be canceled and deleted, end by themselves, and hold up
//! nobody.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use bowline_api::{Backup, Restore, annotation};
use bowline_server::Options;
use bowline_testbed::apply::apply;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bed::{LIMIT, World, is_available, shared};
use crate::operations::{Run, is_over, is_waiting, key, phase, says};

/// What lies between a server and its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Everything goes through.
    Open,
    /// Nobody answers.
    Away,
    /// Each request is refused.
    Refuses,
}

/// A way to the S3 server that can be closed.
struct Gateway {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
}

impl Gateway {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, seen) = watch::channel(Mode::Open);
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(serve(client, seen.clone()));
            }
        });
        Self { address, mode }
    }
}

/// Serves one connection, until the mode is another.
async fn serve(mut client: TcpStream, mut seen: watch::Receiver<Mode>) {
    let mode = *seen.borrow_and_update();
    let served = async {
        match mode {
            Mode::Away => {}
            Mode::Open => {
                let server = shared().s3.url();
                let server = server.trim_start_matches("http://").trim_end_matches('/');
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
            Mode::Refuses => {
                let mut head = vec![0; 16 << 10];
                let _ = client.read(&mut head).await;
                let refusal =
                    "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = client.write_all(refusal.as_bytes()).await;
                let _ = client.shutdown().await;
                // A body that comes late would cut the answer off.
                while client.read(&mut head).await.is_ok_and(|count| count > 0) {}
            }
        }
    };
    tokio::select! {
        () = served => {}
        _ = seen.changed() => {}
    }
}

/// What is wrong with the buckets.
const FAILURES: [&str; 3] = ["away", "refuses", "secretless"];
const STAGES: [&str; 3] = ["InProgress", "WaitingForPluginOperations", "Finalizing"];
/// Longer than the test.
const LONG: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_secs(1);
const SET: &str = "sdk";

/// What is done with a run whose bucket cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Cancel,
    Delete,
    /// Nothing: it ends by itself.
    Wait,
}

/// One run of the matrix.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    failure: &'static str,
    stage: &'static str,
    act: Act,
}

fn rows(kind: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for failure in FAILURES {
        for stage in STAGES {
            for act in [Act::Cancel, Act::Delete, Act::Wait] {
                // A bucket that is away takes a minute to be found so, each time.
                if failure == "away" && act != Act::Cancel {
                    continue;
                }
                let name = format!("{kind}-{}", rows.len());
                rows.push(Row { name, failure, stage, act });
            }
        }
    }
    rows
}

struct Stage {
    world: World,
    gateways: [Gateway; 2],
}

impl Stage {
    async fn set(name: &str) -> Self {
        let mut world = World::idle(name).await;
        world.install_sets().await;
        world.run(options(&world, LONG));
        world.filesystem_location("elsewhere").await;
        let gateways = [Gateway::start().await, Gateway::start().await];
        for failure in FAILURES {
            let gateway = if failure == "away" { &gateways[0] } else { &gateways[1] };
            world.credentials(failure).await;
            shared().s3.create_bucket(&world.bucket(failure)).unwrap();
            let mut spec = world.s3_spec(failure);
            spec["credential"]["name"] = json!(failure);
            spec["config"]["s3Url"] = json!(format!("http://{}", gateway.address));
            world.location(failure, spec).await;
        }
        for failure in FAILURES {
            world.until(failure, is_available).await;
        }
        Self { world, gateways }
    }

    /// A namespace with a claim whose operation does not end, in backups and in restores.
    async fn application(&self, app: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app}});
        apply(&self.world.client, namespace).await.unwrap();
        let annotations = json!({key(SET, "do"): "operation=600000"});
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

    async fn back_up(&self, name: &str, app: &str, location: &str, timeout: &str) {
        let spec = json!({
            "includedNamespaces": [app], "includedResources": ["persistentvolumeclaims"],
            "storageLocation": location, "itemOperationTimeout": timeout,
        });
        self.world.create::<Backup>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    fn set_modes(&self, away: Mode, refuses: Mode) {
        self.gateways[0].mode.send(away).unwrap();
        self.gateways[1].mode.send(refuses).unwrap();
    }

    /// Whether the plugin was told to stop an operation of a run.
    fn was_told_to_stop(&self, uid: &str) -> bool {
        let calls = std::fs::read_to_string(self.world.path(SET).join("calls")).unwrap();
        calls.lines().any(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[2] == "cancel" && words[3] == uid
        })
    }

    async fn pages(&self) -> Vec<ConfigMap> {
        let params = ListParams::default().labels("bowline.io/journal");
        self.world.api::<ConfigMap>().list(&params).await.unwrap().items
    }

    /// Waits until no run has a journal.
    async fn until_forgotten(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let pages = self.pages().await;
            if pages.is_empty() {
                return;
            }
            let left: Vec<_> = pages.iter().map(run_of).collect();
            assert!(Instant::now() < deadline, "journals are left: {left:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// As if the server had ended at another stage.
    async fn ended_at<K: Run>(&self, row: &Row) {
        self.world.patch::<K>(&row.name, json!({"status": {"phase": row.stage}})).await;
    }

    /// Waits until all of these wait for their buckets, as their journals say.
    async fn until_lost(&self, runs: &[&Row]) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let pages = self.pages().await;
            let is_lost = |page: &&ConfigMap| {
                let records = page.data.iter().flat_map(|data| data.values());
                records.into_iter().any(|record| record.contains("bucketLost"))
            };
            let lost: HashSet<&String> = pages.iter().filter(is_lost).map(run_of).collect();
            let missing: Vec<_> = runs.iter().filter(|row| !lost.contains(&row.name)).collect();
            if missing.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "these do not wait for their buckets: {missing:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn act<K: Run>(&self, row: &Row) {
        let cancel: Value = json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}});
        match row.act {
            Act::Cancel => drop(self.world.patch::<K>(&row.name, cancel).await),
            Act::Delete => self.world.delete::<K>(&row.name).await,
            Act::Wait => {}
        }
    }

    async fn is_canceled<K: Run>(&self, row: &Row) {
        let run = self.world.until::<K>(&row.name, is_over).await;
        let reason = says(&run, "failureReason");
        let reason = reason.as_str().unwrap_or_default();
        assert_eq!(phase(&run), "Failed", "{row:?} {run:?}");
        assert!(reason.starts_with("canceled: "), "{row:?}: {reason}");
        // Behind the operations of a backup there are none any more.
        if K::kind(&()) == "Restore" || row.stage != "Finalizing" {
            assert!(self.was_told_to_stop(&run.uid().unwrap()), "{row:?}: {reason}");
        }
    }

    async fn has_ended<K: Run>(&self, row: &Row) {
        let run = self.world.until::<K>(&row.name, is_over).await;
        let reason = says(&run, "failureReason");
        let reason = reason.as_str().unwrap_or_default();
        assert_eq!(phase(&run), "Failed", "{row:?} {run:?}");
        assert!(reason.contains("the bucket could not be used for"), "{row:?}: {reason}");
    }
}

fn options(world: &World, bucket_wait_timeout: Duration) -> Options {
    Options {
        bucket_wait_timeout,
        concurrent_backups: 100,
        store_validation_frequency: Duration::from_hours(1),
        backup_sync_period: Duration::from_hours(1),
        ..world.options()
    }
}

/// Whose journal a page is of.
fn run_of(page: &ConfigMap) -> &String {
    &page.annotations()["bowline.io/run-name"]
}

fn of(rows: &[Row], act: Act) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.act == act)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_comes_to_an_end_whatever_its_bucket_does() {
    let mut stage = Stage::set("outage").await;
    let (backups, restores) = (rows("b"), rows("r"));
    stage.application("app-outage-src").await;
    for failure in FAILURES {
        stage.back_up(&format!("src-{failure}"), "app-outage-src", failure, "1s").await;
    }
    let begun = backups.iter().map(async |row| {
        let app = format!("app-outage-{}", row.name);
        stage.application(&app).await;
        stage.back_up(&row.name, &app, row.failure, "1h").await;
    });
    join_all(begun).await;
    for failure in FAILURES {
        stage.world.until::<Backup>(&format!("src-{failure}"), is_over).await;
    }
    for row in &restores {
        let into = json!({"app-outage-src": format!("app-outage-{}", row.name)});
        let spec = json!({"backupName": format!("src-{}", row.failure), "namespaceMapping": into});
        stage.world.create::<Restore>(json!({"metadata": {"name": row.name}, "spec": spec})).await;
    }
    join_all(backups.iter().map(|row| stage.world.until::<Backup>(&row.name, is_waiting))).await;
    join_all(restores.iter().map(|row| stage.world.until::<Restore>(&row.name, is_waiting))).await;
    stage.world.end().await.unwrap();

    // All of them find another world when they go on.
    join_all(backups.iter().map(|row| stage.ended_at::<Backup>(row))).await;
    join_all(restores.iter().map(|row| stage.ended_at::<Restore>(row))).await;
    stage.set_modes(Mode::Away, Mode::Refuses);
    stage.world.delete::<Secret>("secretless").await;
    let patient = options(&stage.world, LONG);
    stage.world.run(patient);
    let all = backups.iter().chain(&restores);
    let seen: Vec<&Row> = all.filter(|row| row.failure != "away").collect();
    stage.until_lost(&seen).await;

    // Nobody waits for those who wait, though they are in progress and the same namespaces are meant.
    let spec = json!({
        "storageLocation": "elsewhere", "includedResources": ["configmaps"],
        "includedNamespaces": ["app-outage-*"],
    });
    stage.world.create::<Backup>(json!({"metadata": {"name": "next"}, "spec": spec})).await;
    let next = stage.world.until::<Backup>("next", is_over).await;
    assert_eq!(phase(&next), "Completed", "{next:?}");

    join_all(backups.iter().map(|row| stage.act::<Backup>(row))).await;
    join_all(restores.iter().map(|row| stage.act::<Restore>(row))).await;
    join_all(of(&backups, Act::Cancel).map(|row| stage.is_canceled::<Backup>(row))).await;
    join_all(of(&restores, Act::Cancel).map(|row| stage.is_canceled::<Restore>(row))).await;
    for row in of(&backups, Act::Wait) {
        let backup = stage.world.api::<Backup>().get(&row.name).await.unwrap();
        assert_eq!(phase(&backup), row.stage, "{row:?}");
    }

    // So that nobody waits for an answer when the server ends.
    stage.set_modes(Mode::Refuses, Mode::Refuses);
    stage.world.end().await.unwrap();
    let impatient = options(&stage.world, SHORT);
    stage.world.run(impatient);
    join_all(of(&backups, Act::Wait).map(|row| stage.has_ended::<Backup>(row))).await;
    join_all(of(&restores, Act::Wait).map(|row| stage.has_ended::<Restore>(row))).await;
    let deleted = of(&restores, Act::Delete);
    join_all(deleted.map(|row| stage.world.until_gone::<Restore>(&row.name))).await;

    // Of each run the bucket still has files, and of a backup that was deleted perhaps the record. None is
    // forgotten until the bucket can be used, and all are then.
    let kept: HashSet<String> = stage.pages().await.iter().map(run_of).cloned().collect();
    for row in of(&backups, Act::Delete) {
        assert!(
            kept.contains(&row.name),
            "{row:?} is forgotten, and its bucket has not said anything"
        );
    }
    stage.world.end().await.unwrap();
    stage.set_modes(Mode::Open, Mode::Open);
    stage.world.credentials("secretless").await;
    let last = options(&stage.world, LONG);
    stage.world.run(last);
    stage.until_forgotten().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_goes_away_during_a_backup_holds_neither_its_cancel_nor_others() {
    let mut stage = Stage::set("outage-live").await;
    let app = "app-outage-live";
    stage.application(app).await;
    let orders =
        json!({"metadata": {"annotations": {key(SET, "do"): "sleep=3000,operation=600000"}}});
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::namespaced(stage.world.client.clone(), app);
    let params = kube::api::PatchParams::default();
    claims.patch("c", &params, &kube::api::Patch::Merge(orders)).await.unwrap();
    stage.back_up("b", app, "away", "1h").await;
    let has_items = |backup: &Backup| says(backup, "progress")["totalItems"].as_i64() > Some(0);
    let backup = stage.world.until::<Backup>("b", has_items).await;
    stage.set_modes(Mode::Away, Mode::Open);
    let calls = stage.world.path(SET).join("calls");
    let deadline = Instant::now() + LIMIT;
    while !std::fs::read_to_string(&calls).unwrap_or_default().contains(" execute ") {
        assert!(Instant::now() < deadline, "the item is not shown to its plugin");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let since = Instant::now();
    let cancel = json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}});
    stage.world.patch::<Backup>("b", cancel).await;
    let ended = stage.world.until::<Backup>("b", is_over).await;
    assert!(since.elapsed() < Duration::from_mins(1), "{:?}", since.elapsed());
    let reason = says(&ended, "failureReason");
    assert!(reason.as_str().unwrap().starts_with("canceled: "), "{ended:?}");
    assert!(stage.was_told_to_stop(&backup.uid().unwrap()), "{ended:?}");
    stage.set_modes(Mode::Open, Mode::Open);
    // What it left in the bucket is deleted by whoever comes next, at the latest.
    stage.world.end().await.unwrap();
    let next = options(&stage.world, LONG);
    stage.world.run(next);
    stage.until_forgotten().await;
}
