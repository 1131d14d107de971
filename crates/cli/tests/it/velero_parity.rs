//! Objects that our commands create equal those of Velero's commands.

use std::process::Command;

use bowline_api::{Backup, DeleteBackupRequest, Schedule, VolumeSnapshotLocation};
use bowline_testbed::program::{self, Program};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::{TestEnv, cluster};

/// Velero's command line, which must succeed.
fn velero(env: &TestEnv, arguments: &[&str]) {
    let [binary] = cluster().runtime.block_on(program::locate([Program::Velero])).unwrap();
    let mut command = Command::new(binary);
    command.args(["-n", &env.namespace]).args(arguments);
    command.env("KUBECONFIG", cluster().plane.kubeconfig()).env("HOME", cluster().home());
    let ended = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{arguments:?}: {stderr}");
}

/// An object without fields of the API server, and without its name.
fn without_server_fields(object: &impl Serialize) -> Value {
    let mut object = serde_json::to_value(object).unwrap();
    for added in
        ["name", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"]
    {
        object["metadata"].as_object_mut().unwrap().remove(added);
    }
    // No server has written a status yet.
    if object["status"] == json!({}) {
        object.as_object_mut().unwrap().remove("status");
    }
    object
}

#[test]
fn delete_request_equals_that_of_velero() {
    let env = cluster().test_env("as-velero-delete");
    // Too long for a label.
    let name = format!("nightly-{}", "x".repeat(80));
    env.apply_velero_object("Backup", &name, json!({"spec": {}}));
    env.run_ok(&["backup", "delete", &name, "--confirm"]);
    velero(&env, &["backup", "delete", &name, "--confirm"]);
    let requests: Vec<DeleteBackupRequest> =
        env.names::<DeleteBackupRequest>().iter().map(|name| env.get(name)).collect();
    let [one, other] = requests.as_slice() else { panic!("not two: {requests:?}") };
    assert_eq!(without_server_fields(one), without_server_fields(other));
    let uid = env.get::<Backup>(&name).metadata.uid.unwrap();
    assert_eq!(
        without_server_fields(one)["metadata"]["labels"]["velero.io/backup-uid"],
        uid.as_str()
    );
}

#[test]
fn snapshot_location_equals_that_of_velero() {
    let env = cluster().test_env("as-velero-snapshots");
    let flags = ["--provider=aws", "--config=region=x", "--labels=a=b", "--credential=cloud=key"];
    let create = |name: &'static str| [&["snapshot-location", "create", name][..], &flags].concat();
    env.run_ok(&create("ours"));
    velero(&env, &create("theirs"));
    let get = |name: &str| without_server_fields(&env.get::<VolumeSnapshotLocation>(name));
    assert_eq!(get("ours"), get("theirs"));
    env.run_ok(&["snapshot-location", "set", "ours", "--credential=other=key"]);
    velero(&env, &["snapshot-location", "set", "theirs", "--credential=other=key"]);
    assert_eq!(get("ours"), get("theirs"));
}

#[test]
fn schedule_equals_that_of_velero() {
    let env = cluster().test_env("as-velero-schedules");
    let flags = [
        "--schedule=0 3 * * *",
        "--labels=a=b",
        "--include-namespaces=web,db",
        "--exclude-resources=events",
        "--selector=app in (web,db)",
        "--ttl=48h",
        "--snapshot-volumes=false",
        "--ordered-resources=pods=web/a,web/b",
        "--resource-policies-configmap=policies",
        "--use-owner-references-in-backup",
        "--skip-immediately=true",
    ];
    let create = |name: &'static str| [&["schedule", "create", name][..], &flags].concat();
    env.run_ok(&create("ours"));
    velero(&env, &create("theirs"));
    let get = |name: &str| without_server_fields(&env.get::<Schedule>(name));
    assert_eq!(get("ours"), get("theirs"));
    env.run_ok(&["schedule", "pause", "ours"]);
    velero(&env, &["schedule", "pause", "theirs"]);
    assert_eq!(get("ours"), get("theirs"));
    env.run_ok(&["schedule", "unpause", "ours", "--skip-immediately=false"]);
    velero(&env, &["schedule", "unpause", "theirs", "--skip-immediately=false"]);
    assert_eq!(get("ours"), get("theirs"));
}
