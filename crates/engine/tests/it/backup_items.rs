//! Items that users, actions and labels include in a backup or exclude from it.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::action::NamedAction;
use bowline_engine::cluster::Fake;
use bowline_engine::cluster::fake::usual_resources;
use bowline_engine::{GroupResource, Resource};
use bowline_plugin::{
    BackupItemAction, Encoded, Item, ItemBlockAction, OperationId, ResourceIdentifier,
    ResourceSelector,
};
use bowline_store::backend::Memory;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::backup::{
    FinishedBackup, commands, fn_action, run_and_read, run_and_read_spec, run_of, store_in,
};
use crate::support::objects::{config_map, namespace, object, pod, with_hooks};

const NOTHING: [&str; 0] = [];

fn id(group: &str, resource: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.into(),
        resource: resource.into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

/// A cluster with config maps of which each is related to the next: `chain-0`, `chain-1`, ….
fn chain(length: usize) -> Arc<Fake> {
    let cluster = Fake::usual().with(namespace("shop"));
    let map = |n: usize| {
        let mut map = config_map("shop", &format!("chain-{n}"));
        if n == 0 {
            map["metadata"]["labels"] = json!({"app": "first"});
        }
        map
    };
    Arc::new((0..length).map(map).fold(cluster, Fake::with))
}

/// An action by which each item of a chain adds the next, and the last one adds the first.
fn adds_the_next(length: usize) -> NamedAction<dyn BackupItemAction> {
    fn_action("configmaps", move |object, output| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let place: usize = name.trim_start_matches("chain-").parse().unwrap();
        let next = format!("chain-{}", (place + 1) % length);
        output.additional_items = vec![id("", "configmaps", &next)];
        Ok(())
    })
}

async fn backed_up_chain(length: usize, spec: Value) -> FinishedBackup {
    let mut run = run_of(&chain(length), spec, store_in(Memory::with_bucket("b"))).await;
    run.backup_item_actions = vec![adds_the_next(length)];
    run_and_read(run).await
}

#[tokio::test]
async fn items_that_add_one_another_are_all_stored_however_many_they_are() {
    let first = json!({"labelSelector": {"matchLabels": {"app": "first"}}});
    for (length, spec) in [(400, json!({})), (400, first.clone()), (2500, first)] {
        let run = backed_up_chain(length, spec.clone()).await;
        assert_eq!(run.errors(), NOTHING, "{length} of {spec}");
        assert_eq!(run.warnings(), NOTHING, "{length} of {spec}");
        assert_eq!(run.outcome.resources.count(), length + 1, "{length} of {spec}");
        assert_eq!(run.outcome.found, length as u64 + 1, "{length} of {spec}");
    }
}

