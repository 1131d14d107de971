//! Verb-first and noun-first commands, and global flags before the command, as scripts for `velero` have them.

use bowline_api::{Backup, BackupStorageLocation, DeleteBackupRequest, VolumeSnapshotLocation};
use serde_json::json;

use crate::bowline::World;
use crate::cluster::cluster;
use crate::restore;

#[test]
fn verb_first_and_noun_first_commands_are_equal() {
    let env = cluster().test_env("verbs");
    env.run_ok(&["create", "backup-location", "main", "--provider=aws", "--bucket=b"]);
    env.run_ok(&["create", "snapshot-location", "near", "--provider=aws"]);
    assert_eq!(env.names::<BackupStorageLocation>(), ["main"]);
    env.run_ok(&["create", "backup", "one", "--storage-location", "main"]);
    env.set_status::<Backup>("one", &json!({"phase": "Completed"}));
    env.run_ok(&["create", "restore", "r", "--from-backup", "one"]);
    env.apply_velero_object(
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
        let shown = env.run_ok(verb_first);
        assert_eq!(shown, env.run_ok(noun_first), "{verb_first:?}");
        assert!(!shown.is_empty(), "{verb_first:?}");
    }
    env.run_refused(&["logs", "restore", "r"], &["restore `r` has no log yet", "--follow"]);
    env.run_ok(&["delete", "backups", "one", "--confirm"]);
    assert_eq!(env.names::<DeleteBackupRequest>().len(), 1);
    env.run_ok(&["delete", "snapshot-location", "near", "--confirm"]);
    assert_eq!(env.names::<VolumeSnapshotLocation>(), [""; 0]);
}

#[test]
fn global_velero_flags_may_precede_the_command() {
    let env = cluster().test_env("verbs-in-front");
    restore::put_completed_backup(&env, "here");
    let run = |arguments: &[&str]| {
        let mut command = env.bowline(arguments);
        World::run_command(command.env_remove("VELERO_NAMESPACE")).stdout
    };
    let expected = env.run_ok(&["backup", "get"]);
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
    // The flag nearer to the command takes precedence.
    assert_eq!(run(&["-n", "elsewhere", "backup", "get", "-n", namespace]), expected);
    let kubeconfig = cluster().plane.kubeconfig().display().to_string();
    let mut command = env.bowline(&["--kubeconfig", &kubeconfig, "backup", "get"]);
    assert_eq!(World::run_command(command.env("KUBECONFIG", "/dev/null")).stdout, expected);
}

#[test]
fn kubectl_plugin_names_itself_in_help_and_hints() {
    let env = cluster().test_env("verbs-kubectl");
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-bowline");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bowline"), &plugin).unwrap();
    let run = |arguments: &[&str]| {
        let template = env.bowline(arguments);
        let mut command = std::process::Command::new(&plugin);
        command.args(arguments);
        for (key, value) in template.get_envs() {
            if let Some(value) = value {
                command.env(key, value);
            }
        }
        World::run_command(&mut command)
    };
    let help = run(&["backup", "get", "--help"]).stdout;
    assert!(help.contains("Usage: kubectl bowline backup get"), "{help}");
    let stderr = run(&["backup", "get", "none"]).stderr;
    assert!(stderr.contains("run `kubectl bowline backup get` for a list"), "{stderr}");
    let stderr = run(&["backup", "gte"]).stderr;
    assert!(stderr.contains("see `kubectl bowline backup --help`"), "{stderr}");
}
