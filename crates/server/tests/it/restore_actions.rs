//! Restore actions of plugins: built with Velero's framework in Go and with our SDK, in both
//! versions, in processes of their own. `plugins/fixture/README.md` documents their settings.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::{BackupPhase, Restore, RestorePhase, RestoreStatus};
use bowline_server::Options;
use bowline_store::file::Results;
use bowline_store::{BackupStore, RestoreName};
use bowline_testbed::apply::apply;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};

use crate::bed::{LIMIT, SETS, World};
use crate::support::runs::back_up_and_wait;

/// Timeout of the server for actions without their own.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1500);

/// A name or an annotation of a set.
fn key(set: &str, own: &str) -> String {
    format!("{set}.bowline.io/{own}")
}

/// Something that restores are tried on.
struct RestoreActionWorld {
    world: World,
    store: BackupStore,
    /// The namespace of the application.
    app: String,
}

impl RestoreActionWorld {
    /// A server with both sets, each with a domain and a state of its own, and an empty application.
    async fn start(name: &str) -> Self {
        let mut world = World::without_server(name).await;
        world.install_sets().await;
        world.run(Options { resource_timeout: SERVER_TIMEOUT, ..world.options() });
        let store = world.filesystem_location("default").await;
        let trial = Self { world, store, app: format!("app-{name}") };
        let namespace = json!({"name": trial.app});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace});
        apply(&trial.world.client, object).await.unwrap();
        // Not the default one, which the controllers make at their own pace.
        let worker = json!({"name": "worker"});
        trial.add(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": worker})).await;
        trial
    }

    /// Adds an object to the application.
    async fn add(&self, mut object: Value) {
        object["metadata"]["namespace"] = json!(self.app);
        apply(&self.world.client, object).await.unwrap();
    }

    async fn add_config_map(&self, name: &str, labels: Value) {
        let metadata = json!({"name": name, "labels": labels});
        self.add(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).await;
    }

    /// A claim that no volume is for; it is seen by actions of version 2 only.
    async fn add_claim(&self, name: &str, orders: Value) {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Mi"}},
        });
        let metadata = json!({"name": name, "annotations": orders});
        let kind = "PersistentVolumeClaim";
        self.add(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}))
            .await;
    }

    /// A claim with a ConfigMap of the same name that an action of the set brings along.
    async fn add_parent(&self, set: &str, name: &str, verbs: &str) {
        self.add_config_map(name, json!({})).await;
        let additional = format!("configmaps/{}/{name}", self.app);
        let orders = json!({key(set, "additional"): additional, key(set, "do"): verbs});
        self.add_claim(name, orders).await;
    }

    async fn add_pod(&self, name: &str, labels: Value, orders: Value) {
        let spec = json!({
            "serviceAccountName": "worker",
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.io/none:1"}],
        });
        let metadata = json!({"name": name, "labels": labels, "annotations": orders});
        self.add(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
            .await;
    }

    /// Backs the application up and restores it beside itself, with orders about readiness for each
    /// set.
    async fn restore(&self, orders: impl Fn(&str) -> String, spec: Value) -> Restored<'_> {
        let backed_up =
            back_up_and_wait(&self.world, "b", json!({"includedNamespaces": [self.app]})).await;
        assert_eq!(backed_up.phase, Some(BackupPhase::Completed), "{backed_up:?}");
        let copy = format!("{}-copy", self.app);
        let maps: Api<ConfigMap> = Api::namespaced(self.world.client.clone(), &copy);
        let before = maps.list(&ListParams::default()).await.unwrap();
        let annotations: BTreeMap<String, String> =
            SETS.iter().map(|set| (key(set, "ready-after-ms"), orders(set))).collect();
        let mut spec = spec;
        spec["backupName"] = json!("b");
        spec["namespaceMapping"] = json!({&self.app: copy});
        let metadata = json!({"name": "r", "annotations": annotations});
        self.world.create::<Restore>(json!({"metadata": metadata, "spec": spec})).await;
        let is_over = |restore: &Restore| {
            let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
            phase.is_some_and(RestorePhase::is_terminal)
        };
        let status = self.world.until::<Restore>("r", is_over).await.status.unwrap();
        let name = RestoreName::new("r").unwrap();
        let results = self.store.get_restore_file(&name).await.unwrap().expect("there are results");
        let since = before.metadata.resource_version.unwrap();
        Restored { trial: self, copy, since, status, results }
    }
}

