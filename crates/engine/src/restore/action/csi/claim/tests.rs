use bowline_store::file::CsiSnapshotInfo;

use super::super::super::csi::tests::{
    CsiFixture, VOLUME_OPTIONS, csi_fixture, execute_action, restore, with_csi,
};
use super::*;
use crate::cluster::Fake;
use crate::download::BackupVolumes;
use crate::restore::modifier::Modifiers;
use crate::restore::reset::VolumeOptions;

fn info(method: Method) -> BackupVolumeInfo {
    BackupVolumeInfo {
        pv_name: "pv-1".into(),
        backup_method: Some(method),
        csi_snapshot_info: Some(CsiSnapshotInfo {
            snapshot_handle: "s1".into(),
            ..CsiSnapshotInfo::default()
        }),
        ..BackupVolumeInfo::default()
    }
}

#[test]
fn claim_is_restored_from_its_snapshot() {
    let csi = info(Method::CsiSnapshot);
    let native = info(Method::NativeSnapshot);
    let moved = BackupVolumeInfo { snapshot_data_moved: true, ..csi.clone() };
    let failed = BackupVolumeInfo { result: Some(Outcome::Failed), ..csi.clone() };
    let skipped = BackupVolumeInfo { skipped: true, backup_method: None, ..csi.clone() };
    let base = BackedUpClaim { restore_pvs: true, ..BackedUpClaim::default() };
    let named = BackedUpClaim { snapshot: Some("vs"), ..base };
    let with = |info| BackedUpClaim { info: Some(info), ..named };
    let unnamed = |info| BackedUpClaim { info: Some(info), ..base };
    let no_pvs = |claim| BackedUpClaim { restore_pvs: false, ..claim };
    let unavailable = |word: &str| format!("lacking {word}");
    for (claim, expected) in [
        (base, "leave".to_owned()),
        (no_pvs(base), "leave".to_owned()),
        (named, "from vs".to_owned()),
        (BackedUpClaim { snapshot: Some(""), ..base }, "leave".to_owned()),
        (BackedUpClaim { is_data_moved: true, ..named }, "leave".to_owned()),
        (with(&csi), "from vs".to_owned()),
        // The information about the volume takes precedence over that about the backup.
        (BackedUpClaim { is_data_moved: true, ..with(&csi) }, "from vs".to_owned()),
        (with(&moved), "leave".to_owned()),
        (with(&native), "leave".to_owned()),
        (with(&skipped), "leave".to_owned()),
        (unnamed(&native), "leave".to_owned()),
        (with(&failed), unavailable("its snapshot failed")),
        (unnamed(&csi), unavailable("CSI snapshot s1 and cannot be restored: the claim does not")),
        (no_pvs(named), "empty restorePVs is false".to_owned()),
        (no_pvs(with(&failed)), "empty restorePVs is false".to_owned()),
    ] {
        let found = match decide_claim(&claim) {
            ClaimDecision::Unchanged => "leave".to_owned(),
            ClaimDecision::FromSnapshot(snapshot) => format!("from {snapshot}"),
            ClaimDecision::Empty(reason) => format!("empty {reason}"),
            ClaimDecision::DataUnavailable(reason) => format!("lacking {reason}"),
        };
        let (kind, word) = expected.split_once(' ').unwrap_or((&expected, ""));
        assert!(found.starts_with(kind) && found.contains(word), "{claim:?}: {found}");
    }
}

#[test]
fn missing_cluster_support_is_reported() {
    let class = |name: &str, provisioner: &str, is_default| StorageClass {
        name: name.into(),
        provisioner: provisioner.into(),
        is_default,
        waits_for_consumer: false,
    };
    let drivers = BTreeSet::from(["a.driver".to_owned()]);
    let classes = [class("fast", "a.driver", true), class("other", "b.driver", false)];
    let source = SnapshotSource { driver: "a.driver".into(), ..SnapshotSource::default() };
    let all = || ClusterSupport { serves_snapshots: true, drivers: &drivers, classes: &classes };
    let none = BTreeSet::new();
    let claim = |class: &str| json!({"spec": {"storageClassName": class}});
    let old = json!({"metadata": {"annotations": {
        "volume.beta.kubernetes.io/storage-class": "gone",
    }}});
    for (claim, support, expected) in [
        (claim("fast"), all(), None),
        (json!({"spec": {}}), all(), None),
        (
            claim("fast"),
            ClusterSupport { serves_snapshots: false, ..all() },
            Some("does not serve"),
        ),
        (
            claim("fast"),
            ClusterSupport { drivers: &none, ..all() },
            Some("a.driver is not installed"),
        ),
        (claim("gone"), all(), Some("no storage class \"gone\"")),
        (old, all(), Some("no storage class \"gone\"")),
        (claim(""), all(), Some("has an empty storageClassName")),
        (
            json!({"spec": {}}),
            ClusterSupport { classes: &classes[1..], ..all() },
            Some("no default one"),
        ),
        (claim("other"), all(), Some("other uses b.driver, but the snapshot is of driver a.d")),
    ] {
        let found = missing_requirement(&claim, &source, &support);
        match (&found, expected) {
            (None, None) => {}
            (Some(found), Some(word)) => assert!(found.to_string().contains(word), "{found}"),
            _ => panic!("{claim}: {found:?}"),
        }
    }
}

