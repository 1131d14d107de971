use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_api::{Backup, DeleteBackupRequest, DownloadRequest};
use bowline_store::decode::{self, Limits};
use bowline_testbed::{S3, Velero, eventually, eventually_blocking, velero};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};
use serde_json::{Value, json};

use crate::bowline::{TIMEOUT, World};
use crate::cluster::{TestEnv, cluster};
use crate::fake_server::{Answer, FakeServer, SIGNATURE, gzip, packed, packed_json};
use crate::restore;

#[test]
fn usage_error_is_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create"][..], &["name is required", "--from-schedule"][..]),
        (&["create", "B"], &["invalid name \"B\"", "lower-case"]),
        (&["create", "b", "--ttl", "1d"], &["--ttl", "unknown unit", "1 days are 24h"]),
        (&["create", "b", "--ttl", "-1h"], &["must not be negative", "backup create --help"]),
        (&["create", "b", "-l", "a=b=c"], &["`a=b=c` is not a valid label selector", "`b=c`"]),
        (&["create", "b", "-l", "a=b", "--or-selector", "c=d"], &["--or-selector"]),
        (
            &["create", "b", "--include-resources=pods", "--exclude-cluster-scoped-resources=*"],
            &["cannot be combined", "--include-resources"],
        ),
        (&["create", "b", "-o", "xml"], &["'xml'", "possible values are json, yaml"]),
        (&["get", "a", "-l", "b=c"], &["--selector"]),
        (&["delete"], &["backup delete --help"]),
        (&["delete", "a", "--all"], &["--all"]),
        (&["logs"], &["<NAME>", "backup logs --help"]),
        (&["logs", "a", "--timeout", "0s"], &["--timeout"]),
        (&["get", "-n", "a/b"], &["\"a/b\" is not a valid namespace name"]),
    ] {
        let arguments: Vec<&str> = ["backup"].iter().chain(line).copied().collect();
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
fn a_backup_is_printed_without_a_cluster() {
    let world = World::new();
    let line = ["backup", "create", "b", "-n", "somewhere", "--labels=a=b", "-l=app=web", "-o"];
    let run = |format: &str| {
        let arguments: Vec<&str> = line.iter().copied().chain([format]).collect();
        let ended = world.run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    insta::assert_snapshot!(run("yaml"));
    let printed: Value = serde_json::from_str(&run("json")).unwrap();
    assert_eq!(printed["spec"]["labelSelector"]["matchLabels"], json!({"app": "web"}));
}

#[test]
fn a_namespace_comes_from_the_flag_the_settings_or_the_environment() {
    let world = World::new();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/velero");
    std::fs::create_dir_all(&folder).unwrap();
    let namespace = |more: &[&str]| {
        let mut command = world.bowline(&["backup", "create", "b", "-o", "json"]);
        command.args(more).env("HOME", home.path()).env("VELERO_NAMESPACE", "of-environment");
        let ended = World::run_command(&mut command);
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap_or(json!({}));
        (printed["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(), ended.stderr)
    };
    assert_eq!(namespace(&[]).0, "of-environment");
    std::fs::write(folder.join("config.json"), r#"{"namespace": "of-settings"}"#).unwrap();
    assert_eq!(namespace(&[]).0, "of-settings");
    assert_eq!(namespace(&["-n", "of-flag"]).0, "of-flag");
    std::fs::write(folder.join("config.json"), "{").unwrap();
    let (_, stderr) = namespace(&[]);
    assert!(stderr.contains("config.json") && stderr.contains("fix or remove"), "{stderr}");
}

#[test]
fn backup_delete_creates_a_delete_request() {
    let env = cluster().test_env("backup-delete");
    for (name, label) in [("one", "a"), ("two", "a"), ("three", "b")] {
        restore::put_backup(
            &env,
            name,
            &json!({"phase": "Completed"}),
            &json!({"labels": {"of": label}}),
        );
    }
    env.run_refused(&["backup", "delete", "one"], &["--confirm"]);
    env.run_refused(&["backup", "delete", "none", "--confirm"], &["backup `none` not found"]);
    assert_eq!(env.names::<DeleteBackupRequest>(), [""; 0]);
    let stderr = env.run(&["backup", "delete", "one", "--confirm"]).stderr;
    assert!(stderr.contains("backup `one`: deletion requested"), "{stderr}");
    env.run_ok(&["backup", "delete", "-l", "of=a", "--confirm"]);
    let names = env.names::<DeleteBackupRequest>();
    let backup_names: Vec<&str> =
        names.iter().map(|name| name.rsplit_once('-').unwrap().0).collect();
    assert_eq!(backup_names, ["one", "one", "two"]);
    let request: DeleteBackupRequest = env.get(&names[0]);
    assert_eq!(request.spec.backup_name, "one");
    let labels = request.metadata.labels.unwrap();
    let uid = env.get::<Backup>("one").metadata.uid.unwrap();
    assert_eq!(
        (&labels["velero.io/backup-name"], &labels["velero.io/backup-uid"]),
        (&"one".into(), &uid)
    );
}

#[test]
fn delete_with_wait_reports_server_errors() {
    let env = cluster().test_env("backup-delete-wait");
    let answer = |name: &'static str, errors: Value| {
        restore::put_completed_backup(&env, name);
        let requests = env.api::<DeleteBackupRequest>();
        let backups = env.api::<Backup>();
        let server = std::thread::spawn(move || {
            cluster().runtime.block_on(async move {
                let request = eventually("the deletion is requested", TIMEOUT, async || {
                    let list = requests.list(&ListParams::default()).await.unwrap().items;
                    let found = list.into_iter().find(|request| request.spec.backup_name == name);
                    found.and_then(|request| request.metadata.name)
                })
                .await;
                if errors.is_null() {
                    backups.delete(name, &DeleteParams::default()).await.unwrap();
                    requests.delete(&request, &DeleteParams::default()).await.unwrap();
                } else {
                    let status = json!({"status": {"phase": "Processed", "errors": errors}});
                    let patch = Patch::Merge(status);
                    requests.patch(&request, &PatchParams::default(), &patch).await.unwrap();
                }
            });
        });
        let ended = env.run(&["backup", "delete", name, "--confirm", "--wait"]);
        server.join().unwrap();
        (ended.code, ended.stderr)
    };
    let (code, stderr) = answer("gone", Value::Null);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.ends_with("backup `gone` deleted\n"), "{stderr}");
    let (code, stderr) = answer("stuck", json!(["error deleting snapshot s1: it is glued on"]));
    assert_eq!(code, Some(1), "{stderr}");
    let expected = "backup `stuck` was not completely deleted:\n  error deleting snapshot s1: it \
                    is glued on\n";
    assert!(stderr.ends_with(expected), "{stderr}");
}

#[test]
fn a_backup_is_created_listed_and_described() {
    let env = cluster().test_env("backup-create");
    let stderr = env.run(&["backup", "create", "one", "--ttl", "1h", "--labels", "a=b"]).stderr;
    assert!(stderr.contains("`one` created; see `bowline backup describe one`"), "{stderr}");
    assert!(stderr.contains("hint: namespace `backup-create` has no backup location"), "{stderr}");
    let created: Backup = env.get("one");
    assert_eq!(created.spec.ttl.to_string(), "1h0m0s");
    assert_eq!(created.spec.included_namespaces, ["*"]);

    env.run_refused(&["backup", "create", "one"], &["backup `one` already exists"]);
    env.run_refused(
        &["backup", "create", "two", "--storage-location", "none"],
        &["backup location `none` not found", "backup-location get"],
    );
    env.run_ok(&["backup", "create", "two"]);
    assert_eq!(env.names::<Backup>(), ["one", "two"]);

    let table = env.run_ok(&["backup", "get"]);
    let first: Vec<&str> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["NAME", "one", "two"]);
    assert_eq!(env.run_ok(&["backup", "get", "-l", "a=b"]).lines().count(), 2);
    let one: Value =
        serde_json::from_str(&env.run_ok(&["backup", "get", "one", "-o", "json"])).unwrap();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("Backup"), &json!("one")));
    assert_eq!(one["metadata"]["managedFields"], Value::Null);
    let list = env.run_ok(&["backup", "get", "one", "two", "-o", "yaml"]);
    assert!(list.contains("kind: BackupList\n"), "{list}");
    assert_eq!(list.matches("kind: Backup\n").count(), 2, "{list}");

    // No server has processed the backup, so there is nothing to wait for.
    let described = env.run_ok(&["backup", "describe", "one"]);
    assert!(described.contains("\nPhase:  New\n"), "{described}");
    env.run_refused(&["backup", "logs", "one"], &["has no log yet", "the phase is New"]);
    env.run_refused(&["backup", "download", "one"], &["has no archive", "the phase is New"]);
    for line in [&["get", "none"][..], &["describe", "none"], &["logs", "none"]] {
        let arguments: Vec<&str> = ["backup"].iter().chain(line).copied().collect();
        env.run_refused(
            &arguments,
            &["backup `none` not found in namespace `backup-create`", "for a list"],
        );
    }
}

