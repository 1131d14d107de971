use std::sync::Arc;

use bowline_plugin::{Encoded, ResourceSelector};
use serde_json::json;

use super::*;
use crate::cluster::Fake;

/// Checks rows of a name, the JSON before, and the JSON after if a change is expected.
pub(super) fn changes<const N: usize>(
    change: impl Fn(&mut Value) -> bool,
    rows: [(&str, Value, Option<Value>); N],
) {
    for (name, before, after) in rows {
        let mut object = before.clone();
        let changed = change(&mut object);
        assert_eq!(object, *after.as_ref().unwrap_or(&before), "{name}");
        assert_eq!(changed, after.is_some(), "{name}");
    }
}

/// Runs an action on an item that is restored unchanged.
pub(super) async fn execute(
    action: &dyn RestoreItemAction,
    item: &Value,
    restore: &Restore,
) -> Result<RestoreOutput> {
    let item = Item::from_object(item).unwrap();
    action.execute(&item, &item, &Encoded::new(restore.clone())).await
}

pub(super) fn restore(spec: Value) -> Restore {
    Restore { spec: serde_json::from_value(spec).unwrap(), ..Restore::default() }
}

/// A ConfigMap for an action.
pub(super) fn plugin_config(name: &str, action: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": "velero",
            "name": name,
            "labels": {"velero.io/plugin-config": "", action: "RestoreItemAction"},
        },
        "data": data,
    })
}

pub(super) fn lookup_in(fake: Fake) -> (Arc<Fake>, Arc<Lookup>) {
    let resources = Arc::new(fake.resources());
    let fake = Arc::new(fake);
    let cluster: Arc<dyn Cluster> = Arc::clone(&fake) as _;
    (fake, Arc::new(Lookup::new(&cluster, &resources, "velero")))
}

fn all() -> Vec<NamedAction<dyn RestoreItemAction>> {
    let fake = Fake::usual();
    let resources = Arc::new(fake.resources());
    let cluster: Arc<dyn Cluster> = Arc::new(fake);
    restore_item_actions(&cluster, &resources, "velero", &Restore::default())
}

#[tokio::test]
async fn the_actions_have_veleros_names_order_and_selectors() {
    let mut found = Vec::new();
    for action in all() {
        let selector = action.plugin.applies_to().await.unwrap();
        let ResourceSelector { included_resources, label_selector, .. } = &selector;
        found.push(format!("{} {} {label_selector}", action.name, included_resources.join(",")));
        assert_eq!(
            selector,
            ResourceSelector {
                label_selector: label_selector.clone(),
                ..ResourceSelector::resources(included_resources)
            }
        );
    }
    let expected = [
        "velero.io/add-pvc-from-pod pods ",
        "velero.io/admission-webhook-configuration \
         mutatingwebhookconfigurations,validatingwebhookconfigurations ",
        "velero.io/apiservice apiservices kube-aggregator.kubernetes.io/automanaged",
        "velero.io/change-image-name deployments,statefulsets,daemonsets,replicasets,\
         replicationcontrollers,jobs,cronjobs,pods ",
        "velero.io/change-storage-class persistentvolumeclaims,persistentvolumes,statefulsets ",
        "velero.io/cluster-role-bindings clusterrolebindings ",
        "velero.io/crd-preserve-fields customresourcedefinition.apiextensions.k8s.io ",
        "velero.io/init-restore-hook pods ",
        "velero.io/job jobs ",
        "velero.io/pod pods ",
        "velero.io/pvc persistentvolumeclaims ",
        "velero.io/role-bindings rolebindings ",
        "velero.io/secret secrets ",
        "velero.io/service services ",
        "velero.io/service-account serviceaccounts ",
    ];
    assert_eq!(found, expected);
}

#[test]
fn three_built_in_actions_need_a_cluster() {
    let needing: Vec<_> =
        all().iter().filter(|action| !is_pure(&action.name)).map(|a| a.name.to_string()).collect();
    assert_eq!(needing, [CHANGE_IMAGE_NAME, CHANGE_STORAGE_CLASS, SECRET]);
    assert!(!is_pure(&"example.io/pod".parse().unwrap()));
}

/// Malformed items: every field that an action reads is missing or of another type.
fn malformed_objects() -> impl Iterator<Item = Value> {
    let kinds = ["Pod", "CronJob", "StatefulSet", "Service", "Secret"];
    let parts = [
        json!(null),
        json!("text"),
        json!([1, null, "x", {}]),
        json!({
            "volumes": "x", "containers": [null, {"volumeMounts": 1}], "initContainers": {},
            "ports": [1, {"port": {}}, {"nodePort": "x"}], "clusterIP": 5, "selector": [],
            "template": {"metadata": []}, "versions": [{"schema": 1}, 2],
            "preserveUnknownFields": true, "volumeClaimTemplates": [1], "jobTemplate": "x",
            "annotations": 7, "managedFields": [{"fieldsV1": []}, 3], "labels": null,
        }),
    ];
    kinds.into_iter().flat_map(move |kind| {
        parts.clone().into_iter().flat_map({
            let parts = parts.clone();
            move |spec| {
                parts.clone().into_iter().map(move |metadata| {
                    json!({
                        "kind": kind, "metadata": metadata, "spec": spec, "webhooks": spec,
                        "subjects": spec, "secrets": spec, "data": metadata, "status": spec,
                        "type": "kubernetes.io/service-account-token",
                        "apiVersion": "apiextensions.k8s.io/v1",
                    })
                })
            }
        })
    })
}

#[tokio::test]
async fn malformed_items_do_not_break_actions() {
    let restore = restore(json!({"namespaceMapping": {"a": "b"}}));
    let mut survived = 0;
    for item in malformed_objects() {
        for action in all() {
            // An error is acceptable; a panic is not.
            if let Ok(output) = execute(action.plugin.as_ref(), &item, &restore).await {
                let restored: Value = output.item.parse().unwrap();
                assert_eq!(restored["kind"], item["kind"]);
            }
            survived += 1;
        }
    }
    assert_eq!(survived, 5 * 4 * 4 * 15);
}

#[tokio::test]
async fn an_item_that_needs_no_change_keeps_its_bytes() {
    let json = r#"{ "kind":"X", "spec":{"z":1.50,"a":2}, "metadata":{"name":"x"} }"#;
    let item = Item::from_json(json.as_bytes().to_vec()).unwrap();
    let restore = Encoded::new(restore(json!({"namespaceMapping": {"a": "b"}})));
    for action in all() {
        let output = action.plugin.execute(&item, &item, &restore).await.unwrap();
        assert_eq!(output.item.json(), json.as_bytes(), "{}", action.name);
    }
}
