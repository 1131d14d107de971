//! Whole restores, against an in-memory cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Restore, annotation};
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput,
    Result as Answer,
};
use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::order::Priorities;
use super::request::{self, ALLOW_DAMAGED_ARCHIVE};
use super::volume::NoReporter;
use super::{Fatal, Options, Progress, RestoreOutcome, Run, finalize, run};
use crate::action::NamedAction;
use crate::cluster::{
    self, Cluster, Discovery, Error, Exec, ExecOutcome, Fake, Query, Subresource, WatchEvent,
};
use crate::item::Object;
use crate::journal::{InMemory, Recovered};
use crate::resource::{GroupResource, Resource};
use crate::snapshotter::NoSnapshotters;
use crate::testing::ValidRestore;

/// An archive entry: path and content.
type Entry = (String, Vec<u8>);

/// An object at its path in the archive.
fn entry(kind: &str, object: &Value) -> Entry {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let folder = match text("namespace") {
        "" => "cluster".to_owned(),
        namespace => format!("namespaces/{namespace}"),
    };
    let path = format!("resources/{kind}/{folder}/{}.json", text("name"));
    (path, serde_json::to_vec(object).unwrap())
}

fn packed(entries: &[Entry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = tar::Header::new_ustar();
        // Written directly, since the tar writer would validate the path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, &content[..]).unwrap();
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&tar.into_inner().unwrap()).unwrap();
    gzip.finish().unwrap()
}

struct RestoreFixture {
    cluster: Arc<Fake>,
    archive: Vec<u8>,
    spec: Value,
    annotations: BTreeMap<String, String>,
    actions: Vec<NamedAction<dyn RestoreItemAction>>,
    modifiers: Option<String>,
    priorities: Priorities,
    items: usize,
    cancel: CancellationToken,
    progress: Arc<Progress>,
    /// Item count in the status of the backup.
    counted: i64,
}

impl RestoreFixture {
    fn new(entries: &[Entry]) -> Self {
        Self::of(Fake::usual(), entries)
    }

    fn of(cluster: Fake, entries: &[Entry]) -> Self {
        Self {
            cluster: Arc::new(cluster),
            archive: packed(entries),
            spec: json!({}),
            annotations: BTreeMap::new(),
            actions: Vec::new(),
            modifiers: None,
            priorities: Priorities::default(),
            items: 8,
            cancel: CancellationToken::new(),
            progress: Arc::default(),
            counted: 0,
        }
    }

    fn request(&self) -> request::Request {
        let mut fixture = ValidRestore::new(self.spec.clone());
        fixture.restore.metadata.annotations = Some(self.annotations.clone());
        if let Some(modifiers) = &self.modifiers {
            let name = json!({"kind": "ConfigMap", "name": "rules"});
            fixture.restore.spec.resource_modifier = Some(serde_json::from_value(name).unwrap());
            fixture.modifiers.clone_from(modifiers);
        }
        let status = fixture.backup.status.get_or_insert_default();
        status.progress.get_or_insert_default().items_backed_up = self.counted;
        fixture.request()
    }

    async fn run(&self) -> RestoreOutcome {
        self.run_in(Arc::clone(&self.cluster) as _).await
    }

    async fn run_in(&self, cluster: Arc<dyn Cluster>) -> RestoreOutcome {
        let store =
            BackupStore::new(Arc::new(Memory::with_bucket("b")), "b", &Prefix::new("").unwrap());
        let archive = Box::pin(stream::iter([Ok(self.archive.clone().into())]));
        store.put_contents(&BackupName::new("b1").unwrap(), archive).await.unwrap();
        let options = Options {
            requests: 4,
            items: self.items,
            scratch: std::env::temp_dir(),
            namespace: "velero".into(),
            priorities: self.priorities.clone(),
            resource_timeout: Duration::from_mins(1),
            terminating_timeout: Duration::from_mins(10),
        };
        let restore_run = Run {
            request: self.request(),
            cluster,
            store,
            actions: self.actions.clone(),
            snapshotters: Arc::new(NoSnapshotters),
            volume_reporter: Arc::new(NoReporter),
            options,
            progress: Arc::clone(&self.progress),
            journal: Arc::new(InMemory::default()),
            recovered: Recovered::default(),
            stop: CancellationToken::new(),
            cancel: self.cancel.clone(),
        };
        Box::pin(run(restore_run, Timestamp::now())).await
    }

    /// Runs a restore that must end without errors and warnings.
    async fn run_well(&self) -> RestoreOutcome {
        let restored = self.run().await;
        let results = restored.report.results();
        assert!(restored.fatal.is_none(), "{:?}", restored.fatal);
        assert_eq!((results.errors.count(), results.warnings.count()), (0, 0), "{results:?}");
        restored
    }

    fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.cluster.object(kind, namespace, name)
    }
}

/// Messages of a restore, errors first.
fn messages(outcome: &RestoreOutcome) -> (Vec<String>, Vec<String>) {
    let results = outcome.report.results();
    let all = |part: bowline_store::file::Messages| {
        let namespaces = part.namespaces.into_values().flatten();
        part.velero.into_iter().chain(part.cluster).chain(namespaces).collect()
    };
    (all(results.errors), all(results.warnings))
}

/// An action with a test-defined function.
struct FnAction<F> {
    kinds: &'static [&'static str],
    execute: F,
}

#[async_trait]
impl<F> RestoreItemAction for FnAction<F>
where
    F: Fn(&mut Value, &mut RestoreOutput) + Send + Sync,
{
    async fn applies_to(&self) -> Answer<ResourceSelector> {
        Ok(ResourceSelector::resources(self.kinds.iter().copied()))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Answer<RestoreOutput> {
        let mut object: Value = item.parse().unwrap();
        let mut output = RestoreOutput::unchanged(item);
        (self.execute)(&mut object, &mut output);
        output.item = Item::from_object(&object).unwrap();
        Ok(output)
    }
}

fn action(
    kinds: &'static [&'static str],
    execute: impl Fn(&mut Value, &mut RestoreOutput) + Send + Sync + 'static,
) -> NamedAction<dyn RestoreItemAction> {
    NamedAction::new("example.io/act".parse().unwrap(), Arc::new(FnAction { kinds, execute }) as _)
}

fn id(group: &str, resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn map(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name}, "data": {"key": "value"},
    })
}

fn maps(namespace: &str, names: &[&str]) -> Vec<Entry> {
    names.iter().map(|name| entry("configmaps", &map(namespace, name))).collect()
}

fn refused(code: u16, reason: &str) -> Error {
    Error::Refused { code, reason: reason.into(), message: "no".into() }
}

/// A custom resource, which may have any fields.
fn widgets(versions: &[&str]) -> impl Iterator<Item = Resource> {
    versions.iter().map(|version| Resource {
        id: GroupResource::new("example.io", "widgets"),
        version: (*version).to_owned(),
        kind: "Widget".into(),
        singular: "widget".into(),
        short_names: vec!["wd".into()],
        is_namespaced: true,
        verbs: ["create", "get", "list", "patch"].map(str::to_owned).to_vec(),
    })
}

fn with_widgets(versions: &[&str]) -> Fake {
    let usual = crate::cluster::fake::usual_resources();
    Fake::new(usual.into_iter().chain(widgets(versions)))
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!("core"), |inner, _| json!({ "a": inner }))
}

mod additional {
    use super::*;

    /// An action by which the ConfigMap `chain-N` adds `chain-N+1`; the last adds the first.
    fn chained(count: usize) -> NamedAction<dyn RestoreItemAction> {
        action(&["configmaps"], move |object, output| {
            let name = object["metadata"]["name"].as_str().unwrap();
            let number: usize = name.strip_prefix("chain-").unwrap().parse().unwrap();
            let next = format!("chain-{}", (number + 1) % count);
            output.additional_items = vec![id("", "configmaps", "shop", &next)];
        })
    }

    fn chain(count: usize) -> Vec<Entry> {
        let map = |number| entry("configmaps", &map("shop", &format!("chain-{number}")));
        (0..count).map(map).collect()
    }

    #[tokio::test]
    async fn a_chain_of_thousands_of_additional_items_is_restored() {
        const COUNT: usize = 3000;
        let mut fixture = RestoreFixture::new(&chain(COUNT));
        fixture.actions = vec![chained(COUNT)];
        // One at a time, so that the first item brings all others.
        fixture.items = 1;
        let restored = fixture.run_well().await;
        assert_eq!((restored.items, restored.total), (COUNT, COUNT));
    }

    #[tokio::test]
    async fn items_that_add_one_another_in_a_circle_are_restored() {
        for items in [1, 8] {
            let mut fixture = RestoreFixture::new(&chain(5));
            fixture.actions = vec![chained(5)];
            fixture.items = items;
            let restored = tokio::time::timeout(Duration::from_mins(1), fixture.run_well()).await;
            assert_eq!(restored.expect("it ends").items, 5);
        }
    }

    #[tokio::test]
    async fn unavailable_additional_item_is_reported_with_action_and_parent() {
        let mut fixture = RestoreFixture::new(&maps("shop", &["a"]));
        fixture.actions = vec![action(&["configmaps"], |_, output| {
            output.additional_items =
                vec![id("", "secrets", "shop", ""), id("", "secrets", "shop", "gone")];
        })];
        let restored = fixture.run().await;
        let (errors, warnings) = messages(&restored);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(
            warnings,
            [
                "configmaps/a: the action example.io/act wants an item of secrets without a name",
                "configmaps/a: the action example.io/act wants secrets/shop/gone, which is not in the \
                 backup",
            ]
        );
    }

