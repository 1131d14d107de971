use bowline_store::file::CsiSnapshotInfo;

use super::super::super::csi::tests::{Given, WISHES, given, restore, show, with_csi};
use super::*;
use crate::cluster::Fake;
use crate::restore::download::Volumes;
use crate::restore::modifier::Modifiers;
use crate::restore::reset::Wishes;

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
fn a_claim_is_made_from_the_snapshot_that_it_names() {
    let csi = info(Method::CsiSnapshot);
    let native = info(Method::NativeSnapshot);
    let moved = BackupVolumeInfo { snapshot_data_moved: true, ..csi.clone() };
    let failed = BackupVolumeInfo { result: Some(Outcome::Failed), ..csi.clone() };
    let skipped = BackupVolumeInfo { skipped: true, backup_method: None, ..csi.clone() };
    let known = Known { restore_pvs: true, ..Known::default() };
    let named = Known { snapshot: Some("vs"), ..known };
    let with = |info| Known { info: Some(info), ..named };
    let unnamed = |info| Known { info: Some(info), ..known };
    let no_pvs = |known| Known { restore_pvs: false, ..known };
    let lacking = |word: &str| format!("lacking {word}");
    for (known, expected) in [
        (known, "leave".to_owned()),
        (no_pvs(known), "leave".to_owned()),
        (named, "from vs".to_owned()),
        (Known { snapshot: Some(""), ..known }, "leave".to_owned()),
        (Known { is_moved: true, ..named }, "leave".to_owned()),
        (with(&csi), "from vs".to_owned()),
        // What the backup says of the volume counts more than what it says of itself.
        (Known { is_moved: true, ..with(&csi) }, "from vs".to_owned()),
        (with(&moved), "leave".to_owned()),
        (with(&native), "leave".to_owned()),
        (with(&skipped), "leave".to_owned()),
        (unnamed(&native), "leave".to_owned()),
        (with(&failed), lacking("saving it had failed")),
        (unnamed(&csi), lacking("CSI snapshot s1 and cannot be brought back: the claim does not")),
        (no_pvs(named), "empty restorePVs is false".to_owned()),
        (no_pvs(with(&failed)), "empty restorePVs is false".to_owned()),
    ] {
        let found = match fate(&known) {
            Fate::Leave => "leave".to_owned(),
            Fate::From(snapshot) => format!("from {snapshot}"),
            Fate::Empty(why) => format!("empty {why}"),
            Fate::Lacking(why) => format!("lacking {why}"),
        };
        let (kind, word) = expected.split_once(' ').unwrap_or((&expected, ""));
        assert!(found.starts_with(kind) && found.contains(word), "{known:?}: {found}");
    }
}

#[test]
fn what_the_cluster_lacks_is_told() {
    let class = |name: &str, provisioner: &str, is_default| StorageClass {
        name: name.into(),
        provisioner: provisioner.into(),
        is_default,
        waits_for_consumer: false,
    };
    let drivers = BTreeSet::from(["a.driver".to_owned()]);
    let classes = [class("fast", "a.driver", true), class("other", "b.driver", false)];
    let source = Source { driver: "a.driver".into(), ..Source::default() };
    let all = || Needs { serves_snapshots: true, drivers: &drivers, classes: &classes };
    let none = BTreeSet::new();
    let claim = |class: &str| json!({"spec": {"storageClassName": class}});
    let old = json!({"metadata": {"annotations": {
        "volume.beta.kubernetes.io/storage-class": "gone",
    }}});
    for (claim, needs, expected) in [
        (claim("fast"), all(), None),
        (json!({"spec": {}}), all(), None),
        (claim("fast"), Needs { serves_snapshots: false, ..all() }, Some("does not serve")),
        (claim("fast"), Needs { drivers: &none, ..all() }, Some("a.driver is not installed")),
        (claim("gone"), all(), Some("no storage class \"gone\"")),
        (old, all(), Some("no storage class \"gone\"")),
        (claim(""), all(), Some("wants no storage class")),
        (json!({"spec": {}}), Needs { classes: &classes[1..], ..all() }, Some("no default one")),
        (claim("other"), all(), Some("other is of b.driver, but the snapshot of the driver a.d")),
    ] {
        let found = missing(&claim, &source, &needs);
        match (&found, expected) {
            (None, None) => {}
            (Some(found), Some(word)) => assert!(found.contains(word), "{found}"),
            _ => panic!("{claim}: {found:?}"),
        }
    }
}

