use std::collections::BTreeMap;

use bowline_plugin::Item;
use bowline_store::file::{BackupVolumeInfo, SnapshotSpec, SnapshotStatus};
use serde_json::{Value, json};

use super::*;
use crate::cluster::fake::Fake;

fn object(value: &Value) -> Object {
    let kind = value["kind"].as_str().unwrap();
    let resources = Fake::usual().resources();
    let resource = resources.iter().find(|resource| resource.kind == kind).unwrap();
    Object::new(resource, Item::from_object(value).unwrap()).unwrap()
}

fn record_all(objects: &[Value]) -> Volumes {
    let volumes = Volumes::default();
    for value in objects {
        let object = object(value);
        match value["kind"].as_str().unwrap() {
            "Pod" => volumes.record_pod(&object),
            "PersistentVolumeClaim" => volumes.record_claim(&object),
            _ => volumes.record_volume(&object),
        }
    }
    volumes
}

/// A volume that the claim `data` is bound to.
fn volume(source: &Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pv-1", "labels": {"zone": "a"}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Retain",
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "shop", "name": "data"},
        },
        "status": {"phase": "Bound"},
    });
    volume["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    volume
}

fn csi() -> Value {
    volume(&json!({"csi": {"driver": "disk.example.com", "volumeHandle": "v"}}))
}

fn nfs() -> Value {
    volume(&json!({"nfs": {"server": "s", "path": "/p"}}))
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "shop", "name": "data", "labels": {"tier": "gold"}},
        "spec": {"volumeName": "pv-1"},
        "status": {"phase": "Bound"},
    })
}

/// A running pod that has mounted everything.
fn pod(annotations: &Value, volumes: &Value) -> Value {
    let names = volumes.as_array().unwrap().iter().map(|volume| json!({"name": volume["name"]}));
    let mounts: Vec<_> = names.collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "db", "annotations": annotations},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
        "status": {"phase": "Running"},
    })
}

fn of_claim() -> Value {
    json!([{"name": "vol", "persistentVolumeClaim": {"claimName": "data"}}])
}

fn opted_in(names: &str) -> Value {
    json!({BACKUP_VOLUMES: names})
}

fn opted_out(names: &str) -> Value {
    json!({BACKUP_VOLUMES_EXCLUDES: names})
}

const BACKUP_VOLUMES: &str = "backup.velero.io/backup-volumes";
const BACKUP_VOLUMES_EXCLUDES: &str = "backup.velero.io/backup-volumes-excludes";

fn policies(condition: &str, action: &str) -> Policies {
    let text = format!(
        "version: v1\nvolumePolicies:\n- conditions: {condition}\n  action: {{type: {action}}}\n"
    );
    Policies::parse(&BTreeMap::from([("policy".to_owned(), text)])).unwrap()
}

/// Options of an empty Backup spec.
const DEFAULT_OPTIONS: VolumeOptions<'_> = VolumeOptions {
    snapshot_volumes: true,
    default_volumes_to_fs_backup: false,
    policies: None,
    has_snapshot_locations: false,
    includes_claims: true,
};

const DEFAULT_FS: VolumeOptions<'_> =
    VolumeOptions { default_volumes_to_fs_backup: true, ..DEFAULT_OPTIONS };

/// Decision on a volume: the reason in its info, and the level and item of each message.
fn decide_and_describe(
    objects: &[Value],
    options: &VolumeOptions<'_>,
) -> (Vec<String>, Vec<String>) {
    let volumes = record_all(objects);
    // No plugin supports any of them.
    for volume in volumes.volumes_to_snapshot(options) {
        volumes.record_snapshot(&volume, SnapshotOutcome::Unmatched);
    }
    let results = volumes.decide_all(options);
    let reasons = results.infos.iter().map(|info| {
        assert!(info.skipped && info.backup_method.is_none(), "{info:?}");
        info.skipped_reason.clone()
    });
    let messages = |kind: &str, all: &[(ResourceIdentifier, String)]| -> Vec<String> {
        all.iter().map(|(id, text)| format!("{kind} {id}: {text}")).collect()
    };
    let mut described = messages("error", &results.errors);
    described.extend(messages("warning", &results.warnings));
    (reasons.collect(), described)
}