    fn secret(namespace: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": namespace, "name": "token"},
            "type": "bootstrap.kubernetes.io/token",
        })
    }

    /// A restore of one namespace, whose ConfigMap itself carries the annotation that its additional items must be
    /// included, and a Secret that is added to it.
    fn marked(namespace: &str) -> RestoreFixture {
        let mut map = map("shop", "a");
        map["metadata"]["annotations"] = json!({annotation::MUST_INCLUDE_ON_RESTORE: "true"});
        let mut fixture =
            RestoreFixture::new(&[entry("configmaps", &map), entry("secrets", &secret(namespace))]);
        fixture.spec = json!({"includedNamespaces": ["shop"]});
        fixture
    }

    #[tokio::test]
    async fn must_include_annotation_in_the_archive_is_ignored() {
        let add = |_: &mut Value, output: &mut RestoreOutput| {
            output.additional_items = vec![id("", "secrets", "other", "token")];
        };
        let mut fixture = marked("other");
        fixture.actions = vec![action(&["configmaps"], add)];
        fixture.run_well().await;
        assert_eq!(fixture.object("secrets", "other", "token"), None);
        let restored = fixture.object("configmaps", "shop", "a").unwrap();
        assert_eq!(restored["metadata"]["annotations"], json!({}), "the mark is not restored");

        // An action may set the annotation.
        let mut fixture = marked("other");
        fixture.actions = vec![action(&["configmaps"], move |object, output| {
            assert!(
                object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE].is_null()
            );
            object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE] = "true".into();
            add(object, output);
        })];
        fixture.run_well().await;
        assert!(fixture.object("secrets", "other", "token").is_some());

        // But it does not apply to an action that runs later.
        let mut fixture = marked("other");
        let mark = |object: &mut Value, _: &mut RestoreOutput| {
            object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE] = "true".into();
        };
        fixture.actions = vec![action(&["configmaps"], mark), action(&["configmaps"], add)];
        fixture.run_well().await;
        assert_eq!(fixture.object("secrets", "other", "token"), None);
    }

    #[tokio::test]
    async fn actions_cannot_add_items_to_protected_namespaces() {
        for namespace in ["kube-system", "velero"] {
            let adding = |included: &[&str]| {
                let mut fixture = marked(namespace);
                fixture.spec = json!({"includedNamespaces": included});
                fixture.actions = vec![action(&["configmaps"], move |object, output| {
                    object["metadata"]["annotations"] =
                        json!({annotation::MUST_INCLUDE_ON_RESTORE: "true"});
                    output.additional_items = vec![id("", "secrets", namespace, "token")];
                })];
                fixture
            };
            let fixture = adding(&["shop"]);
            let (errors, warnings) = messages(&fixture.run().await);
            assert_eq!(fixture.object("secrets", namespace, "token"), None);
            assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
            assert!(warnings[0].contains("was not asked for"), "{warnings:?}");
            // A namespace that the user names explicitly is allowed.
            let fixture = adding(&["shop", namespace]);
            fixture.run_well().await;
            assert!(fixture.object("secrets", namespace, "token").is_some());
        }
    }
}

mod archives {
    use super::*;

    fn whole() -> Vec<Entry> {
        maps("shop", &["a", "b", "c", "d", "e", "f", "g", "h"])
    }

