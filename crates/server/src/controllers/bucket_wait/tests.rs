use std::cell::Cell;
use std::future::{pending, ready};

use bowline_plugin::Code;
use bowline_store::{Error, decode};

use super::*;
use BucketFailure::{Refused, Unreachable, WriteRefused};

const BOUNDS: RunBounds = RunBounds { bucket_wait: Duration::from_mins(1), attempts: 4 };

fn decided(
    stage: Stage,
    failure: BucketFailure,
    waited: i64,
    attempts: usize,
    is_canceled: bool,
) -> BucketDecision {
    let since = Timestamp::from_second(1000).unwrap();
    let now = Timestamp::from_second(1000 + waited).unwrap();
    decide(&BucketOutage { stage, is_canceled, failure, since, attempts }, BOUNDS, now)
}

#[test]
fn run_waits_for_its_bucket_until_canceled_or_bounded() {
    use BucketDecision::{End, Retry};
    let too_long = |seconds| End(EndReason::WaitedTooLong(Duration::from_secs(seconds)));
    let too_often = End(EndReason::TooManyAttempts(4));
    let canceled = End(EndReason::Canceled);
    for stage in [Stage::Items, Stage::Waiting, Stage::Finalizing] {
        for failure in [Unreachable, Refused] {
            for (waited, attempts, is_canceled, expected) in [
                (0, 0, false, Retry),
                (59, 0, false, Retry),
                (59, 3, false, Retry),
                (60, 0, false, too_long(60)),
                (99, 3, false, too_long(99)),
                (0, 4, false, too_often),
                (99, 4, false, too_often),
                (0, 0, true, canceled),
                (99, 4, true, canceled),
                // The clock was set back.
                (-500, 0, false, Retry),
            ] {
                let decision = decided(stage, failure, waited, attempts, is_canceled);
                assert_eq!(decision, expected, "{stage:?} {failure:?} {waited} {attempts}");
            }
        }
    }
}

#[test]
fn refused_write_ends_the_run_only_during_items() {
    use BucketDecision::{End, Retry};
    let write = |stage, waited| decided(stage, WriteRefused, waited, 1, false);
    assert_eq!(write(Stage::Items, 0), End(EndReason::WriteRefused));
    for stage in [Stage::Waiting, Stage::Finalizing] {
        assert_eq!(write(stage, 0), Retry, "{stage:?}");
        let too_long = EndReason::WaitedTooLong(Duration::from_mins(1));
        assert_eq!(write(stage, 60), End(too_long), "{stage:?}");
    }
    let canceled = decided(Stage::Items, WriteRefused, 0, 1, true);
    assert_eq!(canceled, End(EndReason::Canceled));
}

fn refused(code: Code) -> Error {
    let source = bowline_plugin::Error::new(code, "no");
    Error::Backend { action: "read", key: "backups/b/b-logs.gz".to_owned(), source }
}

#[test]
fn unreadable_file_is_not_a_bucket_failure() {
    let unreadable = |source| Error::Unreadable { key: "backups/b/x".to_owned(), source };
    let json = || decode::Error::Json(serde_json::from_str::<u8>("[").unwrap_err());
    for (error, read, write) in [
        (refused(Code::Unavailable), Some(Unreachable), Some(Unreachable)),
        (refused(Code::Unknown), Some(Unreachable), Some(Unreachable)),
        (refused(Code::PermissionDenied), Some(Refused), Some(WriteRefused)),
        (refused(Code::Unauthenticated), Some(Refused), Some(WriteRefused)),
        (refused(Code::FailedPrecondition), Some(Refused), Some(WriteRefused)),
        (Error::TaskAborted, Some(Unreachable), Some(Unreachable)),
        (unreadable(json()), None, None),
        (unreadable(decode::Error::TooLarge(1)), None, None),
    ] {
        assert_eq!(BucketFailure::of_read(&error), read, "{error}");
        assert_eq!(BucketFailure::of_write(&error), write, "{error}");
    }
}

#[test]
fn end_reason_contains_numbers() {
    let waited = EndReason::WaitedTooLong(Duration::from_mins(2)).to_string();
    assert_eq!(waited, "the bucket was unavailable for 120 s");
    assert!(EndReason::TooManyAttempts(4).to_string().contains("4 times"));
}

/// Number of attempts until a call was given up.
async fn attempts_made(cancel: &CancellationToken, cancel_after: usize) -> usize {
    let count = Cell::new(0);
    let attempt = || {
        count.set(count.get() + 1);
        if count.get() == cancel_after {
            cancel.cancel();
        }
        ready(Err::<(), _>(refused(Code::Unavailable)))
    };
    retry_bucket_call(cancel, attempt).await.unwrap_err();
    count.get()
}

#[tokio::test(start_paused = true)]
async fn canceled_run_tries_its_bucket_at_most_once_more() {
    assert_eq!(attempts_made(&CancellationToken::new(), usize::MAX).await, 6);
    let canceled = CancellationToken::new();
    canceled.cancel();
    assert_eq!(attempts_made(&canceled, usize::MAX).await, 2);
    assert_eq!(
        attempts_made(&CancellationToken::new(), 2).await,
        4,
        "the one under way, and two more"
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_bucket_does_not_delay_a_canceled_run() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let begin = tokio::time::Instant::now();
    let call = retry_bucket_call(&cancel, pending::<Result<(), Error>>);
    let outcome = tokio::time::timeout(CANCEL_GRACE * 2, call).await.expect("in time");
    assert!(matches!(outcome, Err(Error::TaskAborted)), "{outcome:?}");
    assert_eq!(begin.elapsed(), CANCEL_GRACE);
}
