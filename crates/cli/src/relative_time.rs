//! Times and durations, in the spellings of Velero.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Time as Go prints it: `2026-01-02 03:04:05 +0000 UTC`.
pub(crate) fn go_format(time: &Time) -> String {
    time.0.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()
}

/// Digits that sort by time, for names: `20260102030405`.
pub(crate) fn compact_digits(now: Timestamp) -> String {
    now.strftime("%Y%m%d%H%M%S").to_string()
}

/// Distance from now: `29d`, `2h ago`.
pub(crate) fn relative_to(time: Timestamp, now: Timestamp) -> String {
    let distance = time.duration_since(now);
    if distance.is_negative() {
        format!("{} ago", largest_unit(distance.abs()))
    } else {
        largest_unit(distance)
    }
}

/// Duration in its largest unit.
fn largest_unit(length: SignedDuration) -> String {
    match length.as_secs() {
        seconds @ ..MINUTE => format!("{seconds}s"),
        seconds @ MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ HOUR..DAY => format!("{}h", seconds / HOUR),
        seconds @ DAY..YEAR => format!("{}d", seconds / DAY),
        seconds @ YEAR.. => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_printed_as_go_does() {
        let time: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        assert_eq!(go_format(&Time(time)), "2026-01-02 03:04:05 +0000 UTC");
        assert_eq!(compact_digits(time), "20260102030405");
    }

    #[test]
    fn distances_are_printed_in_one_unit() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_400 * 30 - 1, "29d"),
            (86_400 * 366, "1y"),
            (-1, "1s ago"),
            (-7200, "2h ago"),
        ] {
            let time = Timestamp::from_second(1_000_000_000 + seconds).unwrap();
            assert_eq!(relative_to(time, now), expected, "{seconds}");
        }
    }
}