    /// Damaged archives, and the expected messages.
    fn damaged() -> Vec<(&'static str, Vec<u8>)> {
        let archive = packed(&whole());
        let mut wrong_sum = archive.clone();
        let at = wrong_sum.len() - 8;
        wrong_sum[at] ^= 1;
        let cut = archive[..archive.len() - 3].to_vec();
        let and = |path: &str, content: &[u8]| {
            let mut entries = whole();
            entries.push((path.to_owned(), content.to_vec()));
            packed(&entries)
        };
        let path = "resources/configmaps/namespaces/shop/x.json";
        let other = serde_json::to_vec(&map("shop", "y")).unwrap();
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        let deep = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x","namespace":"shop"}},"data":{deep}}}"#
        );
        vec![
            ("breaks off at its end", wrong_sum),
            ("breaks off at its end", cut),
            ("not the JSON of an object", and(path, b"{\"kind\":")),
            ("not the JSON of an object", and(path, b"")),
            ("which is another one", and(path, &other)),
            ("which no API server accepts", and(path, deep.as_bytes())),
            ("no plain path", and("resources/configmaps/namespaces/../x.json", b"{}")),
        ]
    }

    #[tokio::test]
    async fn damaged_archive_is_refused_unless_allowed() {
        for (words, archive) in damaged() {
            let mut fixture = RestoreFixture { archive, counted: 9, ..RestoreFixture::new(&[]) };
            let restored = fixture.run().await;
            let fatal = restored.fatal.as_ref().expect(words);
            assert!(matches!(fatal, Fatal::Damaged { .. }), "{fatal:?}");
            let reason = fatal.error_chain();
            assert!(
                reason.contains(words) && reason.contains("--allow-damaged-archive"),
                "{reason}"
            );
            assert!(reason.len() < 1000, "{reason}");
            assert_eq!(fixture.cluster.creations(), [], "{words}");
            assert_eq!((restored.items, restored.total), (0, 0));

            fixture.annotations = [(ALLOW_DAMAGED_ARCHIVE.to_owned(), "true".to_owned())].into();
            let restored = fixture.run().await;
            assert!(restored.fatal.is_none(), "{words}: {:?}", restored.fatal);
            assert!(restored.report.error_count() > 0, "{words}");
            assert_eq!(fixture.cluster.creations().len(), 9, "{words}: with their namespace");
            assert!(restored.total > restored.items, "{words}: it says that all is there");
            let status = finalize::status(&Restore::default(), &restored).progress.unwrap();
            assert!(status.total_items > status.items_restored, "{words}: {status:?}");
        }
    }

    #[tokio::test]
    async fn unknown_archive_entries_are_no_damage() {
        let mut entries = whole();
        entries.push(("metadata/more".to_owned(), b"x".to_vec()));
        let fixture = RestoreFixture::new(&entries);
        let restored = fixture.run().await;
        assert!(restored.fatal.is_none(), "{:?}", restored.fatal);
        assert_eq!(fixture.cluster.creations().len(), 9);
        assert_eq!(restored.report.error_count(), 1, "it is told");
    }

    #[tokio::test]
    async fn an_object_is_restored_however_deeply_it_is_nested() {
        for levels in [127, 128, 130, 400] {
            let widget = |name: &str, spec: Value| {
                json!({
                    "apiVersion": "example.io/v1", "kind": "Widget",
                    "metadata": {"namespace": "shop", "name": name}, "spec": spec,
                })
            };
            let entries = [
                entry("widgets.example.io", &widget("deep", nested(levels))),
                entry("widgets.example.io", &widget("flat", json!(1))),
            ];
            let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
            fixture.actions = vec![action(&["widgets.example.io"], |object, _| {
                object["metadata"]["labels"] = json!({"seen": "yes"});
            })];
            fixture.run_well().await;
            let restored = fixture.object("widgets.example.io", "shop", "deep").unwrap();
            assert_eq!(restored["spec"], nested(levels), "{levels}");
            assert_eq!(restored["metadata"]["labels"]["seen"], "yes");
            // Existing objects are compared, too.
            fixture.run_well().await;
        }
    }

    #[tokio::test]
    async fn canceled_restore_reports_the_total_items() {
        let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut fixture = RestoreFixture::new(&maps("shop", &names));
        fixture.items = 1;
        let cancel = fixture.cancel.clone();
        fixture.actions = vec![action(&["configmaps"], move |object, _| {
            if object["metadata"]["name"] == "m01" {
                cancel.cancel();
            }
        })];
        let restored = fixture.run().await;
        assert!(matches!(restored.fatal, Some(Fatal::Canceled)), "{:?}", restored.fatal);
        let status = finalize::status(&Restore::default(), &restored).progress.unwrap();
        assert_eq!(status.total_items, 12);
        assert!(status.items_restored < 12, "{status:?}");
    }
}

mod objects {
    use super::*;

