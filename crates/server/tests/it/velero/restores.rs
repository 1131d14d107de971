//! Velero's restores and ours, from one archive of Velero, into the same state.
//!
//! Both servers run side by side, each in a namespace of its own. Velero restores to namespaces with the prefix `v`,
//! and
//! Bowline to namespaces with the prefix `b`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bowline_api::{Backup, BackupPhase, BackupSpec, RestorePhase};
use bowline_store::file::{ResourceList, Results};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, S3, Velero, velero};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::changes::{self, Row};
use super::harness::{self, BowlineServer, api_of, back_up, eventually, read_compressed, reduced};
use crate::rich_cluster;

const BACKUP: &str = "by-velero";
/// The namespaces in the backup.
const NAMESPACES: [&str; 2] = ["shop", "shop-data"];
/// The kinds in the backup that live in no namespace.
const CLUSTER_SCOPED: [&str; 3] = [
    "priorityclasses.scheduling.k8s.io",
    "storageclasses.storage.k8s.io",
    "regions.shop.example.io",
];
/// Kinds whose objects controllers make from others, and change.
const VOLATILE_KINDS: [&str; 6] = [
    "pods",
    "replicasets.apps",
    "controllerrevisions.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "events",
];

/// A side of the comparison.
#[derive(Clone, Copy)]
struct RestoringServer {
    prefix: &'static str,
    /// Namespace of its server.
    namespace: &'static str,
}

const VELERO: RestoringServer = RestoringServer { prefix: "v", namespace: velero::NAMESPACE };
const BOWLINE: RestoringServer = RestoringServer { prefix: "b", namespace: harness::NAMESPACE };

impl RestoringServer {
    /// An object with the name of its target on this side.
    fn renamed_for_target(self, object: &Value) -> Value {
        let mut moved = object.clone();
        let is_namespace = object["kind"] == "Namespace";
        let field = if is_namespace { "name" } else { "namespace" };
        if let Some(name) = object["metadata"][field].as_str() {
            moved["metadata"][field] = format!("{}-{name}", self.prefix).into();
        }
        let subjects = moved.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            let namespace = subject["namespace"].as_str().unwrap();
            subject["namespace"] = format!("{}-{namespace}", self.prefix).into();
        }
        moved
    }

    /// A text with the names that were in the backup.
    fn original(self, text: &str) -> String {
        text.strip_prefix(self.prefix)
            .and_then(|text| text.strip_prefix('-'))
            .unwrap_or(text)
            .to_owned()
    }
}

/// Outcome of a restore.
struct RestoreOutcome {
    side: RestoringServer,
    phase: Option<RestorePhase>,
    results: Results,
    /// Outcome of each item.
    actions: BTreeMap<String, String>,
    /// The objects afterwards.
    objects: BTreeMap<String, String>,
}

/// A cluster with both servers, and the archive.
struct ComparisonScenario {
    client: Client,
    bucket: PathBuf,
    /// The compared parts.
    objects: Vec<Value>,
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_and_bowline_restore_the_same_with_modifiers_and_over_changed_objects() {
    crate::bed::install_log_subscriber();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    harness::install(&client).await;
    let mut objects = rich_cluster::objects();
    objects.extend(changes::extra_objects());
    objects.retain(is_compared);
    for object in &objects {
        apply(&client, object.clone()).await.unwrap();
    }
    harness::create_location(&client, &s3, harness::NAMESPACE).await;
    let velero = Velero::start(&plane, &s3, velero::Options::default()).await.unwrap();
    let server = BowlineServer::start_with(&bed, &plane, |options| {
        options.namespace = harness::NAMESPACE.to_owned();
    });
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let spec = BackupSpec {
        included_namespaces: owned(&NAMESPACES),
        included_cluster_scoped_resources: owned(&CLUSTER_SCOPED),
        ..BackupSpec::default()
    };
    let status = back_up(&client, velero::NAMESPACE, BACKUP, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    harness::until_there::<Backup>(&client, harness::NAMESPACE, BACKUP).await;

    let scene = ComparisonScenario { client, bucket: velero.bucket().to_owned(), objects };
    let plain = scene.assert_restore_into_empty().await;
    scene.assert_restore_over_changes_without_policy(&plain).await;
    scene.assert_restore_over_changes_with_update_policy(&plain).await;
    scene.assert_restore_with_modifiers(&plain).await;
    server.end();
}

fn is_compared(object: &Value) -> bool {
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => NAMESPACES.contains(&namespace),
        None if object["kind"] == "Namespace" => {
            NAMESPACES.contains(&object["metadata"]["name"].as_str().unwrap())
        }
        None => ["CustomResourceDefinition", "PriorityClass", "Region", "StorageClass"]
            .contains(&object["kind"].as_str().unwrap()),
    }
}

/// `ConfigMap shop/m`
fn id_of(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    id(object["kind"].as_str().unwrap(), text("namespace"), text("name"))
}

fn id(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind} {namespace}/{name}")
}

