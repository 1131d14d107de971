use super::*;

fn completed_snapshots() -> Arc<CompletedSnapshots> {
    let completed = Arc::new(CompletedSnapshots::default());
    completed.add(CsiSnapshotRecord {
        volume: "pv-1".into(),
        namespace: "shop".into(),
        claim: "data".into(),
        name: "velero-data-1".into(),
        class: "fast".into(),
        driver: "d.io".into(),
        content: "snapcontent-1".into(),
        handle: "snap-1".into(),
        deletion_policy: "Delete".into(),
        restore_size: Some(2 << 30),
        operation: "shop/velero-data-1/2026-01-01T00:00:00Z".into(),
        ..CsiSnapshotRecord::default()
    });
    completed
}

fn backup(phase: Option<BackupPhase>) -> Encoded<Backup> {
    let mut backup = Backup::default();
    backup.metadata.name = Some("nightly".into());
    backup.status = Some(bowline_api::BackupStatus { phase, ..Default::default() });
    Encoded::new(backup)
}

async fn execute(name: &str, object: Value, phase: Option<BackupPhase>) -> (BackupOutput, Value) {
    let actions = built_in(&completed_snapshots());
    assert_eq!(actions.len(), 4, "all names are valid");
    let action = actions.iter().find(|action| action.name.as_str() == name).unwrap();
    let item = Item::from_object(&object).unwrap();
    let output = action.plugin.execute(&item, &backup(phase)).await.unwrap();
    let item = output.item.parse().unwrap();
    (output, item)
}

fn claim(name: &str, storage: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "db"}},
        "spec": {"resources": {"requests": {"storage": storage}}},
    })
}

fn texts(ids: &[ResourceIdentifier]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn claim_names_its_snapshot_and_requests_at_least_the_restore_size() {
    const NAME: &str = "velero.io/csi-pvc-backupper";
    for (requested, stored) in [("1Gi", "2Gi"), ("2Gi", "2Gi"), ("3G", "3G"), ("10Gi", "10Gi")] {
        let (output, item) = execute(NAME, claim("data", requested), None).await;
        assert_eq!(item["spec"]["resources"]["requests"]["storage"], stored);
        let labels = json!({
            "app": "db",
            "velero.io/backup-name": "nightly",
            "velero.io/volume-snapshot-name": "velero-data-1",
        });
        assert_eq!(item["metadata"]["labels"], labels);
        let marks = &item["metadata"]["annotations"];
        assert_eq!(marks["velero.io/volume-snapshot-name"], "velero-data-1");
        assert_eq!(marks["backup.velero.io/must-include-additional-items"], "true");
        let added = texts(&output.additional_items);
        assert_eq!(added, ["volumesnapshots.snapshot.storage.k8s.io/shop/velero-data-1"]);
        assert_eq!(output.operation, None);
    }
    let mut bare = claim("data", "1");
    bare["spec"] = json!({});
    let (_, item) = execute(NAME, bare, None).await;
    assert_eq!(item["spec"]["resources"]["requests"]["storage"], "2Gi");
    for (of, phase) in [("other", None), ("data", Some(BackupPhase::Finalizing))] {
        let before = claim(of, "1Gi");
        let (output, item) = execute(NAME, before.clone(), phase).await;
        assert_eq!((item, output.additional_items.len()), (before, 0));
    }
}

#[tokio::test]
async fn a_volume_snapshot_brings_its_content_and_class_and_an_operation() {
    let snapshot = |name: &str| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": "shop"},
        })
    };
    let (output, item) = execute(BACKUPPER, snapshot("velero-data-1"), None).await;
    let marks = &item["metadata"]["annotations"];
    assert_eq!(marks["velero.io/csi-volumesnapshot-handle"], "snap-1");
    assert_eq!(marks["velero.io/csi-volumesnapshot-restore-size"], "2Gi");
    let content = "volumesnapshotcontents.snapshot.storage.k8s.io/snapcontent-1";
    let class = "volumesnapshotclasses.snapshot.storage.k8s.io/fast";
    assert_eq!(texts(&output.additional_items), [class, content]);
    let own = "volumesnapshots.snapshot.storage.k8s.io/shop/velero-data-1";
    assert_eq!(texts(&output.post_operation_items), [own, content]);
    let operation = output.operation.unwrap();
    assert_eq!(operation.as_str(), "shop/velero-data-1/2026-01-01T00:00:00Z");
    let (output, item) = execute(BACKUPPER, snapshot("of-somebody"), None).await;
    assert_eq!((item, output.operation), (snapshot("of-somebody"), None));

    let phase = Some(BackupPhase::FinalizingPartiallyFailed);
    let (output, item) = execute(BACKUPPER, snapshot("velero-data-1"), phase.clone()).await;
    assert_eq!(item["metadata"]["annotations"]["velero.io/skip-from-backup"], "true");
    assert_eq!(output.operation, None);
    let mut annotated = snapshot("velero-data-1");
    annotated["metadata"]["annotations"] = json!({"velero.io/csi-volumesnapshot-handle": "snap-1"});
    let (output, item) = execute(BACKUPPER, annotated.clone(), phase).await;
    assert_eq!((item, output.operation), (annotated, None));
}

#[tokio::test]
async fn contents_and_classes_bring_their_secrets() {
    for (name, kind, mark) in [
        (
            "velero.io/csi-volumesnapshotcontent-backupper",
            "VolumeSnapshotContent",
            "csi.storage.k8s.io/snapshotter-secret",
        ),
        (
            "velero.io/csi-volumesnapshotclass-backupper",
            "VolumeSnapshotClass",
            "csi.storage.k8s.io/snapshotter-list-secret",
        ),
    ] {
        let mut object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "x", "annotations": {format!("{mark}-name"): "s"}},
        });
        let (output, _) = execute(name, object.clone(), None).await;
        assert!(output.additional_items.is_empty(), "it takes name and namespace");
        object["metadata"]["annotations"][format!("{mark}-namespace")] = "csi".into();
        let (output, item) = execute(name, object, None).await;
        assert_eq!(texts(&output.additional_items), ["secrets/csi/s"]);
        let marks = &item["metadata"]["annotations"];
        assert_eq!(marks["backup.velero.io/must-include-additional-items"], "true");
    }
}
