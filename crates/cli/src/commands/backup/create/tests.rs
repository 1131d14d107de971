use bowline_api::Duration;
use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use kube::ResourceExt as _;

#[derive(Debug, clap::Parser)]
struct TestCommand {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &[&str]) -> Args {
    let words = ["create"].iter().chain(line);
    TestCommand::try_parse_from(words).unwrap_or_else(|error| panic!("{line:?}: {error}")).args
}

/// Spec of a command line, without the fields that every spec has.
fn spec_of(line: &[&str]) -> anyhow::Result<Value> {
    let args = parse(line);
    let mut value = serde_json::to_value(spec(&args.filter, &args.options)?)?;
    let empty =
        serde_json::to_value(spec(&BackupFilterArgs::default(), &BackupOptionArgs::default())?)?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|field, value| empty[field] != *value);
    }
    Ok(value)
}

#[test]
fn default_flags_include_everything() {
    let spec = spec(&BackupFilterArgs::default(), &BackupOptionArgs::default()).unwrap();
    let expected = json!({
        "metadata": {}, "ttl": "0s", "hooks": {}, "includedNamespaces": ["*"],
        "csiSnapshotTimeout": "0s", "itemOperationTimeout": "0s",
    });
    assert_eq!(serde_json::to_value(spec).unwrap(), expected);
}

#[test]
fn each_flag_sets_its_field() {
    for (line, expected) in [
        (&["--include-namespaces", "a,b"][..], json!({"includedNamespaces": ["a", "b"]})),
        (
            &["--include-namespaces", "a", "--include-namespaces=b,c"],
            json!({"includedNamespaces": ["a", "b", "c"]}),
        ),
        (&["--exclude-namespaces", "a"], json!({"excludedNamespaces": ["a"]})),
        (&["--include-resources", "pods"], json!({"includedResources": ["pods"]})),
        (&["--exclude-resources", "pods"], json!({"excludedResources": ["pods"]})),
        (&["--include-cluster-resources"], json!({"includeClusterResources": true})),
        (&["--include-cluster-resources=false"], json!({"includeClusterResources": false})),
        (
            &["--include-cluster-scoped-resources", "*"],
            json!({"includedClusterScopedResources": ["*"]}),
        ),
        (
            &["--exclude-cluster-scoped-resources", "nodes"],
            json!({"excludedClusterScopedResources": ["nodes"]}),
        ),
        (
            &["--include-namespace-scoped-resources", "pods"],
            json!({"includedNamespaceScopedResources": ["pods"]}),
        ),
        (
            &["--exclude-namespace-scoped-resources", "pods"],
            json!({"excludedNamespaceScopedResources": ["pods"]}),
        ),
        (&["-l", "a=b"], json!({"labelSelector": {"matchLabels": {"a": "b"}}})),
        (
            &["--selector", "a notin (b)"],
            json!({"labelSelector": {"matchExpressions": [
                {"key": "a", "operator": "NotIn", "values": ["b"]}
            ]}}),
        ),
        (
            &["--or-selector", "a=b or c"],
            json!({"orLabelSelectors": [
                {"matchLabels": {"a": "b"}},
                {"matchExpressions": [{"key": "c", "operator": "Exists"}]},
            ]}),
        ),
        (
            &["--ordered-resources", "pods=ns1/a,ns1/b; persistentvolumes=pv1"],
            json!({"orderedResources": {"pods": "ns1/a,ns1/b", "persistentvolumes": "pv1"}}),
        ),
        (
            &["--resource-policies-configmap", "p"],
            json!({"resourcePolicy": {"kind": "configmap", "name": "p"}}),
        ),
        (&["--ttl", "24h"], json!({"ttl": "24h0m0s"})),
        (&["--storage-location", "s"], json!({"storageLocation": "s"})),
        (&["--volume-snapshot-locations", "a,b"], json!({"volumeSnapshotLocations": ["a", "b"]})),
        (&["--snapshot-volumes"], json!({"snapshotVolumes": true})),
        (&["--snapshot-volumes=false"], json!({"snapshotVolumes": false})),
        (&["--snapshot-move-data"], json!({"snapshotMoveData": true})),
        (&["--data-mover", "m"], json!({"datamover": "m"})),
        (&["--default-volumes-to-fs-backup=f"], json!({"defaultVolumesToFsBackup": false})),
        (&["--parallel-files-upload", "4"], json!({"uploaderConfig": {"parallelFilesUpload": 4}})),
        (&["--parallel-files-upload", "0"], json!({})),
        (
            &["--volume-group-snapshot-label-key", "x.io/g"],
            json!({"volumeGroupSnapshotLabelKey": "x.io/g"}),
        ),
        (&["--csi-snapshot-timeout", "1m"], json!({"csiSnapshotTimeout": "1m0s"})),
        (&["--item-operation-timeout", "90s"], json!({"itemOperationTimeout": "1m30s"})),
    ] {
        assert_eq!(spec_of(line).unwrap(), expected, "{line:?}");
    }
}

