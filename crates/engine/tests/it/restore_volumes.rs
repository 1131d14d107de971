//! Volumes that plugins make from snapshots, on a cluster in memory and with a plugin that does as it is
//! told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, BackupStorageLocationStatus, Restore,
};
use bowline_engine::cluster::{Error as ClusterError, Fake};
use bowline_engine::journal::{InMemory, Record, Recovered, recover};
use bowline_engine::restore::order::Priorities;
use bowline_engine::restore::request::{self, Defaults, Facts, Lookup, Request};
use bowline_engine::restore::volume::{Bytes, End, Making, Witness};
use bowline_engine::restore::{self, Fatal, Options, Progress, Restored, Run};
use bowline_engine::snapshotter::{OpenError, Snapshotter, Snapshotters};
use bowline_plugin::{
    Code, Config, Error, Item, Result, SnapshotId, State, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_store::backend::Memory;
use bowline_store::file::{BackupVolumeInfo, Messages, Method, Snapshot};
use bowline_store::{BackupName, BackupStore};
use futures::future::BoxFuture;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::backup::{namespace, store_in};
use crate::restore_bad_days::archive;

const SECOND: Duration = Duration::from_secs(1);
/// For how long a PersistentVolume that is on its way out is waited for.
const TERMINATING: Duration = Duration::from_mins(10);
const PLUGIN: &str = "example.io/disk";

/// A plugin that does as it is told.
struct Disk {
    /// What becomes of a request: how many came before it, and the snapshot.
    answer: Box<Answers>,
    /// What it says of its progress, each time it is asked.
    progress: Box<dyn Fn(usize) -> Result<bowline_plugin::Progress> + Send + Sync>,
    asked: Mutex<Vec<(String, VolumeInfo, String)>>,
    polls: AtomicUsize,
    canceled: watch::Sender<Vec<String>>,
    /// What `SetVolumeID` makes of a PersistentVolume beyond what it should.
    twist: fn(&mut Value),
}

type Answers = dyn Fn(usize, String) -> BoxFuture<'static, Result<VolumeId>> + Send + Sync;

impl Disk {
    /// One that makes `vol-1` from `snap-1`, at once.
    fn good() -> Self {
        Self::answering(|_, snapshot| Box::pin(async move { Ok(made_from(&snapshot)) }))
    }

    fn answering(
        answer: impl Fn(usize, String) -> BoxFuture<'static, Result<VolumeId>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Box::new(answer),
            progress: Box::new(|_| Err(Error::unimplemented("Progress"))),
            asked: Mutex::default(),
            polls: AtomicUsize::new(0),
            canceled: watch::Sender::default(),
            twist: |_| {},
        }
    }

    /// One that takes so long.
    fn slow(takes: Duration) -> Self {
        Self::answering(move |_, snapshot| {
            Box::pin(async move {
                sleep(takes).await;
                Ok(made_from(&snapshot))
            })
        })
    }

    /// One that always fails.
    fn failing(error: Error) -> Self {
        Self::answering(move |_, _| {
            let error = error.clone();
            Box::pin(async move { Err(error) })
        })
    }

    /// The snapshots that it was asked for volumes from.
    fn snapshots(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.asked.lock().unwrap().iter().map(|(snapshot, ..)| snapshot.clone()).collect();
        all.sort();
        all
    }
}

fn made_from(snapshot: &str) -> VolumeId {
    VolumeId::new(snapshot.replace("snap", "vol")).unwrap()
}

#[async_trait]
impl VolumeSnapshotter for Disk {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Ok(None)
    }

    async fn set_volume_id(&self, item: &Item, volume: &VolumeId) -> Result<Item> {
        let mut object: Value = item.parse().unwrap();
        object["spec"]["disk"]["id"] = volume.as_str().into();
        (self.twist)(&mut object);
        Ok(Item::from_object(&object).unwrap())
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Ok(VolumeInfo::default())
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
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        let before = {
            let mut asked = self.asked.lock().unwrap();
            asked.push((snapshot.to_string(), info.clone(), zone.to_owned()));
            asked.len() - 1
        };
        (self.answer)(before, snapshot.to_string()).await
    }

    async fn delete_snapshot(&self, _: &SnapshotId) -> Result<()> {
        Ok(())
    }

    async fn progress(&self, _: &SnapshotId) -> Result<bowline_plugin::Progress> {
        (self.progress)(self.polls.fetch_add(1, Ordering::Relaxed))
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.canceled.send_modify(|all| all.push(snapshot.to_string()));
        Ok(())
    }
}

/// A cluster in which the location `default` is the plugin's, and there is no other.
struct Locations(Arc<Disk>);