/// Outcome of a restore.
struct Restored<'a> {
    trial: &'a RestoreActionWorld,
    copy: String,
    /// A version from before.
    since: String,
    status: RestoreStatus,
    results: Results,
}

/// An object at the moment of its creation.
#[derive(Debug)]
struct CreatedObject {
    /// Creation order across kinds: the higher, the later.
    version: u64,
    /// In whole seconds.
    at: i64,
    annotations: BTreeMap<String, String>,
}

impl Restored<'_> {
    /// The objects of a kind that were created, each once.
    async fn created_objects<K: Resource<DynamicType = ()>>(
        &self,
    ) -> BTreeMap<String, CreatedObject> {
        let resource = ApiResource::erase::<K>(&());
        let client = self.trial.world.client.clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.copy, &resource);
        let there = api.list(&ListParams::default()).await.unwrap().items.len();
        let mut created = BTreeMap::new();
        let reading = async {
            let mut events =
                Box::pin(api.watch(&WatchParams::default(), &self.since).await.unwrap());
            while created.len() < there {
                let Some(event) = events.try_next().await.unwrap() else { break };
                let WatchEvent::Added(object) = event else { continue };
                let one = CreatedObject {
                    version: object.resource_version().unwrap().parse().unwrap(),
                    at: object.creation_timestamp().unwrap().0.as_second(),
                    annotations: object.annotations().clone(),
                };
                assert!(created.insert(object.name_any(), one).is_none(), "made twice");
            }
        };
        tokio::time::timeout(LIMIT, reading).await.expect("all creations are told");
        assert_eq!(created.len(), there);
        created
    }

    /// The names of the actions of a set that saw an object on its way back.
    fn actions_seen_by<'m>(set: &str, created: &'m CreatedObject) -> Vec<&'m str> {
        let seen_by = created.annotations.get(&key(set, "seen-by")).map_or("", String::as_str);
        let own = seen_by.split(',').filter_map(|name| name.split_once('/')).map(|(_, own)| own);
        let mut own: Vec<&str> = own.filter(|own| own.starts_with("ria-")).collect();
        own.sort_unstable();
        own
    }

    /// The questions to a set about a ConfigMap: when in milliseconds, the answer, and about what in
    /// all.
    fn readiness_calls(&self, set: &str, name: &str) -> Vec<(i64, String, String)> {
        let file = self.trial.world.path(set).join("questions");
        let text = std::fs::read_to_string(file).unwrap();
        let wanted = format!("configmaps/{}/{name}", self.trial.app);
        let mut questions = Vec::new();
        for line in text.lines() {
            let parts: Vec<&str> = line.split(' ').collect();
            let [time, "r", answer, items] = parts[..] else { panic!("{line}") };
            if items.split(',').any(|item| item == wanted) {
                questions.push((time.parse().unwrap(), answer.to_owned(), items.to_owned()));
            }
        }
        questions
    }

    /// Errors about claims of the application, by name. There must be no other errors.
    fn errors(&self) -> BTreeMap<&str, &str> {
        let errors = &self.results.errors;
        assert_eq!(self.status.errors, i64::try_from(errors.count()).unwrap());
        let about = |text| str::strip_prefix(text, "persistentvolumeclaims/").unwrap();
        let errors_by_name: BTreeMap<&str, &str> = errors.namespaces[&self.trial.app]
            .iter()
            .map(|text| about(text.as_str()).split_once(": ").unwrap())
            .collect();
        assert_eq!(errors_by_name.len(), errors.count(), "{errors:?}");
        errors_by_name
    }

    fn assert_complete(&self) {
        let Self { status, results, .. } = self;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
        assert_eq!(*results, Results::default());
    }
}

