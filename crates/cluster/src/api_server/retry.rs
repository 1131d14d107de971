//! Retries of failed requests: if, when, and for how long.
//!
//! An API server that restarts must not fail a backup, and an overloaded one must not be asked
//! without end. So refusals are counted, unavailability is timed, and progress resets both.

use std::time::Duration;

use http::Response;
use kube::client::Body;
use tokio::time::Instant;

use super::super::{Error, Result};

/// Maximum number of attempts that the API server refuses for the moment, without progress in
/// between.
pub(super) const MAX_REFUSALS: u32 = 5;
/// Maximum time of retries while the API server is unreachable, counted from the first failure
/// since the last progress. A restart takes less.
pub(super) const MAX_OUTAGE: Duration = Duration::from_mins(2);
/// Pause before the second attempt; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Maximum pause, also if the API server requests a longer one.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Failed attempt.
pub(super) struct FailedAttempt {
    pub(super) error: Error,
    pub(super) retry_hint: RetryHint,
}

/// Chance of a retry.
pub(super) enum RetryHint {
    /// A retry cannot succeed.
    Never,
    /// The API server will be back.
    WhenReachable,
    /// The API server refused for the moment, possibly with a time.
    After(Option<Duration>),
}

impl From<Error> for FailedAttempt {
    fn from(error: Error) -> Self {
        let retry_hint = match &error {
            Error::Refused { code: 429 | 500 | 502 | 503 | 504, .. } => RetryHint::After(None),
            Error::Unreachable(_) | Error::Timeout(_) => RetryHint::WhenReachable,
            // There is nothing to wait for, but this must not repeat without end.
            Error::Expired { next: Some(_) } => RetryHint::After(Some(Duration::ZERO)),
            Error::Refused { .. }
            | Error::Expired { next: None }
            | Error::Unreadable(_)
            | Error::Object(_)
            | Error::ExecTimeout(_) => RetryHint::Never,
        };
        Self { error, retry_hint }
    }
}

/// Remaining retries.
pub(super) struct RetryBudget {
    max_outage: Duration,
    failures: u32,
    refusals: u32,
    /// First time that the API server was unreachable.
    unreachable_since: Option<Instant>,
}

impl RetryBudget {
    pub(super) fn new(max_outage: Duration) -> Self {
        Self { max_outage, failures: 0, refusals: 0, unreachable_since: None }
    }

    /// Resets the budget after progress.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.max_outage);
    }

    /// Waits until the next attempt, or gives up.
    pub(super) async fn wait_or_give_up(&mut self, failed: FailedAttempt) -> Result<()> {
        let FailedAttempt { error, retry_hint } = failed;
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures += 1;
        let pause = match retry_hint {
            RetryHint::Never => return Err(error),
            RetryHint::WhenReachable => {
                let since = *self.unreachable_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.max_outage {
                    return Err(error);
                }
                doubled
            }
            RetryHint::After(requested) => {
                self.refusals += 1;
                if self.refusals >= MAX_REFUSALS {
                    return Err(error);
                }
                requested.unwrap_or(doubled)
            }
        };
        tracing::debug!("retrying the request: {error}");
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        Ok(())
    }
}

/// Pause that the API server requests. An HTTP date instead of seconds is not supported; Kubernetes
/// sends seconds.
pub(super) fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get(http::header::RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}