#[test]
fn a_claim_points_to_its_snapshot_and_is_large_enough_for_it() {
    let claim = |storage: &str| {
        json!({"spec": {
            "volumeName": "pv-1", "storageClassName": "fast",
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"},
            "resources": {"requests": {"storage": storage}},
        }})
    };
    for (asked, size, expected) in [
        ("1Gi", Some(1 << 30), "1Gi"),
        ("1Gi", Some((1 << 30) + 1), "1073741825"),
        ("2Gi", Some(1 << 30), "2Gi"),
        ("1Gi", None, "1Gi"),
        ("odd", Some(1 << 30), "odd"),
    ] {
        let mut changed = claim(asked);
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
async fn its_snapshot_comes_first_whatever_the_filters_say() {
    let Given { csi, report, .. } = given(with_csi(), &objects(), Volumes::default(), WISHES);
    let output = show(&Claim::new(&csi), &claim()).await.unwrap();
    assert_eq!(output.additional_items, [object(SNAPSHOTS, "shop", "vs")]);
    let made: Value = output.item.parse().unwrap();
    assert_eq!(made["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE], "true");
    assert_eq!(made["spec"]["dataSource"]["name"], name_in_restore("uid", "shop", "vs"));
    assert_eq!(made["spec"].get("volumeName"), None);
    assert_eq!(report.warnings(), 0);
}

#[tokio::test]
async fn one_that_is_there_stays_as_it_is_and_nothing_is_made_for_it() {
    let mut there = claim();
    there["metadata"]["namespace"] = restore().spec.namespace_mapping["shop"].as_str().into();
    let fake = with_csi().with(there);
    let Given { csi, .. } = given(fake, &objects(), Volumes::default(), WISHES);
    let output = show(&Claim::new(&csi), &claim()).await.unwrap();
    assert!(output.additional_items.is_empty());
    assert_eq!(output.item.parse::<Value>().unwrap(), claim());
}

#[test]
fn one_that_the_restore_made_before_a_restart_is_its_own() {
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
        assert_eq!(is_of(&found, &restore), expected, "{found}");
    }
}

#[tokio::test]
async fn one_whose_data_cannot_be_brought_back_is_an_error_unless_it_may_be_empty() {
    let mut restored = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    });
    restored["metadata"]["labels"] = json!({"velero.io/restore-name": "earlier"});
    let of_restore = with_csi().with(restored);
    let without_class = with_csi();
    without_class.remove("storageclasses.storage.k8s.io", "", "fast");
    for (fake, objects, word) in [
        (Fake::usual(), &objects()[..], "does not serve VolumeSnapshots"),
        (of_restore, &objects()[..], "the CSI driver a.driver is not installed"),
        (without_class, &objects()[..], "no storage class \"fast\""),
        (with_csi(), &objects()[..1], "VolumeSnapshotContent vsc: it is not in the backup"),
        (with_csi(), &[], "VolumeSnapshot shop/vs: it is not in the backup"),
    ] {
        let fake = fake.with(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "unused"}, "provisioner": "x",
        }));
        let wishes = Wishes { allow_empty: true, ..WISHES };
        let Given { csi, report, .. } = given(fake, objects, Volumes::default(), wishes);
        let output = show(&Claim::new(&csi), &claim()).await.unwrap();
        let made: Value = output.item.parse().unwrap();
        assert!(
            made["spec"].get("dataSource").is_none() && made["spec"].get("volumeName").is_none()
        );
        assert!(output.additional_items.is_empty());
        let warnings = report.results().warnings.namespaces["shop"].join("; ");
        assert!(
            warnings.contains("it is created empty: ") && warnings.contains(word),
            "{warnings}"
        );
    }
    let Given { csi, report, .. } = given(with_csi(), &[], Volumes::default(), WISHES);
    let error = show(&Claim::new(&csi), &claim()).await.unwrap_err();
    assert!(error.message().contains("it is not in the backup"), "{error}");
    assert!(error.message().contains("--allow-empty-volumes"), "{error}");
    assert_eq!(report.warnings(), 0);
}

#[tokio::test]
async fn the_class_and_the_driver_count_that_modifiers_leave() {
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
        let Given { csi, .. } = given(fake, &objects(), Volumes::default(), WISHES);
        let csi = Arc::new(Csi { modifiers, ..Arc::into_inner(csi).unwrap() });
        let shown = show(&Claim::new(&csi), &claim()).await;
        assert_eq!(shown.is_ok(), is_restored, "{shown:?}");
    }
}

#[tokio::test]
async fn a_node_that_knows_the_driver_is_enough() {
    let fake = with_csi();
    fake.remove("csidrivers.storage.k8s.io", "", "a.driver");
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
        "spec": {"drivers": [{"name": "a.driver", "nodeID": "n"}]},
    }));
    let Given { csi, .. } = given(fake, &objects(), Volumes::default(), WISHES);
    let output = show(&Claim::new(&csi), &claim()).await.unwrap();
    assert_eq!(output.additional_items.len(), 1);
}

#[tokio::test]
async fn without_volumes_it_is_created_empty_and_that_is_told() {
    let wishes = Wishes { restore_pvs: false, ..WISHES };
    let Given { csi, report, .. } = given(with_csi(), &objects(), Volumes::default(), wishes);
    let output = show(&Claim::new(&csi), &claim()).await.unwrap();
    let made: Value = output.item.parse().unwrap();
    assert!(made["spec"].get("dataSource").is_none() && made["spec"].get("volumeName").is_none());
    assert_eq!(report.warnings(), 1);
    // One that has no snapshot is none of ours.
    let mut plain = claim();
    plain["metadata"]["annotations"] = json!({});
    let output = show(&Claim::new(&csi), &plain).await.unwrap();
    assert_eq!(output.item.parse::<Value>().unwrap(), plain);
}
