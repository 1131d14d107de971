//! Operations of plugins behind backups and restores, from their start to their end: built with Velero's
//! framework in Go and with our SDK, in real processes beside each other. What they are told is in
//! `plugins/fixture/README.md`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_api::{Backup, Restore};
use bowline_server::Options;
use bowline_store::file::{BackupOperation, OperationPhase, RestoreOperation, Results};
use bowline_store::{BackupFile, BackupName, BackupStore, Key, RestoreName};
use bowline_testbed::apply::apply;
use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{LIMIT, SETS, World};
use crate::fault_injection;

/// A Backup or Restore.
pub(crate) trait Run:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
{
}

impl Run for Backup {}
impl Run for Restore {}

/// What the status of a run says under a key.
pub(crate) fn status_field<K: Run>(run: &K, key: &str) -> Value {
    serde_json::to_value(run).unwrap()["status"][key].take()
}

pub(crate) fn phase<K: Run>(run: &K) -> String {
    status_field(run, "phase").as_str().unwrap_or("New").to_owned()
}

pub(crate) fn is_over<K: Run>(run: &K) -> bool {
    ["Completed", "PartiallyFailed", "Failed", "FailedValidation"].contains(&phase(run).as_str())
}

pub(crate) fn is_waiting<K: Run>(run: &K) -> bool {
    phase(run) == "WaitingForPluginOperations"
}

/// Whether a condition is `True`, `False` or `Unknown`; empty if it is not there.
pub(crate) fn condition<K: Run>(run: &K, type_: &str) -> String {
    let conditions = status_field(run, "conditions");
    let conditions = conditions.as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    found.map_or("", |condition| condition["status"].as_str().unwrap()).to_owned()
}

/// How many operations a run has begun, and how many of them have completed and failed.
pub(crate) fn counts<K: Run>(run: &K) -> [i64; 3] {
    let kind = K::kind(&()).to_lowercase();
    ["Attempted", "Completed", "Failed"].map(|what| {
        status_field(run, &format!("{kind}ItemOperations{what}")).as_i64().unwrap_or_default()
    })
}

/// A name or an annotation of a set.
pub(crate) fn key(set: &str, own: &str) -> String {
    format!("{set}.bowline.io/{own}")
}

/// Something that operations are tried on.
pub(crate) struct OperationWorld {
    pub(crate) world: World,
    pub(crate) store: BackupStore,
    /// The namespace of the application.
    pub(crate) app: String,
}

/// An operation as the bucket has it.
#[derive(Clone, Debug)]
pub(crate) struct StoredOperation {
    pub(crate) id: String,
    pub(crate) plugin: String,
    pub(crate) phase: OperationPhase,
    pub(crate) error: String,
    pub(crate) done: i64,
}

