//! Snapshots by CSI drivers, on an in-memory cluster with a simulated snapshot controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_engine::backup::csi::{self, DiscardResult, SnapshotApi};
use bowline_engine::backup::{finalize, replace};
use bowline_engine::cluster::{Cluster as _, Fake, Query};
use bowline_engine::journal::{InMemory, JournalEntry, recover};
use bowline_engine::operation::record::RunRef;
use bowline_engine::operation::{Kind, Operation, State};
use bowline_engine::report::Report;
use bowline_plugin::{OperationId, ResourceIdentifier};
use bowline_store::backend::Memory;
use bowline_store::file::{BackupVolumeInfo, CsiSnapshotInfo, Method, Outcome};
use futures::StreamExt as _;
use serde_json::json;

use crate::support::backup::{
    FinishedBackup, archive_of, fn_action, run_and_read, run_of, store_in,
};
use crate::support::csi::{
    BACKUP, CONTENTS, CsiTest, DriverBehaviour, FakeCsiDriver, GROUP, GROUP_CONTENTS, GROUPS,
    SNAPSHOTS, class, cluster, resources, volume, with_groups,
};
use crate::support::objects::claim;

fn completed(operations: &[Operation]) -> Vec<Operation> {
    let complete = |one: &Operation| Operation { state: State::Completed, ..one.clone() };
    operations.iter().map(complete).collect()
}

#[tokio::test]
async fn the_snapshots_of_a_pod_are_taken_side_by_side_between_its_hooks() {
    let bench = CsiTest::new();
    let run = bench.run_backup().await;
    assert_eq!(run.errors(), [""; 0]);
    let calls = bench.driver.calls();
    let at = |call: &str| {
        calls.iter().position(|one| one == call).unwrap_or_else(|| panic!("{call} in {calls:?}"))
    };
    for claim in ["a", "b"] {
        assert!(at("freeze") < at(&format!("begin {claim}")), "{calls:?}");
        assert!(at(&format!("end {claim}")) < at("thaw"), "{calls:?}");
    }
    assert!(at("begin b") < at("end a") && at("begin a") < at("end b"), "{calls:?}");
    assert_eq!(run.outcome.freezes.len(), 1);
    assert_eq!(run.outcome.csi_snapshots.len(), 2);
    assert_eq!(run.outcome.csi_classes.0.len(), 1);
    let mut operations: Vec<String> =
        run.outcome.operations.iter().map(|one| one.id.to_string()).collect();
    operations.sort_unstable();
    assert_eq!(operations.len(), 2);
    assert!(operations[0].starts_with("shop/velero-a-"), "{operations:?}");

    let status = finalize::status(
        &bowline_api::Backup::new("b1", bowline_api::BackupSpec::default()),
        &run.outcome,
    );
    assert_eq!(status.csi_volume_snapshots_attempted, 2);
    let mut status = status;
    finalize::count_operations(&mut status, &completed(&run.outcome.operations));
    assert_eq!(status.csi_volume_snapshots_completed, 2);
    assert_eq!((status.volume_snapshots_attempted, status.volume_snapshots_completed), (0, 0));
}

#[tokio::test]
async fn snapshot_type_cloud_on_a_csi_volume_is_a_warning() {
    for (own, default, count) in [
        (Some(SnapshotType::Cloud), SnapshotType::Auto, 2),
        (None, SnapshotType::Cloud, 2),
        (Some(SnapshotType::Local), SnapshotType::Cloud, 0),
        (None, SnapshotType::Auto, 0),
    ] {
        let bench = CsiTest::new();
        let (mut run, _) = bench.run(Vec::new()).await;
        run.request.own_snapshot_type = own;
        run.request.default_snapshot_type = default;
        let run = run_and_read(run).await;
        assert_eq!(run.outcome.csi_snapshots.len(), 2);
        let warnings = run.warnings();
        assert_eq!(warnings.len(), count, "{own:?} {default:?}: {warnings:?}");
        for text in warnings {
            let begin = text.starts_with("persistentvolumeclaims/");
            assert!(begin && text.contains("`cloud` has no effect on CSI snapshots"), "{text}");
        }
    }
}