#[tokio::test]
async fn additional_item_without_a_name_is_an_error_on_its_parent_and_is_not_read() {
    let cluster = chain(1);
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    run.backup_item_actions = vec![fn_action("configmaps", |_, output| {
        output.additional_items = vec![id("", "secrets", ""), id("", "secrets", "../pods")];
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.stored(), ["configmaps/shop/chain-0", "namespaces/shop"]);
    let errors = run.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    for error in errors {
        for word in ["configmaps/chain-0", "test.io/does-configmaps", "secrets"] {
            assert!(error.contains(word), "no {word} in {error}");
        }
    }
    assert_eq!(cluster.gets(), []);
}

#[tokio::test]
async fn unknown_or_missing_additional_item_is_reported_with_its_action() {
    let mut run = run_of(&chain(1), json!({}), store_in(Memory::with_bucket("b"))).await;
    run.backup_item_actions = vec![fn_action("configmaps", |_, output| {
        output.additional_items = vec![id("shop.io", "unicorns", "a"), id("", "secrets", "gone")];
        Ok(())
    })];
    let run = run_and_read(run).await;
    for (messages, word) in [(run.errors(), "unicorns"), (run.warnings(), "secrets/shop/gone")] {
        assert_eq!(messages.len(), 1, "{messages:?}");
        for word in ["configmaps/chain-0", "test.io/does-configmaps", word] {
            assert!(messages[0].contains(word), "no {word} in {messages:?}");
        }
    }
}

/// Says that these items belong to every config map.
struct RelatingAction(Vec<ResourceIdentifier>);

#[async_trait]
impl ItemBlockAction for RelatingAction {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn get_related_items(
        &self,
        _: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<Vec<ResourceIdentifier>> {
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn unknown_or_missing_related_item_is_reported_with_its_action() {
    let cluster = chain(1);
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let related =
        vec![id("shop.io", "unicorns", "a"), id("", "secrets", "gone"), id("", "secrets", "")];
    let name = "test.io/relates".parse().unwrap();
    run.item_block_actions = vec![NamedAction::new(name, Arc::new(RelatingAction(related)))];
    let run = run_and_read(run).await;
    assert_eq!(run.stored(), ["configmaps/shop/chain-0", "namespaces/shop"]);
    let (errors, warnings) = (run.errors(), run.warnings());
    assert_eq!((errors.len(), warnings.len()), (2, 1), "{errors:?} {warnings:?}");
    assert!(errors[0].contains("unicorns"), "{errors:?}");
    assert!(errors[1].contains("without a name"), "{errors:?}");
    assert!(warnings[0].contains("secrets/shop/gone"), "{warnings:?}");
    for text in errors.iter().chain(&warnings) {
        assert!(text.contains("configmaps/chain-0") && text.contains("test.io/relates"), "{text}");
    }
    assert_eq!(cluster.gets().len(), 1, "{:?}", cluster.gets());
}

const MUST_INCLUDE: &str = "backup.velero.io/must-include-additional-items";

#[tokio::test]
async fn must_include_annotation_counts_from_actions_but_not_from_objects() {
    for (is_claimed_by_object, is_said_by_action, is_stored) in
        [(true, false, false), (false, true, true), (true, true, true), (false, false, false)]
    {
        let mut map = config_map("shop", "m");
        if is_claimed_by_object {
            map["metadata"]["annotations"] = json!({MUST_INCLUDE: "true", "a": "b"});
        }
        let secret = object("v1", "Secret", "shop", "s");
        let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(map).with(secret));
        let spec = json!({"excludedResources": ["secrets"]});
        let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
        run.backup_item_actions = vec![fn_action("configmaps", move |object, output| {
            let mut object = object.clone();
            object["data"] = json!({"by": "action"});
            if is_said_by_action {
                object["metadata"]["annotations"][MUST_INCLUDE] = "true".into();
            }
            output.item = Item::from_object(&object).unwrap();
            output.additional_items = vec![id("", "secrets", "s")];
            Ok(())
        })];
        let run = run_and_read(run).await;
        let case = (is_claimed_by_object, is_said_by_action);
        assert_eq!(run.stored().contains(&"secrets/shop/s".to_owned()), is_stored, "{case:?}");
        let map = &run.archive["resources/configmaps/namespaces/shop/m.json"];
        assert!(map["metadata"]["annotations"][MUST_INCLUDE].is_null(), "{case:?}: {map}");
    }
}

#[tokio::test]
async fn operation_on_an_item_excluded_later_is_tracked() {
    let mut run = run_of(&chain(1), json!({}), store_in(Memory::with_bucket("b"))).await;
    let action = fn_action("configmaps", |object, output| {
        let mut object = object.clone();
        object["metadata"]["annotations"] = json!({"velero.io/skip-from-backup": "true"});
        output.item = Item::from_object(&object).unwrap();
        output.operation = OperationId::new("op-1");
        Ok(())
    });
    run.backup_item_actions = vec![NamedAction { begins_operations: true, ..action }];
    let run = run_and_read(run).await;
    assert_eq!(run.stored(), ["namespaces/shop"]);
    let operations: Vec<&str> = run.outcome.operations.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(operations, ["op-1"]);
}

#[tokio::test]
async fn operation_on_an_item_broken_by_its_action_is_tracked() {
    let mut run = run_of(&chain(1), json!({}), store_in(Memory::with_bucket("b"))).await;
    let action = fn_action("configmaps", |_, output| {
        let json = r#"{"kind":"ConfigMap","metadata":{"name":"../../x"}}"#;
        output.item = Item::from_json(json).unwrap();
        output.operation = OperationId::new("op-1");
        Ok(())
    });
    run.backup_item_actions = vec![NamedAction { begins_operations: true, ..action }];
    let run = run_and_read(run).await;
    assert_eq!(run.errors().len(), 1, "{:?}", run.errors());
    assert_eq!(run.outcome.operations.len(), 1);
}

/// A cluster that serves kinds of `shop.io` and `velero.io` besides.
fn with_custom_kinds() -> Fake {
    let mut resources = usual_resources();
    let kinds = [
        ("shop.io", "discounts"),
        ("velero.io", "backups"),
        ("velero.io", "deletebackuprequests"),
        ("velero.io", "downloadrequests"),
        ("velero.io", "serverstatusrequests"),
    ];
    resources.extend(kinds.map(|(group, plural)| Resource {
        id: GroupResource::new(group, plural),
        version: "v1".into(),
        kind: plural.into(),
        singular: plural.into(),
        short_names: Vec::new(),
        is_namespaced: true,
        verbs: ["list", "create", "get", "delete"].map(str::to_owned).to_vec(),
    }));
    Fake::new(resources)
}

#[tokio::test]
async fn a_definition_with_the_exclude_label_does_not_follow_its_objects() {
    for is_excluded in [false, true] {
        let kind = "CustomResourceDefinition";
        let mut definition = object("apiextensions.k8s.io/v1", kind, "", "discounts.shop.io");
        let value = is_excluded.to_string();
        definition["metadata"]["labels"] = json!({"velero.io/exclude-from-backup": value});
        let cluster = with_custom_kinds()
            .with(namespace("shop"))
            .with(namespace("other"))
            .with(definition)
            .with(object("shop.io/v1", "discounts", "shop", "summer"));
        let run = run_and_read_spec(cluster, json!({"includedNamespaces": ["shop"]})).await;
        let definition = "customresourcedefinitions.apiextensions.k8s.io/discounts.shop.io";
        let is_stored = run.stored().contains(&definition.to_owned());
        assert_eq!(is_stored, !is_excluded, "{:?}", run.stored());
        assert!(run.stored().contains(&"discounts.shop.io/shop/summer".to_owned()));
    }
}

#[tokio::test]
async fn requests_to_the_server_are_not_stored_and_not_listed() {
    let cluster = Arc::new(
        with_custom_kinds()
            .with(namespace("velero"))
            .with(object("velero.io/v1", "backups", "velero", "b0"))
            .with(object("velero.io/v1", "deletebackuprequests", "velero", "d"))
            .with(object("velero.io/v1", "downloadrequests", "velero", "l"))
            .with(object("velero.io/v1", "serverstatusrequests", "velero", "s")),
    );
    for (spec, warnings) in [
        (json!({}), 0),
        (json!({"includedResources": ["backups", "deletebackuprequests.velero.io"]}), 1),
    ] {
        let run =
            run_and_read(run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await).await;
        let of_velero: Vec<String> =
            run.stored().into_iter().filter(|path| path.contains("velero.io")).collect();
        assert_eq!(of_velero, ["backups.velero.io/velero/b0"]);
        assert_eq!(run.warnings().len(), warnings, "{:?}", run.warnings());
    }
    let lists = cluster.lists();
    assert!(!lists.iter().any(|(resource, _)| resource.contains("request")), "{lists:?}");
}

#[tokio::test]
async fn an_unreadable_setting_of_a_hook_is_a_warning_and_the_hook_runs() {
    let mut db = with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    db["metadata"]["annotations"]["pre.hook.backup.velero.io/timeout"] = "30".into();
    db["metadata"]["annotations"]["post.hook.backup.velero.io/on-error"] = "fail".into();
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(db));
    let run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), NOTHING);
    assert_eq!(run.stored(), ["namespaces/shop", "pods/shop/db"]);
    assert_eq!(commands(&cluster), ["freeze db", "thaw db"]);
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (text, words) in warnings.iter().zip([
        ["pods/db", "pre.hook.backup.velero.io/timeout", "30s"],
        ["pods/db", "post.hook.backup.velero.io/on-error", "Fail"],
    ]) {
        for word in words {
            assert!(text.contains(word), "no {word} in {text}");
        }
    }
}

fn secret(namespace: &str, name: &str) -> Value {
    object("v1", "Secret", namespace, name)
}

#[tokio::test]
async fn server_credentials_are_excluded_with_one_warning_unless_requested() {
    let mut labelled = secret("velero", "velero-repo-credentials");
    labelled["metadata"]["labels"] = json!({"velero.io/exclude-from-backup": "true"});
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("velero"))
            .with(namespace("shop"))
            .with(secret("velero", "cloud-credentials"))
            .with(secret("velero", "local-volume"))
            .with(secret("velero", "other"))
            .with(labelled)
            .with(secret("shop", "cloud-credentials")),
    );
    let run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let run = run_and_read(run).await;
    let secrets = |run: &FinishedBackup| -> Vec<String> {
        run.stored().into_iter().filter(|path| path.starts_with("secrets/")).collect()
    };
    assert_eq!(secrets(&run), ["secrets/shop/cloud-credentials", "secrets/velero/other"]);
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for word in
        ["velero/cloud-credentials", "velero/local-volume", "bowline.io/include-credentials"]
    {
        assert!(warnings[0].contains(word), "no {word} in {warnings:?}");
    }
    assert!(!warnings[0].contains("repo-credentials"), "it has the label: {warnings:?}");
}

