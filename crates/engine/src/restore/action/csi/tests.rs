use std::sync::Arc;

use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, RestoreOutput};
use serde_json::{Value, json};

use super::*;
use crate::cluster::{Fake, fake};
use crate::resource::{GroupResource, Resource};
use crate::testing;
use crate::unpack::{self, UnpackLimits};

/// An archive of objects, in the directories of their kinds.
pub(super) fn archive(objects: &[Value]) -> Contents {
    let with_resource = |object: &Value| {
        let resource = match object["kind"].as_str().unwrap() {
            "VolumeSnapshot" => "volumesnapshots.snapshot.storage.k8s.io",
            "VolumeSnapshotContent" => "volumesnapshotcontents.snapshot.storage.k8s.io",
            "PersistentVolumeClaim" => "persistentvolumeclaims",
            "StorageClass" => "storageclasses.storage.k8s.io",
            kind => panic!("{kind}"),
        };
        (resource, object.clone())
    };
    let packed = testing::archive(&objects.iter().map(with_resource).collect::<Vec<_>>());
    unpack::unpack(&*packed, &std::env::temp_dir(), UnpackLimits::default()).unwrap()
}

fn served(group: &str, version: &str, kind: &str, plural: &str, is_namespaced: bool) -> Resource {
    let mut resource = fake::usual_resources().remove(0);
    resource.id = GroupResource::new(group, plural);
    resource.version = version.into();
    resource.kind = kind.into();
    resource.singular = kind.to_ascii_lowercase();
    resource.short_names.clear();
    resource.is_namespaced = is_namespaced;
    resource
}

/// A cluster with CSI: its API, and one installed driver.
pub(in crate::restore) fn with_csi() -> Fake {
    let snapshots = "snapshot.storage.k8s.io";
    let groups = "groupsnapshot.storage.k8s.io";
    let storage = "storage.k8s.io";
    let more = [
        served(snapshots, "v1", "VolumeSnapshot", SNAPSHOTS, true),
        served(snapshots, "v1", "VolumeSnapshotContent", CONTENTS, false),
        served(snapshots, "v1", "VolumeSnapshotClass", CLASSES, false),
        served(groups, "v1beta1", "VolumeGroupSnapshotContent", GROUP_CONTENTS, false),
        served(groups, "v1beta1", "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses", false),
        served(storage, "v1", "CSIDriver", "csidrivers", false),
        served(storage, "v1", "CSINode", "csinodes", false),
    ];
    let fake = Fake::new(fake::usual_resources().into_iter().chain(more));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    }));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "fast"}, "provisioner": "a.driver",
    }));
    fake
}

/// State of one restore, with a report that the test can read.
pub(super) struct CsiFixture {
    pub(super) fake: Arc<Fake>,
    pub(super) report: Arc<Report>,
    pub(super) csi: Arc<CsiRestoreContext>,
}

pub(super) fn csi_fixture(
    fake: Fake,
    objects: &[Value],
    volumes: BackupVolumes,
    options: VolumeOptions,
) -> CsiFixture {
    let (resources, fake) = (Arc::new(fake.resources()), Arc::new(fake));
    let cluster: Arc<dyn Cluster> = Arc::clone(&fake) as _;
    let report = Arc::new(Report::default());
    let csi = CsiRestoreContext {
        contents: Arc::new(archive(objects)),
        volumes: Arc::new(volumes),
        report: Arc::clone(&report),
        volume_options: options,
        modifiers: None,
        is_data_moved: false,
        is_dry_run: false,
        capabilities: ClusterCapabilities::new(&cluster, &resources),
    };
    CsiFixture { fake, report, csi: Arc::new(csi) }
}

/// A Restore with a uid.
pub(super) fn restore() -> Restore {
    let mut restore = Restore::default();
    restore.metadata.name = Some("r".into());
    restore.metadata.uid = Some("uid".into());
    restore.spec.namespace_mapping.insert("shop".into(), "copy".into());
    restore
}

/// Runs an action on an item without its status, as a restore does.
pub(super) async fn execute_action(
    action: &dyn RestoreItemAction,
    backed_up: &Value,
) -> bowline_plugin::Result<RestoreOutput> {
    let mut item = backed_up.clone();
    item.as_object_mut().unwrap().remove("status");
    let (item, backed_up) =
        (Item::from_object(&item).unwrap(), Item::from_object(backed_up).unwrap());
    action.execute(&item, &backed_up, &Encoded::new(restore())).await
}

