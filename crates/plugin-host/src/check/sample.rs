//! What plugins are shown when nothing else is given.

use bowline_api::{Backup, BackupSpec, Restore, RestoreSpec};
use bowline_plugin::{Encoded, InvalidItem, Item, ResourceIdentifier};
use serde_json::json;

use super::Input;

/// The name of everything here that is not of one check alone.
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

/// The backup that actions take part in. Its name and uid are of one check alone: a plugin may make
/// the ids of its operations from them.
pub(super) fn backup(input: &Input) -> Encoded<Backup> {
    let mut backup = Backup::new(&input.name(), BackupSpec::default());
    backup.metadata.uid = Some(input.name());
    Encoded::new(backup)
}

/// The restore that actions take part in, with a name and uid of one check alone.
pub(super) fn restore(input: &Input) -> Encoded<Restore> {
    let mut restore = Restore::new(&input.name(), RestoreSpec::default());
    restore.metadata.uid = Some(input.name());
    Encoded::new(restore)
}
