use bowline_api::{Backup, BackupStorageLocation};
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::cluster;

#[test]
fn usage_error_is_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create", "l", "--provider", "aws"][..], &["--bucket", "create --help"][..]),
        (&["create", "l", "--provider=aws", "--bucket=a/b"], &["not contain a slash", "--prefix"]),
        (&["create", "L", "--provider=aws", "--bucket=b"], &["invalid name \"L\""]),
        (
            &["create", "l", "--provider=aws", "--bucket=b", "--cacert=/proc/none"],
            &["cannot use the certificates in /proc/none"],
        ),
        (&["set", "l"], &["nothing to change", "--default"]),
        (&["delete"], &["not provided", "<NAMES"]),
        (&["delete", "l", "--all"], &["--all"]),
    ] {
        let arguments: Vec<&str> = ["backup-location"].iter().chain(line).copied().collect();
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
        "backup-location",
        "create",
        "l",
        "--provider=aws",
        "--bucket=b",
        "--config=region=x",
        "-n=somewhere",
        "-o=yaml",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn location_is_created_changed_and_deleted() {
    let env = cluster().test_env("location-life");
    let create = |name: &str, more: &[&str]| {
        let line = ["backup-location", "create", name, "--provider=aws", "--bucket=b"];
        line.iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let words = |line: &[String]| -> Vec<String> { line.to_vec() };
    let run = |line: Vec<String>| {
        let line = words(&line);
        env.run(&line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(run(create("one", &["--default", "--prefix=p", "--labels=a=b"])).code, Some(0));
    let ended = run(create("one", &[]));
    assert!(ended.stderr.contains("backup location `one` already exists"), "{}", ended.stderr);
    let ended = run(create("two", &["--default"]));
    assert_eq!(ended.code, Some(2));
    let hint = "`bowline backup-location set one --default=false`";
    assert!(ended.stderr.contains(hint), "{}", ended.stderr);
    assert_eq!(run(create("two", &[])).code, Some(0));

    let table = env.run_ok(&["backup-location", "get"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].starts_with("one    aws        b/p"), "{table}");
    assert!(lines[1].ends_with("true"), "{table}");
    assert_eq!(env.run_ok(&["backup-location", "get", "--default"]).lines().count(), 2);
    let one = env.run_ok(&["backup-location", "get", "one", "-o", "json"]);
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["spec"]["objectStorage"], json!({"bucket": "b", "prefix": "p"}));

    env.run_refused(
        &["backup-location", "set", "two", "--default"],
        &["`one` is already the default"],
    );
    env.run_ok(&["backup-location", "set", "one", "--default=false"]);
    env.run_ok(&["backup-location", "set", "two", "--default", "--credential=cloud=key"]);
    let two: BackupStorageLocation = env.get("two");
    assert!(two.spec.default && two.spec.credential.unwrap().key == "key");
    let bucket = two.spec.object_storage.unwrap();
    assert_eq!(bucket.bucket, "b", "what is not said stays");
    env.run_refused(
        &["backup-location", "set", "none", "--default"],
        &["backup location `none` not found"],
    );

    // Backups are removed with their location, except for a running one.
    let labels = json!({"labels": {"velero.io/storage-location": "one"}});
    for (name, phase) in [("done", "Completed"), ("running", "InProgress")] {
        env.apply_velero_object("Backup", name, json!({"metadata": labels, "spec": {}}));
        env.set_status::<Backup>(name, &json!({"phase": phase}));
    }
    env.run_refused(&["backup-location", "delete", "one"], &["--confirm"]);
    env.run_refused(&["backup-location", "delete", "one", "x", "--confirm"], &["location `x`"]);
    assert_eq!(env.names::<BackupStorageLocation>(), ["one", "two"]);
    let ended = env.run(&["backup-location", "delete", "-l", "a=b", "--confirm"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("`running` of the location is InProgress and was kept"),
        "{}",
        ended.stderr
    );
    assert_eq!(env.names::<BackupStorageLocation>(), ["two"]);
    assert_eq!(env.names::<Backup>(), ["running"]);
    env.run_ok(&["backup-location", "delete", "--all", "--confirm"]);
    let ended = env.run(&["backup-location", "get"]);
    assert_eq!(ended.stderr, "no backup locations in namespace `location-life`\n");
    let ended = env.run(&["backup-location", "delete", "--all"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no backup locations found\n"));
}

#[test]
fn certificates_are_checked_and_stored() {
    let env = cluster().test_env("location-ca");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let line = ["backup-location", "create", "l", "--provider=aws", "--bucket=b", "--cacert", path];
    env.run_refused(&line, &["no certificate in PEM format"]);
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = pair.cert.pem();
    std::fs::write(file.path(), &pem).unwrap();
    env.run_ok(&line);
    let location: BackupStorageLocation = env.get("l");
    assert_eq!(location.spec.object_storage.unwrap().ca_cert.unwrap().0, pem.into_bytes());
}

#[test]
fn secrets_in_config_are_hidden_from_describe() {
    let env = cluster().test_env("location-secrets");
    let config = json!({"region": "x", "secretAccessKey": "s3cr3t"});
    let spec = json!({"provider": "aws", "config": config, "objectStorage": {"bucket": "b"}});
    env.apply_velero_object("BackupStorageLocation", "one", json!({"spec": spec}));
    let snapshots = json!({"provider": "aws", "config": config});
    env.apply_velero_object("VolumeSnapshotLocation", "one", json!({"spec": snapshots}));
    for noun in ["backup-location", "snapshot-location"] {
        for format in ["plaintext", "json"] {
            let described = env.run_ok(&[noun, "describe", "one", "-o", format]);
            assert!(!described.contains("s3cr3t"), "{described}");
            assert!(described.contains("secretAccessKey"), "{described}");
        }
        let object = env.run_ok(&[noun, "get", "one", "-o", "yaml"]);
        assert!(object.contains("s3cr3t"), "{object}");
    }
}