#[test]
fn empty_list_is_reported() {
    let env = cluster().test_env("backup-nothing");
    let ended = env.run(&["backup", "get"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert_eq!(ended.stderr, "no backups in namespace `backup-nothing`\n");
    let list: Value = serde_json::from_str(&env.run_ok(&["backup", "get", "-o", "json"])).unwrap();
    assert_eq!(list["items"], json!([]));
    env.run_refused(
        &["backup", "get", "-n", "no-such"],
        &["namespace `no-such` does not exist", "--namespace"],
    );
    env.run_refused(
        &["backup", "create", "b", "-n", "no-such"],
        &["namespace `no-such` does not exist"],
    );
}

#[test]
fn missing_resource_definitions_give_an_install_hint() {
    // The answer of an API server to an unknown path.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut reader = BufReader::new(connection.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let answer = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\
                          Content-Length: 19\r\nConnection: close\r\n\r\n404 page not found\n";
            connection.write_all(answer.as_bytes()).unwrap();
        }
    });
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    std::fs::write(kubeconfig.path(), text.to_string()).unwrap();
    let world = World::new();
    for line in [&["get"][..], &["get", "b"], &["describe", "b"], &["logs", "b"]] {
        let mut command = world.bowline(&["backup"]);
        let ended = World::run_command(command.args(line).env("KUBECONFIG", kubeconfig.path()));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let hint = "install them with `bowline install --crds-only`";
        assert!(ended.stderr.contains(hint), "{line:?}: {}", ended.stderr);
    }
}