const CSI: &str = "csiSnapshot: no snapshot was created;";
const NO_SNAPSHOTTER: &str = "volumeSnapshot: no snapshotter supports volumes of the type nfs;";
const OFF: &str = "volumeSnapshot: snapshotVolumes is false;";
const FILES: &str = "podvolume: file-system backup is not supported;";
const ON_CLAIM: &str = "persistentvolumeclaims/shop/data";

#[test]
fn volume_decision_depends_on_its_snapshot_method() {
    let locations = VolumeOptions { has_snapshot_locations: true, ..DEFAULT_OPTIONS };
    let off = VolumeOptions { snapshot_volumes: false, ..locations };
    for (what, objects, wishes, reason, message) in [
        ("csi", vec![csi(), claim()], DEFAULT_OPTIONS, CSI, Some(("error", ON_CLAIM))),
        ("csi, locations", vec![csi(), claim()], locations, CSI, Some(("error", ON_CLAIM))),
        ("csi, off", vec![csi(), claim()], off, OFF, None),
        (
            "other",
            vec![nfs(), claim()],
            DEFAULT_OPTIONS,
            NO_SNAPSHOTTER,
            Some(("warning", ON_CLAIM)),
        ),
        (
            "other, locations",
            vec![nfs(), claim()],
            locations,
            NO_SNAPSHOTTER,
            Some(("warning", ON_CLAIM)),
        ),
        ("other, off", vec![nfs(), claim()], off, OFF, None),
        (
            "csi without its claim",
            vec![csi()],
            DEFAULT_OPTIONS,
            "volumeSnapshot: no snapshotter supports volumes of the type csi;",
            Some(("warning", "persistentvolumes/pv-1")),
        ),
        (
            "csi without its claim, locations",
            vec![csi()],
            locations,
            "volumeSnapshot: no snapshotter supports volumes of the type csi;",
            Some(("warning", "persistentvolumes/pv-1")),
        ),
        (
            "a claim without its volume",
            vec![claim()],
            DEFAULT_OPTIONS,
            "any: this snapshot method is not supported;",
            Some(("error", ON_CLAIM)),
        ),
        ("a claim without its volume, off", vec![claim()], off, OFF, None),
    ] {
        let (reasons, messages) = decide_and_describe(&objects, &wishes);
        assert_eq!(reasons, [reason], "{what}");
        match message {
            None => assert!(messages.is_empty(), "{what}: {messages:?}"),
            Some((kind, on)) => {
                let [text] = &messages[..] else { panic!("{what}: {messages:?}") };
                assert!(text.starts_with(&format!("{kind} {on}: ")), "{what}: {text}");
                assert!(text.contains("pv-1"), "{what}: {text}");
            }
        }
    }
}

#[test]
fn a_policy_comes_before_everything_else() {
    let in_pod = pod(&opted_in("vol"), &of_claim());
    for (action, reason, is_error) in [
        ("skip", "any: excluded by a volume policy (skip);", false),
        ("custom", "any: excluded by a volume policy (custom);", false),
        ("fs-backup", FILES, true),
        ("snapshot", CSI, true),
    ] {
        let policies = policies("{csi: {}}", action);
        let off = VolumeOptions { snapshot_volumes: false, ..DEFAULT_OPTIONS };
        for (wishes, objects) in [
            (DEFAULT_OPTIONS, vec![csi(), claim()]),
            (off, vec![csi(), claim()]),
            (DEFAULT_FS, vec![csi(), claim(), in_pod.clone()]),
            (off, vec![csi(), claim(), in_pod.clone()]),
        ] {
            let options = VolumeOptions { policies: Some(&policies), ..wishes };
            let (reasons, messages) = decide_and_describe(&objects, &options);
            assert_eq!(reasons, [reason], "{action}");
            assert_eq!(messages.len(), usize::from(is_error), "{action}: {messages:?}");
        }
        // A policy that does not match has no effect.
        let options = VolumeOptions { policies: Some(&policies), ..DEFAULT_OPTIONS };
        assert_eq!(decide_and_describe(&[nfs(), claim()], &options).0, [NO_SNAPSHOTTER]);
    }
}