impl ComparisonScenario {
    /// Into empty namespaces. The result is the initial state of all other cases.
    async fn assert_restore_into_empty(&self) -> BTreeMap<String, String> {
        let velero = self.restore(VELERO, "plain", json!({})).await;
        let bowline = self.restore(BOWLINE, "plain", json!({})).await;
        assert_same_outcome(&velero, &bowline);
        for outcome in [&velero, &bowline] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        assert_eq!(warned_objects(&bowline), BTreeSet::new());
        let missing = bowline.objects.iter().filter(|(_, found)| found.as_str() == "null");
        assert_eq!(missing.count(), 0, "{:?}", bowline.objects);
        bowline.objects
    }

    async fn assert_restore_over_changes_without_policy(&self, plain: &BTreeMap<String, String>) {
        let spec = json!({"existingResourcePolicy": "none"});
        let [theirs, ours] = self.restore_over_changes("none", &spec).await;
        assert_same_outcome(&theirs, &ours);
        for outcome in [&theirs, &ours] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        assert_same_actions(&theirs, &ours);
        let lost: Vec<_> = changes::deleted().iter().map(Row::id).collect();
        let created = ours.actions.iter().filter(|(_, action)| action.as_str() == "created");
        let created: BTreeSet<_> = created.map(|(id, _)| id.clone()).collect();
        assert_eq!(created, lost.iter().cloned().collect());
        for id in &lost {
            assert_eq!(by_any_restore(&ours.objects[id]), by_any_restore(&plain[id]), "{id}");
        }
        // Both say which objects differ. Velero says it of others as well, whose managed fields do.
        let differ: BTreeSet<_> = changed().map(|row| row.id()).collect();
        assert_eq!(warned_objects(&ours), differ);
        let also = warned_objects(&theirs);
        assert!(also.is_superset(&differ), "{:?}", differ.difference(&also));
    }

    async fn assert_restore_over_changes_with_update_policy(
        &self,
        plain: &BTreeMap<String, String>,
    ) {
        let spec = json!({"existingResourcePolicy": "update"});
        let [theirs, ours] = self.restore_over_changes("update", &spec).await;
        assert_same_outcome(&theirs, &ours);
        for outcome in [&theirs, &ours] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        let refused: BTreeSet<_> = changes::replaced().iter().map(Row::id).collect();
        assert_eq!(warned_objects(&ours), refused, "{:?}", ours.results);
        assert_eq!(warned_objects(&theirs), refused, "{:?}", theirs.results);
        assert_same_actions(&theirs, &ours);
        // Everything is as before, except for immutable fields and fields that restores do not change.
        let is_other = |id: &str, found: &str| {
            plain.get(id).map(|text| by_any_restore(text)) != Some(by_any_restore(found))
        };
        let differ = ours.objects.iter().filter(|(id, found)| is_other(id, found));
        let differ: BTreeSet<_> = differ.map(|(id, _)| id.clone()).collect();
        let unchanged = ["Namespace /shop", "ServiceAccount shop/web"].map(str::to_owned);
        assert_eq!(differ, refused.into_iter().chain(unchanged).collect());
    }