#[test]
fn backup_from_schedule_uses_its_template() {
    let env = cluster().test_env("backup-schedule");
    let spec = json!({"schedule": "@daily", "template": {"includedNamespaces": ["app"]}});
    env.apply_velero_object(
        "Schedule",
        "nightly",
        json!({"spec": spec, "metadata": {"labels": {"a": "b"}}}),
    );
    env.run_ok(&["backup", "create", "--from-schedule", "nightly", "--labels", "c=d"]);
    let [name] = env.names::<Backup>().try_into().unwrap();
    let digits = name.strip_prefix("nightly-").unwrap();
    assert!(digits.len() == 14 && digits.bytes().all(|b| b.is_ascii_digit()), "{name}");
    let backup: Backup = env.get(&name);
    assert_eq!(backup.spec.included_namespaces, ["app"]);
    let labels = backup.metadata.labels.unwrap();
    assert_eq!((labels["a"].as_str(), labels["c"].as_str()), ("b", "d"));
    assert_eq!(labels["velero.io/schedule-name"], "nightly");
    // Velero's scripts have other flags beside it, which say nothing then.
    let line = ["backup", "create", "again", "--from-schedule=nightly", "--ttl=1h"];
    let ended = env.run(&line);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("warning: --from-schedule uses"), "{}", ended.stderr);
    let again: Backup = env.get("again");
    assert_eq!(
        (again.spec.included_namespaces, again.spec.ttl),
        (backup.spec.included_namespaces, backup.spec.ttl)
    );
    // Two within a second are two.
    for _ in 0..2 {
        env.run_ok(&["backup", "create", "--from-schedule=nightly"]);
    }
    assert_eq!(env.names::<Backup>().len(), 4);
    env.run_refused(
        &["backup", "create", "--from-schedule", "none"],
        &["schedule `none` not found"],
    );
}

