use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_api::BackupPhase;
use bowline_plugin::{
    Code, Encoded, Error, Item, ObjectStore as _, ResourceSelector, Result, SnapshotId,
};
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;
use bowline_store::file::{Results, Snapshot};
use bowline_store::{Backend, Prefix, encode};
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::cluster::Fake;
use crate::snapshotter::{OpenError, Snapshotter, Snapshotters};
use crate::testing::{self, CompleteSnapshotter, PartialSnapshotter};

const BUCKET: &str = "bucket";

fn name() -> BackupName {
    "b".parse().unwrap()
}

fn backup() -> Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "u"},
        "spec": {"storageLocation": "l"},
        "status": {"phase": "Completed", "startTimestamp": "2026-01-02T03:04:05Z"},
    }))
    .unwrap()
}

/// Number of effects after which everything fails, as if the process had been killed.
#[derive(Clone)]
struct EffectBudget(Arc<AtomicUsize>);

impl EffectBudget {
    fn of(effects: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(effects)))
    }

    fn spend(&self) -> Result<()> {
        let remaining = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| remaining.checked_sub(1));
        remaining.map(drop).map_err(|_| Error::new(Code::Unavailable, "killed"))
    }
}

/// Snapshots of a plugin, and the calls that it received.
#[derive(Clone)]
struct FakeSnapshotter {
    snapshots: Arc<Mutex<BTreeSet<String>>>,
    calls: Arc<Mutex<Vec<String>>>,
    budget: EffectBudget,
}

impl FakeSnapshotter {
    fn with(snapshots: &[&str], budget: EffectBudget) -> Self {
        let snapshots = snapshots.iter().map(|&id| id.to_owned()).collect();
        Self { snapshots: Arc::new(Mutex::new(snapshots)), calls: Arc::default(), budget }
    }

    fn restarted(&self) -> Self {
        Self { budget: EffectBudget::of(usize::MAX), ..self.clone() }
    }

    fn snapshot_count(&self) -> usize {
        self.snapshots.lock().len()
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    fn record_call(&self, call: String) {
        self.calls.lock().push(call);
    }
}

#[async_trait]
impl PartialSnapshotter for FakeSnapshotter {
    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("delete {snapshot}"));
        self.budget.spend()?;
        match snapshot.as_str() {
            "bad" => Err(Error::unknown("it is glued on")),
            "slow" => std::future::pending().await,
            "strict" if self.snapshot_count() == 0 => {
                Err(Error::new(Code::NotFound, "no such snapshot"))
            }
            id => {
                self.snapshots.lock().remove(id);
                Ok(())
            }
        }
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("cancel {snapshot}"));
        match snapshot.as_str() {
            "slow" => std::future::pending().await,
            _ => Err(Error::unknown("it cannot be stopped")),
        }
    }
}

#[async_trait]
impl Snapshotters for FakeSnapshotter {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        match location {
            "shelf" => Ok(Snapshotter {
                location: location.to_owned(),
                plugin: "example.io/shelf".parse().unwrap(),
                is_v2: true,
                snapshot_type: None,
                calls: Arc::new(CompleteSnapshotter(Arc::new(self.clone()))),
            }),
            "slow" => std::future::pending().await,
            _ => {
                let reason = "not found".to_owned();
                Err(OpenError { location: location.to_owned(), reason, is_retryable: false })
            }
        }
    }
}

/// An action that records its items.
struct RecordingAction(FakeSnapshotter);