#[test]
fn a_policy_sees_the_volume_and_its_claim() {
    for (condition, objects, fits) in [
        ("{pvcLabels: {tier: gold}}", vec![csi(), claim()], true),
        ("{pvcLabels: {tier: gold}}", vec![csi()], false),
        ("{pvcLabels: {tier: gold}}", vec![claim()], true),
        ("{pvcPhase: [Bound]}", vec![csi(), claim()], true),
        ("{capacity: '2Gi,3Gi'}", vec![csi(), claim()], false),
        ("{volumeTypes: [csi]}", vec![claim()], false),
    ] {
        let policies = policies(condition, "skip");
        let (reasons, _) = decide_and_describe(
            &objects,
            &VolumeOptions { policies: Some(&policies), ..DEFAULT_OPTIONS },
        );
        assert_eq!(
            reasons == ["any: excluded by a volume policy (skip);"],
            fits,
            "{condition} {reasons:?}"
        );
    }
}

#[test]
fn files_are_to_be_copied_if_a_pod_opts_in_or_does_not_opt_out() {
    let off = VolumeOptions { snapshot_volumes: false, ..DEFAULT_OPTIONS };
    let default_off = VolumeOptions { snapshot_volumes: false, ..DEFAULT_FS };
    for (what, annotations, wishes, reason) in [
        ("nothing is said", json!({}), DEFAULT_OPTIONS, CSI),
        ("opted in", opted_in("other,vol"), DEFAULT_OPTIONS, FILES),
        ("opted in without snapshots", opted_in("vol"), off, FILES),
        ("another is opted in", opted_in("vol2"), DEFAULT_OPTIONS, CSI),
        ("opting out means nothing here", opted_out("vol"), DEFAULT_OPTIONS, CSI),
        ("by default", json!({}), DEFAULT_FS, FILES),
        ("by default, opted out", opted_out("vol"), DEFAULT_FS, CSI),
        ("opting in means nothing here", opted_in("vol2"), DEFAULT_FS, FILES),
        ("opted out, without snapshots", opted_out("x,vol"), default_off, OFF),
    ] {
        let objects = [pod(&annotations, &of_claim()), claim(), csi()];
        let (reasons, messages) = decide_and_describe(&objects, &wishes);
        assert_eq!(reasons, [reason], "{what}");
        let errors = messages.iter().filter(|text| text.starts_with("error")).count();
        assert_eq!(errors, usize::from(reason != OFF), "{what}: {messages:?}");
    }
}

type Change = fn(&mut Value);

#[test]
fn files_that_cannot_be_read_through_a_pod_are_a_warning() {
    let pod_with = |change: Change| {
        let mut pod = pod(&opted_in("vol"), &of_claim());
        change(&mut pod);
        pod
    };
    let obstacles: [(Change, &str); 4] = [
        (|pod| pod["status"]["phase"] = "Pending".into(), "is not running"),
        (
            |pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
            "is not running",
        ),
        (|pod| pod["spec"]["containers"] = json!([{"name": "c"}]), "does not mount the volume"),
        (
            |pod| {
                let devices = json!([{"name": "c", "volumeDevices": [{"name": "vol"}]}]);
                pod["spec"]["containers"] = devices;
            },
            "uses the volume as a block device",
        ),
    ];
    for (change, because) in obstacles {
        let (reasons, messages) =
            decide_and_describe(&[pod_with(change), claim(), csi()], &DEFAULT_OPTIONS);
        let reason = format!("the files of the volume cannot be copied, because pod db {because}");
        assert_eq!(reasons, [format!("podvolume: {reason};")]);
        let text = format!("the data of volume pv-1 is not in the backup: {reason}");
        assert_eq!(messages, [format!("warning {ON_CLAIM}: {text}")]);

        // One other pod that mounts it is enough, in any order.
        let mut other = pod_with(|_| {});
        other["metadata"]["name"] = "other".into();
        let (reasons, messages) =
            decide_and_describe(&[pod_with(change), other, claim(), csi()], &DEFAULT_OPTIONS);
        assert_eq!(reasons, [FILES]);
        assert!(messages[0].contains("of the pod other"), "{messages:?}");
    }

    let host_path = volume(&json!({"hostPath": {"path": "/x"}}));
    let (reasons, messages) =
        decide_and_describe(&[pod_with(|_| {}), claim(), host_path], &DEFAULT_OPTIONS);
    assert_eq!(reasons, ["podvolume: file-system backup does not support hostPath volumes;"]);
    assert!(messages[0].starts_with("warning"), "{messages:?}");

    let no_claims = VolumeOptions { includes_claims: false, ..DEFAULT_OPTIONS };
    let (reasons, messages) = decide_and_describe(&[pod_with(|_| {}), csi()], &no_claims);
    let reason = "podvolume: file-system backup is requested, but claims are not backed up;";
    assert_eq!(reasons, [reason]);
    assert_eq!(messages.len(), 1);
    assert!(messages[0].starts_with("warning persistentvolumes/pv-1"), "{messages:?}");
}

