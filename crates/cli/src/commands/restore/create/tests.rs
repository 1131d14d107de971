use bowline_api::Backup;
use clap::Parser as _;
use serde_json::{Value, json};

use super::*;

#[derive(Debug, clap::Parser)]
struct TestCommand {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &[&str]) -> Result<Args, clap::Error> {
    let words = ["create"].iter().chain(line);
    TestCommand::try_parse_from(words).map(|line| line.args)
}

/// Restore of a command line.
fn parse_restore(line: &[&str]) -> anyhow::Result<Restore> {
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    restore(&parse(line).unwrap_or_else(|error| panic!("{line:?}: {error}")), now)
}

/// Spec of a command line, without the fields that every spec has.
fn spec_of(line: &[&str]) -> anyhow::Result<Value> {
    let from = ["--from-backup", "b"];
    let line: Vec<&str> = from.iter().chain(line).copied().collect();
    let mut value = serde_json::to_value(parse_restore(&line)?.spec)?;
    let empty = serde_json::to_value(parse_restore(&from)?.spec)?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|field, value| empty[field] != *value);
    }
    Ok(value)
}

#[test]
fn restore_of_everything_has_the_same_spec_as_from_velero() {
    let restore = parse_restore(&["--from-backup", "b"]).unwrap();
    assert_eq!(restore.metadata.name.as_deref(), Some("b-20260102030405"));
    let expected = json!({
        "backupName": "b", "includedNamespaces": ["*"], "hooks": {}, "itemOperationTimeout": "0s",
    });
    assert_eq!(serde_json::to_value(restore.spec).unwrap(), expected);
    let restore = parse_restore(&["mine", "--from-schedule", "nightly"]).unwrap();
    assert_eq!(restore.metadata.name.as_deref(), Some("mine"));
    assert_eq!(restore.spec.schedule_name, "nightly");
    assert_eq!(restore.spec.backup_name, "");
}

#[test]
fn each_flag_sets_its_field() {
    for (line, expected) in [
        (&["--include-namespaces", "a,b"][..], json!({"includedNamespaces": ["a", "b"]})),
        (&["--exclude-namespaces", "a"], json!({"excludedNamespaces": ["a"]})),
        (&["--include-resources", "pods"], json!({"includedResources": ["pods"]})),
        (&["--exclude-resources", "pods"], json!({"excludedResources": ["pods"]})),
        (&["--include-cluster-resources"], json!({"includeClusterResources": true})),
        (&["--include-cluster-resources=false"], json!({"includeClusterResources": false})),
        (&["-l", "a=b"], json!({"labelSelector": {"matchLabels": {"a": "b"}}})),
        (
            &["--or-selector", "a=b or c=d"],
            json!({"orLabelSelectors": [
                {"matchLabels": {"a": "b"}}, {"matchLabels": {"c": "d"}},
            ]}),
        ),
        (
            &["--status-include-resources", "*", "--status-exclude-resources=pods,jobs"],
            json!({"restoreStatus": {
                "includedResources": ["*"], "excludedResources": ["pods", "jobs"],
            }}),
        ),
        (
            &["--namespace-mappings", "a:b,c:d", "--namespace-mappings=e:f"],
            json!({"namespaceMapping": {"a": "b", "c": "d", "e": "f"}}),
        ),
        (&["--existing-resource-policy", "update"], json!({"existingResourcePolicy": "update"})),
        (&["--existing-resource-policy=none"], json!({"existingResourcePolicy": "none"})),
        (
            &["--resource-modifier-configmap", "m"],
            json!({"resourceModifier": {"kind": "configmap", "name": "m"}}),
        ),
        (&["--preserve-nodeports"], json!({"preserveNodePorts": true})),
        (&["--restore-volumes=false"], json!({"restorePVs": false})),
        (&["--write-sparse-files"], json!({"uploaderConfig": {"writeSparseFiles": true}})),
        (
            &["--parallel-files-download", "4"],
            json!({"uploaderConfig": {"parallelFilesDownload": 4}}),
        ),
        (&["--parallel-files-download", "0"], json!({})),
        (&["--item-operation-timeout", "90s"], json!({"itemOperationTimeout": "1m30s"})),
        (&["--allow-empty-volumes", "--allow-partially-failed"], json!({})),
    ] {
        assert_eq!(spec_of(line).unwrap(), expected, "{line:?}");
    }
}