#[test]
fn claim_references_its_snapshot_and_requests_its_size() {
    let claim = |storage: &str| {
        json!({"spec": {
            "volumeName": "pv-1", "storageClassName": "fast",
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"},
            "resources": {"requests": {"storage": storage}},
        }})
    };
    for (requested, size, expected) in [
        ("1Gi", Some(1 << 30), "1Gi"),
        ("1Gi", Some((1 << 30) + 1), "1073741825"),
        ("2Gi", Some(1 << 30), "2Gi"),
        ("1Gi", None, "1Gi"),
        ("odd", Some(1 << 30), "odd"),
    ] {
        let mut changed = claim(requested);
        change(&mut changed, "abc", size);
        let expected = json!({"spec": {
            "storageClassName": "fast",
            "dataSource": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "abc",
            },
            "resources": {"requests": {"storage": expected}},
        }});
        assert_eq!(changed, expected);
        assert_eq!(data_source(&changed), Some("abc"));
    }
    assert_eq!(data_source(&claim("1Gi")), None);
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "shop", "name": "data",
            "annotations": {"velero.io/volume-snapshot-name": "vs"},
        },
        "spec": {
            "volumeName": "pv-1", "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

fn objects() -> [Value; 2] {
    [
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": "shop", "name": "vs"},
            "status": {"boundVolumeSnapshotContentName": "vsc"},
        }),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "vsc"}, "spec": {"driver": "a.driver"},
            "status": {"snapshotHandle": "s1"},
        }),
    ]
}

#[tokio::test]
async fn snapshot_of_a_claim_must_be_included() {
    let CsiFixture { csi, report, .. } =
        csi_fixture(with_csi(), &objects(), BackupVolumes::default(), VOLUME_OPTIONS);
    let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap();
    assert_eq!(output.additional_items, [object(SNAPSHOTS, "shop", "vs")]);
    let changed: Value = output.item.parse().unwrap();
    assert_eq!(changed["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE], "true");
    assert_eq!(changed["spec"]["dataSource"]["name"], name_in_restore("uid", "shop", "vs"));
    assert_eq!(changed["spec"].get("volumeName"), None);
    assert_eq!(report.warning_count(), 0);
}

#[tokio::test]
async fn existing_claim_is_unchanged() {
    let mut existing = claim();
    existing["metadata"]["namespace"] = restore().spec.namespace_mapping["shop"].as_str().into();
    let fake = with_csi().with(existing);
    let CsiFixture { csi, .. } =
        csi_fixture(fake, &objects(), BackupVolumes::default(), VOLUME_OPTIONS);
    let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap();
    assert!(output.additional_items.is_empty());
    assert_eq!(output.item.parse::<Value>().unwrap(), claim());
}

#[test]
fn claim_created_before_a_restart_is_recognised() {
    let mut restore = restore();
    let status = json!({"startTimestamp": "2026-01-01T00:00:05Z"});
    restore.status = Some(serde_json::from_value(status).unwrap());
    let found = |name: &str, created: &str| {
        json!({"metadata": {
            "labels": {"velero.io/restore-name": name}, "creationTimestamp": created,
        }})
    };
    for (found, expected) in [
        (found("r", "2026-01-01T00:00:05Z"), true),
        (found("r", "2026-01-01T00:00:09Z"), true),
        (found("r", "2026-01-01T00:00:04Z"), false),
        (found("s", "2026-01-01T00:00:09Z"), false),
        (json!({"metadata": {}}), false),
    ] {
        assert_eq!(is_created_by(&found, &restore), expected, "{found}");
    }
}

#[tokio::test]
async fn unavailable_data_is_an_error_unless_empty_volumes_are_allowed() {
    let mut restored = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    });
    restored["metadata"]["labels"] = json!({"velero.io/restore-name": "earlier"});
    let of_restore = with_csi().with(restored);
    let without_class = with_csi();
    without_class.remove("storageclasses.storage.k8s.io", "", "fast");
    for (fake, objects, word) in [
        (Fake::usual(), &objects()[..], "does not serve VolumeSnapshots"),
        (of_restore, &objects()[..], "CSI driver a.driver is not installed"),
        (without_class, &objects()[..], "no storage class \"fast\""),
        (with_csi(), &objects()[..1], "VolumeSnapshotContent vsc: the item is not in the backup"),
        (with_csi(), &[], "VolumeSnapshot shop/vs: the item is not in the backup"),
    ] {
        let fake = fake.with(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "unused"}, "provisioner": "x",
        }));
        let options = VolumeOptions { allow_empty: true, ..VOLUME_OPTIONS };
        let CsiFixture { csi, report, .. } =
            csi_fixture(fake, objects, BackupVolumes::default(), options);
        let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap();
        let changed: Value = output.item.parse().unwrap();
        assert!(
            changed["spec"].get("dataSource").is_none()
                && changed["spec"].get("volumeName").is_none()
        );
        assert!(output.additional_items.is_empty());
        let warnings = report.results().warnings.namespaces["shop"].join("; ");
        assert!(
            warnings.contains("the claim is created empty: ") && warnings.contains(word),
            "{warnings}"
        );
    }
    let CsiFixture { csi, report, .. } =
        csi_fixture(with_csi(), &[], BackupVolumes::default(), VOLUME_OPTIONS);
    let error = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap_err();
    assert!(error.message().contains("the item is not in the backup"), "{error}");
    assert!(error.message().contains("--allow-empty-volumes"), "{error}");
    assert_eq!(report.warning_count(), 0);
}