#[test]
fn a_volume_of_its_own_in_a_pod_counts_only_if_it_is_to_be_copied() {
    let own = json!([
        {"name": "cache", "emptyDir": {}},
        {"name": "share", "nfs": {"server": "s", "path": "/p"}},
    ]);
    let fs_backup = policies("{volumeTypes: [emptyDir]}", "fs-backup");
    let by_policy = VolumeOptions { policies: Some(&fs_backup), ..DEFAULT_OPTIONS };
    let skip = policies("{volumeTypes: [emptyDir, nfs]}", "skip");
    let skipped = VolumeOptions { policies: Some(&skip), ..DEFAULT_FS };
    for (what, annotations, wishes, named) in [
        ("nobody asks", json!({}), DEFAULT_OPTIONS, None),
        ("opted in", opted_in("cache"), DEFAULT_OPTIONS, Some("volume cache is")),
        ("both", opted_in("cache,share"), DEFAULT_OPTIONS, Some("volumes cache, share are")),
        ("by default", json!({}), DEFAULT_FS, Some("volumes cache, share are")),
        ("opted out", opted_out("share"), DEFAULT_FS, Some("volume cache is")),
        ("policy", json!({}), by_policy, Some("volume cache is")),
        ("policy skips", opted_in("cache"), skipped, None),
    ] {
        let (reasons, messages) = decide_and_describe(&[pod(&annotations, &own)], &wishes);
        assert!(reasons.is_empty(), "volume infos are about PersistentVolumes");
        match named {
            None => assert!(messages.is_empty(), "{what}: {messages:?}"),
            Some(named) => {
                let begin = format!("error pods/shop/db: the data of {named} not in the backup");
                assert_eq!(messages.len(), 1, "{what}: {messages:?}");
                assert!(messages[0].starts_with(&begin), "{what}: {messages:?}");
            }
        }
    }
    // A pod's own volumes do not exist while it does not run.
    let mut ended = pod(&opted_in("cache"), &own);
    ended["status"]["phase"] = "Succeeded".into();
    assert_eq!(decide_and_describe(&[ended], &DEFAULT_OPTIONS), (vec![], vec![]));
}

#[test]
fn volumes_that_are_never_copied_are_not_reported() {
    let own = json!([
        {"name": "a", "hostPath": {"path": "/x"}},
        {"name": "b", "secret": {"secretName": "x"}},
        {"name": "c", "configMap": {"name": "x"}},
        {"name": "d", "projected": {"sources": []}},
        {"name": "e", "downwardAPI": {"items": []}},
        {"name": "default-token-x", "emptyDir": {}},
    ]);
    assert_eq!(decide_and_describe(&[pod(&json!({}), &own)], &DEFAULT_FS), (vec![], vec![]));
    assert!(record_all(&[pod(&json!({}), &own)]).recorded.lock().pods.is_empty());
}

#[test]
fn impossible_opt_in_is_reported() {
    let own = json!([{"name": "a", "hostPath": {"path": "/x"}}, {"name": "b", "configMap": {}}]);
    let pod = pod(&opted_in("typo,a,b,"), &own);
    let begin = format!(
        "warning pods/shop/db: the annotation {BACKUP_VOLUMES} of the pod names the volume"
    );
    let expected = [
        format!("{begin} a, but file-system backup does not support hostPath volumes"),
        format!("{begin} typo, which the pod does not have"),
    ];
    assert_eq!(decide_and_describe(std::slice::from_ref(&pod), &DEFAULT_OPTIONS).1, expected);
    assert!(decide_and_describe(&[pod], &DEFAULT_FS).1.is_empty());
}