#[tokio::test]
async fn actions_modify_items_and_restore_additional_items_first() {
    let trial = RestoreActionWorld::start("actions-part").await;
    let app = &trial.app;
    let unwanted = json!({"unwanted": "yes"});
    trial.add_pod("all", json!({}), json!({})).await;
    trial.add_config_map("unwanted", unwanted.clone()).await;
    for set in SETS {
        let name = format!("{set}-v1");
        let metadata = json!({"name": name, "labels": unwanted});
        let spec = json!({"ports": [{"port": 80}]});
        trial
            .add(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec,
            }))
            .await;
        let orders = json!({key(set, "additional"): format!("services/{app}/{name}")});
        // Version 2 actions do not select this one.
        trial.add_pod(&name, json!({"fixture": "no"}), orders).await;

        let name = format!("{set}-v2");
        let backend = json!({"service": {"name": "none", "port": {"number": 80}}});
        trial
            .add(json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {"name": name}, "spec": {"defaultBackend": backend},
            }))
            .await;
        trial.add_config_map(&name, unwanted.clone()).await;
        let additional =
            format!("ingresses.networking.k8s.io/{app}/{name},configmaps/{app}/{name}");
        trial.add_claim(&name, json!({key(set, "additional"): additional})).await;
    }
    let filter = json!([{"key": "unwanted", "operator": "DoesNotExist"}]);
    let spec = json!({"labelSelector": {"matchExpressions": filter}});
    let restored = trial.restore(|_| String::new(), spec).await;
    restored.assert_complete();

    let pods = restored.created_objects::<Pod>().await;
    let claims = restored.created_objects::<PersistentVolumeClaim>().await;
    let services = restored.created_objects::<Service>().await;
    let ingresses = restored.created_objects::<Ingress>().await;
    let maps = restored.created_objects::<ConfigMap>().await;
    assert!(!maps.contains_key("unwanted"), "the filter leaves it out");
    for set in SETS {
        assert_eq!(Restored::actions_seen_by(set, &pods["all"]), ["ria-v1", "ria-v2"]);
        let (v1, v2) = (format!("{set}-v1"), format!("{set}-v2"));
        assert_eq!(Restored::actions_seen_by(set, &pods[&v1]), ["ria-v1"]);
        assert_eq!(Restored::actions_seen_by(set, &claims[&v2]), ["ria-v2"]);
        // Services have a later step, and labels that were not asked for; the Ingress has only the
        // former, the ConfigMap both.
        assert!(services[&v1].version < pods[&v1].version, "{services:?} {pods:?}");
        assert!(ingresses[&v2].version < claims[&v2].version, "{ingresses:?} {claims:?}");
        assert!(maps[&v2].version < claims[&v2].version, "{maps:?} {claims:?}");
    }
}

#[tokio::test]
async fn unready_action_delays_its_own_item_only() {
    let trial = RestoreActionWorld::start("actions-held").await;
    for set in SETS {
        // Its own timeout counts, which is longer than the server's.
        trial.add_parent(set, &format!("{set}-slow"), "wait=60000").await;
        trial.add_parent(set, &format!("{set}-quick"), "wait=60000").await;
    }
    for name in ["a-other", "z-other"] {
        trial.add_claim(name, json!({})).await;
    }
    trial.add_pod("later", json!({}), json!({})).await;
    let orders = |set: &str| format!("{set}-slow=2000,{set}-quick=0");
    let restored = trial.restore(orders, json!({})).await;
    restored.assert_complete();

    let claims = restored.created_objects::<PersistentVolumeClaim>().await;
    let maps = restored.created_objects::<ConfigMap>().await;
    let pods = restored.created_objects::<Pod>().await;
    assert_eq!(claims.len(), 6, "{claims:?}");
    for set in SETS {
        let slow = format!("{set}-slow");
        let claim = &claims[&slow];
        let others = claims.iter().filter(|(name, _)| !name.ends_with("-slow"));
        for (name, other) in others {
            assert!(other.version < claim.version, "{name} was held back, too: {claims:?}");
        }
        let questions = restored.readiness_calls(set, &slow);
        let (first, last) = (&questions[0], questions.last().unwrap());
        assert_eq!((first.1.as_str(), last.1.as_str()), ("no", "yes"), "{questions:?}");
        assert!(last.0 - first.0 >= 2000, "{questions:?}");
        assert!(maps[&slow].version < claim.version);
        assert!(maps[&slow].at <= first.0 / 1000, "asked before it was there: {maps:?}");
        assert!(claim.at >= last.0 / 1000, "made before it was ready: {claim:?} {questions:?}");
        assert!(pods["later"].version > claim.version, "the next step begins after this one");
    }
}

