use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Backup of a Schedule that ended at a minute of an hour; `None` if it never started.
fn backup(name: &str, schedule: &str, phase: &str, minute: Option<u8>) -> Arc<Backup> {
    let ended = minute.map(|minute| format!("2026-11-15T12:{minute:02}:00Z"));
    let labels =
        if schedule.is_empty() { json!({}) } else { json!({label::SCHEDULE_NAME: schedule}) };
    let object = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-11-15T12:30:00Z"},
        "spec": {},
        "status": {"phase": phase, "completionTimestamp": ended},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Backup with counts.
fn counted(backup: Arc<Backup>, items: i64, errors: i64) -> Arc<Backup> {
    let mut backup = Arc::unwrap_or_clone(backup);
    let status = backup.status.as_mut().unwrap();
    status.errors = errors;
    status.progress =
        Some(serde_json::from_value(json!({"totalItems": items, "itemsBackedUp": 0})).unwrap());
    Arc::new(backup)
}

fn schedule(name: &str, expression: &str, is_paused: bool) -> Arc<Schedule> {
    let object = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": name},
        "spec": {"schedule": expression, "paused": is_paused, "template": {}},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn location(name: &str, status: &Value) -> Arc<BackupStorageLocation> {
    let object = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": name},
        "spec": {"provider": "p", "objectStorage": {"bucket": "b"}},
        "status": status,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A Sunday.
const NOW: &str = "2026-11-15T13:00:00Z";

fn gauges_of(objects: &ObservedObjects) -> Gauges {
    compute_gauges(objects, &mut Intervals::default(), &TimeZone::UTC, at(NOW))
}

#[test]
fn gauges_without_objects_are_zero() {
    let gauges = gauges_of(&ObservedObjects::default());
    let none = ScheduleGauges::default();
    assert!(none.last_succeeded && none.last_success.is_none());
    let schedules = BTreeMap::from([(String::new(), none)]);
    assert_eq!(gauges, Gauges { backups: 0, restores: 0, schedules, ..Gauges::default() });
}

#[test]
fn last_status_comes_from_the_backup_that_ended_last() {
    type Row<'a> = (&'a str, Vec<Arc<Backup>>, bool, Option<&'a str>);
    let rows: [Row<'_>; 9] = [
        ("well", vec![backup("a", "", "Completed", Some(1))], true, Some("2026-11-15T12:01:00Z")),
        (
            "then in part",
            vec![
                backup("b", "", "PartiallyFailed", Some(2)),
                backup("a", "", "Completed", Some(1)),
            ],
            false,
            Some("2026-11-15T12:01:00Z"),
        ),
        (
            "then well",
            vec![backup("b", "", "Completed", Some(2)), backup("a", "", "Failed", Some(1))],
            true,
            Some("2026-11-15T12:02:00Z"),
        ),
        ("never well", vec![backup("a", "", "Failed", Some(1))], false, None),
        (
            "refused after it",
            vec![backup("b", "", "FailedValidation", None), backup("a", "", "Completed", Some(1))],
            false,
            Some("2026-11-15T12:01:00Z"),
        ),
        (
            "refused before it",
            vec![backup("a", "", "Completed", Some(50)), backup("b", "", "FailedValidation", None)],
            true,
            Some("2026-11-15T12:50:00Z"),
        ),
        (
            "another goes on",
            vec![backup("b", "", "InProgress", None), backup("a", "", "Completed", Some(1))],
            true,
            Some("2026-11-15T12:01:00Z"),
        ),
        (
            "another is being deleted",
            vec![backup("b", "", "Deleting", Some(2)), backup("a", "", "Failed", Some(1))],
            false,
            None,
        ),
        (
            "two in one second",
            vec![backup("n-2", "", "Failed", Some(1)), backup("n-1", "", "Completed", Some(1))],
            false,
            Some("2026-11-15T12:01:00Z"),
        ),
    ];
    for (case, mut backups, is_well, last) in rows {
        for _ in 0..2 {
            let count = backups.len();
            let gauges = gauges_of(&ObservedObjects {
                backups: backups.clone(),
                ..ObservedObjects::default()
            });
            assert_eq!(gauges.backups, count, "{case}");
            let schedule_gauges = &gauges.schedules[""];
            assert_eq!(
                (schedule_gauges.last_succeeded, schedule_gauges.last_success),
                (is_well, last.map(at)),
                "{case}"
            );
            backups.reverse();
        }
    }
}

#[test]
fn items_and_errors_come_from_the_last_backup_that_ran() {
    let first = counted(backup("a", "", "Completed", Some(1)), 7, 0);
    let second = counted(backup("b", "", "PartiallyFailed", Some(2)), 9, 3);
    let refused = counted(backup("c", "", "FailedValidation", None), 0, 0);
    let objects = ObservedObjects {
        backups: vec![refused, second, first.clone()],
        ..ObservedObjects::default()
    };
    let gauges = gauges_of(&objects);
    let of_none = &gauges.schedules[""];
    assert_eq!((of_none.items, of_none.errors), (9, 3));
    let gauges = gauges_of(&ObservedObjects { backups: vec![first], ..ObservedObjects::default() });
    assert_eq!((gauges.schedules[""].items, gauges.schedules[""].errors), (7, 0));
}

#[test]
fn each_existing_schedule_has_its_own_gauges() {
    let long = "x".repeat(70);
    let objects = ObservedObjects {
        backups: vec![
            backup("a", "nightly", "Failed", Some(1)),
            backup("b", "gone", "Failed", Some(2)),
            backup("c", &label::value(&long), "Failed", Some(3)),
            backup("d", "", "Completed", Some(4)),
        ],
        schedules: vec![
            schedule("nightly", "0 1 * * *", false),
            schedule("fresh", "0 1 * * *", false),
            schedule(&long, "0 1 * * *", false),
        ],
        ..ObservedObjects::default()
    };
    let gauges = gauges_of(&objects);
    let wells: Vec<_> = gauges
        .schedules
        .iter()
        .map(|(name, schedule_gauges)| (name.as_str(), schedule_gauges.last_succeeded))
        .collect();
    let long = label::value(&long);
    assert_eq!(wells, [("", true), ("fresh", true), ("nightly", false), (&*long, false)]);
    assert_eq!(gauges.backups, 4, "those of a Schedule that is gone are there all the same");
}

#[test]
fn expected_interval_is_exported_while_the_schedule_has_future_times() {
    let hours = |hours: u64| Some(Duration::from_hours(hours));
    for (expression, is_paused, expected) in [
        ("@every 10m", false, Some(Duration::from_mins(10))),
        ("0 1 * * *", false, hours(24)),
        // Over the weekend, also when the next two times are a day apart.
        ("0 1 * * 1-5", false, hours(72)),
        ("0 0 1 * *", false, hours(31 * 24)),
        ("0 0 1 1 *", false, hours(365 * 24)),
        ("0 1 * * *", true, None),
        ("soon", false, None),
    ] {
        let schedules = vec![schedule("s", expression, is_paused)];
        let gauges = gauges_of(&ObservedObjects { schedules, ..ObservedObjects::default() });
        assert_eq!(gauges.schedules["s"].interval, expected, "{expression}");
    }
}

#[test]
fn expected_interval_covers_nights_and_weekends_at_any_time() {
    let hours = |hours: u64| Some(Duration::from_hours(hours));
    // From Friday to Monday, by day and by night.
    let moments = [
        "2026-11-13T09:00:00Z",
        "2026-11-13T12:34:56Z",
        "2026-11-13T17:00:01Z",
        "2026-11-13T18:00:00Z",
        "2026-11-14T03:00:00Z",
        "2026-11-15T23:59:59Z",
        "2026-11-16T00:00:00Z",
        "2026-11-16T09:00:00Z",
        "2026-11-16T09:00:01Z",
    ];
    for (expression, expected) in [
        ("0 9-17 * * *", hours(16)),
        ("0 9-17 * * 1-5", hours(64)),
        ("* * * * *", Some(Duration::from_mins(1))),
        ("* 9-17 * * *", Some(Duration::from_mins(15 * 60 + 1))),
        ("* 9-17 * * 1-5", Some(Duration::from_mins(63 * 60 + 1))),
        // Two times that lie on both sides of midnight.
        ("0 0,23 * * *", hours(23)),
        ("0 0,23 * * 1-5", hours(49)),
        ("0 3 * * 0", hours(7 * 24)),
        ("0 3 * * 0,3", hours(4 * 24)),
        ("@every 1s", Some(Duration::from_secs(1))),
        ("@every 36h", hours(36)),
        ("@every 2000h", hours(2_000)),
        ("CRON_TZ=Asia/Tokyo 0 9-17 * * 1-5", hours(64)),
    ] {
        for moment in moments {
            let schedule = schedule("s", expression, false);
            let interval_found = longest_interval(&schedule, &TimeZone::UTC, at(moment));
            assert_eq!(interval_found, expected, "{expression} at {moment}");
        }
    }
}

#[test]
fn schedule_creation_time_is_exported() {
    let mut old = Arc::unwrap_or_clone(schedule("s", "0 1 * * *", false));
    let created = serde_json::from_value(json!("2026-11-01T00:00:00Z")).unwrap();
    old.metadata.creation_timestamp = Some(created);
    let gauges = gauges_of(&ObservedObjects {
        schedules: vec![Arc::new(old)],
        ..ObservedObjects::default()
    });
    assert_eq!(gauges.schedules["s"].created, Some(at("2026-11-01T00:00:00Z")));
}

#[test]
fn locations_are_exported_after_their_first_check() {
    let objects = ObservedObjects {
        locations: vec![
            location("a", &json!({"phase": "Available"})),
            location("b", &json!({"phase": "Unavailable"})),
            location("c", &json!({})),
            location("d", &json!({"phase": "Strange"})),
        ],
        ..ObservedObjects::default()
    };
    let expected = BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), false)]);
    assert_eq!(gauges_of(&objects).locations, expected);
}

