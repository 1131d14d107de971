//! When a schedule makes its next backup.

use std::fmt;

use bowline_api::Schedule;
use bowline_engine::schedule::{self, Verdict};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::moment;

/// When the next backup of a schedule is made, as far as that can be told from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Never, as it is.
    Never,
    /// As soon as the server gets to it.
    Now,
    /// Then.
    At(Timestamp),
}

impl Next {
    /// What the server will decide. A schedule that names no time zone means that of the server, which in a pod
    /// is UTC.
    pub(super) fn of(schedule: &Schedule, now: Timestamp) -> Self {
        match schedule::decide(&settled(schedule, now), &TimeZone::UTC, false, now) {
            Verdict::Rest | Verdict::Refuse(_) | Verdict::Settle { .. } => Self::Never,
            Verdict::Make(_) => Self::Now,
            Verdict::Wait(then) => Self::At(then),
        }
    }

    /// How far away it is.
    pub(super) fn distance(self, now: Timestamp) -> String {
        match self {
            Self::Never => "n/a".to_owned(),
            Self::Now => "now".to_owned(),
            Self::At(then) => moment::distance(then, now),
        }
    }

    /// For programs.
    pub(super) fn time(self) -> Option<Time> {
        match self {
            Self::At(then) => Some(Time(then)),
            Self::Never | Self::Now => None,
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("<never>"),
            Self::Now => f.write_str("now"),
            Self::At(then) => f.write_str(&moment::text(&Time(*then))),
        }
    }
}

/// The schedule once the server has noted whether the time until now is left out, which it does first.
fn settled(schedule: &Schedule, now: Timestamp) -> Schedule {
    let mut settled = schedule.clone();
    if schedule.spec.skip_immediately == Some(true) {
        settled.status.get_or_insert_default().last_skipped = Some(Time(now));
    }
    settled.spec.skip_immediately = Some(false);
    settled
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_next_time_is_what_the_server_will_decide() {
        let now: Timestamp = "2026-01-05T05:00:00Z".parse().unwrap();
        let at = |time: &str| Next::At(time.parse().unwrap());
        let nightly = "0 3 * * *";
        let last = json!({"lastBackup": "2026-01-05T03:00:00Z"});
        for (spec, status, expected) in [
            (json!({"schedule": nightly}), &last, at("2026-01-06T03:00:00Z")),
            (
                json!({"schedule": "CRON_TZ=Asia/Tokyo 0 3 * * *"}),
                &last,
                at("2026-01-05T18:00:00Z"),
            ),
            (json!({"schedule": "@every 6h"}), &last, at("2026-01-05T09:00:00Z")),
            // The night before was missed.
            (json!({"schedule": nightly}), &json!({}), Next::Now),
            (
                json!({"schedule": nightly, "skipImmediately": true}),
                &json!({}),
                at("2026-01-06T03:00:00Z"),
            ),
            (json!({"schedule": nightly, "paused": true}), &last, Next::Never),
            (json!({"schedule": "never"}), &last, Next::Never),
        ] {
            let mut object: Value = json!({
                "metadata": {"name": "s", "creationTimestamp": "2026-01-04T00:00:00Z"},
                "spec": spec, "status": status,
            });
            object["spec"]["template"] = json!({});
            let schedule = serde_json::from_value(object).unwrap();
            assert_eq!(Next::of(&schedule, now), expected, "{schedule:?}");
        }
    }

    #[test]
    fn it_is_told_in_few_words() {
        let now = Timestamp::UNIX_EPOCH;
        let soon = Next::At(Timestamp::from_second(7200).unwrap());
        let shown = [Next::Never, Next::Now, soon].map(|next| next.distance(now));
        assert_eq!(shown, ["n/a", "now", "2h"]);
        assert_eq!(soon.to_string(), "1970-01-01 02:00:00 +0000 UTC");
    }
}
