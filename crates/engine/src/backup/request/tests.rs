mod credentials;
mod lists;
mod location;
mod policy;

use bowline_api::{BackupStorageLocation, VolumeSnapshotLocation};
use serde_json::{Value, json};

use super::*;
use crate::backup::filter::Scope;
use crate::backup::filter::namespaces::Namespace;

fn backup(spec: Value) -> Backup {
    let mut backup = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": "b1", "namespace": "velero", "uid": "0b-1c"},
    });
    backup["spec"] = spec;
    serde_json::from_value(backup).unwrap()
}

fn storage(access_mode: &str, phase: &str) -> Lookup<BackupStorageLocation> {
    let location = serde_json::from_value(json!({
        "metadata": {"name": "default"},
        "spec": {"provider": "p", "objectStorage": {"bucket": "b"}, "accessMode": access_mode},
        "status": {"phase": phase},
    }));
    Lookup::Found(location.unwrap())
}

fn snapshot_locations(all: &[(&str, &str)]) -> Vec<VolumeSnapshotLocation> {
    let location = |(name, provider): &(&str, &str)| {
        let spec = json!({"metadata": {"name": name}, "spec": {"provider": provider}});
        serde_json::from_value(spec).unwrap()
    };
    all.iter().map(location).collect()
}

fn namespace(name: &str, labels: &[(&str, &str)]) -> Namespace {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Namespace { name: name.into(), labels, is_active: true }
}