/// A backup as a server leaves it.
fn put_finished_backup(place: &TestEnv, name: &str) {
    place.apply_velero_object("Backup", name, json!({"spec": {"includedNamespaces": ["app"]}}));
    place.set_status::<Backup>(
        name,
        &json!({
            "phase": "PartiallyFailed", "errors": 1, "backupItemOperationsAttempted": 1,
            "backupItemOperationsFailed": 1, "startTimestamp": "2026-01-02T03:04:05Z",
            "completionTimestamp": "2026-01-02T03:05:05Z", "formatVersion": "1.1.0",
            "progress": {"totalItems": 3, "itemsBackedUp": 2},
        }),
    );
}

#[test]
fn describe_shows_what_the_storage_location_holds_and_leaves_no_request() {
    let env = cluster().test_env("backup-describe");
    put_finished_backup(&env, "b");
    let volumes = json!([{"pvName": "pv-1", "skipped": true, "skippedReason": "no snapshotter"}]);
    let operations = json!([{"spec": {
        "operationID": "op-1", "backupItemAction": "x.io/a",
        "resourceIdentifier": {"Group": "", "Resource": "pods", "Namespace": "app", "Name": "web"},
    }}]);
    let _server = FakeServer::start(
        &env,
        [
            ("BackupResults", packed_json(&json!({"errors": {"namespaces": {"app": ["oh"]}}}))),
            ("BackupVolumeInfos", packed_json(&volumes)),
            ("BackupItemOperations", packed_json(&operations)),
            ("BackupResourceList", packed_json(&json!({"v1/Pod": ["app/web"]}))),
        ],
    );
    let described = env.run_ok(&["backup", "describe", "b", "--details"]);
    insta::assert_snapshot!(described);
    let json: Value =
        serde_json::from_str(&env.run_ok(&["backup", "describe", "b", "-o", "json"])).unwrap();
    assert_eq!(json["errors"]["namespace"]["app"], json!(["oh"]));
    assert_eq!(json["status"]["backupVolumes"]["skipped"][0]["pvName"], "pv-1");
    assert_eq!(json["status"]["resourceList"], Value::Null, "no --details");
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

#[test]
fn describe_names_unreadable_files_with_the_reason() {
    let env = cluster().test_env("backup-degraded");
    put_finished_backup(&env, "b");
    let _server = FakeServer::start(
        &env,
        [
            ("BackupResults", Answer::Reason("the location is unavailable")),
            ("BackupVolumeInfos", Answer::Status("403 Forbidden")),
            ("BackupItemOperations", Answer::Status("404 Not Found")),
            ("BackupResourceList", Answer::File(b"no gzip".to_vec())),
        ],
    );
    let described = env.run_ok(&["backup", "describe", "b", "--details"]);
    for line in [
        "Errors:    1 <cannot read BackupResults: the server cannot provide the file: the location is \
         unavailable>",
        "Backup Volumes:  <cannot read BackupVolumeInfos: the storage location responded with 403 \
         Forbidden: AccessDenied>",
        "0 of 1 completed successfully, 1 failed <cannot read BackupItemOperations: the file is not in the \
         storage location>",
        "Resource List:  <cannot read BackupResourceList: the file is damaged",
        "Phase:  PartiallyFailed",
        "Total items to be backed up:  3",
    ] {
        assert!(described.contains(line), "no {line:?} in {described}");
    }
    assert!(!described.contains(SIGNATURE), "{described}");
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

#[test]
fn logs_are_printed_and_errors_do_not_quote_the_link() {
    let env = cluster().test_env("backup-logs");
    put_finished_backup(&env, "b");
    let log = "a line with some numbers\n".repeat(100_000);
    {
        let _server = FakeServer::start(&env, [("BackupLog", packed(&log))]);
        assert!(env.run_ok(&["backup", "logs", "b"]) == log, "it is not the log");
        // A reader that has seen enough is no error.
        let mut child = env.bowline(&["backup", "logs", "b"]).spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    for (answer, words) in [
        (Answer::Status("403 Forbidden"), &["403 Forbidden: AccessDenied"][..]),
        (Answer::Status("404 Not Found"), &["not in the storage location"]),
        (
            Answer::Elsewhere("http://127.0.0.1:1".to_owned()),
            &["cannot download from `127.0.0.1`", "check that this machine can reach the storage"],
        ),
        (Answer::Cut, &["the download was interrupted"]),
        (Answer::File(b"no gzip".to_vec()), &["the file is damaged"]),
        (Answer::Reason("no such location"), &["cannot provide the file: no such location"]),
    ] {
        let _server = FakeServer::start(&env, [("BackupLog", answer)]);
        let stderr = env.run_refused(&["backup", "logs", "b"], words);
        assert!(stderr.contains("cannot print the log of backup `b`"), "{stderr}");
        assert!(!stderr.contains(SIGNATURE) && !stderr.contains("http://"), "{stderr}");
    }
    let started = Instant::now();
    let words = ["no response from the server within 1s", "namespace `backup-logs`"];
    env.run_refused(&["backup", "logs", "b", "--timeout", "1s"], &words);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

/// Serves a file to clients that trust its certificate. Returns its address and its certificate.
fn serve_with_tls(file: Vec<u8>) -> (String, String) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = Stream::new(&mut connection, &mut socket);
            let length = file.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            // A client that does not trust us hangs up.
            if stream.read(&mut [0; 4096]).is_ok() {
                let answer = [head.as_bytes(), &file].concat();
                let _ = stream.write_all(&answer).and_then(|()| stream.flush());
            }
            connection.send_close_notify();
            let _ = connection.write_tls(&mut socket);
        }
    });
    (url, pair.cert.pem())
}