#[async_trait]
impl Snapshotters for Locations {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        if location != "default" {
            let reason = "it does not exist".to_owned();
            return Err(OpenError { location: location.into(), reason, is_retryable: false });
        }
        Ok(Snapshotter {
            location: location.to_owned(),
            plugin: PLUGIN.parse().unwrap(),
            is_v2: true,
            snapshot_type: None,
            calls: Arc::clone(&self.0) as _,
        })
    }
}

/// Writes down what it is told, or cannot.
#[derive(Default)]
struct Diary {
    lines: Mutex<Vec<String>>,
    is_broken: bool,
    /// How long it takes to write that a volume was begun.
    slowness: Duration,
}

impl Diary {
    fn write(&self, line: String) -> std::result::Result<(), String> {
        self.lines.lock().unwrap().push(line);
        if self.is_broken { Err("no ink".into()) } else { Ok(()) }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

#[async_trait]
impl Witness for Diary {
    async fn began(&self, making: &Making) -> std::result::Result<(), String> {
        sleep(self.slowness).await;
        let Making { persistent_volume, target, snapshot, plugin, .. } = making;
        self.write(format!("{persistent_volume} as {target} from {snapshot} by {plugin}"))
    }

    async fn progressed(&self, _: &Making, bytes: Bytes) -> std::result::Result<(), String> {
        self.write(format!("{} of {}", bytes.done, bytes.total))
    }

    async fn ended(&self, _: &Making, end: &End) -> std::result::Result<(), String> {
        self.write(match end {
            End::Completed(volume) => format!("completed as {volume}"),
            End::Failed(reason) => format!("failed: {reason}"),
            End::Canceled(reason) => format!("canceled: {reason}"),
        })
    }
}

/// A restore to be.
struct World {
    fake: Arc<Fake>,
    disk: Arc<Disk>,
    diary: Arc<Diary>,
    journal: Arc<InMemory>,
    store: BackupStore,
    spec: Value,
    allow_empty: bool,
    /// When the restore began. A process that carries it on did not begin it.
    started: Timestamp,
    recovered: Recovered,
    stop: CancellationToken,
    cancel: CancellationToken,
}

fn volume(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pv-{number}"), "uid": "old",
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        },
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete", "disk": {"id": "old"},
            "claimRef": {"namespace": "shop", "name": format!("data-{number}"), "uid": "old"},
        },
        "status": {"phase": "Bound"},
    })
}

fn claim(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("data-{number}"), "namespace": "shop"},
        "spec": {"volumeName": format!("pv-{number}")},
        "status": {"phase": "Bound"},
    })
}

fn snapshot(number: usize) -> Value {
    json!({
        "spec": {
            "backupName": "b1", "location": "default",
            "persistentVolumeName": format!("pv-{number}"), "providerVolumeID": "old",
            "volumeType": "ssd", "volumeAZ": "zone-1", "volumeIOPS": 300,
        },
        "status": {"providerSnapshotID": format!("snap-{number}"), "phase": "Completed"},
    })
}

impl World {
    /// A backup with one volume that has a snapshot.
    async fn with(disk: Disk) -> Self {
        Self::with_snapshots(disk, vec![snapshot(1)]).await
    }

    /// A backup with so many volumes and claims as there are snapshots.
    async fn with_snapshots(disk: Disk, snapshots: Vec<Value>) -> Self {
        let store = store_in(Memory::with_bucket("b"));
        let mut objects = vec![("namespaces", namespace("shop"))];
        for number in 1..=snapshots.len() {
            objects.push(("persistentvolumes", volume(number)));
            objects.push(("persistentvolumeclaims", claim(number)));
        }
        let name = BackupName::new("b1").unwrap();
        let archive = Box::pin(stream::iter([Ok(archive(&objects).into())]));
        store.put_contents(&name, archive).await.unwrap();
        let snapshots: Vec<Snapshot> = serde_json::from_value(json!(snapshots)).unwrap();
        let infos: Vec<BackupVolumeInfo> = snapshots
            .iter()
            .map(|taken| BackupVolumeInfo {
                pv_name: taken.spec.persistent_volume_name.clone(),
                backup_method: Some(Method::NativeSnapshot),
                ..BackupVolumeInfo::default()
            })
            .collect();
        store.put(&name, &snapshots).await.unwrap();
        store.put(&name, &infos).await.unwrap();
        Self {
            fake: Arc::new(Fake::usual()),
            disk: Arc::new(disk),
            diary: Arc::default(),
            journal: Arc::default(),
            store,
            spec: json!({}),
            allow_empty: false,
            started: Timestamp::now(),
            recovered: Recovered::default(),
            stop: CancellationToken::new(),
            cancel: CancellationToken::new(),
        }
    }

