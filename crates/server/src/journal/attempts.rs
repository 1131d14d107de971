//! Limits on the number and the duration of attempts.

use std::time::Duration;

use bowline_engine::backoff::Backoff;
use tokio::time::{Instant, sleep, timeout_at};

use super::Error;
use crate::error_text::status_message;

/// For writing a record: a caller waits for it.
pub(super) const WRITE_LIMITS: AttemptLimits =
    AttemptLimits { one: Duration::from_secs(6), all: Duration::from_secs(18) };
/// For reading or removing a whole journal.
pub(super) const WHOLE_JOURNAL_LIMITS: AttemptLimits =
    AttemptLimits { one: Duration::from_secs(30), all: Duration::from_secs(90) };
/// First pause after a failure, and the maximum.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(4);

/// Timeouts of one attempt, and of all attempts with the pauses in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptLimits {
    one: Duration,
    all: Duration,
}

/// Attempts at one request.
#[derive(Debug)]
pub(super) struct Attempts {
    one: Duration,
    deadline: Instant,
    backoff: Backoff,
}

impl Attempts {
    pub(super) fn new(limits: AttemptLimits) -> Self {
        let deadline = Instant::now() + limits.all;
        Self { one: limits.one, deadline, backoff: Backoff::new(FIRST_BACKOFF, MAX_BACKOFF) }
    }

    /// Awaits one attempt, with its timeout.
    pub(super) async fn attempt<T>(
        &self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.deadline.min(Instant::now() + self.one);
        timeout_at(limit, attempt).await.unwrap_or(Err(Error::Timeout))
    }

    /// Waits until the next attempt. Returns the failure if there is none.
    pub(super) async fn wait_before_retry(&mut self, failure: Error) -> Result<(), Error> {
        let pause = self.backoff.next_pause();
        if !failure.is_retryable() || Instant::now() + pause >= self.deadline {
            return Err(failure);
        }
        tracing::warn!("retrying in {pause:.1?}: {}", status_message(&failure));
        sleep(pause).await;
        Ok(())
    }
}
