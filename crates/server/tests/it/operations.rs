//! Operations of plugins in backups and restores, from start to end. The plugins are built with
//! Velero's framework in Go and with our SDK, and run in processes of their own. `plugins/fixture/README.md` documents
//! their settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_api::Backup;
use bowline_server::Options;
use bowline_store::file::{OperationPhase, Results};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::Instant;

use crate::bed::{SETS, eventually};
use crate::fault_injection;
use crate::support::operations::{OperationWorld, StoredOperation, key};
use crate::support::runs::{Run, condition, counts, is_waiting, phase, phases, status_field};

/// Phases of a run, from `InProgress` on.
fn phases_from_start<K: Run>(shown: &[K]) -> Vec<String> {
    phases(shown).into_iter().skip_while(|phase| phase != "InProgress").collect()
}

const GOOD: [&str; 4] = ["InProgress", "WaitingForPluginOperations", "Finalizing", "Completed"];

/// Waits until one operation has ended and the other has not, and reads the file of operations.
async fn assert_progress_stored<K: Run>(trial: &OperationWorld, run: &K) {
    let name = run.name_any();
    let half = |run: &K| is_waiting(run) && counts(run) == [2, 1, 0];
    let shown = trial.world.until::<K>(&name, half).await;
    assert_eq!(condition(&shown, "Completed"), "Unknown");
    let operations = trial.operations(run).await;
    assert_eq!(operations["go"].phase, OperationPhase::Completed, "{operations:?}");
    assert_eq!(operations["go"].error, "");
    let other = &operations["sdk"];
    assert_eq!(other.phase, OperationPhase::InProgress, "{operations:?}");
    assert!((1000..6000).contains(&other.done), "{operations:?}");
}

async fn assert_completed<K: Run>(trial: &OperationWorld, created: &K, action: &str) {
    let (last, shown) = trial.wait_for_end(created).await;
    assert_eq!(phases_from_start(&shown), GOOD, "{last:?}");
    assert_eq!(counts(&last), [2, 2, 0]);
    let in_progress = shown.iter().find(|run| phase(*run) == "InProgress").unwrap();
    assert_eq!(condition(in_progress, "Completed"), "Unknown");
    assert_eq!(condition(&last, "Completed"), "True");
    assert_eq!(condition(&last, "Canceled"), "");
    assert_eq!(trial.results(&last).await, Results::default());
    let operations = trial.operations(&last).await;
    for set in SETS {
        let StoredOperation { plugin, phase, done, .. } = &operations[set];
        assert_eq!((plugin.as_str(), phase), (&*key(set, action), &OperationPhase::Completed));
        assert!(*done >= 3000, "{operations:?}");
    }
    for reason in ["Started", "OperationsStarted", "OperationsProgress", "Completed"] {
        trial.until_event(&last.name_any(), reason).await;
    }
    trial.until_journals_removed().await;
}

#[tokio::test]
async fn operation_progress_is_visible_in_backup_and_restore() {
    let trial = OperationWorld::start("ops-seconds").await;
    let app = &trial.app;
    for (set, time) in SETS.into_iter().zip([3000, 6000]) {
        trial.add_config_map(set, "before").await;
        let after = format!("configmaps/{app}/{set}");
        let verbs = format!("operation={time}");
        let orders = json!({key(set, "do"): verbs, key(set, "post-operation"): after});
        trial.add_claim_with(set, orders).await;
    }
    trial.add_config_map("other", "before").await;
    let backup = trial.back_up("b", json!({})).await;
    assert_progress_stored(&trial, &backup).await;
    let maps: Api<ConfigMap> = Api::namespaced(trial.world.client.clone(), app);
    for name in ["go", "sdk", "other"] {
        assert_eq!(trial.archived("b", name).await, "before");
        let change = Patch::Merge(json!({"data": {"state": "after"}}));
        maps.patch(name, &PatchParams::default(), &change).await.unwrap();
    }
    assert_completed(&trial, &backup, "bia-v2").await;
    for (name, state) in [("go", "after"), ("sdk", "after"), ("other", "before")] {
        assert_eq!(trial.archived("b", name).await, state, "{name}");
    }

    let restore = trial.restore("r", json!({})).await;
    assert_progress_stored(&trial, &restore).await;
    assert_completed(&trial, &restore, "ria-v2").await;
}

