//! Sample input for plugins, used if nothing else is given.

use bowline_api::{
    Backup, BackupPhase, BackupSpec, BackupStatus, Duration, Restore, RestorePhase, RestoreSpec,
    RestoreStatus,
};
use bowline_plugin::{Encoded, InvalidItem, Item, ResourceIdentifier};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::Input;

/// The name of all samples that are not unique to one check.
pub(super) const NAME: &str = "bowline-check";

/// A pod that does not exist.
pub(super) fn pod() -> Result<Item, InvalidItem> {
    Item::from_object(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAME, "labels": {"app": NAME}},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }))
}

/// The identifier of a pod that does not exist.
pub(super) fn pod_identifier() -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "pods".to_owned(),
        namespace: NAME.to_owned(),
        name: NAME.to_owned(),
    }
}

/// A PersistentVolume of a driver that does not exist.
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

/// The backup that actions take part in. Name and uid are unique to the check: a plugin may derive
/// the ids of its operations from them. The backup is in progress, as in every call of an action,
/// and has the fields that a server has set by then: plugins rely on them.
pub(super) fn backup(input: &Input) -> Encoded<Backup> {
    let spec = BackupSpec {
        included_namespaces: vec!["*".to_owned()],
        storage_location: "default".to_owned(),
        ttl: Duration::from_seconds(30 * 24 * 3600),
        csi_snapshot_timeout: Duration::from_seconds(600),
        item_operation_timeout: Duration::from_seconds(4 * 3600),
        ..BackupSpec::default()
    };
    let mut backup = Backup::new(&input.name(), spec);
    backup.metadata.uid = Some(input.name());
    backup.metadata.namespace = Some(bowline_api::DEFAULT_NAMESPACE.to_owned());
    backup.status = Some(BackupStatus {
        phase: Some(BackupPhase::InProgress),
        version: 1,
        format_version: "1.1.0".to_owned(),
        start_timestamp: Some(now()),
        ..BackupStatus::default()
    });
    Encoded::new(backup)
}

/// The restore that actions take part in, with a name and uid unique to the check, in progress as
/// well.
pub(super) fn restore(input: &Input) -> Encoded<Restore> {
    let spec = RestoreSpec {
        backup_name: input.name(),
        included_namespaces: vec!["*".to_owned()],
        item_operation_timeout: Duration::from_seconds(4 * 3600),
        ..RestoreSpec::default()
    };
    let mut restore = Restore::new(&input.name(), spec);
    restore.metadata.uid = Some(input.name());
    restore.metadata.namespace = Some(bowline_api::DEFAULT_NAMESPACE.to_owned());
    restore.status = Some(RestoreStatus {
        phase: Some(RestorePhase::InProgress),
        start_timestamp: Some(now()),
        ..RestoreStatus::default()
    });
    Encoded::new(restore)
}

fn now() -> Time {
    Time(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Plugins dereference `status.startTimestamp`, which a run always has.
    #[test]
    fn backup_and_restore_are_in_progress_since_a_time() {
        let input = Input::new("id").unwrap();
        for sample in [backup(&input).json(), restore(&input).json()] {
            let sample: Value = serde_json::from_slice(&sample).unwrap();
            assert_eq!(sample["status"]["phase"], "InProgress", "{sample}");
            let started = sample["status"]["startTimestamp"].as_str().unwrap_or_default();
            assert!(started.parse::<Timestamp>().is_ok(), "{sample}");
            assert_eq!(sample["metadata"]["namespace"], "velero");
            assert_eq!(sample["spec"]["itemOperationTimeout"], "4h0m0s");
        }
    }
}
