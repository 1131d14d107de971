//! Snapshots of volumes, on an in-memory cluster with an in-memory snapshotter.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::snapshot_type::SnapshotType;
use bowline_engine::backup::snapshot::ReclaimOutcome;
use bowline_engine::backup::{self, Recovery, finalize, snapshot};
use bowline_engine::cluster::{ExecOutcome, Fake};
use bowline_engine::journal::{BlockStarted, InMemory, JournalEntry, recover};
use bowline_engine::operation::{Kind, State};
use bowline_engine::report::Report;
use bowline_engine::snapshotter::{OpenError, Snapshotter, Snapshotters};
use bowline_engine::testing::{CompleteSnapshotter, PartialSnapshotter};
use bowline_plugin::{
    Code, Error, Item, ResourceIdentifier, Result, SnapshotId, VolumeId, VolumeInfo,
};
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;
use bowline_store::file::{Outcome, SnapshotPhase};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::backup::{FinishedBackup, fn_action, run_and_read, run_of, store_in};
use crate::support::objects::{namespace, object};

/// A snapshotter that records its calls, together with the hooks of pods.
#[derive(Default)]
struct FakeSnapshotter {
    calls: Arc<Mutex<Vec<String>>>,
    /// Snapshots by request.
    snapshots: Mutex<BTreeMap<String, String>>,
    /// Failure of a volume.
    fails: Option<(&'static str, Code)>,
    /// True for version 2.
    is_v2: bool,
    /// Start and end of the call for the snapshot of a volume.
    times: Mutex<BTreeMap<String, [Timestamp; 2]>>,
    /// Progress that the run publishes.
    progress: Arc<backup::Progress>,
    /// A volume whose snapshot is created, but without an answer while this is set.
    hangs: std::sync::atomic::AtomicBool,
    /// Cancels the run when the first snapshot is created.
    cancels: Mutex<Option<CancellationToken>>,
}

impl FakeSnapshotter {
    fn record_call(&self, call: String) {
        self.calls.lock().push(call);
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }
}

#[async_trait]
impl PartialSnapshotter for FakeSnapshotter {
    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        let object: Value = persistent_volume.parse().unwrap();
        Ok(object["spec"]["disk"].as_str().and_then(VolumeId::new))
    }

    async fn get_volume_info(&self, volume: &VolumeId, _: &str) -> Result<VolumeInfo> {
        self.record_call(format!("info {volume}"));
        Ok(VolumeInfo { volume_type: "ssd".into(), iops: None })
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        self.record_call(format!("begin {volume}"));
        let called = Timestamp::now();
        tokio::task::yield_now().await;
        if let Some((bad, code)) = self.fails
            && bad == volume.as_str()
        {
            return Err(Error::new(code, "no luck"));
        }
        assert_eq!((zone, tags["velero.io/backup"].as_str()), ("z1", "b1"));
        let request = tags["bowline.io/request-id"].clone();
        let number = self.calls.lock().len();
        let id = {
            let mut snapshots = self.snapshots.lock();
            snapshots.entry(request).or_insert_with(|| format!("snap-{volume}-{number}")).clone()
        };
        if volume.as_str() == "pv-a" && self.hangs.load(std::sync::atomic::Ordering::Relaxed) {
            let _hanging = DropRecorder(tokio::time::Instant::now(), Arc::clone(&self.calls));
            std::future::pending::<()>().await;
        }
        self.record_call(format!("end {volume}"));
        self.times.lock().insert(volume.to_string(), [called, Timestamp::now()]);
        if let Some(cancel) = self.cancels.lock().take() {
            cancel.cancel();
        }
        Ok(SnapshotId::new(id).unwrap())
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("delete {snapshot}"));
        self.snapshots.lock().retain(|_, id| id != snapshot.as_str());
        Ok(())
    }
}

/// Notes for how long a call was waited for.
struct DropRecorder(tokio::time::Instant, Arc<Mutex<Vec<String>>>);

impl Drop for DropRecorder {
    fn drop(&mut self) {
        self.1.lock().push(format!("given up after {} s", self.0.elapsed().as_secs()));
    }
}