#[test]
fn claim_missing_from_the_backup_is_reported_on_its_pod() {
    let in_pod = pod(&opted_in("vol"), &of_claim());
    let (reasons, messages) = decide_and_describe(std::slice::from_ref(&in_pod), &DEFAULT_OPTIONS);
    assert!(reasons.is_empty());
    assert_eq!(messages.len(), 1);
    assert!(messages[0].starts_with("error pods/shop/db: "), "{messages:?}");
    let no_claims = VolumeOptions { includes_claims: false, ..DEFAULT_OPTIONS };
    assert!(decide_and_describe(&[in_pod], &no_claims).1.is_empty());
    assert!(decide_and_describe(&[pod(&json!({}), &of_claim())], &DEFAULT_OPTIONS).1.is_empty());
}

#[test]
fn a_volume_that_kubernetes_made_for_a_pod_is_its_claim() {
    let own = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
    let mut claim = claim();
    claim["metadata"]["name"] = "db-data".into();
    let mut volume = csi();
    volume["spec"]["claimRef"]["name"] = "db-data".into();
    let (reasons, messages) =
        decide_and_describe(&[pod(&opted_in("data"), &own), claim, volume], &DEFAULT_OPTIONS);
    assert_eq!(reasons, [FILES]);
    assert_eq!(messages.len(), 1, "{messages:?}");
}

#[test]
fn a_claim_that_is_not_bound_has_nothing_to_save() {
    for phase in ["Pending", "Lost"] {
        let mut claim = claim();
        claim["status"]["phase"] = phase.into();
        assert_eq!(decide_and_describe(&[claim], &DEFAULT_OPTIONS), (vec![], vec![]));
    }
}

#[test]
fn a_released_volume_does_not_belong_to_a_new_claim_of_the_same_name() {
    let mut released = csi();
    released["metadata"]["name"] = "pv-0".into();
    released["status"]["phase"] = "Released".into();
    let objects = [released, csi(), claim(), pod(&opted_in("vol"), &of_claim())];
    let (reasons, messages) = decide_and_describe(&objects, &DEFAULT_OPTIONS);
    let unclaimed = "volumeSnapshot: no snapshotter supports volumes of the type csi;";
    assert_eq!(reasons, [unclaimed, FILES]);
    assert!(messages[0].starts_with(&format!("error {ON_CLAIM}: ")), "{messages:?}");
    assert!(messages[1].starts_with("warning persistentvolumes/pv-0: "), "{messages:?}");
    assert_eq!(record_all(&objects).decide_all(&DEFAULT_OPTIONS).infos[0].pvc_name, "data");
}

#[test]
fn volume_info_has_what_a_restore_needs() {
    let results = record_all(&[claim(), csi()]).decide_all(&DEFAULT_OPTIONS);
    let expected = BackupVolumeInfo {
        pvc_name: "data".into(),
        pvc_namespace: "shop".into(),
        pv_name: "pv-1".into(),
        skipped: true,
        skipped_reason: CSI.into(),
        pv_info: Some(PersistentVolumeInfo {
            reclaim_policy: "Retain".into(),
            labels: BTreeMap::from([("zone".into(), "a".into())]),
            ..PersistentVolumeInfo::default()
        }),
        ..BackupVolumeInfo::default()
    };
    assert_eq!(results.infos, std::slice::from_ref(&expected));
    let alone = record_all(&[claim()]).decide_all(&DEFAULT_OPTIONS);
    let reason = "any: this snapshot method is not supported;".to_owned();
    assert_eq!(
        alone.infos,
        [BackupVolumeInfo { pv_info: None, skipped_reason: reason, ..expected }]
    );
}

/// A snapshot of the volume, created or not.
fn snapshot(phase: SnapshotPhase) -> SnapshotOutcome {
    SnapshotOutcome::PluginSnapshot(Box::new(Snapshot {
        spec: SnapshotSpec {
            persistent_volume_name: "pv-1".into(),
            volume_type: "gp3".into(),
            volume_iops: Some(100),
            ..SnapshotSpec::default()
        },
        status: SnapshotStatus {
            provider_snapshot_id: "snap-1".into(),
            phase: Some(phase),
            ..SnapshotStatus::default()
        },
        ..Snapshot::default()
    }))
}

