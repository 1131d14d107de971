use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bowline_api::BackupPhase;
use bowline_plugin::{
    Code, Config, Encoded, Error, Item, ObjectStore as _, ResourceSelector, Result, SnapshotId,
    VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_store::backend::Memory;
use bowline_store::backend::memory::Call;
use bowline_store::file::{Results, Snapshot};
use bowline_store::{Backend, Prefix, encode};
use serde_json::json;

use super::*;
use crate::cluster::Fake;
use crate::snapshotter::{OpenError, Snapshotter, Snapshotters};

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

/// A number of effects after which everything fails, as if the process had been killed.
#[derive(Clone)]
struct Life(Arc<AtomicUsize>);

impl Life {
    fn of(effects: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(effects)))
    }

    fn spend(&self) -> Result<()> {
        let left =
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| Error::new(Code::Unavailable, "killed"))
    }
}

/// What a plugin keeps, and what it was asked.
#[derive(Clone)]
struct Shelf {
    snapshots: Arc<Mutex<BTreeSet<String>>>,
    calls: Arc<Mutex<Vec<String>>>,
    life: Life,
}

impl Shelf {
    fn with(snapshots: &[&str], life: Life) -> Self {
        let snapshots = snapshots.iter().map(|&id| id.to_owned()).collect();
        Self { snapshots: Arc::new(Mutex::new(snapshots)), calls: Arc::default(), life }
    }

    fn reborn(&self) -> Self {
        Self { life: Life::of(usize::MAX), ..self.clone() }
    }

    fn left(&self) -> usize {
        self.snapshots.lock().unwrap().len()
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

#[async_trait]
impl VolumeSnapshotter for Shelf {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Err(Error::unimplemented("GetVolumeID"))
    }

    async fn set_volume_id(&self, _: &Item, _: &VolumeId) -> Result<Item> {
        Err(Error::unimplemented("SetVolumeID"))
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Err(Error::unimplemented("GetVolumeInfo"))
    }

    async fn create_snapshot(
        &self,
        _: &VolumeId,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        Err(Error::unimplemented("CreateSnapshot"))
    }

    async fn create_volume_from_snapshot(
        &self,
        _: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        Err(Error::unimplemented("CreateVolumeFromSnapshot"))
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.note(format!("delete {snapshot}"));
        self.life.spend()?;
        match snapshot.as_str() {
            "bad" => Err(Error::unknown("it is glued on")),
            "slow" => std::future::pending().await,
            "strict" if self.left() == 0 => Err(Error::new(Code::NotFound, "no such snapshot")),
            id => {
                self.snapshots.lock().unwrap().remove(id);
                Ok(())
            }
        }
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.note(format!("cancel {snapshot}"));
        match snapshot.as_str() {
            "slow" => std::future::pending().await,
            _ => Err(Error::unknown("it cannot be stopped")),
        }
    }
}

#[async_trait]
impl Snapshotters for Shelf {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        match location {
            "shelf" => Ok(Snapshotter {
                location: location.to_owned(),
                plugin: "example.io/shelf".parse().unwrap(),
                is_v2: true,
                snapshot_type: None,
                calls: Arc::new(self.clone()),
            }),
            "slow" => std::future::pending().await,
            _ => {
                let reason = "it does not exist".to_owned();
                Err(OpenError { location: location.to_owned(), reason, is_retryable: false })
            }
        }
    }
}

/// An action that notes what it sees.
struct Witness(Shelf);

