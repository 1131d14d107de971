//! CSI snapshots that other blocks add, that nothing references, or that leave objects behind.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::action::NamedAction;
use bowline_engine::backup::csi::{self, DiscardResult, SnapshotApi, Target};
use bowline_engine::cluster::{Error, Fake};
use bowline_engine::report::Report;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ResourceIdentifier, ResourceSelector, Result,
};
use bowline_store::file::Outcome;
use serde_json::{Value, json};

use crate::support::backup::run_and_read;
use crate::support::csi::{
    BACKUP, CONTENTS, CsiTest, DriverBehaviour, FakeCsiDriver, GROUP_CONTENTS, GROUPS, SNAPSHOTS,
    with_groups,
};
use crate::support::objects::{config_map, pod, with_hooks};

/// Adds a claim to a pod while the block of the claim is taking its snapshot, and then opens the gate.
struct ClaimAddingAction {
    cluster: Arc<Fake>,
    driver: Arc<FakeCsiDriver>,
}

#[async_trait]
impl BackupItemAction for ClaimAddingAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods", "configmaps"]))
    }

    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
        let mut output = BackupOutput::unchanged(item);
        let object: Value = item.parse().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let added = |resource: &str, name: &str| ResourceIdentifier {
            group: String::new(),
            resource: resource.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        if name == "web" {
            let snapshot_started = async {
                while !self.driver.calls().contains(&"begin a".to_owned()) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_mins(1), snapshot_started).await.unwrap();
            // The item is visited after the claim.
            self.cluster.put(config_map("shop", "later"));
            output.additional_items =
                vec![added("persistentvolumeclaims", "a"), added("configmaps", "later")];
        }
        if name == "later" {
            self.driver.gate.notify_one();
        }
        Ok(output)
    }
}

#[tokio::test]
async fn a_claim_that_another_block_adds_meanwhile_is_stored_with_its_snapshot() {
    let bench = CsiTest::new();
    bench.driver.set_behaviour("a", DriverBehaviour::Gated);
    // A pod with hooks is a block of its own.
    bench.cluster.put(with_hooks(pod("shop", "web", &[]), "stop", "go"));
    let (mut run, _) = bench.run(Vec::new()).await;
    let adds = ClaimAddingAction {
        cluster: Arc::clone(&bench.cluster),
        driver: Arc::clone(&bench.driver),
    };
    run.backup_item_actions =
        vec![NamedAction::new("test.io/adds".parse().unwrap(), Arc::new(adds) as _)];
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), [""; 0]);
    for claim in ["a", "b"] {
        let path = format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json");
        let marks = &run.archive[&path]["metadata"]["annotations"];
        assert!(marks["velero.io/volume-snapshot-name"].is_string(), "{claim}: {marks}");
    }
    assert_eq!((run.outcome.operations.len(), bench.snapshots().len()), (2, 2));
}

#[tokio::test]
async fn unreferenced_snapshot_is_deleted_at_the_end() {
    let bench = CsiTest::new();
    bench.driver.set_behaviour("a", DriverBehaviour::Leaving);
    let run = bench.run_backup().await;
    assert_eq!(run.errors(), [""; 0]);
    let warnings = run.warnings();
    assert!(warnings[0].contains("is deleted: no item in the backup"), "{warnings:?}");
    // Its VolumeSnapshot has gone by itself, which proves nothing.
    assert!(
        warnings.len() == 2 && warnings[1].contains("VolumeSnapshot does not exist"),
        "{warnings:?}"
    );
    assert_eq!((run.outcome.operations.len(), bench.snapshots().len()), (1, 1), "those of b");
    assert_eq!((bench.count(CONTENTS), bench.driver.handles().len()), (1, 1));
    let info = run.outcome.volumes.iter().find(|info| info.pvc_name == "a").unwrap();
    assert_eq!(info.result, Some(Outcome::Failed));
    let csi = info.csi_snapshot_info.as_ref().unwrap();
    assert!(csi.snapshot_handle.starts_with("handle-velero-a-"), "it is not forgotten: {csi:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_group_is_deleted_and_retried_at_the_end() {
    for (behaviour, reads) in [(DriverBehaviour::Failing, 3), (DriverBehaviour::Stuck, 5)] {
        let bench = CsiTest::grouped(with_groups(), true);
        bench.driver.set_behaviour("group", behaviour);
        let run = bench.run_backup().await;
        assert_eq!(run.errors().len(), 2, "one of each claim: {:?}", run.errors());
        assert!(run.errors().iter().all(|text| text.contains("no luck")), "{:?}", run.errors());
        for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
            assert_eq!(bench.count(plural), 0, "{plural}");
        }
        let gets = bench.cluster.gets();
        let gets = gets.iter().filter(|id| id.resource == "volumegroupsnapshots").count();
        assert_eq!(gets, reads, "not for each claim");
    }
}