impl OperationWorld {
    /// A server with both sets, and an empty application.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, |_| {}).await
    }

    /// The same, with other options.
    pub(crate) async fn start_with(name: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut world = World::without_server(name).await;
        world.install_sets().await;
        let mut options = Self::options(&world);
        change(&mut options);
        world.run(options);
        let store = world.filesystem_location("default").await;
        let trial = Self { world, store, app: format!("app-{name}") };
        let namespace = json!({"name": trial.app});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace});
        apply(&trial.world.client, object).await.unwrap();
        trial
    }

    fn options(world: &World) -> Options {
        Options { item_operation_sync_frequency: Duration::from_secs(1), ..world.options() }
    }

    /// Ends the server and starts another, after what is done in between.
    pub(crate) async fn restart(&mut self, between: impl AsyncFnOnce(&Self)) {
        self.world.end().await.unwrap();
        between(self).await;
        self.world.run(Self::options(&self.world));
    }

    async fn add_config_map(&self, name: &str, state: &str) {
        let metadata = json!({"name": name, "namespace": self.app});
        let data = json!({"state": state});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        apply(&self.world.client, map).await.unwrap();
    }

    /// A claim that no volume is for, with orders for one set. Only actions of version 2 look at it.
    pub(crate) async fn add_claim(&self, set: &str, name: &str, verbs: &str) {
        self.add_claim_with(name, json!({key(set, "do"): verbs})).await;
    }

    pub(crate) async fn add_claim_with(&self, name: &str, annotations: Value) {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Mi"}},
        });
        let metadata = json!({"name": name, "namespace": self.app, "annotations": annotations});
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec,
        });
        apply(&self.world.client, claim).await.unwrap();
    }

    /// Begins a backup of the application.
    pub(crate) async fn back_up(&self, name: &str, spec: Value) -> Backup {
        let mut spec = spec;
        spec["includedNamespaces"] = json!([self.app]);
        spec["includedResources"] = json!(["persistentvolumeclaims", "configmaps"]);
        self.world.create(json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// Begins a restore of the backup `b` into a namespace of its own.
    pub(crate) async fn restore(&self, name: &str, spec: Value) -> Restore {
        let mut spec = spec;
        spec["backupName"] = json!("b");
        spec["namespaceMapping"] = json!({&self.app: format!("{}-{name}", self.app)});
        self.world.create(json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// Waits for the end of a run. Returns all that was shown of it, without repetitions of phases.
    pub(crate) async fn wait_for_end<K: Run>(&self, created: &K) -> (K, Vec<K>) {
        let name = created.name_any();
        let last = self.world.until::<K>(&name, is_over).await;
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let since = created.resource_version().unwrap();
        let api = self.world.api::<K>();
        let mut shown = vec![created.clone()];
        let reading = async {
            let mut events = Box::pin(api.watch(&params, &since).await.unwrap());
            while !is_over(shown.last().unwrap()) {
                if let Some(WatchEvent::Modified(run)) = events.try_next().await.unwrap() {
                    shown.push(run);
                }
            }
        };
        tokio::time::timeout(LIMIT, reading).await.expect("all changes are told");
        (last, shown)
    }

    pub(crate) async fn results<K: Run>(&self, run: &K) -> Results {
        let name = run.name_any();
        let read = if K::kind(&()) == "Backup" {
            self.store.get(&BackupName::new(name).unwrap()).await
        } else {
            self.store.get_restore_file(&RestoreName::new(name).unwrap()).await
        };
        read.unwrap().expect("there are results")
    }

    /// The errors about claims of the application, by name. There are none about others.
    pub(crate) async fn errors<K: Run>(&self, run: &K) -> BTreeMap<String, String> {
        let results = self.results(run).await;
        let of_app = results.errors.namespaces.get(&self.app).cloned().unwrap_or_default();
        let about_the_run = results.errors.velero.len();
        assert_eq!(of_app.len() + about_the_run, results.errors.count(), "{results:?}");
        let errors = i64::try_from(results.errors.count()).unwrap();
        // Why it failed is counted, too.
        let reason = i64::from(about_the_run == 0 && !status_field(run, "failureReason").is_null());
        assert_eq!(status_field(run, "errors"), errors + reason, "{results:?}");
        let about = |text: &String| {
            let text = text.strip_prefix("persistentvolumeclaims/").expect(text);
            let (name, error) = text.split_once(": ").unwrap();
            (name.to_owned(), error.to_owned())
        };
        of_app.iter().map(about).collect()
    }

    /// The operations of a run as the bucket has them, by the name of their item.
    pub(crate) async fn operations<K: Run>(&self, run: &K) -> BTreeMap<String, StoredOperation> {
        let name = run.name_any();
        let operations: Vec<(String, StoredOperation)> = if K::kind(&()) == "Backup" {
            let name = BackupName::new(name).unwrap();
            let read = self.store.get::<Vec<BackupOperation>>(&name).await.unwrap();
            let one = |BackupOperation { spec, status, .. }: BackupOperation| {
                let operation = StoredOperation {
                    id: spec.operation_id,
                    plugin: spec.backup_item_action,
                    phase: status.phase.unwrap(),
                    error: status.error,
                    done: status.n_completed,
                };
                (spec.resource_identifier.name, operation)
            };
            read.expect("there are operations").into_iter().map(one).collect()
        } else {
            let name = RestoreName::new(name).unwrap();
            let read = self.store.get_restore_file::<Vec<RestoreOperation>>(&name).await.unwrap();
            let one = |RestoreOperation { spec, status, .. }: RestoreOperation| {
                let operation = StoredOperation {
                    id: spec.operation_id,
                    plugin: spec.restore_item_action,
                    phase: status.phase.unwrap(),
                    error: status.error,
                    done: status.n_completed,
                };
                (spec.resource_identifier.name, operation)
            };
            read.expect("there are operations").into_iter().map(one).collect()
        };
        operations.into_iter().collect()
    }

    /// Whether a set was told to stop an operation.
    pub(crate) fn was_canceled(&self, set: &str, operation: &StoredOperation) -> bool {
        let file = format!("cancelled-{}", operation.id.replace('/', "_"));
        self.world.path(set).join(file).exists()
    }

    /// How often a set was asked about an operation.
    fn polls(&self, set: &str, operation: &StoredOperation) -> usize {
        let file = format!("polls-{}", operation.id.replace('/', "_"));
        std::fs::read_to_string(self.world.path(set).join(file)).unwrap().lines().count()
    }

    /// What the archive of a backup says of a ConfigMap.
    async fn archived(&self, backup: &str, config_map: &str) -> Value {
        let key = Key::Backup(BackupName::new(backup).unwrap(), BackupFile::Contents);
        let stream = self.store.get_stream(&key).await.unwrap().expect("there is an archive");
        let packed = stream.try_collect::<Vec<_>>().await.unwrap().concat();
        let path = format!("resources/configmaps/namespaces/{}/{config_map}.json", self.app);
        let mut tar = tar::Archive::new(MultiGzDecoder::new(&packed[..]));
        let mut found = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.path().unwrap().to_str() == Some(&path) {
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                found.push(serde_json::from_str::<Value>(&text).unwrap());
            }
        }
        assert_eq!(found.len(), 1, "{path} is in the archive once");
        found.remove(0)["data"]["state"].take()
    }

    /// The reasons of the Events about a run.
    pub(crate) async fn events(&self, run: &str) -> Vec<String> {
        let all = self.world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let about = |event: &Event| {
            event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(run)
        };
        all.into_iter().filter(about).filter_map(|event| event.reason).collect()
    }

    /// Waits until there is an Event with this reason.
    pub(crate) async fn until_event(&self, run: &str, reason: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let events = self.events(run).await;
            if events.iter().any(|event| event == reason) {
                return;
            }
            assert!(Instant::now() < deadline, "no {reason} in {events:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What is noted of runs for the case that the server ends.
    pub(crate) async fn journals(&self) -> usize {
        let params = ListParams::default().labels("bowline.io/journal");
        self.world.api::<ConfigMap>().list(&params).await.unwrap().items.len()
    }

    pub(crate) async fn until_journals_removed(&self) {
        let deadline = Instant::now() + LIMIT;
        while self.journals().await > 0 {
            assert!(Instant::now() < deadline, "a journal is left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The phases of a run in their order.
pub(crate) fn phases<K: Run>(shown: &[K]) -> Vec<String> {
    let mut phases: Vec<String> = shown.iter().map(phase).collect();
    phases.dedup();
    phases
}

/// What a run went through, from `InProgress` on.
fn phases_from_start<K: Run>(shown: &[K]) -> Vec<String> {
    phases(shown).into_iter().skip_while(|phase| phase != "InProgress").collect()
}

const GOOD: [&str; 4] = ["InProgress", "WaitingForPluginOperations", "Finalizing", "Completed"];

/// Waits until one operation has ended and the other not, and looks at the file of operations.
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
        let expected = format!("the operation {id} of {plugin} failed: the disk is full");
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
    // How often the second asks for the lease, and for anything else in the namespace.
    let asked: Arc<[AtomicUsize; 2]> = Arc::default();
    let count = Arc::clone(&asked);
    let namespace_path = format!("/namespaces/{}/", trial.world.namespace);
    let judge = move |method: &Method, uri: &http::Uri| {
        // It looks whether Velero runs, before it waits.
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
    let deadline = Instant::now() + LIMIT;
    while asked()[0] == 0 {
        assert!(Instant::now() < deadline, "the second server does not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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
