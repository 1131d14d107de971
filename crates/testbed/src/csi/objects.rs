//! Objects that an administrator of a cluster with this driver would have created.

use serde_json::{Value, json};

use super::{CLASS, DRIVER, SNAPSHOT_CLASS, WAIT_FOR_CONSUMER_CLASS};

pub(super) fn all(groups: bool) -> Vec<Value> {
    let storage_class = |name, binding| {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": DRIVER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": binding,
        })
    };
    let snapshot_class = |api_version, kind, label: &str| {
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": SNAPSHOT_CLASS, "labels": {label: "true"}},
            "driver": DRIVER,
            "deletionPolicy": "Delete",
        })
    };
    let mut objects = vec![
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": false, "fsGroupPolicy": "File"},
        }),
        storage_class(CLASS, "Immediate"),
        storage_class(WAIT_FOR_CONSUMER_CLASS, "WaitForFirstConsumer"),
        snapshot_class(
            "snapshot.storage.k8s.io/v1",
            "VolumeSnapshotClass",
            "velero.io/csi-volumesnapshot-class",
        ),
    ];
    if groups {
        objects.push(snapshot_class(
            "groupsnapshot.storage.k8s.io/v1beta1",
            "VolumeGroupSnapshotClass",
            "velero.io/csi-volumegroupsnapshot-class",
        ));
    }
    objects
}