#[test]
fn requested_snapshot_is_in_the_volume_info_whatever_its_outcome() {
    let locations = VolumeOptions { has_snapshot_locations: true, ..DEFAULT_OPTIONS };
    for (phase, result) in
        [(SnapshotPhase::Completed, Outcome::Succeeded), (SnapshotPhase::Failed, Outcome::Failed)]
    {
        let volumes = record_all(&[csi(), claim()]);
        assert_eq!(volumes.volumes_to_snapshot(&locations), ["pv-1".into()]);
        assert!(
            volumes.volumes_to_snapshot(&DEFAULT_OPTIONS).is_empty(),
            "where there is no location"
        );
        volumes.record_snapshot("pv-1", snapshot(phase));
        let results = volumes.decide_all(&locations);
        assert!(results.errors.is_empty() && results.warnings.is_empty());
        assert_eq!(results.snapshots.len(), 1);
        let [info] = &results.infos[..] else { panic!("{:?}", results.infos) };
        assert_eq!(info.backup_method, Some(Method::NativeSnapshot));
        assert_eq!((info.skipped, &info.result), (false, &Some(result)));
        let native = info.native_snapshot_info.as_ref().unwrap();
        assert_eq!((native.snapshot_handle.as_str(), native.iops.as_str()), ("snap-1", "100"));
    }
}

#[test]
fn volume_without_snapshot_outcome_is_an_error() {
    let locations = VolumeOptions { has_snapshot_locations: true, ..DEFAULT_OPTIONS };
    let results = record_all(&[csi(), claim()]).decide_all(&locations);
    assert!(results.errors[0].1.contains("a bug"), "{:?}", results.errors);
    let volumes = record_all(&[csi(), claim()]);
    volumes.record_snapshot("pv-1", SnapshotOutcome::NotAttempted);
    let results = volumes.decide_all(&locations);
    assert!(results.errors.is_empty(), "it was told when it was tried: {:?}", results.errors);
    assert!(results.infos[0].skipped);
}

#[test]
fn messages_say_what_to_do() {
    let in_pod = |annotations| pod(&annotations, &of_claim());
    let fs_backup = policies("{csi: {}}", "fs-backup");
    let by_policy = VolumeOptions { policies: Some(&fs_backup), ..DEFAULT_OPTIONS };
    let files = "file-system backup is requested, which this version does not support";
    let skip = "use a volume policy with `skip` for it";
    for (objects, wishes, text) in [
        (
            vec![csi(), claim()],
            DEFAULT_OPTIONS,
            format!(
                "no CSI snapshot was created (driver disk.example.com); \
                 {skip}, or set snapshotVolumes to false"
            ),
        ),
        (vec![csi(), claim()], by_policy, format!("{files}; {skip}")),
        (
            vec![csi(), claim(), in_pod(opted_in("vol"))],
            DEFAULT_OPTIONS,
            format!(
                "{files}; remove it from the annotation {BACKUP_VOLUMES} of the pod db, or {skip}"
            ),
        ),
        (
            vec![csi(), claim(), in_pod(json!({}))],
            DEFAULT_FS,
            format!(
                "{files}; add it to the annotation {BACKUP_VOLUMES_EXCLUDES} of the pod db, or {skip}"
            ),
        ),
    ] {
        let expected =
            format!("error {ON_CLAIM}: the data of volume pv-1 is not in the backup: {text}");
        assert_eq!(decide_and_describe(&objects, &wishes).1, [expected]);
    }
}

#[test]
fn unreadable_objects_are_reported() {
    let mut broken = pod(&json!({}), &of_claim());
    broken["spec"]["volumes"] = "none".into();
    let (_, messages) = decide_and_describe(&[broken], &DEFAULT_OPTIONS);
    let begin = "error pods/shop/db: the volumes of the pod are not known";
    assert!(messages[0].starts_with(begin), "{messages:?}");
}

#[test]
fn facts_of_plain_volumes_are_kept_once() {
    let volumes = Volumes::default();
    for number in 0..10 {
        let mut pod = pod(&json!({}), &json!([{"name": "cache", "emptyDir": {}}]));
        pod["metadata"]["name"] = format!("db-{number}").into();
        volumes.record_pod(&object(&pod));
    }
    let recorded = volumes.recorded.lock();
    assert_eq!((recorded.pods.len(), recorded.shared_facts.len()), (10, 1));
    assert_eq!(Arc::strong_count(&recorded.shared_facts["emptyDir"]), 11);
}
