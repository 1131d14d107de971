use serde_json::json;

use super::*;

fn data(yaml: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("policy.yaml".to_owned(), yaml.to_owned())])
}

fn parse(yaml: &str) -> Result<Policies, InvalidPolicies> {
    Policies::parse(&data(yaml))
}

/// Policies that skip volumes that match the conditions, which are given as YAML in one line.
fn skipping(conditions: &str) -> Policies {
    parse(&format!(
        "version: v1\nvolumePolicies:\n- conditions: {conditions}\n  action: {{type: skip}}\n"
    ))
    .unwrap_or_else(|error| panic!("{conditions}: {error}"))
}

fn volume(spec: serde_json::Value) -> VolumeFacts {
    let mut volume = json!({"metadata": {"name": "v"}});
    volume["spec"] = spec;
    VolumeFacts::of_persistent_volume(&serde_json::from_value(volume).unwrap(), None)
}

fn pod_volume(mut source: serde_json::Value) -> VolumeFacts {
    source["name"] = json!("v");
    VolumeFacts::of_pod_volume(&serde_json::from_value(source).unwrap(), None)
}

fn claim(labels: &serde_json::Value, phase: &str) -> VolumeFacts {
    let claim = serde_json::from_value(json!({
        "metadata": {"name": "c", "labels": labels},
        "spec": {"volumeMode": "Block", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]},
        "status": {"phase": phase},
    }));
    VolumeFacts::of_claim(&claim.unwrap())
}

fn sized(capacity: &str) -> VolumeFacts {
    volume(json!({"capacity": {"storage": capacity}}))
}

#[test]
fn every_condition_holds_or_does_not() {
    let csi = volume(json!({"csi": {
        "driver": "d.io", "volumeHandle": "h", "volumeAttributes": {"a": "1", "b": "2"}
    }}));
    let nfs = || volume(json!({"nfs": {"server": "s", "path": "/p"}}));
    let class = || volume(json!({"storageClassName": "gp2"}));
    let bound = || claim(&json!({"app": "db", "tier": "1"}), "Bound");
    for (conditions, facts, expected) in [
        ("{}", VolumeFacts::default(), true),
        ("", VolumeFacts::default(), true),
        // Capacity: both bounds are included, an empty or zero bound is open.
        ("{capacity: '10Gi,100Gi'}", sized("10Gi"), true),
        ("{capacity: '10Gi,100Gi'}", sized("100Gi"), true),
        ("{capacity: ' 10Gi , 100Gi '}", sized("50Gi"), true),
        ("{capacity: '10Gi,100Gi'}", sized("9Gi"), false),
        ("{capacity: '10Gi,100Gi'}", sized("101Gi"), false),
        ("{capacity: '10Gi,'}", sized("1Ti"), true),
        ("{capacity: '10Gi,0'}", sized("1Ti"), true),
        ("{capacity: '10Gi,'}", sized("9Gi"), false),
        ("{capacity: ',10Gi'}", sized("1"), true),
        ("{capacity: '0,10Gi'}", sized("10Gi"), true),
        ("{capacity: ',10Gi'}", sized("11Gi"), false),
        ("{capacity: ','}", sized("1Ei"), true),
        ("{capacity: ''}", sized("1Ei"), true),
        // A volume of a pod has no size.
        ("{capacity: '1,2Gi'}", pod_volume(json!({"emptyDir": {}})), false),
        ("{storageClass: [gp2, standard]}", class(), true),
        ("{storageClass: [standard]}", class(), false),
        ("{storageClass: ['']}", VolumeFacts::default(), false),
        ("{storageClass: []}", class(), true),
        ("{nfs: {}}", nfs(), true),
        ("{nfs: {}}", class(), false),
        ("{nfs: {server: s}}", nfs(), true),
        ("{nfs: {server: t}}", nfs(), false),
        ("{nfs: {path: /p}}", nfs(), true),
        ("{nfs: {path: /q}}", nfs(), false),
        ("{nfs: {server: s, path: /p}}", nfs(), true),
        ("{nfs: {server: t, path: /p}}", nfs(), false),
        ("{nfs: {server: s}}", pod_volume(json!({"nfs": {"server": "s", "path": "/"}})), true),
        ("{csi: {}}", csi.clone(), true),
        ("{csi: {}}", nfs(), false),
        ("{csi: {driver: d.io}}", csi.clone(), true),
        ("{csi: {driver: e.io}}", csi.clone(), false),
        ("{csi: {driver: d.io, volumeAttributes: {a: '1'}}}", csi.clone(), true),
        ("{csi: {driver: d.io, volumeAttributes: {a: '2'}}}", csi.clone(), false),
        ("{csi: {driver: d.io, volumeAttributes: {c: '1'}}}", csi, false),
        ("{csi: {driver: d.io}}", pod_volume(json!({"csi": {"driver": "d.io"}})), true),
        ("{volumeTypes: [local, nfs]}", nfs(), true),
        ("{volumeTypes: [local]}", nfs(), false),
        ("{volumeTypes: [emptyDir]}", pod_volume(json!({"emptyDir": {}})), true),
        ("{volumeTypes: [local]}", VolumeFacts::default(), false),
        ("{pvcLabels: {app: db}}", bound(), true),
        ("{pvcLabels: {app: db, tier: '1'}}", bound(), true),
        ("{pvcLabels: {app: web}}", bound(), false),
        ("{pvcLabels: {app: db}}", nfs(), false),
        ("{pvcPhase: [Pending, Bound]}", bound(), true),
        ("{pvcPhase: [Pending]}", bound(), false),
        ("{pvcPhase: [Pending]}", nfs(), false),
        ("{pvcVolumeMode: Block}", bound(), true),
        ("{pvcVolumeMode: Filesystem}", bound(), false),
        ("{pvcAccessModes: [ReadOnlyMany, ReadWriteOnce]}", bound(), true),
        ("{pvcAccessModes: [ReadWriteOnce]}", bound(), false),
        // All must hold.
        ("{pvcLabels: {app: db}, pvcPhase: [Bound]}", bound(), true),
        ("{pvcLabels: {app: db}, pvcPhase: [Lost]}", bound(), false),
        ("{nfs: {}, capacity: '1Gi,'}", nfs(), false),
    ] {
        let is_fit = skipping(conditions).action_for(&facts).is_some();
        assert_eq!(is_fit, expected, "{conditions} on {facts:?}");
    }
}