    async fn assert_restore_with_modifiers(&self, plain: &BTreeMap<String, String>) {
        for side in [VELERO, BOWLINE] {
            let rules = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "modifiers", "namespace": side.namespace},
                "data": {"rules.yaml": changes::MODIFIERS},
            });
            apply(&self.client, rules).await.unwrap();
        }
        let spec = json!({"resourceModifier": {"kind": "configmap", "name": "modifiers"}});
        // Into namespaces that are not there yet.
        let velero_side = RestoringServer { prefix: "vm", ..VELERO };
        let bowline_side = RestoringServer { prefix: "bm", ..BOWLINE };
        self.delete_common().await;
        let velero = self.restore(velero_side, "modified", spec.clone()).await;
        self.delete_common().await;
        let bowline = self.restore(bowline_side, "modified", spec).await;
        assert_same_outcome(&velero, &bowline);
        assert_eq!(bowline.phase, Some(RestorePhase::PartiallyFailed), "{:?}", bowline.results);
        for id in self.objects.iter().map(id_of) {
            // CRDs exist, and differ for Velero.
            if !id.starts_with("CustomResourceDefinition ") {
                assert_eq!(velero.actions.get(&id), bowline.actions.get(&id), "{id}");
            }
        }
        let is_other = |id: &str, found: &str| {
            plain.get(id).map(|text| by_any_restore(text)) != Some(by_any_restore(found))
        };
        let differ = bowline.objects.iter().filter(|(id, found)| is_other(id, found));
        let differ: BTreeSet<_> = differ.map(|(id, _)| id.as_str()).collect();
        assert_eq!(differ, changes::MODIFIED.into_iter().collect());
        let errors = format!("{:?}", bowline.results.errors);
        for words in changes::MODIFIERS_FAIL {
            assert!(errors.contains(words), "no {words:?} in {errors}");
        }
    }

    /// Changes, deletes and restores, for one side after the other: some objects are of both.
    async fn restore_over_changes(&self, name: &str, spec: &Value) -> [RestoreOutcome; 2] {
        let mut outcomes = Vec::new();
        for side in [VELERO, BOWLINE] {
            self.change(side).await;
            outcomes.push(self.restore(side, name, spec.clone()).await);
        }
        outcomes.try_into().ok().unwrap()
    }

    fn object(&self, row: &Row) -> &Value {
        let found = self.objects.iter().find(|object| id_of(object) == row.id());
        found.unwrap_or_else(|| panic!("there is no {}", row.id()))
    }

    async fn change(&self, side: RestoringServer) {
        for row in changes::changed() {
            let (api, name) =
                api_of(&self.client, &side.renamed_for_target(self.object(&row))).await;
            let patch = Patch::Merge(&row.change);
            api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        for row in changes::deleted().iter().chain(&changes::replaced()) {
            self.delete(&side.renamed_for_target(self.object(row))).await;
        }
        for row in changes::replaced() {
            let mut object = side.renamed_for_target(self.object(&row));
            let fields = object.as_object_mut().unwrap();
            fields.extend(row.change.as_object().unwrap().clone());
            apply(&self.client, object).await.unwrap();
        }
    }

    async fn delete(&self, object: &Value) {
        let (api, name) = api_of(&self.client, object).await;
        if api.get_opt(&name).await.unwrap().is_none() {
            return;
        }
        api.delete(&name, &DeleteParams::background()).await.unwrap();
        let what = format!("{name} is gone");
        eventually(&what, async || api.get_opt(&name).await.unwrap().is_none().then_some(())).await;
    }

    /// Deletes what both sides restore to the same place.
    async fn delete_common(&self) {
        for object in &self.objects {
            let is_common = !object["metadata"]["namespace"].is_string();
            let is_kept =
                matches!(object["kind"].as_str(), Some("CustomResourceDefinition" | "Namespace"));
            if is_common && !is_kept {
                self.delete(object).await;
            }
        }
    }

    async fn restore(&self, side: RestoringServer, name: &str, spec: Value) -> RestoreOutcome {
        let name = format!("{}-{name}", side.prefix);
        let mapping = NAMESPACES.map(|from| (from.to_owned(), format!("{}-{from}", side.prefix)));
        let mut spec = spec;
        spec["backupName"] = json!(BACKUP);
        spec["namespaceMapping"] = json!(BTreeMap::from(mapping));
        spec["excludedResources"] = json!(VOLATILE_KINDS);
        let status = harness::restore(&self.client, side.namespace, &name, spec).await;
        let file = |of: &str| self.bucket.join(format!("restores/{name}/restore-{name}-{of}.gz"));
        let results: Results = read_compressed(&file("results"));
        let list: ResourceList = read_compressed(&file("resource-list.json"));
        RestoreOutcome {
            side,
            phase: status.phase,
            results,
            actions: actions(side, &list),
            objects: self.read(side).await,
        }
    }

    /// The restored objects of a side, without fields that every restore changes.
    async fn read(&self, side: RestoringServer) -> BTreeMap<String, String> {
        let mut read = BTreeMap::new();
        for object in &self.objects {
            let (api, name) = api_of(&self.client, &side.renamed_for_target(object)).await;
            let found = api.get_opt(&name).await.unwrap();
            let found = found.map(|found| reduced(serde_json::to_value(found).unwrap()));
            let text = serde_json::to_string(&found).unwrap();
            read.insert(id_of(object), text.replace(&format!("\"{}-", side.prefix), "\""));
        }
        read
    }
}