#[test]
fn contradictory_flags_are_refused() {
    for (line, reason) in [
        (
            &["--include-resources=pods", "--include-cluster-scoped-resources=*"][..],
            "cannot be combined with",
        ),
        (
            &["--include-cluster-resources=false", "--exclude-namespace-scoped-resources=pods"],
            "cannot be combined with",
        ),
        (&["--exclude-namespaces=*"], "would exclude everything"),
        (&["--include-namespaces=*,a"], "use either"),
        (&["--include-namespaces=a,b", "--exclude-namespaces=b"], "`b` is both"),
        (&["--ordered-resources=pods"], "not `pods`"),
        (&["--ordered-resources=pods=a;"], "not ``"),
        (&["--selector=a="], ""),
        (&["--selector=a=b=c"], "is not a valid label selector"),
    ] {
        match spec_of(line) {
            Ok(_) => assert_eq!(reason, "", "{line:?}"),
            Err(error) => {
                assert!(!reason.is_empty() && error.to_string().contains(reason), "{error}");
            }
        }
    }
}

#[test]
fn invalid_values_are_refused() {
    for line in [
        &["--ttl", "30d"][..],
        &["--ttl=-1h"],
        &["--include-namespaces", "a,,b"],
        &["--snapshot-volumes=perhaps"],
        &["--parallel-files-upload=-1"],
        &["--snapshot-type=remote"],
        &["--labels", "a"],
        &["-l", "a=b", "--or-selector", "c=d"],
        &["-o", "yaml", "--wait"],
        &["--resource-policies-configmap"],
    ] {
        let words = ["create"].iter().chain(line);
        assert!(TestCommand::try_parse_from(words).is_err(), "{line:?}");
    }
}

#[test]
fn labels_and_annotations_are_put_on_the_backup() {
    let args =
        parse(&["b", "--labels", "a=1,b=2", "--labels", "b=3", "--annotations", "\"c=d,e\""]);
    let mut backup = Backup::new("b", BackupSpec::default());
    add_flag_metadata(&mut backup, &args);
    let metadata = serde_json::to_value(&backup.metadata).unwrap();
    let expected =
        json!({"name": "b", "labels": {"a": "1", "b": "3"}, "annotations": {"c": "d,e"}});
    assert_eq!(metadata, expected);

    // The flag wins.
    let line = ["b", "--annotations", "bowline.io/snapshot-type=local", "--snapshot-type", "cloud"];
    let mut cloud = Backup::new("b", BackupSpec::default());
    add_flag_metadata(&mut cloud, &parse(&line));
    assert_eq!(cloud.annotations()["bowline.io/snapshot-type"], "cloud");

    let mut plain = Backup::new("b", BackupSpec::default());
    add_flag_metadata(&mut plain, &parse(&["b"]));
    assert_eq!(serde_json::to_value(&plain.metadata).unwrap(), json!({"name": "b"}));
}

fn schedule(value: &Value) -> Schedule {
    serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {
            "name": "nightly", "namespace": "velero", "uid": "u",
            "labels": {"of": "schedule"},
            "annotations": {"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": value,
    }))
    .unwrap()
}

#[test]
fn backup_from_schedule_gets_its_template_labels_and_name() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let schedule = schedule(&json!({
        "schedule": "@daily", "template": {"ttl": "1h0m0s", "includedNamespaces": ["a"]},
        "useOwnerReferencesInBackup": true,
    }));
    let backup = from_schedule(&schedule, None, now).unwrap();
    assert_eq!(
        serde_json::to_value(&backup.metadata).unwrap(),
        json!({
            "name": "nightly-20260102030405", "namespace": "velero",
            "labels": {"of": "schedule", "velero.io/schedule-name": "nightly"},
            "annotations": {"note": "kept"},
            "ownerReferences": [{
                "apiVersion": "velero.io/v1", "kind": "Schedule", "name": "nightly", "uid": "u",
                "controller": true,
            }],
        })
    );
    assert_eq!(backup.spec.included_namespaces, ["a"]);
    assert_eq!(backup.spec.ttl, Duration::from_seconds(3600));
}

#[test]
fn template_labels_replace_schedule_labels() {
    let mut schedule = schedule(&json!({
        "schedule": "@daily", "template": {"metadata": {"labels": {"of": "template"}}},
    }));
    schedule.annotations_mut().insert("bowline.io/snapshot-type".to_owned(), "local".to_owned());
    let name = BackupName::new("mine").unwrap();
    let mut backup = from_schedule(&schedule, Some(&name), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(backup.annotations()["bowline.io/snapshot-type"], "local");
    add_flag_metadata(&mut backup, &parse(&["--from-schedule=nightly", "--snapshot-type=auto"]));
    assert_eq!(backup.annotations()["bowline.io/snapshot-type"], "auto");
    assert_eq!(backup.name_any(), "mine");
    assert_eq!(backup.labels()["of"], "template");
    assert_eq!(backup.labels()["velero.io/schedule-name"], "nightly");
    assert!(backup.owner_references().is_empty());
}
