//! Waiting that says what it waits for, and logs of runs that go on.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use bowline_api::{Backup, BackupStorageLocation, DeleteBackupRequest, DownloadRequest};
use kube::api::DeleteParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::bowline::World;
use crate::cluster::{Place, cluster};
use crate::fake_server::{Answer, FakeServer, packed};
use crate::restore;

/// Reads what a command says until there are these words in a line.
fn hear(child: &mut Child, words: &str) -> String {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let mut heard = String::new();
    loop {
        let Some(line) = lines.next() else { panic!("no {words:?} in {heard:?}") };
        heard.push_str(&line.unwrap());
        heard.push('\n');
        if heard.contains(words) {
            return heard;
        }
    }
}

fn stop(mut child: Child) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

fn set(place: &Place, phase: &str) {
    place.set_status::<Backup>("b", &json!({"phase": phase}));
}

#[test]
fn who_follows_a_log_sees_it_grow() {
    let place = cluster().place("follow-log");
    restore::backed_up(&place, "b", &json!({"phase": "InProgress"}), &json!({}));
    place.refused(&["backup", "logs", "b"], &["has no log yet", "--follow waits"]);
    let mut child = place.bowline(&["backup", "logs", "-f", "b"]).spawn().unwrap();
    hear(&mut child, "available in the storage location once all items are backed up; waiting");
    let server = FakeServer::start(&place, [("BackupLog", packed("one\n"))]);
    set(&place, "Finalizing");
    let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(log.next().unwrap().unwrap(), "one");
    drop(server);
    let _server = FakeServer::start(&place, [("BackupLog", packed("one\ntwo\n"))]);
    set(&place, "Completed");
    assert_eq!(log.next().unwrap().unwrap(), "two");
    assert!(log.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    World::wait_until("no request is left", || place.names::<DownloadRequest>().is_empty());
}

#[test]
fn who_follows_a_backup_that_is_refused_is_told_why() {
    let place = cluster().place("follow-refused");
    let status = json!({"phase": "FailedValidation", "validationErrors": ["no such location"]});
    restore::backed_up(&place, "b", &status, &json!({}));
    let ended = place.run(&["backup", "logs", "b", "-f"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("no such location"), "{}", ended.stderr);
}

#[test]
fn nobody_waits_for_a_server_in_silence() {
    let place = cluster().place("follow-silence");
    restore::completed(&place, "b");
    let mut child = place.bowline(&["backup", "logs", "b"]).spawn().unwrap();
    hear(&mut child, "the server in namespace `follow-silence` has not responded yet");
    stop(child);
    let delete = ["backup", "delete", "b", "--confirm", "--wait"];
    let mut child = place.bowline(&delete).spawn().unwrap();
    hear(&mut child, "waiting for the server to complete the deletion");
    hear(&mut child, "no server runs in namespace `follow-silence`");
    stop(child);
    // It is the server's, and stays.
    let [request] = place.names::<DeleteBackupRequest>().try_into().unwrap();
    let delete = async {
        let api = place.api::<DeleteBackupRequest>();
        api.delete(&request, &DeleteParams::default()).await.unwrap();
    };
    cluster().runtime.block_on(delete);
}

#[test]
fn an_archive_goes_to_standard_output() {
    let place = cluster().place("follow-download");
    restore::completed(&place, "b");
    let large = "x".repeat(1 << 20);
    let contents = Answer::File(large.clone().into_bytes());
    let server = FakeServer::start(&place, [("BackupContents", contents)]);
    let ended = place.run(&["backup", "download", "b", "-o", "-"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout == large, "{} bytes", ended.stdout.len());
    // A reader that has seen enough.
    let mut child = place.bowline(&["backup", "download", "b", "-o", "-"]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(server);
    let _server = FakeServer::start(&place, [("BackupContents", Answer::Cut)]);
    let mut command = place.bowline(&["backup", "download", "b", "-o", "-"]);
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("the download was interrupted"), "{said}");
}

#[test]
fn a_location_that_cannot_be_used_says_why_below_the_table() {
    let place = cluster().place("follow-location");
    place.ok(&["backup-location", "create", "main", "--provider=aws", "--bucket=b"]);
    let status = json!({"phase": "Unavailable", "message": "access denied"});
    place.set_status::<BackupStorageLocation>("main", &status);
    let ended = place.run(&["backup-location", "get"]);
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    assert_eq!(ended.stderr, "backup location `main` is Unavailable: access denied\n");
    assert_eq!(place.run(&["backup-location", "get", "-o", "json"]).stderr, "");
    let described = place.ok(&["backup-location", "describe", "main"]);
    assert!(described.contains("Message:  access denied\n"), "{described}");
}
