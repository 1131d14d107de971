//! Progress of plugins on volumes, as commands show it.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bowline_api::{Backup, Restore, VolumePluginBackup, label};
use bowline_testbed::eventually_blocking;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::bowline::TIMEOUT;
use crate::cluster::{TestEnv, cluster};
use crate::fake_server::{FakeServer, packed_json};

/// A VolumePluginBackup of a snapshot, by a plugin or by the server.
fn put_report(env: &TestEnv, backup: &str, snapshot: &str, status: &Value) {
    let labels = json!({"velero.io/backup-name": label::value(backup)});
    let spec = json!({"backup": backup, "volume": format!("pv-of-{snapshot}"), "plugin": "x.io/a"});
    let object = json!({"metadata": {"labels": labels}, "spec": spec, "status": status});
    env.apply_velero_object("VolumePluginBackup", snapshot, object);
}

/// Time limit for a line.
const LINE_TIMEOUT: Duration = Duration::from_mins(2);

/// The first line of the output of a command that is wanted.
fn wait_for_line(output: impl Read + Send + 'static, is_wanted: impl Fn(&str) -> bool) -> String {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The receiver is gone once it has its line.
            let _ = sender.send(line);
        }
    });
    let deadline = Instant::now() + LINE_TIMEOUT;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(rest).expect("the line that is waited for");
        if is_wanted(&line) {
            return line;
        }
    }
}

#[test]
fn unlabelled_plugin_report_is_shown() {
    let env = cluster().test_env("volumes-unlabelled");
    for (backup, snapshot) in [("b", "one"), ("c", "two")] {
        env.apply_velero_object("Backup", backup, json!({"spec": {}}));
        env.set_status::<Backup>(backup, &json!({"phase": "InProgress"}));
        let spec = json!({
            "backup": backup, "volume": format!("pv-of-{snapshot}"), "plugin": "x.io/a",
            "pluginSpecific": {"pool": "fast"},
        });
        let progress = json!({"units": "Files", "unitsDone": 12, "totalUnits": 40});
        let status = json!({"phase": "Copying", "snapshotID": snapshot, "progress": progress});
        env.apply_velero_object(
            "VolumePluginBackup",
            snapshot,
            json!({"spec": spec, "status": status}),
        );
    }
    let described = env.run_ok(&["backup", "describe", "b", "--details"]);
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
fn describe_shows_volume_progress_of_a_backup() {
    let env = cluster().test_env("volumes-describe");
    // Its label is not its name.
    let name = "b".repeat(100);
    let other = format!("{name}c");
    for name in [&name, &other] {
        env.apply_velero_object("Backup", name, json!({"spec": {}}));
    }
    let windows = json!([{"namespace": "app", "pod": "db-0", "milliseconds": 42}]);
    env.set_status::<Backup>(&name, &json!({"phase": "InProgress", "freezeWindows": windows}));
    let running = json!({
        "phase": "InProgress", "snapshotID": "One", "startTimestamp": "2026-01-02T03:04:05Z",
        "progress": {"bytesDone": 1024, "totalBytes": 4096},
    });
    put_report(&env, &name, "one", &running);
    let failed = json!({
        "phase": "Failed", "snapshotID": "Two", "message": "no space",
        "progress": {"bytesDone": 0, "totalBytes": 0},
    });
    put_report(&env, &name, "two", &failed);
    put_report(&env, &other, "three", &failed);

    let described = env.run_ok(&["backup", "describe", &name]);
    let line = "Volume Plugin Backups:  0 of 2 completed, 1 in progress, 1 failed, 1.00 KiB of 4.00 \
                KiB (25 %) (specify --details for more information)";
    assert!(described.lines().any(|found| found == line), "{described}");
    let described = env.run_ok(&["backup", "describe", &name, "--details"]);
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
    let json: Value = serde_json::from_str(&env.run_ok(&line)).unwrap();
    let volumes = &json["status"]["volumePluginBackups"];
    assert_eq!((&volumes["count"], &volumes["percent"]), (&json!(2), &json!(25)));
    assert_eq!(volumes["volumes"][1]["message"], "no space");
    assert_eq!(json["status"]["freezeWindows"]["longestMilliseconds"], 42);
}

#[test]
fn describe_shows_volume_progress_of_a_restore() {
    let env = cluster().test_env("volumes-restore");
    env.apply_velero_object("Restore", "r", json!({"spec": {"backupName": "b"}}));
    env.set_status::<Restore>("r", &json!({"phase": "Completed"}));
    let report = json!({
        "metadata": {"labels": {"velero.io/restore-name": "r"}},
        "spec": {"backup": "b", "snapshotID": "snap", "plugin": "x.io/a"},
        "status": {
            "phase": "Completed", "volumeID": "pv-1", "startTimestamp": "2026-01-02T03:04:05Z",
            "completionTimestamp": "2026-01-02T03:05:17Z",
            "progress": {"bytesDone": 1024, "totalBytes": 1024},
        },
    });
    env.apply_velero_object("VolumePluginRestore", "r-pv-1", report);
    let _server = FakeServer::start(
        &env,
        [
            ("RestoreVolumeInfo", packed_json(&json!([]))),
            ("RestoreResourceList", packed_json(&json!({}))),
        ],
    );
    let described = env.run_ok(&["restore", "describe", "r", "--details"]);
    for line in [
        "Volume Plugin Restores:  1 of 1 completed, 0 failed, 1.00 KiB of 1.00 KiB (100 %)",
        "  pv-1:",
        "    Duration:     1m12s",
    ] {
        assert!(described.lines().any(|found| found == line), "no {line:?} in {described}");
    }
}

#[test]
fn wait_and_watch_show_upload_progress() {
    let env = cluster().test_env("volumes-wait");
    let mut waits = env.bowline(&["backup", "create", "b", "--wait"]).spawn().unwrap();
    eventually_blocking("it is created", TIMEOUT, || env.names::<Backup>() == ["b"]);
    let upload = |done: i64| {
        json!({
            "phase": "InProgress", "snapshotID": "snap",
            "progress": {"bytesDone": done, "totalBytes": 4096},
        })
    };
    put_report(&env, "b", "snap", &upload(1024));
    env.set_status::<Backup>("b", &json!({"phase": "WaitingForPluginOperations"}));
    let stderr = waits.stderr.take().unwrap();
    let expected =
        "b: volumes: 0 of 1 completed, 1 in progress, 0 failed, 1.00 KiB of 4.00 KiB (25 %)";
    wait_for_line(stderr, |line| line == expected);

    let mut watches = env.bowline(&["backup", "get", "--watch"]).spawn().unwrap();
    env.set_status::<VolumePluginBackup>("snap", &upload(3072));
    let row = wait_for_line(watches.stdout.take().unwrap(), |line| line.ends_with("0/1 75%"));
    assert!(row.starts_with("b "), "{row}");
    kill(Pid::from_raw(watches.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(watches.wait().unwrap().code(), Some(130));

    env.set_status::<Backup>("b", &json!({"phase": "Completed"}));
    assert_eq!(waits.wait().unwrap().code(), Some(0));
}