/// One location with this snapshotter.
struct SingleSnapshotter(Arc<FakeSnapshotter>);

#[async_trait]
impl Snapshotters for SingleSnapshotter {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        Ok(Snapshotter {
            location: location.to_owned(),
            plugin: "test.io/disk".parse().unwrap(),
            is_v2: self.0.is_v2,
            snapshot_type: None,
            calls: Arc::new(CompleteSnapshotter(Arc::clone(&self.0))),
        })
    }
}

fn volume(name: &str, claim: &str) -> Value {
    let mut volume = object("v1", "PersistentVolume", "", name);
    volume["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z1"});
    volume["spec"] = json!({"disk": name, "claimRef": {"namespace": "shop", "name": claim}});
    volume["status"] = json!({"phase": "Bound"});
    volume
}

fn claim(name: &str, volume: &str) -> Value {
    let mut claim = object("v1", "PersistentVolumeClaim", "shop", name);
    claim["spec"] = json!({"volumeName": volume});
    claim["status"] = json!({"phase": "Bound"});
    claim
}

/// A pod with hooks and two volumes; its hooks are recorded with the calls.
fn cluster(disk: &FakeSnapshotter) -> Arc<Fake> {
    let mut pod = object("v1", "Pod", "shop", "db");
    pod["metadata"]["uid"] = json!("pod-uid");
    pod["metadata"]["annotations"] = json!({
        "pre.hook.backup.velero.io/command": "freeze",
        "post.hook.backup.velero.io/command": "thaw",
    });
    pod["spec"] = json!({
        "containers": [{"name": "main", "volumeMounts": [{"name": "a"}, {"name": "b"}]}],
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "b"}},
        ],
    });
    pod["status"] = json!({"phase": "Running"});
    let all = [
        namespace("shop"),
        pod,
        claim("a", "pv-a"),
        claim("b", "pv-b"),
        volume("pv-a", "a"),
        volume("pv-b", "b"),
    ];
    let (calls, progress) = (Arc::clone(&disk.calls), Arc::clone(&disk.progress));
    let cluster = all.into_iter().fold(Fake::usual(), Fake::with);
    Arc::new(cluster.with_exec_script(move |exec| {
        let mut calls = calls.lock();
        if exec.command[0] == "thaw" {
            calls.push(format!("{} operations are shown", progress.snapshots.operations().len()));
        }
        calls.push(exec.command[0].clone());
        Ok(ExecOutcome { output: String::new(), failure: None })
    }))
}

async fn run(
    disk: &Arc<FakeSnapshotter>,
    memory: &Memory,
    records: Vec<JournalEntry>,
) -> (backup::Run, Arc<InMemory>) {
    let store = store_in(memory.clone());
    let spec = json!({"includeClusterResources": true});
    let mut run = run_of(&cluster(disk), spec, store).await;
    run.request.snapshot_locations = vec!["here".to_owned()];
    run.snapshotters = Arc::new(SingleSnapshotter(Arc::clone(disk)));
    run.progress = Arc::clone(&disk.progress);
    let journal = Arc::new(InMemory::default());
    run.journal = Arc::clone(&journal) as _;
    run.recovery = Recovery { recovered: recover(records), report: Report::default() };
    (run, journal)
}

/// A run over the usual cluster with this spec.
async fn run_with(disk: &Arc<FakeSnapshotter>, spec: Value) -> backup::Run {
    let mut run = run_of(&cluster(disk), spec, store_in(Memory::with_bucket("b"))).await;
    run.request.snapshot_locations = vec!["here".to_owned()];
    run.snapshotters = Arc::new(SingleSnapshotter(Arc::clone(disk)));
    run
}

async fn run_backup(disk: &Arc<FakeSnapshotter>) -> (FinishedBackup, Vec<JournalEntry>) {
    let (run, journal) = run(disk, &Memory::with_bucket("b"), Vec::new()).await;
    (run_and_read(run).await, journal.records())
}

fn ids(run: &FinishedBackup) -> Vec<String> {
    run.outcome.snapshots.iter().map(|one| one.status.provider_snapshot_id.clone()).collect()
}