#[tokio::test]
async fn ordered_volumes_are_snapshotted_by_their_driver_between_the_hooks_of_their_pod() {
    let bench = CsiTest::new();
    let (mut run, _) = bench.run(Vec::new()).await;
    let order = ["pv-b", "pv-a"].map(str::to_owned).to_vec();
    run.request.ordered = BTreeMap::from([("persistentvolumes".to_owned(), order)]);
    // A location that knows none of them.
    run.request.snapshot_locations = vec!["elsewhere".to_owned()];
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), [""; 0]);
    assert_eq!(run.outcome.csi_snapshots.len(), 2);
    let calls = bench.driver.calls();
    let at = |call: &str| calls.iter().position(|one| one == call);
    for claim in ["a", "b"] {
        let [begin, end] = ["begin", "end"].map(|what| at(&format!("{what} {claim}")));
        assert!(begin > at("freeze") && end < at("thaw"), "{calls:?}");
    }
}

#[tokio::test]
async fn archive_has_all_snapshot_objects_without_extra_reads() {
    let bench = CsiTest::new();
    let run = bench.run_backup().await;
    let snapshots = bench.snapshots();
    assert_eq!(snapshots.len(), 2);
    for claim in ["a", "b"] {
        let stored =
            &run.archive[&format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json")];
        let name = stored["metadata"]["labels"]["velero.io/volume-snapshot-name"].as_str().unwrap();
        assert_eq!(stored["metadata"]["labels"]["velero.io/backup-name"], "b1");
        let marks = json!({"velero.io/volume-snapshot-name": name});
        assert_eq!(stored["metadata"]["annotations"], marks, "and no mark of ours");
        assert_eq!(stored["spec"]["resources"]["requests"]["storage"], "1Gi");
        let snapshot = &run.archive[&format!("resources/{SNAPSHOTS}/namespaces/shop/{name}.json")];
        assert_eq!(
            snapshot["metadata"]["annotations"],
            json!({
                "velero.io/csi-driver-name": "disk.example.com",
                "velero.io/csi-volumesnapshot-handle": format!("handle-{name}"),
                "velero.io/csi-volumesnapshot-restore-size": "1Gi",
                "velero.io/csi-vsc-deletion-policy": "Delete",
            })
        );
        let there = bench.cluster.object(SNAPSHOTS, "shop", name).unwrap();
        let mark = "velero.io/csi-volumesnapshot-handle";
        assert_eq!(there["metadata"]["annotations"][mark], format!("handle-{name}"));
        let info = run.outcome.volumes.iter().find(|info| info.pvc_name == claim).unwrap();
        assert_eq!(info.backup_method, Some(Method::CsiSnapshot));
        assert!(!info.skipped && info.preserve_local_snapshot && info.result.is_none());
        let csi = info.csi_snapshot_info.as_ref().unwrap();
        assert_eq!(csi.snapshot_handle, format!("handle-{name}"));
        assert_eq!((csi.size, csi.ready_to_use), (1 << 30, Some(true)));
        let content = &run.archive[&format!("resources/{CONTENTS}/cluster/{}.json", csi.vsc_name)];
        assert_eq!(content["metadata"]["labels"]["velero.io/backup-name"], "b1");
        assert!(csi.operation_id.starts_with(&format!("shop/{name}/")), "{}", csi.operation_id);
    }
    let class = format!("resources/volumesnapshotclasses.{GROUP}/cluster/fast.json");
    assert!(run.archive.contains_key(&class), "{:?}", run.stored());
    let read = bench.cluster.gets();
    let read: Vec<_> = read.iter().filter(|id| id.group == GROUP).collect();
    assert!(read.is_empty(), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_csi_snapshot_is_an_error_on_its_claim_and_leaves_no_leftovers() {
    for (behaviour, reason) in [
        (DriverBehaviour::Failing, "driver disk.example.com created no snapshot: no luck"),
        (DriverBehaviour::Silent, "has not created the snapshot within 30 s"),
    ] {
        let bench = CsiTest::new();
        bench.driver.set_behaviour("a", behaviour);
        let run = bench.run_backup().await;
        assert_eq!(run.errors().len(), 1, "{:?}", run.errors());
        let message = &run.errors()[0];
        assert!(
            message.contains("persistentvolumeclaims/a:") && message.contains(reason),
            "{message}"
        );
        assert!(message.contains("pv-a is not in the backup"), "{message}");
        assert_eq!(bench.driver.calls().last().unwrap(), "thaw");
        assert_eq!(bench.driver.handles().len(), 1);
        assert_eq!(bench.snapshots().len(), 1, "that of b");
        let stored = &run.archive["resources/persistentvolumeclaims/namespaces/shop/a.json"];
        assert!(stored["metadata"]["labels"].is_null(), "{stored}");
        assert_eq!(run.outcome.operations.len(), 1);
        let info = run.outcome.volumes.iter().find(|info| info.pvc_name == "a").unwrap();
        assert_eq!(info.result, Some(Outcome::Failed));
        assert_eq!(info.backup_method, Some(Method::CsiSnapshot));
        assert_eq!(info.csi_snapshot_info.as_ref().unwrap().snapshot_handle, "");
    }
}

#[tokio::test]
async fn unsupported_claim_is_reported_with_the_missing_prerequisite() {
    let driver = Arc::new(FakeCsiDriver::default());
    for (fake, reason) in [
        (Fake::usual(), "does not serve snapshot.storage.k8s.io/v1"),
        (Fake::new(resources()), "no VolumeSnapshotClass exists for driver disk.example.com"),
        (Fake::new(resources()).with(class("x")).with(class("y")), "several VolumeSnapshotClasses"),
    ] {
        let cluster = cluster(&driver, fake);
        let spec = json!({"includeClusterResources": true});
        let run =
            run_and_read(run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await).await;
        assert_eq!(run.errors().len(), 2, "{:?}", run.errors());
        assert!(run.errors().iter().all(|text| text.contains(reason)), "{:?}", run.errors());
        for info in &run.outcome.volumes {
            assert!(info.skipped && info.skipped_reason.contains(reason), "{info:?}");
        }
        assert!(run.stored().contains(&"persistentvolumeclaims/shop/a".to_owned()));
        assert!(run.outcome.operations.is_empty() && run.outcome.csi_snapshots.is_empty());
    }
}

#[tokio::test]
async fn claim_is_snapshotted_whether_or_not_its_volume_is_backed_up() {
    let bench = CsiTest::new();
    let (mut run, _) = bench.run(Vec::new()).await;
    let spec = json!({"includeClusterResources": false});
    run.request = crate::support::backup::request(&bench.cluster, spec).await;
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), [""; 0]);
    assert_eq!(run.outcome.csi_snapshots.len(), 2);
    let stored = run.stored();
    assert!(!stored.iter().any(|path| path.starts_with("persistentvolumes/")), "{stored:?}");
    let named = run.outcome.volumes.iter().filter(|info| info.csi_snapshot_info.is_some());
    let named: Vec<_> = named.map(|info| (&*info.pv_name, &*info.pvc_name)).collect();
    assert_eq!(named, [("pv-a", "a"), ("pv-b", "b")]);
}

#[tokio::test]
async fn no_snapshot_is_lost_or_left_over_wherever_a_process_dies() {
    let bench = CsiTest::new();
    let (first, journal) = bench.run(Vec::new()).await;
    let (whole, records) = (run_and_read(first).await, journal.records());
    let before: BTreeSet<String> = bench.driver.handles().into_iter().collect();
    assert_eq!(before.len(), 2);
    for length in 1..=records.len() {
        let journaled = records[..length].to_vec();
        let is_finished = !recover(journaled.clone()).finished.is_empty();
        // The state is as the first process left it.
        let bench = CsiTest::new();
        let (first, _) = bench.run(Vec::new()).await;
        let first = run_and_read(first).await;
        let journaled = rename(&journaled, &whole, &first);
        let store = store_in(bench.memory.clone());
        let name = bowline_store::BackupName::new("b1").unwrap();
        assert!(!archive_of(&store, &name).await.is_empty());
        let (again, _) = bench.run(journaled).await;
        let again = run_and_read(again).await;
        assert_eq!(again.errors(), [""; 0], "after {length} journal entries");
        assert_eq!(again.warnings(), [""; 0], "after {length} journal entries");
        let handles = |run: &FinishedBackup| -> BTreeSet<String> {
            run.outcome.csi_snapshots.iter().map(|one| one.handle.clone()).collect()
        };
        let there: BTreeSet<String> = bench.driver.handles().into_iter().collect();
        assert_eq!(handles(&again), there, "after {length} journal entries");
        assert_eq!(there.len(), 2, "after {length} journal entries");
        assert_eq!(bench.snapshots().len(), 2, "after {length} journal entries");
        assert_eq!(again.outcome.operations.len(), 2);
        assert_eq!(
            handles(&again) == handles(&first),
            is_finished,
            "after {length} journal entries"
        );
        assert_eq!(again.outcome.csi_classes.0.len(), 1);
    }
}

/// The notes of one run, as if they were those of another: only the names of snapshots differ.
fn rename(records: &[JournalEntry], of: &FinishedBackup, to: &FinishedBackup) -> Vec<JournalEntry> {
    let mut text = serde_json::to_string(records).unwrap();
    for one in &of.outcome.csi_snapshots {
        let other = to.outcome.csi_snapshots.iter().find(|other| other.claim == one.claim).unwrap();
        for (from, to) in [(&one.name, &other.name), (&one.content, &other.content)] {
            text = text.replace(from.as_str(), to);
        }
    }
    let mut records: Vec<JournalEntry> = serde_json::from_str(&text).unwrap();
    for record in &mut records {
        if let JournalEntry::BlockEnded(ended) = record {
            // The bytes that are kept are those of the other run.
            ended.stored = None;
        }
    }
    records
}

#[tokio::test]
async fn retained_snapshot_outlives_its_objects_and_discarded_one_does_not() {
    let bench = CsiTest::new();
    let run = bench.run_backup().await;
    let resources = bench.cluster.resources();
    let snapshots = csi::targets_of(&run.outcome.csi_snapshots);
    let (a, b) = (&snapshots[..1], &snapshots[1..]);
    let of_another = RunRef { uid: "another", ..BACKUP };
    let reach = SnapshotApi::discover(&*bench.cluster, of_another).await.unwrap().unwrap();
    let DiscardResult { undeleted, not_found } = csi::discard(&reach, &snapshots).await;
    assert_eq!((undeleted.len(), not_found.len()), (0, 2), "{not_found:?}");
    assert_eq!(bench.snapshots().len(), 2, "those of another backup are not touched");
    assert!(resources.resolve(SNAPSHOTS).is_some());

    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let report = Report::default();
    assert_eq!(csi::retain(&reach, a, &report).await, []);
    assert_eq!(report.error_count(), 0);
    for unseen in 0..2 {
        assert!(csi::release(&reach, a).await.is_empty());
        let discarded = csi::discard(&reach, b).await;
        assert_eq!((discarded.undeleted.len(), discarded.not_found.len()), (0, unseen));
    }
    assert_eq!(bench.snapshots().len(), 0);
    let contents = bench.cluster.resources().resolve(CONTENTS).cloned().unwrap();
    let remaining = bench.cluster.list(&contents, Query::default()).count().await;
    assert_eq!(remaining, 0);
    tokio::task::yield_now().await;
    let retained = run.outcome.csi_snapshots[0].handle.clone();
    assert_eq!(bench.driver.handles(), [retained]);
}

#[tokio::test]
async fn snapshot_deleted_before_it_was_retained_is_lost() {
    let going = |bench: &CsiTest, content: &str| {
        let mut content = bench.cluster.object(CONTENTS, "", content).unwrap();
        content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        content["metadata"]["finalizers"] = json!(["a.driver/works"]);
        bench.cluster.put(content);
    };
    for (reason, is_ours) in [
        ("VolumeSnapshot no longer exists", true),
        ("being deleted", true),
        ("no longer exists or was replaced", false),
    ] {
        let bench = CsiTest::new();
        let run = bench.run_backup().await;
        let record = &run.outcome.csi_snapshots[0];
        match reason {
            "VolumeSnapshot no longer exists" => {
                bench.cluster.remove(SNAPSHOTS, "shop", &record.name);
            }
            "being deleted" => going(&bench, &record.content),
            _ => {}
        }
        let run_ref = if is_ours { BACKUP } else { RunRef { uid: "another", ..BACKUP } };
        let api = SnapshotApi::discover(&*bench.cluster, run_ref).await.unwrap().unwrap();
        let targets = csi::targets_of(&run.outcome.csi_snapshots);
        let report = Report::default();
        let lost = csi::retain(&api, &targets, &report).await;
        let expected = if is_ours { 1 } else { 2 };
        assert_eq!(lost.len(), expected, "{reason}: {lost:?}");
        let (first, actual_reason) = lost.iter().find(|(one, _)| one.name == record.name).unwrap();
        assert!(actual_reason.contains(reason), "{first:?}: {actual_reason}");
        assert_eq!(report.error_count(), 0, "who asks tells it");
    }
}

#[tokio::test]
async fn group_deleted_before_it_was_retained_loses_its_snapshots() {
    let bench = CsiTest::grouped(with_groups(), true);
    let run = bench.run_backup().await;
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.outcome.csi_snapshots);
    assert_eq!(csi::retain(&reach, &targets, &Report::default()).await, []);
    let created = bench.cluster.creations();
    let group = created.iter().find(|id| id.resource == "volumegroupsnapshots").unwrap();
    let uid = bench.cluster.object(GROUPS, "shop", &group.name).unwrap()["metadata"]["uid"].clone();
    let content = format!("groupsnapcontent-{}", uid.as_str().unwrap());
    bench.cluster.remove(GROUP_CONTENTS, "", &content);
    let lost = csi::retain(&reach, &targets, &Report::default()).await;
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(
        lost.iter()
            .all(|(_, reason)| reason.contains("VolumeGroupSnapshotContent no longer exists"))
    );
}