#[tokio::test(start_paused = true)]
async fn leftovers_at_the_end_are_reported() {
    let bench = CsiTest::grouped(with_groups(), true);
    bench.driver.set_behaviour("group", DriverBehaviour::Failing);
    let (run, _) = bench.run(Vec::new()).await;
    let cluster = Arc::clone(&bench.cluster);
    let failing = async {
        while bench.count(GROUPS) == 0 {
            tokio::task::yield_now().await;
        }
        cluster.fail_write(GROUPS, || Error::Unreachable("gone for good".into()));
        std::future::pending::<()>().await;
    };
    let run = tokio::select! {
        run = run_and_read(run) => run,
        () = failing => unreachable!("it waits"),
    };
    let errors = run.errors();
    let leftovers =
        errors.iter().filter(|one| one.contains("could not be deleted and is left over"));
    assert_eq!((errors.len(), leftovers.count()), (4, 2), "{errors:?}");
    assert_eq!(bench.count(GROUPS), 1);
}

#[tokio::test(start_paused = true)]
async fn labels_that_cannot_be_written_at_once_are_written_later() {
    let bench = CsiTest::grouped(with_groups(), true);
    let refused = || Error::Refused { code: 503, reason: "Busy".into(), message: "no".into() };
    bench.cluster.fail_some_writes(SNAPSHOTS, 4, refused);
    let run = bench.run_backup().await;
    assert_eq!((run.errors(), run.warnings()), (Vec::new(), Vec::new()));
    for record in &run.outcome.csi_snapshots {
        let snapshot = bench.cluster.object(SNAPSHOTS, "shop", &record.name).unwrap();
        assert_eq!(snapshot["metadata"]["labels"]["velero.io/backup-name"], json!("b1"));
    }
    // Retries are limited, and then the failure is reported.
    let bench = CsiTest::grouped(with_groups(), true);
    bench.cluster.fail_write(SNAPSHOTS, refused);
    let run = bench.run_backup().await;
    let errors = run.errors();
    assert!(errors.len() == 2 && errors.iter().all(|one| one.contains("labeled")), "{errors:?}");
}

fn assert_no_leftovers(bench: &CsiTest) {
    for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
        assert_eq!(bench.count(plural), 0, "{plural}");
    }
    assert!(bench.driver.handles().is_empty(), "{:?}", bench.driver.handles());
}

#[tokio::test(start_paused = true)]
async fn incomplete_group_is_deleted_completely() {
    let bench = CsiTest::grouped(with_groups(), true);
    bench.driver.set_behaviour("group", DriverBehaviour::Lacking);
    let run = bench.run_backup().await;
    let errors = run.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().any(|one| one.contains("no VolumeSnapshot was created for the claim")),
        "{errors:?}"
    );
    assert!(errors.iter().any(|one| one.contains("has no snapshot of claim b")), "{errors:?}");
    assert_eq!(run.outcome.operations.len(), 0);
    assert_no_leftovers(&bench);
}

#[tokio::test(start_paused = true)]
async fn group_with_unknown_creation_result_is_created_again() {
    let bench = CsiTest::grouped(with_groups(), true);
    bench.cluster.fail_some_writes(GROUPS, 1, || Error::Unreachable("no answer".into()));
    let run = bench.run_backup().await;
    assert_eq!((run.errors(), run.outcome.csi_snapshots.len()), (Vec::new(), 2));
}

#[tokio::test(start_paused = true)]
async fn unlabelled_member_is_recognised_by_its_group() {
    let bench = CsiTest::grouped(with_groups(), true);
    let refused = || Error::Refused { code: 503, reason: "Busy".into(), message: "no".into() };
    bench.cluster.fail_write(SNAPSHOTS, refused);
    let run = bench.run_backup().await;
    bench.cluster.fail_some_writes(SNAPSHOTS, 0, refused);
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.outcome.csi_snapshots);
    assert_eq!(csi::retain(&reach, &targets, &Report::default()).await, []);
    let DiscardResult { undeleted, .. } = csi::discard(&reach, &targets[..1]).await;
    assert!(
        undeleted.len() == 1 && undeleted[0].1.contains("other snapshots are kept"),
        "{undeleted:?}"
    );
    assert_eq!(bench.driver.handles().len(), 2);
    assert_eq!(csi::discard(&reach, &targets).await, DiscardResult::default());
    assert_no_leftovers(&bench);
}

