//! Runs that users cancel at each phase.

use std::time::Duration;

use bowline_api::{Backup, Restore, annotation};
use bowline_server::Options;
use bowline_store::BackupName;
use bowline_store::file::OperationPhase;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::SETS;
use crate::support::operations::{OperationWorld, key};
use crate::support::runs::{Run, condition, is_over, is_waiting, phase, phases, status_field};

const REASON: &str = "canceled: the run was canceled by the user";
/// Longest time for which obedient plugins may keep a canceled run.
const MAX_CANCEL_TIME: Duration = Duration::from_secs(20);

fn cancel_annotation() -> Value {
    json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}})
}

async fn cancel<K: Run>(trial: &OperationWorld, name: &str) -> Instant {
    trial.world.patch::<K>(name, cancel_annotation()).await;
    Instant::now()
}

fn assert_canceled<K: Run>(run: &K) {
    assert_eq!(
        (phase(run).as_str(), status_field(run, "failureReason")),
        ("Failed", json!(REASON))
    );
    let conditions = ["Completed", "Canceling", "Canceled"].map(|type_| condition(run, type_));
    let expected = if conditions[1].is_empty() { "" } else { "False" };
    assert_eq!(conditions, ["False", expected, "True"], "{run:?}");
    assert!(!status_field(run, "completionTimestamp").is_null());
}

/// Cancels a run, and checks that this is shown meanwhile.
async fn canceled_in<K: Run>(trial: &OperationWorld, created: &K, in_phase: &str) -> K {
    let name = created.name_any();
    let since = cancel::<K>(trial, &name).await;
    let (last, shown) = trial.wait_for_end(created).await;
    assert!(since.elapsed() < MAX_CANCEL_TIME, "{:?}", since.elapsed());
    assert_canceled(&last);
    let is_canceling = |run: &&K| phase(*run) == in_phase && condition(*run, "Canceling") == "True";
    assert!(shown.iter().any(|run| is_canceling(&run)), "{:?}", phases(&shown));
    trial.until_event(&name, "Canceling").await;
    trial.until_event(&name, "Canceled").await;
    trial.until_journals_removed().await;
    last
}

#[tokio::test]
async fn canceled_unstarted_runs_end_at_once_and_others_continue() {
    let alone = |options: &mut Options| options.concurrent_backups = 1;
    let trial = OperationWorld::start_with("cancel-early", alone).await;
    trial.add_claim("sdk", "slow", "sleep=5000").await;
    let first = trial.back_up("b", json!({})).await;
    trial.world.until::<Backup>("b", |backup| phase(backup) == "InProgress").await;
    trial.back_up("queued", json!({})).await;
    trial.world.until::<Backup>("queued", |backup| phase(backup) == "Queued").await;
    cancel::<Backup>(&trial, "queued").await;
    let canceled = trial.world.until::<Backup>("queued", is_over).await;
    assert_canceled(&canceled);
    assert!(status_field(&canceled, "queuePosition").is_null(), "{canceled:?}");
    let mut new = cancel_annotation();
    new["metadata"]["name"] = json!("new");
    new["spec"] = json!({});
    trial.world.create::<Backup>(new.clone()).await;
    assert_canceled(&trial.world.until::<Backup>("new", is_over).await);
    assert_eq!(phase(&trial.world.api::<Backup>().get("b").await.unwrap()), "InProgress");

    let (last, _) = trial.wait_for_end(&first).await;
    assert_eq!(phase(&last), "Completed", "{last:?}");
    assert_eq!(trial.store.list().await.unwrap().backups, ["b".parse::<BackupName>().unwrap()]);
    new["spec"]["backupName"] = json!("b");
    trial.world.create::<Restore>(new).await;
    assert_canceled(&trial.world.until::<Restore>("new", is_over).await);
    trial.until_event("queued", "Canceled").await;
    trial.until_journals_removed().await;
}

#[tokio::test]
async fn canceled_runs_stop_their_operations_and_start_nothing_new() {
    let one_at_a_time = |options: &mut Options| options.item_block_worker_count = 1;
    let trial = OperationWorld::start_with("cancel-items", one_at_a_time).await;
    for number in 0..6 {
        let set = SETS[number % 2];
        trial.add_claim(set, &format!("c{number}"), "sleep=1500,operation=600000").await;
    }
    let backup = trial.back_up("canceled", json!({})).await;
    let has_items =
        |backup: &Backup| status_field(backup, "progress")["totalItems"].as_i64() > Some(0);
    trial.world.until::<Backup>("canceled", has_items).await;
    let last = canceled_in(&trial, &backup, "InProgress").await;
    let operations = trial.operations(&last).await;
    assert!((1..6).contains(&operations.len()), "{operations:?}");
    let errors = trial.errors(&last).await;
    for (name, operation) in &operations {
        assert_eq!(operation.phase, OperationPhase::Failed);
        let set = SETS[name[1..].parse::<usize>().unwrap() % 2];
        assert!(trial.was_canceled(set, operation), "{operation:?}");
        assert!(errors[name].ends_with("failed: canceled: canceled"), "{errors:?}");
    }
    assert_eq!(errors.len(), operations.len());
    let about_the_run = trial.results(&last).await.errors.velero;
    assert_eq!(about_the_run, ["the backup was canceled before all items were backed up"]);

    for number in 0..6 {
        let set = SETS[number % 2];
        let verbs = if number == 5 { "sleep=4000" } else { "operation=0" };
        trial.add_claim(set, &format!("c{number}"), verbs).await;
    }
    let (whole, _) = trial.wait_for_end(&trial.back_up("b", json!({})).await).await;
    assert_eq!(phase(&whole), "Completed", "{whole:?}");
    let restore = trial.restore("r", json!({})).await;
    trial.world.until::<Restore>("r", |restore| phase(restore) == "InProgress").await;
    canceled_in(&trial, &restore, "InProgress").await;
}

