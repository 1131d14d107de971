use std::time::Duration;

use serde_json::json;

use super::super::action::csi::tests::with_csi;
use super::*;
use crate::cluster::Fake;
use crate::testing::{self, ValidRestore};
use crate::unpack::{self, UnpackLimits};

fn archive(objects: &[(&str, Value)]) -> Contents {
    let packed = testing::archive(objects);
    unpack::unpack(&*packed, &std::env::temp_dir(), UnpackLimits::default()).unwrap()
}

fn request(spec: Value, modifiers: &str) -> Request {
    let (modifiers, started_at) = (modifiers.to_owned(), Timestamp::UNIX_EPOCH);
    let mut fixture = ValidRestore { modifiers, started_at, ..ValidRestore::new(spec) };
    fixture.restore.metadata.uid = Some("dry-run".into());
    fixture.request()
}

async fn plan_with(
    fake: Fake,
    request: Request,
    objects: &[(&str, Value)],
    volumes: BackupVolumes,
) -> RestorePlan {
    let options = Options {
        requests: 4,
        items: 8,
        scratch: std::env::temp_dir(),
        unpack_limits: UnpackLimits::default(),
        namespace: "velero".into(),
        priorities: Priorities::default(),
        resource_timeout: Duration::from_secs(1),
        terminating_timeout: Duration::from_secs(1),
    };
    let (cluster, contents) = (Arc::new(fake), archive(objects));
    let run = Run { request, cluster, contents, volumes, options };
    super::run(run, Timestamp::UNIX_EPOCH).await.unwrap()
}

async fn plan_of(fake: Fake, request: Request, objects: &[(&str, Value)]) -> RestorePlan {
    plan_with(fake, request, objects, BackupVolumes::default()).await
}

/// Verdicts by item, with the reasons where there are any.
fn summary(plan: &RestorePlan) -> Vec<String> {
    let one = |entry: &PlanEntry| {
        let PlanEntry { id, verdict, reason, .. } = entry;
        let colon = if reason.is_empty() { "" } else { ": " };
        format!("{id} {verdict:?}{colon}{reason}")
    };
    plan.entries.iter().map(one).collect()
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "uid": "old"}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    let mut map = object("v1", "ConfigMap", namespace, name);
    map["data"] = json!({"key": value});
    map
}

fn namespace(name: &str) -> Value {
    object("v1", "Namespace", "", name)
}

fn refused(message: &'static str) -> impl Fn() -> Error {
    move || Error::Refused { code: 422, reason: "Invalid".into(), message: message.into() }
}

#[tokio::test]
async fn each_item_gets_a_verdict_and_a_reason_in_the_order_of_the_restore() {
    let fake = Fake::usual()
        .with(namespace("shop"))
        .with(config_map("shop", "same", "a"))
        .with(config_map("shop", "other", "b"));
    fake.fail_write("services", refused("no such port"));
    let mut done = object("v1", "Pod", "shop", "done");
    done["status"] = json!({"phase": "Succeeded"});
    let objects = [
        ("services", object("v1", "Service", "shop", "bad")),
        ("configmaps", config_map("shop", "new", "a")),
        ("configmaps", config_map("shop", "other", "a")),
        ("configmaps", config_map("shop", "same", "a")),
        ("configmaps", config_map("gone", "lost", "a")),
        ("pods", done),
        ("widgets.example.io", object("example.io/v1", "Widget", "shop", "w")),
        ("gadgets.example.io", object("example.io/v1", "Gadget", "shop", "g")),
        (
            "customresourcedefinitions.apiextensions.k8s.io",
            object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.example.io"),
        ),
        ("namespaces", namespace("shop")),
    ];
    let plan = plan_of(fake, request(json!({}), ""), &objects).await;
    assert_eq!(
        summary(&plan),
        [
            "customresourcedefinitions.apiextensions.k8s.io/widgets.example.io Create",
            "namespaces/gone Create",
            "namespaces/shop Skip: the namespace exists",
            "configmaps/gone/lost NotValidated: namespace gone does not exist yet",
            "configmaps/shop/new Create",
            "configmaps/shop/other Skip: the object exists and would be kept, although it \
             differs in data.key",
            "configmaps/shop/same Skip: the object exists and is identical",
            "pods/shop/done Skip: the pod or job was already complete at the time of the backup",
            "services/shop/bad Refuse: the API server answered 422 (Invalid): no such port",
            "gadgets.example.io/shop/g Refuse: the cluster does not serve gadgets.example.io; its CustomResourceDefinition may be missing",
            "widgets.example.io/shop/w NotValidated: the kind is not served before its \
             CustomResourceDefinition is restored",
        ]
    );
    assert!(plan.would_fail());
    assert_eq!(plan.results.errors.count(), 0);
    let lost = plan.entries.iter().find(|entry| entry.id.name == "lost").unwrap();
    assert_eq!(lost.target.as_ref().unwrap().kind, "ConfigMap");
}