/// An object without the names of its backup and restore: an older object has none, and an object that was restored
/// again has others. Field owners are removed as well, because each writer of a field owns it from then on, even if the
/// field was changed back.
fn by_any_restore(object: &str) -> Value {
    let mut object: Value = serde_json::from_str(object).unwrap();
    harness::remove_restore_labels(&mut object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// The same came of both, in the cluster and in numbers of errors.
fn assert_same_outcome(velero: &RestoreOutcome, bowline: &RestoreOutcome) {
    let differ = velero.objects.iter().filter(|(id, object)| bowline.objects[*id] != **object);
    let differ = differ.map(|(id, object)| format!("{id}: {object} and {}", bowline.objects[id]));
    assert_eq!(differ.collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(velero.phase, bowline.phase, "{:?} {:?}", velero.results, bowline.results);
    let errors = |outcome: &RestoreOutcome| -> BTreeMap<String, usize> {
        let errors = &outcome.results.errors;
        assert_eq!(errors.velero, Vec::<String>::new());
        let of_namespaces = errors.namespaces.iter();
        let counts = of_namespaces.map(|(name, list)| (outcome.side.original(name), list.len()));
        counts.chain([(String::new(), errors.cluster.len())]).collect()
    };
    let (their_errors, our_errors) = (errors(velero), errors(bowline));
    assert_eq!(their_errors, our_errors, "{:?} {:?}", velero.results, bowline.results);
}

/// Outcome of each item, without those that every namespace has.
fn actions(side: RestoringServer, list: &ResourceList) -> BTreeMap<String, String> {
    let mut actions = BTreeMap::new();
    for (kind, items) in &list.0 {
        let kind = kind.rsplit('/').next().unwrap();
        for item in items {
            let (item, action) = item.trim_end_matches(')').rsplit_once('(').unwrap();
            let item = side.original(item);
            let (namespace, name) = item.split_once('/').unwrap_or(("", &item));
            if !matches!((kind, name), ("ConfigMap", "kube-root-ca.crt") | (_, "default")) {
                actions.insert(id(kind, namespace, name), action.to_owned());
            }
        }
    }
    actions
}

/// Objects that warnings of both servers or the API server name.
fn warned_objects(outcome: &RestoreOutcome) -> BTreeSet<String> {
    let messages = &outcome.results.warnings;
    let of_namespaces = messages.namespaces.iter().flat_map(|(namespace, list)| {
        let namespace = outcome.side.original(namespace);
        list.iter().map(move |text| (namespace.clone(), text))
    });
    let of_cluster = messages.cluster.iter().map(|text| (String::new(), text));
    let about = of_namespaces.chain(of_cluster).map(|(namespace, text)| {
        let end = ["\" already exists", "\" is invalid"].iter().find_map(|end| text.find(end));
        let before = &text[..end.unwrap_or_else(|| panic!("what is this about: {text}"))];
        let (before, name) = before.rsplit_once(" \"").unwrap();
        let kind = before.rsplit(' ').next().unwrap().split('.').next().unwrap();
        id(kind, &namespace, name)
    });
    about.collect()
}

/// The same was done with all that had been changed or deleted, and nothing with the rest.
fn assert_same_actions(velero: &RestoreOutcome, bowline: &RestoreOutcome) {
    let touched = changes::changed().into_iter().chain(changes::replaced());
    let touched: BTreeSet<_> = touched.chain(changes::deleted()).map(|row| row.id()).collect();
    for (id, action) in &bowline.actions {
        if id.starts_with("Namespace ") {
            // Velero lists only items that it has created.
            assert_eq!((action.as_str(), velero.actions.get(id)), ("skipped", None), "{id}");
        } else if touched.contains(id) {
            assert_eq!(action, &velero.actions[id], "{id}");
        } else {
            // To Velero an object is another one if its managed fields are.
            assert_eq!(action, "skipped", "{id}");
        }
    }
    let missing = velero.actions.keys().filter(|id| !bowline.actions.contains_key(*id));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Objects that differ from those in the backup and are no part of their namespaces' own.
fn changed() -> impl Iterator<Item = Row> {
    let rows = changes::changed().into_iter().chain(changes::replaced());
    rows.filter(|row| !matches!(row.kind, "Namespace" | "ServiceAccount"))
}
