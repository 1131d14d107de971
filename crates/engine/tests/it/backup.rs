//! Complete backups of an in-memory cluster.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::action::NamedAction;
use bowline_engine::cluster::Fake;
use bowline_engine::cluster::fake::usual_resources;
use bowline_engine::unpack::UnpackLimits;
use bowline_engine::{GroupResource, Resource};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ItemBlockAction, ResourceIdentifier,
    ResourceSelector,
};
use bowline_store::backend::Memory;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::backup::{
    FinishedBackup, commands, fn_action, run_and_read, run_and_read_spec, run_of, store_in,
};
use crate::support::objects::{claim, config_map, namespace, object, pod, with_hooks};

#[tokio::test]
async fn a_backup_without_filters_has_everything() {
    let cluster = Fake::usual()
        .with(namespace("shop"))
        .with(config_map("shop", "a"))
        .with(pod("shop", "web", &[]))
        .with(object("apps/v1", "Deployment", "shop", "web"))
        .with(object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "x:y"));
    let run = run_and_read_spec(cluster, json!({})).await;
    assert_eq!(run.errors(), [] as [&str; 0]);
    assert_eq!(
        run.stored(),
        [
            "clusterroles.rbac.authorization.k8s.io/x:y",
            "configmaps/shop/a",
            "deployments.apps/shop/web",
            "namespaces/shop",
            "pods/shop/web",
        ]
    );
    assert_eq!(run.archive["metadata/version"], "1.1.0\n");
    let plain = "resources/deployments.apps/namespaces/shop/web.json";
    let preferred = "resources/deployments.apps/v1-preferredversion/namespaces/shop/web.json";
    assert_eq!(run.archive[plain], object("apps/v1", "Deployment", "shop", "web"));
    assert_eq!(run.archive[plain], run.archive[preferred]);
    assert_eq!(run.outcome.resources.count(), 5);
    assert_eq!(run.outcome.archive.as_ref().unwrap().items, 5);
    let list = serde_json::to_value(&run.outcome.resources).unwrap();
    assert_eq!(list["apps/v1/Deployment"], json!(["shop/web"]));
    assert_eq!(list["v1/Namespace"], json!(["shop"]));
}

#[tokio::test]
async fn excluded_items_are_not_in_the_archive() {
    let mut excluded = config_map("shop", "excluded");
    excluded["metadata"]["labels"] = json!({"velero.io/exclude-from-backup": "true"});
    let mut leaving = config_map("shop", "leaving");
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let cluster = Fake::usual()
        .with(namespace("shop"))
        .with(namespace("other"))
        .with(config_map("shop", "a"))
        .with(excluded)
        .with(leaving)
        .with(config_map("other", "b"))
        .with(object("v1", "Secret", "shop", "s"))
        .with(object("storage.k8s.io/v1", "StorageClass", "", "fast"));
    let spec = json!({"includedNamespaces": ["sh*"], "excludedResources": ["secrets"]});
    let run = run_and_read_spec(cluster, spec).await;
    assert_eq!(run.stored(), ["configmaps/shop/a", "namespaces/shop"]);
}

