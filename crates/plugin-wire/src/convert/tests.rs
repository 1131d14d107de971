use super::*;

#[test]
fn unset_or_invalid_times_are_none() {
    let cases = [
        (GO_ZERO_TIME_SECONDS, 0, None),
        (GO_ZERO_TIME_SECONDS, 5, None),
        (GO_ZERO_TIME_SECONDS - 1, 0, None),
        (GO_ZERO_TIME_SECONDS + 1, 0, Some("0001-01-01T00:00:01Z")),
        (0, 0, Some("1970-01-01T00:00:00Z")),
        (1_700_000_000, 123_456_789, Some("2023-11-14T22:13:20.123456789Z")),
        (-1, 500_000_000, Some("1969-12-31T23:59:59.5Z")),
        (1_700_000_000, -1, None),
        (1_700_000_000, NANOS_PER_SECOND, None),
        (1_700_000_000, i32::MAX, None),
        (i64::MAX, 0, None),
        (i64::MIN, i32::MIN, None),
        (253_402_300_800, 0, None),
    ];
    for (seconds, nanos, expected) in cases {
        let got = timestamp(prost_types::Timestamp { seconds, nanos });
        let expected = expected.map(|text| text.parse().unwrap());
        assert_eq!(got, expected, "{seconds} s {nanos} ns");
        if expected.is_some() {
            assert_eq!(to_timestamp(got), prost_types::Timestamp { seconds, nanos });
        }
    }
    assert_eq!(
        to_timestamp(None),
        prost_types::Timestamp { seconds: GO_ZERO_TIME_SECONDS, nanos: 0 }
    );
}

#[test]
fn unset_or_invalid_waits_are_none() {
    let cases = [
        (0, 0, None),
        (0, 1, Some(Duration::from_nanos(1))),
        (90, 500_000_000, Some(Duration::from_millis(90_500))),
        (-1, 0, None),
        (0, -1, None),
        (i64::MIN, i32::MIN, None),
        (1, NANOS_PER_SECOND, None),
        (i64::MAX, 999_999_999, Some(MAX_WAIT)),
    ];
    for (seconds, nanos, expected) in cases {
        let got = wait(Some(prost_types::Duration { seconds, nanos }));
        assert_eq!(got, expected, "{seconds} s {nanos} ns");
        assert_eq!(wait(to_wait(expected)), expected);
    }
    assert_eq!(wait(None), None);
    assert_eq!(wait(to_wait(Some(Duration::MAX))), Some(MAX_WAIT));
}

#[test]
fn progress_round_trips_and_always_sends_its_times() {
    let states = [State::Running, State::Succeeded, State::Failed("disk full".into())];
    for state in states {
        for started in [None, Some(Timestamp::UNIX_EPOCH), "2026-01-02T03:04:05.6Z".parse().ok()] {
            let sent = Progress {
                state: state.clone(),
                done: 3,
                total: i64::MAX,
                units: "Bytes".into(),
                description: "uploading".into(),
                started,
                updated: started,
            };
            let wire = to_progress(sent.clone()).unwrap();
            assert!(wire.started.is_some() && wire.updated.is_some());
            assert_eq!(progress(wire), sent);
        }
    }
}

#[test]
fn failure_without_a_reason_is_still_a_failure() {
    let failed = Progress { state: State::Failed(String::new()), ..Progress::default() };
    let got = progress(to_progress(failed).unwrap());
    assert_eq!(got.state, State::Failed("the plugin gave no reason".into()));
}

#[test]
fn invalid_progress_values_are_dropped() {
    let wire = wire::OperationProgress {
        completed: false,
        err: "not yet an error".into(),
        n_completed: -1,
        n_total: i64::MIN,
        started: None,
        updated: Some(prost_types::Timestamp { seconds: i64::MAX, nanos: -1 }),
        ..Default::default()
    };
    assert_eq!(progress(wire), Progress::default());
}

#[test]
fn zero_iops_are_unset() {
    for (wire, expected) in [(0, None), (-5, None), (1, Some(1)), (i64::MAX, Some(i64::MAX))] {
        assert_eq!(iops(wire), expected);
    }
}