#[tokio::test]
async fn mapped_object_is_updated_if_policy_is_update() {
    let fake = Fake::usual()
        .with(namespace("copy"))
        .with(config_map("copy", "same", "a"))
        .with(config_map("copy", "other", "b"))
        .with(object("v1", "ServiceAccount", "copy", "app"));
    let mut account = object("v1", "ServiceAccount", "shop", "app");
    account["metadata"]["labels"] = json!({"team": "a"});
    let objects = [
        ("configmaps", config_map("shop", "other", "a")),
        ("configmaps", config_map("shop", "same", "a")),
        ("serviceaccounts", account),
    ];
    let spec = json!({"existingResourcePolicy": "update", "namespaceMapping": {"shop": "copy"}});
    let plan = plan_of(fake, request(spec, ""), &objects).await;
    assert_eq!(
        summary(&plan),
        [
            "serviceaccounts/shop/app Update: the object exists and lacks values in metadata",
            "configmaps/shop/other Update: the object exists and differs in data.key",
            "configmaps/shop/same Skip: the object exists and is identical; only the labels of \
             the restore would be added",
        ]
    );
    let targets = plan.entries.iter().filter_map(|entry| entry.target.as_ref());
    assert!(targets.clone().all(|target| target.namespace == "copy") && targets.count() == 3);
    assert!(!plan.would_fail());
}

#[tokio::test]
async fn refused_namespace_refuses_its_objects() {
    let fake = Fake::usual();
    fake.fail_write("namespaces", refused("not here"));
    let objects = [
        ("configmaps", config_map("shop", "a", "a")),
        ("configmaps", config_map("shop", "b", "a")),
    ];
    let plan = plan_of(fake, request(json!({"includedNamespaces": ["shop"]}), ""), &objects).await;
    let reason = "the API server answered 422 (Invalid): not here";
    let inside = format!("namespace shop cannot be created: {reason}");
    assert_eq!(
        summary(&plan),
        [
            format!("namespaces/shop Refuse: {reason}"),
            format!("configmaps/shop/a Refuse: {inside}"),
            format!("configmaps/shop/b Refuse: {inside}"),
        ]
    );
}

#[tokio::test]
async fn excluded_items_are_not_planned_and_additional_items_are() {
    let fake = Fake::usual().with(namespace("shop"));
    let mut pod = object("v1", "Pod", "shop", "web");
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["spec"] = json!({
        "containers": [],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    });
    let objects = [
        ("pods", pod),
        ("persistentvolumeclaims", object("v1", "PersistentVolumeClaim", "shop", "data")),
        ("persistentvolumeclaims", object("v1", "PersistentVolumeClaim", "shop", "unused")),
        ("configmaps", config_map("other", "out", "a")),
    ];
    let spec = json!({
        "includedNamespaces": ["shop"], "labelSelector": {"matchLabels": {"app": "web"}},
    });
    let plan = plan_of(fake, request(spec, ""), &objects).await;
    assert_eq!(summary(&plan), ["persistentvolumeclaims/shop/data Create", "pods/shop/web Create"]);
    let not_run = ["velero.io/change-image-name", "velero.io/change-storage-class"];
    assert_eq!(plan.not_run, not_run);
}

#[tokio::test]
async fn a_modifier_that_fails_is_an_error_of_the_plan() {
    let fake = Fake::usual().with(namespace("shop"));
    let rules = "version: v1\nresourceModifierRules:\n- conditions:\n    groupResource: configmaps\n  \
                 patches:\n  - operation: remove\n    path: /data/none\n";
    let spec = json!({"resourceModifier": {"kind": "ConfigMap", "name": "rules"}});
    let objects = [("configmaps", config_map("shop", "a", "a"))];
    let plan = plan_of(fake, request(spec, rules), &objects).await;
    assert_eq!(summary(&plan), ["configmaps/shop/a Create"]);
    let errors = &plan.results.errors.namespaces["shop"];
    assert!(errors[0].starts_with("configmaps/a: a resource modifier failed: "), "{errors:?}");
    assert!(plan.would_fail());
}