#[tokio::test]
async fn label_selectors_are_sent_to_the_api_server_and_related_items_are_added() {
    let labelled = |mut object: Value, app: &str| {
        object["metadata"]["labels"] = json!({"app": app});
        object
    };
    let cluster = Fake::usual()
        .with(namespace("shop"))
        .with(labelled(config_map("shop", "a"), "x"))
        .with(labelled(config_map("shop", "b"), "y"))
        .with(labelled(config_map("shop", "c"), "z"))
        // The claim is not selected, and is added by its pod; its volume is added by the claim.
        .with(labelled(pod("shop", "db", &["data"]), "x"))
        .with(claim("shop", "data", "pv-1"))
        .with(object("v1", "PersistentVolume", "", "pv-1"));
    let either = json!([{"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}]);
    let spec = json!({"orLabelSelectors": either, "snapshotVolumes": false});
    let run = run_and_read_spec(cluster, spec).await;
    assert_eq!(run.errors(), [] as [&str; 0]);
    assert_eq!(
        run.stored(),
        [
            "configmaps/shop/a",
            "configmaps/shop/b",
            "namespaces/shop",
            "persistentvolumeclaims/shop/data",
            "persistentvolumes/pv-1",
            "pods/shop/db",
        ]
    );
}

#[tokio::test]
async fn definitions_come_with_the_custom_resources_that_were_stored() {
    let mut resources = usual_resources();
    for plural in ["discounts", "ghosts"] {
        resources.push(Resource {
            id: GroupResource::new("shop.io", plural),
            version: "v1".into(),
            kind: plural.into(),
            singular: plural.into(),
            short_names: Vec::new(),
            is_namespaced: true,
            verbs: ["list", "create", "get", "delete"].map(str::to_owned).to_vec(),
        });
    }
    let definition =
        |name: &str| object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name);
    let cluster = Fake::new(resources)
        .with(namespace("shop"))
        .with(namespace("other"))
        .with(definition("discounts.shop.io"))
        .with(definition("ghosts.shop.io"))
        .with(object("shop.io/v1", "discounts", "shop", "summer"));
    let run = run_and_read_spec(cluster, json!({"includedNamespaces": ["shop"]})).await;
    assert_eq!(
        run.stored(),
        [
            "customresourcedefinitions.apiextensions.k8s.io/discounts.shop.io",
            "discounts.shop.io/shop/summer",
            "namespaces/shop",
        ]
    );
}

#[tokio::test]
async fn ordered_items_come_in_their_order() {
    let cluster =
        ["a", "b", "c", "d"].iter().fold(Fake::usual().with(namespace("shop")), |cluster, name| {
            cluster.with(config_map("shop", name))
        });
    let spec = json!({"orderedResources": {"configmaps": "shop/c,shop/a,shop/gone,shop/b"}});
    let run = run_and_read_spec(cluster, spec).await;
    let plain = run.order.iter().filter_map(|path| {
        path.strip_prefix("resources/configmaps/namespaces/shop/")?.strip_suffix(".json")
    });
    let ordered: Vec<&str> = plain.filter(|name| *name != "d").collect();
    assert_eq!(ordered, ["c", "a", "b"]);
    let warnings = run.warnings();
    assert!(warnings[0].contains("shop/gone"), "{warnings:?}");
}

#[tokio::test]
async fn pods_that_share_a_volume_are_frozen_together() {
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("shop"))
            .with(with_hooks(pod("shop", "a", &["data"]), "freeze", "thaw"))
            .with(with_hooks(pod("shop", "b", &["data"]), "freeze", "thaw"))
            .with(claim("shop", "data", "pv-1"))
            .with(object("v1", "PersistentVolume", "", "pv-1")),
    );
    let watch = Arc::new(Recorder {
        cluster: Arc::clone(&cluster),
        commands_before_item: Mutex::default(),
    });
    let store = store_in(Memory::with_bucket("b"));
    let mut run = run_of(&cluster, json!({"snapshotVolumes": false}), store).await;
    let name = "test.io/recorder".parse().unwrap();
    run.backup_item_actions = vec![NamedAction::new(name, watch.clone())];
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), [] as [&str; 0]);
    let commands: Vec<String> =
        cluster.execs().iter().map(|exec| format!("{} {}", exec.command[0], exec.pod)).collect();
    assert_eq!(commands, ["freeze a", "freeze b", "thaw a", "thaw b"]);
    let recorded = watch.commands_before_item.lock().clone();
    assert!(recorded.len() >= 3, "{recorded:?}");
    for (item, execs) in recorded {
        assert_eq!(execs, 2, "{item} was seen between the hooks");
    }
    assert_eq!(run.outcome.hooks, (4, 0));
    assert_eq!(cluster.gets(), [], "what is in a block is not read again");
}

/// Notes for each claim, volume and pod how many commands had been run.
struct Recorder {
    cluster: Arc<Fake>,
    commands_before_item: Mutex<Vec<(String, usize)>>,
}

#[async_trait]
impl BackupItemAction for Recorder {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods", "pvc", "pv"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let object: Value = item.parse().unwrap();
        let name = object["metadata"]["name"].to_string();
        self.commands_before_item.lock().push((name, self.cluster.execs().len()));
        Ok(BackupOutput::unchanged(item))
    }
}

/// Executes the annotation `do` of ConfigMaps.
struct AnnotationDrivenAction;