pub(super) const VOLUME_OPTIONS: VolumeOptions =
    VolumeOptions { restore_pvs: true, allow_empty: false };

#[test]
fn snapshot_name_is_stable_and_unique_per_restore() {
    // printf uid/shop/vs | sha256sum
    let expected = "935c648f06e4d92632951888638cdfa2f693e5c110d125a425e14fe3dbfed55c";
    assert_eq!(name_in_restore("uid", "shop", "vs"), expected);
    for (restore, namespace, snapshot) in
        [("uid", "shop-2", "vs"), ("uid", "shop", "vs-2"), ("uid-2", "shop", "vs")]
    {
        assert_ne!(name_in_restore(restore, namespace, snapshot), expected);
    }
}

#[tokio::test]
async fn the_actions_have_veleros_names_order_and_selectors() {
    let CsiFixture { csi, .. } =
        csi_fixture(with_csi(), &[], BackupVolumes::default(), VOLUME_OPTIONS);
    let mut found = Vec::new();
    for action in actions(&csi) {
        let selector = action.plugin.applies_to().await.unwrap();
        found.push(format!("{} {}", action.name, selector.included_resources.join(",")));
    }
    let expected = [
        "velero.io/csi-pvc-restorer persistentvolumeclaims",
        "velero.io/csi-volumesnapshot-restorer volumesnapshots.snapshot.storage.k8s.io",
        "velero.io/csi-volumesnapshotclass-restorer volumesnapshotclasses.snapshot.storage.k8s.io",
        "velero.io/csi-volumesnapshotcontent-restorer \
         volumesnapshotcontents.snapshot.storage.k8s.io",
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn content_and_snapshot_reference_each_other_under_a_new_name() {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "vsc"},
        "spec": {
            "driver": "a.driver", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "shop", "name": "vs", "uid": "u"},
        },
        "status": {"snapshotHandle": "s1"},
    });
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "shop", "name": "vs"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
        "status": {"boundVolumeSnapshotContentName": "vsc"},
    });
    let fake = with_csi().with(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "fast"}, "driver": "a.driver", "deletionPolicy": "Delete",
    }));
    let objects = [content.clone(), snapshot.clone()];
    let CsiFixture { csi, .. } =
        csi_fixture(fake, &objects, BackupVolumes::default(), VOLUME_OPTIONS);
    let name = name_in_restore("uid", "shop", "vs");

    let output =
        execute_action(&content::CsiSnapshotContentAction::new(&csi), &content).await.unwrap();
    let changed: Value = output.item.parse().unwrap();
    assert_eq!(changed["metadata"]["name"], name);
    assert_eq!(changed["spec"]["volumeSnapshotRef"], json!({"namespace": "copy", "name": name}));
    assert_eq!(changed["spec"]["source"], json!({"snapshotHandle": "s1"}));
    assert_eq!(changed["spec"]["volumeSnapshotClassName"], "fast");

    let output = execute_action(&snapshot::CsiSnapshotAction::new(&csi), &snapshot).await.unwrap();
    let changed: Value = output.item.parse().unwrap();
    assert_eq!(changed["metadata"]["name"], name);
    assert_eq!(changed["spec"], json!({"source": {"volumeSnapshotContentName": name}}));
    assert_eq!(output.additional_items, [object(CONTENTS, "", "vsc")]);

    // An incomplete snapshot is reported; without volumes it is not needed.
    let mut unbound = snapshot.clone();
    unbound["status"] = json!({});
    let error =
        execute_action(&snapshot::CsiSnapshotAction::new(&csi), &unbound).await.unwrap_err();
    assert!(error.message().contains("was not bound"), "{error}");
    let mut unfinished = content.clone();
    unfinished["status"] = json!({});
    let error = execute_action(&content::CsiSnapshotContentAction::new(&csi), &unfinished)
        .await
        .unwrap_err();
    assert!(error.message().contains("names no snapshot"), "{error}");
    let no_volumes = VolumeOptions { restore_pvs: false, ..VOLUME_OPTIONS };
    let CsiFixture { csi, .. } =
        csi_fixture(with_csi(), &objects, BackupVolumes::default(), no_volumes);
    assert!(
        execute_action(&content::CsiSnapshotContentAction::new(&csi), &content)
            .await
            .unwrap()
            .skip_restore
    );
    assert!(
        execute_action(&snapshot::CsiSnapshotAction::new(&csi), &snapshot)
            .await
            .unwrap()
            .skip_restore
    );
}