#[test]
fn the_first_policy_that_fits_wins() {
    let policies = parse(
        "
version: v1
volumePolicies:
- conditions: {capacity: '100Gi,'}
  action: {type: skip}
- conditions: {storageClass: [fast]}
  action: {type: snapshot}
- conditions: {volumeTypes: [nfs]}
  action:
    type: fs-backup
- action: {type: custom, parameters: {by: me, times: 3}}
",
    )
    .unwrap();
    let nfs = json!({"server": "s", "path": "/"});
    for (facts, expected) in [
        (json!({"capacity": {"storage": "200Gi"}, "storageClassName": "fast"}), Method::Skip),
        (json!({"storageClassName": "fast", "nfs": nfs}), Method::Snapshot),
        (json!({"storageClassName": "slow", "nfs": nfs}), Method::FsBackup),
        (json!({}), Method::Custom),
    ] {
        let action = policies.action_for(&volume(facts.clone())).unwrap();
        assert_eq!(action.method, expected, "{facts}");
    }
    let custom = policies.action_for(&VolumeFacts::default()).unwrap();
    assert_eq!(custom.parameters["times"], 3);
    assert_eq!(custom.parameters["by"], "me");
}

#[test]
fn no_policy_means_no_action() {
    let policies = parse("version: v1").unwrap();
    assert_eq!(policies.action_for(&VolumeFacts::default()), None);
    assert_eq!(policies.kinds(), None);
}

