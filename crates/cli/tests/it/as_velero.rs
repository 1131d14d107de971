//! Objects that our commands create are those that Velero's own commands create.

use std::process::Command;

use bowline_api::{Backup, DeleteBackupRequest, Schedule, VolumeSnapshotLocation};
use bowline_testbed::program::{self, Program};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::{Place, cluster};

/// Velero's command line, which must succeed.
fn velero(place: &Place, arguments: &[&str]) {
    let [binary] = cluster().runtime.block_on(program::locate([Program::Velero])).unwrap();
    let mut command = Command::new(binary);
    command.args(["-n", &place.namespace]).args(arguments);
    command.env("KUBECONFIG", cluster().plane.kubeconfig()).env("HOME", cluster().home());
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{arguments:?}: {said}");
}

/// An object without what the API server has added, and without its name.
fn bare(object: &impl Serialize) -> Value {
    let mut object = serde_json::to_value(object).unwrap();
    for added in
        ["name", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"]
    {
        object["metadata"].as_object_mut().unwrap().remove(added);
    }
    // Nobody has written it yet, whatever it looks like.
    if object["status"] == json!({}) {
        object.as_object_mut().unwrap().remove("status");
    }
    object
}

#[test]
fn a_request_to_delete_a_backup_is_the_same() {
    let place = cluster().place("as-velero-delete");
    // Too long for a label.
    let name = format!("nightly-{}", "x".repeat(80));
    place.put("Backup", &name, json!({"spec": {}}));
    place.ok(&["backup", "delete", &name, "--confirm"]);
    velero(&place, &["backup", "delete", &name, "--confirm"]);
    let requests: Vec<DeleteBackupRequest> =
        place.names::<DeleteBackupRequest>().iter().map(|name| place.get(name)).collect();
    let [one, other] = requests.as_slice() else { panic!("not two: {requests:?}") };
    assert_eq!(bare(one), bare(other));
    let uid = place.get::<Backup>(&name).metadata.uid.unwrap();
    assert_eq!(bare(one)["metadata"]["labels"]["velero.io/backup-uid"], uid.as_str());
}

#[test]
fn a_snapshot_location_is_the_same() {
    let place = cluster().place("as-velero-snapshots");
    let flags = ["--provider=aws", "--config=region=x", "--labels=a=b", "--credential=cloud=key"];
    let create = |name: &'static str| [&["snapshot-location", "create", name][..], &flags].concat();
    place.ok(&create("ours"));
    velero(&place, &create("theirs"));
    let get = |name: &str| bare(&place.get::<VolumeSnapshotLocation>(name));
    assert_eq!(get("ours"), get("theirs"));
    place.ok(&["snapshot-location", "set", "ours", "--credential=other=key"]);
    velero(&place, &["snapshot-location", "set", "theirs", "--credential=other=key"]);
    assert_eq!(get("ours"), get("theirs"));
}

#[test]
fn a_schedule_is_the_same() {
    let place = cluster().place("as-velero-schedules");
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
    place.ok(&create("ours"));
    velero(&place, &create("theirs"));
    let get = |name: &str| bare(&place.get::<Schedule>(name));
    assert_eq!(get("ours"), get("theirs"));
    place.ok(&["schedule", "pause", "ours"]);
    velero(&place, &["schedule", "pause", "theirs"]);
    assert_eq!(get("ours"), get("theirs"));
    place.ok(&["schedule", "unpause", "ours", "--skip-immediately=false"]);
    velero(&place, &["schedule", "unpause", "theirs", "--skip-immediately=false"]);
    assert_eq!(get("ours"), get("theirs"));
}