#[tokio::test]
async fn the_snapshots_of_a_pod_are_taken_side_by_side_between_its_hooks() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (run, _) = run_backup(&disk).await;
    assert_eq!(run.errors(), [""; 0]);
    let calls = disk.calls();
    let at = |call: &str| {
        calls.iter().position(|one| one == call).unwrap_or_else(|| panic!("{call} in {calls:?}"))
    };
    for volume in ["pv-a", "pv-b"] {
        assert!(at(&format!("info {volume}")) < at("freeze"), "{calls:?}");
        assert!(at("freeze") < at(&format!("begin {volume}")), "{calls:?}");
        assert!(at(&format!("end {volume}")) < at("thaw"), "{calls:?}");
    }
    assert!(at("begin pv-b") < at("end pv-a") && at("begin pv-a") < at("end pv-b"), "{calls:?}");
    assert_eq!(ids(&run).len(), 2);
    assert_eq!(run.outcome.freezes.len(), 1);
    let of = |kind| run.outcome.operations.iter().filter(|one| one.kind == kind).count();
    assert_eq!((of(Kind::SnapshotCreation), of(Kind::SnapshotUpload)), (2, 2));
}

#[tokio::test]
async fn a_snapshot_begins_when_its_plugin_is_called_and_is_shown_while_its_pod_is_frozen() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (run, _) = run_backup(&disk).await;
    let times = disk.times.lock().clone();
    for operation in &run.outcome.operations {
        let [called, returned] = times[&operation.item.name];
        match operation.kind {
            // Including the whole call: a version 1 plugin may upload in it.
            Kind::SnapshotCreation => assert!(operation.created <= called, "{operation:?}"),
            _ => assert!(operation.created >= returned, "{operation:?}"),
        }
    }
    let calls = disk.calls();
    assert!(calls.contains(&"4 operations are shown".to_owned()), "{calls:?}");
    assert_eq!(disk.progress.snapshots.requested(), 2);
    assert_eq!(disk.progress.snapshots.operations().len(), 4, "each of them once");
}

#[tokio::test]
async fn local_snapshot_has_no_upload() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (mut run, _) = run(&disk, &Memory::with_bucket("b"), Vec::new()).await;
    run.request.own_snapshot_type = Some(SnapshotType::Local);
    let run = run_and_read(run).await;
    assert!(run.outcome.operations.iter().all(|one| one.kind == Kind::SnapshotCreation));
    assert_eq!(run.outcome.operations.len(), 2);
}

#[tokio::test]
async fn a_snapshot_that_fails_is_an_error_on_its_volume_and_the_pod_is_thawed() {
    for (code, is_left_over) in [(Code::Unknown, false), (Code::Unavailable, true)] {
        let fails = Some(("pv-a", code));
        let disk = Arc::new(FakeSnapshotter { fails, ..FakeSnapshotter::default() });
        let (run, _) = run_backup(&disk).await;
        assert_eq!(run.errors().len(), 1, "{:?}", run.errors());
        assert!(run.errors()[0].contains("pv-a") && run.errors()[0].contains("no luck"));
        assert_eq!(disk.calls().last().unwrap(), "thaw");
        assert_eq!(run.warnings().len(), usize::from(is_left_over), "{:?}", run.warnings());
        let phases: Vec<_> =
            run.outcome.snapshots.iter().map(|one| one.status.phase.clone().unwrap()).collect();
        assert_eq!(phases, [SnapshotPhase::Failed, SnapshotPhase::Completed]);
    }
}

#[tokio::test]
async fn v2_plugin_is_asked_again_after_a_crash_and_v1_plugin_is_not() {
    for (is_v2, requests) in [(true, 2), (false, 1)] {
        let fails = Some(("pv-a", Code::Unavailable));
        let disk = Arc::new(FakeSnapshotter { fails, is_v2, ..FakeSnapshotter::default() });
        run_backup(&disk).await;
        let calls = disk.calls();
        let started = calls.iter().filter(|one| *one == "begin pv-a").count();
        assert_eq!(started, requests, "{calls:?}");
    }
}

