//! Time of a schedule's next backup.

use std::fmt;

use bowline_api::Schedule;
use bowline_engine::schedule::{self, ScheduleDecision};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::relative_time;

/// Time of the next backup of a schedule, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextBackup {
    /// Never, in its current state.
    Never,
    /// As soon as the server processes it.
    Now,
    /// At that time.
    At(Timestamp),
}

impl NextBackup {
    /// Predicts the server's decision. A schedule without a time zone uses that of the server, which is UTC in a pod.
    pub(super) fn for_schedule(schedule: &Schedule, now: Timestamp) -> Self {
        match schedule::decide(&with_skip_recorded(schedule, now), &TimeZone::UTC, false, now) {
            ScheduleDecision::Idle
            | ScheduleDecision::Refuse(_)
            | ScheduleDecision::RecordSkip { .. } => Self::Never,
            ScheduleDecision::CreateBackup(_) => Self::Now,
            ScheduleDecision::Wait(time) => Self::At(time),
        }
    }

    /// Distance from now.
    pub(super) fn relative_text(self, now: Timestamp) -> String {
        match self {
            Self::Never => "n/a".to_owned(),
            Self::Now => "now".to_owned(),
            Self::At(time) => relative_time::relative_to(time, now),
        }
    }

    /// Time for programs.
    pub(super) fn time(self) -> Option<Time> {
        match self {
            Self::At(time) => Some(Time(time)),
            Self::Never | Self::Now => None,
        }
    }
}

impl fmt::Display for NextBackup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("<never>"),
            Self::Now => f.write_str("now"),
            Self::At(time) => f.write_str(&relative_time::go_format(&Time(*time))),
        }
    }
}

/// Schedule after the server has recorded whether to skip the time until now, which it does first.
fn with_skip_recorded(schedule: &Schedule, now: Timestamp) -> Schedule {
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
    fn next_time_equals_the_server_decision() {
        let now: Timestamp = "2026-01-05T05:00:00Z".parse().unwrap();
        let at = |time: &str| NextBackup::At(time.parse().unwrap());
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
            (json!({"schedule": nightly}), &json!({}), NextBackup::Now),
            (
                json!({"schedule": nightly, "skipImmediately": true}),
                &json!({}),
                at("2026-01-06T03:00:00Z"),
            ),
            (json!({"schedule": nightly, "paused": true}), &last, NextBackup::Never),
            (json!({"schedule": "never"}), &last, NextBackup::Never),
        ] {
            let mut object: Value = json!({
                "metadata": {"name": "s", "creationTimestamp": "2026-01-04T00:00:00Z"},
                "spec": spec, "status": status,
            });
            object["spec"]["template"] = json!({});
            let schedule = serde_json::from_value(object).unwrap();
            assert_eq!(NextBackup::for_schedule(&schedule, now), expected, "{schedule:?}");
        }
    }

    #[test]
    fn next_backup_is_printed_in_short_form() {
        let now = Timestamp::UNIX_EPOCH;
        let soon = NextBackup::At(Timestamp::from_second(7200).unwrap());
        let shown = [NextBackup::Never, NextBackup::Now, soon].map(|next| next.relative_text(now));
        assert_eq!(shown, ["n/a", "now", "2h"]);
        assert_eq!(soon.to_string(), "1970-01-01 02:00:00 +0000 UTC");
    }
}