#[tokio::test]
async fn colliding_items_are_reported() {
    let claim = |namespace: &str| {
        let mut claim = object("v1", "PersistentVolumeClaim", namespace, "data");
        claim["spec"] = json!({"volumeName": "pv"});
        claim
    };
    let objects = [
        ("persistentvolumeclaims", claim("a")),
        ("persistentvolumeclaims", claim("b")),
        ("configmaps", config_map("a", "x", "a")),
        ("configmaps", config_map("b", "x", "b")),
        ("configmaps", config_map("b", "own", "b")),
    ];
    let beside = "configmaps/a/x is restored under the same name and would be kept";
    let replaces = "the item would replace configmaps/a/x, which is restored under the same name";
    for (policy, verdict) in
        [("none", format!("Skip: {beside}")), ("update", format!("Update: {replaces}"))]
    {
        let fake = Fake::usual().with(namespace("c"));
        let spec =
            json!({"namespaceMapping": {"a": "c", "b": "c"}, "existingResourcePolicy": policy});
        let plan = plan_of(fake, request(spec, ""), &objects).await;
        let expected = [
            "persistentvolumeclaims/a/data Create".to_owned(),
            "persistentvolumeclaims/b/data Refuse: the data of the claim was not restored: this \
             restore has created persistentvolumeclaims/a/data under the same name; restore the \
             claim separately into another namespace"
                .to_owned(),
            "configmaps/a/x Create".to_owned(),
            "configmaps/b/own Create".to_owned(),
            format!("configmaps/b/x {verdict}"),
        ];
        assert_eq!(summary(&plan), expected);
    }
}

#[tokio::test]
async fn volume_without_data_is_refused_with_its_claim() {
    let fake = Fake::usual().with(namespace("shop"));
    let mut volume = object("v1", "PersistentVolume", "", "pv");
    volume["spec"] = json!({"claimRef": {"namespace": "shop", "name": "data"}});
    let mut claim = object("v1", "PersistentVolumeClaim", "shop", "data");
    claim["spec"] = json!({"volumeName": "pv"});
    let volumes: Vec<bowline_store::file::BackupVolumeInfo> = serde_json::from_value(json!([
        {"pvName": "pv", "backupMethod": "PodVolumeBackup", "result": "succeeded"},
    ]))
    .unwrap();
    let objects = [("persistentvolumes", volume), ("persistentvolumeclaims", claim)];
    let volumes = BackupVolumes { infos: volumes, ..BackupVolumes::default() };
    let plan = plan_with(fake, request(json!({}), ""), &objects, volumes).await;
    assert_eq!(plan.count(PlanVerdict::Refuse), 2, "{:?}", summary(&plan));
    assert!(plan.entries.iter().all(|entry| entry.reason.contains("--allow-empty-volumes")));
}