#[tokio::test]
async fn no_snapshot_is_lost_or_left_over_unreported_wherever_a_process_dies() {
    for is_v2 in [true, false] {
        let disk = Arc::new(FakeSnapshotter { is_v2, ..FakeSnapshotter::default() });
        let memory = Memory::with_bucket("b");
        let (first, journal) = run(&disk, &memory, Vec::new()).await;
        let (whole, records) = (run_and_read(first).await, journal.records());
        assert_eq!(ids(&whole).len(), 2);
        let leftovers = disk.snapshots.lock().clone();
        for length in 0..=records.len() {
            // The state is as the first process left it.
            disk.snapshots.lock().clone_from(&leftovers);
            let journaled = records[..length].to_vec();
            let is_finished = !recover(journaled.clone()).finished.is_empty();
            let (again, journal_of_second) = run(&disk, &memory, journaled.clone()).await;
            let again = run_and_read(again).await;
            assert_eq!(again.errors(), [""; 0], "after {length} journal entries");
            assert_eq!(ids(&again).len(), 2, "after {length} journal entries");
            let there: Vec<String> = disk.snapshots.lock().values().cloned().collect();
            for id in ids(&again) {
                assert!(there.contains(&id), "{id} of {there:?}");
            }
            let is_begun = length > 0 && !is_finished;
            let warnings =
                again.warnings().iter().filter(|text| text.contains("may be left over")).count();
            assert_eq!(
                warnings,
                if is_begun && !is_v2 { 2 } else { 0 },
                "after {length} journal entries"
            );
            if is_begun && !is_v2 {
                // A process that is killed later takes its warnings with it: the next one must warn again.
                let more = journal_of_second.records();
                let still = recover(journaled.iter().cloned().chain(more)).in_flight;
                let first_two = recover(journaled.clone()).in_flight;
                assert!(first_two.iter().all(|one| still.contains(one)), "{still:?}");
            }
            if is_finished {
                assert_eq!(ids(&again), ids(&whole), "they are taken over");
                assert_eq!(again.outcome.operations.len(), 4);
                assert_eq!(again.outcome.freezes.len(), 1);
            } else if is_v2 && is_begun {
                let deleted = ids(&whole).iter().all(|id| !there.contains(id));
                assert!(deleted, "those of the first try are deleted: {there:?}");
            }
        }
    }
}

#[tokio::test]
async fn snapshots_of_a_block_that_could_not_be_journaled_are_deleted_by_the_next_attempt() {
    for is_v2 in [true, false] {
        let disk = Arc::new(FakeSnapshotter { is_v2, ..FakeSnapshotter::default() });
        let memory = Memory::with_bucket("b");
        let (mut first, _) = run(&disk, &memory, Vec::new()).await;
        let journal =
            Arc::new(InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_))));
        first.journal = Arc::clone(&journal) as _;
        let first = run_and_read(first).await;
        assert_eq!(ids(&first).len(), 2);

        let (again, _) = run(&disk, &memory, journal.records()).await;
        let again = run_and_read(again).await;
        let mut created: Vec<String> = disk.snapshots.lock().values().cloned().collect();
        let mut recorded = ids(&again);
        created.sort();
        recorded.sort();
        assert_eq!(created, recorded, "those of the first attempt are deleted");
        assert_eq!(again.warnings(), [""; 0]);
    }
}

#[tokio::test]
async fn snapshot_in_flight_that_the_backup_has_is_kept() {
    for is_v2 in [true, false] {
        let disk = Arc::new(FakeSnapshotter { is_v2, ..FakeSnapshotter::default() });
        let (mut run, _) = run(&disk, &Memory::with_bucket("b"), Vec::new()).await;
        let journal =
            Arc::new(InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_))));
        run.journal = Arc::clone(&journal) as _;
        let run = run_and_read(run).await;
        let in_flight = recover(journal.records()).in_flight;
        assert_eq!(in_flight.len(), 2, "{in_flight:?}");
        let snapshotters = SingleSnapshotter(Arc::clone(&disk));
        let reclaim = async |intent, recorded| {
            snapshot::reclaim(&snapshotters, "b1", None, intent, recorded).await.unwrap()
        };
        let recorded = &*run.outcome.snapshots;
        assert_eq!(reclaim(&in_flight[0], recorded).await, ReclaimOutcome::Recorded);
        assert_eq!(reclaim(&in_flight[1], recorded).await, ReclaimOutcome::Recorded);
        assert_eq!(disk.snapshots.lock().len(), 2);
        assert_eq!(reclaim(&in_flight[0], &[]).await, ReclaimOutcome::Deleted);
        assert_eq!(disk.snapshots.lock().len(), 1);
    }
}