#[async_trait]
impl BackupItemAction for AnnotationDrivenAction {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let mut object: Value = item.parse().unwrap();
        let mut output = BackupOutput::unchanged(item);
        let add = |resource: &str, name: &str| ResourceIdentifier {
            group: String::new(),
            resource: resource.into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        match object["metadata"]["annotations"]["do"].as_str().unwrap_or_default() {
            "fail" => return Err(bowline_plugin::Error::unknown("out of luck")),
            "break" => {
                let json = r#"{"kind":"ConfigMap","metadata":{"name":"../../x"}}"#;
                output.item = Item::from_json(json).unwrap();
            }
            "change" => {
                object["data"] = json!({"by": "action"});
                output.item = Item::from_object(&object).unwrap();
            }
            "skip" => {
                object["metadata"]["annotations"]["velero.io/skip-from-backup"] = "".into();
                output.item = Item::from_object(&object).unwrap();
            }
            "add" => output.additional_items = vec![add("secrets", "s"), add("secrets", "gone")],
            "insist" => {
                let key = "backup.velero.io/must-include-additional-items";
                object["metadata"]["annotations"][key] = "true".into();
                output.item = Item::from_object(&object).unwrap();
                output.additional_items = vec![add("secrets", "s")];
            }
            _ => {}
        }
        Ok(output)
    }
}

/// A backup of a ConfigMap that configures the action, and of a Secret.
async fn back_up_with_action(verb: &str, spec: Value) -> FinishedBackup {
    let mut map = config_map("shop", "m");
    map["metadata"]["annotations"] = json!({"do": verb});
    let secret = object("v1", "Secret", "shop", "s");
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(map).with(secret));
    let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
    let name = "test.io/obedient".parse().unwrap();
    run.backup_item_actions = vec![NamedAction::new(name, Arc::new(AnnotationDrivenAction))];
    run_and_read(run).await
}

#[tokio::test]
async fn actions_can_change_skip_and_add_items() {
    let no_secrets = json!({"excludedResources": ["secrets"]});
    let stored = async |verb: &str| back_up_with_action(verb, no_secrets.clone()).await.stored();
    assert_eq!(stored("nothing").await, ["configmaps/shop/m", "namespaces/shop"]);
    assert_eq!(stored("skip").await, ["namespaces/shop"]);
    // Items that the filters exclude are not added, unless the action requires them.
    assert_eq!(stored("add").await, ["configmaps/shop/m", "namespaces/shop"]);
    assert_eq!(stored("insist").await, ["configmaps/shop/m", "namespaces/shop", "secrets/shop/s"]);

    let run = back_up_with_action("change", json!({})).await;
    let map = &run.archive["resources/configmaps/namespaces/shop/m.json"];
    assert_eq!(map["data"]["by"], "action");
    let run = back_up_with_action("insist", no_secrets).await;
    let map = &run.archive["resources/configmaps/namespaces/shop/m.json"];
    assert_eq!(map["metadata"]["annotations"], json!({"do": "insist"}), "the mark is taken off");

    let run =
        back_up_with_action("add", json!({"includedResources": ["configmaps", "secrets"]})).await;
    let warnings = run.warnings();
    assert!(warnings[0].contains("secrets/shop/gone"), "{warnings:?}");
}

#[tokio::test]
async fn an_action_that_fails_costs_its_item_and_nothing_else() {
    for (verb, reason) in [("fail", "out of luck"), ("break", "../../x")] {
        let run = back_up_with_action(verb, json!({})).await;
        assert_eq!(run.stored(), ["namespaces/shop", "secrets/shop/s"]);
        let errors = run.errors();
        assert_eq!(errors.len(), 1);
        for word in ["configmaps/m", "test.io/obedient", reason] {
            assert!(errors[0].contains(word), "no {word} in {errors:?}");
        }
    }
}

fn in_shop(resource: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: resource.into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

#[tokio::test]
async fn pod_added_by_an_action_is_still_frozen() {
    for adding in [config_map("shop", "a"), pod("shop", "a", &[])] {
        let cluster =
            Arc::new(Fake::usual().with(namespace("shop")).with(adding.clone()).with(with_hooks(
                pod("shop", "db", &[]),
                "freeze",
                "thaw",
            )));
        let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
        let at_db = Arc::new(Mutex::new(Vec::new()));
        let (recorded, watched) = (Arc::clone(&at_db), Arc::clone(&cluster));
        let to = if adding["kind"] == "Pod" { "pods" } else { "configmaps" };
        run.backup_item_actions = vec![
            fn_action(to, |object, output| {
                if object["metadata"]["name"] == "a" {
                    output.additional_items = vec![in_shop("pods", "db")];
                }
                Ok(())
            }),
            fn_action("po", move |object, _| {
                if object["metadata"]["name"] == "db" {
                    recorded.lock().push(commands(&watched));
                }
                Ok(())
            }),
        ];
        let run = run_and_read(run).await;
        assert_eq!(run.errors(), [] as [&str; 0]);
        assert_eq!(run.outcome.resources.count(), 3);
        assert_eq!(*at_db.lock(), [["freeze db"]], "{to}");
        assert_eq!(commands(&cluster), ["freeze db", "thaw db"]);
    }
}

/// Says that a pod belongs to every config map.
struct RelatingAction;

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
        Ok(vec![in_shop("po", "db")])
    }
}