fn facts() -> Facts {
    Facts {
        storage_location: storage("ReadWrite", "Available"),
        default_storage_location: None,
        storage_locations: Ok(Vec::new()),
        snapshot_locations: Ok(Vec::new()),
        namespaces: Ok(vec![namespace("shop", &[]), namespace("kube-system", &[])]),
        policy: Lookup::Missing,
    }
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn prepared(spec: Value, facts: &Facts) -> PreparedBackup {
    prepare(&backup(spec), facts, &Defaults::default(), now())
}

#[track_caller]
fn request(spec: Value) -> Request {
    prepared(spec, &facts()).outcome.unwrap()
}

#[track_caller]
fn errors(spec: Value, facts: &Facts) -> Vec<String> {
    let PreparedBackup { backup, outcome } = prepared(spec, facts);
    let ValidationErrors(errors) = outcome.unwrap_err();
    assert_eq!(backup.status.unwrap().validation_errors, errors);
    errors
}

#[test]
fn every_default_is_filled_in() {
    let defaults = Defaults {
        cluster_version: ClusterVersion {
            git_version: "v1.36.1".into(),
            major: "1".into(),
            minor: "36".into(),
        },
        ..Defaults::default()
    };
    let PreparedBackup { backup, outcome } =
        prepare(&backup(json!({})), &facts(), &defaults, now());
    assert!(outcome.is_ok());
    let written = serde_json::to_value(&backup).unwrap();
    assert_eq!(
        written["metadata"],
        json!({
            "name": "b1",
            "namespace": "velero",
            "uid": "0b-1c",
            "labels": {"velero.io/storage-location": "default"},
            "annotations": {
                "velero.io/source-cluster-k8s-gitversion": "v1.36.1",
                "velero.io/source-cluster-k8s-major-version": "1",
                "velero.io/source-cluster-k8s-minor-version": "36",
                "velero.io/resource-timeout": "10m0s",
            },
        })
    );
    assert_eq!(
        written["spec"],
        json!({
            "metadata": {},
            "hooks": {},
            "includedNamespaces": ["*"],
            "ttl": "720h0m0s",
            "volumeGroupSnapshotLabelKey": "velero.io/volume-group",
            "storageLocation": "default",
            "defaultVolumesToFsBackup": false,
            "csiSnapshotTimeout": "10m0s",
            "itemOperationTimeout": "4h0m0s",
            "snapshotMoveData": false,
        })
    );
    assert_eq!(
        written["status"],
        json!({"version": 1, "formatVersion": "1.1.0", "expiration": "2026-02-01T03:04:05Z"})
    );
}

#[test]
fn operation_timeout_comes_from_the_server_unless_the_backup_has_one() {
    let defaults = Defaults {
        item_operation_timeout: bowline_api::Duration::from_seconds(6 * 3600),
        ..Defaults::default()
    };
    for (spec, hours) in [(json!({}), 6), (json!({"itemOperationTimeout": "1h0m0s"}), 1)] {
        let request = prepare(&backup(spec), &facts(), &defaults, now()).outcome.unwrap();
        assert_eq!(request.item_operation_timeout(), std::time::Duration::from_hours(hours));
    }
}

#[test]
fn explicit_values_are_not_overwritten() {
    let spec = json!({
        "metadata": {},
        "hooks": {},
        "includedNamespaces": ["shop"],
        "ttl": "1h0m0s",
        "volumeGroupSnapshotLabelKey": "group",
        "storageLocation": "other",
        "defaultVolumesToFsBackup": true,
        "csiSnapshotTimeout": "1m0s",
        "itemOperationTimeout": "2m0s",
        "snapshotMoveData": false,
        "snapshotVolumes": false,
    });
    let PreparedBackup { backup, outcome } = prepared(spec.clone(), &facts());
    assert_eq!(serde_json::to_value(&backup.spec).unwrap(), spec);
    let expiration = backup.status.unwrap().expiration.unwrap();
    assert_eq!(expiration.0.to_string(), "2026-01-02T04:04:05Z");
    let request = outcome.unwrap();
    assert_eq!(request.volume_group_label_key, "group");
    assert!(!request.snapshot_volumes);
    assert!(request.default_volumes_to_fs_backup);
}

#[test]
fn invalid_hooks_are_reported_with_all_other_problems() {
    let spec = json!({
        "ttl": "-1h",
        "hooks": {"resources": [
            {"name": "empty", "pre": [{"exec": {"command": []}}]},
            {"name": "glob", "includedNamespaces": ["[a"], "includedResources": ["[b"]},
            {"name": "labels", "labelSelector": {
                "matchExpressions": [{"key": "a", "operator": "Near"}],
            }},
            // The existence of a resource is checked later, against the cluster.
            {"name": "good", "includedResources": ["po"], "pre": [{"exec": {"command": ["a"]}}]},
        ]},
    });
    let errors = errors(spec, &facts());
    assert_eq!(errors.len(), 5, "{errors:?}");
    for (error, words) in errors[1..].iter().zip([
        ["\"empty\"", "no command is set"],
        ["\"glob\"", "includedResources"],
        ["\"glob\"", "includedNamespaces"],
        ["\"labels\"", "labelSelector"],
    ]) {
        assert!(error.starts_with("invalid hooks: "), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn preparing_a_prepared_backup_changes_nothing() {
    let mut facts = facts();
    facts.namespaces = Ok(vec![namespace("hidden", &[("velero.io/exclude-from-backup", "true")])]);
    facts.snapshot_locations = Ok(snapshot_locations(&[("a", "p")]));
    let first = prepared(json!({}), &facts);
    assert!(first.outcome.is_ok());
    let second = prepare(&first.backup, &facts, &Defaults::default(), now());
    assert!(second.outcome.is_ok());
    assert_eq!(second.backup, first.backup);
    assert_eq!(second.backup.spec.excluded_namespaces, ["hidden"]);
}

#[test]
fn a_request_knows_the_backup_as_plugins_see_it() {
    let request = request(json!({}));
    assert_eq!((request.name.as_str(), request.uid.as_str()), ("b1", "0b-1c"));
    assert_eq!(request.namespace, "velero");
    let item: Value = serde_json::from_slice(&request.backup.json()).unwrap();
    assert_eq!(item["kind"], "Backup");
    assert_eq!(item["spec"]["ttl"], "720h0m0s");
    assert_eq!(item["status"]["formatVersion"], "1.1.0");
}

#[test]
fn old_fs_backup_field_counts_only_if_true() {
    for (spec, expected) in [
        (json!({"defaultVolumesToRestic": true}), true),
        (json!({"defaultVolumesToRestic": true, "defaultVolumesToFsBackup": false}), true),
        (json!({"defaultVolumesToRestic": false, "defaultVolumesToFsBackup": true}), true),
        (json!({"defaultVolumesToRestic": false}), false),
        (json!({}), false),
    ] {
        assert_eq!(request(spec.clone()).default_volumes_to_fs_backup, expected, "{spec}");
    }
}

#[test]
fn volumes_are_snapshotted_unless_it_says_no() {
    for (spec, expected) in [
        (json!({}), true),
        (json!({"snapshotVolumes": null}), true),
        (json!({"snapshotVolumes": true}), true),
        (json!({"snapshotVolumes": false}), false),
    ] {
        assert_eq!(request(spec.clone()).snapshot_volumes, expected, "{spec}");
    }
}

#[test]
fn selectors_are_one_or_several() {
    let app = |value: &str| json!({"matchLabels": {"app": value}});
    let texts = |spec| request(spec).selectors.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(texts(json!({})).is_empty());
    assert_eq!(texts(json!({"labelSelector": app("a")})), ["app=a"]);
    assert_eq!(texts(json!({"orLabelSelectors": [app("a"), app("b")]})), ["app=a", "app=b"]);
    assert_eq!(
        errors(json!({"labelSelector": app("a"), "orLabelSelectors": [app("b")]}), &facts()),
        ["encountered labelSelector as well as orLabelSelectors in backup spec, only one can be \
          specified"]
    );
    let wrong = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Is"}]});
    assert_eq!(
        errors(json!({"labelSelector": wrong("a")}), &facts()),
        ["invalid labelSelector: \"Is\" is not an operator for a: expected In, NotIn, Exists \
             or DoesNotExist"]
    );
    let several = errors(json!({"orLabelSelectors": [wrong("a"), wrong("b")]}), &facts());
    assert_eq!(several.len(), 2);
    assert!(several.iter().all(|error| error.starts_with("invalid orLabelSelectors: ")));
}

#[test]
fn missing_namespaces_are_reported() {
    let mut facts = facts();
    facts.namespaces = Ok(vec![
        namespace("shop", &[("argocd.argoproj.io/managed-by", "argo")]),
        namespace("shop-2", &[]),
        namespace("shop-3", &[("velero.io/exclude-from-backup", "true")]),
    ]);
    let spec = json!({"includedNamespaces": ["shop*", "lost"], "excludedNamespaces": ["shop-2"]});
    let PreparedBackup { backup, outcome } = prepared(spec, &facts);
    let request = outcome.unwrap();
    assert_eq!(request.filter.namespaces, Scope::Only(vec!["shop".into()]));
    assert_eq!(backup.spec.included_namespaces, ["shop*", "lost"]);
    assert_eq!(backup.spec.excluded_namespaces, ["shop-2", "shop-3"]);
    assert_eq!(
        request.errors,
        ["fail to get the namespace lost specified in backup.Spec.IncludedNamespaces"]
    );
    assert_eq!(request.warnings.len(), 1);
    assert!(request.warnings[0].contains("namespaces [shop] managed by ArgoCD"));
}

#[test]
fn namespaces_that_cannot_be_listed_are_an_error() {
    let facts = Facts { namespaces: Err("no route".into()), ..facts() };
    assert_eq!(errors(json!({}), &facts), ["error getting namespace list: no route"]);
}

#[test]
fn a_namespace_that_excludes_itself_cannot_be_included() {
    let mut facts = facts();
    facts.namespaces = Ok(vec![namespace("shop", &[("velero.io/exclude-from-backup", "true")])]);
    assert_eq!(
        errors(json!({"includedNamespaces": ["shop"]}), &facts),
        ["Invalid included/excluded namespace lists: excludes list cannot contain an item in the \
          includes list: shop"]
    );
}

#[test]
fn data_that_cannot_be_moved_is_an_error() {
    let words = "snapshotMoveData is not supported";
    assert!(errors(json!({"snapshotMoveData": true}), &facts())[0].starts_with(words));
    let defaults = Defaults { snapshot_move_data: true, ..Defaults::default() };
    let by_default = prepare(&backup(json!({})), &facts(), &defaults, now());
    assert!(by_default.outcome.unwrap_err()[0].starts_with(words));
    let refused = prepare(&backup(json!({"snapshotMoveData": false})), &facts(), &defaults, now());
    assert!(refused.outcome.is_ok());
}

#[test]
fn times_are_not_negative() {
    for field in ["ttl", "itemOperationTimeout", "csiSnapshotTimeout"] {
        assert_eq!(
            errors(json!({field: "-1h"}), &facts()),
            [format!("invalid {field} -1h0m0s: it must not be negative")]
        );
    }
}

#[test]
fn a_backup_has_a_name_and_a_uid() {
    let mut nameless = backup(json!({}));
    nameless.metadata.name = Some("../x".into());
    nameless.metadata.uid = None;
    let errors = prepare(&nameless, &facts(), &Defaults::default(), now()).outcome.unwrap_err();
    assert_eq!(errors.len(), 2);
    assert!(errors[0].starts_with("invalid backup name: "), "{errors:?}");
    assert!(errors[1].starts_with("invalid backup uid: "), "{errors:?}");
}

#[test]
fn all_problems_are_reported_at_once_and_in_order() {
    let facts = Facts {
        storage_location: storage("ReadOnly", "Unavailable"),
        snapshot_locations: Ok(snapshot_locations(&[("a", "p"), ("b", "p")])),
        namespaces: Err("no route".into()),
        ..facts()
    };
    let errors = errors(
        json!({
            "ttl": "-1s",
            "includedResources": ["a", "*"],
            "excludedResources": ["a"],
            "includedNamespaces": ["A"],
            "labelSelector": {},
            "orLabelSelectors": [{}],
            "resourcePolicy": {"kind": "configmap", "name": "rules"},
            "orderedResources": {"pods": ","},
            "snapshotMoveData": true,
        }),
        &facts,
    );
    let beginnings = [
        "invalid ttl",
        "backup can't be created because backup storage location",
        "backup can't be created because BackupStorageLocation",
        "provider p has more than one",
        "error getting namespace list",
        "Invalid included/excluded resource lists: includes list",
        "Invalid included/excluded resource lists: excludes list cannot contain an item",
        "Invalid included/excluded namespace lists",
        "encountered labelSelector",
        "invalid resource policies",
        "invalid OrderedResources",
        "snapshotMoveData",
    ];
    assert_eq!(errors.len(), beginnings.len(), "{errors:#?}");
    for (error, beginning) in errors.iter().zip(beginnings) {
        assert!(error.starts_with(beginning), "{error} must start with {beginning}");
    }
}

#[test]
fn earlier_validation_errors_are_cleared() {
    let wrong = prepared(json!({"ttl": "-1s"}), &facts()).backup;
    let mut mended = wrong;
    mended.spec.ttl = Duration::ZERO;
    let PreparedBackup { backup, outcome } =
        prepare(&mended, &facts(), &Defaults::default(), now());
    assert!(outcome.is_ok());
    assert!(backup.status.unwrap().validation_errors.is_empty());
}