#[tokio::test]
async fn canceled_block_keeps_the_snapshots_that_were_answered_on_the_record() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (run, journal) = run(&disk, &Memory::with_bucket("b"), Vec::new()).await;
    *disk.cancels.lock() = Some(run.cancel.clone());
    let outcome = backup::run(run, Timestamp::now()).await;
    assert!(matches!(outcome.archive, Err(backup::FatalError::Canceled)), "{:?}", outcome.archive);
    let snapshot_ids: Vec<String> = disk.snapshots.lock().values().cloned().collect();
    assert!(!snapshot_ids.is_empty());
    let in_flight = recover(journal.records()).in_flight;
    let created: Vec<_> =
        in_flight.into_iter().filter_map(|intent| intent.snapshot?.created).collect();
    for id in &snapshot_ids {
        assert!(created.contains(id), "{id} in {created:?} of {:?}", journal.records());
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_has_begun_blocks_waits_longer_for_its_bucket() {
    use std::time::Duration;

    let block = BlockStarted::default();
    for (records, waited) in [
        (Vec::new(), Duration::from_secs(20)..Duration::from_mins(2)),
        (vec![JournalEntry::BlockStarted(block)], Duration::from_mins(5)..Duration::from_mins(7)),
    ] {
        let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
        let away = |call, _: &str| {
            (call == StoreCall::Exists).then(|| Error::new(Code::Unavailable, "away"))
        };
        let memory = Memory::with_bucket("b").failing(away);
        let (run, _) = run(&disk, &memory, records).await;
        let started = tokio::time::Instant::now();
        let outcome = backup::run(run, Timestamp::now()).await;
        assert!(matches!(outcome.archive, Err(backup::FatalError::ReadBucket(_))));
        assert!(waited.contains(&started.elapsed()), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn thawed_pods_are_journaled_before_snapshots_in_flight() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (mut run, _) = run(&disk, &Memory::with_bucket("b"), Vec::new()).await;
    let journal =
        Arc::new(InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_))));
    run.journal = Arc::clone(&journal) as _;
    run_and_read(run).await;
    let records = journal.records();
    let of_thaw = |record: &JournalEntry| matches!(record, JournalEntry::Thawed { .. });
    let of_snapshots = |record: &JournalEntry| matches!(record, JournalEntry::InFlight { .. });
    let thawed = records.iter().position(of_thaw).unwrap();
    let in_flight = records.iter().position(of_snapshots).unwrap();
    assert!(thawed < in_flight, "{records:?}");
}

#[tokio::test]
async fn snapshots_of_an_abandoned_run_are_deleted_or_reported() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (run, _) = run_backup(&disk).await;
    let report = Report::default();
    let undeleted = snapshot::discard(
        &SingleSnapshotter(Arc::clone(&disk)),
        run.outcome.snapshots.clone(),
        &report,
    )
    .await;
    assert!(undeleted.is_empty() && report.error_count() == 0);
    assert!(disk.snapshots.lock().is_empty());
    let no_snapshotters = bowline_engine::snapshotter::NoSnapshotters;
    let undeleted =
        snapshot::discard(&no_snapshotters, run.outcome.snapshots.clone(), &report).await;
    assert_eq!((undeleted.len(), report.error_count()), (2, 2), "they stay in the record");
}

