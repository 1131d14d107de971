use std::io::{BufRead as _, BufReader, Seek as _, Write as _};

use bowline_api::{Backup, DownloadRequest, Restore};
use bowline_testbed::{Velero, eventually_blocking};
use serde_json::{Value, json};

use crate::bowline::{TIMEOUT, World};
use crate::cluster::{TestEnv, cluster};
use crate::dry_run::object_verdicts;
use crate::fake_server::{Answer, FakeServer, SIGNATURE, packed, packed_json};

#[test]
fn usage_error_is_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create"][..], &["--from-backup", "--from-schedule", "restore create --help"][..]),
        (&["create", "--from-backup=a", "--from-schedule=b"], &["--from-schedule"]),
        (&["create", "R", "--from-backup=a"], &["invalid name \"R\"", "lower-case"]),
        (
            &["create", "--from-backup=a", "--existing-resource-policy=all"],
            &["'all'", "possible values are none, update"],
        ),
        (&["create", "--from-backup=a", "--namespace-mappings=a=b"], &["expected FROM:TO"]),
        (&["create", "--from-backup=a", "--dry-run", "--wait"], &["--wait"]),
        (&["logs"], &["<NAME>", "restore logs --help"]),
        (&["delete"], &["restore delete --help"]),
        (&["get", "a", "-l", "b=c"], &["--selector"]),
    ] {
        let arguments: Vec<&str> = ["restore"].iter().chain(line).copied().collect();
        let ended = world.run(&arguments);
        assert_eq!(ended.code, Some(2), "{line:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "no {word:?} in {:?}", ended.stderr);
        }
    }
}

#[test]
fn a_restore_is_printed_without_a_cluster() {
    let world = World::new();
    let line = [
        "restore",
        "create",
        "r",
        "--from-backup=b",
        "--namespace-mappings=a:b",
        "--allow-empty-volumes",
        "-n=somewhere",
        "-o=yaml",
    ];
    let ended = world.run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

/// A backup as a server leaves it, in a location that is available.
pub(crate) fn put_backup(env: &TestEnv, name: &str, status: &Value, metadata: &Value) {
    let location = json!({
        "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}},
        "status": {"phase": "Available"},
    });
    env.apply_velero_object("BackupStorageLocation", "main", location);
    let spec = json!({"storageLocation": "main"});
    env.apply_velero_object("Backup", name, json!({"spec": spec, "metadata": metadata}));
    env.set_status::<Backup>(name, status);
}

pub(crate) fn put_completed_backup(env: &TestEnv, name: &str) {
    put_backup(env, name, &json!({"phase": "Completed"}), &json!({}));
}

#[test]
fn a_restore_is_created_listed_described_and_deleted() {
    let env = cluster().test_env("restore-create");
    env.run_refused(
        &["restore", "create", "--from-backup", "none"],
        &["backup `none` not found", "`bowline backup get`"],
    );
    put_completed_backup(&env, "b");
    let create = ["restore", "create", "one", "--from-backup", "b", "--labels", "a=b"];
    let stderr = env.run(&create).stderr;
    assert!(stderr.contains("`one` created; see `bowline restore describe one`"), "{stderr}");
    let created: Restore = env.get("one");
    assert_eq!(created.spec.backup_name, "b");
    assert_eq!(created.spec.included_namespaces, ["*"]);
    env.run_refused(&create, &["restore `one` already exists"]);
    env.run_ok(&["restore", "create", "--from-backup", "b", "--allow-empty-volumes"]);
    let names = env.names::<Restore>();
    let [second, one] = <[String; 2]>::try_from(names).unwrap();
    assert_eq!(one, "one");
    let digits = second.strip_prefix("b-").unwrap();
    assert!(digits.len() == 14 && digits.bytes().all(|b| b.is_ascii_digit()), "{second}");
    let annotations = env.get::<Restore>(&second).metadata.annotations.unwrap();
    assert_eq!(annotations["bowline.io/allow-empty-volumes"], "true");

    let table = env.run_ok(&["restore", "get"]);
    let first: Vec<&str> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["NAME", &second, "one"]);
    let one: Value =
        serde_json::from_str(&env.run_ok(&["restore", "get", "one", "-o", "json"])).unwrap();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("Restore"), &json!("one")));
    let described = env.run_ok(&["restore", "describe", "one"]);
    assert!(described.contains("\nPhase:  New\n"), "{described}");
    env.run_refused(&["restore", "logs", "one"], &["has no log yet", "the phase is New"]);
    env.run_refused(
        &["restore", "logs", "none"],
        &["restore `none` not found", "`bowline restore get`"],
    );

    env.run_refused(&["restore", "delete", "one"], &["--confirm"]);
    env.run_refused(&["restore", "delete", "none", "--confirm"], &["restore `none` not found"]);
    env.run_ok(&["restore", "delete", "-l", "a=b", "--confirm"]);
    assert_eq!(env.names::<Restore>(), [second]);
    env.run_ok(&["restore", "delete", "--all", "--confirm"]);
    assert_eq!(env.names::<Restore>(), [] as [&str; 0]);
    let ended = env.run(&["restore", "delete", "--all", "--confirm"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no restores found\n"));
}

/// Scripts for Velero do `echo y | velero restore delete …`.
#[test]
fn confirmation_may_be_piped() {
    let env = cluster().test_env("restore-piped");
    env.apply_velero_object("Restore", "one", json!({"spec": {"backupName": "b"}}));
    let answered = |answer: &str| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(answer.as_bytes()).unwrap();
        file.rewind().unwrap();
        let mut command = env.bowline(&["restore", "delete", "one"]);
        World::run_command(command.stdin(file))
    };
    let no = answered("n\n");
    assert_eq!(no.code, Some(0), "{}", no.stderr);
    assert!(no.stderr.ends_with("[y/N] n\nnothing was deleted\n"), "{}", no.stderr);
    let yes = answered("y\n");
    assert_eq!(yes.code, Some(0), "{}", yes.stderr);
    assert_eq!(env.names::<Restore>(), [] as [&str; 0]);
}

