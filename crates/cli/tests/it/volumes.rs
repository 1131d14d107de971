//! What plugins do with volumes, as commands show it.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bowline_api::{Backup, Restore, VolumePluginBackup, label};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::{Place, cluster};
use crate::fake_server::{FakeServer, packed_json};

/// What a plugin or the server tells of a snapshot.
fn report(place: &Place, backup: &str, snapshot: &str, status: &Value) {
    let labels = json!({"velero.io/backup-name": label::value(backup)});
    let spec = json!({"backup": backup, "volume": format!("pv-of-{snapshot}"), "plugin": "x.io/a"});
    let object = json!({"metadata": {"labels": labels}, "spec": spec, "status": status});
    place.put("VolumePluginBackup", snapshot, object);
}

/// How long a line may be waited for.
const PATIENCE: Duration = Duration::from_mins(2);

/// The first line that is wanted of what a command says.
fn line_of(said: impl Read + Send + 'static, is_wanted: impl Fn(&str) -> bool) -> String {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            // Whoever has seen enough does not listen any more.
            let _ = sender.send(line);
        }
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(rest).expect("the line that is waited for");
        if is_wanted(&line) {
            return line;
        }
    }
}

#[test]
fn what_a_plugin_has_just_reported_is_shown_before_it_has_labels() {
    let place = cluster().place("volumes-unlabelled");
    for (backup, snapshot) in [("b", "one"), ("c", "two")] {
        place.put("Backup", backup, json!({"spec": {}}));
        place.set_status::<Backup>(backup, &json!({"phase": "InProgress"}));
        let spec = json!({
            "backup": backup, "volume": format!("pv-of-{snapshot}"), "plugin": "x.io/a",
            "pluginSpecific": {"pool": "fast"},
        });
        let progress = json!({"units": "Files", "unitsDone": 12, "totalUnits": 40});
        let status = json!({"phase": "Copying", "snapshotID": snapshot, "progress": progress});
        place.put("VolumePluginBackup", snapshot, json!({"spec": spec, "status": status}));
    }
    let described = place.ok(&["backup", "describe", "b", "--details"]);
    for line in [
        "Volume Plugin Backups:  0 of 1 completed, 1 in progress, 0 failed, Files 12/40 (30 %)",
        "  pv-of-one:",
        "    Progress:     Files 12/40 (30 %)",
        "      pool:  fast",
    ] {
        assert!(described.lines().any(|found| found == line), "no {line:?} in\n{described}");
    }
    assert!(!described.contains("pv-of-two"), "{described}");
}

#[test]
fn describe_shows_how_far_the_volumes_of_a_backup_are() {
    let place = cluster().place("volumes-describe");
    // Its label is not its name.
    let name = "b".repeat(100);
    let other = format!("{name}c");
    for name in [&name, &other] {
        place.put("Backup", name, json!({"spec": {}}));
    }
    let windows = json!([{"namespace": "app", "pod": "db-0", "milliseconds": 42}]);
    place.set_status::<Backup>(&name, &json!({"phase": "InProgress", "freezeWindows": windows}));
    let running = json!({
        "phase": "InProgress", "snapshotID": "One", "startTimestamp": "2026-01-02T03:04:05Z",
        "progress": {"bytesDone": 1024, "totalBytes": 4096},
    });
    report(&place, &name, "one", &running);
    let failed = json!({
        "phase": "Failed", "snapshotID": "Two", "message": "no space",
        "progress": {"bytesDone": 0, "totalBytes": 0},
    });
    report(&place, &name, "two", &failed);
    report(&place, &other, "three", &failed);

    let described = place.ok(&["backup", "describe", &name]);
    let line = "Volume Plugin Backups:  0 of 2 completed, 1 in progress, 1 failed, 1.00 KiB of 4.00 \
                KiB (25 %) (specify --details for more information)";
    assert!(described.lines().any(|found| found == line), "{described}");
    let described = place.ok(&["backup", "describe", &name, "--details"]);
    for line in [
        "  pv-of-one:",
        "    Snapshot ID:  One",
        "    Progress:     1.00 KiB of 4.00 KiB (25 %)",
        "    Error:        no space",
        "Freeze windows:  1 pod, the longest 42 ms (app/db-0)",
    ] {
        assert!(described.lines().any(|found| found == line), "no {line:?} in {described}");
    }
    assert!(
        described.contains("    Rate:         ") && !described.contains("three"),
        "{described}"
    );
    let line = ["backup", "describe", &name, "--details", "-o", "json"];
    let json: Value = serde_json::from_str(&place.ok(&line)).unwrap();
    let volumes = &json["status"]["volumePluginBackups"];
    assert_eq!((&volumes["count"], &volumes["percent"]), (&json!(2), &json!(25)));
    assert_eq!(volumes["volumes"][1]["message"], "no space");
    assert_eq!(json["status"]["freezeWindows"]["longestMilliseconds"], 42);
}