#[tokio::test]
async fn an_upload_that_failed_makes_its_snapshot_a_failed_one() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let (run, _) = run_backup(&disk).await;
    let mut operations = run.outcome.operations.clone();
    for operation in &mut operations {
        operation.state = State::Completed;
    }
    let failed = operations
        .iter_mut()
        .find(|one| one.kind == Kind::SnapshotUpload && one.item.name == "pv-b")
        .unwrap();
    failed.state = State::Failed("at 99%".into());
    let (mut snapshots, mut infos) = (run.outcome.snapshots.clone(), run.outcome.volumes.clone());
    snapshot::apply_operation_results(&operations, &mut snapshots, &mut infos);
    let phases: Vec<_> = snapshots.iter().map(|one| one.status.phase.clone().unwrap()).collect();
    assert_eq!(phases, [SnapshotPhase::Completed, SnapshotPhase::Failed]);
    let results: Vec<_> = infos.iter().map(|one| one.result.clone().unwrap()).collect();
    assert_eq!(results, [Outcome::Succeeded, Outcome::Failed]);
    let mut status = bowline_api::BackupStatus::default();
    finalize::count_operations(&mut status, &operations);
    assert_eq!(status.volume_snapshots_completed, 1);
}

#[tokio::test(start_paused = true)]
async fn plugin_that_hangs_during_a_freeze_is_given_up_and_its_snapshot_reclaimed() {
    let disk =
        Arc::new(FakeSnapshotter { is_v2: true, hangs: true.into(), ..FakeSnapshotter::default() });
    let (mut run, journal) = run(&disk, &Memory::with_bucket("b"), Vec::new()).await;
    run.options.freeze_timeout = Some(std::time::Duration::from_secs(90));
    let run = run_and_read(run).await;
    let errors = run.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("within 90 s") && errors[0].contains("--freeze-timeout"));
    let calls = disk.calls();
    let last = ["given up after 90 s", "2 operations are shown", "thaw"];
    assert_eq!(calls[calls.len() - 3..], last, "{calls:?}");
    assert_eq!(ids(&run).iter().filter(|id| !id.is_empty()).count(), 1, "the other is taken");
    // If the server ends before that is in the journal, both are asked for again.
    let records = journal.records();
    let is_begun = |record: &JournalEntry| matches!(record, JournalEntry::BlockStarted(started) if !started.intents.is_empty());
    let started = records.iter().position(is_begun).unwrap();
    let ended =
        records.iter().position(|record| matches!(record, JournalEntry::BlockEnded(_))).unwrap();
    for length in started + 1..=ended {
        let recovered = recover(records[..length].to_vec());
        assert_eq!(recovered.in_flight.len(), 2, "after {length} of {records:?}");
    }

    // The snapshot appeared later, and cleanup finds it by its request.
    disk.hangs.store(false, std::sync::atomic::Ordering::Relaxed);
    let recovered = recover(journal.records());
    assert_eq!(recovered.in_flight.len(), 1, "{recovered:?}");
    let intent = &recovered.in_flight[0];
    let snapshotters = SingleSnapshotter(Arc::clone(&disk));
    // If the files of the backup name it, only the journal lacks its answer.
    let mut named = bowline_store::file::Snapshot::default();
    let is_of_a = |id: &&String| id.starts_with("snap-pv-a");
    let id = disk.snapshots.lock().values().find(is_of_a).cloned().unwrap();
    named.status.provider_snapshot_id = id;
    let outcome = snapshot::reclaim(&snapshotters, "b1", None, intent, &[named]).await;
    assert_eq!(outcome, Ok(snapshot::ReclaimOutcome::Recorded));
    assert_eq!(disk.snapshots.lock().len(), 2, "both stay");
    let reclaimed = snapshot::reclaim(&snapshotters, "b1", None, intent, &[]).await;
    assert_eq!(reclaimed, Ok(snapshot::ReclaimOutcome::Deleted));
    assert_eq!(disk.snapshots.lock().values().find(is_of_a), None);
    assert_eq!(disk.snapshots.lock().len(), 1, "that of the other volume stays");
    let request = intent.snapshot.clone().unwrap().request;
    let mut records = journal.records();
    records.push(JournalEntry::Reclaimed { request });
    assert_eq!(recover(records).in_flight, []);
}

