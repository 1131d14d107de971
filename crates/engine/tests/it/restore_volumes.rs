//! Volumes that plugins create from snapshots, on an in-memory cluster with a configurable plugin.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_engine::cluster::{Error as ClusterError, Fake};
use bowline_engine::journal::{InMemory, JournalEntry, RecoveredRun, recover};
use bowline_engine::restore::order::Priorities;
use bowline_engine::restore::request::{self, Request};
use bowline_engine::restore::volume::{
    ByteProgress, ProgressReportError, VolumeCreation, VolumeCreationResult, VolumeProgressReporter,
};
use bowline_engine::restore::{self, FatalError, Options, Progress, RestoreOutcome, Run};
use bowline_engine::snapshotter::{OpenError, Snapshotter, Snapshotters};
use bowline_engine::testing::{CompleteSnapshotter, PartialSnapshotter, ValidRestore, archive};
use bowline_engine::unpack::UnpackLimits;
use bowline_plugin::{Code, Error, Item, Result, SnapshotId, State, VolumeId, VolumeInfo};
use bowline_store::backend::Memory;
use bowline_store::file::{BackupVolumeInfo, Messages, Method, Snapshot};
use bowline_store::{BackupName, BackupStore};
use futures::future::BoxFuture;
use futures::stream;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::backup::store_in;
use crate::support::objects::namespace;

const SECOND: Duration = Duration::from_secs(1);
/// For how long a PersistentVolume that is on its way out is waited for.
const TERMINATING: Duration = Duration::from_mins(10);
const PLUGIN: &str = "example.io/disk";

/// A configurable plugin.
struct Disk {
    /// Behaviour for a request: number of earlier requests, and the snapshot.
    answer: Box<Answers>,
    /// Answers to `Progress`, one for each call.
    progress: Box<dyn Fn(usize) -> Result<bowline_plugin::Progress> + Send + Sync>,
    requests: Mutex<Vec<(String, VolumeInfo, String)>>,
    polls: AtomicUsize,
    canceled: watch::Sender<Vec<String>>,
    /// Additional change of `SetVolumeID` to a PersistentVolume, which it should not make.
    alter_volume: fn(&mut Value),
}

type Answers = dyn Fn(usize, String) -> BoxFuture<'static, Result<VolumeId>> + Send + Sync;

impl Disk {
    /// A plugin that creates `vol-1` from `snap-1`, at once.
    fn good() -> Self {
        Self::answering(|_, snapshot| Box::pin(async move { Ok(volume_of(&snapshot)) }))
    }

    fn answering(
        answer: impl Fn(usize, String) -> BoxFuture<'static, Result<VolumeId>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Box::new(answer),
            progress: Box::new(|_| Err(Error::unimplemented("Progress"))),
            requests: Mutex::default(),
            polls: AtomicUsize::new(0),
            canceled: watch::Sender::default(),
            alter_volume: |_| {},
        }
    }

    /// A plugin whose calls take this time.
    fn slow(duration: Duration) -> Self {
        Self::answering(move |_, snapshot| {
            Box::pin(async move {
                sleep(duration).await;
                Ok(volume_of(&snapshot))
            })
        })
    }

    /// A plugin that always fails.
    fn failing(error: Error) -> Self {
        Self::answering(move |_, _| {
            let error = error.clone();
            Box::pin(async move { Err(error) })
        })
    }

    /// Snapshots of which volumes were requested.
    fn snapshots(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.requests.lock().iter().map(|(snapshot, ..)| snapshot.clone()).collect();
        all.sort();
        all
    }
}

fn volume_of(snapshot: &str) -> VolumeId {
    VolumeId::new(snapshot.replace("snap", "vol")).unwrap()
}

#[async_trait]
impl PartialSnapshotter for Disk {
    async fn set_volume_id(&self, item: &Item, volume: &VolumeId) -> Result<Item> {
        let mut object: Value = item.parse().unwrap();
        object["spec"]["disk"]["id"] = volume.as_str().into();
        (self.alter_volume)(&mut object);
        Ok(Item::from_object(&object).unwrap())
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        let before = {
            let mut requests = self.requests.lock();
            requests.push((snapshot.to_string(), info.clone(), zone.to_owned()));
            requests.len() - 1
        };
        (self.answer)(before, snapshot.to_string()).await
    }

