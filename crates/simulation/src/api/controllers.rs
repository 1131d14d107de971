//! What the other parts of a cluster do when an object is written: kubelet, binder and garbage collector, at once.

use serde_json::{Value, json};

use super::object_store::{Key, ObjectStore};

/// Sets what the API server itself sets in a new object.
pub(super) fn admit(object: &mut Value) {
    match object["kind"].as_str().unwrap_or_default() {
        "Namespace" => object["status"] = json!({"phase": "Active"}),
        "Pod" => {
            let containers = object["spec"]["containers"].as_array().cloned().unwrap_or_default();
            let statuses: Vec<Value> = containers
                .iter()
                .map(|container| {
                    json!({
                        "name": container["name"], "ready": true, "restartCount": 0,
                        "image": container["image"], "imageID": "", "started": true,
                        "state": {"running": {}},
                    })
                })
                .collect();
            object["status"] = json!({
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": statuses,
            });
        }
        "PersistentVolume" => object["status"] = json!({"phase": "Available"}),
        "PersistentVolumeClaim" => object["status"] = json!({"phase": "Pending"}),
        _ => {}
    }
}

/// Reacts to a written object.
pub(super) fn react(store: &mut ObjectStore, key: &Key) {
    let kind = store.kinds[key.0].name.clone();
    if kind == "PersistentVolume" || kind == "PersistentVolumeClaim" {
        bind(store);
    }
}

/// Reacts to a removed object.
pub(super) fn after_removal(store: &mut ObjectStore, key: &Key, removed: &Value) {
    if store.kinds[key.0].name != "PersistentVolumeClaim" {
        return;
    }
    let Some(volumes) = store.place_of_kind("PersistentVolume") else { return };
    let volume = removed["spec"]["volumeName"].as_str().unwrap_or_default();
    let key = (volumes, String::new(), volume.to_owned());
    store.force(&key, |volume| volume["status"]["phase"] = json!("Released"));
}

/// Binds claims to the volumes that they name, or that name them; and creates volumes for the others.
fn bind(store: &mut ObjectStore) {
    let (Some(claims), Some(volumes)) =
        (store.place_of_kind("PersistentVolumeClaim"), store.place_of_kind("PersistentVolume"))
    else {
        return;
    };
    let pending: Vec<(Key, Value)> = store
        .of_kind(claims)
        .filter(|(_, claim)| claim["status"]["phase"] != "Bound")
        .map(|(key, claim)| (key.clone(), (**claim).clone()))
        .collect();
    for (key, claim) in pending {
        let wanted = claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
        let is_reserved = |volume: &Value| {
            let reference = &volume["spec"]["claimRef"];
            reference["namespace"] == *key.1 && reference["name"] == *key.2
        };
        let found = store
            .of_kind(volumes)
            .find(|(volume_key, volume)| {
                let is_free = volume["spec"]["claimRef"].is_null() || is_reserved(volume);
                is_free && (volume_key.2 == wanted || wanted.is_empty() && is_reserved(volume))
            })
            .map(|(volume_key, _)| volume_key.clone());
        let Some(volume) = found else { continue };
        let (name, uid) = (volume.2.clone(), claim["metadata"]["uid"].clone());
        store.force(&volume, |volume| {
            volume["spec"]["claimRef"] = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": key.1, "name": key.2, "uid": uid,
            });
            volume["status"]["phase"] = json!("Bound");
        });
        store.force(&key, |claim| {
            claim["spec"]["volumeName"] = json!(name);
            claim["status"]["phase"] = json!("Bound");
        });
    }
}
