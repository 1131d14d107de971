use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A Schedule that was created at midnight.
fn schedule(spec: &Value, status: &Value) -> Schedule {
    let mut schedule = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Schedule",
        "metadata": {
            "name": "nightly", "namespace": "velero", "uid": "u",
            "creationTimestamp": "2026-01-10T00:00:00Z",
        },
        "spec": {"schedule": "0 3 * * *", "template": {}, "skipImmediately": false},
        "status": status,
    });
    for (key, value) in spec.as_object().unwrap() {
        schedule["spec"][key] = value.clone();
    }
    serde_json::from_value(schedule).unwrap()
}

#[test]
fn a_backup_is_due_once_its_time_has_passed_and_what_was_missed_is_made_up_for_once() {
    let never = json!({});
    let ran = json!({"lastBackup": "2026-01-10T03:00:00Z"});
    let skipped =
        json!({"lastBackup": "2026-01-10T03:00:00Z", "lastSkipped": "2026-01-11T09:00:00Z"});
    let skipped_long_ago =
        json!({"lastBackup": "2026-01-10T03:00:00Z", "lastSkipped": "2026-01-09T09:00:00Z"});
    let in_the_future = json!({"lastBackup": "2026-03-01T00:00:00Z"});
    let skipped_in_the_future = json!({"lastSkipped": "2026-03-01T00:00:00Z"});
    let in_a_minute = json!({"lastBackup": "2026-01-15T03:00:10Z"});
    let (make, wait) = (|time| Verdict::Make(at(time)), |time| Verdict::Wait(at(time)));
    for (status, now, expected) in [
        (&never, "2026-01-10T00:00:00Z", wait("2026-01-10T03:00:00Z")),
        // Not in the very instant, as in Velero.
        (&never, "2026-01-10T03:00:00Z", wait("2026-01-10T03:00:00Z")),
        (&never, "2026-01-10T03:00:00.001Z", make("2026-01-10T03:00:00Z")),
        (&never, "2026-01-10T23:00:00Z", make("2026-01-10T03:00:00Z")),
        (&never, "2026-01-15T02:00:00Z", make("2026-01-14T03:00:00Z")),
        (&ran, "2026-01-10T23:00:00Z", wait("2026-01-11T03:00:00Z")),
        (&ran, "2026-01-15T04:00:00Z", make("2026-01-15T03:00:00Z")),
        (&skipped, "2026-01-11T10:00:00Z", wait("2026-01-12T03:00:00Z")),
        (&skipped_long_ago, "2026-01-11T10:00:00Z", make("2026-01-11T03:00:00Z")),
        // A clock was ahead. It goes on all the same, and not when that time has come.
        (&in_the_future, "2026-01-15T04:00:00Z", make("2026-01-15T03:00:00Z")),
        (&skipped_in_the_future, "2026-01-15T04:00:00Z", make("2026-01-15T03:00:00Z")),
        // Clocks differ a little.
        (&in_a_minute, "2026-01-15T02:59:30Z", wait("2026-01-16T03:00:00Z")),
    ] {
        let schedule = schedule(&json!({}), status);
        assert_eq!(decide(&schedule, &TimeZone::UTC, false, at(now)), expected, "{status} {now}");
    }
}

