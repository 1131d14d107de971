//! CSI snapshots that somebody else comes to, that nobody waits for, or that leave something behind.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::action::Named;
use bowline_engine::backup::csi::{self, Discarded, Reach, Target};
use bowline_engine::cluster::{Error, Fake};
use bowline_engine::report::Report;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ResourceIdentifier, ResourceSelector, Result,
};
use bowline_store::file::Outcome;
use serde_json::{Value, json};

use crate::backup::{config_map, pod, take, with_hooks};
use crate::csi::{
    BACKUP, Bench, CONTENTS, Driver, GROUP_CONTENTS, GROUPS, Mood, SNAPSHOTS, with_groups,
};

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
async fn a_snapshot_that_nothing_leads_to_does_not_stay_at_the_end() {
    let bench = Bench::new();
    bench.driver.is("a", Mood::Leaving);
    let run = bench.taken().await;
    assert_eq!(run.errors(), [""; 0]);
    let told = run.warnings();
    assert!(told[0].contains("is not kept: nothing in the backup"), "{told:?}");
    // Its VolumeSnapshot has gone by itself, which proves nothing.
    assert!(told.len() == 2 && told[1].contains("VolumeSnapshot is not there"), "{told:?}");
    assert_eq!((run.taken.operations.len(), bench.snapshots().len()), (1, 1), "those of b");
    assert_eq!((bench.count(CONTENTS), bench.driver.handles().len()), (1, 1));
    let info = run.taken.volumes.iter().find(|info| info.pvc_name == "a").unwrap();
    assert_eq!(info.result, Some(Outcome::Failed));
    let csi = info.csi_snapshot_info.as_ref().unwrap();
    assert!(csi.snapshot_handle.starts_with("handle-velero-a-"), "it is not forgotten: {csi:?}");
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

fn nothing_is_left(bench: &Bench) {
    for plural in [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS] {
        assert_eq!(bench.count(plural), 0, "{plural}");
    }
    assert!(bench.driver.handles().is_empty(), "{:?}", bench.driver.handles());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lacks_a_snapshot_is_taken_away_whole() {
    let bench = Bench::grouped(with_groups(), true);
    bench.driver.is("group", Mood::Lacking);
    let run = bench.taken().await;
    let told = run.errors();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().any(|one| one.contains("no VolumeSnapshot was made of it")), "{told:?}");
    assert!(told.iter().any(|one| one.contains("lacks the snapshot of the claim b")), "{told:?}");
    assert_eq!(run.taken.operations.len(), 0);
    nothing_is_left(&bench);
}

#[tokio::test(start_paused = true)]
async fn a_group_of_which_it_is_not_known_whether_it_was_made_is_made_once_more() {
    let bench = Bench::grouped(with_groups(), true);
    bench.cluster.fail_some_writes(GROUPS, 1, || Error::Unreachable("no answer".into()));
    let run = bench.taken().await;
    assert_eq!((run.errors(), run.taken.csi_snapshots.len()), (Vec::new(), 2));
}

#[tokio::test(start_paused = true)]
async fn a_member_without_labels_is_known_by_its_group() {
    let bench = Bench::grouped(with_groups(), true);
    let refused = || Error::Refused { code: 503, reason: "Busy".into(), message: "no".into() };
    bench.cluster.fail_write(SNAPSHOTS, refused);
    let run = bench.taken().await;
    bench.cluster.fail_some_writes(SNAPSHOTS, 0, refused);
    let reach = Reach::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.taken.csi_snapshots);
    assert_eq!(csi::retain(&reach, &targets, &Report::default()).await, []);
    let Discarded { left, .. } = csi::discard(&reach, &targets[..1]).await;
    assert!(left.len() == 1 && left[0].1.contains("other snapshots are kept"), "{left:?}");
    assert_eq!(bench.driver.handles().len(), 2);
    assert_eq!(csi::discard(&reach, &targets).await, Discarded::default());
    nothing_is_left(&bench);
}