#[tokio::test]
async fn class_and_driver_are_checked_after_modifiers() {
    let rules = |rules: &str| {
        let rules = format!("version: v1\nresourceModifierRules:\n{rules}");
        Some(Modifiers::parse(&[("rules.yaml".to_owned(), rules)].into()).unwrap())
    };
    let renamed_class = "- conditions: {groupResource: persistentvolumeclaims}\n  patches:\n  - \
                         {operation: replace, path: /spec/storageClassName, value: slow}\n";
    let renamed_driver = "- conditions: {groupResource: volumesnapshotcontents.snapshot.storage.k8s.io}\n  \
                          patches:\n  - {operation: replace, path: /spec/driver, value: b.driver}\n";
    let cluster = |class: &str, driver: &str| {
        let fake = with_csi();
        fake.remove("storageclasses.storage.k8s.io", "", "fast");
        fake.remove("csidrivers.storage.k8s.io", "", "a.driver");
        fake.with(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver},
        }))
        .with(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": class}, "provisioner": driver,
        }))
    };
    let both = format!("{renamed_class}{renamed_driver}");
    for (fake, modifiers, is_restored) in [
        (cluster("slow", "a.driver"), rules(renamed_class), true),
        (cluster("fast", "b.driver"), rules(renamed_driver), true),
        (cluster("slow", "b.driver"), rules(&both), true),
        (cluster("slow", "a.driver"), None, false),
        (cluster("fast", "a.driver"), rules(renamed_class), false),
        (cluster("slow", "b.driver"), rules(renamed_class), false),
    ] {
        let CsiFixture { csi, .. } =
            csi_fixture(fake, &objects(), BackupVolumes::default(), VOLUME_OPTIONS);
        let csi = Arc::new(CsiRestoreContext { modifiers, ..Arc::into_inner(csi).unwrap() });
        let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await;
        assert_eq!(output.is_ok(), is_restored, "{output:?}");
    }
}

#[tokio::test]
async fn driver_on_a_node_counts_as_installed() {
    let fake = with_csi();
    fake.remove("csidrivers.storage.k8s.io", "", "a.driver");
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
        "spec": {"drivers": [{"name": "a.driver", "nodeID": "n"}]},
    }));
    let CsiFixture { csi, .. } =
        csi_fixture(fake, &objects(), BackupVolumes::default(), VOLUME_OPTIONS);
    let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap();
    assert_eq!(output.additional_items.len(), 1);
}

#[tokio::test]
async fn claim_is_created_empty_with_a_warning_if_restore_pvs_is_false() {
    let options = VolumeOptions { restore_pvs: false, ..VOLUME_OPTIONS };
    let CsiFixture { csi, report, .. } =
        csi_fixture(with_csi(), &objects(), BackupVolumes::default(), options);
    let output = execute_action(&CsiPvcAction::new(&csi), &claim()).await.unwrap();
    let changed: Value = output.item.parse().unwrap();
    assert!(
        changed["spec"].get("dataSource").is_none() && changed["spec"].get("volumeName").is_none()
    );
    assert_eq!(report.warning_count(), 1);
    // A claim without a snapshot is not affected.
    let mut plain = claim();
    plain["metadata"]["annotations"] = json!({});
    let output = execute_action(&CsiPvcAction::new(&csi), &plain).await.unwrap();
    assert_eq!(output.item.parse::<Value>().unwrap(), plain);
}