#[test]
fn backup_of_a_schedule_is_chosen_by_command_or_server() {
    let env = cluster().test_env("restore-schedule");
    let schedule = ["restore", "create", "--from-schedule", "nightly"];
    env.run_refused(&schedule, &["schedule `nightly` not found"]);
    env.apply_velero_object(
        "Schedule",
        "nightly",
        json!({"spec": {"schedule": "@daily", "template": {}}}),
    );
    let hint = "hint: create one with `bowline backup create --from-schedule nightly`";
    env.run_refused(&schedule, &["schedule `nightly` has no backups", hint]);
    let labels = json!({"labels": {"velero.io/schedule-name": "nightly"}});
    for (name, phase, day) in [("old", "Completed", 1), ("new", "PartiallyFailed", 2)] {
        let status = json!({"phase": phase, "startTimestamp": format!("2026-01-0{day}T00:00:00Z")});
        put_backup(&env, name, &status, &labels);
    }
    env.run_ok(&schedule);
    let [name] = env.names::<Restore>().try_into().unwrap();
    let restore: Restore = env.get(&name);
    assert!(name.starts_with("nightly-"), "{name}");
    assert_eq!(
        (restore.spec.backup_name, restore.spec.schedule_name.as_str()),
        (String::new(), "nightly")
    );

    let mut line = schedule.to_vec();
    line.extend(["--allow-partially-failed", "-o", "json"]);
    let printed: Value = serde_json::from_str(&env.run_ok(&line)).unwrap();
    assert_eq!(printed["spec"]["backupName"], "new");
    assert_eq!(printed["spec"]["scheduleName"], Value::Null);
    assert!(printed["metadata"]["name"].as_str().unwrap().starts_with("nightly-"));
}

/// A restore as a server leaves it.
fn put_finished_restore(env: &TestEnv, name: &str) {
    env.apply_velero_object("Restore", name, json!({"spec": {"backupName": "b"}}));
    let status = json!({
        "phase": "PartiallyFailed", "errors": 1, "restoreItemOperationsAttempted": 1,
        "restoreItemOperationsFailed": 1, "startTimestamp": "2026-01-02T03:04:05Z",
        "completionTimestamp": "2026-01-02T03:05:05Z",
        "progress": {"totalItems": 3, "itemsRestored": 2},
    });
    env.set_status::<Restore>(name, &status);
}

