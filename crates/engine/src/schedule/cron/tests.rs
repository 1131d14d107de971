use jiff::tz::Offset;
use proptest::prelude::*;
use serde::Deserialize;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// Output of `golden/main.go`.
#[derive(Deserialize)]
struct Golden {
    read: Vec<Row>,
    refused: Vec<String>,
    never: Vec<String>,
}

#[derive(Deserialize)]
struct Row {
    expression: String,
    local: String,
    after: String,
    next: Vec<String>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../tests/golden/cron.json")).unwrap()
}

#[test]
fn times_are_those_that_veleros_parser_finds() {
    let golden = golden();
    assert!(golden.read.len() > 500);
    for Row { expression, local, after, next } in golden.read {
        let cron: Cron = expression.parse().unwrap_or_else(|error| panic!("{expression}: {error}"));
        let (local, mut last) = (zone(&local), at(&after));
        for expected in next {
            let found = cron.next(last, &local).unwrap();
            assert_eq!(found, at(&expected), "{expression} after {last}");
            last = found;
        }
    }
}

#[test]
fn expressions_that_velero_refuses_or_that_never_fire_are_refused() {
    let golden = golden();
    assert!(golden.refused.len() > 30);
    for expression in golden.refused {
        assert!(expression.parse::<Cron>().is_err(), "{expression:?}");
    }
    assert!(golden.never.len() > 5);
    for expression in golden.never {
        assert_eq!(expression.parse::<Cron>(), Err(Error::Never), "{expression:?}");
    }
}

#[test]
fn refusal_names_the_problem_and_its_position() {
    for (expression, reason) in [
        ("", "found 0"),
        ("0 0 * * * *", "found 6"),
        ("@fortnightly", "unknown `@fortnightly`"),
        ("@every", "unknown `@every`"),
        ("@every 5", "missing unit in duration \"5\""),
        ("TZ=Europe/Berlin", "followed by a space"),
        ("TZ=europe/berlin 0 0 * * *", "unknown time zone `europe/berlin`"),
        ("TZ=../../etc/passwd 0 0 * * *", "unknown time zone"),
        ("60 * * * *", "60 in `60` is out of range: the minute is from 0 to 59"),
        ("* * 0 * *", "the day of the month is from 1 to 31"),
        ("* * * monday *", "`monday` in `monday` is not a number"),
        ("mon * * * *", "not a number, nor a name that is allowed there"),
        ("5-1 * * * *", "`5-1` ends before it begins"),
        ("* * * * fri-mon", "ends before it begins"),
        ("1-2-3 * * * *", "`1-2-3` has too many `-`"),
        ("*/2/3 * * * *", "has too many `/`"),
        ("*/0 * * * *", "the step in `*/0` must be at least 1"),
        ("*/-1 * * * *", "not a number"),
        ("0 0 31 2,4,6,9,11 *", "would never run"),
    ] {
        let error = expression.parse::<Cron>().unwrap_err().to_string();
        assert!(error.contains(reason), "{expression}: {error}");
    }
}

#[test]
fn a_time_that_the_clock_skips_does_not_come_and_one_that_it_shows_twice_comes_twice() {
    for (name, expression, after, expected) in [
        // The clock is set from 2 to 3 on this day.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
        ("Europe/Berlin", "0 3 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"),
        // The clock is set back from 3 to 2 on this day.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"),
        // By half an hour.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", "2026-10-04T15:15:00Z"),
        // A day without a midnight, and with a noon.
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00Z", "2018-11-05T02:00:00Z"),
        ("America/Sao_Paulo", "0 12 4 11 *", "2018-11-03T12:00:00Z", "2018-11-04T14:00:00Z"),
        // A day that was skipped altogether.
        ("Pacific/Apia", "0 0 30 12 *", "2011-12-01T00:00:00Z", "2012-12-29T10:00:00Z"),
        // Back over midnight: 00:00 occurs again after the last minute of the day before.
        ("America/St_Johns", "0 0 * * *", "2006-10-29T02:31:00Z", "2006-10-29T03:30:00Z"),
        ("America/St_Johns", "59 23 * * *", "2006-10-29T02:30:30Z", "2006-10-29T03:29:00Z"),
    ] {
        let cron: Cron = expression.parse().unwrap();
        let found = cron.next(at(after), &zone(name));
        assert_eq!(found, Some(at(expected)), "{name} {expression} after {after}");
    }
}

#[test]
fn the_29th_of_february_comes_in_leap_years_also_when_there_is_none_for_eight_years() {
    let cron: Cron = "0 0 29 2 *".parse().unwrap();
    for (after, expected) in [
        ("2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"),
        ("2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"),
    ] {
        assert_eq!(cron.next(at(after), &TimeZone::UTC), Some(at(expected)), "{after}");
    }
}

