use super::super::tests::{Given, WISHES, given, restore, with_csi};
use super::*;
use crate::cluster::Fake;
use crate::restore::download::Volumes;

const PLURAL: &str = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";

fn snapshot(annotations: &[(&str, &str)]) -> Value {
    let annotations: Value =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    json!({"metadata": {"namespace": "shop", "name": "vs", "annotations": annotations}})
}

#[test]
fn a_member_says_all_that_is_needed_or_is_none() {
    let all = [
        (annotation::VOLUME_GROUP_SNAPSHOT_HANDLE, "g1"),
        (annotation::VOLUME_SNAPSHOT_HANDLE, "s1"),
        (annotation::CSI_DRIVER_NAME, "a.driver"),
    ];
    let member = Member { group: "g1", handle: "s1", driver: "a.driver", namespace: "shop" };
    assert_eq!(Member::of(&snapshot(&all)), Some(member));
    for missing in 0..all.len() {
        let mut some = all.to_vec();
        some.remove(missing);
        assert_eq!(Member::of(&snapshot(&some)), None, "{some:?}");
    }
}

#[tokio::test]
async fn there_is_one_stub_for_a_group_with_all_its_snapshots() {
    let fake = with_csi().with(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta1", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": "fast"}, "driver": "a.driver",
        "parameters": {"csi.storage.k8s.io/group-snapshotter-secret-name": "key"},
    }));
    let Given { csi, fake, .. } = given(fake, &[], Volumes::default(), WISHES);
    let member = |handle| Member { group: "g1", handle, driver: "a.driver", namespace: "shop" };
    for handle in ["s1", "s2", "s1"] {
        ensure_stub(csi.surroundings(), &member(handle), &restore()).await.unwrap();
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
async fn where_groups_are_not_known_there_is_no_stub() {
    let Given { csi, fake, .. } = given(Fake::usual(), &[], Volumes::default(), WISHES);
    let member = Member { group: "g1", handle: "s1", driver: "d", namespace: "shop" };
    ensure_stub(csi.surroundings(), &member, &restore()).await.unwrap();
    assert_eq!(fake.creations(), []);
}