#[test]
fn gauges_are_absent_until_all_kinds_are_listed() {
    let mut sources = ObjectSources::default();
    let (backups, mut backup_writer) = reflector::store();
    let (restores, mut restore_writer) = reflector::store();
    let (schedules, mut schedule_writer) = reflector::store();
    let (locations, mut location_writer) = reflector::store();
    sources.add(ObjectSource::Backups(backups));
    sources.add(ObjectSource::Restores(restores));
    sources.add(ObjectSource::Schedules(schedules));
    let first = Backup::clone(&backup("a", "", "New", None));
    backup_writer.apply_watcher_event(&Event::InitApply(first));
    backup_writer.apply_watcher_event(&Event::InitDone);
    restore_writer.apply_watcher_event(&Event::InitDone);
    schedule_writer.apply_watcher_event(&Event::InitDone);
    assert!(sources.snapshot().is_none(), "locations are not watched yet");
    sources.add(ObjectSource::Locations(locations));
    assert!(sources.snapshot().is_none(), "they are not listed yet");
    location_writer.apply_watcher_event(&Event::InitDone);
    assert_eq!(sources.snapshot().unwrap().backups.len(), 1);
}

#[test]
fn failed_location_sync_is_exported() {
    let with = |name: &str, status: &str| {
        let condition = json!({"type": "Synced", "status": status, "reason": "R", "message": "",
                               "lastTransitionTime": NOW});
        location(name, &json!({"phase": "Available", "conditions": [condition]}))
    };
    let never = location("never", &json!({"phase": "Available"}));
    let locations = vec![with("well", "True"), with("failing", "False"), never];
    let objects = ObservedObjects { locations, ..ObservedObjects::default() };
    let expected = [("failing".to_owned(), false), ("well".to_owned(), true)];
    assert_eq!(gauges_of(&objects).synced, expected.into());
}

