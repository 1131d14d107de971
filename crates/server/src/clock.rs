//! Plausibility of this server's clock.
//!
//! A machine that has just started may be years off until its clock is set. Deletions cannot be
//! undone. So before a deletion that depends on the time, the clock is compared with that of the
//! API server, which sends its time with every response.

use std::time::Duration;

use http::{Request, header};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

/// Maximum difference of two clocks.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// Time for which a response counts.
const CACHE_TTL: Duration = Duration::from_secs(30);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Comparison of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockComparison {
    /// The clocks are close enough.
    Agree,
    /// The clocks differ by this much; positive if ours is ahead.
    Differ(SignedDuration),
    /// The API server does not send its time.
    Unknown,
}

/// Clock of the API server.
pub(crate) struct ClusterClock {
    client: Client,
    last: Mutex<Option<(Instant, ClockComparison)>>,
}

impl ClusterClock {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, last: Mutex::default() }
    }

    /// Compares the clocks. Uses a cached response if it is recent.
    pub(crate) async fn compare(&self) -> ClockComparison {
        let last = *self.last.lock();
        if let Some((at, clocks)) = last
            && at.elapsed() < CACHE_TTL
        {
            return clocks;
        }
        let clocks = self.compare_uncached().await;
        let mut last = self.last.lock();
        *last = Some((Instant::now(), clocks));
        clocks
    }

    async fn compare_uncached(&self) -> ClockComparison {
        let Ok(request) = Request::get("/version").body(Body::empty()) else {
            return ClockComparison::Unknown;
        };
        match timeout(REQUEST_TIMEOUT, self.client.send(request)).await {
            Ok(Ok(answer)) => {
                let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
                compare(date, Timestamp::now())
            }
            _ => ClockComparison::Unknown,
        }
    }
}

/// Compares our time with the date of a response.
fn compare(date: Option<&str>, now: Timestamp) -> ClockComparison {
    let api_server_time = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let Some(api_server_time) = api_server_time else { return ClockComparison::Unknown };
    let ahead = now.duration_since(api_server_time.timestamp());
    if ahead.abs() > MAX_SKEW { ClockComparison::Differ(ahead) } else { ClockComparison::Agree }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_by_the_date_header() {
        let now: Timestamp = "2026-11-16T14:00:00Z".parse().unwrap();
        let hour = SignedDuration::from_hours(1);
        for (date, expected) in [
            (Some("Mon, 16 Nov 2026 14:00:00 GMT"), ClockComparison::Agree),
            (Some("Mon, 16 Nov 2026 13:56:00 GMT"), ClockComparison::Agree),
            (Some("Mon, 16 Nov 2026 13:00:00 GMT"), ClockComparison::Differ(hour)),
            (Some("Mon, 16 Nov 2026 15:00:00 GMT"), ClockComparison::Differ(-hour)),
            (Some("some day"), ClockComparison::Unknown),
            (None, ClockComparison::Unknown),
        ] {
            assert_eq!(compare(date, now), expected, "{date:?}");
        }
    }
}