#[tokio::test]
async fn failed_operation_is_reported_with_item_plugin_and_reason() {
    async fn assert_operation_failed<K: Run>(trial: &OperationWorld, created: &K, action: &str) {
        let (last, shown) = trial.wait_for_end(created).await;
        let expected = [
            "InProgress",
            "WaitingForPluginOperations",
            "WaitingForPluginOperationsPartiallyFailed",
            "FinalizingPartiallyFailed",
            "PartiallyFailed",
        ];
        assert_eq!(phases_from_start(&shown), expected, "{last:?}");
        assert_eq!(counts(&last), [2, 1, 1]);
        assert_eq!(status_field(&last, "errors"), 1);
        assert_eq!(condition(&last, "Completed"), "False");
        let operations = trial.operations(&last).await;
        assert_eq!(operations["bad"].phase, OperationPhase::Failed);
        assert_eq!(operations["bad"].error, "the disk is full");
        let errors = trial.errors(&last).await;
        let StoredOperation { id, .. } = &operations["bad"];
        let plugin = key("go", action);
        let expected = format!("operation {id} of plugin {plugin} failed: the disk is full");
        assert_eq!(errors["bad"], expected);
        trial.until_event(&last.name_any(), "PartiallyFailed").await;
    }
    let trial = OperationWorld::start("ops-fail").await;
    trial.add_claim("go", "bad", "operation=500,outcome=the disk is full").await;
    trial.add_claim("sdk", "good", "operation=3000").await;
    let backup = trial.back_up("b", json!({})).await;
    assert_operation_failed(&trial, &backup, "bia-v2").await;
    let restore = trial.restore("r", json!({})).await;
    assert_operation_failed(&trial, &restore, "ria-v2").await;
}

#[tokio::test]
async fn transient_errors_are_retried_and_permanent_ones_fail_the_operation() {
    let trial = OperationWorld::start("ops-errors").await;
    for set in SETS {
        for (name, verbs) in [
            ("unsure", "operation=100,progress-error=2"),
            ("dies", "operation=100,progress-die=1"),
            ("unknown", "operation=600000,progress-unknown"),
            ("never", "operation=600000,progress-error=1000"),
        ] {
            trial.add_claim(set, &format!("{set}-{name}"), verbs).await;
        }
    }
    let backup = trial.back_up("b", json!({})).await;
    let started = Instant::now();
    let (last, _) = trial.wait_for_end(&backup).await;
    assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    assert_eq!((phase(&last), counts(&last)), ("PartiallyFailed".to_owned(), [8, 4, 4]));
    let operations = trial.operations(&last).await;
    let errors = trial.errors(&last).await;
    assert_eq!(errors.len(), 4, "{errors:?}");
    for set in SETS {
        let operation = |name: &str| &operations[&format!("{set}-{name}")];
        assert!(trial.polls(set, operation("unsure")) >= 3);
        assert!(trial.polls(set, operation("dies")) >= 2);
        let unknown = operation("unknown");
        assert_eq!(unknown.error, format!("operation ID {} is invalid", unknown.id));
        let never = operation("never");
        assert!(never.error.contains("fixture cannot tell"), "{never:?}");
        assert!((5..10).contains(&trial.polls(set, never)), "{never:?}");
    }
}

#[tokio::test]
async fn operation_past_its_timeout_is_canceled_and_failed() {
    async fn assert_timed_out<K: Run>(trial: &OperationWorld, created: &K) {
        let (last, _) = trial.wait_for_end(created).await;
        assert_eq!((phase(&last), counts(&last)), ("PartiallyFailed".to_owned(), [2, 0, 2]));
        let operations = trial.operations(&last).await;
        let errors = trial.errors(&last).await;
        for set in SETS {
            let operation = &operations[set];
            assert!(operation.error.starts_with("timed out"), "{operation:?}");
            assert!(errors[set].contains(&operation.error), "{errors:?}");
            assert!(trial.was_canceled(set, operation), "{operation:?}");
        }
    }
    let trial = OperationWorld::start("ops-late").await;
    for set in SETS {
        trial.add_claim(set, set, "operation=600000").await;
    }
    let backup = trial.back_up("b", json!({"itemOperationTimeout": "2s"})).await;
    assert_timed_out(&trial, &backup).await;
    let restore = trial.restore("r", json!({"itemOperationTimeout": "2s"})).await;
    assert_timed_out(&trial, &restore).await;
}

