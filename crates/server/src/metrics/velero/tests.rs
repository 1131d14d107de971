use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::label;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::metrics::gauges::ScheduleGauges;

fn backup(name: &str, schedule: &str, status: &Value) -> Arc<Backup> {
    let object = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": name, "labels": {label::SCHEDULE_NAME: schedule}},
        "spec": {},
        "status": status,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn end_backup(velero: &VeleroMetrics, backup: &Backup, end: TerminalPhase) {
    velero.backup_ended(backup, backup.status.as_ref().unwrap(), end);
}

fn gauges(schedules: &[&str]) -> Gauges {
    let schedules = schedules.iter().map(|name| (name.to_string(), ScheduleGauges::default()));
    Gauges { schedules: schedules.collect(), ..Gauges::default() }
}

/// All series, with their values.
fn series(velero: &VeleroMetrics) -> BTreeMap<String, String> {
    let mut text = String::new();
    velero.render(&mut text).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let split = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.to_owned())
    };
    lines.map(split).collect()
}

fn value_of(velero: &VeleroMetrics, series: &str) -> Option<String> {
    self::series(velero).remove(series)
}

/// Status of a backup that ran.
fn ran() -> Value {
    json!({
        "startTimestamp": "2026-11-15T12:00:00Z", "completionTimestamp": "2026-11-15T12:02:03Z",
        "warnings": 4, "volumeSnapshotsAttempted": 5, "volumeSnapshotsCompleted": 3,
        "csiVolumeSnapshotsAttempted": 2, "csiVolumeSnapshotsCompleted": 1,
    })
}

