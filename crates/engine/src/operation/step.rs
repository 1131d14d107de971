//! State machine: the state of an operation after an observation, and the effects to carry out.
//!
//! # Guarantees
//! - An operation that has ended never changes, whatever is observed.
//! - Every operation ends: at the latest at its deadline plus the stop timeout of the policy.
//! - A stop is requested once.

use std::time::Duration;

use bowline_plugin::{Class, Error, Progress, State as PluginState};
use jiff::Timestamp;

use super::{
    Completion, Kind, Operation, OperationFailure, PollFailures, State, StopError, StopRequest,
    duration_between, record, saturating_add,
};

/// Pause between polls at first.
const FIRST_POLL_PAUSE: Duration = Duration::from_secs(1);
/// Duration of this first period; the pauses grow afterwards.
const FAST_POLL_PERIOD: Duration = Duration::from_secs(10);
/// Pause after a failed poll, which doubles up to the maximum.
const FIRST_FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Observation of an operation.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The plugin, or one of its resources, reported progress.
    Progressed(Progress),
    /// The plugin could not be polled, or returned an error.
    PollFailed(Error),
    /// A stop was requested.
    StopRequested(StopCause),
    /// The plugin answered the stop request.
    StopAnswered(Result<(), StopError>),
    /// The call of an upload has started.
    UploadStarted,
    /// The call of an upload has returned.
    UploadReturned(Result<(), Error>),
    /// An upload cannot start: its snapshot was not completed.
    SnapshotNotCompleted,
    /// Only time has passed.
    TimePassed,
}

/// Reason to stop an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The run was canceled, for this reason.
    Canceled(String),
    /// The deadline has passed.
    Deadline,
}

/// Effects to carry out for an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Time of the next poll; `None` if the operation has ended.
    pub poll_at: Option<Timestamp>,
    /// True to request a stop from the plugin now. Also set for an operation that ended because it
    /// could no longer be observed.
    pub cancel: bool,
    /// True if a change is worth saving.
    pub changed: bool,
    /// True if this step has ended the operation.
    pub ended: bool,
}

/// Applies an observation to an operation. `longest` is the maximum pause between polls.
pub fn step(
    operation: &Operation,
    observation: Observation,
    longest: Duration,
    now: Timestamp,
) -> (Operation, Effects) {
    let mut next = operation.clone();
    if operation.state.is_terminal() {
        return (next, Effects::default());
    }
    let mut effects = Effects::default();
    match observation {
        Observation::Progressed(progress) => apply_progress(&mut next, progress, now),
        // Polls do not show the end of an upload.
        Observation::PollFailed(_) if operation.kind == Kind::SnapshotUpload => {}
        Observation::PollFailed(error) if is_synchronous(operation, &error) => {
            next.state = State::Completed;
            SYNCHRONOUS.clone_into(&mut next.progress.description);
        }
        // The plugin publishes progress in a resource, which is not visible at the moment. That
        // says nothing about the snapshot; its deadline decides.
        Observation::PollFailed(error) if is_unobservable(operation, &error) => {}
        Observation::PollFailed(error) => apply_poll_failure(&mut next, &error, &mut effects, now),
        Observation::UploadStarted => next.state = State::InProgress,
        Observation::UploadReturned(answer) => {
            apply_upload_return(&mut next, answer, &mut effects, now);
        }
        Observation::StopRequested(cause) => request_stop(&mut next, cause, &mut effects, now),
        Observation::StopAnswered(answer) => apply_stop_answer(&mut next, answer),
        Observation::SnapshotNotCompleted => {
            next.state = State::Failed(OperationFailure::SnapshotNotCompleted);
        }
        Observation::TimePassed => {}
    }
    if !next.state.is_terminal() && now >= next.deadline {
        request_stop(&mut next, StopCause::Deadline, &mut effects, now);
    }
    if !next.state.is_terminal() {
        fail_if_not_stopped(&mut next, now);
    }
    effects.changed = next != *operation;
    effects.ended = next.state.is_terminal();
    if !effects.ended {
        effects.poll_at = Some(poll_at(&next, longest, now));
    }
    (next, effects)
}

/// Description of a snapshot that the plugin takes synchronously.
const SYNCHRONOUS: &str = "accepted by the plugin, completion not reported";

/// True if an error means that a snapshot was complete as soon as it was created.
fn is_synchronous(operation: &Operation, error: &Error) -> bool {
    operation.kind == Kind::SnapshotCreation
        && operation.state == State::New
        && error.class() == Class::Unimplemented
}

/// True if an error means that a snapshot in creation cannot be observed: its plugin does not
/// report progress by calls, but in a resource.
fn is_unobservable(operation: &Operation, error: &Error) -> bool {
    operation.kind == Kind::SnapshotCreation
        && operation.state == State::InProgress
        && error.class() == Class::Unimplemented
}

fn apply_upload_return(
    operation: &mut Operation,
    answer: Result<(), Error>,
    effects: &mut Effects,
    now: Timestamp,
) {
    match answer {
        Ok(()) => {
            operation.poll_failures = None;
            operation.state = State::Completed;
        }
        Err(error) if error.class() == Class::Unimplemented => {
            operation.state = State::Completed;
            operation.completion = Completion::NothingToUpload;
            record::NOTHING_TO_UPLOAD.clone_into(&mut operation.progress.description);
        }
        // Stopped as requested.
        Err(error) if operation.stop_request.is_some() => fail(operation, &error.to_string()),
        Err(error) => apply_poll_failure(operation, &error, effects, now),
    }
}

