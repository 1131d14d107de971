//! Operations of plugins, and their records.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::Duration;

use bowline_api::{Backup, Restore};
use bowline_server::Options;
use bowline_store::file::{BackupOperation, OperationPhase, RestoreOperation, Results};
use bowline_store::{BackupFile, BackupName, BackupStore, Key, RestoreName};
use bowline_testbed::apply::apply;
use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use super::runs::{Run, is_over, status_field};
use crate::bed::{LIMIT, World, eventually};

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

    pub(crate) fn options(world: &World) -> Options {
        Options { item_operation_sync_frequency: Duration::from_secs(1), ..world.options() }
    }

    /// Ends the server, calls a function, and starts another server.
    pub(crate) async fn restart(&mut self, between: impl AsyncFnOnce(&Self)) {
        self.world.end().await.unwrap();
        between(self).await;
        self.world.run(Self::options(&self.world));
    }

    pub(crate) async fn add_config_map(&self, name: &str, state: &str) {
        let metadata = json!({"name": name, "namespace": self.app});
        let data = json!({"state": state});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        apply(&self.world.client, map).await.unwrap();
    }

    /// A claim without a volume, with orders for one set. Only version 2 actions select it.
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

    /// Waits for the end of a run. Returns all shown phases, without repetitions.
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

    /// True if a set received a cancel of an operation.
    pub(crate) fn was_canceled(&self, set: &str, operation: &StoredOperation) -> bool {
        let file = format!("cancelled-{}", operation.id.replace('/', "_"));
        self.world.path(set).join(file).exists()
    }

    /// Number of progress calls for an operation to a set.
    pub(crate) fn polls(&self, set: &str, operation: &StoredOperation) -> usize {
        let file = format!("polls-{}", operation.id.replace('/', "_"));
        std::fs::read_to_string(self.world.path(set).join(file)).unwrap().lines().count()
    }

    /// Contents of a ConfigMap in the archive of a backup.
    pub(crate) async fn archived(&self, backup: &str, config_map: &str) -> Value {
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

    /// Waits for an Event with this reason.
    pub(crate) async fn until_event(&self, run: &str, reason: &str) {
        eventually(&format!("{run} has an Event {reason}"), async || {
            let events = self.events(run).await;
            if events.iter().any(|event| event == reason) { Ok(()) } else { Err(events) }
        })
        .await;
    }

    /// Journals of runs.
    pub(crate) async fn journals(&self) -> usize {
        let params = ListParams::default().labels("bowline.io/journal");
        self.world.api::<ConfigMap>().list(&params).await.unwrap().items.len()
    }

    pub(crate) async fn until_journals_removed(&self) {
        eventually("no journal remains", async || self.journals().await == 0).await;
    }
}