#[tokio::test(start_paused = true)]
async fn without_frozen_pods_a_plugin_has_as_long_as_any_operation() {
    let disk =
        Arc::new(FakeSnapshotter { is_v2: true, hangs: true.into(), ..FakeSnapshotter::default() });
    let cluster = cluster(&disk);
    cluster.remove("pods", "shop", "db");
    let spec = json!({"includeClusterResources": true});
    let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
    run.request.snapshot_locations = vec!["here".to_owned()];
    run.snapshotters = Arc::new(SingleSnapshotter(Arc::clone(&disk)));
    run.options.freeze_timeout = Some(std::time::Duration::from_secs(90));
    let limit = run.request.item_operation_timeout().as_secs();
    let run = run_and_read(run).await;
    let given_up = format!("given up after {limit} s");
    assert!(disk.calls().contains(&given_up), "{:?}", disk.calls());
    assert!(run.errors()[0].contains("in time"), "{:?}", run.errors());
}

#[tokio::test]
async fn ordered_volumes_and_claims_are_snapshotted_between_the_hooks_of_their_pod() {
    for ordered in [
        json!({"persistentvolumes": "pv-b,pv-a"}),
        json!({"persistentvolumes": "pv-b", "pods": "shop/db"}),
        json!({"persistentvolumeclaims": "shop/b,shop/a"}),
        json!({"persistentvolumes": "pv-a", "persistentvolumeclaims": "shop/b", "pods": "shop/db"}),
    ] {
        let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
        let spec = json!({"includeClusterResources": true, "orderedResources": ordered});
        let run = run_and_read(run_with(&disk, spec).await).await;
        assert_eq!(run.errors(), [""; 0], "{ordered}");
        assert_eq!(run.warnings(), [""; 0], "{ordered}");
        let calls = disk.calls();
        let at = |call: &str| calls.iter().position(|one| one == call);
        assert_eq!(calls.iter().filter(|one| *one == "freeze").count(), 1, "{calls:?}");
        for volume in ["pv-a", "pv-b"] {
            let [begin, end] = ["begin", "end"].map(|what| at(&format!("{what} {volume}")));
            assert!(begin > at("freeze") && end < at("thaw"), "{ordered}: {calls:?}");
        }
    }
}

#[tokio::test]
async fn volume_opted_into_fs_backup_by_a_pod_outside_the_backup_is_not_snapshotted() {
    let without_pods = json!({"includedResources": ["pvc", "pv"], "includeClusterResources": true});
    let volumes = json!({"includedResources": ["pv"], "includeClusterResources": true});
    for spec in [without_pods, volumes] {
        for opts_in in [true, false] {
            let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
            let mut run = run_with(&disk, spec.clone()).await;
            let cluster = cluster(&disk);
            let mut pod = cluster.object("pods", "shop", "db").unwrap();
            if opts_in {
                pod["metadata"]["annotations"]["backup.velero.io/backup-volumes"] = "a".into();
            }
            cluster.put(pod);
            run.cluster = Arc::clone(&cluster) as _;
            let run = run_and_read(run).await;
            let calls = disk.calls();
            assert!(!run.stored().contains(&"pods/shop/db".to_owned()), "{:?}", run.stored());
            assert_eq!(calls.contains(&"begin pv-a".to_owned()), !opts_in, "{spec}: {calls:?}");
            assert!(calls.contains(&"begin pv-b".to_owned()), "{spec}: {calls:?}");
            // If claims are not backed up, their files are not either, which is no error.
            let messages = [run.errors(), run.warnings()].concat();
            assert_eq!(messages.len(), usize::from(opts_in), "{messages:?}");
            let are_of_files =
                |text: &String| text.contains("file-system backup") || text.contains("files");
            assert!(messages.iter().all(are_of_files), "{messages:?}");
            let lists = cluster.lists();
            let of_pods = lists.iter().filter(|(resource, _)| resource == "pods").count();
            assert_eq!(of_pods, 1, "{lists:?}");
        }
    }
}

/// Two locations. The snapshotter of the first one cannot tell which volumes it supports.
struct TwoSnapshotters(Arc<FakeSnapshotter>);

struct FailingSnapshotter;

#[async_trait]
impl PartialSnapshotter for FailingSnapshotter {
    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Err(Error::new(Code::Unknown, "what is this"))
    }
}