#[test]
fn certificates_come_from_the_flag_the_settings_or_the_location() {
    let env = cluster().test_env("backup-tls");
    let (url, pem) = serve_with_tls(gzip("the log\n"));
    let _server = FakeServer::start(&env, [("BackupLog", Answer::Elsewhere(url))]);
    let bytes = |pem: &str| k8s_openapi::ByteString(pem.as_bytes().to_vec());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "data": {"ca.crt": bytes(&pem)},
        "metadata": {"name": "ca", "namespace": env.namespace},
    });
    cluster().apply(secret);
    for (location, trusted) in [
        ("plain", json!({})),
        ("inline", json!({"caCert": bytes(&pem)})),
        ("reference", json!({"caCertRef": {"name": "ca", "key": "ca.crt"}})),
        ("broken", json!({"caCertRef": {"name": "ca", "key": "none"}})),
    ] {
        let mut spec = json!({"provider": "aws", "objectStorage": trusted});
        spec["objectStorage"]["bucket"] = "b".into();
        env.apply_velero_object("BackupStorageLocation", location, json!({"spec": spec}));
        env.apply_velero_object("Backup", location, json!({"spec": {"storageLocation": location}}));
        env.set_status::<Backup>(location, &json!({"phase": "Completed"}));
    }
    let words = ["cannot download from `localhost`", "add the certificate authority", "--cacert"];
    env.run_refused(&["backup", "logs", "plain"], &words);
    for location in ["inline", "reference"] {
        assert_eq!(env.run_ok(&["backup", "logs", location]), "the log\n");
    }
    let stderr = env.run(&["backup", "logs", "broken"]).stderr;
    assert!(
        stderr.contains("warning: cannot use the certificates of location `broken`"),
        "{stderr}"
    );
    assert!(stderr.contains("Secret `ca` has no key `none`"), "{stderr}");

    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("ca.crt");
    std::fs::write(&file, &pem).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(env.run_ok(&["backup", "logs", "plain", "--cacert", file]), "the log\n");
    let insecure = ["backup", "logs", "plain", "--insecure-skip-tls-verify"];
    assert_eq!(env.run_ok(&insecure), "the log\n");
    let folder = home.path().join(".config/velero");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), json!({"cacert": file}).to_string()).unwrap();
    let mut command = env.bowline(&["backup", "logs", "plain"]);
    assert_eq!(World::run_command(command.env("HOME", home.path())).stdout, "the log\n");
}

