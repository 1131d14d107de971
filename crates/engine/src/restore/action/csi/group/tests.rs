use super::super::tests::{CsiFixture, VOLUME_OPTIONS, csi_fixture, restore, with_csi};
use super::*;
use crate::cluster::Fake;
use crate::download::BackupVolumes;

const PLURAL: &str = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";

fn snapshot(annotations: &[(&str, &str)]) -> Value {
    let annotations: Value =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    json!({"metadata": {"namespace": "shop", "name": "vs", "annotations": annotations}})
}

#[test]
fn group_member_needs_all_annotations() {
    let all = [
        (annotation::VOLUME_GROUP_SNAPSHOT_HANDLE, "g1"),
        (annotation::VOLUME_SNAPSHOT_HANDLE, "s1"),
        (annotation::CSI_DRIVER_NAME, "a.driver"),
    ];
    let member = GroupMember { group: "g1", handle: "s1", driver: "a.driver", namespace: "shop" };
    assert_eq!(GroupMember::of(&snapshot(&all)), Some(member));
    for missing in 0..all.len() {
        let mut some = all.to_vec();
        some.remove(missing);
        assert_eq!(GroupMember::of(&snapshot(&some)), None, "{some:?}");
    }
}

#[tokio::test]
async fn one_stub_lists_all_snapshots_of_a_group() {
    let fake = with_csi().with(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta1", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": "fast"}, "driver": "a.driver",
        "parameters": {"csi.storage.k8s.io/group-snapshotter-secret-name": "key"},
    }));
    let CsiFixture { csi, fake, .. } =
        csi_fixture(fake, &[], BackupVolumes::default(), VOLUME_OPTIONS);
    let member =
        |handle| GroupMember { group: "g1", handle, driver: "a.driver", namespace: "shop" };
    for handle in ["s1", "s2", "s1"] {
        ensure_stub(csi.capabilities(), &member(handle), &restore()).await.unwrap();
    }
    let name = stub_name("uid", "g1");
    let stub = fake.object(PLURAL, "", &name).unwrap();
    assert_eq!(fake.creations().len(), 1);
    assert_eq!(stub["metadata"]["labels"], json!({"velero.io/restore-name": "r"}));
    assert_eq!(
        stub["metadata"]["annotations"],
        json!({"groupsnapshot.storage.kubernetes.io/deletion-secret-name": "key"})
    );
    let expected = json!({
        "deletionPolicy": "Retain", "driver": "a.driver",
        "source": {"groupSnapshotHandles": {
            "volumeGroupSnapshotHandle": "g1", "volumeSnapshotHandles": ["s1", "s2"],
        }},
        "volumeGroupSnapshotRef": {
            "name": format!("stub-vgs-{}", &name[..8]), "namespace": "shop",
        },
    });
    assert_eq!(stub["spec"], expected);
    assert_eq!(stub["status"], json!({"volumeGroupSnapshotHandle": "g1"}));
}

#[tokio::test]
async fn no_stub_is_created_without_the_group_api() {
    let CsiFixture { csi, fake, .. } =
        csi_fixture(Fake::usual(), &[], BackupVolumes::default(), VOLUME_OPTIONS);
    let member = GroupMember { group: "g1", handle: "s1", driver: "d", namespace: "shop" };
    ensure_stub(csi.capabilities(), &member, &restore()).await.unwrap();
    assert_eq!(fake.creations(), []);
}