    async fn progress(&self, _: &SnapshotId) -> Result<bowline_plugin::Progress> {
        (self.progress)(self.polls.fetch_add(1, Ordering::Relaxed))
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.canceled.send_modify(|all| all.push(snapshot.to_string()));
        Ok(())
    }
}

/// A cluster whose only location, `default`, is the plugin's.
struct Locations(Arc<Disk>);

#[async_trait]
impl Snapshotters for Locations {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        if location != "default" {
            let reason = "not found".to_owned();
            return Err(OpenError { location: location.into(), reason, is_retryable: false });
        }
        Ok(Snapshotter {
            location: location.to_owned(),
            plugin: PLUGIN.parse().unwrap(),
            is_v2: true,
            snapshot_type: None,
            calls: Arc::new(CompleteSnapshotter(Arc::clone(&self.0))),
        })
    }
}

/// Records reports, or fails.
#[derive(Default)]
struct RecordingReporter {
    lines: Mutex<Vec<String>>,
    is_broken: bool,
    /// Time that a report of a started volume takes.
    slowness: Duration,
}

impl RecordingReporter {
    fn write(&self, line: String) -> std::result::Result<(), ProgressReportError> {
        self.lines.lock().push(line);
        if self.is_broken { Err(ProgressReportError("no ink".into())) } else { Ok(()) }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }
}

#[async_trait]
impl VolumeProgressReporter for RecordingReporter {
    async fn creation_started(
        &self,
        making: &VolumeCreation,
    ) -> std::result::Result<(), ProgressReportError> {
        sleep(self.slowness).await;
        let VolumeCreation { persistent_volume, target, snapshot, plugin, .. } = making;
        self.write(format!("{persistent_volume} as {target} from {snapshot} by {plugin}"))
    }

    async fn report_bytes(
        &self,
        _: &VolumeCreation,
        bytes: ByteProgress,
    ) -> std::result::Result<(), ProgressReportError> {
        self.write(format!("{} of {}", bytes.done, bytes.total))
    }

    async fn creation_ended(
        &self,
        _: &VolumeCreation,
        end: &VolumeCreationResult,
    ) -> std::result::Result<(), ProgressReportError> {
        self.write(match end {
            VolumeCreationResult::Completed(volume) => format!("completed as {volume}"),
            VolumeCreationResult::Failed(reason) => format!("failed: {reason}"),
            VolumeCreationResult::Canceled(reason) => format!("canceled: {reason}"),
        })
    }
}

/// A restore to be.
struct World {
    fake: Arc<Fake>,
    disk: Arc<Disk>,
    reporter: Arc<RecordingReporter>,
    journal: Arc<InMemory>,
    store: BackupStore,
    spec: Value,
    allow_empty: bool,
    /// Start time of the restore. A process that resumes the restore has not started it.
    started: Timestamp,
    recovered: RecoveredRun,
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
            .map(|stored_snapshot| BackupVolumeInfo {
                pv_name: stored_snapshot.spec.persistent_volume_name.clone(),
                backup_method: Some(Method::NativeSnapshot),
                ..BackupVolumeInfo::default()
            })
            .collect();
        store.put(&name, &snapshots).await.unwrap();
        store.put(&name, &infos).await.unwrap();
        Self {
            fake: Arc::new(Fake::usual()),
            disk: Arc::new(disk),
            reporter: Arc::default(),
            journal: Arc::default(),
            store,
            spec: json!({}),
            allow_empty: false,
            started: Timestamp::now(),
            recovered: RecoveredRun::default(),
            stop: CancellationToken::new(),
            cancel: CancellationToken::new(),
        }
    }

    fn request(&self) -> Request {
        let mut fixture = ValidRestore::new(self.spec.clone());
        if self.allow_empty {
            let key = request::ALLOW_EMPTY_VOLUMES.to_owned();
            fixture.restore.metadata.annotations = Some([(key, "true".to_owned())].into());
        }
        ValidRestore { started_at: self.started, ..fixture }.request()
    }

    async fn restore(&self) -> Outcome<'_> {
        let options = Options {
            requests: 4,
            items: 8,
            scratch: std::env::temp_dir(),
            unpack_limits: UnpackLimits::default(),
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
            volume_reporter: Arc::clone(&self.reporter) as _,
            options,
            progress: Arc::new(Progress::default()),
            journal: Arc::clone(&self.journal) as _,
            recovered: self.recovered.clone(),
            stop: self.stop.clone(),
            cancel: self.cancel.clone(),
        };
        let started_at = Instant::now();
        let restored = Box::pin(restore::run(run, self.started)).await;
        Outcome { world: self, restored, elapsed: started_at.elapsed() }
    }

    /// The same backup and cluster for the next process, with the journal so far.
    fn next(self, disk: Disk, journaled: usize) -> Self {
        let records = self.journal.records().into_iter().take(journaled);
        Self {
            disk: Arc::new(disk),
            reporter: Arc::default(),
            journal: Arc::default(),
            recovered: recover(records),
            stop: CancellationToken::new(),
            cancel: CancellationToken::new(),
            ..self
        }
    }
}