#[tokio::test]
async fn failed_snapshot_api_is_not_treated_as_absent() {
    for group in ["snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1beta2"] {
        let failed = format!("{group}: the server is busy");
        let cluster = Fake::new(resources()).with_failed_group(failed);
        let error = SnapshotApi::discover(&cluster, BACKUP).await.err().unwrap();
        assert!(error.to_string().contains("the server is busy"), "{error}");
    }
    assert!(SnapshotApi::discover(&Fake::usual(), BACKUP).await.unwrap().is_none());
}

#[tokio::test]
async fn group_that_would_include_other_claims_is_not_created() {
    let bench = CsiTest::grouped(with_groups(), true);
    let mut other = claim("shop", "other", "pv-other");
    other["metadata"]["labels"] =
        json!({"velero.io/volume-group": "db", "velero.io/exclude-from-backup": "true"});
    bench.cluster.put(other);
    let run = bench.run_backup().await;
    assert_eq!(run.errors(), [""; 0]);
    assert_eq!((run.outcome.csi_snapshots.len(), bench.count(GROUPS)), (2, 0));
    let warnings = run.warnings();
    let warnings = warnings.iter().filter(|text| text.contains("now have its label: other"));
    assert_eq!(warnings.count(), 2, "{:?}", run.warnings());
}

