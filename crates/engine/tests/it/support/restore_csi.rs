//! A claim with a CSI snapshot, and a cluster to restore it to.

use bowline_engine::cluster::Fake;
use bowline_engine::cluster::fake::usual_resources;
use bowline_engine::{GroupResource, Resource};
use serde_json::{Value, json};

use super::csi::{CONTENTS, SNAPSHOTS};
use super::objects::namespace;

/// A cluster with a CSI driver and two storage classes.
pub(crate) fn cluster() -> Fake {
    let served = |group: &str, kind: &str, plural: &str, is_namespaced| Resource {
        id: GroupResource::new(group, plural),
        kind: kind.into(),
        singular: kind.to_ascii_lowercase(),
        short_names: Vec::new(),
        is_namespaced,
        ..usual_resources().remove(0)
    };
    let more = [
        served("snapshot.storage.k8s.io", "VolumeSnapshot", "volumesnapshots", true),
        served("snapshot.storage.k8s.io", "VolumeSnapshotContent", "volumesnapshotcontents", false),
        served("storage.k8s.io", "CSIDriver", "csidrivers", false),
    ];
    let class = |name: &str, mode: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": "a.driver", "volumeBindingMode": mode,
        })
    };
    Fake::new(usual_resources().into_iter().chain(more))
        .with(namespace("shop"))
        .with(class("fast", "Immediate"))
        .with(class("late", "WaitForFirstConsumer"))
        .with(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "a.driver"},
        }))
}

/// Contents of an archive with one claim.
pub(crate) fn archived_claim(class: &str) -> Vec<(&'static str, Value)> {
    vec![
        (
            "persistentvolumes",
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"},
                "spec": {
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": "shop", "name": "data"},
                },
            }),
        ),
        (
            "persistentvolumeclaims",
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "namespace": "shop", "name": "data",
                    "annotations": {"velero.io/volume-snapshot-name": "vs"},
                },
                "spec": {
                    "volumeName": "pv-1", "storageClassName": class,
                    "resources": {"requests": {"storage": "1Mi"}},
                },
                "status": {"phase": "Bound"},
            }),
        ),
        (
            SNAPSHOTS,
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {"namespace": "shop", "name": "vs"},
                "spec": {"source": {"persistentVolumeClaimName": "data"}},
                "status": {"boundVolumeSnapshotContentName": "vsc"},
            }),
        ),
        (
            CONTENTS,
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                "metadata": {"name": "vsc"},
                "spec": {
                    "driver": "a.driver", "deletionPolicy": "Delete",
                    "source": {"volumeHandle": "v1"},
                    "volumeSnapshotRef": {"namespace": "shop", "name": "vs", "uid": "u"},
                },
                "status": {"snapshotHandle": "s1", "restoreSize": 2_097_152},
            }),
        ),
    ]
}