fn apply_progress(operation: &mut Operation, progress: Progress, now: Timestamp) {
    if operation.kind == Kind::SnapshotUpload {
        if progress.done > operation.progress.done {
            record_upload_progress(operation, now);
        }
        operation.progress = Progress { state: PluginState::Running, ..progress };
        return;
    }
    operation.poll_failures = None;
    let has_started = progress.started.is_some() || progress.done > 0;
    match &progress.state {
        PluginState::Succeeded => operation.state = State::Completed,
        PluginState::Failed(reason) => fail(operation, reason),
        PluginState::Running if has_started => operation.state = State::InProgress,
        PluginState::Running => {}
    }
    operation.progress = progress;
}

/// Progress of an upload clears transient failures: the plugin is available again. Unclear failures
/// still count: an upload that restarts and fails at the same place each time would never end.
fn record_upload_progress(operation: &mut Operation, now: Timestamp) {
    match &mut operation.poll_failures {
        Some(failures) if failures.unclear > 0 => failures.since = now,
        trouble => *trouble = None,
    }
}

/// Ends an operation that has failed, with the plugin's reason.
fn fail(operation: &mut Operation, reason: &str) {
    let failure = OperationFailure::ended(operation.stop_request.as_ref(), reason);
    operation.state = State::Failed(failure);
}

/// Applies the failure of a poll, or of an upload.
fn apply_poll_failure(
    operation: &mut Operation,
    error: &Error,
    effects: &mut Effects,
    now: Timestamp,
) {
    let class = error.class();
    let before = operation.poll_failures.take();
    let failures = PollFailures {
        count: before.as_ref().map_or(0, |before| before.count).saturating_add(1),
        unclear: before.as_ref().map_or(0, |before| before.unclear)
            + u32::from(class == Class::Unclear),
        since: before.map_or(now, |before| before.since),
        error: error.to_string(),
    };
    let policy = operation.kind.policy();
    let lasted = duration_between(failures.since, now);
    let (max_failures, span) = policy.unclear_limit;
    let (times, seconds) = (failures.count, lasted.as_secs());
    let is_upload = operation.kind == Kind::SnapshotUpload;
    let failure_reason = match class {
        Class::Permanent | Class::Unimplemented => Some(error.to_string()),
        Class::Transient => (lasted >= policy.transient_limit).then(|| {
            if is_upload {
                format!("the upload failed {times} times within {seconds} s: {error}")
            } else {
                format!("the plugin has not answered for {seconds} s: {error}")
            }
        }),
        Class::Unclear => (failures.unclear >= max_failures || lasted >= span).then(|| {
            if is_upload {
                format!("the upload failed {times} times: {error}")
            } else {
                format!(
                    "the plugin could not report progress, {times} times in {seconds} s: {error}"
                )
            }
        }),
    };
    if let Some(reason) = failure_reason {
        // The operation may still be running, except when the failure is the return of the upload
        // call itself.
        effects.cancel = operation.stop_request.is_none() && !is_upload;
        operation.state = State::Failed(match &operation.stop_request {
            Some(stopping) => OperationFailure::not_stopped(operation, stopping, &reason),
            None => reason.into(),
        });
    }
    operation.poll_failures = Some(failures);
}

fn request_stop(
    operation: &mut Operation,
    cause: StopCause,
    effects: &mut Effects,
    now: Timestamp,
) {
    if operation.stop_request.is_none() {
        operation.stop_request = Some(StopRequest { cause, since: now, answer: None });
        effects.cancel = true;
    }
}

fn apply_stop_answer(operation: &mut Operation, answer: Result<(), StopError>) {
    let Some(stopping) = &mut operation.stop_request else { return };
    stopping.answer = Some(answer);
    // After its deadline an operation is not awaited any longer.
    if stopping.cause == StopCause::Deadline {
        let stopping = stopping.clone();
        // The last description is the best known reason.
        let last = operation.progress.description.clone();
        operation.state = State::Failed(OperationFailure::not_stopped(operation, &stopping, &last));
    }
}

/// Ends an operation that does not stop in time.
fn fail_if_not_stopped(operation: &mut Operation, now: Timestamp) {
    let Some(stopping) = operation.stop_request.clone() else { return };
    if duration_between(stopping.since, now) >= operation.kind.policy().stop_timeout {
        operation.state = State::Failed(OperationFailure::not_stopped(operation, &stopping, ""));
    }
}

/// Time of the next poll: frequent at first, then less and less.
fn poll_at(operation: &Operation, longest: Duration, now: Timestamp) -> Timestamp {
    let pause = match (&operation.poll_failures, &operation.stop_request) {
        (Some(failures), _) => {
            FIRST_FAILURE_PAUSE.saturating_mul(1 << failures.count.saturating_sub(1).min(16))
        }
        // The end is expected at any moment.
        (None, Some(_)) => FIRST_POLL_PAUSE,
        (None, None) => {
            let age = duration_between(operation.created, now);
            FIRST_POLL_PAUSE + age.saturating_sub(FAST_POLL_PERIOD) / 10
        }
    };
    let next = saturating_add(now, pause.min(longest.max(FIRST_POLL_PAUSE)));
    let last = match &operation.stop_request {
        Some(stopping) => saturating_add(stopping.since, operation.kind.policy().stop_timeout),
        None => operation.deadline,
    };
    next.min(last).max(now)
}

#[cfg(test)]
mod tests;