#[test]
fn document_problems_are_reported() {
    let one = |conditions: &str| {
        format!(
            "version: v1\nvolumePolicies: [{{conditions: {conditions}, action: {{type: skip}}}}]"
        )
    };
    let kinds = |lists: &str| format!("version: v1\nincludeExcludePolicy: {lists}");
    for (yaml, was_read, words) in [
        ("version: [".to_owned(), false, "cannot read the YAML"),
        ("version: v1\nversion: v1".to_owned(), false, "duplicate"),
        ("version: v1\nvolumePolicy: []".to_owned(), false, "unknown field `volumePolicy`"),
        ("version: v1\nvolumePolicies: [{conditions: {}}]".to_owned(), false, "`action`"),
        (
            "version: v1\nvolumePolicies: [{action: {type: skip}, if: {}}]".to_owned(),
            false,
            "unknown field `if`",
        ),
        (
            "version: v1\nvolumePolicies: [{action: {type: skip, with: {}}}]".to_owned(),
            false,
            "unknown field `with`",
        ),
        (one("{size: '1,2'}"), false, "unknown field `size`"),
        (one("{nfs: {host: s}}"), false, "unknown field `host`"),
        (one("{csi: {name: s}}"), false, "unknown field `name`"),
        (one("{pvcLabels: app}"), false, "cannot read the YAML"),
        (one("{storageClass: {a: b}}"), false, "cannot read the YAML"),
        (one("{capacity: 10Gi}"), false, "wrong format of Capacity \"10Gi\""),
        (one("{capacity: '1,2,3'}"), false, "wrong format of Capacity \"1,2,3\""),
        (
            one("{capacity: '1,x'}"),
            false,
            "wrong format of Capacity \"1,x\": \"x\" is not a quantity",
        ),
        (one("{capacity: '2Gi,1Gi'}"), true, "illegal values for capacity 2Gi,1Gi"),
        (
            one("{csi: {volumeAttributes: {a: b}}}"),
            true,
            "csi driver should not be empty when filtering by volume attributes",
        ),
        ("volumePolicies: []".to_owned(), true, "incompatible version number"),
        (
            "version: v2".to_owned(),
            true,
            "incompatible version number v2 with supported version v1",
        ),
        (
            "version: v1\nvolumePolicies: [{action: {type: copy}}]".to_owned(),
            true,
            "invalid action type copy",
        ),
        (kinds("{includedResources: [a]}"), false, "unknown field `includedResources`"),
        (kinds("{includedClusterScopedResources: ['*']}"), true, "cannot use '*' in includes"),
        (kinds("{excludedNamespaceScopedResources: ['*']}"), true, "cannot use '*' in includes"),
        (
            kinds(
                "{includedNamespaceScopedResources: [a, b], \
                 excludedNamespaceScopedResources: [b]}",
            ),
            true,
            "excludes list cannot contain an item in the includes list: b",
        ),
        (kinds("{excludedClusterScopedResources: ['[a']}"), true, "has a `[` without its `]`"),
    ] {
        let error = parse(&yaml).unwrap_err();
        assert!(error.to_string().contains(words), "{yaml}: {error}");
        assert_eq!(error.is_readable(), was_read, "{yaml}: {error}");
    }
}

#[test]
fn a_config_map_holds_one_document() {
    for (count, data) in [
        (0, BTreeMap::new()),
        (2, {
            let mut two = data("version: v1");
            two.insert("other".into(), "version: v1".into());
            two
        }),
    ] {
        let error = Policies::parse(&data).unwrap_err();
        let words = format!("expected exactly one key in the data of the ConfigMap, found {count}");
        assert_eq!(error.to_string(), words);
        assert!(!error.is_readable());
    }
}

#[test]
fn the_lists_of_kinds_are_kept_by_scope() {
    let policies = parse(
        "
version: v1
includeExcludePolicy:
  includedClusterScopedResources: [storageclasses]
  excludedClusterScopedResources: [crd*]
  includedNamespaceScopedResources: [pods, secrets]
  excludedNamespaceScopedResources: [events]
",
    )
    .unwrap();
    let names = |globs: &[Glob]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let kinds = policies.kinds().unwrap();
    assert_eq!(names(&kinds.cluster.included), ["storageclasses"]);
    assert_eq!(names(&kinds.cluster.excluded), ["crd*"]);
    assert_eq!(names(&kinds.namespaced.included), ["pods", "secrets"]);
    assert_eq!(names(&kinds.namespaced.excluded), ["events"]);
}

