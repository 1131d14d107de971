//! Restores of claims from CSI snapshots, on an in-memory cluster.

use std::sync::Arc;

use bowline_engine::cluster::{Error, Fake};
use bowline_engine::restore::RestoreOutcome;
use bowline_store::file::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::csi::{CONTENTS, SNAPSHOTS};
use crate::support::restore::restore_of;
use crate::support::restore_csi::{archived_claim, cluster};

async fn restore(fake: &Arc<Fake>, objects: &[(&str, Value)]) -> RestoreOutcome {
    restore_of(Arc::clone(fake) as _, objects, CancellationToken::new()).await
}

#[tokio::test]
async fn claim_is_restored_from_its_snapshot_and_tracked() {
    let fake = Arc::new(cluster());
    let restored = restore(&fake, &archived_claim("fast")).await;
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
    let restored = restore(&fake, &archived_claim("late")).await;
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
        let restored = restore(&fake, &archived_claim("fast")).await;
        assert!(fake.object("persistentvolumeclaims", "shop", "data").is_none(), "{broken}");
        let results = restored.report.results();
        let errors: Vec<&String> = results.errors.namespaces["shop"].iter().collect();
        let of_claim = errors.iter().find(|text| text.contains("persistentvolumeclaims/data"));
        let of_claim = of_claim.unwrap_or_else(|| panic!("{errors:?}"));
        assert!(of_claim.contains("VolumeSnapshot vs was not restored"), "{of_claim}");
        assert!(restored.operations.is_empty());
    }
}

#[tokio::test]
async fn existing_claim_is_kept_without_additional_items() {
    let mut existing = archived_claim("fast").remove(1).1;
    existing["spec"]["volumeName"] = "pv-9".into();
    let fake = Arc::new(cluster().with(existing.clone()));
    let restored = restore(&fake, &archived_claim("fast")).await;
    assert_eq!(restored.report.error_count(), 0, "{:?}", restored.report.results());
    assert_eq!(fake.object("persistentvolumeclaims", "shop", "data"), Some(existing));
    assert!(restored.operations.is_empty() && restored.volumes.is_empty());
}