#[tokio::test]
async fn action_that_is_never_ready_is_reported_and_the_restore_continues() {
    let trial = RestoreActionWorld::start("actions-never").await;
    let app = &trial.app;
    for set in SETS {
        trial.add_parent(set, &format!("{set}-own"), "wait=4000").await;
        trial.add_parent(set, &format!("{set}-server"), "wait=0").await;
        trial.add_parent(set, &format!("{set}-hangs"), "wait=0").await;
        // One of its two additional items is not restored.
        let some = format!("{set}-some");
        trial.add_config_map(&some, json!({})).await;
        let metadata = json!({"name": some});
        trial.add(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).await;
        let additional = format!("configmaps/{app}/{some},secrets/{app}/{some}");
        let orders = json!({key(set, "additional"): additional, key(set, "do"): "wait=0"});
        trial.add_claim(&some, orders).await;
    }
    trial.add_claim("other", json!({})).await;
    trial.add_pod("later", json!({}), json!({})).await;
    let orders =
        |set: &str| format!("{set}-own=never,{set}-server=never,{set}-hangs=hang,{set}-some=0");
    let restored = trial.restore(orders, json!({"excludedResources": ["secrets"]})).await;

    assert_eq!(restored.status.phase, Some(RestorePhase::PartiallyFailed));
    assert_eq!(restored.results.warnings.count(), 0, "{:?}", restored.results);
    let errors = restored.errors();
    assert_eq!(errors.len(), 6, "{errors:?}");
    let claims = restored.created_objects::<PersistentVolumeClaim>().await;
    assert_eq!(claims.len(), 9, "all are there: {claims:?}");
    assert!(restored.created_objects::<Pod>().await.contains_key("later"));
    assert!(restored.created_objects::<Secret>().await.is_empty());
    for set in SETS {
        let action = key(set, "ria-v2");
        for (name, limit) in [("own", "4"), ("server", "1.5"), ("hangs", "1.5")] {
            let expected = format!(
                "additional items of action {action} were not ready within {limit} s; the item is \
                 still restored"
            );
            assert_eq!(errors[format!("{set}-{name}").as_str()], expected);
        }
        let questions = restored.readiness_calls(set, &format!("{set}-own"));
        // The action's own timeout applies, not the server's.
        let (first, last) = (questions[0].0, questions.last().unwrap().0);
        assert!(last - first > 2500, "{questions:?}");
        assert!(claims[&format!("{set}-own")].at >= last / 1000, "{claims:?} {questions:?}");
        assert_eq!(restored.readiness_calls(set, &format!("{set}-hangs")).len(), 1);
        let (_, _, items) = restored.readiness_calls(set, &format!("{set}-some")).remove(0);
        assert_eq!(items, format!("configmaps/{app}/{set}-some"), "only what exists");
    }
}

#[tokio::test]
async fn crashing_action_is_an_item_error_and_the_rest_is_restored() {
    let trial = RestoreActionWorld::start("actions-dies").await;
    for set in SETS {
        trial.add_parent(set, &format!("{set}-dies"), "sleep=500,wait=60000").await;
        // The plugin has this one in hand when it dies.
        trial.add_claim(&format!("{set}-busy"), json!({key(set, "do"): "sleep=1500"})).await;
        trial.add_parent(set, &format!("{set}-unsure"), "wait=60000").await;
        trial.add_parent(set, &format!("{set}-calm"), "wait=60000").await;
    }
    trial.add_claim("other", json!({})).await;
    trial.add_pod("later", json!({}), json!({})).await;
    let orders = |set: &str| format!("{set}-dies=die,{set}-unsure=error,{set}-calm=4000");
    let restored = trial.restore(orders, json!({})).await;

    assert_eq!(restored.status.phase, Some(RestorePhase::PartiallyFailed));
    let errors = restored.errors();
    assert_eq!(errors.len(), 4, "{errors:?}");
    let claims = restored.created_objects::<PersistentVolumeClaim>().await;
    assert_eq!(claims.len(), 9, "all are there: {claims:?}");
    let pods = restored.created_objects::<Pod>().await;
    for set in SETS {
        let action = key(set, "ria-v2");
        let unsure =
            format!("the action {action} cannot check whether its additional items are ready: ");
        let dead = errors[format!("{set}-dies").as_str()];
        assert!(dead.starts_with(&unsure), "{dead}");
        assert!(dead.contains("exited during AreAdditionalItemsReady (exit status: 3)"), "{dead}");
        let expected = format!("{unsure}fixture cannot say; the item is still restored");
        assert_eq!(errors[format!("{set}-unsure").as_str()], expected);
        // The plugin continues in a new process: with the item that it was processing, with calls for other items, and
        // with later steps.
        assert_eq!(Restored::actions_seen_by(set, &claims[&format!("{set}-busy")]), ["ria-v2"]);
        let questions = restored.readiness_calls(set, &format!("{set}-calm"));
        assert_eq!(questions.last().unwrap().1, "yes", "{questions:?}");
        assert_eq!(Restored::actions_seen_by(set, &pods["later"]), ["ria-v1", "ria-v2"]);
    }
}
