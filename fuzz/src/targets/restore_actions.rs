//! The built-in RestoreItemActions, and the changes to each restored object, on arbitrary JSON.
//!
//! Two parts: the object, and the spec of the Restore.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_api::{Restore, RestoreSpec};
use bowline_cluster::{Cluster, Fake};
use bowline_engine::restore::action::restore_item_actions;
use bowline_engine::restore::reset::{self, ClaimBinding};
use bowline_plugin::{Encoded, Item};
use serde_json::{Value, json};

use super::{block_on, object, parts};

/// Bytes that all actions together may add to an object: the init container of a hook, labels, annotations.
const ADDED: usize = 64 << 10;
/// Growth by escaping.
const FACTOR: usize = 8;

pub(super) fn run(input: &[u8]) {
    let [item, spec] = parts(input);
    let Ok(item) = Item::from_json(item.to_vec()) else { return };
    let restore = Restore {
        spec: serde_json::from_slice(spec).unwrap_or_else(|_| default_spec()),
        ..Restore::default()
    };
    block_on(async {
        let first = act(&item, &restore).await;
        assert_eq!(first, act(&item, &restore).await, "actions are deterministic");
    });
    if let Some(value) = object(item.json()) {
        change(value);
    }
}

/// Outcome of each action, of which each gets what the one before it returned.
async fn act(item: &Item, restore: &Restore) -> Vec<String> {
    let fake =
        Fake::usual().with(config("velero.io/change-image-name", &json!({"a": "x,y"}))).with(
            config("velero.io/change-storage-class", &json!({"slow": "fast", "fast": "missing"})),
        );
    let resources = Arc::new(fake.resources());
    let cluster: Arc<dyn Cluster> = Arc::new(fake);
    let restore = Encoded::new(restore.clone());
    let (mut current, mut outcomes) = (item.clone(), Vec::new());
    for action in restore_item_actions(&cluster, &resources, "velero", &restore) {
        match action.plugin.execute(&current, item, &restore).await {
            Ok(output) => {
                assert!(output.additional_items.len() <= item.json().len());
                assert!(output.item.json().len() <= item.json().len() * FACTOR + ADDED);
                outcomes.push(format!("{output:?}"));
                current = output.item;
            }
            Err(error) => outcomes.push(error.to_string()),
        }
    }
    outcomes
}

/// ConfigMap for an action.
fn config(action: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "velero", "name": action.replace(['.', '/'], "-"),
            "labels": {"velero.io/plugin-config": "", action: "RestoreItemAction"},
        },
        "data": data,
    })
}

fn default_spec() -> RestoreSpec {
    let mut spec = RestoreSpec::default();
    spec.namespace_mapping.insert("a".to_owned(), "b".to_owned());
    spec
}

/// The changes that are no actions.
fn change(mut value: Value) {
    let mapping: BTreeMap<String, String> = [("a".to_owned(), "b".to_owned())].into();
    let mut volume = value.clone();
    reset::unbind_volume(&mut volume, &mapping);
    if reset::rename_volume(&mut volume, "renamed").is_ok() {
        assert_eq!(volume["metadata"]["name"], "renamed");
    }
    reset::rebind_claim(&mut volume, ClaimBinding::Renamed("renamed"));
    if reset::reset_metadata_and_status(&mut value).is_err() {
        return;
    }
    drop(reset::remove_managed_fields(&mut value));
    reset::set_namespace(&mut value, "target").expect("an object with metadata");
    assert!(value.get("status").is_none());
    for field in ["uid", "resourceVersion", "ownerReferences", "managedFields"] {
        assert!(value["metadata"].get(field).is_none(), "{field}");
    }
}
