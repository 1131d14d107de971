//! Handling of runs whose bucket cannot be used.
//!
//! A bucket that is unreachable, denies access, or whose location or Secret is missing says nothing about a run. Right
//! after a failover even an error that looks permanent often is not: the clock is not set yet, a token has not arrived,
//! a Secret is just being written. So the run waits, without delaying others, until the bucket can be used, the run is
//! canceled, or a limit is reached. In the last two cases the run ends based on its journal.
//!
//! [`decide`] makes that decision; the rest of this module keeps track of times and attempts.

use std::fmt;
use std::time::Duration;

use bowline_engine::backup::CANCEL_GRACE;
use bowline_engine::phase::Stage;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::lookup::OpenError;
use crate::options::Options;
use crate::server::Context;

/// Time without a first answer after which the run counts as waiting for its bucket.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a bucket could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketFailure {
    /// The bucket does not answer, or not now.
    Unreachable,
    /// Reading is denied, or the bucket cannot be opened: credentials, the location or the Secret are missing.
    Refused,
    /// Writing is denied.
    WriteRefused,
}

impl BucketFailure {
    /// Failure to open a location.
    pub(super) fn of_open(error: &OpenError) -> Self {
        if error.is_retryable() { Self::Unreachable } else { Self::Refused }
    }

    /// Failure to read; none if the bucket is not the cause.
    pub(super) fn of_read(error: &bowline_store::Error) -> Option<Self> {
        if error.is_retryable() {
            return Some(Self::Unreachable);
        }
        matches!(error, bowline_store::Error::Backend { .. }).then_some(Self::Refused)
    }

    /// Failure to write; none if the bucket is not the cause.
    pub(super) fn of_write(error: &bowline_store::Error) -> Option<Self> {
        match Self::of_read(error) {
            Some(Self::Refused) => Some(Self::WriteRefused),
            other => other,
        }
    }
}

/// Limits on retries of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunBounds {
    /// Maximum time for which a run waits for its bucket.
    pub(super) bucket_wait: Duration,
    /// Maximum number of attempts for each stage.
    pub(super) attempts: usize,
}

impl RunBounds {
    pub(super) fn of(options: &Options) -> Self {
        Self { bucket_wait: options.bucket_wait_timeout, attempts: options.run_attempts.max(1) }
    }

    /// True if an operation that has been failing since a time may be retried.
    pub(super) fn has_time(&self, since: Option<Timestamp>, now: Timestamp) -> bool {
        since.is_none_or(|since| elapsed(since, now) < self.bucket_wait)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketOutage {
    /// Current stage of the run.
    pub(super) stage: Stage,
    pub(super) is_canceled: bool,
    pub(super) failure: BucketFailure,
    /// Time at which any process first found the bucket unusable.
    pub(super) since: Timestamp,
    /// Number of attempts at the stage.
    pub(super) attempts: usize,
}

/// Decision for a run whose bucket cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketDecision {
    /// Wait, and try the bucket again.
    Retry,
    /// End the run without its bucket.
    End(EndReason),
}

/// Reason why a run ends without its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    Canceled,
    /// The run has waited for this long.
    WaitedTooLong(Duration),
    /// The stage was attempted this many times.
    TooManyAttempts(usize),
    /// A server stopped while it ended the run.
    Interrupted,
    /// The work is done and cannot be stored; repeating it would freeze applications for nothing, or run the hooks of a
    /// restore again.
    WriteRefused,
}

impl EndReason {
    /// Message about the end, with what was wrong with the bucket, if anything.
    pub(super) fn message(self, failure: &str) -> String {
        match self {
            _ if failure.is_empty() => self.to_string(),
            Self::Canceled => {
                format!("cannot read the files of the run in the bucket: {failure}")
            }
            _ => format!("{self}: {failure}"),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Canceled => f.write_str("the run was canceled while the bucket was unavailable"),
            Self::WaitedTooLong(waited) => {
                write!(f, "the bucket was unavailable for {} s", waited.as_secs())
            }
            Self::TooManyAttempts(count) => {
                write!(
                    f,
                    "the server stopped {count} times in this stage (--run-attempts); giving up"
                )
            }
            Self::Interrupted => f.write_str(
                "the server restarted while it canceled the run; the bucket was unavailable",
            ),
            Self::WriteRefused => f.write_str("the bucket refuses writes"),
        }
    }
}

/// Elapsed time; zero if the clock went back.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

pub(super) fn decide(outage: &BucketOutage, bounds: RunBounds, now: Timestamp) -> BucketDecision {
    let BucketOutage { stage, is_canceled, failure, since, attempts } = *outage;
    let elapsed_since = elapsed(since, now);
    if is_canceled {
        BucketDecision::End(EndReason::Canceled)
    } else if stage == Stage::Items && failure == BucketFailure::WriteRefused {
        BucketDecision::End(EndReason::WriteRefused)
    } else if attempts >= bounds.attempts {
        BucketDecision::End(EndReason::TooManyAttempts(attempts))
    } else if elapsed_since >= bounds.bucket_wait {
        BucketDecision::End(EndReason::WaitedTooLong(elapsed_since))
    } else {
        BucketDecision::Retry
    }
}

/// Waits for a call to a bucket; after a cancellation, only for a short time.
pub(super) async fn with_cancel_grace<T>(
    cancel: &CancellationToken,
    call: impl Future<Output = T>,
    given_up: impl FnOnce() -> T,
) -> T {
    let canceled = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = canceled => given_up(),
    }
}

/// Waits for the first answer of a bucket. If the answer is slow, other runs do not wait for this one meanwhile.
pub(super) async fn wait_for_first_answer<T>(
    context: &Context,
    uid: &str,
    call: impl Future<Output = T>,
) -> T {
    let late = async {
        tokio::time::sleep(FIRST_ANSWER_TIMEOUT).await;
        context.runs.mark_waiting_for_bucket(uid, Timestamp::now());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = late => std::future::pending().await,
    }
}

/// Retries a call to a bucket a few times; after a cancellation, at most once.
pub(super) async fn retry_bucket_call<T, F>(
    cancel: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Result<T, bowline_store::Error>
where
    F: Future<Output = Result<T, bowline_store::Error>>,
{
    let mut was_canceled = false;
    let attempt = || {
        let is_last = was_canceled;
        was_canceled = cancel.is_cancelled();
        let attempt = attempt();
        async move { attempt.await.map_err(|error| FailedAttempt { error: Box::new(error), is_last }) }
    };
    let given_up =
        || Err(FailedAttempt { error: Box::new(bowline_store::Error::TaskAborted), is_last: true });
    let retrying =
        super::run::with_retries_unless(attempt, |failed: &FailedAttempt| failed.is_last);
    with_cancel_grace(cancel, retrying, given_up).await.map_err(|failed| *failed.error)
}

#[derive(Debug)]
struct FailedAttempt {
    error: Box<bowline_store::Error>,
    /// True if there is no further attempt.
    is_last: bool,
}

impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FailedAttempt {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests;
