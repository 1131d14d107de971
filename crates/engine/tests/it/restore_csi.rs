//! Restores of claims that CSI drivers took snapshots of, on a cluster in memory.

use std::sync::Arc;

use bowline_engine::cluster::fake::usual_resources;
use bowline_engine::cluster::{Error, Fake};
use bowline_engine::restore::RestoreOutcome;
use bowline_engine::{GroupResource, Resource};
use bowline_store::file::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::backup::namespace;
use crate::restore_failures::restore_of;

pub(crate) const SNAPSHOTS: &str = "volumesnapshots.snapshot.storage.k8s.io";
pub(crate) const CONTENTS: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";

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

/// What is in an archive of one claim.
pub(crate) fn objects(class: &str) -> Vec<(&'static str, Value)> {
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

async fn restore(fake: &Arc<Fake>, objects: &[(&str, Value)]) -> RestoreOutcome {
    restore_of(Arc::clone(fake) as _, objects, CancellationToken::new()).await
}

#[tokio::test]
async fn claim_is_restored_from_its_snapshot_and_tracked() {
    let fake = Arc::new(cluster());
    let restored = restore(&fake, &objects("fast")).await;
    assert_eq!(restored.report.error_count(), 0, "{:?}", restored.report.results());
    assert_eq!(restored.report.warning_count(), 0, "{:?}", restored.report.results());
    let created: Vec<String> = fake.creations().iter().map(|id| id.resource.clone()).collect();
    let expected = ["volumesnapshotcontents", "volumesnapshots", "persistentvolumeclaims"];
    assert_eq!(created, expected, "what others are made from comes first");
    let claim = fake.object("persistentvolumeclaims", "shop", "data").unwrap();
    let source = claim["spec"]["dataSource"]["name"].as_str().unwrap();
    let snapshot = fake.object(SNAPSHOTS, "shop", source).unwrap();
    assert_eq!(snapshot["spec"], json!({"source": {"volumeSnapshotContentName": source}}));
    let content = fake.object(CONTENTS, "", source).unwrap();
    assert_eq!(content["spec"]["source"], json!({"snapshotHandle": "s1"}));
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2097152");
    assert!(claim["metadata"]["annotations"].get("velero.io/volume-snapshot-name").is_none());

    let [operation] = &restored.operations[..] else { panic!("{:?}", restored.operations) };
    assert_eq!(operation.plugin.as_str(), "velero.io/csi-pvc-restorer");
    let uid = claim["metadata"]["uid"].as_str().unwrap();
    assert_eq!(operation.id.as_str(), format!("shop/data/{uid}"));
    let [volume] = &restored.volumes[..] else { panic!("{:?}", restored.volumes) };
    assert_eq!(volume.restore_method, Some(Method::CsiSnapshot));
    let csi = volume.csi_snapshot_info.as_ref().unwrap();
    assert_eq!((csi.snapshot_handle.as_str(), csi.driver.as_str()), ("s1", "a.driver"));
    assert_eq!(csi.vsc_name, source);
}

#[tokio::test]
async fn claim_waiting_for_a_consumer_is_not_tracked() {
    let fake = Arc::new(cluster());
    let restored = restore(&fake, &objects("late")).await;
    assert_eq!(restored.report.error_count(), 0, "{:?}", restored.report.results());
    assert!(restored.operations.is_empty());
    assert_eq!(restored.volumes.len(), 1);
}

#[tokio::test]
async fn claim_needs_its_snapshot_and_content() {
    let refused = || Error::Refused { code: 422, reason: "Invalid".into(), message: "no".into() };
    for broken in [CONTENTS, SNAPSHOTS] {
        let fake = Arc::new(cluster());
        fake.fail_write(broken, refused);
        let restored = restore(&fake, &objects("fast")).await;
        assert!(fake.object("persistentvolumeclaims", "shop", "data").is_none(), "{broken}");
        let results = restored.report.results();
        let errors: Vec<&String> = results.errors.namespaces["shop"].iter().collect();
        let of_claim = errors.iter().find(|text| text.contains("persistentvolumeclaims/data"));
        let of_claim = of_claim.unwrap_or_else(|| panic!("{errors:?}"));
        assert!(of_claim.contains("its VolumeSnapshot vs was not restored"), "{of_claim}");
        assert!(restored.operations.is_empty());
    }
}

#[tokio::test]
async fn existing_claim_is_kept_without_additional_items() {
    let mut existing = objects("fast").remove(1).1;
    existing["spec"]["volumeName"] = "pv-9".into();
    let fake = Arc::new(cluster().with(existing.clone()));
    let restored = restore(&fake, &objects("fast")).await;
    assert_eq!(restored.report.error_count(), 0, "{:?}", restored.report.results());
    assert_eq!(fake.object("persistentvolumeclaims", "shop", "data"), Some(existing));
    assert!(restored.operations.is_empty() && restored.volumes.is_empty());
}