#[async_trait]
impl DeleteItemAction for Witness {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["po", "gone.example.io"]))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        let object: serde_json::Value = item.parse().unwrap();
        let seen = object["metadata"]["name"].as_str().unwrap();
        assert_eq!(backup.metadata.name.as_deref(), Some("b"));
        self.0.note(format!("show {seen}"));
        match seen {
            "bad" => Err(Error::unknown("it does not let go")),
            "slow" => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

/// An archive with pods, something that nobody serves any more, and something that nobody asks for.
fn archive(pods: &[&str]) -> Vec<u8> {
    let mut tar = tar::Builder::new(encode::gzip(Vec::new()));
    let mut add = |path: String, kind: &str, name: &str, namespace: Option<&str>| {
        let metadata = match namespace {
            Some(namespace) => json!({"name": name, "namespace": namespace}),
            None => json!({"name": name}),
        };
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}).to_string();
        let mut header = tar::Header::new_gnu();
        header.set_size(object.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, object.as_bytes()).unwrap();
    };
    for &pod in pods {
        add(format!("resources/pods/namespaces/ns/{pod}.json"), "Pod", pod, Some("ns"));
    }
    add("resources/gone.example.io/cluster/old.json".to_owned(), "Gone", "old", None);
    add("resources/configmaps/namespaces/ns/cm.json".to_owned(), "ConfigMap", "cm", Some("ns"));
    let mut gzip = tar.into_inner().unwrap();
    gzip.flush().unwrap();
    gzip.finish().unwrap()
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

    /// What is in the bucket.
    async fn files(&self) -> Vec<String> {
        self.memory.list_objects(BUCKET, "").await.unwrap()
    }

    /// What the record says; none if there is none.
    async fn recorded(&self) -> Option<BackupPhase> {
        self.store().backup(&name()).await.unwrap()?.status?.phase
    }

    /// All of it, as the server does it.
    async fn delete(&self, store: &BackupStore, keeper: &Shelf) -> Ended {
        let holdings = match look(store, &name()).await {
            Ok(holdings) => holdings,
            Err(error) => return Ended::Failed(vec![one_line(&error)]),
        };
        let plan = match plan(&backup(), &holdings) {
            Ok(plan) => plan,
            Err(reasons) => return Ended::Failed(reasons),
        };
        let opened = match open(keeper, &plan.snapshots, &self.deadlines).await {
            Ok(opened) => opened,
            Err(reasons) => return Ended::Failed(reasons),
        };
        let witness = Arc::new(Witness(keeper.clone()));
        let job = Job {
            backup: &backup(),
            name: &name(),
            store,
            plan: &plan,
            snapshotters: &opened,
            actions: vec![Named::new("example.io/witness".parse().unwrap(), witness)],
            cluster: &self.cluster,
            scratch: self.scratch.path(),
            deadlines: self.deadlines,
            stop: &self.stop,
        };
        match data(job).await {
            Ended::Done => files(store, &name()).await,
            other => other,
        }
    }

    async fn fails(&self, keeper: &Shelf) -> Vec<String> {
        match self.delete(&self.store(), keeper).await {
            Ended::Failed(errors) => errors,
            other => panic!("{other:?}"),
        }
    }
}

fn immortal(snapshots: &[&str]) -> Shelf {
    Shelf::with(snapshots, Life::of(usize::MAX))
}

#[tokio::test]
async fn a_backup_is_deleted_with_all_that_it_holds() {
    let snapshots = [snapshot("shelf", "s1", "Completed"), snapshot("shelf", "s2", "New")];
    let world = World::with(&["p1", "p2"], &snapshots).await;
    let shelf = immortal(&["s1", "s2", "of-another"]);
    assert_eq!(world.delete(&world.store(), &shelf).await, Ended::Done);
    assert_eq!(shelf.left(), 1);
    assert_eq!(world.files().await, [""; 0]);
    // Actions first, and only what they select; what is under way is stopped before it goes.
    let calls = shelf.calls();
    assert_eq!(calls[..3], ["show p1", "show p2", "show old"]);
    let mut rest = calls[3..].to_vec();
    rest.sort();
    assert_eq!(rest, ["cancel s2", "delete s1", "delete s2"]);
    // Again, as after a kill at the very end.
    assert_eq!(world.delete(&world.store(), &shelf).await, Ended::Done);
}