#[async_trait]
impl Snapshotters for TwoSnapshotters {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        let known = SingleSnapshotter(Arc::clone(&self.0)).open(location).await?;
        if location == "puzzled" {
            let plugin = "test.io/puzzled".parse().unwrap();
            let calls = Arc::new(CompleteSnapshotter(Arc::new(FailingSnapshotter)));
            return Ok(Snapshotter { plugin, calls, ..known });
        }
        Ok(known)
    }
}

#[tokio::test]
async fn failing_snapshotter_does_not_hide_the_next_one() {
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let mut run = run_with(&disk, json!({"includeClusterResources": true})).await;
    run.request.snapshot_locations = vec!["puzzled".to_owned(), "here".to_owned()];
    run.snapshotters = Arc::new(TwoSnapshotters(Arc::clone(&disk)));
    let run = run_and_read(run).await;
    assert_eq!(ids(&run).len(), 2, "{:?}", run.errors());
    assert_eq!(run.errors(), [""; 0]);
    // If no other plugin supports the volume, the reason is reported.
    let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
    let mut run = run_with(&disk, json!({"includeClusterResources": true})).await;
    run.request.snapshot_locations = vec!["puzzled".to_owned()];
    run.snapshotters = Arc::new(TwoSnapshotters(disk));
    let errors = run_and_read(run).await.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors.iter().all(|text| text.contains("what is this")), "{errors:?}");
}

fn volume_id(name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "persistentvolumes".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// A pod without hooks, so that a journal which refuses entries does not end its block.
fn pod_without_hooks() -> Value {
    let mut pod = object("v1", "Pod", "shop", "db");
    pod["metadata"]["uid"] = json!("pod-uid");
    pod["spec"] = json!({
        "containers": [{"name": "main"}],
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "b"}},
        ],
    });
    pod["status"] = json!({"phase": "Running"});
    pod
}

#[tokio::test]
async fn no_snapshot_is_requested_if_the_start_of_its_block_cannot_be_journaled() {
    for has_hooks in [true, false] {
        let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
        let cluster = cluster(&disk);
        if !has_hooks {
            cluster.put(pod_without_hooks());
        }
        let mut run = run_with(&disk, json!({"includeClusterResources": true})).await;
        run.cluster = cluster;
        run.journal =
            Arc::new(InMemory::refusing(|entry| matches!(entry, JournalEntry::BlockStarted(_))));
        let run = run_and_read(run).await;
        let calls = disk.calls();
        let is_request = |call: &String| call.starts_with("begin ") || call == "freeze";
        assert!(!calls.iter().any(is_request), "{has_hooks}: {calls:?}");
        assert!(calls.iter().any(|call| call == "info pv-a"), "{calls:?}");
        assert!(!run.errors().is_empty());
        assert_eq!(ids(&run), [""; 0]);
    }
}

#[tokio::test]
async fn no_snapshot_of_an_additional_volume_is_requested_if_its_intent_cannot_be_journaled() {
    for refuses in [false, true] {
        let disk = Arc::new(FakeSnapshotter { is_v2: true, ..FakeSnapshotter::default() });
        let cluster = cluster(&disk);
        let mut run = run_with(&disk, json!({"includeClusterResources": true})).await;
        run.cluster = Arc::clone(&cluster) as _;
        // Created after the volumes were listed, so that it is in no block of its own.
        run.backup_item_actions = vec![fn_action("pods", move |_, output| {
            cluster.put(claim("c", "pv-c"));
            cluster.put(volume("pv-c", "c"));
            output.additional_items = vec![volume_id("pv-c")];
            Ok(())
        })];
        run.journal = Arc::new(InMemory::refusing(move |entry| {
            refuses && matches!(entry, JournalEntry::MoreIntents { .. })
        }));
        let run = run_and_read(run).await;
        let calls = disk.calls();
        assert_eq!(calls.iter().any(|call| call == "begin pv-c"), !refuses, "{calls:?}");
        assert_eq!(ids(&run).len(), if refuses { 2 } else { 3 }, "the others are in the journal");
        assert_eq!(run.errors().len(), usize::from(refuses), "{:?}", run.errors());
    }
}
