//! Restores by a running server, on a real API server.

use std::collections::BTreeMap;

use bowline_api::{Restore, RestorePhase};
use bowline_store::RestoreName;
use bowline_store::file::ResourceList;
use bowline_testbed::apply::apply;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::bed::{World, eventually};
use crate::support::runs::{back_up, is_over, list_of, restore, results_of};

/// A namespace with some objects that need each other.
async fn application(world: &World, namespace: &str) {
    let metadata = |name: &str| json!({"name": name, "namespace": namespace, "labels": {"a": "b"}});
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"team": "x"}},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
            "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
        }),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("web")}),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("web"),
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {
                        "serviceAccountName": "web",
                        "containers": [{"name": "main", "image": "example.io/none:1"}],
                    },
                },
            },
        }),
    ];
    objects.extend((0..60).map(|number| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(&format!("m{number}")),
            "data": {"number": number.to_string()},
        })
    }));
    for object in objects {
        apply(&world.client, object).await.unwrap();
    }
}

async fn delete_namespace(world: &World, name: &str) {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    eventually(&format!("namespace {name} is deleted"), async || {
        namespaces.get_opt(name).await.unwrap().is_none()
    })
    .await;
}

/// Data and labels of the ConfigMaps of the application, without those of every namespace.
async fn maps(world: &World, namespace: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await.unwrap().items.into_iter();
    let own = listed.filter(|map| map.name_any() != "kube-root-ca.crt");
    own.map(|map| (map.name_any(), map.data.unwrap_or_default())).collect()
}

/// The version of everything that a restore could touch.
async fn versions(world: &World, namespace: &str) -> Vec<Option<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), namespace);
    let services: Api<Service> = Api::namespaced(world.client.clone(), namespace);
    let maps = maps.list(&ListParams::default()).await.unwrap().items;
    let services = services.list(&ListParams::default()).await.unwrap().items;
    let mut versions: Vec<_> = maps.iter().map(kube::ResourceExt::resource_version).collect();
    versions.extend(services.iter().map(kube::ResourceExt::resource_version));
    versions
}

#[tokio::test]
async fn lost_objects_are_restored_and_a_second_restore_changes_nothing() {
    let world = World::start("back").await;
    let store = world.filesystem_location("default").await;
    application(&world, "back-app").await;
    let before = maps(&world, "back-app").await;
    back_up(&world, "b", &["back-app"]).await;
    delete_namespace(&world, "back-app").await;

    let status = restore(&world, "first", json!({"backupName": "b"})).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        results_of(&store, "first").await
    );
    assert_eq!(maps(&world, "back-app").await, before);
    let list = list_of(&store, "first").await;
    assert_eq!(list.0["v1/ConfigMap"].len(), before.len() + 1);
    assert!(list.0["v1/ConfigMap"].contains(&"back-app/m7(created)".to_owned()), "{list:?}");
    assert!(list.0["v1/Service"].contains(&"back-app/web(created)".to_owned()), "{list:?}");
    assert_eq!(list.0["v1/Namespace"], ["back-app(created)"]);
    let progress = status.progress.unwrap();
    assert_eq!(progress.items_restored, progress.total_items);
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    assert_eq!(namespaces.get("back-app").await.unwrap().labels()["team"], "x");
    let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), "back-app");
    assert_eq!(api.get("m1").await.unwrap().labels()["velero.io/restore-name"], "first");

    let versions_before = versions(&world, "back-app").await;
    let status = restore(&world, "second", json!({"backupName": "b"})).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    assert_eq!(status.warnings, 0, "{:?}", results_of(&store, "second").await);
    assert_eq!(versions(&world, "back-app").await, versions_before);
    assert!(
        list_of(&store, "second").await.0["v1/ConfigMap"]
            .contains(&"back-app/m7(skipped)".to_owned())
    );
}

#[tokio::test]
async fn namespace_mapping_filters_and_modifiers_apply() {
    let world = World::start("mapped").await;
    let store = world.filesystem_location("default").await;
    application(&world, "mapped-app").await;
    back_up(&world, "b", &["mapped-app"]).await;
    world
        .create::<ConfigMap>(json!({
            "metadata": {"name": "rules"},
            "data": {"rules.yaml": "version: v1\nresourceModifierRules:\n- conditions:\n    \
                groupResource: configmaps\n    resourceNameRegex: ^m1$\n  mergePatches:\n  - \
                patchData: |\n      data:\n        number: changed\n"},
        }))
        .await;
    let spec = json!({
        "backupName": "b",
        "namespaceMapping": {"mapped-app": "mapped-copy"},
        "includedResources": ["configmaps"],
        "resourceModifier": {"kind": "configmap", "name": "rules"},
    });
    let status = restore(&world, "copy", spec).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        results_of(&store, "copy").await
    );
    let copied = maps(&world, "mapped-copy").await;
    assert_eq!(copied.len(), 60);
    assert_eq!(copied["m1"]["number"], "changed");
    assert_eq!(copied["m2"]["number"], "2");
    let services: Api<Service> = Api::namespaced(world.client.clone(), "mapped-copy");
    assert!(services.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn existing_objects_follow_the_existing_resource_policy() {
    let world = World::start("existing").await;
    let store = world.filesystem_location("default").await;
    application(&world, "existing-app").await;
    back_up(&world, "b", &["existing-app"]).await;
    let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), "existing-app");
    let change = kube::api::Patch::Merge(json!({"data": {"number": "changed since"}}));
    api.patch("m1", &kube::api::PatchParams::default(), &change).await.unwrap();

    let status = restore(&world, "keep", json!({"backupName": "b"})).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    assert_eq!(status.warnings, 1, "{:?}", results_of(&store, "keep").await);
    assert_eq!(maps(&world, "existing-app").await["m1"]["number"], "changed since");
    let warnings = results_of(&store, "keep").await.warnings.namespaces;
    assert!(warnings["existing-app"][0].contains("configmaps/m1"), "{warnings:?}");
    assert!(warnings["existing-app"][0].contains("data.number"), "{warnings:?}");

    let spec = json!({"backupName": "b", "existingResourcePolicy": "update"});
    let status = restore(&world, "update", spec).await;
    assert_eq!(
        status.phase,
        Some(RestorePhase::Completed),
        "{:?}",
        results_of(&store, "update").await
    );
    assert_eq!(maps(&world, "existing-app").await["m1"]["number"], "1");
    let list = list_of(&store, "update").await;
    assert!(list.0["v1/ConfigMap"].contains(&"existing-app/m1(updated)".to_owned()), "{list:?}");
}