#[tokio::test]
async fn the_archive_has_snapshots_as_they_are_when_they_can_be_used() {
    let bench = CsiTest::new();
    bench.driver.set_behaviour("a", DriverBehaviour::Unready);
    let finished = bench.run_backup().await;
    let record = finished.outcome.csi_snapshots.iter().find(|one| one.claim == "a").unwrap();
    assert!(!record.is_ready);
    let mut content = bench.cluster.object(CONTENTS, "", &record.content).unwrap();
    content["status"]["readyToUse"] = true.into();
    bench.cluster.put(content);
    let (mut run, _) = bench.run(Vec::new()).await;
    let mut backup = (*run.request.backup).clone();
    backup.status.get_or_insert_default().phase = Some(bowline_api::BackupPhase::Finalizing);
    run.request.backup = bowline_plugin::Encoded::new(backup);
    let items = replace::items_of(&finished.outcome.operations);
    let (store, name) = (run.store.clone(), run.request.name.clone());
    let replaced = replace::run(run, &items, &items, jiff::Timestamp::UNIX_EPOCH).await;
    assert_eq!(replaced.outcome.unwrap(), 4, "two VolumeSnapshots, two contents");
    let archive = archive_of(&store, &name).await;
    let content = &archive[&format!("resources/{CONTENTS}/cluster/{}.json", record.content)];
    assert_eq!(content["status"]["readyToUse"], true);
    let snapshot = &archive[&format!("resources/{SNAPSHOTS}/namespaces/shop/{}.json", record.name)];
    let marks = &snapshot["metadata"]["annotations"];
    assert_eq!(marks["velero.io/csi-volumesnapshot-handle"], record.handle);
}