    fn service(managed: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web", "managedFields": managed},
            "spec": {"type": "NodePort", "ports": [
                {"port": 80, "protocol": "TCP", "nodePort": 31234},
                {"port": 81, "protocol": "TCP", "nodePort": 31235},
            ]},
        })
    }

    fn owner(operation: &str) -> Value {
        json!([{
            "manager": "helm", "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:ports": {r#"k:{"port":80,"protocol":"TCP"}"#: {"f:nodePort": {}}}}},
        }])
    }

    #[tokio::test]
    async fn owned_node_ports_are_kept() {
        let fixture = RestoreFixture::new(&[entry("services", &service(&owner("Update")))]);
        fixture.run_well().await;
        let restored = fixture.object("services", "shop", "web").unwrap();
        assert_eq!(restored["spec"]["ports"][0]["nodePort"], 31234);
        assert_eq!(restored["spec"]["ports"][1]["nodePort"], Value::Null, "nobody chose it");
    }

    #[tokio::test]
    async fn plugin_actions_see_managed_fields() {
        let mut fixture = RestoreFixture::new(&[entry("services", &service(&owner("Update")))]);
        fixture.actions = vec![action(&["services"], |object, _| {
            let manager = object["metadata"]["managedFields"][0]["manager"].clone();
            object["metadata"]["labels"] = json!({ "manager": manager });
        })];
        fixture.run_well().await;
        let restored = fixture.object("services", "shop", "web").unwrap();
        assert_eq!(restored["metadata"]["labels"]["manager"], "helm");
    }

    #[tokio::test]
    async fn managed_fields_are_written_back_for_applied_objects() {
        for (operation, expected) in [("Apply", owner("Apply")), ("Update", Value::Null)] {
            let fixture = RestoreFixture::new(&[entry("services", &service(&owner(operation)))]);
            fixture.run_well().await;
            let restored = fixture.object("services", "shop", "web").unwrap();
            assert_eq!(restored["metadata"]["managedFields"], expected, "{operation}");
        }
        // Server-side apply of the status alone is no reason.
        let mut status = owner("Apply");
        status[0]["subresource"] = "status".into();
        let fixture = RestoreFixture::new(&[entry("services", &service(&status))]);
        fixture.run_well().await;
        let restored = fixture.object("services", "shop", "web").unwrap();
        assert_eq!(restored["metadata"]["managedFields"], Value::Null);
    }

    #[tokio::test]
    async fn existing_object_is_found_whatever_the_refusal() {
        for (code, reason) in
            [(403, "Forbidden"), (422, "Invalid"), (500, "InternalError"), (400, "BadRequest")]
        {
            // The first write creates the object.
            let mut fixture = RestoreFixture::of(
                Fake::usual()
                    .with(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}))
                    .with(map("shop", "a")),
                &maps("shop", &["a"]),
            );
            fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
            let restored = fixture.run_well().await;
            assert_eq!(restored.resources.0["v1/ConfigMap"], ["shop/a(skipped)"], "{code}");

            let mut other = map("shop", "a");
            other["data"]["key"] = "another".into();
            fixture.cluster.put(other);
            fixture.spec = json!({"existingResourcePolicy": "update"});
            fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
            fixture.run_well().await;
            let updated = fixture.object("configmaps", "shop", "a").unwrap();
            assert_eq!(updated["data"]["key"], "value", "{code}");

            // An object that does not exist is refused with the reason.
            let fixture = RestoreFixture::new(&maps("shop", &["b"]));
            fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
            let (errors, _) = messages(&fixture.run().await);
            assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
        }
    }

    #[tokio::test]
    async fn completed_pods_and_jobs_are_not_in_the_resource_list() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "done"},
            "spec": {"containers": [{"name": "main", "image": "x"}]}, "status": {"phase": "Succeeded"},
        });
        let done = entry("pods", &pod);
        pod["metadata"]["name"] = "runs".into();
        pod["status"]["phase"] = "Running".into();
        let fixture = RestoreFixture::new(&[done, entry("pods", &pod)]);
        let restored = fixture.run_well().await;
        assert_eq!(restored.resources.0["v1/Pod"], ["shop/runs(created)"]);
    }

    #[tokio::test]
    async fn status_is_restored_only_for_created_objects() {
        let widget = |status: Value| {
            json!({
                "apiVersion": "example.io/v1", "kind": "Widget",
                "metadata": {"namespace": "shop", "name": "w"}, "spec": {"a": 1}, "status": status,
            })
        };
        let entries = [entry("widgets.example.io", &widget(json!({"ready": true})))];
        let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
        fixture.spec = json!({"restoreStatus": {"includedResources": ["widgets.example.io"]}});
        fixture.run_well().await;
        let restored = fixture.object("widgets.example.io", "shop", "w").unwrap();
        assert_eq!(restored["status"], json!({"ready": true}));
        // An object that existed before keeps its own status, even if it is updated.
        let mut existing = widget(json!({"ready": false}));
        existing["spec"]["a"] = 2.into();
        fixture.cluster.put(existing);
        fixture.spec["existingResourcePolicy"] = "update".into();
        fixture.run_well().await;
        let restored = fixture.object("widgets.example.io", "shop", "w").unwrap();
        assert_eq!(restored["spec"], json!({"a": 1}));
        assert_eq!(restored["status"], json!({"ready": false}));
    }

    #[tokio::test(start_paused = true)]
    async fn only_created_crds_are_waited_for() {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.io"}, "spec": {"group": "example.io"},
        });
        let kind = "customresourcedefinitions.apiextensions.k8s.io";
        let entries = [entry(kind, &crd)];
        let fixture = RestoreFixture::of(Fake::usual().with(crd.clone()), &entries);
        let started_at = tokio::time::Instant::now();
        fixture.run_well().await;
        assert!(started_at.elapsed() < Duration::from_secs(1), "{:?}", started_at.elapsed());
        // The definition never becomes ready here.
        let (errors, _) = messages(&RestoreFixture::new(&entries).run().await);
        assert!(errors.len() == 1 && errors[0].contains("is not served after 60 s"), "{errors:?}");
    }

    fn convert(object: &mut Value) {
        object["apiVersion"] = "apps/v1".into();
        object["kind"] = "Deployment".into();
    }

    #[tokio::test]
    async fn an_action_or_a_modifier_may_convert_a_kind_that_the_cluster_does_not_serve() {
        let config = json!({
            "apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"replicas": 2},
        });
        let entries = [entry("deploymentconfigs.apps.openshift.io", &config)];
        let mut fixture = RestoreFixture::new(&entries);
        let kinds = &["deploymentconfigs.apps.openshift.io"];
        fixture.actions = vec![action(kinds, |object, _| convert(object))];
        fixture.run_well().await;
        let restored = fixture.object("deployments.apps", "shop", "web").unwrap();
        assert_eq!(restored["spec"]["replicas"], 2);

        let mut fixture = RestoreFixture::new(&entries);
        fixture.modifiers = Some(
            "version: v1\nresourceModifierRules:\n- conditions:\n    groupResource: \
             deploymentconfigs.apps.openshift.io\n  mergePatches:\n  - patchData: |\n      apiVersion: \
             apps/v1\n      kind: Deployment\n"
                .to_owned(),
        );
        fixture.run_well().await;
        assert!(fixture.object("deployments.apps", "shop", "web").is_some());

        // A kind that no action converts is reported as before, and creates no namespace.
        let fixture = RestoreFixture::new(&entries);
        let (errors, _) = messages(&fixture.run().await);
        let words = "the cluster does not serve deploymentconfigs.apps.openshift.io";
        assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");
        assert_eq!(fixture.cluster.creations(), []);
        let mut fixture = RestoreFixture::new(&entries);
        fixture.actions = vec![action(&["*"], |_, _| {})];
        let (errors, _) = messages(&fixture.run().await);
        assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");
    }

    #[tokio::test]
    async fn a_version_that_the_cluster_does_not_serve_may_be_converted() {
        let widget = json!({
            "apiVersion": "example.io/v1beta1", "kind": "Widget",
            "metadata": {"namespace": "shop", "name": "w"}, "spec": {"a": 1},
        });
        let plain = entry("widgets.example.io", &widget);
        let preferred = plain.0.replace("io/", "io/v1beta1-preferredversion/");
        let entries = [plain.clone(), (preferred, plain.1)];
        let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
        fixture.actions = vec![action(&["widgets.example.io"], |object, _| {
            object["apiVersion"] = "example.io/v1".into();
        })];
        fixture.run_well().await;
        assert!(fixture.object("widgets.example.io", "shop", "w").is_some());
    }

    #[tokio::test]
    async fn request_objects_are_not_restored() {
        let kinds = [
            ("DeleteBackupRequest", "deletebackuprequests"),
            ("DownloadRequest", "downloadrequests"),
            ("ServerStatusRequest", "serverstatusrequests"),
            ("PodVolumeBackup", "podvolumebackups"),
            ("PodVolumeRestore", "podvolumerestores"),
            ("DataUpload", "datauploads"),
            ("DataDownload", "datadownloads"),
        ];
        let resources = kinds.map(|(kind, plural)| Resource {
            id: GroupResource::new("velero.io", plural),
            kind: kind.into(),
            ..widgets(&["v1"]).next().unwrap()
        });
        let usual = crate::cluster::fake::usual_resources();
        let entries = kinds.map(|(kind, plural)| {
            let metadata = json!({"namespace": "velero", "name": "x"});
            let object = json!({"apiVersion": "velero.io/v1", "kind": kind, "metadata": metadata});
            entry(&format!("{plural}.velero.io"), &object)
        });
        let entries: Vec<Entry> = entries.into_iter().chain(maps("velero", &["a"])).collect();
        let fixture = RestoreFixture::of(Fake::new(usual.into_iter().chain(resources)), &entries);
        fixture.run_well().await;
        let created: BTreeSet<String> =
            fixture.cluster.creations().into_iter().map(|id| id.resource).collect();
        assert_eq!(created, BTreeSet::from(["configmaps".to_owned(), "namespaces".to_owned()]));
    }

    /// A cluster that serves widgets once their definition has been created.
    struct GrowingCluster(Arc<Fake>);

    #[async_trait]
    impl Cluster for GrowingCluster {
        async fn discover(&self) -> cluster::Result<Discovery> {
            let mut discovery = self.0.discover().await?;
            let is_defined = self.0.creations().iter().any(|id| id.name == "widgets.example.io");
            discovery.resources.retain(|one| is_defined || one.id.group != "example.io");
            Ok(discovery)
        }

        fn list(
            &self,
            of: &Arc<Resource>,
            query: Query,
        ) -> BoxStream<'static, cluster::Result<Object>> {
            self.0.list(of, query)
        }

        async fn get(
            &self,
            of: &Arc<Resource>,
            namespace: &str,
            name: &str,
        ) -> cluster::Result<Option<Object>> {
            self.0.get(of, namespace, name).await
        }

        async fn create(
            &self,
            of: &Arc<Resource>,
            namespace: &str,
            item: &Item,
        ) -> cluster::Result<Object> {
            let mut object: Value = item.parse().unwrap();
            if of.kind == "CustomResourceDefinition" {
                let holds = |kind: &str| json!({"type": kind, "status": "True"});
                object["status"]["conditions"] =
                    json!([holds("Established"), holds("NamesAccepted")]);
            }
            self.0.create(of, namespace, &Item::from_object(&object).unwrap()).await
        }

        async fn patch(
            &self,
            of: &Arc<Resource>,
            namespace: &str,
            name: &str,
            door: Subresource,
            patch: &Value,
        ) -> cluster::Result<Object> {
            self.0.patch(of, namespace, name, door, patch).await
        }

        async fn delete(
            &self,
            of: &Arc<Resource>,
            namespace: &str,
            name: &str,
            uid: Option<&str>,
        ) -> cluster::Result<()> {
            self.0.delete(of, namespace, name, uid).await
        }

        fn watch(
            &self,
            of: &Arc<Resource>,
            query: Query,
        ) -> BoxStream<'static, cluster::Result<WatchEvent>> {
            self.0.watch(of, query)
        }

        async fn exec(&self, exec: &Exec) -> cluster::Result<ExecOutcome> {
            self.0.exec(exec).await
        }
    }

    #[tokio::test]
    async fn kind_names_are_resolved_again_after_crds_are_restored() {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.io"}, "spec": {"group": "example.io"},
        });
        let widget = json!({
            "apiVersion": "example.io/v1", "kind": "Widget",
            "metadata": {"namespace": "shop", "name": "w"}, "spec": {},
        });
        let mut entries = maps("shop", &["a"]);
        entries.push(entry("customresourcedefinitions.apiextensions.k8s.io", &crd));
        entries.push(entry("widgets.example.io", &widget));
        // The singular in the priorities, and the short name in the include list.
        let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
        fixture.priorities = "widget.example.io,configmaps".parse().unwrap();
        fixture.spec = json!({"includedResources": ["crd", "wd", "cm"]});
        let growing = Arc::new(GrowingCluster(Arc::clone(&fixture.cluster)));
        let restored = fixture.run_in(growing).await;
        let results = restored.report.results();
        assert_eq!((results.errors.count(), results.warnings.count()), (0, 0), "{results:?}");
        let order: Vec<String> =
            fixture.cluster.creations().into_iter().map(|id| id.resource).collect();
        assert_eq!(order, ["customresourcedefinitions", "namespaces", "widgets", "configmaps"]);
        assert_eq!(restored.total, 3);
    }
}

