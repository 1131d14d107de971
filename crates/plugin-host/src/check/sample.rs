//! What plugins are shown when nothing else is given.

use bowline_api::{Backup, BackupSpec, Restore, RestoreSpec};
use bowline_plugin::{Encoded, InvalidItem, Item, ResourceIdentifier};
use serde_json::json;

/// The name of everything here.
pub(super) const NAME: &str = "bowline-check";

/// A pod that exists nowhere.
pub(super) fn pod() -> Result<Item, InvalidItem> {
    Item::from_object(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAME, "labels": {"app": NAME}},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }))
}

/// The identifier of a pod that exists nowhere.
pub(super) fn pod_identifier() -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "pods".to_owned(),
        namespace: NAME.to_owned(),
        name: NAME.to_owned(),
    }
}

/// A PersistentVolume of a driver that nobody has.
pub(super) fn persistent_volume() -> Result<Item, InvalidItem> {
    Item::from_object(&json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": NAME},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "unknown.example.com", "volumeHandle": NAME},
        },
    }))
}

/// The backup that actions take part in.
pub(super) fn backup() -> Encoded<Backup> {
    Encoded::new(Backup::new(NAME, BackupSpec::default()))
}

/// The restore that actions take part in.
pub(super) fn restore() -> Encoded<Restore> {
    Encoded::new(Restore::new(NAME, RestoreSpec::default()))
}