#[test]
fn operation_results_are_in_the_volume_infos() {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let id = |claim: &str| format!("shop/velero-{claim}-1/2026-01-01T00:00:00Z");
    let operation = |claim: &str, state: State| {
        let item = bowline_plugin::ResourceIdentifier {
            group: GROUP.into(),
            resource: "volumesnapshots".into(),
            namespace: "shop".into(),
            name: format!("velero-{claim}-1"),
        };
        let (plugin, id) = (csi::BACKUPPER.parse().unwrap(), OperationId::new(id(claim)).unwrap());
        let long = Duration::from_hours(1);
        let mut operation = Operation::started(Kind::ItemBackup, plugin, item, id, now, long);
        operation.progress.updated = Some(now);
        operation.progress.total = 7;
        Operation { state, ..operation }
    };
    let info = |claim: &str| BackupVolumeInfo {
        pvc_name: claim.into(),
        csi_snapshot_info: Some(CsiSnapshotInfo {
            operation_id: id(claim),
            snapshot_handle: "h".into(),
            ..CsiSnapshotInfo::default()
        }),
        ..BackupVolumeInfo::default()
    };
    let operations =
        [operation("a", State::Completed), operation("b", State::Failed("never ready".into()))];
    let mut infos = [info("a"), info("b"), info("c")];
    csi::apply_operation_results(&operations, &mut infos);
    let results: Vec<_> = infos.iter().map(|info| info.result.clone()).collect();
    assert_eq!(results, [Some(Outcome::Succeeded), Some(Outcome::Failed), None]);
    let csi = infos[0].csi_snapshot_info.as_ref().unwrap();
    assert_eq!((csi.size, csi.ready_to_use), (7, Some(true)));
    assert!(infos[1].completion_timestamp.is_some());

    let (completed, failed) = csi::targets_of_operations(&operations);
    assert_eq!((completed.len(), failed.len()), (1, 1));
    let both: Vec<_> = completed.iter().chain(&failed).cloned().collect();
    csi::clear_discarded_handles(&both, &failed.into(), &mut infos);
    let handles = infos.iter().map(|info| info.csi_snapshot_info.as_ref().unwrap());
    let handles: Vec<&str> = handles.map(|csi| csi.snapshot_handle.as_str()).collect();
    assert_eq!(handles, ["", "h", "h"], "only one that was really deleted has none");
    let failed =
        csi::CsiSnapshotRecord { failure: Some("no".into()), ..csi::CsiSnapshotRecord::default() };
    assert!(csi::targets_of(&[failed]).is_empty(), "one that has no name was not made");
}