#[tokio::test]
async fn a_kill_at_any_instant_leaves_nothing_without_a_record_and_the_next_try_finishes() {
    let ids = ["s1", "s2", "s3"];
    let snapshots = ids.map(|id| snapshot("shelf", id, "Completed"));
    let mut kills = 0;
    for effects in 0.. {
        let world = World::with(&["p1"], &snapshots).await;
        let life = Life::of(effects);
        let shelf = Shelf::with(&ids, life.clone());
        let dying = world.memory.failing(move |call, _| {
            let is_effect = matches!(call, Call::Put | Call::Create | Call::Delete);
            is_effect.then(|| life.spend().err()).flatten()
        });
        let ended = world.delete(&store(dying), &shelf).await;
        let (files, recorded) = (world.files().await, world.recorded().await);
        if shelf.left() > 0 {
            assert!(files.iter().any(|file| file.contains("-volumesnapshots")), "{files:?}");
        }
        if shelf.left() < ids.len() || files.len() < 4 {
            let expected = (!files.is_empty()).then_some(BackupPhase::Deleting);
            assert_eq!(recorded, expected, "after {effects}: {files:?}");
        }
        if !files.is_empty() {
            assert!(recorded.is_some(), "after {effects}: {files:?}");
        }
        if ended == Ended::Done {
            break;
        }
        kills += 1;
        let next = world.delete(&world.store(), &shelf.reborn()).await;
        assert_eq!(next, Ended::Done, "after {effects}");
        assert_eq!((world.files().await.len(), shelf.left()), (0, 0), "after {effects}");
    }
    // The mark, three snapshots, four files.
    assert_eq!(kills, 8);
}

#[tokio::test]
async fn a_snapshot_that_stays_keeps_the_files_and_is_named() {
    let snapshots = [snapshot("shelf", "bad", "Completed"), snapshot("shelf", "s1", "Completed")];
    let world = World::with(&[], &snapshots).await;
    let shelf = immortal(&["bad", "s1"]);
    let errors = world.fails(&shelf).await;
    assert_eq!(errors, ["error deleting snapshot bad: it is glued on"]);
    assert_eq!((shelf.left(), world.files().await.len()), (1, 4));
    assert_eq!(world.recorded().await, Some(BackupPhase::Deleting));
}

#[tokio::test]
async fn a_snapshot_that_is_gone_is_as_good_as_deleted() {
    let world = World::with(&[], &[snapshot("shelf", "strict", "Completed")]).await;
    assert_eq!(world.delete(&world.store(), &immortal(&[])).await, Ended::Done);
}

