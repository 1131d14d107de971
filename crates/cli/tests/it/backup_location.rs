use bowline_api::{Backup, BackupStorageLocation};
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::cluster;

#[test]
fn what_is_wrong_with_a_command_line_is_told_in_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create", "l", "--provider", "aws"][..], &["--bucket", "create --help"][..]),
        (&["create", "l", "--provider=aws", "--bucket=a/b"], &["not contain a slash", "--prefix"]),
        (&["create", "L", "--provider=aws", "--bucket=b"], &["\"L\" is not a name"]),
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
fn a_location_is_created_changed_and_forgotten() {
    let place = cluster().place("location-life");
    let create = |name: &str, more: &[&str]| {
        let line = ["backup-location", "create", name, "--provider=aws", "--bucket=b"];
        line.iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let words = |line: &[String]| -> Vec<String> { line.to_vec() };
    let run = |line: Vec<String>| {
        let line = words(&line);
        place.run(&line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(run(create("one", &["--default", "--prefix=p", "--labels=a=b"])).code, Some(0));
    let ended = run(create("one", &[]));
    assert!(ended.stderr.contains("backup location `one` already exists"), "{}", ended.stderr);
    let ended = run(create("two", &["--default"]));
    assert_eq!(ended.code, Some(2));
    let hint = "`bowline backup-location set one --default=false`";
    assert!(ended.stderr.contains(hint), "{}", ended.stderr);
    assert_eq!(run(create("two", &[])).code, Some(0));

    let table = place.ok(&["backup-location", "get"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].starts_with("one    aws        b/p"), "{table}");
    assert!(lines[1].ends_with("true"), "{table}");
    assert_eq!(place.ok(&["backup-location", "get", "--default"]).lines().count(), 2);
    let one = place.ok(&["backup-location", "get", "one", "-o", "json"]);
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["spec"]["objectStorage"], json!({"bucket": "b", "prefix": "p"}));

    place.refused(
        &["backup-location", "set", "two", "--default"],
        &["`one` is already the default"],
    );
    place.ok(&["backup-location", "set", "one", "--default=false"]);
    place.ok(&["backup-location", "set", "two", "--default", "--credential=cloud=key"]);
    let two: BackupStorageLocation = place.get("two");
    assert!(two.spec.default && two.spec.credential.unwrap().key == "key");
    let bucket = two.spec.object_storage.unwrap();
    assert_eq!(bucket.bucket, "b", "what is not said stays");
    place.refused(
        &["backup-location", "set", "none", "--default"],
        &["backup location `none` not found"],
    );

    // Backups go with their location, but not one that runs.
    let labels = json!({"labels": {"velero.io/storage-location": "one"}});
    for (name, phase) in [("done", "Completed"), ("running", "InProgress")] {
        place.put("Backup", name, json!({"metadata": labels, "spec": {}}));
        place.set_status::<Backup>(name, &json!({"phase": phase}));
    }
    place.refused(&["backup-location", "delete", "one"], &["--confirm"]);
    place.refused(&["backup-location", "delete", "one", "x", "--confirm"], &["location `x`"]);
    assert_eq!(place.names::<BackupStorageLocation>(), ["one", "two"]);
    let ended = place.run(&["backup-location", "delete", "-l", "a=b", "--confirm"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("`running` of the location is InProgress and was kept"),
        "{}",
        ended.stderr
    );
    assert_eq!(place.names::<BackupStorageLocation>(), ["two"]);
    assert_eq!(place.names::<Backup>(), ["running"]);
    place.ok(&["backup-location", "delete", "--all", "--confirm"]);
    let ended = place.run(&["backup-location", "get"]);
    assert_eq!(ended.stderr, "no backup locations in namespace `location-life`\n");
    let ended = place.run(&["backup-location", "delete", "--all"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no backup locations found\n"));
}

#[test]
fn certificates_are_checked_and_stored() {
    let place = cluster().place("location-ca");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let line = ["backup-location", "create", "l", "--provider=aws", "--bucket=b", "--cacert", path];
    place.refused(&line, &["no certificate in PEM format"]);
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = pair.cert.pem();
    std::fs::write(file.path(), &pem).unwrap();
    place.ok(&line);
    let location: BackupStorageLocation = place.get("l");
    assert_eq!(location.spec.object_storage.unwrap().ca_cert.unwrap().0, pem.into_bytes());
}

#[test]
fn secrets_in_settings_are_for_programs_only() {
    let place = cluster().place("location-secrets");
    let config = json!({"region": "x", "secretAccessKey": "s3cr3t"});
    let spec = json!({"provider": "aws", "config": config, "objectStorage": {"bucket": "b"}});
    place.put("BackupStorageLocation", "one", json!({"spec": spec}));
    let snapshots = json!({"provider": "aws", "config": config});
    place.put("VolumeSnapshotLocation", "one", json!({"spec": snapshots}));
    for noun in ["backup-location", "snapshot-location"] {
        for format in ["plaintext", "json"] {
            let described = place.ok(&[noun, "describe", "one", "-o", format]);
            assert!(!described.contains("s3cr3t"), "{described}");
            assert!(described.contains("secretAccessKey"), "{described}");
        }
        let object = place.ok(&[noun, "get", "one", "-o", "yaml"]);
        assert!(object.contains("s3cr3t"), "{object}");
    }
}