#[tokio::test]
async fn pod_named_several_times_is_in_one_block() {
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({"app": "x"});
        object
    };
    let db = || with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    // The pod is collected, or an item requests it.
    for (pod, gets) in [(labelled(db()), 0), (db(), 1)] {
        let cluster = Arc::new(
            Fake::usual()
                .with(namespace("shop"))
                .with(labelled(config_map("shop", "a")))
                .with(labelled(config_map("shop", "b")))
                .with(pod),
        );
        let spec = json!({
            "labelSelector": {"matchLabels": {"app": "x"}},
            "orderedResources": {"configmaps": "shop/a"},
        });
        let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
        let name = "test.io/relates".parse().unwrap();
        run.item_block_actions = vec![NamedAction::new(name, Arc::new(RelatingAction))];
        let run = run_and_read(run).await;
        assert_eq!(run.errors(), [] as [&str; 0]);
        assert_eq!(commands(&cluster), ["freeze db", "thaw db"]);
        assert_eq!(cluster.gets().len(), gets, "{:?}", cluster.gets());
    }
}

#[tokio::test]
async fn namespace_created_during_the_backup_is_stored_with_its_items() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(config_map("young", "a")));
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let creating = Arc::clone(&cluster);
    run.backup_item_actions = vec![fn_action("configmaps", move |_, _| {
        creating.put(namespace("young"));
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.errors(), [] as [&str; 0]);
    assert_eq!(run.stored(), ["configmaps/young/a", "namespaces/shop", "namespaces/young"]);
}

#[tokio::test]
async fn lists_that_wait_for_a_connection_cost_nothing() {
    let mut map = config_map("shop", "a");
    map["metadata"]["labels"] = json!({"n": "0"});
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(map));
    let selectors: Vec<Value> =
        (0..100).map(|n| json!({"matchLabels": {"n": n.to_string()}})).collect();
    let spec = json!({"orLabelSelectors": selectors});
    let mut run = run_of(&cluster, spec, store_in(Memory::with_bucket("b"))).await;
    let most = Arc::new(Mutex::new(0));
    let alive = Arc::clone(&most);
    run.backup_item_actions = vec![fn_action("configmaps", move |_, _| {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        *alive.lock() = tasks;
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.outcome.resources.count(), 2);
    let most = *most.lock();
    assert!((1..20).contains(&most), "{most} tasks");
}

#[tokio::test]
async fn unknown_resource_is_reported() {
    let cluster = Fake::usual().with(namespace("shop")).with(config_map("shop", "a"));
    let spec = json!({"includedResources": ["deployments.appz", "cm", "nothing*"]});
    let run = run_and_read_spec(cluster, spec).await;
    assert_eq!(run.stored(), ["configmaps/shop/a"]);
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("deployments.appz"), "{warnings:?}");
}

#[tokio::test]
async fn archive_beyond_the_restore_limits_is_a_warning_with_the_flag() {
    let limits = UnpackLimits::default();
    for (restore_limits, flag) in [
        (limits, None),
        (UnpackLimits { total: 2000, ..limits }, Some("--archive-size-limit")),
        (UnpackLimits { spool: 100, ..limits }, Some("--archive-scratch-limit")),
        (UnpackLimits { index: 200, ..limits }, Some("--archive-index-limit")),
    ] {
        let cluster = Fake::usual().with(namespace("shop")).with(config_map("shop", "a"));
        let store = store_in(Memory::with_bucket("b"));
        let mut run = run_of(&Arc::new(cluster), json!({}), store).await;
        run.options.restore_limits = restore_limits;
        let warnings = run_and_read(run).await.warnings();
        assert_eq!(warnings.len(), usize::from(flag.is_some()), "{warnings:?}");
        assert!(flag.is_none_or(|flag| warnings[0].contains(flag)), "{warnings:?}");
    }
}
