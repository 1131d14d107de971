use super::object::whole_seconds;
use super::record::{Loss, Standing, standing};
use super::*;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

fn record(spec: &Value) -> Record {
    let lease = json!({"metadata": {"resourceVersion": "7"}, "spec": spec});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    Record::of(lease, 15 * SECOND)
}

#[test]
fn a_lease_is_taken_only_where_nobody_else_can_have_it() {
    let of = |holder: &str| json!({"holderIdentity": holder, "leaseDurationSeconds": 20});
    let wait = |holder, seconds| Verdict::Wait { holder, left: seconds * SECOND };
    let free = || Verdict::Take(Why::Free);
    let silent = |seconds| Verdict::Take(Why::Silent(seconds * SECOND));
    let seen = Instant::now();
    for (spec, silent_for, expected) in [
        (None, 0, Verdict::Take(Why::Missing)),
        (Some(json!(null)), 0, free()),
        (Some(json!({})), 0, free()),
        (Some(json!({"holderIdentity": null, "leaseDurationSeconds": 20})), 0, free()),
        (Some(of("")), 0, free()),
        (Some(of("us")), 0, Verdict::Take(Why::OurOwn)),
        (Some(of("us ")), 0, wait("us ", 20)),
        (Some(of("them")), 0, wait("them", 20)),
        (Some(of("them")), 19, wait("them", 1)),
        (Some(of("them")), 20, silent(20)),
        (Some(of("them")), 900, silent(900)),
        // How long it lasts is not said, or nonsense: as long as ours.
        (Some(json!({"holderIdentity": "them"})), 14, wait("them", 1)),
        (Some(json!({"holderIdentity": "them"})), 15, silent(15)),
        (Some(json!({"holderIdentity": "them", "leaseDurationSeconds": -1})), 1, wait("them", 14)),
    ] {
        let record = spec.as_ref().map(record);
        let now = seen + silent_for * SECOND;
        let verdict = decide(record.as_ref(), "us", seen, now);
        assert_eq!(verdict, expected, "{spec:?} {silent_for}");
    }
}

#[test]
fn the_times_in_a_lease_do_not_count() {
    let spec = |time: &str| json!({"holderIdentity": "them", "leaseDurationSeconds": 20, "renewTime": time});
    let now = Instant::now();
    for time in ["1990-01-01T00:00:00.000000Z", "2990-01-01T00:00:00.000000Z"] {
        let record = record(&spec(time));
        let verdict = decide(Some(&record), "us", now, now);
        assert_eq!(verdict, Verdict::Wait { holder: "them", left: 20 * SECOND }, "{time}");
    }
}

#[test]
fn silence_is_counted_from_when_a_version_was_first_seen() {
    let begin = Instant::now();
    let at = |seconds: u32| begin + seconds * SECOND;
    let version = |version: &str| Record { version: version.to_owned(), ..record(&json!({})) };
    let mut sight = Sight::default();
    for (second, seen, since) in [
        (0, Some(version("7")), 0),
        (5, Some(version("7")), 0),
        (6, Some(version("8")), 6),
        (9, Some(version("8")), 6),
        // Versions are not numbers to us; another is another.
        (10, Some(version("7")), 10),
        (11, None, 11),
        (12, Some(version("7")), 12),
    ] {
        assert_eq!(sight.since(seen.as_ref(), at(second)), at(since), "at {second}");
    }
}

#[test]
fn each_taking_is_counted_also_from_ourselves() {
    let now = Timestamp::UNIX_EPOCH;
    let of = |holder, transitions| {
        record(&json!({"holderIdentity": holder, "leaseTransitions": transitions}))
    };
    for (before, transitions) in [
        (None, 0),
        (Some(record(&json!({}))), 1),
        (Some(of("them", 4)), 5),
        (Some(of("us", 4)), 5),
        (Some(of("them", i32::MAX)), i32::MAX),
    ] {
        let expected = Term { holder: "us".to_owned(), acquired: Some(now), transitions };
        assert_eq!(Term::after(before.as_ref(), "us", now), expected, "{before:?}");
    }
}

#[test]
fn a_lease_that_was_ours_is_ours_until_somebody_else_has_had_it() {
    let (taken, later) = ("2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z");
    let of = |holder: &str, acquired: &str, transitions: i32| {
        record(&json!({
            "holderIdentity": holder, "acquireTime": acquired, "leaseTransitions": transitions,
        }))
    };
    let ours = of("us", taken, 3).term;
    let lost = Standing::Lost;
    for (found, expected) in [
        (None, Standing::Ours),
        (Some(of("us", taken, 3)), Standing::Ours),
        (Some(of("", taken, 3)), Standing::Ours),
        (Some(of("", taken, 4)), lost(Loss::Passed)),
        (Some(of("", later, 3)), lost(Loss::Passed)),
        (Some(of("them", taken, 3)), lost(Loss::Taken("them".to_owned()))),
        (Some(of("them", later, 4)), lost(Loss::Taken("them".to_owned()))),
        (Some(of("us", taken, 4)), lost(Loss::Namesake)),
        // Deleted, and taken by a namesake that begins to count anew.
        (Some(of("us", later, 3)), lost(Loss::Namesake)),
    ] {
        assert_eq!(standing(found.as_ref(), &ours), expected, "{found:?}");
    }
}

#[test]
fn the_holder_is_named_when_it_is_new_and_then_each_minute() {
    let begin = Instant::now();
    let mut herald = Herald::default();
    for (second, holder, expected) in [
        (0, "a", true),
        (1, "a", false),
        (59, "a", false),
        (60, "a", true),
        (61, "a", false),
        (62, "b", true),
        (121, "b", false),
        (122, "b", true),
    ] {
        assert_eq!(herald.is_due(holder, begin + second * SECOND), expected, "at {second}");
    }
}

#[test]
fn terms_must_leave_time_to_renew_and_to_stop() {
    Terms::default().check().unwrap();
    for (renew, give_up, duration, expected) in [
        (2, 10, 15, true),
        (0, 10, 15, false),
        (10, 10, 15, false),
        (2, 15, 15, false),
        (2, 10, 600, true),
        (2, 10, 601, false),
    ] {
        let [renew, give_up, duration] = [renew, give_up, duration].map(Duration::from_secs);
        let terms = Terms { duration, renew, give_up };
        assert_eq!(terms.check().is_ok(), expected, "{terms:?}");
    }
}

#[test]
fn others_never_wait_for_less_than_the_duration() {
    for (millis, seconds) in [(1, 1), (1000, 1), (1001, 2), (15_000, 15), (u64::MAX, i32::MAX)] {
        assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
    }
}
