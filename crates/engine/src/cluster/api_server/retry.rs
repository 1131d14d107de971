//! Whether something that failed is asked for again, when, and for how long.
//!
//! An API server that restarts must not fail a backup, and one that is overloaded must not be asked without
//! end. So refusals are counted, absence is timed, and progress forgives both.

use std::time::Duration;

use http::Response;
use kube::client::Body;
use tokio::time::Instant;

use super::super::{Error, Result};

/// How often something is asked for that the API server refuses for the moment, unless there is
/// progress between the tries.
pub(super) const MAX_REFUSALS: u32 = 5;
/// For how long it is asked for while the API server is not there, counted from the first failure
/// since there was progress. A restart takes less.
pub(super) const MAX_OUTAGE: Duration = Duration::from_mins(2);
/// The pause before the second try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, also where the API server asks for a longer one.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A try that failed.
pub(super) struct FailedAttempt {
    pub(super) error: Error,
    pub(super) retry_hint: RetryHint,
}

/// Why another try may end better.
pub(super) enum RetryHint {
    /// It will not.
    Never,
    /// The API server will be back.
    WhenReachable,
    /// It said "not now", and perhaps for how long.
    After(Option<Duration>),
}

impl From<Error> for FailedAttempt {
    fn from(error: Error) -> Self {
        let retry_hint = match &error {
            Error::Refused { code: 429 | 500 | 502 | 503 | 504, .. } => RetryHint::After(None),
            Error::Unreachable(_) | Error::Timeout(_) => RetryHint::WhenReachable,
            // There is nothing to wait for, but this must not go on for ever.
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

/// How long something is tried again.
pub(super) struct RetryBudget {
    max_outage: Duration,
    failures: u32,
    refusals: u32,
    /// When the API server was first found to be away.
    unreachable_since: Option<Instant>,
}

impl RetryBudget {
    pub(super) fn new(max_outage: Duration) -> Self {
        Self { max_outage, failures: 0, refusals: 0, unreachable_since: None }
    }

    /// There was progress.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.max_outage);
    }

    /// Waits until the next try, or gives up.
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
        tracing::debug!("asking again: {error}");
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        Ok(())
    }
}

/// For how long the API server asks to be left alone. The time of day that it may say instead is not
/// understood; Kubernetes says seconds.
pub(super) fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get(http::header::RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}