#[tokio::test]
async fn action_cannot_include_server_credentials() {
    let mut map = config_map("shop", "m");
    map["metadata"]["annotations"] = json!({"a": "b"});
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("velero"))
            .with(namespace("shop"))
            .with(map)
            .with(secret("velero", "cloud-credentials")),
    );
    let spec = json!({"includedNamespaces": ["shop"]});
    let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
    run.backup_item_actions = vec![fn_action("configmaps", |object, output| {
        let mut object = object.clone();
        object["metadata"]["annotations"][MUST_INCLUDE] = "true".into();
        output.item = Item::from_object(&object).unwrap();
        let of_velero = id("", "secrets", "cloud-credentials");
        output.additional_items =
            vec![ResourceIdentifier { namespace: "velero".into(), ..of_velero }];
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.stored(), ["configmaps/shop/m", "namespaces/shop"]);
}

#[tokio::test]
async fn total_is_known_once_all_lists_have_started() {
    let length = 300;
    let mut run = run_of(&chain(length), json!({}), store_in(Memory::with_bucket("b"))).await;
    let (progress, recorded) = (Arc::clone(&run.progress), Arc::new(Mutex::new(Vec::new())));
    let recorder = Arc::clone(&recorded);
    run.backup_item_actions = vec![fn_action("configmaps", move |_, _| {
        recorder.lock().push((progress.backed_up(), progress.total()));
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.outcome.found, length as u64 + 1);
    let recorded = recorded.lock().clone();
    assert_eq!(recorded.len(), length);
    // The namespace is stored last, and some items are between their list and their visit.
    let known = length as u64 - 16..=length as u64;
    assert!(recorded.iter().all(|(_, total)| known.contains(total)), "{recorded:?}");
}