#[tokio::test]
async fn snapshot_whose_object_was_deleted_is_reported() {
    let bench = CsiTest::new();
    let run = bench.run_backup().await;
    let record = run.outcome.csi_snapshots.iter().find(|one| one.claim == "a").unwrap();
    let mut content = bench.cluster.object(CONTENTS, "", &record.content).unwrap();
    content["spec"]["deletionPolicy"] = "Retain".into();
    bench.cluster.put(content);
    bench.cluster.remove(SNAPSHOTS, "shop", &record.name);
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.outcome.csi_snapshots);
    let (report, mut infos) = (Report::default(), run.outcome.volumes.clone());
    let leftovers = csi::discard_and_report(&reach, &targets, &report).await;
    assert!(leftovers.is_empty() && leftovers.iter().next().is_none(), "{leftovers:?}");
    assert_eq!((report.error_count(), report.warning_count()), (0, 1));
    csi::clear_discarded_handles(&targets, &leftovers, &mut infos);
    let handle = |claim: &str| {
        let info = infos.iter().find(|info| info.pvc_name == claim).unwrap();
        info.csi_snapshot_info.clone().unwrap().snapshot_handle
    };
    assert_eq!((handle("a"), handle("b")), (record.handle.clone(), String::new()));
    assert_eq!(bench.driver.handles(), std::slice::from_ref(&record.handle));
}

#[tokio::test(start_paused = true)]
async fn members_of_a_deleted_group_are_deleted_but_not_counted_as_discarded() {
    let bench = CsiTest::grouped(with_groups(), true);
    let run = bench.run_backup().await;
    let bench = bench.without_controllers();
    let group = bench.cluster.creations();
    let group = group.iter().find(|id| id.resource == "volumegroupsnapshots").unwrap();
    bench.cluster.remove(GROUPS, "shop", &group.name);
    let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let whole = Target { namespace: "shop".into(), name: group.name.clone(), is_group: true };
    let targets = csi::targets_of(&run.outcome.csi_snapshots);
    let DiscardResult { undeleted, not_found } = csi::discard(&reach, &targets).await;
    assert_eq!((undeleted.len(), not_found.len()), (0, 2), "{undeleted:?} {not_found:?}");
    assert!(
        not_found.iter().all(|(_, missing)| missing.contains("VolumeGroupSnapshot does not exist"))
    );
    assert_eq!((bench.count(SNAPSHOTS), bench.count(CONTENTS)), (0, 0));
    let DiscardResult { undeleted, not_found } = csi::discard(&reach, &[whole]).await;
    assert_eq!((undeleted.len(), not_found.len()), (0, 1), "{undeleted:?} {not_found:?}");
}

#[tokio::test(start_paused = true)]
async fn group_is_kept_if_one_member_cannot_be_retained() {
    let busy = || Error::Unreachable("gone for good".into());
    for is_member in [true, false] {
        let bench = CsiTest::grouped(with_groups(), true);
        let run = bench.run_backup().await;
        let reach = SnapshotApi::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
        let mut targets = csi::targets_of(&run.outcome.csi_snapshots);
        if !is_member {
            let (namespace, name) = ("shop".into(), "another".into());
            targets.push(Target { namespace, name, is_group: false });
        }
        let unsure = targets.last().unwrap().clone();
        bench.cluster.fail_get(SNAPSHOTS, "shop", &unsure.name, busy);
        let unreleased = csi::release(&reach, &targets).await;
        let there = [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS].map(|one| bench.count(one));
        if is_member {
            assert_eq!(there, [2, 2, 1, 1]);
            assert_eq!(unreleased.len(), 2, "{unreleased:?}");
            assert!(
                unreleased[1].0.is_group && unreleased[1].1.contains("could not be set to Retain")
            );
        } else {
            assert_eq!(there, [0; 4]);
            assert_eq!(unreleased.len(), 1, "{unreleased:?}");
        }
        assert!(unreleased[0].0 == unsure && bench.driver.handles().len() == 2);
    }
}