#[async_trait]
impl DeleteItemAction for RecordingAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["po", "gone.example.io"]))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        let object: serde_json::Value = item.parse().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        assert_eq!(backup.metadata.name.as_deref(), Some("b"));
        self.0.record_call(format!("show {name}"));
        match name {
            "bad" => Err(Error::unknown("it does not let go")),
            "slow" => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

/// An archive with pods, a resource that the cluster no longer serves, and one that no action selects.
fn archive(pods: &[&str]) -> Vec<u8> {
    let object =
        |kind: &str, metadata| json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
    let in_ns = |kind: &str, name: &str| object(kind, json!({"name": name, "namespace": "ns"}));
    let pods = pods.iter().map(|pod| ("pods", in_ns("Pod", pod)));
    let others = [
        ("gone.example.io", object("Gone", json!({"name": "old"}))),
        ("configmaps", in_ns("ConfigMap", "cm")),
    ];
    testing::archive(&pods.chain(others).collect::<Vec<_>>())
}

fn snapshot(location: &str, id: &str, phase: &str) -> Snapshot {
    serde_json::from_value(json!({
        "spec": {"location": location}, "status": {"providerSnapshotID": id, "phase": phase},
    }))
    .unwrap()
}

/// A bucket with a backup in it.
struct World {
    memory: Memory,
    scratch: tempfile::TempDir,
    cluster: Fake,
    stop: CancellationToken,
    deadlines: Deadlines,
}

fn store(backend: impl Backend + 'static) -> BackupStore {
    BackupStore::new(Arc::new(backend), BUCKET, &Prefix::default())
}

impl World {
    async fn with(pods: &[&str], snapshots: &[Snapshot]) -> Self {
        let memory = Memory::with_bucket(BUCKET);
        let whole = store(memory.clone());
        let body = |bytes: Vec<u8>| Box::pin(futures::stream::iter([Ok(bytes.into())]));
        whole.put_contents(&name(), body(archive(pods))).await.unwrap();
        whole.put(&name(), &snapshots.to_vec()).await.unwrap();
        whole.put(&name(), &Results::default()).await.unwrap();
        whole.commit(&backup()).await.unwrap();
        Self {
            memory,
            scratch: tempfile::tempdir().unwrap(),
            cluster: Fake::usual(),
            stop: CancellationToken::new(),
            deadlines: Deadlines::default(),
        }
    }

    fn store(&self) -> BackupStore {
        store(self.memory.clone())
    }

    /// Files in the bucket.
    async fn files(&self) -> Vec<String> {
        self.memory.list_objects(BUCKET, "").await.unwrap()
    }

    /// Phase in the record; `None` if there is no record.
    async fn recorded(&self) -> Option<BackupPhase> {
        self.store().backup(&name()).await.unwrap()?.status?.phase
    }

    /// The whole deletion, as the server does it.
    async fn delete(&self, store: &BackupStore, plugin: &FakeSnapshotter) -> DeletionResult {
        let inventory = match read_inventory(store, &name()).await {
            Ok(inventory) => inventory,
            Err(error) => return DeletionResult::Failed(vec![error_chain(&error)]),
        };
        let plan = match plan_deletion(&backup(), &inventory) {
            Ok(plan) => plan,
            Err(objections) => return DeletionResult::Failed(objections.messages()),
        };
        let opened = match open_snapshotters(plugin, &plan.snapshots, &self.deadlines).await {
            Ok(opened) => opened,
            Err(objections) => return DeletionResult::Failed(objections.messages()),
        };
        let action = Arc::new(RecordingAction(plugin.clone()));
        let job = DeletionJob {
            backup: &backup(),
            name: &name(),
            store,
            plan: &plan,
            snapshotters: &opened,
            actions: vec![NamedAction::new("example.io/witness".parse().unwrap(), action)],
            cluster: &self.cluster,
            scratch: self.scratch.path(),
            unpack_limits: UnpackLimits::default(),
            deadlines: self.deadlines,
            stop: &self.stop,
        };
        match delete_data(job).await {
            DeletionResult::Done => delete_files(store, &name()).await,
            other => other,
        }
    }

    async fn fails(&self, plugin: &FakeSnapshotter) -> Vec<String> {
        match self.delete(&self.store(), plugin).await {
            DeletionResult::Failed(errors) => errors,
            other => panic!("{other:?}"),
        }
    }
}

fn working_plugin(snapshots: &[&str]) -> FakeSnapshotter {
    FakeSnapshotter::with(snapshots, EffectBudget::of(usize::MAX))
}

#[tokio::test]
async fn backup_is_deleted_with_its_data() {
    let snapshots = [snapshot("shelf", "s1", "Completed"), snapshot("shelf", "s2", "New")];
    let world = World::with(&["p1", "p2"], &snapshots).await;
    let plugin = working_plugin(&["s1", "s2", "of-another"]);
    assert_eq!(world.delete(&world.store(), &plugin).await, DeletionResult::Done);
    assert_eq!(plugin.snapshot_count(), 1);
    assert_eq!(world.files().await, [""; 0]);
    // Actions first, and only on selected items; snapshots in progress are canceled before they are deleted.
    let calls = plugin.calls();
    assert_eq!(calls[..3], ["show p1", "show p2", "show old"]);
    let mut rest = calls[3..].to_vec();
    rest.sort();
    assert_eq!(rest, ["cancel s2", "delete s1", "delete s2"]);
    // Repeated, as after a kill at the very end.
    assert_eq!(world.delete(&world.store(), &plugin).await, DeletionResult::Done);
}

#[tokio::test]
async fn kill_at_any_effect_keeps_the_record_and_a_retry_finishes() {
    let ids = ["s1", "s2", "s3"];
    let snapshots = ids.map(|id| snapshot("shelf", id, "Completed"));
    let mut kills = 0;
    for effects in 0.. {
        let world = World::with(&["p1"], &snapshots).await;
        let budget = EffectBudget::of(effects);
        let plugin = FakeSnapshotter::with(&ids, budget.clone());
        let dying = world.memory.failing(move |call, _| {
            let is_effect = matches!(call, StoreCall::Put | StoreCall::Create | StoreCall::Delete);
            is_effect.then(|| budget.spend().err()).flatten()
        });
        let ended = world.delete(&store(dying), &plugin).await;
        let (files, recorded) = (world.files().await, world.recorded().await);
        if plugin.snapshot_count() > 0 {
            assert!(files.iter().any(|file| file.contains("-volumesnapshots")), "{files:?}");
        }
        if plugin.snapshot_count() < ids.len() || files.len() < 4 {
            let expected = (!files.is_empty()).then_some(BackupPhase::Deleting);
            assert_eq!(recorded, expected, "after {effects}: {files:?}");
        }
        if !files.is_empty() {
            assert!(recorded.is_some(), "after {effects}: {files:?}");
        }
        if ended == DeletionResult::Done {
            break;
        }
        kills += 1;
        let next = world.delete(&world.store(), &plugin.restarted()).await;
        assert_eq!(next, DeletionResult::Done, "after {effects}");
        assert_eq!((world.files().await.len(), plugin.snapshot_count()), (0, 0), "after {effects}");
    }
    // The deletion mark, three snapshots, four files.
    assert_eq!(kills, 8);
}

#[tokio::test]
async fn undeleted_snapshot_keeps_the_files_and_is_reported() {
    let snapshots = [snapshot("shelf", "bad", "Completed"), snapshot("shelf", "s1", "Completed")];
    let world = World::with(&[], &snapshots).await;
    let plugin = working_plugin(&["bad", "s1"]);
    let errors = world.fails(&plugin).await;
    assert_eq!(errors, ["error deleting snapshot bad: it is glued on"]);
    assert_eq!((plugin.snapshot_count(), world.files().await.len()), (1, 4));
    assert_eq!(world.recorded().await, Some(BackupPhase::Deleting));
}

#[tokio::test]
async fn missing_snapshot_counts_as_deleted() {
    let world = World::with(&[], &[snapshot("shelf", "strict", "Completed")]).await;
    assert_eq!(world.delete(&world.store(), &working_plugin(&[])).await, DeletionResult::Done);
}

#[tokio::test]
async fn missing_location_stops_the_deletion_before_any_effect() {
    let snapshots = [
        snapshot("shelf", "s0", "Completed"),
        snapshot("nowhere", "s1", "Completed"),
        snapshot("nowhere", "s2", "Completed"),
    ];
    let world = World::with(&["p1"], &snapshots).await;
    let plugin = working_plugin(&["s0", "s1", "s2"]);
    let expected = "error getting volume snapshotter for location \"nowhere\": the VolumeSnapshotLocation \
         nowhere cannot be used: not found; its snapshots would be left over: s1, s2";
    assert_eq!(world.fails(&plugin).await, [expected]);
    assert_eq!((plugin.calls(), plugin.snapshot_count()), (Vec::new(), 3));
    assert_eq!(world.recorded().await, Some(BackupPhase::Completed));
}

#[tokio::test(start_paused = true)]
async fn plugin_calls_time_out() {
    let world = World::with(&["slow"], &[snapshot("shelf", "slow", "New")]).await;
    let plugin = working_plugin(&["slow"]);
    let errors = world.fails(&plugin).await;
    assert_eq!(
        errors,
        [
            "pods/ns/slow: the delete item action example.io/witness failed: no answer within 600 s",
            "error deleting snapshot slow: the plugin has not answered within 1800 s",
        ]
    );
    let nowhere = World::with(&[], &[snapshot("slow", "s", "Completed")]).await;
    let errors = nowhere.fails(&plugin).await;
    assert!(errors[0].contains("the plugin has not answered within 120 s"), "{errors:?}");
}

#[tokio::test]
async fn shutdown_stops_between_plugin_calls() {
    let world = World::with(&["slow"], &[snapshot("shelf", "s1", "Completed")]).await;
    let plugin = working_plugin(&["s1"]);
    let store = world.store();
    let stopping = async {
        while plugin.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        world.stop.cancel();
    };
    let (ended, ()) = tokio::join!(world.delete(&store, &plugin), stopping);
    assert_eq!(ended, DeletionResult::Stopped);
    assert_eq!((plugin.snapshot_count(), world.files().await.len()), (1, 4));
    let world = World::with(&[], &[snapshot("shelf", "slow", "Completed")]).await;
    world.stop.cancel();
    assert_eq!(world.delete(&world.store(), &plugin).await, DeletionResult::Stopped);
}

#[tokio::test]
async fn failed_action_keeps_the_archive_and_other_actions_run() {
    let world = World::with(&["bad", "p1"], &[]).await;
    let plugin = working_plugin(&[]);
    let errors = world.fails(&plugin).await;
    let expected =
        "pods/ns/bad: the delete item action example.io/witness failed: it does not let go";
    assert_eq!(errors, [expected]);
    assert_eq!(plugin.calls(), ["show bad", "show p1", "show old"]);
    assert_eq!(world.files().await.len(), 4);
}

/// An archive that ends after its first entry.
fn truncated_archive() -> Vec<u8> {
    let mut tar = Vec::new();
    let whole = archive(&["p1", "p2"]);
    flate2::read::GzDecoder::new(&whole[..]).read_to_end(&mut tar).unwrap();
    let mut gzip = encode::gzip(Vec::new());
    gzip.write_all(&tar[..1024]).unwrap();
    gzip.finish().unwrap()
}

#[tokio::test]
async fn broken_archive_is_an_error_and_missing_archive_is_not() {
    let world = World::with(&["p1"], &[]).await;
    let put = async |archive: Vec<u8>| {
        let body = Box::pin(futures::stream::iter([Ok(archive.into())]));
        world.store().put_contents(&name(), body).await.unwrap();
    };
    let plugin = working_plugin(&[]);
    put(truncated_archive()).await;
    let errors = world.fails(&plugin).await;
    assert!(errors[0].starts_with("not all items could be passed to delete item"), "{errors:?}");
    assert_eq!((errors.len(), plugin.calls()), (1, vec!["show p1".to_owned()]));
    put(b"no archive".to_vec()).await;
    let errors = world.fails(&plugin).await;
    assert!(errors[0].starts_with("error downloading backup tarball: "), "{errors:?}");
    world.memory.delete_object(BUCKET, "backups/b/b.tar.gz").await.unwrap();
    assert_eq!(world.delete(&world.store(), &plugin).await, DeletionResult::Done);
    assert_eq!(plugin.calls().len(), 1);
}

#[tokio::test]
async fn unreadable_file_stops_the_deletion() {
    let world = World::with(&[], &[]).await;
    for file in ["volumesnapshots", "volumeinfo", "podvolumebackups", "csi-volumesnapshotcontents"]
    {
        let key = format!("backups/b/b-{file}.json.gz");
        let body = Box::pin(futures::stream::iter([Ok("no gzip".into())]));
        world.memory.put_object(BUCKET, &key, body).await.unwrap();
        let error = world.fails(&working_plugin(&[])).await.remove(0);
        assert!(error.starts_with("error getting backup's ") && error.contains(file), "{error}");
        assert_eq!(world.recorded().await, Some(BackupPhase::Completed));
        world.memory.delete_object(BUCKET, &key).await.unwrap();
        world.store().put(&name(), &Vec::<Snapshot>::new()).await.unwrap();
    }
}

#[tokio::test]
async fn unreachable_bucket_stops_the_deletion_before_any_effect() {
    let world = World::with(&["p1"], &[snapshot("shelf", "s1", "Completed")]).await;
    let away = world.memory.failing(|_, _| Some(Error::new(Code::Unavailable, "away")));
    let plugin = working_plugin(&["s1"]);
    let ended = world.delete(&store(away), &plugin).await;
    let DeletionResult::Failed(errors) = ended else { panic!("{ended:?}") };
    assert!(errors[0].contains("error getting backup's record") && errors[0].contains("away"));
    assert_eq!((plugin.snapshot_count(), plugin.calls()), (1, Vec::new()));
}

#[test]
fn only_the_first_errors_are_reported() {
    let report = Report::default();
    for number in 0..MAX_REPORTED_ERRORS + 2 {
        report_error(&report, format!("error {number}"));
    }
    let lines = error_lines(&report);
    assert_eq!(lines.len(), MAX_REPORTED_ERRORS + 1);
    assert_eq!(lines[MAX_REPORTED_ERRORS], "and 2 more; see the log of the server");
}
