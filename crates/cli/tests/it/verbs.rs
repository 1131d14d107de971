//! Both orders of words, and flags in front: what a script for `velero` may have.

use bowline_api::{Backup, BackupStorageLocation, DeleteBackupRequest, VolumeSnapshotLocation};
use serde_json::json;

use crate::bowline::World;
use crate::cluster::cluster;
use crate::restore;

#[test]
fn each_verb_is_that_of_its_noun() {
    let place = cluster().place("verbs");
    place.ok(&["create", "backup-location", "main", "--provider=aws", "--bucket=b"]);
    place.ok(&["create", "snapshot-location", "near", "--provider=aws"]);
    assert_eq!(place.names::<BackupStorageLocation>(), ["main"]);
    place.ok(&["create", "backup", "one", "--storage-location", "main"]);
    place.set_status::<Backup>("one", &json!({"phase": "Completed"}));
    place.ok(&["create", "restore", "r", "--from-backup", "one"]);
    place.put(
        "BackupRepository",
        "web-main-kopia",
        json!({"spec": {
            "volumeNamespace": "web", "backupStorageLocation": "main", "repositoryType": "kopia",
            "maintenanceFrequency": "1h0m0s",
        }}),
    );
    for (verb_first, noun_first) in [
        (&["get", "backups"][..], &["backup", "get"][..]),
        (&["get", "backup", "one", "-o", "yaml"], &["backup", "get", "one", "-o", "yaml"]),
        (&["get", "restores"], &["restore", "get"]),
        (&["get", "backup-locations"], &["backup-location", "get"]),
        (&["get", "snapshot-location"], &["snapshot-location", "get"]),
        (&["get", "repos"], &["repo", "get"]),
        (&["describe", "restore", "r"], &["restore", "describe", "r"]),
        (&["describe", "backup-location", "main"], &["backup-location", "describe"]),
        (&["describe", "snapshot-locations"], &["snapshot-location", "describe", "near"]),
        (&["describe", "repo", "-o", "json"], &["repo", "describe", "-o", "json"]),
    ] {
        let shown = place.ok(verb_first);
        assert_eq!(shown, place.ok(noun_first), "{verb_first:?}");
        assert!(!shown.is_empty(), "{verb_first:?}");
    }
    place.refused(&["logs", "restore", "r"], &["restore `r` has no log yet", "--follow"]);
    place.ok(&["delete", "backups", "one", "--confirm"]);
    assert_eq!(place.names::<DeleteBackupRequest>().len(), 1);
    place.ok(&["delete", "snapshot-location", "near", "--confirm"]);
    assert_eq!(place.names::<VolumeSnapshotLocation>(), [""; 0]);
}

#[test]
fn flags_of_velero_may_stand_in_front() {
    let place = cluster().place("verbs-in-front");
    restore::completed(&place, "here");
    let run = |arguments: &[&str]| {
        let mut command = place.bowline(arguments);
        World::end_of(command.env_remove("VELERO_NAMESPACE")).stdout
    };
    let expected = place.ok(&["backup", "get"]);
    assert!(expected.contains("here"), "{expected}");
    let namespace = "verbs-in-front";
    for line in [
        &["-n", namespace, "backup", "get"][..],
        &["--namespace", namespace, "get", "backups"],
        &["--features=EnableCSI", "-n", namespace, "--colorized=false", "backup", "get"],
        &["backup", "-n", namespace, "get", "--features", "EnableCSI"],
    ] {
        assert_eq!(run(line), expected, "{line:?}");
    }
    // The one that is nearer wins.
    assert_eq!(run(&["-n", "elsewhere", "backup", "get", "-n", namespace]), expected);
    let kubeconfig = cluster().plane.kubeconfig().display().to_string();
    let mut command = place.bowline(&["--kubeconfig", &kubeconfig, "backup", "get"]);
    assert_eq!(World::end_of(command.env("KUBECONFIG", "/dev/null")).stdout, expected);
}

#[test]
fn as_a_plugin_of_kubectl_it_says_so() {
    let place = cluster().place("verbs-kubectl");
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-bowline");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bowline"), &plugin).unwrap();
    let run = |arguments: &[&str]| {
        let template = place.bowline(arguments);
        let mut command = std::process::Command::new(&plugin);
        command.args(arguments);
        for (key, value) in template.get_envs() {
            if let Some(value) = value {
                command.env(key, value);
            }
        }
        World::end_of(&mut command)
    };
    let help = run(&["backup", "get", "--help"]).stdout;
    assert!(help.contains("Usage: kubectl bowline backup get"), "{help}");
    let said = run(&["backup", "get", "none"]).stderr;
    assert!(said.contains("run `kubectl bowline backup get` for a list"), "{said}");
    let said = run(&["backup", "gte"]).stderr;
    assert!(said.contains("see `kubectl bowline backup --help`"), "{said}");
}