#[tokio::test]
async fn next_server_waits_for_running_operations() {
    async fn assert_resumed<K: Run>(trial: &mut OperationWorld, created: &K) {
        let name = created.name_any();
        trial.world.until::<K>(&name, is_waiting).await;
        let started = trial.operations(created).await;
        trial
            .restart(async |trial| {
                let found = trial.world.api::<K>().get(&name).await.unwrap();
                assert!(is_waiting(&found), "{found:?}");
            })
            .await;
        let (last, shown) = trial.wait_for_end(created).await;
        assert_eq!(phases_from_start(&shown), GOOD, "{last:?}");
        assert_eq!(counts(&last), [2, 2, 0]);
        let ended = trial.operations(&last).await;
        for set in SETS {
            assert_eq!(ended[set].id, started[set].id, "it was not begun twice");
        }
        trial.until_journals_removed().await;
    }
    let mut trial = OperationWorld::start("ops-restart").await;
    for set in SETS {
        trial.add_claim(set, set, "operation=4000").await;
    }
    let backup = trial.back_up("b", json!({})).await;
    assert_resumed(&mut trial, &backup).await;
    let restore = trial.restore("r", json!({})).await;
    assert_resumed(&mut trial, &restore).await;
}

#[tokio::test]
async fn next_server_finishes_the_remaining_items() {
    let one_at_a_time = |options: &mut Options| options.item_block_worker_count = 1;
    let mut trial = OperationWorld::start_with("ops-midway", one_at_a_time).await;
    for number in 0..4 {
        let set = SETS[number % 2];
        trial.add_claim(set, &format!("c{number}"), "sleep=1200,operation=100").await;
    }
    let backup = trial.back_up("b", json!({})).await;
    let is_midway = |backup: &Backup| {
        phase(backup) == "InProgress"
            && status_field(backup, "progress")["totalItems"].as_i64() > Some(0)
    };
    trial.world.until::<Backup>("b", is_midway).await;
    let mut between = 0;
    trial
        .restart(async |trial| {
            let found = trial.world.api::<Backup>().get("b").await.unwrap();
            assert_eq!(phase(&found), "InProgress", "{found:?}");
            assert!(trial.journals().await > 0);
            between = Timestamp::now().as_millisecond();
        })
        .await;
    let (last, shown) = trial.wait_for_end(&backup).await;
    assert_eq!(phases_from_start(&shown), GOOD, "{last:?}");
    assert_eq!(counts(&last), [4, 4, 0]);
    assert_eq!(trial.results(&last).await, Results::default());
    let operations = trial.operations(&last).await;
    let began = |operation: &StoredOperation| {
        operation.id.split('/').nth(1).unwrap().parse::<i64>().unwrap()
    };
    let before = operations.values().filter(|operation| began(operation) < between).count();
    assert!((1..4).contains(&before), "what was finished is taken over: {operations:?}");
    trial.until_event("b", "Resumed").await;
    trial.until_journals_removed().await;
}

#[tokio::test]
async fn second_server_is_on_standby_until_the_first_ends() {
    let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let mut trial =
        OperationWorld::start_with("ops-second", |options| options.identity = "a".into()).await;
    trial.add_config_map("one", "here").await;
    // Number of requests of the second server for the Lease, and for other objects of the namespace.
    let asked: Arc<[AtomicUsize; 2]> = Arc::default();
    let count = Arc::clone(&asked);
    let namespace_path = format!("/namespaces/{}/", trial.world.namespace);
    let judge = move |method: &Method, uri: &http::Uri| {
        // The server checks whether Velero runs before it waits.
        let is_pod_request = method == Method::GET && uri.path().ends_with("/pods");
        if uri.path().contains(&namespace_path) && !is_pod_request {
            let is_work = !uri.path().contains("/leases");
            count[usize::from(is_work)].fetch_add(1, Ordering::SeqCst);
        }
        false
    };
    let asked = || [0, 1].map(|index: usize| asked[index].load(Ordering::SeqCst));
    let options = Options { identity: "b".into(), ..OperationWorld::options(&trial.world) };
    let mut second = trial.world.second_server_world();
    second.run_through(options, |client| fault_injection::faulty_client(client, judge));
    eventually("the second server has started", async || asked()[0] > 0).await;
    let backup = trial.back_up("b", json!({})).await;
    let (last, _) = trial.wait_for_end(&backup).await;
    assert_eq!(phase(&last), "Completed");
    let lease = trial.world.until::<Lease>("bowline-server", |_| true).await;
    assert_eq!(holder(&lease).as_deref(), Some("a"));
    assert_eq!(asked()[1], 0, "the second does nothing");

    trial.world.end().await.unwrap();
    trial.world.until("bowline-server", |lease| holder(lease).as_deref() == Some("b")).await;
    let again = trial.back_up("again", json!({})).await;
    let (last, _) = trial.wait_for_end(&again).await;
    assert_eq!(phase(&last), "Completed");
    assert!(asked()[1] > 0);
    second.end().await.unwrap();
}