#[test]
fn backup_outcome_is_counted_once_for_its_schedule() {
    let velero = VeleroMetrics::new();
    end_backup(&velero, &backup("n-1", "n", &ran()), TerminalPhase::PartiallyFailed);
    let expect = |series: &str, value: Option<&str>| {
        assert_eq!(value_of(&velero, series).as_deref(), value, "{series}");
    };
    expect(r#"velero_backup_partial_failure_total{schedule="n"}"#, Some("1"));
    expect(r#"velero_backup_partial_failure_total{schedule=""}"#, Some("0"));
    expect(r#"velero_backup_success_total{schedule=""}"#, Some("0"));
    expect(r#"velero_backup_success_total{schedule="n"}"#, None);
    expect(r#"velero_backup_warning_total{schedule="n"}"#, Some("1"));
    expect(r#"velero_volume_snapshot_attempt_total{schedule="n"}"#, Some("5"));
    expect(r#"velero_volume_snapshot_success_total{schedule="n"}"#, Some("3"));
    expect(r#"velero_volume_snapshot_failure_total{schedule="n"}"#, Some("2"));
    expect(r#"bowline_csi_snapshot_attempt_total{schedule="n"}"#, Some("2"));
    expect(r#"bowline_csi_snapshot_failure_total{schedule="n"}"#, Some("1"));
    expect(r#"velero_csi_snapshot_attempt_total{schedule="n",backupName="n-1"}"#, Some("2"));
    expect(r#"velero_csi_snapshot_success_total{schedule="n",backupName="n-1"}"#, Some("1"));
    expect(r#"velero_csi_snapshot_failure_total{schedule="n",backupName="n-1"}"#, Some("1"));
    expect(r#"velero_backup_duration_seconds_sum{schedule="n"}"#, Some("123.0"));
    expect(r#"velero_backup_duration_seconds_bucket{le="60.0",schedule="n"}"#, Some("0"));
    expect(r#"velero_backup_duration_seconds_bucket{le="300.0",schedule="n"}"#, Some("1"));
    expect(r#"velero_backup_duration_seconds_bucket{le="14400.0",schedule="n"}"#, Some("1"));
}

#[test]
fn refused_backup_has_no_duration_and_no_snapshots() {
    let velero = VeleroMetrics::new();
    end_backup(&velero, &backup("b", "", &json!({"warnings": 1})), TerminalPhase::FailedValidation);
    let of = |name: &str| value_of(&velero, &format!(r#"velero_{name}{{schedule=""}}"#));
    assert_eq!(of("backup_validation_failure_total").as_deref(), Some("1"));
    assert_eq!(of("backup_warning_total").as_deref(), Some("0"));
    assert_eq!(of("backup_duration_seconds_count"), None);
}

#[test]
fn gauges_of_objects_are_exported_once_known() {
    let velero = VeleroMetrics::new();
    velero.update_gauges(None, &[]);
    let has = |name: &str| series(&velero).keys().any(|key| key.starts_with(name));
    for name in ["velero_backup_total", "velero_restore_total", "velero_backup_last_status"] {
        assert!(!has(name), "{name}");
    }
    let schedule_gauges = ScheduleGauges {
        last_succeeded: false,
        last_success: Some(Timestamp::from_second(1_000).unwrap()),
        items: 7,
        errors: 2,
        interval: Some(Duration::from_hours(1)),
        created: Some(Timestamp::from_second(500).unwrap()),
    };
    let schedules = [(String::new(), ScheduleGauges::default()), ("n".to_owned(), schedule_gauges)];
    let gauges = Gauges {
        backups: 3,
        restores: 4,
        schedules: schedules.into_iter().collect(),
        locations: [("a".to_owned(), true), ("b".to_owned(), false)].into_iter().collect(),
        synced: BTreeMap::new(),
    };
    velero.update_gauges(Some(&gauges), &[]);
    for (series, value) in [
        ("velero_backup_total", Some("3")),
        ("velero_restore_total", Some("4")),
        (r#"velero_backup_last_status{schedule=""}"#, Some("1")),
        (r#"velero_backup_last_status{schedule="n"}"#, Some("0")),
        (r#"velero_backup_last_successful_timestamp{schedule=""}"#, None),
        (r#"velero_backup_last_successful_timestamp{schedule="n"}"#, Some("1000")),
        (r#"velero_backup_items_total{schedule="n"}"#, Some("7")),
        (r#"velero_backup_items_errors{schedule="n"}"#, Some("2")),
        (r#"velero_schedule_expected_interval_seconds{schedule="n"}"#, Some("3600")),
        (r#"velero_schedule_expected_interval_seconds{schedule=""}"#, None),
        (r#"velero_backup_location_status_gauge{backup_location_name="a"}"#, Some("1")),
        (r#"velero_backup_location_status_gauge{backup_location_name="b"}"#, Some("0")),
        (r#"bowline_schedule_created_timestamp_seconds{schedule="n"}"#, Some("500")),
        (r#"bowline_schedule_created_timestamp_seconds{schedule=""}"#, None),
        (r#"velero_backup_attempt_total{schedule="n"}"#, Some("0")),
        // From zero on, so that the first failure shows as an increase.
        (r#"bowline_csi_snapshot_failure_total{schedule="n"}"#, Some("0")),
    ] {
        assert_eq!(value_of(&velero, series).as_deref(), value, "{series}");
    }
    velero.update_gauges(None, &[]);
    assert!(!has("velero_backup_total") && !has("velero_backup_location_status_gauge"));
}

#[test]
fn series_of_a_deleted_schedule_are_removed() {
    let velero = VeleroMetrics::new();
    velero.update_gauges(Some(&gauges(&["", "n"])), &[]);
    end_backup(&velero, &backup("n-1", "n", &ran()), TerminalPhase::Completed);
    velero.archive_written(&backup("n-1", "n", &json!({})), 99);
    let of_n = || {
        let keys = series(&velero).into_keys();
        keys.filter(|key| key.contains(r#"schedule="n""#)).collect::<Vec<_>>()
    };
    let with_it = of_n().len();
    assert!(with_it > 30, "{with_it}");
    velero.update_gauges(Some(&gauges(&[""])), &[backup("n-1", "n", &json!({}))]);
    let remaining = of_n();
    assert!(remaining.iter().all(|key| key.contains(r#"backupName="n-1""#)), "{remaining:?}");
    assert_eq!(remaining.len(), 3, "its backup is there still");
    let failed = r#"velero_backup_deletion_failure_total{schedule="(other)"}"#;
    let done = r#"velero_backup_success_total{schedule="(other)"}"#;
    for series in [failed, done] {
        let value = value_of(&velero, series);
        assert_eq!(value.as_deref(), Some("0"), "what was told already is not told again");
    }
    // Later counts go to the shared label.
    for times in ["1", "2"] {
        velero.count(Count::BackupDeletionFailure, "n", 1);
        velero.update_gauges(Some(&gauges(&[""])), &[backup("n-1", "n", &json!({}))]);
        assert_eq!(value_of(&velero, failed).as_deref(), Some(times));
    }
    velero.update_gauges(Some(&gauges(&[""])), &[]);
    assert_eq!(of_n(), [""; 0], "the series of a backup go with it, too");
    let none = r#"velero_backup_attempt_total{schedule=""}"#;
    assert_eq!(value_of(&velero, none).as_deref(), Some("0"));
}

#[test]
fn number_of_series_is_bounded() {
    let velero = VeleroMetrics::new();
    for number in 0..3 * MAX_BACKUP_SERIES {
        end_backup(&velero, &backup(&format!("b{number}"), "", &ran()), TerminalPhase::Completed);
    }
    let of_csi = || {
        let keys = series(&velero).into_keys();
        keys.filter(|key| key.starts_with("velero_csi_snapshot_attempt_total")).collect::<Vec<_>>()
    };
    assert_eq!(of_csi().len(), MAX_BACKUP_SERIES + 1);
    let last = format!(r#"backupName="b{}""#, 3 * MAX_BACKUP_SERIES - 1);
    assert!(of_csi().iter().any(|key| key.contains(&last)));
    let names: Vec<String> = (0..3_000).map(|number| format!("s{number:04}")).collect();
    let names: Vec<&str> = [""].into_iter().chain(names.iter().map(String::as_str)).collect();
    velero.update_gauges(Some(&gauges(&names)), &[]);
    let keys = series(&velero);
    let count = |name: &str| keys.keys().filter(|key| key.starts_with(name)).count();
    assert_eq!(count("velero_backup_last_status"), 1024);
    // One more for the shared label.
    assert_eq!(count("velero_backup_attempt_total"), 1025);
    velero.update_gauges(Some(&gauges(&[""])), &[]);
    assert_eq!(series(&velero).keys().filter(|key| key.contains("s0001")).count(), 0);
}

#[test]
fn deleted_schedules_leave_no_series_while_their_backups_remain() {
    let velero = VeleroMetrics::new();
    for number in 0..3_000 {
        velero.count(Count::BackupDeletionSuccess, &format!("gone{number}"), 1);
        velero.update_gauges(Some(&gauges(&[""])), &[]);
    }
    assert_eq!(velero.names.all().len(), 1);
    let rest = r#"velero_backup_deletion_success_total{schedule="(other)"}"#;
    assert_eq!(value_of(&velero, rest).as_deref(), Some("3000"));
    // Even if all come at once, existing ones keep their own label.
    for number in 0..3_000 {
        velero.count(Count::BackupDeletionSuccess, &format!("gone{number}"), 1);
    }
    velero.update_gauges(Some(&gauges(&["", "n"])), &[]);
    let of_n = r#"velero_backup_last_status{schedule="n"}"#;
    assert_eq!(value_of(&velero, of_n).as_deref(), Some("1"));
    assert_eq!(value_of(&velero, rest).as_deref(), Some("6000"));
}
