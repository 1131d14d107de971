use serde_json::{Value, json};

use super::*;

pub(crate) fn backup(volume: &str, status: &Value) -> VolumeProgress {
    let report = json!({
        "metadata": {"name": volume, "managedFields": [
            {"manager": "a", "operation": "Update", "time": "2026-01-02T03:04:05Z"},
            {"manager": "b", "operation": "Update", "time": "2026-01-02T03:04:15Z"},
        ]},
        "spec": {"volume": volume, "backup": "b", "plugin": "x.io/a"}, "status": status,
    });
    serde_json::from_value::<VolumePluginBackup>(report).unwrap().into_progress()
}

fn bytes(done: i64, total: i64) -> ByteProgress {
    ByteProgress::from_progress(&VolumePluginProgress {
        bytes_done: done,
        total_bytes: total,
        ..VolumePluginProgress::default()
    })
}

#[test]
fn percent_is_at_most_100_and_unknown_values_are_not_shown() {
    for ((done, total), percent, text) in [
        ((0, 0), None, "-"),
        ((-5, -1), None, "-"),
        ((2048, 0), None, "2.00 KiB of -"),
        ((0, 4096), Some(0), "0 B of 4.00 KiB (0 %)"),
        ((4095, 4096), Some(99), "4.00 KiB of 4.00 KiB (99 %)"),
        ((4096, 4096), Some(100), "4.00 KiB of 4.00 KiB (100 %)"),
        ((9000, 3000), Some(100), "8.79 KiB of 2.93 KiB (100 %)"),
        ((i64::MAX, i64::MAX), Some(100), "8.00 EiB of 8.00 EiB (100 %)"),
    ] {
        let bytes = bytes(done, total);
        assert_eq!(bytes.percent(), percent, "{done} of {total}");
        assert_eq!(bytes.to_string(), text, "{done} of {total}");
    }
}

#[test]
fn rate_is_given_while_running_and_duration_when_ended() {
    let status = |phase: &str| {
        json!({
            "phase": phase, "progress": {"bytesDone": 3000, "totalBytes": 9000},
            "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:05:17Z",
        })
    };
    let running = backup("pv", &status("Uploading"));
    assert_eq!(
        running.rate(),
        Some(TransferRate { per_second: 300.0, seconds_remaining: Some(20) })
    );
    assert_eq!((running.phase(), running.seconds()), ("Uploading", None));
    for phase in ["Completed", "failed", "CANCELED"] {
        let ended = backup("pv", &status(phase));
        assert_eq!((ended.rate(), ended.seconds()), (None, Some(72)), "{phase}");
    }
    let new = backup("pv", &json!(null));
    assert_eq!((new.phase(), new.rate(), new.seconds()), ("New", None, None));
}

#[test]
fn totals_add_up_known_progress_of_all_volumes() {
    let volume = |phase: &str, done: i64, total: i64| {
        let progress = json!({"bytesDone": done, "totalBytes": total});
        backup("pv", &json!({"phase": phase, "progress": progress}))
    };
    for (transfers, text, short) in [
        (vec![], "0 of 0 completed, 0 failed", "0/0"),
        (vec![volume("Completed", 0, 0)], "1 of 1 completed, 0 failed", "1/1"),
        (
            vec![volume("Completed", 1024, 1024), volume("InProgress", 1024, 3072)],
            "1 of 2 completed, 1 in progress, 0 failed, 2.00 KiB of 4.00 KiB (50 %)",
            "1/2 50%",
        ),
        // A volume without a first report may have any size.
        (
            vec![volume("InProgress", 1024, 4096), volume("New", 0, 0)],
            "0 of 2 completed, 2 in progress, 0 failed, 1.00 KiB of -",
            "0/2",
        ),
        (
            vec![
                volume("Failed", 1024, 0),
                volume("canceled", 0, 0),
                volume("Completed", 1024, 1024),
            ],
            "1 of 3 completed, 1 canceled, 1 failed, 2.00 KiB of 2.00 KiB (100 %)",
            "3/3 100%",
        ),
    ] {
        let totals = VolumeTotals::from_volumes(&transfers);
        assert_eq!((totals.to_string().as_str(), totals.short_text().as_str()), (text, short));
    }
}

#[test]
fn long_names_with_the_same_label_are_distinguished() {
    let report_of = |backup: &str| {
        let report = json!({"metadata": {"name": "x"}, "spec": {"backup": backup}});
        serde_json::from_value::<VolumePluginBackup>(report).unwrap()
    };
    assert!(report_of("b").may_belong_to("b") && report_of("").may_belong_to("b"));
    assert!(!report_of("c").may_belong_to("b"));
    // Without the label, which the server adds soon, only the name of the backup counts.
    assert!(
        report_of("b").names_run("b")
            && !report_of("").names_run("b")
            && !report_of("c").names_run("b")
    );
}

#[test]
fn plugin_units_are_shown() {
    let volume =
        |phase: &str, progress: Value| backup("pv", &json!({"phase": phase, "progress": progress}));
    let files =
        |done: i64, total: i64| json!({"units": "Files", "unitsDone": done, "totalUnits": total});
    for (progress, text) in [
        (files(12, 40), "Files 12/40 (30 %)"),
        (files(12, 0), "Files 12/-"),
        (files(-1, -1), "Files 0/-"),
        (json!({"units": "Files", "unitsDone": 1, "bytesDone": 1024}), "1.00 KiB of -"),
        (json!({}), "-"),
    ] {
        assert_eq!(volume("InProgress", progress).progress(), text);
    }
    let totals = VolumeTotals::from_volumes(&[
        volume("InProgress", files(12, 40)),
        volume("Completed", files(8, 8)),
    ]);
    assert_eq!(totals.to_string(), "1 of 2 completed, 1 in progress, 0 failed, Files 20/48 (41 %)");
    assert_eq!(totals.short_text(), "1/2 41%");
    // Volumes with progress in bytes are shown separately.
    let bytes = json!({"bytesDone": 1024, "totalBytes": 2048});
    let mixed = VolumeTotals::from_volumes(&[
        volume("InProgress", files(1, 4)),
        volume("InProgress", bytes),
    ]);
    assert_eq!(
        mixed.to_string(),
        "0 of 2 completed, 2 in progress, 0 failed, 1.00 KiB of 2.00 KiB (50 %), Files 1/4 (25 %)"
    );
}
