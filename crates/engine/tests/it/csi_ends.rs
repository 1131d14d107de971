//! CSI snapshots that somebody else comes to, that nobody waits for, or that leave something behind.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::action::Named;
use bowline_engine::cluster::{Error, Fake};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ResourceIdentifier, ResourceSelector, Result,
};
use bowline_store::file::Outcome;
use serde_json::{Value, json};

use crate::backup::{config_map, pod, take, with_hooks};
use crate::csi::{Bench, CONTENTS, Driver, GROUP_CONTENTS, GROUPS, Mood, SNAPSHOTS, with_groups};

/// Adds a claim to a pod while the block of the claim is taking its snapshot, and then opens the gate.
struct Adds {
    cluster: Arc<Fake>,
    driver: Arc<Driver>,
}

#[async_trait]
impl BackupItemAction for Adds {
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
            let begun = async {
                while !self.driver.calls().contains(&"begin a".to_owned()) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_mins(1), begun).await.unwrap();
            // It is visited after the claim.
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
    let bench = Bench::new();
    bench.driver.is("a", Mood::Gated);
    // One with hooks is a block of its own.
    bench.cluster.put(with_hooks(pod("shop", "web", &[]), "stop", "go"));
    let (mut run, _) = bench.run(Vec::new()).await;
    let adds = Adds { cluster: Arc::clone(&bench.cluster), driver: Arc::clone(&bench.driver) };
    run.backup_item_actions =
        vec![Named::new("test.io/adds".parse().unwrap(), Arc::new(adds) as _)];
    let run = take(run).await;
    assert_eq!(run.errors(), [""; 0]);
    for claim in ["a", "b"] {
        let path = format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json");
        let marks = &run.archive[&path]["metadata"]["annotations"];
        assert!(marks["velero.io/volume-snapshot-name"].is_string(), "{claim}: {marks}");
    }
    assert_eq!((run.taken.operations.len(), bench.snapshots().len()), (2, 2));
}

#[tokio::test]
async fn a_snapshot_that_nothing_leads_to_is_deleted_at_the_end() {
    let bench = Bench::new();
    bench.driver.is("a", Mood::Leaving);
    let run = bench.taken().await;
    assert_eq!(run.errors(), [""; 0]);
    let told = run.warnings();
    assert!(told.len() == 1 && told[0].contains("is not kept: nothing in the backup"), "{told:?}");
    assert_eq!((run.taken.operations.len(), bench.snapshots().len()), (1, 1), "those of b");
    assert_eq!((bench.count(CONTENTS), bench.driver.handles().len()), (1, 1));
    let info = run.taken.volumes.iter().find(|info| info.pvc_name == "a").unwrap();
    assert_eq!(info.result, Some(Outcome::Failed));
    let csi = info.csi_snapshot_info.as_ref().unwrap();
    assert_eq!((csi.snapshot_handle.as_str(), csi.operation_id.as_str()), ("", ""));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_failed_is_taken_away_once_and_again_at_the_end_if_need_be() {
    for (mood, looks) in [(Mood::Failing, 3), (Mood::Stuck, 5)] {
        let bench = Bench::grouped(with_groups(), true);
        bench.driver.is("group", mood);
        let run = bench.taken().await;
        assert_eq!(run.errors().len(), 2, "one of each claim: {:?}", run.errors());
        assert!(run.errors().iter().all(|told| told.contains("no luck")), "{:?}", run.errors());
        for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
            assert_eq!(bench.count(plural), 0, "{plural}");
        }
        let gets = bench.cluster.gets();
        let gets = gets.iter().filter(|id| id.resource == "volumegroupsnapshots").count();
        assert_eq!(gets, looks, "not for each claim");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_end_is_told() {
    let bench = Bench::grouped(with_groups(), true);
    bench.driver.is("group", Mood::Failing);
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
        run = take(run) => run,
        () = failing => unreachable!("it waits"),
    };
    let told = run.errors();
    let left = told.iter().filter(|one| one.contains("could not be deleted, and is left over"));
    assert_eq!((told.len(), left.count()), (4, 2), "{told:?}");
    assert_eq!(bench.count(GROUPS), 1);
}

#[tokio::test(start_paused = true)]
async fn labels_that_cannot_be_written_at_once_are_written_later() {
    let bench = Bench::grouped(with_groups(), true);
    let refused = || Error::Refused { code: 503, reason: "Busy".into(), message: "no".into() };
    bench.cluster.fail_some_writes(SNAPSHOTS, 4, refused);
    let run = bench.taken().await;
    assert_eq!((run.errors(), run.warnings()), (Vec::new(), Vec::new()));
    for record in &run.taken.csi_snapshots {
        let snapshot = bench.cluster.object(SNAPSHOTS, "shop", &record.name).unwrap();
        assert_eq!(snapshot["metadata"]["labels"]["velero.io/backup-name"], json!("b1"));
    }
    // But not for ever, and then it is told.
    let bench = Bench::grouped(with_groups(), true);
    bench.cluster.fail_write(SNAPSHOTS, refused);
    let run = bench.taken().await;
    let told = run.errors();
    assert!(told.len() == 2 && told.iter().all(|one| one.contains("labelled")), "{told:?}");
}