#[tokio::test]
async fn volume_from_snapshot_is_planned_without_calling_the_plugin() {
    let mut volume = object("v1", "PersistentVolume", "", "pv");
    volume["spec"] = json!({"claimRef": {"namespace": "shop", "name": "data"}});
    let mut claim = object("v1", "PersistentVolumeClaim", "shop", "data");
    claim["spec"] = json!({"volumeName": "pv"});
    let objects =
        [("persistentvolumes", volume.clone()), ("persistentvolumeclaims", claim.clone())];
    let volumes = || {
        let snapshots = json!([{
            "spec": {"location": "default", "persistentVolumeName": "pv"},
            "status": {"providerSnapshotID": "snap-1", "phase": "Completed"},
        }]);
        BackupVolumes {
            snapshots: serde_json::from_value(snapshots).unwrap(),
            ..BackupVolumes::default()
        }
    };
    let creation = "Create: the volume would be created from snapshot snap-1 by the plugin of \
                    VolumeSnapshotLocation default";
    let fake = || Fake::usual().with(namespace("shop"));
    let plan = plan_with(fake(), request(json!({}), ""), &objects, volumes()).await;
    let expected = [
        format!("persistentvolumes/pv {creation}"),
        "persistentvolumeclaims/shop/data Create".into(),
    ];
    assert_eq!(summary(&plan), expected);

    // A volume that is in use stays; the restored one gets another name.
    let in_use = || fake().with(namespace("copy")).with(volume.clone()).with(claim.clone());
    let plan = plan_with(in_use(), request(json!({}), ""), &objects, volumes()).await;
    assert_eq!(plan.count(PlanVerdict::Skip), 2, "{:?}", summary(&plan));
    let mapped = request(json!({"namespaceMapping": {"shop": "copy"}}), "");
    let plan = plan_with(in_use(), mapped, &objects, volumes()).await;
    assert_eq!(
        summary(&plan),
        [
            format!("persistentvolumes/pv {creation}"),
            "persistentvolumeclaims/shop/data Create".into(),
        ]
    );
    let name = &plan.entries[0].target.as_ref().unwrap().name;
    assert!(name.starts_with("velero-clone-"), "{name}");

    // The restore would wait for a terminating volume.
    let mut released = volume.clone();
    released["status"] = json!({"phase": "Released"});
    let plan = plan_with(fake().with(released), request(json!({}), ""), &objects, volumes()).await;
    let entry = &plan.entries[0];
    assert_eq!(entry.verdict, PlanVerdict::NotValidated, "{:?}", summary(&plan));
    assert!(entry.reason.contains("the restore would wait"), "{}", entry.reason);
}

#[tokio::test]
async fn claims_from_csi_snapshots_are_planned_with_what_they_need() {
    let snapshots = "snapshot.storage.k8s.io/v1";
    let mut claim = object("v1", "PersistentVolumeClaim", "shop", "data");
    claim["metadata"]["annotations"] = json!({"velero.io/volume-snapshot-name": "vs"});
    claim["spec"] = json!({"volumeName": "pv-1", "storageClassName": "fast"});
    claim["status"] = json!({"phase": "Bound"});
    let mut volume = object("v1", "PersistentVolume", "", "pv-1");
    volume["spec"] = json!({"claimRef": {"namespace": "shop", "name": "data"}});
    let mut snapshot = object(snapshots, "VolumeSnapshot", "shop", "vs");
    snapshot["spec"] = json!({"source": {"persistentVolumeClaimName": "data"}});
    snapshot["metadata"]["annotations"] = json!({
        "velero.io/csi-volumegroupsnapshot-handle": "g1",
        "velero.io/csi-volumesnapshot-handle": "s1", "velero.io/csi-driver-name": "a.driver",
    });
    snapshot["status"] = json!({"boundVolumeSnapshotContentName": "vsc"});
    let mut content = object(snapshots, "VolumeSnapshotContent", "", "vsc");
    content["spec"] = json!({
        "driver": "a.driver", "volumeSnapshotRef": {"namespace": "shop", "name": "vs"},
    });
    content["status"] = json!({"snapshotHandle": "s1"});
    let objects = [
        ("persistentvolumeclaims", claim),
        ("persistentvolumes", volume),
        ("volumesnapshots.snapshot.storage.k8s.io", snapshot),
        ("volumesnapshotcontents.snapshot.storage.k8s.io", content),
    ];
    let shop = || object("v1", "Namespace", "", "shop");
    let plan = plan_of(with_csi().with(shop()), request(json!({}), ""), &objects).await;
    let expected = [
        "volumesnapshotcontents.snapshot.storage.k8s.io/vsc Create",
        "volumesnapshots.snapshot.storage.k8s.io/shop/vs Create",
        "persistentvolumes/pv-1 Skip: the claim gets a new volume from a CSI snapshot",
        "persistentvolumeclaims/shop/data Create",
    ];
    assert_eq!(summary(&plan), expected);
    assert_eq!(plan.not_run, ["velero.io/change-storage-class"]);

    let without = with_csi().with(shop());
    without.remove("csidrivers.storage.k8s.io", "", "a.driver");
    let plan = plan_of(without, request(json!({}), ""), &objects).await;
    let claim = summary(&plan).remove(3);
    assert!(claim.contains("data Refuse: ") && claim.contains("is not installed"), "{claim}");
    assert!(plan.would_fail());
}
