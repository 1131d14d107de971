//! Velero's restores and ours: of one archive, which Velero made, and into the same state.
//!
//! Both servers run beside each other, each in a namespace of its own. What Velero restores goes to
//! namespaces with a `v` before their names, what we restore to those with a `b`.

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
use super::stage::{self, Bowline, api_of, back_up, eventually, read_compressed, reduced};
use crate::rich;

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
const RESTLESS: [&str; 6] = [
    "pods",
    "replicasets.apps",
    "controllerrevisions.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "events",
];

/// Who restores.
#[derive(Clone, Copy)]
struct Side {
    prefix: &'static str,
    /// Where its server works.
    namespace: &'static str,
}

const THEIRS: Side = Side { prefix: "v", namespace: velero::NAMESPACE };
const OURS: Side = Side { prefix: "b", namespace: stage::NAMESPACE };

impl Side {
    /// An object as it is called where this side restores it to.
    fn moved(self, object: &Value) -> Value {
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

/// What came of a restore.
struct Outcome {
    side: Side,
    phase: Option<RestorePhase>,
    results: Results,
    /// What was done with each item.
    actions: BTreeMap<String, String>,
    /// The objects afterwards.
    objects: BTreeMap<String, String>,
}

/// A cluster with both servers, and the archive.
struct Scene {
    client: Client,
    bucket: PathBuf,
    /// What is compared.
    objects: Vec<Value>,
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_and_bowline_restore_the_same_with_modifiers_and_over_what_has_changed() {
    crate::bed::listen();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    stage::install(&client).await;
    let mut objects = rich::objects();
    objects.extend(changes::more());
    objects.retain(is_compared);
    for object in &objects {
        apply(&client, object.clone()).await.unwrap();
    }
    stage::locate(&client, &s3, stage::NAMESPACE).await;
    let velero = Velero::start(&plane, &s3, velero::Options::default()).await.unwrap();
    let server = Bowline::start_with(&bed, &plane, |options| {
        options.namespace = stage::NAMESPACE.to_owned();
    });
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let spec = BackupSpec {
        included_namespaces: owned(&NAMESPACES),
        included_cluster_scoped_resources: owned(&CLUSTER_SCOPED),
        ..BackupSpec::default()
    };
    let status = back_up(&client, velero::NAMESPACE, BACKUP, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    stage::until_there::<Backup>(&client, stage::NAMESPACE, BACKUP).await;

    let scene = Scene { client, bucket: velero.bucket().to_owned(), objects };
    let plain = scene.plain().await;
    scene.over_changes_by_none(&plain).await;
    scene.over_changes_by_update(&plain).await;
    scene.with_modifiers(&plain).await;
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

impl Scene {
    /// Where nothing is yet. What there is afterwards is the state that all else begins with.
    async fn plain(&self) -> BTreeMap<String, String> {
        let theirs = self.restore(THEIRS, "plain", json!({})).await;
        let ours = self.restore(OURS, "plain", json!({})).await;
        is_same(&theirs, &ours);
        for outcome in [&theirs, &ours] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        assert_eq!(warned_of(&ours), BTreeSet::new());
        let missing = ours.objects.iter().filter(|(_, found)| found.as_str() == "null");
        assert_eq!(missing.count(), 0, "{:?}", ours.objects);
        ours.objects
    }

    async fn over_changes_by_none(&self, plain: &BTreeMap<String, String>) {
        let spec = json!({"existingResourcePolicy": "none"});
        let [theirs, ours] = self.restore_over_changes("none", &spec).await;
        is_same(&theirs, &ours);
        for outcome in [&theirs, &ours] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        acted_alike(&theirs, &ours);
        let lost: Vec<_> = changes::deleted().iter().map(Row::id).collect();
        let created = ours.actions.iter().filter(|(_, action)| action.as_str() == "created");
        let created: BTreeSet<_> = created.map(|(id, _)| id.clone()).collect();
        assert_eq!(created, lost.iter().cloned().collect());
        for id in &lost {
            assert_eq!(by_any_restore(&ours.objects[id]), by_any_restore(&plain[id]), "{id}");
        }
        // Both say which objects differ. Velero says it of others as well, whose managed fields do.
        let differ: BTreeSet<_> = changed().map(|row| row.id()).collect();
        assert_eq!(warned_of(&ours), differ);
        let also = warned_of(&theirs);
        assert!(also.is_superset(&differ), "{:?}", differ.difference(&also));
    }

    async fn over_changes_by_update(&self, plain: &BTreeMap<String, String>) {
        let spec = json!({"existingResourcePolicy": "update"});
        let [theirs, ours] = self.restore_over_changes("update", &spec).await;
        is_same(&theirs, &ours);
        for outcome in [&theirs, &ours] {
            assert_eq!(outcome.phase, Some(RestorePhase::Completed), "{:?}", outcome.results);
        }
        let refused: BTreeSet<_> = changes::replaced().iter().map(Row::id).collect();
        assert_eq!(warned_of(&ours), refused, "{:?}", ours.results);
        assert_eq!(warned_of(&theirs), refused, "{:?}", theirs.results);
        acted_alike(&theirs, &ours);
        // All is as it was, but for what cannot be changed and what restores do not change.
        let is_other = |id: &str, found: &str| {
            plain.get(id).map(|text| by_any_restore(text)) != Some(by_any_restore(found))
        };
        let differ = ours.objects.iter().filter(|(id, found)| is_other(id, found));
        let differ: BTreeSet<_> = differ.map(|(id, _)| id.clone()).collect();
        let kept = ["Namespace /shop", "ServiceAccount shop/web"].map(str::to_owned);
        assert_eq!(differ, refused.into_iter().chain(kept).collect());
    }

    async fn with_modifiers(&self, plain: &BTreeMap<String, String>) {
        for side in [THEIRS, OURS] {
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
        let theirs = Side { prefix: "vm", ..THEIRS };
        let ours = Side { prefix: "bm", ..OURS };
        self.delete_common().await;
        let theirs = self.restore(theirs, "modified", spec.clone()).await;
        self.delete_common().await;
        let ours = self.restore(ours, "modified", spec).await;
        is_same(&theirs, &ours);
        assert_eq!(ours.phase, Some(RestorePhase::PartiallyFailed), "{:?}", ours.results);
        for id in self.objects.iter().map(id_of) {
            // Definitions are there, and look different to Velero.
            if !id.starts_with("CustomResourceDefinition ") {
                assert_eq!(theirs.actions.get(&id), ours.actions.get(&id), "{id}");
            }
        }
        let is_other = |id: &str, found: &str| {
            plain.get(id).map(|text| by_any_restore(text)) != Some(by_any_restore(found))
        };
        let differ = ours.objects.iter().filter(|(id, found)| is_other(id, found));
        let differ: BTreeSet<_> = differ.map(|(id, _)| id.as_str()).collect();
        assert_eq!(differ, changes::MODIFIED.into_iter().collect());
        let told = format!("{:?}", ours.results.errors);
        for words in changes::MODIFIERS_FAIL {
            assert!(told.contains(words), "no {words:?} in {told}");
        }
    }

    /// Changes, deletes and restores, for one side after the other: some objects are of both.
    async fn restore_over_changes(&self, name: &str, spec: &Value) -> [Outcome; 2] {
        let mut outcomes = Vec::new();
        for side in [THEIRS, OURS] {
            self.change(side).await;
            outcomes.push(self.restore(side, name, spec.clone()).await);
        }
        outcomes.try_into().ok().unwrap()
    }

    fn object(&self, row: &Row) -> &Value {
        let found = self.objects.iter().find(|object| id_of(object) == row.id());
        found.unwrap_or_else(|| panic!("there is no {}", row.id()))
    }

    async fn change(&self, side: Side) {
        for row in changes::changed() {
            let (api, name) = api_of(&self.client, &side.moved(self.object(&row))).await;
            let patch = Patch::Merge(&row.change);
            api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        for row in changes::deleted().iter().chain(&changes::replaced()) {
            self.delete(&side.moved(self.object(row))).await;
        }
        for row in changes::replaced() {
            let mut object = side.moved(self.object(&row));
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

    async fn restore(&self, side: Side, name: &str, spec: Value) -> Outcome {
        let name = format!("{}-{name}", side.prefix);
        let mapping = NAMESPACES.map(|from| (from.to_owned(), format!("{}-{from}", side.prefix)));
        let mut spec = spec;
        spec["backupName"] = json!(BACKUP);
        spec["namespaceMapping"] = json!(BTreeMap::from(mapping));
        spec["excludedResources"] = json!(RESTLESS);
        let status = stage::restore(&self.client, side.namespace, &name, spec).await;
        let file = |of: &str| self.bucket.join(format!("restores/{name}/restore-{name}-{of}.gz"));
        let results: Results = read_compressed(&file("results"));
        let list: ResourceList = read_compressed(&file("resource-list.json"));
        Outcome {
            side,
            phase: status.phase,
            results,
            actions: actions(side, &list),
            objects: self.read(side).await,
        }
    }

    /// The objects where a side has restored them to, without what any restore changes.
    async fn read(&self, side: Side) -> BTreeMap<String, String> {
        let mut read = BTreeMap::new();
        for object in &self.objects {
            let (api, name) = api_of(&self.client, &side.moved(object)).await;
            let found = api.get_opt(&name).await.unwrap();
            let found = found.map(|found| reduced(serde_json::to_value(found).unwrap()));
            let text = serde_json::to_string(&found).unwrap();
            read.insert(id_of(object), text.replace(&format!("\"{}-", side.prefix), "\""));
        }
        read
    }
}

/// An object without the names of the backup and of the restore that it came with: one that was there before has
/// none, and one that was restored again has others. Nor does it say who owns its fields: whoever changed one owns
/// it from then on, also when it was changed back.
fn by_any_restore(object: &str) -> Value {
    let mut object: Value = serde_json::from_str(object).unwrap();
    stage::remove_restore_labels(&mut object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// The same came of both, in the cluster and in numbers of errors.
fn is_same(theirs: &Outcome, ours: &Outcome) {
    let differ = theirs.objects.iter().filter(|(id, object)| ours.objects[*id] != **object);
    let differ = differ.map(|(id, object)| format!("{id}: {object} and {}", ours.objects[id]));
    assert_eq!(differ.collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(theirs.phase, ours.phase, "{:?} {:?}", theirs.results, ours.results);
    let errors = |outcome: &Outcome| -> BTreeMap<String, usize> {
        let errors = &outcome.results.errors;
        assert_eq!(errors.velero, Vec::<String>::new());
        let of_namespaces = errors.namespaces.iter();
        let counts = of_namespaces.map(|(name, list)| (outcome.side.original(name), list.len()));
        counts.chain([(String::new(), errors.cluster.len())]).collect()
    };
    let (their_errors, our_errors) = (errors(theirs), errors(ours));
    assert_eq!(their_errors, our_errors, "{:?} {:?}", theirs.results, ours.results);
}

/// What was done with each item, without those that the cluster itself makes in any namespace.
fn actions(side: Side, list: &ResourceList) -> BTreeMap<String, String> {
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

/// Which objects warnings are about, by what both servers or the API server say of them.
fn warned_of(outcome: &Outcome) -> BTreeSet<String> {
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
fn acted_alike(theirs: &Outcome, ours: &Outcome) {
    let touched = changes::changed().into_iter().chain(changes::replaced());
    let touched: BTreeSet<_> = touched.chain(changes::deleted()).map(|row| row.id()).collect();
    for (id, action) in &ours.actions {
        if id.starts_with("Namespace ") {
            // Velero lists only those that it has created.
            assert_eq!((action.as_str(), theirs.actions.get(id)), ("skipped", None), "{id}");
        } else if touched.contains(id) {
            assert_eq!(action, &theirs.actions[id], "{id}");
        } else {
            // To Velero an object is another one if its managed fields are.
            assert_eq!(action, "skipped", "{id}");
        }
    }
    let missing = theirs.actions.keys().filter(|id| !ours.actions.contains_key(*id));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Objects that differ from those in the backup and are no part of their namespaces' own.
fn changed() -> impl Iterator<Item = Row> {
    let rows = changes::changed().into_iter().chain(changes::replaced());
    rows.filter(|row| !matches!(row.kind, "Namespace" | "ServiceAccount"))
}
