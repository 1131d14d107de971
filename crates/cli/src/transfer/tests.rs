use serde_json::{Value, json};

use super::*;

pub(crate) fn backup(volume: &str, status: &Value) -> Transfer {
    let report = json!({
        "metadata": {"name": volume, "managedFields": [
            {"manager": "a", "operation": "Update", "time": "2026-01-02T03:04:05Z"},
            {"manager": "b", "operation": "Update", "time": "2026-01-02T03:04:15Z"},
        ]},
        "spec": {"volume": volume, "backup": "b", "plugin": "x.io/a"}, "status": status,
    });
    serde_json::from_value::<VolumePluginBackup>(report).unwrap().transfer()
}

fn bytes(done: i64, total: i64) -> Bytes {
    Bytes::of(&VolumePluginProgress {
        bytes_done: done,
        total_bytes: total,
        ..VolumePluginProgress::default()
    })
}

#[test]
fn a_part_is_never_more_than_the_whole_and_what_is_not_known_is_not_made_up() {
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
fn a_rate_is_told_while_it_goes_on_and_a_length_when_it_has_ended() {
    let status = |phase: &str| {
        json!({
            "phase": phase, "progress": {"bytesDone": 3000, "totalBytes": 9000},
            "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:05:17Z",
        })
    };
    let running = backup("pv", &status("Uploading"));
    assert_eq!(running.pace(), Some(Pace { per_second: 300.0, left: Some(20) }));
    assert_eq!((running.phase(), running.seconds()), ("Uploading", None));
    for phase in ["Completed", "failed", "CANCELED"] {
        let ended = backup("pv", &status(phase));
        assert_eq!((ended.pace(), ended.seconds()), (None, Some(72)), "{phase}");
    }
    let new = backup("pv", &json!(null));
    assert_eq!((new.phase(), new.pace(), new.seconds()), ("New", None, None));
}

#[test]
fn all_volumes_together_are_as_far_as_what_is_known_of_each() {
    let one = |phase: &str, done: i64, total: i64| {
        let progress = json!({"bytesDone": done, "totalBytes": total});
        backup("pv", &json!({"phase": phase, "progress": progress}))
    };
    for (transfers, text, short) in [
        (vec![], "0 of 0 completed, 0 failed", "0/0"),
        (vec![one("Completed", 0, 0)], "1 of 1 completed, 0 failed", "1/1"),
        (
            vec![one("Completed", 1024, 1024), one("InProgress", 1024, 3072)],
            "1 of 2 completed, 1 in progress, 0 failed, 2.00 KiB of 4.00 KiB (50 %)",
            "1/2 50%",
        ),
        // One that has not begun to tell may be of any size.
        (
            vec![one("InProgress", 1024, 4096), one("New", 0, 0)],
            "0 of 2 completed, 2 in progress, 0 failed, 1.00 KiB of -",
            "0/2",
        ),
        (
            vec![one("Failed", 1024, 0), one("canceled", 0, 0), one("Completed", 1024, 1024)],
            "1 of 3 completed, 1 canceled, 1 failed, 2.00 KiB of 2.00 KiB (100 %)",
            "3/3 100%",
        ),
    ] {
        let tally = Tally::of(&transfers);
        assert_eq!((tally.to_string().as_str(), tally.short().as_str()), (text, short));
    }
}

#[test]
fn a_long_name_is_not_mistaken_for_another_with_the_same_label() {
    let of = |backup: &str| {
        let report = json!({"metadata": {"name": "x"}, "spec": {"backup": backup}});
        serde_json::from_value::<VolumePluginBackup>(report).unwrap()
    };
    assert!(of("b").is_of("b") && of("").is_of("b"));
    assert!(!of("c").is_of("b"));
    // Without the label, which the server adds soon, only the name of the backup counts.
    assert!(of("b").names("b") && !of("").names("b") && !of("c").names("b"));
}

#[test]
fn what_a_plugin_counts_is_told_in_its_own_units() {
    let one =
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
        assert_eq!(one("InProgress", progress).progress(), text);
    }
    let tally = Tally::of(&[one("InProgress", files(12, 40)), one("Completed", files(8, 8))]);
    assert_eq!(tally.to_string(), "1 of 2 completed, 1 in progress, 0 failed, Files 20/48 (41 %)");
    assert_eq!(tally.short(), "1/2 41%");
    // Those that count bytes are told apart from them.
    let bytes = json!({"bytesDone": 1024, "totalBytes": 2048});
    let mixed = Tally::of(&[one("InProgress", files(1, 4)), one("InProgress", bytes)]);
    assert_eq!(
        mixed.to_string(),
        "0 of 2 completed, 2 in progress, 0 failed, 1.00 KiB of 2.00 KiB (50 %), Files 1/4 (25 %)"
    );
}