#[tokio::test]
async fn without_its_location_nothing_is_touched() {
    let snapshots = [
        snapshot("shelf", "s0", "Completed"),
        snapshot("nowhere", "s1", "Completed"),
        snapshot("nowhere", "s2", "Completed"),
    ];
    let world = World::with(&["p1"], &snapshots).await;
    let shelf = immortal(&["s0", "s1", "s2"]);
    let expected = "error getting volume snapshotter for location \"nowhere\": the \
                    VolumeSnapshotLocation nowhere cannot be used: it does not exist; its snapshots \
                    would be left: s1, s2";
    assert_eq!(world.fails(&shelf).await, [expected]);
    assert_eq!((shelf.calls(), shelf.left()), (Vec::new(), 3));
    assert_eq!(world.recorded().await, Some(BackupPhase::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_never_answers_is_not_waited_for_forever() {
    let world = World::with(&["slow"], &[snapshot("shelf", "slow", "New")]).await;
    let shelf = immortal(&["slow"]);
    let errors = world.fails(&shelf).await;
    assert_eq!(
        errors,
        [
            "pods/ns/slow: the delete item action example.io/witness failed: no answer within 600 s",
            "error deleting snapshot slow: the plugin has not answered within 1800 s",
        ]
    );
    let nowhere = World::with(&[], &[snapshot("slow", "s", "Completed")]).await;
    let errors = nowhere.fails(&shelf).await;
    assert!(errors[0].contains("it has not answered within 120 s"), "{errors:?}");
}

#[tokio::test]
async fn a_server_that_ends_stops_between_two_calls() {
    let world = World::with(&["slow"], &[snapshot("shelf", "s1", "Completed")]).await;
    let shelf = immortal(&["s1"]);
    let store = world.store();
    let stopping = async {
        while shelf.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        world.stop.cancel();
    };
    let (ended, ()) = tokio::join!(world.delete(&store, &shelf), stopping);
    assert_eq!(ended, Ended::Stopped);
    assert_eq!((shelf.left(), world.files().await.len()), (1, 4));
    let world = World::with(&[], &[snapshot("shelf", "slow", "Completed")]).await;
    world.stop.cancel();
    assert_eq!(world.delete(&world.store(), &shelf).await, Ended::Stopped);
}

#[tokio::test]
async fn an_action_that_fails_keeps_the_archive_and_not_the_others() {
    let world = World::with(&["bad", "p1"], &[]).await;
    let shelf = immortal(&[]);
    let errors = world.fails(&shelf).await;
    let expected =
        "pods/ns/bad: the delete item action example.io/witness failed: it does not let go";
    assert_eq!(errors, [expected]);
    assert_eq!(shelf.calls(), ["show bad", "show p1", "show old"]);
    assert_eq!(world.files().await.len(), 4);
}

/// An archive that ends after its first entry.
fn half_an_archive() -> Vec<u8> {
    let mut tar = Vec::new();
    let whole = archive(&["p1", "p2"]);
    flate2::read::GzDecoder::new(&whole[..]).read_to_end(&mut tar).unwrap();
    let mut gzip = encode::gzip(Vec::new());
    gzip.write_all(&tar[..1024]).unwrap();
    gzip.finish().unwrap()
}

#[tokio::test]
async fn an_archive_that_is_broken_is_told_and_one_that_is_missing_is_not() {
    let world = World::with(&["p1"], &[]).await;
    let put = async |archive: Vec<u8>| {
        let body = Box::pin(futures::stream::iter([Ok(archive.into())]));
        world.store().put_contents(&name(), body).await.unwrap();
    };
    let shelf = immortal(&[]);
    put(half_an_archive()).await;
    let errors = world.fails(&shelf).await;
    assert!(errors[0].starts_with("not all items could be shown to delete item"), "{errors:?}");
    assert_eq!((errors.len(), shelf.calls()), (1, vec!["show p1".to_owned()]));
    put(b"no archive".to_vec()).await;
    let errors = world.fails(&shelf).await;
    assert!(errors[0].starts_with("error downloading backup tarball: "), "{errors:?}");
    world.memory.delete_object(BUCKET, "backups/b/b.tar.gz").await.unwrap();
    assert_eq!(world.delete(&world.store(), &shelf).await, Ended::Done);
    assert_eq!(shelf.calls().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_read_may_name_anything() {
    let world = World::with(&[], &[]).await;
    for file in ["volumesnapshots", "volumeinfo", "podvolumebackups", "csi-volumesnapshotcontents"]
    {
        let key = format!("backups/b/b-{file}.json.gz");
        let body = Box::pin(futures::stream::iter([Ok("no gzip".into())]));
        world.memory.put_object(BUCKET, &key, body).await.unwrap();
        let error = world.fails(&immortal(&[])).await.remove(0);
        assert!(error.starts_with("error getting backup's ") && error.contains(file), "{error}");
        assert_eq!(world.recorded().await, Some(BackupPhase::Completed));
        world.memory.delete_object(BUCKET, &key).await.unwrap();
        world.store().put(&name(), &Vec::<Snapshot>::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_bucket_that_is_away_costs_nothing() {
    let world = World::with(&["p1"], &[snapshot("shelf", "s1", "Completed")]).await;
    let away = world.memory.failing(|_, _| Some(Error::new(Code::Unavailable, "away")));
    let shelf = immortal(&["s1"]);
    let ended = world.delete(&store(away), &shelf).await;
    let Ended::Failed(errors) = ended else { panic!("{ended:?}") };
    assert!(errors[0].contains("error getting backup's record") && errors[0].contains("away"));
    assert_eq!((shelf.left(), shelf.calls()), (1, Vec::new()));
}

#[test]
fn of_many_errors_the_first_are_told() {
    let report = Report::default();
    for number in 0..TOLD + 2 {
        note(&report, format!("error {number}"));
    }
    let lines = told(&report);
    assert_eq!(lines.len(), TOLD + 1);
    assert_eq!(lines[TOLD], "and 2 more, which are in the log of the server");
}