#[test]
fn a_volume_type_that_does_not_exist_is_a_warning() {
    assert!(skipping("{volumeTypes: [csi, awsAzureDisk]}").warnings().is_empty());
    assert_eq!(
        skipping("{volumeTypes: [csi, CSI]}").warnings(),
        ["the resource policy has the volume type CSI, which no volume has"]
    );
}

#[test]
fn every_source_has_the_type_that_velero_gives_it() {
    for (source, expected) in [
        (json!({"awsElasticBlockStore": {"volumeID": "v"}}), "awsElasticBlockStore"),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "u"}}), "azureDisk"),
        (json!({"cephfs": {"monitors": []}}), "cephfs"),
        (json!({"cinder": {"volumeID": "v"}}), "cinder"),
        (json!({"fc": {}}), "fc"),
        (json!({"flexVolume": {"driver": "d"}}), "flexVolume"),
        (json!({"flocker": {}}), "flocker"),
        (json!({"gcePersistentDisk": {"pdName": "p"}}), "gcePersistentDisk"),
        (json!({"hostPath": {"path": "/"}}), "hostPath"),
        (json!({"nfs": {"server": "s", "path": "/"}}), "nfs"),
        (json!({"photonPersistentDisk": {"pdID": "p"}}), "photonPersistentDisk"),
        (json!({"portworxVolume": {"volumeID": "v"}}), "portworxVolume"),
        (json!({"quobyte": {"registry": "r", "volume": "v"}}), "quobyte"),
        (json!({"storageos": {}}), "storageOS"),
        (json!({"vsphereVolume": {"volumePath": "p"}}), "vsphereVolume"),
    ] {
        assert_eq!(volume(source.clone()).volume_type, Some(expected), "{source}");
        assert_eq!(pod_volume(source.clone()).volume_type, Some(expected), "{source}");
    }
    for (source, expected) in [
        (json!({"local": {"path": "/"}}), "local"),
        (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "csi"),
        (json!({"azureFile": {"secretName": "s", "shareName": "s"}}), "azureFile"),
        (json!({"glusterfs": {"endpoints": "e", "path": "/"}}), "glusterfs"),
        (json!({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}}), "iscsi"),
        (json!({"rbd": {"image": "i", "monitors": []}}), "rbd"),
        (
            json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "n"}}}),
            "scaleIO",
        ),
    ] {
        assert_eq!(volume(source.clone()).volume_type, Some(expected), "{source}");
    }
    for (source, expected) in [
        (json!({"configMap": {}}), "configMap"),
        (json!({"downwardAPI": {}}), "downwardAPI"),
        (json!({"emptyDir": {}}), "emptyDir"),
        (json!({"ephemeral": {}}), "ephemeral"),
        (json!({"gitRepo": {"repository": "r"}}), "gitRepo"),
        (json!({"projected": {}}), "projected"),
        (json!({"secret": {}}), "secret"),
    ] {
        assert_eq!(pod_volume(source.clone()).volume_type, Some(expected), "{source}");
    }
    let claimed = json!({"persistentVolumeClaim": {"claimName": "c"}});
    assert_eq!(pod_volume(claimed).volume_type, None);
    assert_eq!(volume(json!({})).volume_type, None);
}

#[test]
fn a_volume_and_its_claim_are_read_together() {
    let persistent = serde_json::from_value(json!({
        "metadata": {"name": "v"},
        "spec": {"capacity": {"storage": "3Gi"}, "storageClassName": "gp2"},
    }));
    let pvc = serde_json::from_value(json!({
        "metadata": {"name": "c", "labels": {"app": "db"}},
        "spec": {"volumeMode": "Filesystem"},
        "status": {"phase": "Bound"},
    }));
    let facts = VolumeFacts::of_persistent_volume(&persistent.unwrap(), Some(&pvc.unwrap()));
    assert_eq!(facts.capacity, 3 << 30);
    assert_eq!(facts.storage_class, "gp2");
    assert_eq!(facts.pvc_labels, BTreeMap::from([("app".into(), "db".into())]));
    assert_eq!((facts.pvc_phase.as_str(), facts.pvc_volume_mode.as_str()), ("Bound", "Filesystem"));
}