#[test]
fn an_interrupted_download_leaves_neither_a_request_nor_a_file() {
    let env = cluster().test_env("backup-interrupt");
    put_finished_backup(&env, "b");
    let folder = tempfile::tempdir().unwrap();
    let mut command = env.bowline(&["backup", "download", "b"]);
    let mut child = command.current_dir(folder.path()).spawn().unwrap();
    eventually_blocking("the server is asked", TIMEOUT, || {
        !env.names::<DownloadRequest>().is_empty()
    });
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn archive_is_written_completely_or_not_at_all() {
    let env = cluster().test_env("backup-download");
    put_finished_backup(&env, "b");
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("b-data.tar.gz");
    let download = |more: &[&str]| {
        let mut command = env.bowline(&["backup", "download", "b"]);
        World::run_command(command.args(more).current_dir(folder.path()))
    };
    {
        let _server = FakeServer::start(&env, [("BackupContents", Answer::Cut)]);
        let ended = download(&[]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("the download was interrupted"), "{}", ended.stderr);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    let archive = vec![7; 3 << 20];
    let _server = FakeServer::start(&env, [("BackupContents", Answer::File(archive.clone()))]);
    let ended = download(&[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("saved to b-data.tar.gz, 3.00 MiB"), "{}", ended.stderr);
    assert!(std::fs::read(&target).unwrap() == archive, "it is not the archive");
    assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    std::fs::write(&target, "mine").unwrap();
    let ended = download(&[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("b-data.tar.gz already exists"), "{}", ended.stderr);
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(download(&["--force"]).code, Some(0));
    assert!(std::fs::read(&target).unwrap() == archive, "it is not the archive");
    assert_eq!(download(&["-o", "other"]).code, Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "something else is left");
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

#[test]
fn wait_reports_each_phase_and_the_outcome() {
    let env = cluster().test_env("backup-wait");
    let results = packed_json(&json!({"errors": {"namespaces": {"app": ["oh"]}}}));
    let _server = FakeServer::start(&env, [("BackupResults", results)]);
    for (name, phase, code) in [("good", "Completed", 0), ("bad", "PartiallyFailed", 1)] {
        let mut command = env.bowline(&["backup", "create", name, "--wait"]);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        assert_eq!(next(), format!("{name}: New"));
        env.set_status::<Backup>(name, &json!({"phase": "InProgress"}));
        assert_eq!(next(), format!("{name}: InProgress"));
        let progress = json!({"totalItems": 3, "itemsBackedUp": 3});
        let status = json!({
            "phase": phase, "progress": progress, "errors": code, "failureReason": "because",
        });
        env.set_status::<Backup>(name, &status);
        assert_eq!(next(), format!("{name}: {phase}"));
        let errors = if code == 1 { "1 error" } else { "0 errors" };
        let end = format!("backup `{name}` {phase} (3/3 items, {errors}, 0 warnings)");
        assert_eq!(next(), end);
        assert_eq!(next(), "reason: because");
        if code == 1 {
            assert_eq!(next(), "error: namespace app: oh");
        }
        let see = format!("see `bowline backup describe {name}` and `bowline backup logs {name}`");
        assert_eq!(next(), see);
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn wait_without_a_server_gives_a_hint_and_can_be_interrupted() {
    let env = cluster().test_env("backup-no-server");
    let mut child = env.bowline(&["backup", "create", "b", "-w"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let hint = lines.find(|line| line.as_ref().unwrap().contains("hint:")).unwrap().unwrap();
    assert!(hint.contains("no server seems to run in namespace `backup-no-server`"), "{hint}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let last = lines.next().unwrap().unwrap();
    assert!(last.contains("continues without this command"), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(env.names::<Backup>(), ["b"]);
}

#[test]
fn wait_ends_when_the_backup_is_deleted() {
    let env = cluster().test_env("backup-deleted");
    let mut child = env.bowline(&["backup", "create", "b", "-w"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "b: New");
    let api = env.api::<Backup>();
    cluster().runtime.block_on(api.delete("b", &kube::api::DeleteParams::default())).unwrap();
    let last = lines.next().unwrap().unwrap();
    assert_eq!(last, "error: backup `b` was deleted while waiting for it");
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn all_commands_work_with_a_velero_server() {
    let cluster = cluster();
    let s3 = cluster.runtime.block_on(S3::start(cluster.plane.bed())).unwrap();
    let started = Velero::start(&cluster.plane, &s3, velero::Options::default());
    let velero = cluster.runtime.block_on(started).unwrap();
    let app = cluster.test_env("velero-app");
    cluster.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
        "metadata": {"name": "settings", "namespace": app.namespace},
    }));
    let env = TestEnv { world: World::new(), namespace: velero::NAMESPACE.to_owned() };

    let create = ["backup", "create", "real", "--include-namespaces", "velero-app", "--wait"];
    let ended = env.run(&create);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("backup `real` Completed"), "{}", ended.stderr);

    let described = env.run_ok(&["backup", "describe", "real", "--details"]);
    assert!(described.contains("    - velero-app/settings\n"), "{described}");
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
    let velero_output = cluster.runtime.block_on(async {
        let mut command = velero.command();
        command.args(["backup", "describe", "real", "--details", "--colorized=false"]);
        command.env("TZ", "UTC");
        command.output().await.unwrap()
    });
    // Velero's command line leaves its requests behind.
    let left_by_velero = env.names::<DownloadRequest>();
    let words = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let our_lines = words(&described);
    let velero_lines = words(&String::from_utf8(velero_output.stdout).unwrap());
    let missing: Vec<&String> =
        velero_lines.iter().filter(|line| !our_lines.contains(line)).collect();
    assert_eq!(missing, [] as [&str; 0], "lines of Velero's that we do not have");

    let log = env.run_ok(&["backup", "logs", "real"]);
    assert!(log.contains("velero-app"), "{log}");
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("real.tar.gz");
    env.run_ok(&["backup", "download", "real", "-o", archive.to_str().unwrap()]);
    let mut unpacked = Vec::new();
    let packed = std::fs::File::open(&archive).unwrap();
    decode::gunzip(packed, Limits::ARCHIVE).read_to_end(&mut unpacked).unwrap();
    let path = b"resources/configmaps/namespaces/velero-app/settings.json";
    assert!(unpacked.windows(path.len()).any(|window| window == path), "not in the archive");

    let refused = ["backup", "create", "refused", "--exclude-resources=*", "--wait"];
    let ended = env.run(&refused);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("validation error: Invalid included/excluded"),
        "{}",
        ended.stderr
    );
    env.run_refused(
        &["backup", "logs", "refused"],
        &["FailedValidation: the run did not start: Invalid"],
    );
    assert_eq!(env.names::<DownloadRequest>(), left_by_velero);
    restore::assert_works_with_velero(&env, &velero);
}