#[tokio::test]
async fn invalid_restore_is_refused_at_once() {
    let world = World::start("wrong-restore").await;
    world.filesystem_location("default").await;
    for (number, (spec, reason)) in [
        (json!({}), "Either a backup or schedule must be specified"),
        (json!({"backupName": "none"}), "Error retrieving backup"),
        (json!({"scheduleName": "none"}), "No backups found for schedule"),
        (
            json!({"backupName": "none", "includedResources": ["nodes"]}),
            "nodes are non-restorable resources",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let status = restore(&world, &format!("r{number}"), spec).await;
        assert_eq!(status.phase, Some(RestorePhase::FailedValidation), "{status:?}");
        let errors = status.validation_errors.join("\n");
        assert!(errors.contains(reason), "no {reason:?} in {errors}");
    }
}

#[tokio::test]
async fn interrupted_restore_is_resumed_by_the_next_server() {
    let mut world = World::start("resumed").await;
    let store = world.filesystem_location("default").await;
    application(&world, "resumed-app").await;
    let before = maps(&world, "resumed-app").await;
    back_up(&world, "b", &["resumed-app"]).await;
    delete_namespace(&world, "resumed-app").await;
    // A policy that changes existing objects: objects of this restore must not count as existing.
    let spec = json!({"backupName": "b", "existingResourcePolicy": "update"});
    world.create::<Restore>(json!({"metadata": {"name": "r"}, "spec": spec})).await;
    let has_started =
        |restore: &Restore| restore.status.as_ref().is_some_and(|s| s.phase.is_some());
    world.until::<Restore>("r", has_started).await;
    world.end().await.unwrap();
    let mut next = World::without_server("resumed-next").await;
    let options = bowline_server::Options {
        namespace: "resumed".into(),
        filesystem_root: Some(world.path("root")),
        ..next.options()
    };
    next.run(options);
    let status = world.until::<Restore>("r", is_over).await.status.unwrap();
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{:?}", results_of(&store, "r").await);
    assert_eq!(maps(&world, "resumed-app").await, before);
    let list = list_of(&store, "r").await;
    let maps = &list.0["v1/ConfigMap"];
    let created = maps.iter().filter(|item| item.ends_with("(created)")).count();
    assert_eq!(created, before.len(), "{maps:?}");
}

#[tokio::test]
async fn deleted_restore_removes_its_files() {
    let world = World::start("forgotten").await;
    let store = world.filesystem_location("default").await;
    application(&world, "forgotten-app").await;
    back_up(&world, "b", &["forgotten-app"]).await;
    restore(&world, "r", json!({"backupName": "b"})).await;
    list_of(&store, "r").await;
    world.delete::<Restore>("r").await;
    world.until_gone::<Restore>("r").await;
    let name = RestoreName::new("r").unwrap();
    assert_eq!(store.get_restore_file::<ResourceList>(&name).await.unwrap(), None);
}

#[tokio::test]
async fn restores_run_in_creation_order() {
    let mut world = World::start("in-order").await;
    world.filesystem_location("default").await;
    application(&world, "in-order-app").await;
    back_up(&world, "b", &["in-order-app"]).await;
    world.end().await.unwrap();
    // Against the alphabet, and all within a second or two, as a pipeline applies them.
    let names = ["e", "d", "c", "b", "a"];
    let into = |name: &str| format!("in-order-{name}");
    for name in names {
        let spec = json!({"backupName": "b", "namespaceMapping": {"in-order-app": into(name)}});
        world.create::<Restore>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let concurrent_restores = bowline_server::Options::default().concurrent_restores;
    world.run(bowline_server::Options { concurrent_restores, ..world.options() });
    let mut created = Vec::new();
    for name in names {
        let status = world.until::<Restore>(name, is_over).await.status.unwrap();
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
        // The higher, the later; no restored ConfigMap is changed after its creation.
        let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &into(name));
        let maps = maps.list(&ListParams::default()).await.unwrap().items;
        let own = maps.iter().filter(|map| map.name_any() != "kube-root-ca.crt");
        let version = |map: &ConfigMap| map.resource_version().unwrap().parse::<u64>().unwrap();
        created.push(own.map(version).collect::<Vec<_>>());
    }
    for pair in created.windows(2) {
        let (last, first) = (pair[0].iter().max().unwrap(), pair[1].iter().min().unwrap());
        assert!(last < first, "one began before the one before it had ended: {created:?}");
    }
}