mod namespaces {
    use super::*;

    fn namespace(name: &str, more: &Value) -> Value {
        let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": more});
        namespace["metadata"]["name"] = name.into();
        namespace
    }

    #[tokio::test]
    async fn a_namespace_comes_back_without_its_finalizers() {
        let mut stored = namespace(
            "shop",
            &json!({"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["acme.io/protect"]}),
        );
        stored["spec"] = json!({"finalizers": ["kubernetes", "acme.io/other"]});
        let entries = [entry("namespaces", &stored), entry("configmaps", &map("shop", "a"))];
        let fixture = RestoreFixture::new(&entries);
        fixture.run_well().await;
        let restored = fixture.object("namespaces", "", "shop").unwrap();
        let metadata = &restored["metadata"];
        assert_eq!(
            (&metadata["labels"], &metadata["annotations"]),
            (&json!({"a": "b"}), &json!({"c": "d"}))
        );
        assert_eq!((&metadata["finalizers"], &restored["spec"]), (&Value::Null, &Value::Null));
    }

    #[tokio::test]
    async fn two_namespaces_that_are_mapped_into_one_are_compared() {
        let labelled = |name: &str, team: &str| {
            entry("namespaces", &namespace(name, &json!({"labels": {"team": team}})))
        };
        for (teams, mapping, made_from) in [
            (["red", "blue"], json!({"a": "x", "b": "x"}), "red"),
            (["red", "blue"], json!({"a": "b"}), "blue"),
            (["red", "red"], json!({"a": "x", "b": "x"}), "red"),
        ] {
            let [a, b] = teams;
            let mut entries = vec![labelled("a", a), labelled("b", b)];
            entries.extend(maps("a", &["one"]).into_iter().chain(maps("b", &["two"])));
            let mut fixture = RestoreFixture::new(&entries);
            fixture.spec = json!({ "namespaceMapping": mapping });
            let restored = fixture.run().await;
            let (errors, warnings) = messages(&restored);
            assert!(errors.is_empty(), "{errors:?}");
            let target = mapping["a"].as_str().unwrap();
            let existing = fixture.object("namespaces", "", target).unwrap();
            assert_eq!(existing["metadata"]["labels"]["team"], made_from, "{mapping}");
            assert_eq!(warnings.len(), usize::from(a != b), "{mapping}: {warnings:?}");
            assert!(warnings.iter().all(|text| text.contains("labels.team")), "{warnings:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_terminating_namespace_is_reported() {
        let terminating = namespace(
            "shop",
            &json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["acme.io/protect"]}),
        );
        let fixture = RestoreFixture::of(Fake::usual().with(terminating), &maps("shop", &["a"]));
        let (cluster, progress) = (Arc::clone(&fixture.cluster), Arc::clone(&fixture.progress));
        let observed = async {
            let waiting = progress.changed_terminating_namespaces(&BTreeSet::new()).await;
            cluster.remove("namespaces", "", "shop");
            let after = progress.changed_terminating_namespaces(&waiting).await;
            (waiting, after)
        };
        let (restored, (waiting, after)) = tokio::join!(fixture.run(), observed);
        assert_eq!((waiting, after), (["shop".to_owned()].into(), BTreeSet::new()));
        let (errors, warnings) = messages(&restored);
        assert!(
            errors.is_empty() && fixture.object("configmaps", "shop", "a").is_some(),
            "{errors:?}"
        );
        assert!(warnings.len() == 1 && warnings[0].contains("was being deleted"), "{warnings:?}");
    }
}

mod volumes {
    use super::*;

    fn volume(source: &str, policy: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {
                source: {"path": "/"}, "persistentVolumeReclaimPolicy": policy,
                "claimRef": {"namespace": "shop", "name": "data"},
            },
        })
    }

