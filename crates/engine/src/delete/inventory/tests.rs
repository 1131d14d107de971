use std::sync::Arc;

use bowline_store::Prefix;
use bowline_store::backend::Memory;
use serde_json::json;

use super::*;
use crate::testing;

/// A content with the label that an old Velero put on all contents that it found.
fn content(name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": format!("vsc-{name}"), "labels": {"velero.io/backup-name": "b"}},
        "spec": {"driver": "a.driver", "volumeSnapshotRef": {"namespace": "shop", "name": name}},
        "status": {"snapshotHandle": name},
    })
}

/// A VolumeSnapshot; those of Velero have a label.
fn snapshot(name: &str, is_of_velero: bool) -> Value {
    let labels = if is_of_velero { json!({"velero.io/backup-name": "b"}) } else { json!({}) };
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "status": {"boundVolumeSnapshotContentName": format!("vsc-{name}")},
    })
}

fn archive(snapshots: &[Value]) -> Vec<u8> {
    let resource = "volumesnapshots.snapshot.storage.k8s.io";
    let objects: Vec<_> = snapshots.iter().map(|snapshot| (resource, snapshot.clone())).collect();
    testing::archive(&objects)
}

/// Inventory of an old backup, by the handles of its contents: created by the backup, and of unknown origin.
async fn held_handles(
    contents: &[&str],
    file: Option<Vec<Value>>,
    archived: Option<Vec<Value>>,
) -> (Vec<String>, Vec<String>) {
    let memory = Memory::with_bucket("bucket");
    let store = BackupStore::new(Arc::new(memory), "bucket", &Prefix::default());
    let name: BackupName = "b".parse().unwrap();
    let contents = contents.iter().map(|name| content(name)).collect();
    store.put(&name, &CsiVolumeSnapshotContents(contents)).await.unwrap();
    if let Some(file) = file {
        store.put(&name, &CsiVolumeSnapshots(file)).await.unwrap();
    }
    if let Some(archived) = archived {
        let body = Box::pin(futures::stream::iter([Ok(archive(&archived).into())]));
        store.put_contents(&name, body).await.unwrap();
    }
    let mut inventory = read_inventory(&store, &name).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let backup = Backup::default();
    read_csi_inventory(
        &store,
        &name,
        &backup,
        scratch.path(),
        UnpackLimits::default(),
        &mut inventory,
    )
    .await
    .unwrap();
    let handles = |contents: &[Value]| {
        let handle = |one: &Value| one["status"]["snapshotHandle"].as_str().unwrap().to_owned();
        contents.iter().map(handle).collect()
    };
    (handles(&inventory.csi_contents), handles(&inventory.csi_undecided))
}

#[tokio::test]
async fn old_backup_holds_only_csi_snapshots_it_created() {
    let (velero, users) = (|name| snapshot(name, true), |name| snapshot(name, false));
    let none: [&str; 0] = [];
    for (what, file, archived, created, undecided) in [
        (
            "both say so",
            Some(vec![velero("s")]),
            Some(vec![velero("s"), users("u")]),
            &["s"][..],
            &[][..],
        ),
        ("the archive alone", None, Some(vec![velero("s"), users("u")]), &["s"], &[]),
        ("the file alone", Some(vec![velero("s")]), None, &["s"], &["u"]),
        ("the file, with all", Some(vec![velero("s"), users("u")]), None, &["s"], &[]),
        (
            "an archive without one",
            Some(vec![velero("s")]),
            Some(vec![velero("s")]),
            &["s"],
            &["u"],
        ),
        ("neither", None, None, &none, &["s", "u"]),
    ] {
        let (found, unknown) = held_handles(&["s", "u"], file, archived).await;
        assert_eq!((&*found, &*unknown), (&*strings(created), &*strings(undecided)), "{what}");
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
