use std::collections::BTreeMap;

use bowline_store::file::CsiSnapshotInfo;
use jiff::Timestamp;

use super::*;
use crate::cluster::{Fake, fake};
use crate::operation::Kind;

fn cluster() -> Fake {
    let served = |group: &str, version: &str, kind: &str, plural: &str| {
        let mut resource = fake::usual_resources().remove(0);
        resource.id = GroupResource::new(group, plural);
        resource.version = version.into();
        resource.kind = kind.into();
        resource.is_namespaced = false;
        resource
    };
    let more = [
        served("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", CONTENTS),
        served(GROUP_GROUP, "v1beta1", "VolumeGroupSnapshotContent", GROUP_CONTENTS),
    ];
    Fake::new(fake::usual_resources().into_iter().chain(more)).with(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "late"},
        "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer",
    }))
}

fn claim(name: &str, class: &str, volume: &str) -> Value {
    let phase = if volume.is_empty() { "Pending" } else { "Bound" };
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "copy", "name": name},
        "spec": {"storageClassName": class, "volumeName": volume}, "status": {"phase": phase},
    })
}

fn volume(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"zone": "new"}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "copy", "name": claim},
        },
        "status": {"phase": "Bound"},
    })
}

fn saved(claim: &str) -> BackupVolumeInfo {
    BackupVolumeInfo {
        pvc_namespace: "shop".into(),
        pvc_name: claim.into(),
        backup_method: Some(Method::CsiSnapshot),
        csi_snapshot_info: Some(CsiSnapshotInfo {
            volume_group_snapshot_handle: "g1".into(),
            ..CsiSnapshotInfo::default()
        }),
        pv_info: Some(PersistentVolumeInfo {
            reclaim_policy: "Retain".into(),
            labels: BTreeMap::from([("app".to_owned(), "shop".to_owned())]),
            ..PersistentVolumeInfo::default()
        }),
        ..BackupVolumeInfo::default()
    }
}

fn operation(claim: &str, state: State) -> Operation {
    let item = ResourceIdentifier {
        group: String::new(),
        resource: "persistentvolumeclaims".into(),
        namespace: "shop".into(),
        name: claim.into(),
    };
    let id = bowline_plugin::OperationId::new("copy/x/u").unwrap();
    let plugin = CSI_PVC_ACTION.parse().unwrap();
    let operation = Operation::started(
        Kind::ItemRestore,
        plugin,
        item,
        id,
        Timestamp::UNIX_EPOCH,
        Duration::from_secs(1),
    );
    Operation { state, ..operation }
}

async fn finalize_volumes(
    fake: &Fake,
    saved: &[BackupVolumeInfo],
    operations: &[Operation],
) -> (Report, Vec<RestoreVolumeInfo>) {
    let mut restore = Restore::default();
    restore.metadata.name = Some("r".into());
    restore.spec.namespace_mapping.insert("shop".into(), "copy".into());
    let created = saved.iter().map(|saved| format!("copy/{}(created)", saved.pvc_name)).collect();
    let items = ResourceList([("v1/PersistentVolumeClaim".to_owned(), created)].into());
    let mut volumes: Vec<RestoreVolumeInfo> = saved
        .iter()
        .map(|saved| RestoreVolumeInfo {
            pvc_namespace: "copy".into(),
            pvc_name: saved.pvc_name.clone(),
            restore_method: Some(Method::CsiSnapshot),
            ..RestoreVolumeInfo::default()
        })
        .collect();
    let limit = Duration::from_secs(5);
    let settling = VolumeFinalizer {
        cluster: fake,
        restore: &restore,
        saved,
        items: &items,
        operations,
        limit,
    };
    let report = settling.run(&mut volumes).await.unwrap();
    (report, volumes)
}

#[tokio::test(start_paused = true)]
async fn new_volume_gets_labels_and_reclaim_policy_of_the_old_one() {
    let fake = cluster().with(claim("data", "fast", "pv-9")).with(volume("pv-9", "data"));
    let done = [operation("data", State::Completed)];
    let (report, volumes) = finalize_volumes(&fake, &[saved("data")], &done).await;
    assert_eq!((report.error_count(), report.warning_count()), (0, 0), "{:?}", report.results());
    let patched = fake.object("persistentvolumes", "", "pv-9").unwrap();
    assert_eq!(patched["metadata"]["labels"], json!({"app": "shop", "zone": "new"}));
    assert_eq!(patched["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volumes[0].pv_name, "pv-9");
    // Repeated, as after a kill: nothing is left to do.
    let info = saved("data").pv_info.unwrap();
    assert_eq!(volume_patch(&patched, &info), None);
}

#[tokio::test(start_paused = true)]
async fn unbound_claim_is_waited_for_unless_it_waits_for_a_consumer() {
    let fake = cluster()
        .with(claim("data", "fast", ""))
        .with(claim("late", "late", ""))
        .with(claim("failed", "fast", ""));
    let operations = [operation("failed", State::Failed("no".into()))];
    let saved = [saved("data"), saved("late"), saved("failed")];
    let binding = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fake.put(claim("data", "fast", "pv-9"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        fake.put(volume("pv-9", "data"));
    };
    let ((report, volumes), ()) =
        tokio::join!(finalize_volumes(&fake, &saved, &operations), binding);
    assert_eq!(report.error_count(), 0, "{:?}", report.results());
    let patched = fake.object("persistentvolumes", "", "pv-9").unwrap();
    assert_eq!(patched["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    let names: Vec<&str> = volumes.iter().map(|volume| volume.pv_name.as_str()).collect();
    assert_eq!(names, ["pv-9", "", ""]);
}

#[tokio::test(start_paused = true)]
async fn missing_or_foreign_volume_is_an_error_on_the_claim() {
    for (objects, word) in [
        (vec![claim("data", "fast", "")], "the claim has no volume after 5 s"),
        (vec![claim("data", "fast", "pv-9")], "pv-9 is not bound after 5 s"),
        (
            vec![claim("data", "fast", "pv-9"), volume("pv-9", "other")],
            "bound to another claim, copy/other",
        ),
    ] {
        let fake = objects.into_iter().fold(cluster(), Fake::with);
        let (report, _) = finalize_volumes(&fake, &[saved("data")], &[]).await;
        let errors = report.results().errors.namespaces["shop"].join("; ");
        assert!(errors.contains(word), "{errors}");
    }
    // A volume that does not exist any more is ignored.
    let (report, _) = finalize_volumes(&cluster(), &[saved("data")], &[]).await;
    assert_eq!(report.error_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn stub_is_removed_when_its_group_contents_are_ready() {
    let labels = json!({"velero.io/restore-name": "r"});
    let content = |ready: bool| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c1", "labels": labels},
            "spec": {"source": {"snapshotHandle": "s1"}}, "status": {"readyToUse": ready},
        })
    };
    let stub = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "stub", "labels": labels},
        "spec": {"source": {"groupSnapshotHandles": {"volumeSnapshotHandles": ["s1"]}}},
    });
    let plural = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";
    for becomes_ready in [true, false] {
        let fake = cluster().with(content(false)).with(stub.clone());
        let working = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(fake.object(plural, "", "stub").is_some());
            if becomes_ready {
                fake.put(content(true));
            }
        };
        let saved = [saved("data")];
        let ((report, _), ()) = tokio::join!(finalize_volumes(&fake, &saved, &[]), working);
        assert!(fake.object(plural, "", "stub").is_none());
        assert_eq!(report.warning_count(), usize::from(!becomes_ready));
    }
}