#[test]
fn labels_and_annotations_are_put_on_the_restore() {
    let restore = parse_restore(&[
        "r",
        "--from-backup=b",
        "--labels=a=b",
        "--annotations=c=d",
        "--allow-empty-volumes",
        "--allow-damaged-archive",
    ]);
    assert_eq!(
        serde_json::to_value(restore.unwrap().metadata).unwrap(),
        json!({
            "name": "r", "labels": {"a": "b"},
            "annotations": {
                "c": "d", "bowline.io/allow-empty-volumes": "true",
                "bowline.io/allow-damaged-archive": "true",
            },
        })
    );
    let plain = parse_restore(&["r", "--from-backup=b"]).unwrap();
    assert_eq!(serde_json::to_value(plain.metadata).unwrap(), json!({"name": "r"}));
}

#[test]
fn invalid_or_contradictory_flags_are_refused() {
    for line in [
        &[][..],
        &["--from-backup=b", "--from-schedule=s"],
        &["--from-backup=b", "--existing-resource-policy=replace"],
        &["--from-backup=b", "--namespace-mappings=a=b"],
        &["--from-backup=b", "--parallel-files-download=-1"],
        &["--from-backup=b", "--item-operation-timeout=1d"],
        &["--from-backup=b", "--status-exclude-resources=pods"],
        &["--from-backup=b", "-l=a=b", "--or-selector=c=d"],
        &["--from-backup=b", "--wait", "--dry-run"],
        &["--from-backup=b", "--wait", "-o=json"],
        &["--from-backup=b", "--include-namespaces=a,,b"],
    ] {
        assert!(parse(line).is_err(), "{line:?}");
    }
    for (line, reason) in [
        (&["--from-backup=b", "--exclude-namespaces=*"][..], "would exclude everything"),
        (&["--from-backup=b", "--include-namespaces=a", "--exclude-namespaces=a"], "is both"),
        (&["--from-backup=b", "-l", "a=b=c"], "is not a valid label selector"),
        (&["R", "--from-backup=b"], "invalid name \"R\""),
        (&["--from-backup=B"], "invalid name \"B\""),
        (&[&format!("--from-backup={}", "x".repeat(250))], "is too long to append a timestamp"),
    ] {
        let error = parse_restore(line).unwrap_err();
        assert!(error.to_string().contains(reason), "{line:?}: {error}");
    }
}

fn backup(name: &str, phase: &str, start: &str) -> Backup {
    let status = json!({"phase": phase, "startTimestamp": start});
    let backup = json!({"metadata": {"name": name}, "spec": {}, "status": status});
    serde_json::from_value(backup).unwrap()
}

#[test]
fn newest_restorable_backup_of_a_schedule_is_chosen() {
    let source = SourceBackups {
        backups: vec![
            backup("old", "Completed", "2026-01-01T00:00:00Z"),
            backup("partial", "PartiallyFailed", "2026-01-02T00:00:00Z"),
            backup("failed", "Failed", "2026-01-03T00:00:00Z"),
            backup("running", "InProgress", "2026-01-04T00:00:00Z"),
        ],
    };
    let mut spec = parse_restore(&["--from-schedule=s"]).unwrap().spec;
    assert_eq!(source.server_choice(&spec).unwrap().metadata.name.as_deref(), Some("old"));
    source.choose_newest(&mut spec);
    assert_eq!((spec.backup_name.as_str(), spec.schedule_name.as_str()), ("partial", ""));
    assert!(source.check(&spec).is_ok());

    let none = SourceBackups { backups: source.backups[1..].to_vec() };
    let spec = parse_restore(&["--from-schedule=s"]).unwrap().spec;
    let error = none.check(&spec).unwrap_err().to_string();
    assert!(error.contains("none of the 3 backups") && error.contains("--allow-partially-failed"));
}