/// Outcome of a restore.
struct Outcome<'a> {
    world: &'a World,
    restored: RestoreOutcome,
    elapsed: Duration,
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

    fn assert_clean(&self) {
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
async fn volume_is_created_from_its_snapshot_and_bound() {
    let world = World::with(Disk::good()).await;
    let outcome = world.restore().await;
    outcome.assert_clean();
    let volume = outcome.volume("pv-1").unwrap();
    assert_eq!(volume["spec"]["disk"]["id"], "vol-1");
    assert_eq!(volume["spec"]["claimRef"], json!({"namespace": "shop", "name": "data-1"}));
    assert_eq!(volume["metadata"]["annotations"], json!({}));
    assert_eq!(volume.get("status"), None);
    assert_eq!(outcome.claim("shop", "data-1").unwrap()["spec"]["volumeName"], "pv-1");
    let requests = world.disk.requests.lock().clone();
    let info = VolumeInfo { volume_type: "ssd".into(), iops: Some(300) };
    assert_eq!(requests, [("snap-1".to_owned(), info, "zone-1".to_owned())]);
    let expected = ["pv-1 as pv-1 from snap-1 by example.io/disk", "completed as vol-1"];
    assert_eq!(world.reporter.lines(), expected);

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
        matches!(&records[..], [JournalEntry::VolumeRequested(begun), JournalEntry::VolumeAnswered(ended)]
            if begun.block == ended.block && ended.volume.as_deref() == Some("vol-1")),
        "{records:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn volumes_are_created_concurrently() {
    let all = Arc::new(tokio::sync::Barrier::new(5));
    let disk = Disk::answering(move |_, snapshot| {
        let all = Arc::clone(&all);
        Box::pin(async move {
            // Sequential calls would wait here forever.
            all.wait().await;
            Ok(volume_of(&snapshot))
        })
    });
    let world = World::with_snapshots(disk, (1..=5).map(snapshot).collect()).await;
    let outcome = tokio::time::timeout(Duration::from_mins(1), world.restore()).await.unwrap();
    outcome.assert_clean();
    assert_eq!(outcome.restored.volumes.len(), 5);

    // The same where they come as what claims need.
    let all = Arc::new(tokio::sync::Barrier::new(5));
    let disk = Disk::answering(move |_, snapshot| {
        let all = Arc::clone(&all);
        Box::pin(async move {
            all.wait().await;
            Ok(volume_of(&snapshot))
        })
    });
    let mut world = World::with_snapshots(disk, (1..=5).map(snapshot).collect()).await;
    world.spec = json!({"includedNamespaces": ["shop"]});
    let outcome = tokio::time::timeout(Duration::from_mins(1), world.restore()).await.unwrap();
    outcome.assert_clean();
    assert_eq!(outcome.restored.volumes.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn plugin_is_not_called_if_restore_pvs_is_false() {
    let mut world = World::with(Disk::good()).await;
    world.spec = json!({"restorePVs": false});
    let outcome = world.restore().await;
    outcome.assert_clean();
    assert_eq!(outcome.volume("pv-1").unwrap()["spec"]["disk"]["id"], "old");
    assert_eq!(world.disk.snapshots(), [""; 0]);
    assert_eq!((world.reporter.lines(), outcome.restored.volumes.len()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_failed_volume_is_created_only_if_empty_is_allowed() {
    let mut failed = snapshot(1);
    failed["status"]["phase"] = json!("Failed");
    let mut elsewhere = snapshot(1);
    elsewhere["spec"]["location"] = json!("gone");
    let refused = "plugin example.io/disk created no volume from snapshot snap-1: no space";
    let missing = "the VolumeSnapshotLocation gone cannot be used: not found";
    let not_saved = "the data of the volume is not in the backup: its snapshot or copy failed";
    let no_space = || Disk::failing(Error::unknown("no space"));
    for (disk, stored_snapshot, reason, is_asked) in [
        (no_space(), snapshot(1), refused, true),
        (Disk::good(), elsewhere, missing, false),
        (Disk::good(), failed, not_saved, false),
    ] {
        let mut world = World::with_snapshots(disk, vec![stored_snapshot]).await;
        let outcome = world.restore().await;
        let errors = outcome.errors();
        let [volume, claim] = &errors[..] else { panic!("{errors:?}") };
        assert!(volume.starts_with(&format!("persistentvolumes/pv-1: {reason}")), "{volume}");
        let words = format!(
            "persistentvolumeclaims/data-1: volume pv-1 of the claim is not restored: {reason}; \
             to create an empty volume instead, restore with `--allow-empty-volumes`"
        );
        assert_eq!(*claim, words);
        assert_eq!(outcome.volume("pv-1"), None);
        assert_eq!(outcome.claim("shop", "data-1"), None);
        assert_eq!(outcome.restored.volumes.len(), 0);
        assert_eq!(!world.disk.snapshots().is_empty(), is_asked, "{reason}");
        let lines = world.reporter.lines();
        assert_eq!(lines.last().is_some_and(|line| *line == format!("failed: {reason}")), is_asked);

        world.fake = Arc::new(Fake::usual());
        world.allow_empty = true;
        let outcome = world.restore().await;
        assert_eq!(outcome.volume("pv-1"), None);
        let claim = outcome.claim("shop", "data-1").unwrap();
        assert_eq!(claim["spec"].get("volumeName"), None, "{claim}");
        // A failure that is known in advance is no error any more: the user has accepted it.
        assert_eq!(outcome.errors().len(), usize::from(reason != not_saved), "{reason}");
        let has_warning =
            outcome.warnings().iter().any(|text| text.contains("the claim is created empty: "));
        assert!(has_warning, "{:?}", outcome.warnings());
    }
}

/// A PersistentVolume in the cluster, with its claim and namespace.
fn used(fake: &Fake) {
    for object in [volume(1), claim(1), namespace("shop")] {
        fake.put(object);
    }
}

#[tokio::test(start_paused = true)]
async fn volume_in_use_is_unchanged() {
    let world = World::with(Disk::good()).await;
    used(&world.fake);
    let outcome = world.restore().await;
    outcome.assert_clean();
    assert_eq!(world.disk.snapshots(), [""; 0]);
    assert_eq!(outcome.volume("pv-1"), Some(volume(1)));
    assert_eq!(outcome.restored.volumes.len(), 0);

    // As for any object, a difference is reported.
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
async fn terminating_volume_is_waited_for() {
    let world = World::with(Disk::good()).await;
    let mut released = volume(1);
    released["status"]["phase"] = json!("Released");
    world.fake.put(released.clone());
    let deletion = async {
        sleep(5 * SECOND / 2).await;
        world.fake.remove("persistentvolumes", "", "pv-1");
    };
    let (outcome, ()) = tokio::join!(world.restore(), deletion);
    outcome.assert_clean();
    assert_eq!(outcome.elapsed, 3 * SECOND, "it is looked at each second");
    assert_eq!(outcome.volume("pv-1").unwrap()["spec"]["disk"]["id"], "vol-1");

    // A volume that stays is an error, and its claim is not created.
    let world = World::with(Disk::good()).await;
    world.fake.put(released);
    let outcome = world.restore().await;
    let errors = outcome.errors();
    assert!(
        errors[0].contains("still exists after 600 s, although the PersistentVolume is released")
    );
    assert!(errors.len() == 2 && outcome.claim("shop", "data-1").is_none(), "{errors:?}");
    assert_eq!(outcome.elapsed, TERMINATING);
    assert_eq!(world.disk.snapshots(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn cloned_volume_keeps_its_name_across_restarts() {
    let mut world = World::with(Disk::good()).await;
    used(&world.fake);
    world.spec = json!({"namespaceMapping": {"shop": "copy"}});
    let outcome = world.restore().await;
    outcome.assert_clean();
    let claim = outcome.claim("copy", "data-1").unwrap();
    let name = claim["spec"]["volumeName"].as_str().unwrap().to_owned();
    assert!(name.starts_with("velero-clone-"), "{name}");
    let created = outcome.volume(&name).unwrap();
    assert_eq!(created["metadata"]["annotations"]["velero.io/original-pv-name"], "pv-1");
    assert_eq!(created["spec"]["claimRef"], json!({"namespace": "copy", "name": "data-1"}));
    assert_eq!(created["spec"]["disk"]["id"], "vol-1");
    assert_eq!(outcome.volume("pv-1"), Some(volume(1)));
    assert_eq!(outcome.restored.volumes[0].pv_name, name);
    assert!(world.reporter.lines()[0].starts_with(&format!("pv-1 as {name} from")));

    // The original volume is gone now, and the name is still the same.
    world.fake.remove("persistentvolumes", "", &name);
    world.fake.remove("persistentvolumes", "", "pv-1");
    world.fake.remove("persistentvolumeclaims", "copy", "data-1");
    let world = world.next(Disk::good(), usize::MAX);
    let outcome = world.restore().await;
    outcome.assert_clean();
    assert!(outcome.volume(&name).is_some() && outcome.volume("pv-1").is_none());
    assert_eq!(outcome.claim("copy", "data-1").unwrap()["spec"]["volumeName"], name.as_str());

    // Without the original volume, no other name is needed.
    let mut world = World::with(Disk::good()).await;
    world.spec = json!({"namespaceMapping": {"shop": "copy"}});
    let outcome = world.restore().await;
    outcome.assert_clean();
    assert_eq!(outcome.claim("copy", "data-1").unwrap()["spec"]["volumeName"], "pv-1");
}

#[tokio::test(start_paused = true)]
async fn mapped_claim_is_not_created_for_a_volume_held_by_another() {
    let mut world = World::with(Disk::good()).await;
    used(&world.fake);
    world.spec = json!({"namespaceMapping": {"shop": "copy"}, "restorePVs": false});
    let outcome = world.restore().await;
    let error = "persistentvolumeclaims/data-1: volume pv-1 of the claim is not restored: the \
                 volume is bound to claim shop/data-1, and its data is not in the backup; to \
                 create an empty volume instead, restore with `--allow-empty-volumes`";
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
async fn known_volume_is_not_created_twice_after_a_crash() {
    let world = World::with(Disk::good()).await;
    world.restore().await.assert_clean();
    let records = world.journal.records().len();
    assert_eq!(records, 2);
    let mut world = world;
    for (journaled, is_created, is_reported) in
        [(0, true, false), (1, true, true), (2, false, false)]
    {
        let history = Arc::clone(&world.journal);
        let again = World { fake: Arc::new(Fake::usual()), ..world.next(Disk::good(), journaled) };
        let outcome = again.restore().await;
        assert_eq!(outcome.errors(), [""; 0], "after {journaled} journal entries");
        let volume = outcome.volume("pv-1").unwrap();
        assert_eq!(volume["spec"]["disk"]["id"], "vol-1", "after {journaled} journal entries");
        assert!(outcome.claim("shop", "data-1").is_some());
        assert_eq!(
            again.disk.snapshots().len(),
            usize::from(is_created),
            "after {journaled} journal entries"
        );
        assert_eq!(outcome.restored.volumes.len(), 1);
        let expected = "persistentvolumes/pv-1: the server stopped while plugin example.io/disk \
                        created a volume from snapshot snap-1; the volume, if it exists, may be \
                        left over";
        let warnings: &[&str] = if is_reported { &[expected] } else { &[] };
        assert_eq!(outcome.warnings(), warnings, "after {journaled} journal entries");
        // Including a volume of an earlier process, which may have died before it reported it.
        let shown = again.reporter.lines();
        assert_eq!(
            shown.last().unwrap(),
            "completed as vol-1",
            "after {journaled} journal entries"
        );
        world = World { journal: history, ..again };
    }
}

#[tokio::test(start_paused = true)]
async fn volume_created_before_a_restart_is_done() {
    let world = World::with(Disk::good()).await;
    world.restore().await.assert_clean();
    let mut volume = world.fake.object("persistentvolumes", "", "pv-1").unwrap();
    volume["metadata"]["creationTimestamp"] = json!(Timestamp::now());
    world.fake.put(volume);
    // Its claim was to come next.
    world.fake.remove("persistentvolumeclaims", "shop", "data-1");
    for journaled in [0, 1, 2] {
        world.fake.remove("persistentvolumeclaims", "shop", "data-1");
        let records = world.journal.records().into_iter().take(journaled);
        let again = World {
            fake: Arc::clone(&world.fake),
            recovered: recover(records),
            store: world.store.clone(),
            started: world.started,
            ..World::with(Disk::good()).await
        };
        let outcome = again.restore().await;
        assert_eq!(outcome.errors(), [""; 0]);
        assert_eq!(again.disk.snapshots(), [""; 0], "after {journaled} journal entries");
        assert!(outcome.claim("shop", "data-1").is_some());
        assert_eq!(outcome.restored.volumes.len(), 1, "it is among what was restored");
        assert_eq!(outcome.restored.resources.0["v1/PersistentVolume"], ["pv-1(created)"]);
    }
}

#[tokio::test(start_paused = true)]
async fn canceled_restore_cancels_the_plugin_and_reports_leftovers() {
    // A plugin that ends on request, one that hangs, and one that had already created the volume.
    type Answer = fn(&Disk) -> Option<Result<VolumeId>>;
    let cases: [(Answer, &str, bool); 3] = [
        (
            |_| Some(Err(Error::new(Code::Cancelled, "as you wish"))),
            "plugin example.io/disk created no volume from snapshot snap-1: the restore was \
             canceled: as you wish",
            false,
        ),
        (
            |_| None,
            "plugin example.io/disk created no volume from snapshot snap-1: the restore was \
             canceled; an incomplete volume may be left over",
            false,
        ),
        (|_| Some(Ok(volume_of("snap-1"))), "", true),
    ];
    for (after, reason, is_made) in cases {
        let canceled = watch::Sender::new(Vec::<String>::new());
        let heard = canceled.subscribe();
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
        disk.canceled = canceled;
        let world = World::with(disk).await;
        let cancel = async {
            sleep(30 * SECOND).await;
            world.cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(world.restore(), cancel);
        assert!(matches!(outcome.restored.fatal, Some(FatalError::Canceled)));
        assert_eq!(*world.disk.canceled.borrow(), ["snap-1"]);
        assert_eq!(outcome.volume("pv-1").is_some(), is_made, "{reason}");
        assert_eq!(outcome.claim("shop", "data-1"), None, "nothing new is begun");
        if is_made {
            assert_eq!(outcome.errors(), [""; 0]);
            assert_eq!(world.reporter.lines().last().unwrap(), "completed as vol-1");
        } else {
            assert_eq!(outcome.errors(), [format!("persistentvolumes/pv-1: {reason}")]);
            assert_eq!(*world.reporter.lines().last().unwrap(), format!("canceled: {reason}"));
        }
        assert!(outcome.elapsed <= 41 * SECOND, "{:?}", outcome.elapsed);
    }
}

#[tokio::test(start_paused = true)]
async fn volume_creation_times_out() {
    let mut world = World::with(Disk::slow(Duration::from_hours(9))).await;
    world.spec = json!({"itemOperationTimeout": "2m"});
    let outcome = world.restore().await;
    let reason = "plugin example.io/disk created no volume from snapshot snap-1: the plugin took \
                  longer than 120 s; an incomplete volume may be left over";
    assert_eq!(outcome.errors()[0], format!("persistentvolumes/pv-1: {reason}"));
    assert_eq!(*world.disk.canceled.borrow(), ["snap-1"]);
    assert_eq!(*world.reporter.lines().last().unwrap(), format!("failed: {reason}"));
    assert_eq!(outcome.claim("shop", "data-1"), None);
    assert!(outcome.elapsed < 140 * SECOND, "{:?}", outcome.elapsed);
    assert_eq!(world.journal.records().len(), 1, "nobody knows what came of it");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_briefly_and_the_next_server_resumes() {
    for (duration, is_made) in [(10 * SECOND, true), (Duration::from_hours(1), false)] {
        let world = World::with(Disk::slow(duration)).await;
        let stop = async {
            sleep(SECOND).await;
            world.stop.cancel();
        };
        let (outcome, ()) = tokio::join!(world.restore(), stop);
        assert!(matches!(outcome.restored.fatal, Some(FatalError::Stopped)));
        assert!(outcome.elapsed < 35 * SECOND, "{:?}", outcome.elapsed);
        assert_eq!(outcome.volume("pv-1").is_some(), is_made);
        let ends = world.reporter.lines().len() - 1;
        assert_eq!(ends, usize::from(is_made), "it goes on: {:?}", world.reporter.lines());
        assert_eq!(world.journal.records().len(), if is_made { 2 } else { 1 });
        assert_eq!(world.disk.canceled.borrow().len(), usize::from(!is_made));
    }
}

#[tokio::test(start_paused = true)]
async fn progress_is_reported_each_second() {
    let mut disk = Disk::slow(7 * SECOND / 2);
    disk.progress = Box::new(|polls| {
        let done = i64::try_from(polls).unwrap() * 100;
        Ok(bowline_plugin::Progress {
            state: State::Running,
            done,
            total: 900,
            units: "Bytes".into(),
            ..bowline_plugin::Progress::default()
        })
    });
    let world = World::with(disk).await;
    world.restore().await.assert_clean();
    let lines = world.reporter.lines();
    assert_eq!(lines[1..], ["0 of 900", "100 of 900", "200 of 900", "completed as vol-1"]);

    // A plugin without progress is asked once; a failing one, a few times.
    for (error, polls) in [
        (Error::unimplemented("Progress"), 1),
        (Error::invalid_operation("snap-1"), 1),
        (Error::unknown("not now"), 5),
    ] {
        let mut disk = Disk::slow(60 * SECOND);
        disk.progress = Box::new(move |_| Err(error.clone()));
        let world = World::with(disk).await;
        world.restore().await.assert_clean();
        assert_eq!(world.disk.polls.load(Ordering::Relaxed), polls);
    }
}

#[tokio::test(start_paused = true)]
async fn report_failure_is_warned_once() {
    let mut disk = Disk::slow(5 * SECOND / 2);
    disk.progress = Box::new(|polls| {
        let done = i64::try_from(polls).unwrap() + 1;
        Ok(bowline_plugin::Progress { done, total: 9, ..bowline_plugin::Progress::default() })
    });
    let mut world = World::with(disk).await;
    world.reporter =
        Arc::new(RecordingReporter { is_broken: true, ..RecordingReporter::default() });
    let outcome = world.restore().await;
    assert_eq!(outcome.errors(), [""; 0]);
    let expected = "persistentvolumes/pv-1: the VolumePluginRestore cannot be written: no ink";
    assert_eq!(outcome.warnings(), [expected]);
    assert_eq!(world.reporter.lines().len(), 4);
    assert!(outcome.volume("pv-1").is_some());
}

#[tokio::test(start_paused = true)]
async fn reports_keep_their_order() {
    let mut world = World::with(Disk::good()).await;
    world.reporter =
        Arc::new(RecordingReporter { slowness: 3 * SECOND, ..RecordingReporter::default() });
    let outcome = world.restore().await;
    outcome.assert_clean();
    let lines = world.reporter.lines();
    assert!(lines.len() == 2 && lines[1] == "completed as vol-1", "{lines:?}");

    // A report that takes too long is abandoned, and the volume is restored all the same.
    let mut world = World::with(Disk::good()).await;
    world.reporter = Arc::new(RecordingReporter {
        slowness: Duration::from_hours(1),
        ..RecordingReporter::default()
    });
    let outcome = world.restore().await;
    let expected =
        "persistentvolumes/pv-1: the VolumePluginRestore cannot be written: no answer within 10 s";
    assert_eq!(outcome.warnings(), [expected]);
    assert!(
        outcome.volume("pv-1").is_some() && outcome.elapsed == 10 * SECOND,
        "{:?}",
        outcome.elapsed
    );
}

#[tokio::test(start_paused = true)]
async fn crashed_plugin_is_retried_once_and_leftovers_reported() {
    let gone = || Error::new(Code::Unavailable, "it has died");
    let disk = Disk::answering(move |before, snapshot| {
        Box::pin(async move { if before == 0 { Err(gone()) } else { Ok(volume_of(&snapshot)) } })
    });
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    assert_eq!(outcome.errors(), [""; 0]);
    let expected = "persistentvolumes/pv-1: plugin example.io/disk is called again for a volume \
                    from snapshot snap-1; a volume of the first call may be left over: it has died";
    assert_eq!(outcome.warnings(), [expected]);
    assert!(outcome.volume("pv-1").is_some());
    // A later process also reports the first volume.
    let world = world.next(Disk::good(), usize::MAX);
    assert_eq!(world.recovered.volumes.iter().filter(|one| one.ended.is_none()).count(), 1);

    let world = World::with(Disk::failing(gone())).await;
    let outcome = world.restore().await;
    assert_eq!(world.disk.snapshots().len(), 2);
    let errors = outcome.errors();
    assert!(errors[0].ends_with("it has died; an incomplete volume may be left over"));
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn unreferenced_volume_is_reported() {
    // The API server refuses the PersistentVolume.
    let world = World::with(Disk::good()).await;
    world.fake.fail_write("persistentvolumes", || ClusterError::Refused {
        code: 422,
        reason: "Invalid".into(),
        message: "no".into(),
    });
    let outcome = world.restore().await;
    let expected = "persistentvolumes/pv-1: volume vol-1, which plugin example.io/disk created \
                    from snapshot snap-1, is left over: no object refers to it";
    assert_eq!(outcome.warnings(), [expected]);
    assert_eq!((outcome.errors().len(), outcome.restored.volumes.len()), (1, 0));

    // The plugin returns something else.
    let mut disk = Disk::good();
    disk.alter_volume = |object| object["kind"] = json!("ClusterRole");
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    let errors = outcome.errors();
    assert!(
        errors[0].contains("created volume vol-1")
            && errors[0].contains("is left over: the plugin")
    );
    assert_eq!(world.fake.creations().len(), 1, "only the namespace");

    // The restore is cancelled by a user before the next process came to it.
    let world = World::with(Disk::good()).await;
    world.restore().await.assert_clean();
    let world = World { fake: Arc::new(Fake::usual()), ..world.next(Disk::good(), 2) };
    world.cancel.cancel();
    let outcome = world.restore().await;
    assert!(matches!(outcome.restored.fatal, Some(FatalError::Canceled)));
    let expected = "persistentvolumes/pv-1: plugin example.io/disk created volume vol-1 from \
                    snapshot snap-1; the volume is left over unless a PersistentVolume refers to it";
    assert_eq!(outcome.warnings(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn name_chosen_by_the_plugin_is_used() {
    let mut disk = Disk::good();
    disk.alter_volume = |object| object["metadata"]["name"] = json!("chosen");
    let world = World::with(disk).await;
    let outcome = world.restore().await;
    outcome.assert_clean();
    let volume = outcome.volume("chosen").unwrap();
    assert_eq!(volume["metadata"]["annotations"]["velero.io/original-pv-name"], "pv-1");
    assert_eq!(outcome.claim("shop", "data-1").unwrap()["spec"]["volumeName"], "chosen");
    assert_eq!(outcome.restored.volumes[0].pv_name, "chosen");
}