#[tokio::test]
async fn claims_of_a_volume_group_are_snapshotted_by_one_group() {
    let bench = CsiTest::grouped(with_groups(), true);
    let run = bench.run_backup().await;
    assert_eq!(run.errors(), [""; 0]);
    assert_eq!(run.warnings(), [""; 0]);
    assert_eq!(bench.driver.calls(), ["freeze", "group", "thaw"]);
    assert_eq!(run.outcome.operations.len(), 2);
    for claim in ["a", "b"] {
        let path = format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json");
        let name = &run.archive[&path]["metadata"]["labels"]["velero.io/volume-snapshot-name"];
        let name = name.as_str().unwrap();
        let path = format!("resources/{SNAPSHOTS}/namespaces/shop/{name}.json");
        let snapshot = &run.archive[&path];
        assert_eq!(snapshot["metadata"]["labels"]["velero.io/backup-name"], "b1");
        let marks = &snapshot["metadata"]["annotations"];
        assert_eq!(marks["velero.io/csi-volumegroupsnapshot-handle"], "group-handle");
        let info = run.outcome.volumes.iter().find(|info| info.pvc_name == claim).unwrap();
        let csi = info.csi_snapshot_info.as_ref().unwrap();
        assert_eq!(csi.volume_group_snapshot_handle, "group-handle");
    }
    let handles = bench.driver.handles();
    assert_eq!(handles.len(), 2);
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.outcome.csi_snapshots);
    let DiscardResult { undeleted, .. } = csi::discard(&reach, &targets[..1]).await;
    assert!(
        undeleted.len() == 1 && undeleted[0].1.contains("other snapshots are kept"),
        "{undeleted:?}"
    );
    assert_eq!(bench.driver.handles().len(), 2, "all of a group, or none");
    assert!(csi::release(&reach, &targets).await.is_empty());
    for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
        assert_eq!(bench.count(plural), 0, "{plural}");
    }
    tokio::task::yield_now().await;
    assert_eq!(bench.driver.handles(), handles, "they are kept");
}