#[test]
fn describe_shows_how_the_volumes_of_a_restore_were_made() {
    let place = cluster().place("volumes-restore");
    place.put("Restore", "r", json!({"spec": {"backupName": "b"}}));
    place.set_status::<Restore>("r", &json!({"phase": "Completed"}));
    let report = json!({
        "metadata": {"labels": {"velero.io/restore-name": "r"}},
        "spec": {"backup": "b", "snapshotID": "snap", "plugin": "x.io/a"},
        "status": {
            "phase": "Completed", "volumeID": "pv-1", "startTimestamp": "2026-01-02T03:04:05Z",
            "completionTimestamp": "2026-01-02T03:05:17Z",
            "progress": {"bytesDone": 1024, "totalBytes": 1024},
        },
    });
    place.put("VolumePluginRestore", "r-pv-1", report);
    let _server = FakeServer::start(
        &place,
        [
            ("RestoreVolumeInfo", packed_json(&json!([]))),
            ("RestoreResourceList", packed_json(&json!({}))),
        ],
    );
    let described = place.ok(&["restore", "describe", "r", "--details"]);
    for line in [
        "Volume Plugin Restores:  1 of 1 completed, 0 failed, 1.00 KiB of 1.00 KiB (100 %)",
        "  pv-1:",
        "    Duration:     1m12s",
    ] {
        assert!(described.lines().any(|found| found == line), "no {line:?} in {described}");
    }
}

#[test]
fn who_waits_or_watches_sees_uploads_go_on() {
    let place = cluster().place("volumes-wait");
    let mut waits = place.bowline(&["backup", "create", "b", "--wait"]).spawn().unwrap();
    World::wait_until("it is created", || place.names::<Backup>() == ["b"]);
    let upload = |done: i64| {
        json!({
            "phase": "InProgress", "snapshotID": "snap",
            "progress": {"bytesDone": done, "totalBytes": 4096},
        })
    };
    report(&place, "b", "snap", &upload(1024));
    place.set_status::<Backup>("b", &json!({"phase": "WaitingForPluginOperations"}));
    let said = waits.stderr.take().unwrap();
    let expected =
        "b: volumes: 0 of 1 completed, 1 in progress, 0 failed, 1.00 KiB of 4.00 KiB (25 %)";
    line_of(said, |line| line == expected);

    let mut watches = place.bowline(&["backup", "get", "--watch"]).spawn().unwrap();
    place.set_status::<VolumePluginBackup>("snap", &upload(3072));
    let row = line_of(watches.stdout.take().unwrap(), |line| line.ends_with("0/1 75%"));
    assert!(row.starts_with("b "), "{row}");
    kill(Pid::from_raw(watches.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(watches.wait().unwrap().code(), Some(130));

    place.set_status::<Backup>("b", &json!({"phase": "Completed"}));
    assert_eq!(waits.wait().unwrap().code(), Some(0));
}