    fn claim() -> Value {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "shop", "name": "data"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        })
    }

    fn entries(volume: &Value) -> Vec<Entry> {
        vec![entry("persistentvolumes", volume), entry("persistentvolumeclaims", &claim())]
    }

    #[tokio::test]
    async fn claim_keeps_its_volume_if_volumes_are_excluded() {
        for (spec, volume_name) in [
            (json!({"excludedResources": ["persistentvolumes"]}), json!("pv")),
            (json!({"includedResources": ["persistentvolumeclaims"]}), json!("pv")),
            (json!({"includeClusterResources": false}), json!("pv")),
            // If the volume is restored too, and its data is not in the backup, the claim gets a new one.
            (json!({}), Value::Null),
        ] {
            let mut fixture = RestoreFixture::new(&entries(&volume("nfs", "Delete")));
            fixture.spec = spec.clone();
            let (errors, warnings) = messages(&fixture.run().await);
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(warnings.len(), usize::from(volume_name.is_null()), "{spec}: {warnings:?}");
            let restored = fixture.object("persistentvolumeclaims", "shop", "data").unwrap();
            assert_eq!(restored["spec"]["volumeName"], volume_name, "{spec}");
        }
    }

    #[tokio::test]
    async fn node_path_volume_is_not_created_as_additional_item() {
        for source in ["hostPath", "local"] {
            let restore = async |source: &str, spec: Value| {
                let mut fixture = RestoreFixture::new(&entries(&volume(source, "Retain")));
                fixture.spec = spec;
                let (errors, _) = messages(&fixture.run().await);
                (fixture.object("persistentvolumes", "", "pv").is_some(), errors)
            };
            let (is_there, errors) = restore(source, json!({"includedNamespaces": ["shop"]})).await;
            assert!(!is_there, "{source}");
            assert!(
                errors.len() == 1 && errors[0].contains("--include-cluster-resources"),
                "{errors:?}"
            );
            // Explicitly requested volumes are restored; other types are harmless.
            for (source, spec) in [
                (source, json!({})),
                (source, json!({"includedNamespaces": ["shop"], "includeClusterResources": true})),
                (
                    source,
                    json!({"includedNamespaces": ["shop"], "includedResources": ["pv", "pvc"]}),
                ),
                ("nfs", json!({"includedNamespaces": ["shop"]})),
            ] {
                let (is_there, errors) = restore(source, spec.clone()).await;
                assert!(is_there && errors.is_empty(), "{source} {spec}: {errors:?}");
            }
        }
    }
}
