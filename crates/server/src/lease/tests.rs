use super::object::whole_seconds;
use super::record::{LeaseLoss, LeaseOwnership, ownership};
use super::*;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

fn record(spec: &Value) -> LeaseRecord {
    let lease = json!({"metadata": {"resourceVersion": "7"}, "spec": spec});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    LeaseRecord::of(lease, 15 * SECOND)
}

#[test]
fn lease_is_acquired_only_if_missing_free_own_or_expired() {
    let of = |holder: &str| json!({"holderIdentity": holder, "leaseDurationSeconds": 20});
    let wait = |holder, seconds| LeaseDecision::Wait { holder, remaining: seconds * SECOND };
    let free = || LeaseDecision::Acquire(AcquireReason::Free);
    let silent = |seconds| LeaseDecision::Acquire(AcquireReason::Expired(seconds * SECOND));
    let observed = Instant::now();
    for (spec, silent_for, expected) in [
        (None, 0, LeaseDecision::Acquire(AcquireReason::Missing)),
        (Some(json!(null)), 0, free()),
        (Some(json!({})), 0, free()),
        (Some(json!({"holderIdentity": null, "leaseDurationSeconds": 20})), 0, free()),
        (Some(of("")), 0, free()),
        (Some(of("us")), 0, LeaseDecision::Acquire(AcquireReason::OwnIdentity)),
        (Some(of("us ")), 0, wait("us ", 20)),
        (Some(of("them")), 0, wait("them", 20)),
        (Some(of("them")), 19, wait("them", 1)),
        (Some(of("them")), 20, silent(20)),
        (Some(of("them")), 900, silent(900)),
        // Missing or invalid duration: the same as ours.
        (Some(json!({"holderIdentity": "them"})), 14, wait("them", 1)),
        (Some(json!({"holderIdentity": "them"})), 15, silent(15)),
        (Some(json!({"holderIdentity": "them", "leaseDurationSeconds": -1})), 1, wait("them", 14)),
    ] {
        let record = spec.as_ref().map(record);
        let now = observed + silent_for * SECOND;
        let decision = decide(record.as_ref(), "us", observed, now);
        assert_eq!(decision, expected, "{spec:?} {silent_for}");
    }
}

#[test]
fn timestamps_in_the_lease_are_ignored() {
    let spec = |time: &str| json!({"holderIdentity": "them", "leaseDurationSeconds": 20, "renewTime": time});
    let now = Instant::now();
    for time in ["1990-01-01T00:00:00.000000Z", "2990-01-01T00:00:00.000000Z"] {
        let record = record(&spec(time));
        let decision = decide(Some(&record), "us", now, now);
        assert_eq!(
            decision,
            LeaseDecision::Wait { holder: "them", remaining: 20 * SECOND },
            "{time}"
        );
    }
}

#[test]
fn expiry_counts_from_the_first_observation_of_a_version() {
    let begin = Instant::now();
    let at = |seconds: u32| begin + seconds * SECOND;
    let version = |version: &str| LeaseRecord { version: version.to_owned(), ..record(&json!({})) };
    let mut observation = LeaseObservation::default();
    for (second, version, since) in [
        (0, Some(version("7")), 0),
        (5, Some(version("7")), 0),
        (6, Some(version("8")), 6),
        (9, Some(version("8")), 6),
        // Versions are opaque, and only compared for equality.
        (10, Some(version("7")), 10),
        (11, None, 11),
        (12, Some(version("7")), 12),
    ] {
        assert_eq!(
            observation.unchanged_since(version.as_ref(), at(second)),
            at(since),
            "at {second}"
        );
    }
}

#[test]
fn every_acquisition_increments_transitions() {
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
        let expected = LeaseTerm { holder: "us".to_owned(), acquired: Some(now), transitions };
        assert_eq!(LeaseTerm::after(before.as_ref(), "us", now), expected, "{before:?}");
    }
}

#[test]
fn own_lease_is_kept_until_another_server_has_held_it() {
    let (acquired, later) = ("2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z");
    let of = |holder: &str, acquired: &str, transitions: i32| {
        record(&json!({
            "holderIdentity": holder, "acquireTime": acquired, "leaseTransitions": transitions,
        }))
    };
    let own_term = of("us", acquired, 3).term;
    let lost = LeaseOwnership::Lost;
    for (found, expected) in [
        (None, LeaseOwnership::Owned),
        (Some(of("us", acquired, 3)), LeaseOwnership::Owned),
        (Some(of("", acquired, 3)), LeaseOwnership::Owned),
        (Some(of("", acquired, 4)), lost(LeaseLoss::TakenAndReleased)),
        (Some(of("", later, 3)), lost(LeaseLoss::TakenAndReleased)),
        (Some(of("them", acquired, 3)), lost(LeaseLoss::HeldByOther("them".to_owned()))),
        (Some(of("them", later, 4)), lost(LeaseLoss::HeldByOther("them".to_owned()))),
        (Some(of("us", acquired, 4)), lost(LeaseLoss::SameIdentity)),
        // Deleted, and acquired by a server of the same identity that counts from the beginning.
        (Some(of("us", later, 3)), lost(LeaseLoss::SameIdentity)),
    ] {
        assert_eq!(ownership(found.as_ref(), &own_term), expected, "{found:?}");
    }
}

#[test]
fn holder_is_logged_when_new_and_then_every_minute() {
    let begin = Instant::now();
    let mut throttle = LogThrottle::default();
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
        assert_eq!(throttle.is_due(holder, begin + second * SECOND), expected, "at {second}");
    }
}

#[test]
fn lease_timings_must_be_ordered() {
    LeaseTimings::default().check().unwrap();
    for (renew, give_up, duration, expected) in [
        (2, 10, 15, true),
        (0, 10, 15, false),
        (10, 10, 15, false),
        (2, 15, 15, false),
        (2, 10, 600, true),
        (2, 10, 601, false),
    ] {
        let [renew, give_up, duration] = [renew, give_up, duration].map(Duration::from_secs);
        let terms = LeaseTimings { duration, renew_interval: renew, renew_deadline: give_up };
        assert_eq!(terms.check().is_ok(), expected, "{terms:?}");
    }
}

#[test]
fn lease_duration_is_rounded_up_to_seconds() {
    for (millis, seconds) in [(1, 1), (1000, 1), (1001, 2), (15_000, 15), (u64::MAX, i32::MAX)] {
        assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
    }
}