#[tokio::test]
async fn unreferenced_group_is_deleted_completely() {
    let bench = CsiTest::grouped(with_groups(), true);
    let (first, journal) = bench.run(Vec::new()).await;
    let first = run_and_read(first).await;
    let started = journal.records()[..1].to_vec();
    let (again, _) = bench.run(started).await;
    let again = run_and_read(again).await;
    assert_eq!(again.errors(), [""; 0]);
    let of = |run: &FinishedBackup| -> BTreeSet<String> {
        run.outcome.csi_snapshots.iter().map(|one| one.handle.clone()).collect()
    };
    let there: BTreeSet<String> = bench.driver.handles().into_iter().collect();
    assert_eq!(there, of(&again));
    assert!(there.is_disjoint(&of(&first)), "those of the first try are deleted");
    assert_eq!((bench.count(GROUPS), bench.count(SNAPSHOTS)), (1, 2));
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&again.outcome.csi_snapshots);
    assert_eq!(csi::discard(&reach, &targets).await, DiscardResult::default());
    for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
        assert_eq!(bench.count(plural), 0, "{plural}");
    }
    assert!(bench.driver.handles().is_empty());
}

#[tokio::test]
async fn without_group_api_claims_are_snapshotted_one_by_one_with_a_warning() {
    for (resources, reason) in [
        (resources(), "does not serve groupsnapshot.storage.k8s.io"),
        (with_groups(), "no VolumeGroupSnapshotClass exists for driver"),
    ] {
        let run = CsiTest::grouped(resources, false).run_backup().await;
        assert_eq!(run.errors(), [""; 0]);
        assert_eq!(run.outcome.csi_snapshots.len(), 2);
        let warnings = run.warnings();
        assert!(
            warnings.len() == 2 && warnings.iter().all(|text| text.contains(reason)),
            "{warnings:?}"
        );
    }
}

#[tokio::test]
async fn no_snapshot_is_requested_if_the_start_of_its_block_cannot_be_journaled() {
    for has_hooks in [true, false] {
        let bench = CsiTest::new();
        if !has_hooks {
            let mut pod = bench.cluster.object("pods", "shop", "db").unwrap();
            pod["metadata"]["annotations"] = json!({});
            bench.cluster.put(pod);
        }
        let (mut run, _) = bench.run(Vec::new()).await;
        run.journal =
            Arc::new(InMemory::refusing(|entry| matches!(entry, JournalEntry::BlockStarted(_))));
        let run = run_and_read(run).await;
        assert_eq!(bench.snapshots(), [json!(null); 0], "{has_hooks}");
        assert_eq!(bench.driver.handles(), [""; 0]);
        assert!(!bench.driver.calls().contains(&"freeze".to_owned()));
        assert!(!run.errors().is_empty());
    }
}

#[tokio::test]
async fn no_snapshot_of_an_additional_claim_is_requested_if_its_intent_cannot_be_journaled() {
    for refuses in [false, true] {
        let bench = CsiTest::new();
        let (mut run, _) = bench.run(Vec::new()).await;
        // Created after the claims were listed, so that it is in no block of its own.
        let cluster = Arc::clone(&bench.cluster);
        run.backup_item_actions = vec![fn_action("pods", move |_, output| {
            cluster.put(claim("shop", "c", "pv-c"));
            cluster.put(volume("pv-c", "c"));
            output.additional_items = vec![ResourceIdentifier {
                group: String::new(),
                resource: "persistentvolumeclaims".to_owned(),
                namespace: "shop".to_owned(),
                name: "c".to_owned(),
            }];
            Ok(())
        })];
        run.journal = Arc::new(InMemory::refusing(move |entry| {
            refuses && matches!(entry, JournalEntry::MoreIntents { .. })
        }));
        let run = run_and_read(run).await;
        let calls = bench.driver.calls();
        assert_eq!(calls.iter().any(|call| call == "begin c"), !refuses, "{calls:?}");
        assert_eq!(bench.snapshots().len(), if refuses { 2 } else { 3 });
        assert_eq!(run.errors().is_empty(), !refuses, "{:?}", run.errors());
    }
}