#[test]
fn a_fixed_pause_counts_from_the_last_backup() {
    let spec = json!({"schedule": "@every 10s"});
    let schedule = schedule(&spec, &json!({"lastBackup": "2026-01-10T03:00:07Z"}));
    for (now, expected) in [
        ("2026-01-10T03:00:17Z", Verdict::Wait(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:17.5Z", Verdict::Make(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:27Z", Verdict::Make(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:27.5Z", Verdict::Make(at("2026-01-10T03:00:27Z"))),
        ("2026-01-10T04:00:00Z", Verdict::Make(at("2026-01-10T03:59:57Z"))),
    ] {
        assert_eq!(decide(&schedule, &TimeZone::UTC, false, at(now)), expected, "{now}");
    }
}

#[test]
fn a_schedule_without_a_time_zone_means_that_of_the_server() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let now = at("2026-01-10T01:00:00Z");
    let verdict = |spec| decide(&schedule(&spec, &json!({})), &berlin, false, now);
    assert_eq!(verdict(json!({})), Verdict::Wait(at("2026-01-10T02:00:00Z")));
    let tokyo = json!({"schedule": "CRON_TZ=Asia/Tokyo 0 3 * * *"});
    assert_eq!(verdict(tokyo), Verdict::Wait(at("2026-01-10T18:00:00Z")));
}

#[test]
fn what_is_paused_rests_and_what_is_wrong_is_refused() {
    let verdict = |spec: Value| {
        decide(&schedule(&spec, &json!({})), &TimeZone::UTC, true, at("2026-01-20T00:00:00Z"))
    };
    assert_eq!(verdict(json!({"paused": true, "schedule": "nonsense"})), Verdict::Rest);
    let empty = "Schedule must be a non-empty valid Cron expression".to_owned();
    assert_eq!(verdict(json!({"schedule": ""})), Verdict::Refuse(empty));
    for (expression, part) in [
        ("* * * *", "found 4"),
        ("0 0 30 2 *", "never"),
        ("0 0 * * 7", "7 in `7` is out of range: the day of the week is from 0 to 6"),
        ("@every soon", "soon"),
        ("CRON_TZ=Mars/Olympus * * * * *", "Mars/Olympus"),
    ] {
        let Verdict::Refuse(reason) = verdict(json!({"schedule": expression})) else {
            panic!("{expression}");
        };
        assert!(reason.starts_with("invalid schedule: ") && reason.contains(part), "{reason}");
    }
    let mut leaving = schedule(&json!({}), &json!({}));
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    let now = at("2026-01-20T00:00:00Z");
    assert_eq!(decide(&leaving, &TimeZone::UTC, false, now), Verdict::Rest);
}

#[test]
fn whether_to_skip_is_settled_first_by_the_schedule_or_else_by_the_server() {
    for (asked, skips, expected) in [
        (json!(true), false, Some(true)),
        (json!(true), true, Some(true)),
        (json!(null), true, Some(true)),
        (json!(null), false, Some(false)),
        (json!(false), true, None),
    ] {
        let spec = json!({"skipImmediately": asked});
        let schedule = schedule(&spec, &json!({}));
        let verdict = decide(&schedule, &TimeZone::UTC, skips, at("2026-01-20T00:00:00Z"));
        match expected {
            Some(skip) => assert_eq!(verdict, Verdict::Settle { skip }, "{asked} {skips}"),
            None => assert!(matches!(verdict, Verdict::Make(_)), "{asked} {skips}"),
        }
    }
}

#[test]
fn a_backup_is_made_of_the_template_and_carries_what_the_schedule_says() {
    let mut schedule = schedule(
        &json!({"template": {"includedNamespaces": ["shop"], "ttl": "48h0m0s"}}),
        &json!({}),
    );
    schedule.labels_mut().insert("team".to_owned(), "a".to_owned());
    let keys =
        [annotation::SNAPSHOT_TYPE, annotation::CANCEL, annotation::RECORD_UID, LAST_APPLIED];
    for key in keys {
        schedule.annotations_mut().insert(key.to_owned(), "local".to_owned());
    }
    let made = backup(&schedule, at("2026-01-11T03:00:00Z"));
    assert_eq!(made.name_any(), "nightly-20260111030000");
    assert_eq!(made.namespace().as_deref(), Some("velero"));
    assert_eq!(made.spec, schedule.spec.template);
    let labels = json!({"team": "a", "velero.io/schedule-name": "nightly"});
    assert_eq!(json!(made.labels()), labels);
    assert_eq!(json!(made.annotations()), json!({"bowline.io/snapshot-type": "local"}));
    assert!(made.owner_references().is_empty());

    schedule.spec.use_owner_references_in_backup = Some(true);
    schedule.spec.template.metadata.labels.insert("tier".to_owned(), "gold".to_owned());
    let made = backup(&schedule, at("2026-01-11T03:00:00Z"));
    let labels = json!({"tier": "gold", "velero.io/schedule-name": "nightly"});
    assert_eq!(json!(made.labels()), labels);
    let owner = json!([{
        "apiVersion": "velero.io/v1", "kind": "Schedule", "name": "nightly", "uid": "u",
        "controller": true,
    }]);
    assert_eq!(json!(made.owner_references()), owner);
}

#[test]
fn a_backup_of_another_cluster_keeps_no_time_of_this_one() {
    let mut schedule = schedule(&json!({}), &json!({}));
    let time = at("2026-01-11T03:00:00Z");
    let (usual, other) = ("nightly-20260111030000", "nightly-20260111030000-3f9f3c1e");
    let ours = |name: &str| read(json!({"metadata": {"name": name}, "spec": {}}));
    let theirs = |name: &str| {
        let annotations = json!({"bowline.io/record-uid": "x"});
        read(json!({"metadata": {"name": name, "annotations": annotations}, "spec": {}}))
    };
    let make = || Naming::Make(usual.to_owned());
    let instead = || Naming::MakeInstead { name: other.to_owned(), taken: usual.to_owned() };
    for (uid, backups, expected) in [
        ("3f9f3c1e-0000-4000-8000-000000000001", vec![], make()),
        ("", vec![], make()),
        ("3f9f3c1e-0000", vec![ours("nightly-20260110030000")], make()),
        ("3f9f3c1e-0000", vec![theirs("nightly-20260110030000")], make()),
        ("3f9f3c1e-0000", vec![ours(usual)], Naming::Made),
        ("3f9f3c1e-0000", vec![theirs(usual)], instead()),
        ("3f9f3c1e-0000", vec![theirs(usual), theirs("nightly-20260111030000-aaaa")], instead()),
        // A server that ended before it noted that.
        ("3f9f3c1e-0000", vec![theirs(usual), ours(other)], Naming::Made),
        // And theirs has gone since.
        ("3f9f3c1e-0000", vec![ours(other)], Naming::Made),
        ("3f9f3c1e-0000", vec![theirs(usual), theirs(other)], Naming::Taken(other.to_owned())),
        ("", vec![theirs(usual)], Naming::Taken(usual.to_owned())),
    ] {
        schedule.metadata.uid = (!uid.is_empty()).then(|| uid.to_owned());
        assert_eq!(naming(&schedule, time, &backups), expected, "{uid} {backups:?}");
    }
}

fn read(backup: Value) -> Backup {
    serde_json::from_value(backup).unwrap()
}

#[test]
fn the_next_backup_waits_for_one_that_has_not_begun_or_is_in_progress() {
    let holding: Vec<&str> = BackupPhase::KNOWN
        .iter()
        .copied()
        .filter(|phase| {
            let mut backup = Backup::default();
            backup.status.get_or_insert_default().phase = Some((*phase).into());
            holds(&backup)
        })
        .collect();
    assert_eq!(holding, ["New", "Queued", "ReadyToStart", "InProgress"]);
    assert!(holds(&Backup::default()));
}