#[tokio::test]
async fn canceled_operations_get_a_grace_period_and_are_reported() {
    let trial = OperationWorld::start("cancel-waiting").await;
    for set in SETS {
        trial.add_claim(set, set, "operation=600000").await;
        trial.add_claim(set, &format!("{set}-hangs"), "operation=600000,cancel-hang").await;
    }
    trial.back_up("b", json!({})).await;
    trial.world.until::<Backup>("b", is_waiting).await;
    let since = cancel::<Backup>(&trial, "b").await;
    let is_canceling = |backup: &Backup| condition(backup, "Canceling") == "True";
    let canceling = trial.world.until::<Backup>("b", is_canceling).await;
    assert!(phase(&canceling).starts_with("WaitingForPluginOperations"), "{canceling:?}");
    // Once more, while it stops.
    let again = json!({"metadata": {"annotations": {annotation::CANCEL: null}}});
    trial.world.patch::<Backup>("b", again.clone()).await;
    cancel::<Backup>(&trial, "b").await;
    let last = trial.world.until::<Backup>("b", is_over).await;
    // A hanging call is abandoned.
    assert!((28..45).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert_canceled(&last);
    assert_eq!(status_field(&last, "errors"), 5, "one for each operation, and the cancel");
    assert_eq!(trial.results(&last).await.errors.count(), 5, "and all of them are in the results");
    let operations = trial.operations(&last).await;
    let errors = trial.errors(&last).await;
    for set in SETS {
        let plugin = key(set, "bia-v2");
        let expected = |name: &str, reason: &str| {
            format!(
                "operation {} of plugin {plugin} failed: canceled: {reason}",
                operations[name].id
            )
        };
        assert_eq!(errors[set], expected(set, "canceled"));
        assert!(trial.was_canceled(set, &operations[set]));
        let hangs = format!("{set}-hangs");
        let reason = "the run was canceled by the user; the plugin could not cancel the operation, which \
             may continue: the plugin has not answered within 20 s";
        assert_eq!(errors[&hangs], expected(&hangs, reason));
    }
    // The run has ended, and does not change.
    trial.world.patch::<Backup>("b", again).await;
    cancel::<Backup>(&trial, "b").await;
    trial.until_journals_removed().await;
    for set in SETS {
        trial.add_claim(set, &format!("{set}-hangs"), "operation=0").await;
    }
    let next = trial.back_up("next", json!({})).await;
    trial.world.until::<Backup>("next", is_waiting).await;
    canceled_in(&trial, &next, "WaitingForPluginOperations").await;
    let backup_after = trial.world.api::<Backup>().get("b").await.unwrap();
    assert_eq!(backup_after.status, last.status);
}

#[tokio::test]
async fn waiting_restores_are_canceled_and_finished_ones_are_not() {
    let trial = OperationWorld::start("cancel-restore").await;
    for set in SETS {
        trial.add_claim(set, set, "operation=0").await;
    }
    let (whole, _) = trial.wait_for_end(&trial.back_up("first", json!({})).await).await;
    assert_eq!(phase(&whole), "Completed", "{whole:?}");
    for set in SETS {
        trial.add_claim(set, set, "operation=600000").await;
    }
    let backup = trial.back_up("b", json!({"itemOperationTimeout": "1s"})).await;
    trial.wait_for_end(&backup).await;
    let restore = trial.restore("r", json!({})).await;
    trial.world.until::<Restore>("r", is_waiting).await;
    let last = canceled_in(&trial, &restore, "WaitingForPluginOperations").await;
    let operations = trial.operations(&last).await;
    let errors = trial.errors(&last).await;
    for set in SETS {
        assert!(trial.was_canceled(set, &operations[set]));
        assert!(errors[set].ends_with("failed: canceled: canceled"), "{errors:?}");
    }
    cancel::<Backup>(&trial, "first").await;
    let next = trial.restore("next", json!({})).await;
    trial.world.until::<Restore>("next", is_waiting).await;
    canceled_in(&trial, &next, "WaitingForPluginOperations").await;
    let backup_after = trial.world.api::<Backup>().get("first").await.unwrap();
    assert_eq!(backup_after.status, whole.status);
}

#[tokio::test]
async fn finalizing_backup_can_be_canceled() {
    let trial = OperationWorld::start("cancel-finish").await;
    // The item is stored again at the end, which takes time.
    let orders = json!({
        key("sdk", "do"): "sleep=3000,operation=0",
        key("sdk", "post-operation"): format!("persistentvolumeclaims/{}/slow", trial.app),
    });
    trial.add_claim_with("slow", orders).await;
    let backup = trial.back_up("b", json!({})).await;
    trial.world.until::<Backup>("b", |backup| phase(backup) == "Finalizing").await;
    canceled_in(&trial, &backup, "Finalizing").await;
}