#[test]
fn a_pause_is_in_whole_seconds_and_ends_at_one() {
    for (expression, after, expected) in [
        ("@every 1h30m", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"),
        ("@every 90s", "2026-01-01T00:00:00.9Z", "2026-01-01T00:01:30Z"),
        ("@every 1.9s", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("@every 1ms", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("@every -5m", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("TZ=Asia/Tokyo @every 1m", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
    ] {
        let cron: Cron = expression.parse().unwrap();
        assert_eq!(cron.next(at(after), &TimeZone::UTC), Some(at(expected)), "{expression}");
    }
    let long: Cron = "@every 2562047h".parse().unwrap();
    assert!(long.next(Timestamp::MAX, &TimeZone::UTC).is_none(), "the end of time is no panic");
}

/// Time zones of the property tests, each with a year of an unusual change.
const ZONES: [(&str, &str); 7] = [
    ("UTC", "2028-01-01T00:00:00Z"),
    ("Europe/Berlin", "2026-01-01T00:00:00Z"),
    ("Australia/Lord_Howe", "2026-01-01T00:00:00Z"),
    ("America/Sao_Paulo", "2018-01-01T00:00:00Z"),
    ("America/St_Johns", "2006-01-01T00:00:00Z"),
    ("Pacific/Apia", "2011-06-01T00:00:00Z"),
    ("Asia/Kolkata", "2026-01-01T00:00:00Z"),
];

/// Value, list, range or step of a field.
fn field(min: u8, max: u8) -> impl Strategy<Value = String> {
    let value = min..=max;
    let range = (value.clone(), value.clone()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        3 => Just("*".to_owned()),
        2 => value.clone().prop_map(|value| value.to_string()),
        2 => (value.clone(), value.clone()).prop_map(|(a, b)| format!("{a},{b}")),
        1 => range.prop_map(|(from, to)| format!("{from}-{to}")),
        1 => (1..=max).prop_map(|step| format!("*/{step}")),
        1 => (value, 1..=max).prop_map(|(from, step)| format!("{from}/{step}")),
    ]
}

fn expressions() -> impl Strategy<Value = String> {
    // Frequent enough to occur within the searched days.
    (field(0, 59), field(0, 23), field(1, 28), Just("*"), field(0, 6))
        .prop_map(|(m, h, d, month, w)| format!("{m} {h} {d} {month} {w}"))
}

/// Checks the wall clock at every minute.
fn by_force(clock: &Clock, from: Timestamp, to: Timestamp, zone: &TimeZone) -> Vec<Timestamp> {
    let mut found = Vec::new();
    let mut moment = from;
    while moment < to {
        let shown = zone.to_datetime(moment);
        let is_it = clock.minutes.has(shown.minute())
            && clock.hours.has(shown.hour())
            && clock.has(shown.date())
            && shown.second() == 0;
        if is_it {
            found.push(moment);
        }
        moment += SignedDuration::from_mins(1);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn times_are_all_minutes_that_the_clock_shows(
        expression in expressions(), (name, year) in proptest::sample::select(&ZONES[..]),
        day in 0_i64..365,
    ) {
        let cron: Cron = expression.parse().unwrap();
        let Times::Wall { clock, .. } = &cron.0 else { unreachable!() };
        let zone = zone(name);
        let from = at(year) + SignedDuration::from_hours(24 * day);
        // Across the nearest change of the clock, if any.
        let from = zone.following(from).next().map_or(from, |change| {
            change.timestamp() - SignedDuration::from_hours(30)
        });
        let to = from + SignedDuration::from_hours(24 * 12);
        let expected = by_force(clock, from, to, &zone);
        let mut last = from - SignedDuration::from_secs(1);
        for expected in &expected {
            prop_assert_eq!(cron.next(last, &zone), Some(*expected), "after {}", last);
            last = *expected;
        }
        let next = cron.next(last, &zone);
        prop_assert!(next.is_some_and(|next| next >= to), "after {}: {:?}", last, next);
    }

    #[test]
    fn the_last_time_is_the_last_of_all(
        expression in expressions(), (name, year) in proptest::sample::select(&ZONES[..]),
        hours in 1_i64..400,
    ) {
        let cron: Cron = expression.parse().unwrap();
        let (zone, begin) = (zone(name), at(year));
        let now = begin + SignedDuration::from_hours(hours);
        let mut expected = None;
        let mut next = cron.next(begin, &zone);
        while let Some(time) = next.filter(|time| *time < now) {
            expected = Some(time);
            next = cron.next(time, &zone);
        }
        prop_assert_eq!(cron.last_before(now, begin, &zone), expected);
    }

    #[test]
    fn no_text_makes_it_panic(text in "(CRON_TZ=|TZ=)?[A-Za-z/]{0,4} ?[@*?/,0-9a-z -]{0,24}") {
        if let Ok(cron) = text.parse::<Cron>() {
            for moment in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
                let _ = cron.next(moment, &TimeZone::fixed(Offset::constant(14)));
            }
        }
    }
}
