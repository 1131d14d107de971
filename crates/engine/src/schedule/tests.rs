use serde_json::{Value, json};

use super::*;
use crate::report::error_text;

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
fn backup_is_due_after_its_time_and_missed_times_are_made_up_once() {
    let never = json!({});
    let ran = json!({"lastBackup": "2026-01-10T03:00:00Z"});
    let skipped =
        json!({"lastBackup": "2026-01-10T03:00:00Z", "lastSkipped": "2026-01-11T09:00:00Z"});
    let skipped_long_ago =
        json!({"lastBackup": "2026-01-10T03:00:00Z", "lastSkipped": "2026-01-09T09:00:00Z"});
    let in_the_future = json!({"lastBackup": "2026-03-01T00:00:00Z"});
    let skipped_in_the_future = json!({"lastSkipped": "2026-03-01T00:00:00Z"});
    let in_a_minute = json!({"lastBackup": "2026-01-15T03:00:10Z"});
    let (make, wait) =
        (|time| ScheduleDecision::CreateBackup(at(time)), |time| ScheduleDecision::Wait(at(time)));
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
        // A clock was ahead. The Schedule continues, and does not wait for that time.
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
        ("2026-01-10T03:00:17Z", ScheduleDecision::Wait(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:17.5Z", ScheduleDecision::CreateBackup(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:27Z", ScheduleDecision::CreateBackup(at("2026-01-10T03:00:17Z"))),
        ("2026-01-10T03:00:27.5Z", ScheduleDecision::CreateBackup(at("2026-01-10T03:00:27Z"))),
        ("2026-01-10T04:00:00Z", ScheduleDecision::CreateBackup(at("2026-01-10T03:59:57Z"))),
    ] {
        assert_eq!(decide(&schedule, &TimeZone::UTC, false, at(now)), expected, "{now}");
    }
}

#[test]
fn a_schedule_without_a_time_zone_means_that_of_the_server() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let now = at("2026-01-10T01:00:00Z");
    let decision = |spec| decide(&schedule(&spec, &json!({})), &berlin, false, now);
    assert_eq!(decision(json!({})), ScheduleDecision::Wait(at("2026-01-10T02:00:00Z")));
    let tokyo = json!({"schedule": "CRON_TZ=Asia/Tokyo 0 3 * * *"});
    assert_eq!(decision(tokyo), ScheduleDecision::Wait(at("2026-01-10T18:00:00Z")));
}

#[test]
fn paused_schedule_is_idle_and_invalid_schedule_is_refused() {
    let decision = |spec: Value| {
        decide(&schedule(&spec, &json!({})), &TimeZone::UTC, true, at("2026-01-20T00:00:00Z"))
    };
    assert_eq!(decision(json!({"paused": true, "schedule": "nonsense"})), ScheduleDecision::Idle);
    let empty = InvalidSchedule::Empty;
    assert_eq!(error_text(&empty), "Schedule must be a non-empty valid Cron expression");
    assert_eq!(decision(json!({"schedule": ""})), ScheduleDecision::Refuse(empty));
    for (expression, part) in [
        ("* * * *", "found 4"),
        ("0 0 30 2 *", "never"),
        ("0 0 * * 7", "7 in `7` is out of range: the day of the week is from 0 to 6"),
        ("@every soon", "soon"),
        ("CRON_TZ=Mars/Olympus * * * * *", "Mars/Olympus"),
    ] {
        let ScheduleDecision::Refuse(reason) = decision(json!({"schedule": expression})) else {
            panic!("{expression}");
        };
        let reason = error_text(&reason);
        assert!(reason.starts_with("invalid schedule: ") && reason.contains(part), "{reason}");
    }
    let mut leaving = schedule(&json!({}), &json!({}));
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    let now = at("2026-01-20T00:00:00Z");
    assert_eq!(decide(&leaving, &TimeZone::UTC, false, now), ScheduleDecision::Idle);
}