#[test]
fn describe_and_logs_show_what_the_storage_location_holds_and_leave_no_request() {
    let env = cluster().test_env("restore-describe");
    put_finished_restore(&env, "r");
    let volumes =
        json!([{"pvcName": "data", "pvcNamespace": "app", "restoreMethod": "CSISnapshot"}]);
    let operations = json!([{"spec": {
        "operationID": "op-1", "restoreItemAction": "x.io/a",
        "resourceIdentifier": {"Group": "", "Resource": "pods", "Namespace": "app", "Name": "web"},
    }}]);
    let log = "a line\n".repeat(10_000);
    {
        let _server = FakeServer::start(
            &env,
            [
                ("RestoreResults", packed_json(&json!({"errors": {"cluster": ["oh"]}}))),
                ("RestoreVolumeInfo", packed_json(&volumes)),
                ("RestoreItemOperations", packed_json(&operations)),
                ("RestoreResourceList", packed_json(&json!({"v1/Pod": ["app/web(created)"]}))),
                ("RestoreLog", packed(&log)),
            ],
        );
        insta::assert_snapshot!(env.run_ok(&["restore", "describe", "r", "--details"]));
        let line = ["restore", "describe", "r", "-o", "json"];
        let json: Value = serde_json::from_str(&env.run_ok(&line)).unwrap();
        assert_eq!(json["errors"]["cluster"], json!(["oh"]));
        assert_eq!(json["status"]["restoreVolumes"]["csiSnapshots"][0]["pvcName"], "data");
        assert_eq!(json["status"]["resourceList"], Value::Null, "no --details");
        assert!(env.run_ok(&["restore", "logs", "r"]) == log, "it is not the log");
        assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
    }
    let _server = FakeServer::start(
        &env,
        [
            ("RestoreResults", Answer::Reason("the location is unavailable")),
            ("RestoreVolumeInfo", Answer::Status("403 Forbidden")),
            ("RestoreLog", Answer::Cut),
        ],
    );
    let described = env.run_ok(&["restore", "describe", "r"]);
    for line in [
        "Errors:    1 <cannot read RestoreResults: the server cannot provide the file: the location is \
         unavailable>",
        "Restored Volumes:  <cannot read RestoreVolumeInfo: the storage location responded with 403 \
         Forbidden: AccessDenied>",
        "Total items to be restored:  3",
    ] {
        assert!(described.contains(line), "no {line:?} in {described}");
    }
    let words = ["cannot print the log of restore `r`", "the download was interrupted"];
    let stderr = env.run_refused(&["restore", "logs", "r"], &words);
    assert!(!stderr.contains(SIGNATURE) && !described.contains(SIGNATURE), "{stderr}");
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

#[test]
fn wait_reports_each_phase_and_the_outcome() {
    let env = cluster().test_env("restore-wait");
    put_completed_backup(&env, "b");
    let results =
        packed_json(&json!({"warnings": {"cluster": ["hm"]}, "errors": {"velero": ["oh"]}}));
    let _server = FakeServer::start(&env, [("RestoreResults", results)]);
    for (name, phase, code) in [("good", "Completed", 0), ("bad", "PartiallyFailed", 1)] {
        let mut command = env.bowline(&["restore", "create", name, "--from-backup", "b", "--wait"]);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        assert_eq!(next(), format!("{name}: New"));
        env.set_status::<Restore>(name, &json!({"phase": "InProgress"}));
        assert_eq!(next(), format!("{name}: InProgress"));
        let progress = json!({"totalItems": 3, "itemsRestored": 3});
        let status = json!({"phase": phase, "progress": progress, "errors": code});
        env.set_status::<Restore>(name, &status);
        assert_eq!(next(), format!("{name}: {phase}"));
        let errors = if code == 1 { "1 error" } else { "0 errors" };
        let end = format!("restore `{name}` {phase} (3/3 items, {errors}, 0 warnings)");
        assert_eq!(next(), end);
        if code == 1 {
            assert_eq!([next(), next()], ["error: oh", "warning: hm"]);
        }
        let see =
            format!("see `bowline restore describe {name}` and `bowline restore logs {name}`");
        assert_eq!(next(), see);
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

/// The commands with a server of Velero's, which has made a backup `real` of the namespace
/// `velero-app`.
pub(crate) fn assert_works_with_velero(env: &TestEnv, velero: &Velero) {
    let existing_requests = env.names::<DownloadRequest>();
    let mapping = "--namespace-mappings=velero-app:velero-copy";
    let line = ["restore", "create", "copy", "--from-backup=real", mapping];
    let with = |more: &[&'static str]| [&line[..], more].concat();
    let ended = env.run(&with(&["--dry-run"]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("velero-copy/settings (from velero-app/settings)"));
    assert_eq!(env.names::<Restore>(), [] as [&str; 0]);

    let ended = env.run(&with(&["--wait"]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("restore `copy` Completed"), "{}", ended.stderr);
    let described = env.run_ok(&["restore", "describe", "copy", "--details"]);
    assert!(described.contains("    - velero-copy/settings(created)\n"), "{described}");
    assert_eq!(env.names::<DownloadRequest>(), existing_requests);
    let velero_output = cluster().runtime.block_on(async {
        let mut command = velero.command();
        command.args(["restore", "describe", "copy", "--details", "--colorized=false"]);
        command.env("TZ", "UTC");
        command.output().await.unwrap()
    });
    let words = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let our_lines = words(&described);
    let velero_lines = words(&String::from_utf8(velero_output.stdout).unwrap());
    let missing: Vec<&String> =
        velero_lines.iter().filter(|line| !our_lines.contains(line)).collect();
    assert_eq!(missing, [] as [&str; 0], "lines of Velero's that we do not have");
    let log = env.run_ok(&["restore", "logs", "copy"]);
    assert!(log.contains("velero-copy"), "{log}");

    // The plan of the next restore recognizes objects of this one.
    let ended = env.run(&with(&["--dry-run", "-o=json"]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let verdicts = object_verdicts(&document);
    let settings =
        verdicts.iter().find(|(name, ..)| name == "configmaps velero-app/settings").unwrap();
    assert_eq!(
        (settings.1.as_str(), settings.2.as_str()),
        ("skip", "the object exists and is identical")
    );

    env.run_ok(&["restore", "delete", "copy", "--confirm"]);
    eventually_blocking("the restore is gone", TIMEOUT, || env.names::<Restore>().is_empty());
}
