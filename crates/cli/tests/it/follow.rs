//! `--wait`, `--watch` and `logs --follow`.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use bowline_api::{Backup, BackupStorageLocation, DeleteBackupRequest, DownloadRequest};
use bowline_testbed::eventually_blocking;
use kube::api::DeleteParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::bowline::TIMEOUT;
use crate::cluster::{TestEnv, cluster};
use crate::fake_server::{Answer, FakeServer, packed};
use crate::restore;

/// Reads the output of a command until a line contains these words.
fn read_until(child: &mut Child, words: &str) -> String {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let mut output = String::new();
    loop {
        let Some(line) = lines.next() else { panic!("no {words:?} in {output:?}") };
        output.push_str(&line.unwrap());
        output.push('\n');
        if output.contains(words) {
            return output;
        }
    }
}

fn interrupt(mut child: Child) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

fn set_phase(env: &TestEnv, phase: &str) {
    env.set_status::<Backup>("b", &json!({"phase": phase}));
}

#[test]
fn followed_log_is_printed_as_it_grows() {
    let env = cluster().test_env("follow-log");
    restore::put_backup(&env, "b", &json!({"phase": "InProgress"}), &json!({}));
    env.run_refused(&["backup", "logs", "b"], &["has no log yet", "--follow waits"]);
    let mut child = env.bowline(&["backup", "logs", "-f", "b"]).spawn().unwrap();
    read_until(&mut child, "which is available once all items are backed up");
    let server = FakeServer::start(&env, [("BackupLog", packed("one\n"))]);
    set_phase(&env, "Finalizing");
    let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(log.next().unwrap().unwrap(), "one");
    drop(server);
    let _server = FakeServer::start(&env, [("BackupLog", packed("one\ntwo\n"))]);
    set_phase(&env, "Completed");
    assert_eq!(log.next().unwrap().unwrap(), "two");
    assert!(log.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    eventually_blocking("no request is left", TIMEOUT, || {
        env.names::<DownloadRequest>().is_empty()
    });
}

#[test]
fn following_a_refused_backup_reports_its_validation_errors() {
    let env = cluster().test_env("follow-refused");
    let status = json!({"phase": "FailedValidation", "validationErrors": ["no such location"]});
    restore::put_backup(&env, "b", &status, &json!({}));
    let ended = env.run(&["backup", "logs", "b", "-f"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("no such location"), "{}", ended.stderr);
}

#[test]
fn waiting_for_a_missing_server_prints_a_hint() {
    let env = cluster().test_env("follow-silence");
    restore::put_completed_backup(&env, "b");
    let mut child = env.bowline(&["backup", "logs", "b"]).spawn().unwrap();
    read_until(&mut child, "the server in namespace `follow-silence` has not responded yet");
    interrupt(child);
    let delete = ["backup", "delete", "b", "--confirm", "--wait"];
    let mut child = env.bowline(&delete).spawn().unwrap();
    read_until(&mut child, "waiting for the server to complete the deletion");
    read_until(&mut child, "no server runs in namespace `follow-silence`");
    interrupt(child);
    // The request belongs to the server, and stays.
    let [request] = env.names::<DeleteBackupRequest>().try_into().unwrap();
    let delete = async {
        let api = env.api::<DeleteBackupRequest>();
        api.delete(&request, &DeleteParams::default()).await.unwrap();
    };
    cluster().runtime.block_on(delete);
}

#[test]
fn an_archive_goes_to_standard_output() {
    let env = cluster().test_env("follow-download");
    restore::put_completed_backup(&env, "b");
    let large = "x".repeat(1 << 20);
    let contents = Answer::File(large.clone().into_bytes());
    let server = FakeServer::start(&env, [("BackupContents", contents)]);
    let ended = env.run(&["backup", "download", "b", "-o", "-"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout == large, "{} bytes", ended.stdout.len());
    // A reader that has seen enough.
    let mut child = env.bowline(&["backup", "download", "b", "-o", "-"]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(server);
    let _server = FakeServer::start(&env, [("BackupContents", Answer::Cut)]);
    let mut command = env.bowline(&["backup", "download", "b", "-o", "-"]);
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(stderr.contains("the download was interrupted"), "{stderr}");
}

#[test]
fn unavailable_location_has_its_reason_below_the_table() {
    let env = cluster().test_env("follow-location");
    env.run_ok(&["backup-location", "create", "main", "--provider=aws", "--bucket=b"]);
    let status = json!({"phase": "Unavailable", "message": "access denied"});
    env.set_status::<BackupStorageLocation>("main", &status);
    let ended = env.run(&["backup-location", "get"]);
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    assert_eq!(ended.stderr, "backup location `main` is Unavailable: access denied\n");
    assert_eq!(env.run(&["backup-location", "get", "-o", "json"]).stderr, "");
    let described = env.run_ok(&["backup-location", "describe", "main"]);
    assert!(described.contains("Message:  access denied\n"), "{described}");
}