#[test]
fn skip_immediately_comes_from_the_schedule_else_from_the_server() {
    for (requested, skips, expected) in [
        (json!(true), false, Some(true)),
        (json!(true), true, Some(true)),
        (json!(null), true, Some(true)),
        (json!(null), false, Some(false)),
        (json!(false), true, None),
    ] {
        let spec = json!({"skipImmediately": requested});
        let schedule = schedule(&spec, &json!({}));
        let decision = decide(&schedule, &TimeZone::UTC, skips, at("2026-01-20T00:00:00Z"));
        match expected {
            Some(skip) => {
                assert_eq!(decision, ScheduleDecision::RecordSkip { skip }, "{requested} {skips}");
            }
            None => assert!(
                matches!(decision, ScheduleDecision::CreateBackup(_)),
                "{requested} {skips}"
            ),
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
    let created = backup(&schedule, at("2026-01-11T03:00:00Z"));
    assert_eq!(created.name_any(), "nightly-20260111030000");
    assert_eq!(created.namespace().as_deref(), Some("velero"));
    assert_eq!(created.spec, schedule.spec.template);
    let labels = json!({"team": "a", "velero.io/schedule-name": "nightly"});
    assert_eq!(json!(created.labels()), labels);
    assert_eq!(json!(created.annotations()), json!({"bowline.io/snapshot-type": "local"}));
    assert!(created.owner_references().is_empty());

    schedule.spec.use_owner_references_in_backup = Some(true);
    schedule.spec.template.metadata.labels.insert("tier".to_owned(), "gold".to_owned());
    let created = backup(&schedule, at("2026-01-11T03:00:00Z"));
    let labels = json!({"tier": "gold", "velero.io/schedule-name": "nightly"});
    assert_eq!(json!(created.labels()), labels);
    let owner = json!([{
        "apiVersion": "velero.io/v1", "kind": "Schedule", "name": "nightly", "uid": "u",
        "controller": true,
    }]);
    assert_eq!(json!(created.owner_references()), owner);
}

#[test]
fn backup_of_another_cluster_does_not_block_a_scheduled_time() {
    let mut schedule = schedule(&json!({}), &json!({}));
    let time = at("2026-01-11T03:00:00Z");
    let (usual, other) = ("nightly-20260111030000", "nightly-20260111030000-3f9f3c1e");
    let ours = |name: &str| read(json!({"metadata": {"name": name}, "spec": {}}));
    let theirs = |name: &str| {
        let annotations = json!({"bowline.io/record-uid": "x"});
        read(json!({"metadata": {"name": name, "annotations": annotations}, "spec": {}}))
    };
    let make = || BackupNaming::Create(usual.to_owned());
    let renamed =
        || BackupNaming::CreateRenamed { name: other.to_owned(), usual_name: usual.to_owned() };
    for (uid, backups, expected) in [
        ("3f9f3c1e-0000-4000-8000-000000000001", vec![], make()),
        ("", vec![], make()),
        ("3f9f3c1e-0000", vec![ours("nightly-20260110030000")], make()),
        ("3f9f3c1e-0000", vec![theirs("nightly-20260110030000")], make()),
        ("3f9f3c1e-0000", vec![ours(usual)], BackupNaming::Exists),
        ("3f9f3c1e-0000", vec![theirs(usual)], renamed()),
        ("3f9f3c1e-0000", vec![theirs(usual), theirs("nightly-20260111030000-aaaa")], renamed()),
        // A server that ended before it recorded that.
        ("3f9f3c1e-0000", vec![theirs(usual), ours(other)], BackupNaming::Exists),
        // The other cluster has deleted its backup since.
        ("3f9f3c1e-0000", vec![ours(other)], BackupNaming::Exists),
        (
            "3f9f3c1e-0000",
            vec![theirs(usual), theirs(other)],
            BackupNaming::NoFreeName(other.to_owned()),
        ),
        ("", vec![theirs(usual)], BackupNaming::NoFreeName(usual.to_owned())),
    ] {
        schedule.metadata.uid = (!uid.is_empty()).then(|| uid.to_owned());
        assert_eq!(naming(&schedule, time, &backups), expected, "{uid} {backups:?}");
    }
}

fn read(backup: Value) -> Backup {
    serde_json::from_value(backup).unwrap()
}

#[test]
fn next_backup_waits_for_one_that_is_new_queued_or_in_progress() {
    let holding: Vec<&str> = BackupPhase::KNOWN
        .iter()
        .copied()
        .filter(|phase| {
            let mut backup = Backup::default();
            backup.status.get_or_insert_default().phase = Some((*phase).into());
            blocks_next(&backup)
        })
        .collect();
    assert_eq!(holding, ["New", "Queued", "ReadyToStart", "InProgress"]);
    assert!(blocks_next(&Backup::default()));
}
