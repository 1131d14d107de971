use serde_json::Value;

use super::*;

#[test]
fn names_begin_as_veleros_do_and_fit_into_a_label() {
    let request = "0123456789abcdef";
    assert_eq!(snapshot_name("data", request), "velero-data-0123456789");
    let long = snapshot_name(&"x".repeat(253), request);
    assert_eq!(long.len(), MAX_LABEL_LENGTH);
    assert!(long.starts_with("velero-xxx") && long.ends_with("x0123456789"), "{long}");
    assert_ne!(snapshot_name("data", request), snapshot_name("data", "1123456789abcdef"));
}

#[test]
fn amounts_of_bytes_are_written_in_the_largest_unit_that_divides_them() {
    for (bytes, text) in [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1500, "1500"),
        (10 << 20, "10Mi"),
        (3 << 30, "3Gi"),
        ((1 << 30) + (1 << 20), "1025Mi"),
        (1 << 60, "1Ei"),
    ] {
        assert_eq!(quantity(bytes), text);
    }
}

#[test]
fn a_snapshot_is_made_as_velero_makes_it() {
    let record = CsiSnapshotRecord {
        namespace: "shop".into(),
        claim: "data".into(),
        name: "velero-data-1".into(),
        class: "fast".into(),
        ..CsiSnapshotRecord::default()
    };
    let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
    let made = snapshot(&record, &labels, "nightly", "u-1").unwrap();
    let expected = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": "velero-data-1",
            "namespace": "shop",
            "labels": {
                "app": "db",
                "velero.io/backup-name": "nightly",
                "velero.io/backup-uid": "u-1",
            },
        },
        "spec": {
            "source": {"persistentVolumeClaimName": "data"},
            "volumeSnapshotClassName": "fast",
        },
    });
    assert_eq!(made.parse::<Value>().unwrap(), expected);
    let read = Snapshot::read(&made).unwrap();
    let of = |name, uid| RunRef { name, uid };
    assert!(read.belongs_to(of("nightly", "u-1")) && !read.belongs_to(of("nightly", "u-2")));
    assert!(!Snapshot::default().belongs_to(of("", "")));
    let labels = BTreeMap::from([("velero.io/backup-name".to_owned(), "nightly".to_owned())]);
    let metadata = Metadata { labels: Some(labels), ..Metadata::default() };
    let by_velero = Snapshot { metadata, ..Snapshot::default() };
    assert!(
        by_velero.belongs_to(of("nightly", "u-3")) && !by_velero.belongs_to(of("other", "u-3"))
    );
}

#[test]
fn content_state_is_copied_into_the_record_and_its_annotations() {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": "snapcontent-1", "uid": "c"},
        "spec": {
            "driver": "d.io",
            "deletionPolicy": "Delete",
            "volumeSnapshotRef": {"namespace": "shop", "name": "vs", "uid": "v"},
        },
        "status": {
            "snapshotHandle": "snap-1",
            "creationTime": 1_700_000_000_000_000_000_i64,
            "restoreSize": 1 << 30,
            "readyToUse": false,
        },
    });
    let content = Content::read(&Item::from_object(&content).unwrap()).unwrap();
    let mut record = CsiSnapshotRecord::default();
    content.copy_into(&mut record);
    assert_eq!(record.created.unwrap().as_second(), 1_700_000_000);
    assert!(!record.is_ready && content.handle() == Some("snap-1"));
    let annotations: Vec<(String, String)> = annotations(&record).into_iter().collect();
    let annotations: Vec<(&str, &str)> =
        annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        annotations,
        [
            ("velero.io/csi-driver-name", "d.io"),
            ("velero.io/csi-volumesnapshot-handle", "snap-1"),
            ("velero.io/csi-volumesnapshot-restore-size", "1Gi"),
            ("velero.io/csi-vsc-deletion-policy", "Delete"),
        ]
    );
}
