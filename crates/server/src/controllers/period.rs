//! Due times of periodic work.

use std::time::Duration;

use jiff::Timestamp;

/// Time at which work is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Immediately.
    Now,
    /// After this time.
    In(Duration),
    /// Never again.
    Never,
}

/// Period from the setting of a location, or else the default of the server. None is never. Velero
/// treats a negative value as not set.
pub(crate) fn period(
    requested: Option<bowline_api::Duration>,
    fallback: Duration,
) -> Option<Duration> {
    let asked = requested.and_then(bowline_api::Duration::to_std);
    Some(asked.unwrap_or(fallback)).filter(|period| !period.is_zero())
}

/// Time at which periodic work is due, given the last time.
pub(crate) fn due(last: Option<Timestamp>, period: Option<Duration>, now: Timestamp) -> Due {
    let Some(period) = period else { return Due::Never };
    let Some(last) = last else { return Due::Now };
    let Ok(passed) = Duration::try_from(now.duration_since(last)) else {
        // The clock was set back: wait one period, not more.
        return Due::In(period);
    };
    match period.checked_sub(passed) {
        Some(rest) if !rest.is_zero() => Due::In(rest),
        _ => Due::Now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Duration = Duration::from_mins(1);

    fn spec_period(seconds: i64) -> Option<Duration> {
        period(Some(bowline_api::Duration::from_seconds(seconds)), SERVER)
    }

    #[test]
    fn location_period_overrides_the_default() {
        assert_eq!(period(None, SERVER), Some(SERVER));
        assert_eq!(spec_period(5), Some(Duration::from_secs(5)));
        assert_eq!(spec_period(-5), Some(SERVER));
        assert_eq!(spec_period(0), None);
        assert_eq!(period(None, Duration::ZERO), None);
    }

    #[test]
    fn due_when_the_period_has_passed() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let minute = Some(SERVER);
        for (last, period, expected) in [
            (None, minute, Due::Now),
            (None, None, Due::Never),
            (Some(1000), None, Due::Never),
            (Some(1000), minute, Due::In(SERVER)),
            (Some(960), minute, Due::In(Duration::from_secs(20))),
            (Some(940), minute, Due::Now),
            (Some(0), minute, Due::Now),
            (Some(9999), minute, Due::In(SERVER)),
        ] {
            assert_eq!(due(last.map(at), period, at(1000)), expected, "{last:?} {period:?}");
        }
    }
}