    fn request(&self) -> Request {
        let mut restore = Restore::default();
        restore.metadata.name = Some("r".into());
        restore.metadata.namespace = Some("velero".into());
        restore.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000001".into());
        if self.allow_empty {
            let key = request::ALLOW_EMPTY_VOLUMES.to_owned();
            restore.metadata.annotations = Some([(key, "true".to_owned())].into());
        }
        restore.spec = serde_json::from_value(self.spec.clone()).unwrap();
        restore.spec.backup_name = "b1".into();
        let mut backup = Backup::default();
        backup.metadata.name = Some("b1".into());
        backup.status.get_or_insert_default().phase = Some(BackupPhase::Completed);
        let status = BackupStorageLocationStatus {
            phase: Some(LocationPhase::Available),
            ..BackupStorageLocationStatus::default()
        };
        let facts = Facts {
            backups: Ok(vec![backup]),
            location: Lookup::Found(BackupStorageLocation {
                status: Some(status),
                ..BackupStorageLocation::default()
            }),
            modifiers: Lookup::Missing,
        };
        let prepared = request::prepare(&restore, &facts, &Defaults::default(), self.started);
        prepared.outcome.unwrap()
    }

    async fn restore(&self) -> Outcome<'_> {
        let options = Options {
            requests: 4,
            items: 8,
            scratch: std::env::temp_dir(),
            namespace: "velero".into(),
            priorities: Priorities::default(),
            resource_timeout: Duration::from_mins(1),
            terminating_timeout: TERMINATING,
        };
        let run = Run {
            request: self.request(),
            cluster: Arc::clone(&self.fake) as _,
            store: self.store.clone(),
            actions: Vec::new(),
            snapshotters: Arc::new(Locations(Arc::clone(&self.disk))),
            witness: Arc::clone(&self.diary) as _,
            options,
            progress: Arc::new(Progress::default()),
            journal: Arc::clone(&self.journal) as _,
            recovered: self.recovered.clone(),
            stop: self.stop.clone(),
            cancel: self.cancel.clone(),
        };
        let began = Instant::now();
        let restored = Box::pin(restore::run(run, self.started)).await;
        Outcome { world: self, restored, took: began.elapsed() }
    }

    /// The same backup and cluster for the next process, which knows what was noted so far.
    fn next(self, disk: Disk, noted: usize) -> Self {
        let records = self.journal.records().into_iter().take(noted);
        Self {
            disk: Arc::new(disk),
            diary: Arc::default(),
            journal: Arc::default(),
            recovered: recover(records),
            stop: CancellationToken::new(),
            cancel: CancellationToken::new(),
            ..self
        }
    }
}

/// What came of a restore.
struct Outcome<'a> {
    world: &'a World,
    restored: Restored,
    took: Duration,
}

fn texts(messages: Messages) -> Vec<String> {
    let namespaces = messages.namespaces.into_values().flatten();
    messages.velero.into_iter().chain(messages.cluster).chain(namespaces).collect()
}

