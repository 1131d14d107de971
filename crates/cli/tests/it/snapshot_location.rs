use bowline_api::{Backup, VolumeSnapshotLocation};
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::cluster;

#[test]
fn usage_error_is_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create", "l"][..], &["--provider", "create --help"][..]),
        (&["create", "L", "--provider=aws"], &["invalid name \"L\""]),
        (
            &["create", "l", "--provider=aws", "--snapshot-type=remote"],
            &["'remote'", "possible values are auto, cloud, local"],
        ),
        (&["create", "l", "--provider=aws", "--credential=a"], &["expected one SECRET=KEY"]),
        (&["set", "l"], &["nothing to change", "--snapshot-type"]),
        (&["delete"], &["not provided", "<NAMES"]),
        (&["delete", "l", "--all"], &["--all"]),
    ] {
        let arguments: Vec<&str> = ["snapshot-location"].iter().chain(line).copied().collect();
        let ended = world.run(&arguments);
        assert_eq!(ended.code, Some(2), "{line:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "no {word:?} in {:?}", ended.stderr);
        }
    }
}

#[test]
fn a_location_is_printed_without_a_cluster() {
    let ended = World::new().run(&[
        "snapshot-location",
        "create",
        "l",
        "--provider=aws",
        "--config=region=x",
        "--snapshot-type=cloud",
        "-n=somewhere",
        "-o=yaml",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn location_is_created_changed_and_deleted() {
    let env = cluster().test_env("snapshots-life");
    let create = ["snapshot-location", "create", "one", "--provider=x.io/a"];
    let more = ["--config=a=b", "--labels=of=test", "--snapshot-type=local"];
    env.run_ok(&[&create[..], &more].concat());
    env.run_refused(&create, &["snapshot location `one` already exists"]);
    env.run_ok(&["snapshot-location", "create", "two", "--provider=aws"]);

    let table = env.run_ok(&["snapshot-location", "get"]);
    let words: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1..], [vec!["one", "x.io/a", "local"], vec!["two", "aws", "<none>"]]);
    assert_eq!(env.run_ok(&["snapshot-location", "get", "-l", "of=test"]).lines().count(), 2);
    let one = env.run_ok(&["snapshot-location", "get", "one", "-o", "json"]);
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["spec"], json!({"provider": "x.io/a", "config": {"a": "b"}}));
    env.run_refused(
        &["snapshot-location", "get", "none"],
        &["snapshot location `none` not found", "`bowline snapshot-location get`"],
    );

    env.run_ok(&["snapshot-location", "set", "one", "--credential=cloud=key"]);
    env.run_ok(&["snapshot-location", "set", "one", "--snapshot-type=cloud"]);
    let one: VolumeSnapshotLocation = env.get("one");
    assert_eq!(one.spec.config["a"], "b", "what is not said stays");
    assert_eq!(one.spec.credential.unwrap().name, "cloud");
    assert_eq!(one.metadata.annotations.unwrap()["bowline.io/snapshot-type"], "cloud");

    // A backup that has snapshots needs its location.
    let spec = json!({"volumeSnapshotLocations": ["one", "two"]});
    env.apply_velero_object("Backup", "b", json!({"spec": spec}));
    env.set_status::<Backup>("b", &json!({"volumeSnapshotsAttempted": 1}));
    env.run_refused(&["snapshot-location", "delete", "x", "--confirm"], &["location `x`"]);
    let ended = env.run(&["snapshot-location", "delete", "-l", "of=test", "--confirm"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let warning = "warning: 1 backup may have snapshots of location `one`";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
    assert_eq!(env.names::<VolumeSnapshotLocation>(), ["two"]);
    env.set_status::<Backup>("b", &json!({"volumeSnapshotsAttempted": 0}));
    env.run_refused(&["snapshot-location", "delete", "two"], &["--confirm"]);
    env.run_ok(&["snapshot-location", "delete", "--all", "--confirm"]);
    assert_eq!(env.names::<VolumeSnapshotLocation>(), [""; 0]);
    let ended = env.run(&["snapshot-location", "delete", "--all"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no snapshot locations found\n"));
}