#[tokio::test]
async fn a_snapshot_whose_object_somebody_took_away_is_not_forgotten() {
    let bench = Bench::new();
    let run = bench.taken().await;
    let record = run.taken.csi_snapshots.iter().find(|one| one.claim == "a").unwrap();
    let mut content = bench.cluster.object(CONTENTS, "", &record.content).unwrap();
    content["spec"]["deletionPolicy"] = "Retain".into();
    bench.cluster.put(content);
    bench.cluster.remove(SNAPSHOTS, "shop", &record.name);
    let reach = Reach::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let targets = csi::targets_of(&run.taken.csi_snapshots);
    let (report, mut infos) = (Report::default(), run.taken.volumes.clone());
    let left = csi::discard_or_tell(&reach, &targets, &report).await;
    assert!(left.is_empty() && left.iter().next().is_none(), "{left:?}");
    assert_eq!((report.errors(), report.warnings()), (0, 1));
    csi::forget_discarded(&targets, &left, &mut infos);
    let handle = |claim: &str| {
        let info = infos.iter().find(|info| info.pvc_name == claim).unwrap();
        info.csi_snapshot_info.clone().unwrap().snapshot_handle
    };
    assert_eq!((handle("a"), handle("b")), (record.handle.clone(), String::new()));
    assert_eq!(bench.driver.handles(), std::slice::from_ref(&record.handle));
}

#[tokio::test(start_paused = true)]
async fn members_whose_group_is_gone_go_and_prove_nothing() {
    let bench = Bench::grouped(with_groups(), true);
    let run = bench.taken().await;
    let bench = bench.without_controllers();
    let group = bench.cluster.creations();
    let group = group.iter().find(|id| id.resource == "volumegroupsnapshots").unwrap();
    bench.cluster.remove(GROUPS, "shop", &group.name);
    let reach = Reach::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
    let whole = Target { namespace: "shop".into(), name: group.name.clone(), is_group: true };
    let targets = csi::targets_of(&run.taken.csi_snapshots);
    let Discarded { left, unseen } = csi::discard(&reach, &targets).await;
    assert_eq!((left.len(), unseen.len()), (0, 2), "{left:?} {unseen:?}");
    assert!(unseen.iter().all(|(_, missing)| missing.contains("VolumeGroupSnapshot is not there")));
    assert_eq!((bench.count(SNAPSHOTS), bench.count(CONTENTS)), (0, 0));
    let Discarded { left, unseen } = csi::discard(&reach, &[whole]).await;
    assert_eq!((left.len(), unseen.len()), (0, 1), "{left:?} {unseen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_group_stays_with_all_its_members_if_one_of_them_cannot_be_kept_for_sure() {
    let busy = || Error::Unreachable("gone for good".into());
    for is_member in [true, false] {
        let bench = Bench::grouped(with_groups(), true);
        let run = bench.taken().await;
        let reach = Reach::discover(&*bench.cluster, BACKUP).await.unwrap().unwrap();
        let mut targets = csi::targets_of(&run.taken.csi_snapshots);
        if !is_member {
            let (namespace, name) = ("shop".into(), "another".into());
            targets.push(Target { namespace, name, is_group: false });
        }
        let unsure = targets.last().unwrap().clone();
        bench.cluster.fail_get(SNAPSHOTS, "shop", &unsure.name, busy);
        let left = csi::release(&reach, &targets).await;
        let there = [SNAPSHOTS, CONTENTS, GROUPS, GROUP_CONTENTS].map(|one| bench.count(one));
        if is_member {
            assert_eq!(there, [2, 2, 1, 1]);
            assert_eq!(left.len(), 2, "{left:?}");
            assert!(left[1].0.is_group && left[1].1.contains("could not be told to stay"));
        } else {
            assert_eq!(there, [0; 4]);
            assert_eq!(left.len(), 1, "{left:?}");
        }
        assert!(left[0].0 == unsure && bench.driver.handles().len() == 2);
    }
}