impl Outcome<'_> {
    fn errors(&self) -> Vec<String> {
        texts(self.restored.report.results().errors)
    }

    fn warnings(&self) -> Vec<String> {
        texts(self.restored.report.results().warnings)
    }

    fn is_good(&self) {
        assert!(self.restored.fatal.is_none(), "{:?}", self.restored.fatal);
        assert_eq!((self.errors(), self.warnings()), (vec![], vec![]));
    }

    fn volume(&self, name: &str) -> Option<Value> {
        self.world.fake.object("persistentvolumes", "", name)
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Value> {
        self.world.fake.object("persistentvolumeclaims", namespace, name)
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_from_its_snapshot_and_its_claim_gets_it() {
    let world = World::with(Disk::good()).await;
    let outcome = world.restore().await;
    outcome.is_good();
    let volume = outcome.volume("pv-1").unwrap();
    assert_eq!(volume["spec"]["disk"]["id"], "vol-1");
    assert_eq!(volume["spec"]["claimRef"], json!({"namespace": "shop", "name": "data-1"}));
    assert_eq!(volume["metadata"]["annotations"], json!({}));
    assert_eq!(volume.get("status"), None);
    assert_eq!(outcome.claim("shop", "data-1").unwrap()["spec"]["volumeName"], "pv-1");
    let asked = world.disk.asked.lock().unwrap().clone();
    let info = VolumeInfo { volume_type: "ssd".into(), iops: Some(300) };
    assert_eq!(asked, [("snap-1".to_owned(), info, "zone-1".to_owned())]);
    let expected = ["pv-1 as pv-1 from snap-1 by example.io/disk", "completed as vol-1"];
    assert_eq!(world.diary.lines(), expected);

    let [info] = &outcome.restored.volumes[..] else { panic!("{:?}", outcome.restored.volumes) };
    let expected = json!({
        "pvcName": "data-1", "pvcNamespace": "shop", "pvName": "pv-1",
        "restoreMethod": "NativeSnapshot", "snapshotDataMoved": false,
        "nativeSnapshotInfo": {
            "snapshotHandle": "snap-1", "volumeType": "ssd", "volumeAZ": "zone-1", "iops": "300",
            "Phase": "Completed",
        },
    });
    assert_eq!(serde_json::to_value(info).unwrap(), expected);
    let records = world.journal.records();
    assert!(
        matches!(&records[..], [Record::VolumeBegun(begun), Record::VolumeEnded(ended)]
            if begun.block == ended.block && ended.volume.as_deref() == Some("vol-1")),
        "{records:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn all_volumes_are_made_side_by_side() {
    let all = Arc::new(tokio::sync::Barrier::new(5));
    let disk = Disk::answering(move |_, snapshot| {
        let all = Arc::clone(&all);
        Box::pin(async move {
            // One after the other they would wait here for ever.
            all.wait().await;
            Ok(made_from(&snapshot))
        })
    });
    let world = World::with_snapshots(disk, (1..=5).map(snapshot).collect()).await;
    let outcome = tokio::time::timeout(Duration::from_mins(1), world.restore()).await.unwrap();
    outcome.is_good();
    assert_eq!(outcome.restored.volumes.len(), 5);

    // The same where they come as what claims need.
    let all = Arc::new(tokio::sync::Barrier::new(5));
    let disk = Disk::answering(move |_, snapshot| {
        let all = Arc::clone(&all);
        Box::pin(async move {
            all.wait().await;
            Ok(made_from(&snapshot))
        })
    });
    let mut world = World::with_snapshots(disk, (1..=5).map(snapshot).collect()).await;
    world.spec = json!({"includedNamespaces": ["shop"]});
    let outcome = tokio::time::timeout(Duration::from_mins(1), world.restore()).await.unwrap();
    outcome.is_good();
    assert_eq!(outcome.restored.volumes.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_restore_without_volumes_from_snapshots_asks_nobody() {
    let mut world = World::with(Disk::good()).await;
    world.spec = json!({"restorePVs": false});
    let outcome = world.restore().await;
    outcome.is_good();
    assert_eq!(outcome.volume("pv-1").unwrap()["spec"]["disk"]["id"], "old");
    assert_eq!(world.disk.snapshots(), [""; 0]);
    assert_eq!((world.diary.lines(), outcome.restored.volumes.len()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_cannot_be_made_is_not_created_unless_it_may_be_empty() {
    let mut failed = snapshot(1);
    failed["status"]["phase"] = json!("Failed");
    let mut elsewhere = snapshot(1);
    elsewhere["spec"]["location"] = json!("gone");
    let refused = "the plugin example.io/disk made no volume from the snapshot snap-1: no space";
    let missing = "the VolumeSnapshotLocation gone cannot be used: it does not exist";
    let not_saved = "its data is not in the backup: saving it had failed";
    let no_space = || Disk::failing(Error::unknown("no space"));
    for (disk, taken, reason, is_asked) in [
        (no_space(), snapshot(1), refused, true),
        (Disk::good(), elsewhere, missing, false),
        (Disk::good(), failed, not_saved, false),
    ] {
        let mut world = World::with_snapshots(disk, vec![taken]).await;
        let outcome = world.restore().await;
        let errors = outcome.errors();
        let [volume, claim] = &errors[..] else { panic!("{errors:?}") };
        assert!(volume.starts_with(&format!("persistentvolumes/pv-1: {reason}")), "{volume}");
        let words = format!(
            "persistentvolumeclaims/data-1: its volume pv-1 is not restored: {reason}; to have it \
             created empty, restore with `--allow-empty-volumes`"
        );
        assert_eq!(*claim, words);
        assert_eq!(outcome.volume("pv-1"), None);
        assert_eq!(outcome.claim("shop", "data-1"), None);
        assert_eq!(outcome.restored.volumes.len(), 0);
        assert_eq!(!world.disk.snapshots().is_empty(), is_asked, "{reason}");
        let lines = world.diary.lines();
        assert_eq!(lines.last().is_some_and(|line| *line == format!("failed: {reason}")), is_asked);

        world.fake = Arc::new(Fake::usual());
        world.allow_empty = true;
        let outcome = world.restore().await;
        assert_eq!(outcome.volume("pv-1"), None);
        let claim = outcome.claim("shop", "data-1").unwrap();
        assert_eq!(claim["spec"].get("volumeName"), None, "{claim}");
        // What can be known before is no error any more: the user knows it, too.
        assert_eq!(outcome.errors().len(), usize::from(reason != not_saved), "{reason}");
        let told = outcome.warnings().iter().any(|text| text.contains("it is created empty: "));
        assert!(told, "{:?}", outcome.warnings());
    }
}

/// A PersistentVolume in the cluster, with its claim and namespace.
fn used(fake: &Fake) {
    for object in [volume(1), claim(1), namespace("shop")] {
        fake.put(object);
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_in_use_is_left_as_it_is() {
    let world = World::with(Disk::good()).await;
    used(&world.fake);
    let outcome = world.restore().await;
    outcome.is_good();
    assert_eq!(world.disk.snapshots(), [""; 0]);
    assert_eq!(outcome.volume("pv-1"), Some(volume(1)));
    assert_eq!(outcome.restored.volumes.len(), 0);

    // As with any object, it is told if it is not what it was.
    let world = World::with(Disk::good()).await;
    used(&world.fake);
    let mut other = volume(1);
    other["spec"]["disk"]["id"] = json!("another");
    world.fake.put(other);
    let outcome = world.restore().await;
    assert_eq!(world.disk.snapshots(), [""; 0]);
    let warnings = outcome.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("spec.disk.id"), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_on_its_way_out_is_waited_for() {
    let world = World::with(Disk::good()).await;
    let mut released = volume(1);
    released["status"]["phase"] = json!("Released");
    world.fake.put(released.clone());
    let goes = async {
        sleep(5 * SECOND / 2).await;
        world.fake.remove("persistentvolumes", "", "pv-1");
    };
    let (outcome, ()) = tokio::join!(world.restore(), goes);
    outcome.is_good();
    assert_eq!(outcome.took, 3 * SECOND, "it is looked at each second");
    assert_eq!(outcome.volume("pv-1").unwrap()["spec"]["disk"]["id"], "vol-1");

    // One that stays is an error, and its claim is not created.
    let world = World::with(Disk::good()).await;
    world.fake.put(released);
    let outcome = world.restore().await;
    let errors = outcome.errors();
    assert!(errors[0].contains("still in the cluster after 600 s, though its claim is gone"));
    assert!(errors.len() == 2 && outcome.claim("shop", "data-1").is_none(), "{errors:?}");
    assert_eq!(outcome.took, TERMINATING);
    assert_eq!(world.disk.snapshots(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_gets_another_name_beside_the_one_that_it_was_and_keeps_it_over_restarts() {
    let mut world = World::with(Disk::good()).await;
    used(&world.fake);
    world.spec = json!({"namespaceMapping": {"shop": "copy"}});
    let outcome = world.restore().await;
    outcome.is_good();
    let claim = outcome.claim("copy", "data-1").unwrap();
    let name = claim["spec"]["volumeName"].as_str().unwrap().to_owned();
    assert!(name.starts_with("velero-clone-"), "{name}");
    let made = outcome.volume(&name).unwrap();
    assert_eq!(made["metadata"]["annotations"]["velero.io/original-pv-name"], "pv-1");
    assert_eq!(made["spec"]["claimRef"], json!({"namespace": "copy", "name": "data-1"}));
    assert_eq!(made["spec"]["disk"]["id"], "vol-1");
    assert_eq!(outcome.volume("pv-1"), Some(volume(1)));
    assert_eq!(outcome.restored.volumes[0].pv_name, name);
    assert!(world.diary.lines()[0].starts_with(&format!("pv-1 as {name} from")));

    // The one that it was is gone by now, and still the name is the same.
    world.fake.remove("persistentvolumes", "", &name);
    world.fake.remove("persistentvolumes", "", "pv-1");
    world.fake.remove("persistentvolumeclaims", "copy", "data-1");
    let world = world.next(Disk::good(), usize::MAX);
    let outcome = world.restore().await;
    outcome.is_good();
    assert!(outcome.volume(&name).is_some() && outcome.volume("pv-1").is_none());
    assert_eq!(outcome.claim("copy", "data-1").unwrap()["spec"]["volumeName"], name.as_str());

    // Without the one that it was there is no need for another name.
    let mut world = World::with(Disk::good()).await;
    world.spec = json!({"namespaceMapping": {"shop": "copy"}});
    let outcome = world.restore().await;
    outcome.is_good();
    assert_eq!(outcome.claim("copy", "data-1").unwrap()["spec"]["volumeName"], "pv-1");
}

#[tokio::test(start_paused = true)]
async fn a_claim_elsewhere_is_not_created_for_a_volume_that_another_claim_has() {
    let mut world = World::with(Disk::good()).await;
    used(&world.fake);
    world.spec = json!({"namespaceMapping": {"shop": "copy"}, "restorePVs": false});
    let outcome = world.restore().await;
    let error = "persistentvolumeclaims/data-1: its volume pv-1 is not restored: it belongs to the \
                 claim shop/data-1, and the backup has no copy of its data that another claim could \
                 get; to have it created empty, restore with `--allow-empty-volumes`";
    assert_eq!(outcome.errors(), [error]);
    assert_eq!(outcome.claim("copy", "data-1"), None);

    world.allow_empty = true;
    let outcome = world.restore().await;
    assert_eq!(outcome.errors(), [""; 0]);
    let claim = outcome.claim("copy", "data-1").unwrap();
    assert_eq!(claim["spec"].get("volumeName"), None, "{claim}");

    // Another restore finds its own claim there.
    world.allow_empty = false;
    world.fake.remove("persistentvolumes", "", "pv-1");
    world.fake.remove("persistentvolumeclaims", "copy", "data-1");
    for _ in 0..2 {
        let outcome = world.restore().await;
        assert_eq!(outcome.errors(), [""; 0]);
        assert_eq!(outcome.claim("copy", "data-1").unwrap()["spec"]["volumeName"], "pv-1");
    }
}

#[tokio::test(start_paused = true)]
async fn wherever_a_process_dies_no_known_volume_is_made_twice_and_an_unknown_one_is_told() {
    let world = World::with(Disk::good()).await;
    world.restore().await.is_good();
    let records = world.journal.records().len();
    assert_eq!(records, 2);
    let mut world = world;
    for (noted, is_made, is_told) in [(0, true, false), (1, true, true), (2, false, false)] {
        let history = Arc::clone(&world.journal);
        let again = World { fake: Arc::new(Fake::usual()), ..world.next(Disk::good(), noted) };
        let outcome = again.restore().await;
        assert_eq!(outcome.errors(), [""; 0], "after {noted} notes");
        let volume = outcome.volume("pv-1").unwrap();
        assert_eq!(volume["spec"]["disk"]["id"], "vol-1", "after {noted} notes");
        assert!(outcome.claim("shop", "data-1").is_some());
        assert_eq!(again.disk.snapshots().len(), usize::from(is_made), "after {noted} notes");
        assert_eq!(outcome.restored.volumes.len(), 1);
        let expected = "persistentvolumes/pv-1: the server ended while the plugin example.io/disk \
                        made a volume from the snapshot snap-1 for it: what it had made, if \
                        anything, may be left over";
        let told: &[&str] = if is_told { &[expected] } else { &[] };
        assert_eq!(outcome.warnings(), told, "after {noted} notes");
        // Also one that an earlier process has made, which may not have come to show it.
        let shown = again.diary.lines();
        assert_eq!(shown.last().unwrap(), "completed as vol-1", "after {noted} notes");
        world = World { journal: history, ..again };
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_this_restore_has_created_is_done() {
    let world = World::with(Disk::good()).await;
    world.restore().await.is_good();
    let mut volume = world.fake.object("persistentvolumes", "", "pv-1").unwrap();
    volume["metadata"]["creationTimestamp"] = json!(Timestamp::now());
    world.fake.put(volume);
    // Its claim was to come next.
    world.fake.remove("persistentvolumeclaims", "shop", "data-1");
    for noted in [0, 1, 2] {
        world.fake.remove("persistentvolumeclaims", "shop", "data-1");
        let records = world.journal.records().into_iter().take(noted);
        let again = World {
            fake: Arc::clone(&world.fake),
            recovered: recover(records),
            store: world.store.clone(),
            started: world.started,
            ..World::with(Disk::good()).await
        };
        let outcome = again.restore().await;
        assert_eq!(outcome.errors(), [""; 0]);
        assert_eq!(again.disk.snapshots(), [""; 0], "after {noted} notes");
        assert!(outcome.claim("shop", "data-1").is_some());
        assert_eq!(outcome.restored.volumes.len(), 1, "it is among what was restored");
        assert_eq!(outcome.restored.resources.0["v1/PersistentVolume"], ["pv-1(created)"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_canceled_restore_tells_the_plugin_and_what_may_be_left() {
    // One that ends when it is told to, one that hangs, and one that had made it all the same.
    type Answer = fn(&Disk) -> Option<Result<VolumeId>>;
    let cases: [(Answer, &str, bool); 3] = [
        (
            |_| Some(Err(Error::new(Code::Cancelled, "as you wish"))),
            "the plugin example.io/disk made no volume from the snapshot snap-1: the restore was \
             canceled: as you wish",
            false,
        ),
        (
            |_| None,
            "the plugin example.io/disk made no volume from the snapshot snap-1: the restore was \
             canceled; a volume that it had begun, if any, may be left over",
            false,
        ),
        (|_| Some(Ok(made_from("snap-1"))), "", true),
    ];
    for (after, reason, is_made) in cases {
        let told = watch::Sender::new(Vec::<String>::new());
        let heard = told.subscribe();
        let end = after(&Disk::good());
        let mut disk = Disk::answering(move |_, _| {
            let (mut heard, end) = (heard.clone(), end.clone());
            Box::pin(async move {
                heard.changed().await.unwrap();
                match end {
                    Some(end) => end,
                    None => std::future::pending().await,
                }
            })
        });
        disk.canceled = told;
        let world = World::with(disk).await;
        let cancel = async {
            sleep(30 * SECOND).await;
            world.cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(world.restore(), cancel);
        assert!(matches!(outcome.restored.fatal, Some(Fatal::Canceled)));
        assert_eq!(*world.disk.canceled.borrow(), ["snap-1"]);
        assert_eq!(outcome.volume("pv-1").is_some(), is_made, "{reason}");
        assert_eq!(outcome.claim("shop", "data-1"), None, "nothing new is begun");
        if is_made {
            assert_eq!(outcome.errors(), [""; 0]);
            assert_eq!(world.diary.lines().last().unwrap(), "completed as vol-1");
        } else {
            assert_eq!(outcome.errors(), [format!("persistentvolumes/pv-1: {reason}")]);
            assert_eq!(*world.diary.lines().last().unwrap(), format!("canceled: {reason}"));
        }
        assert!(outcome.took <= 41 * SECOND, "{:?}", outcome.took);
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_takes_longer_than_operations_may_has_failed() {
    let mut world = World::with(Disk::slow(Duration::from_hours(9))).await;
    world.spec = json!({"itemOperationTimeout": "2m"});
    let outcome = world.restore().await;
    let reason = "the plugin example.io/disk made no volume from the snapshot snap-1: it took \
                  longer than 120 s; a volume that it had begun, if any, may be left over";
    assert_eq!(outcome.errors()[0], format!("persistentvolumes/pv-1: {reason}"));
    assert_eq!(*world.disk.canceled.borrow(), ["snap-1"]);
    assert_eq!(*world.diary.lines().last().unwrap(), format!("failed: {reason}"));
    assert_eq!(outcome.claim("shop", "data-1"), None);
    assert!(outcome.took < 140 * SECOND, "{:?}", outcome.took);
    assert_eq!(world.journal.records().len(), 1, "nobody knows what came of it");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_waits_a_moment_and_the_next_one_goes_on() {
    for (takes, is_made) in [(10 * SECOND, true), (Duration::from_hours(1), false)] {
        let world = World::with(Disk::slow(takes)).await;
        let stop = async {
            sleep(SECOND).await;
            world.stop.cancel();
        };
        let (outcome, ()) = tokio::join!(world.restore(), stop);
        assert!(matches!(outcome.restored.fatal, Some(Fatal::Stopped)));
        assert!(outcome.took < 35 * SECOND, "{:?}", outcome.took);
        assert_eq!(outcome.volume("pv-1").is_some(), is_made);
        let ends = world.diary.lines().len() - 1;
        assert_eq!(ends, usize::from(is_made), "it goes on: {:?}", world.diary.lines());
        assert_eq!(world.journal.records().len(), if is_made { 2 } else { 1 });
        assert_eq!(world.disk.canceled.borrow().len(), usize::from(!is_made));
    }
}

#[tokio::test(start_paused = true)]
async fn progress_is_told_each_second_until_there_is_none() {
    let mut disk = Disk::slow(7 * SECOND / 2);
    disk.progress = Box::new(|asked| {
        let done = i64::try_from(asked).unwrap() * 100;
        Ok(bowline_plugin::Progress {
            state: State::Running,
            done,
            total: 900,
            units: "Bytes".into(),
            ..bowline_plugin::Progress::default()
        })
    });
    let world = World::with(disk).await;
    world.restore().await.is_good();
    let lines = world.diary.lines();
    assert_eq!(lines[1..], ["0 of 900", "100 of 900", "200 of 900", "completed as vol-1"]);

    // A plugin that has none to tell is asked once; one that fails, a few times.
    for (error, asked) in [
        (Error::unimplemented("Progress"), 1),
        (Error::invalid_operation("snap-1"), 1),
        (Error::unknown("not now"), 5),
    ] {
        let mut disk = Disk::slow(60 * SECOND);
        disk.progress = Box::new(move |_| Err(error.clone()));
        let world = World::with(disk).await;
        world.restore().await.is_good();
        assert_eq!(world.disk.polls.load(Ordering::Relaxed), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_shown_is_told_once_and_changes_nothing() {
    let mut disk = Disk::slow(5 * SECOND / 2);
    disk.progress = Box::new(|asked| {
        let done = i64::try_from(asked).unwrap() + 1;
        Ok(bowline_plugin::Progress { done, total: 9, ..bowline_plugin::Progress::default() })
    });
    let mut world = World::with(disk).await;
    world.diary = Arc::new(Diary { is_broken: true, ..Diary::default() });
    let outcome = world.restore().await;
    assert_eq!(outcome.errors(), [""; 0]);
    let expected = "persistentvolumes/pv-1: its VolumePluginRestore cannot be written: no ink";
    assert_eq!(outcome.warnings(), [expected]);
    assert_eq!(world.diary.lines().len(), 4);
    assert!(outcome.volume("pv-1").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_is_told_comes_in_its_order_however_slowly_it_is_shown() {
    let mut world = World::with(Disk::good()).await;
    world.diary = Arc::new(Diary { slowness: 3 * SECOND, ..Diary::default() });
    let outcome = world.restore().await;
    outcome.is_good();
    let lines = world.diary.lines();
    assert!(lines.len() == 2 && lines[1] == "completed as vol-1", "{lines:?}");

    // What takes too long is given up, and the volume is restored all the same.
    let mut world = World::with(Disk::good()).await;
    world.diary = Arc::new(Diary { slowness: Duration::from_hours(1), ..Diary::default() });
    let outcome = world.restore().await;
    let expected = "persistentvolumes/pv-1: its VolumePluginRestore cannot be written: no answer \
                    within 10 s";
    assert_eq!(outcome.warnings(), [expected]);
    assert!(outcome.volume("pv-1").is_some() && outcome.took == 10 * SECOND, "{:?}", outcome.took);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_dies_is_asked_once_more_and_what_may_be_left_is_told() {
    let gone = || Error::new(Code::Unavailable, "it has died");
    let disk = Disk::answering(move |before, snapshot| {
        Box::pin(async move { if before == 0 { Err(gone()) } else { Ok(made_from(&snapshot)) } })
    });
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    assert_eq!(outcome.errors(), [""; 0]);
    let expected = "persistentvolumes/pv-1: the plugin example.io/disk is asked again for a volume \
                    from the snapshot snap-1: what it had made, if anything, may be left over: it \
                    has died";
    assert_eq!(outcome.warnings(), [expected]);
    assert!(outcome.volume("pv-1").is_some());
    // A later process tells of the first one, too.
    let world = world.next(Disk::good(), usize::MAX);
    assert_eq!(world.recovered.volumes.iter().filter(|one| one.ended.is_none()).count(), 1);

    let world = World::with(Disk::failing(gone())).await;
    let outcome = world.restore().await;
    assert_eq!(world.disk.snapshots().len(), 2);
    let errors = outcome.errors();
    assert!(
        errors[0].ends_with("it has died; a volume that it had begun, if any, may be left over")
    );
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_nothing_points_to_in_the_end_is_told() {
    // The API server refuses the PersistentVolume.
    let world = World::with(Disk::good()).await;
    world.fake.fail_write("persistentvolumes", || ClusterError::Refused {
        code: 422,
        reason: "Invalid".into(),
        message: "no".into(),
    });
    let outcome = world.restore().await;
    let expected = "persistentvolumes/pv-1: the volume vol-1, which the plugin example.io/disk made \
                    from the snapshot snap-1, is left over: nothing points to it";
    assert_eq!(outcome.warnings(), [expected]);
    assert_eq!((outcome.errors().len(), outcome.restored.volumes.len()), (1, 0));

    // The plugin returns something else.
    let mut disk = Disk::good();
    disk.twist = |object| object["kind"] = json!("ClusterRole");
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    let errors = outcome.errors();
    assert!(errors[0].contains("made the volume vol-1") && errors[0].contains("is left over: it"));
    assert_eq!(world.fake.creations().len(), 1, "only the namespace");

    // The restore is cancelled by a user before the next process came to it.
    let world = World::with(Disk::good()).await;
    world.restore().await.is_good();
    let world = World { fake: Arc::new(Fake::usual()), ..world.next(Disk::good(), 2) };
    world.cancel.cancel();
    let outcome = world.restore().await;
    assert!(matches!(outcome.restored.fatal, Some(Fatal::Canceled)));
    let expected = "persistentvolumes/pv-1: the plugin example.io/disk made the volume vol-1 from \
                    the snapshot snap-1 for it: it is left over, unless a PersistentVolume points \
                    to it";
    assert_eq!(outcome.warnings(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_plugin_chooses_counts() {
    let mut disk = Disk::good();
    disk.twist = |object| object["metadata"]["name"] = json!("chosen");
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    outcome.is_good();
    let volume = outcome.volume("chosen").unwrap();
    assert_eq!(volume["metadata"]["annotations"]["velero.io/original-pv-name"], "pv-1");
    assert_eq!(outcome.claim("shop", "data-1").unwrap()["spec"]["volumeName"], "chosen");
    assert_eq!(outcome.restored.volumes[0].pv_name, "chosen");
}