#[test]
fn expected_intervals_are_cached_and_bounded() {
    let mut intervals = Intervals::default();
    let hourly = schedule("a", "@hourly", false);
    let hour = Some(Duration::from_hours(1));
    assert_eq!(intervals.get(&hourly, &TimeZone::UTC, at(NOW)), hour);
    // A mark that only a cached value has.
    intervals.0.get_mut("a").unwrap().longest = None;
    assert_eq!(intervals.get(&hourly, &TimeZone::UTC, at(NOW)), None, "it is not found out again");
    assert_eq!(intervals.get(&hourly, &TimeZone::UTC, at("2026-11-15T13:11:00Z")), hour);
    let changed = schedule("a", "@daily", false);
    assert_eq!(
        intervals.get(&changed, &TimeZone::UTC, at("2026-11-15T13:11:00Z")),
        Some(Duration::from_hours(24))
    );
    for number in 0..INTERVALS_MAX + 10 {
        intervals.get(&schedule(&number.to_string(), "@yearly", true), &TimeZone::UTC, at(NOW));
    }
    assert_eq!(intervals.0.len(), 1, "those that are paused have none");
    intervals.retain_schedules(&[]);
    assert!(intervals.0.is_empty());
}

#[test]
fn expected_intervals_are_computed_for_a_limited_number_of_schedules() {
    let mut intervals = Intervals::default();
    let mut interval_of = |number: usize| {
        let schedule = schedule(&number.to_string(), "@yearly", false);
        intervals.get(&schedule, &TimeZone::UTC, at(NOW))
    };
    assert!((0..INTERVALS_MAX).all(|number| interval_of(number).is_some()));
    assert_eq!(interval_of(INTERVALS_MAX), None, "one too many");
    assert!(interval_of(0).is_some(), "it is known");
    assert_eq!(intervals.0.len(), INTERVALS_MAX);
}
