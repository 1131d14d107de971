//! The machine: what an operation is after something was observed, and what to do next.
//!
//! # Guarantees
//! - An operation that has ended stays as it is, whatever is observed.
//! - Every operation ends: at its deadline at the latest, and what the policy grants for stopping.
//! - It is asked to stop once.

use std::time::Duration;

use bowline_plugin::{Class, Error, Progress, State as Told};
use jiff::Timestamp;

use super::{Kind, Operation, State, Stopping, Trouble, after, since};

/// How often an operation is asked about at first.
const SOON: Duration = Duration::from_secs(1);
/// For how long; the pauses grow from then on.
const FRESH: Duration = Duration::from_secs(10);
/// The pause after a failed poll, which doubles up to the longest.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What was observed.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The plugin, or a resource of its, told how it goes.
    Told(Progress),
    /// The plugin could not be asked, or answered an error.
    Unanswered(Error),
    /// Somebody wants it to stop.
    Unwanted(Why),
    /// The plugin was asked to stop it, and this came of it.
    Asked(Result<(), String>),
    /// The call that does it has begun: it is an upload.
    Called,
    /// That call has returned.
    Returned(Result<(), Error>),
    /// Nothing; time has passed.
    Passed,
}

/// Why an operation is to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its run was cancelled, for this reason.
    Canceled(String),
    /// Its time is over.
    Deadline,
}

/// What to do about an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// When to ask the plugin next; none when it has ended.
    pub poll_at: Option<Timestamp>,
    /// Whether to ask the plugin to stop it, now. Also of one that has ended because nobody could hear
    /// of it any more.
    pub cancel: bool,
    /// Whether something changed that is worth keeping.
    pub changed: bool,
    /// Whether it has ended with this.
    pub ended: bool,
}

/// What an operation is after something was observed. `longest` is the longest pause between polls.
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
        Observation::Told(progress) => told(&mut next, progress, now),
        // Whether an upload has ended is not learnt from polls.
        Observation::Unanswered(_) if operation.kind == Kind::SnapshotUpload => {}
        Observation::Unanswered(error) if is_synchronous(operation, &error) => {
            next.state = State::Completed;
            SYNCHRONOUS.clone_into(&mut next.progress.description);
        }
        // It is told of in a resource of the plugin's, which cannot be seen at the moment. That it is not to be seen
        // is no verdict on the snapshot; its deadline is one.
        Observation::Unanswered(error) if is_unheard(operation, &error) => {}
        Observation::Unanswered(error) => unanswered(&mut next, &error, &mut effects, now),
        Observation::Called => next.state = State::InProgress,
        Observation::Returned(answer) => returned(&mut next, answer, &mut effects, now),
        Observation::Unwanted(why) => stop(&mut next, why, &mut effects, now),
        Observation::Asked(answer) => asked(&mut next, answer),
        Observation::Passed => {}
    }
    if !next.state.is_terminal() && now >= next.deadline {
        stop(&mut next, Why::Deadline, &mut effects, now);
    }
    if !next.state.is_terminal() {
        give_up(&mut next, now);
    }
    effects.changed = next != *operation;
    effects.ended = next.state.is_terminal();
    if !effects.ended {
        effects.poll_at = Some(poll_at(&next, longest, now));
    }
    (next, effects)
}

/// What the reason begins with for which an operation has failed whose run was cancelled.
pub(super) const CANCELED: &str = "canceled";
/// What is said of a snapshot that a plugin takes in one go.
const SYNCHRONOUS: &str = "accepted by the plugin, completion not reported";
/// What is said of a snapshot whose plugin has no second stage.
pub(super) const NOTHING_TO_UPLOAD: &str = "the plugin has no upload stage";

/// Whether an error means that a snapshot was complete as soon as it was created.
fn is_synchronous(operation: &Operation, error: &Error) -> bool {
    operation.kind == Kind::SnapshotCreation
        && operation.state == State::New
        && error.class() == Class::Unimplemented
}

/// Whether an error means that nothing is heard of a snapshot whose creation was under way: its plugin does not
/// answer for it, and shows it in a resource instead.
fn is_unheard(operation: &Operation, error: &Error) -> bool {
    operation.kind == Kind::SnapshotCreation
        && operation.state == State::InProgress
        && error.class() == Class::Unimplemented
}

/// The call that uploads a snapshot has returned.
fn returned(
    operation: &mut Operation,
    answer: Result<(), Error>,
    effects: &mut Effects,
    now: Timestamp,
) {
    match answer {
        Ok(()) => {
            operation.trouble = None;
            operation.state = State::Completed;
        }
        Err(error) if error.class() == Class::Unimplemented => {
            operation.state = State::Completed;
            NOTHING_TO_UPLOAD.clone_into(&mut operation.progress.description);
        }
        // It was told to stop, and has.
        Err(error) if operation.stopping.is_some() => fail(operation, &error.to_string()),
        Err(error) => unanswered(operation, &error, effects, now),
    }
}

fn told(operation: &mut Operation, progress: Progress, now: Timestamp) {
    if operation.kind == Kind::SnapshotUpload {
        if progress.done > operation.progress.done {
            gets_on(operation, now);
        }
        operation.progress = Progress { state: Told::Running, ..progress };
        return;
    }
    operation.trouble = None;
    let has_begun = progress.started.is_some() || progress.done > 0;
    match &progress.state {
        Told::Succeeded => operation.state = State::Completed,
        Told::Failed(reason) => fail(operation, reason),
        Told::Running if has_begun => operation.state = State::InProgress,
        Told::Running => {}
    }
    operation.progress = progress;
}

/// An upload gets on, so that whoever was away is there again. Failures that may pass or not still count:
/// one that comes from its beginning to the same place each time would never end.
fn gets_on(operation: &mut Operation, now: Timestamp) {
    match &mut operation.trouble {
        Some(trouble) if trouble.unclear > 0 => trouble.since = now,
        trouble => *trouble = None,
    }
}

/// Ends an operation that has failed, as the plugin says.
fn fail(operation: &mut Operation, reason: &str) {
    let reason = match reason.trim() {
        "" => "the plugin gave no reason",
        reason => reason,
    };
    operation.state = State::Failed(match &operation.stopping {
        Some(Stopping { why: Why::Canceled(_), .. }) => format!("{CANCELED}: {reason}"),
        Some(Stopping { why: Why::Deadline, .. }) => format!("timed out: {reason}"),
        None => reason.to_owned(),
    });
}

/// A poll has failed, or an upload.
fn unanswered(operation: &mut Operation, error: &Error, effects: &mut Effects, now: Timestamp) {
    let class = error.class();
    let before = operation.trouble.take();
    let trouble = Trouble {
        count: before.as_ref().map_or(0, |before| before.count).saturating_add(1),
        unclear: before.as_ref().map_or(0, |before| before.unclear)
            + u32::from(class == Class::Unclear),
        since: before.map_or(now, |before| before.since),
        error: error.to_string(),
    };
    let policy = operation.kind.policy();
    let lasted = since(trouble.since, now);
    let (tries, span) = policy.unclear;
    let (times, seconds) = (trouble.count, lasted.as_secs());
    let is_upload = operation.kind == Kind::SnapshotUpload;
    let verdict = match class {
        Class::Permanent | Class::Unimplemented => Some(error.to_string()),
        Class::Transient => (lasted >= policy.patience).then(|| {
            if is_upload {
                format!("it was tried {times} times within {seconds} s: {error}")
            } else {
                format!("the plugin has not answered for {seconds} s: {error}")
            }
        }),
        Class::Unclear => (trouble.unclear >= tries || lasted >= span).then(|| {
            if is_upload {
                format!("it has failed {times} times: {error}")
            } else {
                format!(
                    "the plugin could not tell how it goes, {times} times in {seconds} s: {error}"
                )
            }
        }),
    };
    if let Some(reason) = verdict {
        // It may go on, for all we know, unless it was the call itself that has returned.
        effects.cancel = operation.stopping.is_none() && !is_upload;
        operation.state = State::Failed(match &operation.stopping {
            Some(stopping) => stopped(operation, stopping, &reason),
            None => reason,
        });
    }
    operation.trouble = Some(trouble);
}

fn stop(operation: &mut Operation, why: Why, effects: &mut Effects, now: Timestamp) {
    if operation.stopping.is_none() {
        operation.stopping = Some(Stopping { why, since: now, answer: None });
        effects.cancel = true;
    }
}

fn asked(operation: &mut Operation, answer: Result<(), String>) {
    let Some(stopping) = &mut operation.stopping else { return };
    stopping.answer = Some(answer);
    // One whose time is over is not waited for any longer.
    if stopping.why == Why::Deadline {
        let stopping = stopping.clone();
        // What was told last is why, as far as anybody knows.
        let last = operation.progress.description.clone();
        operation.state = State::Failed(stopped(operation, &stopping, &last));
    }
}

/// Ends an operation that does not stop.
fn give_up(operation: &mut Operation, now: Timestamp) {
    let Some(stopping) = operation.stopping.clone() else { return };
    if since(stopping.since, now) >= operation.kind.policy().stopping {
        operation.state = State::Failed(stopped(operation, &stopping, ""));
    }
}

/// Why an operation has ended that was asked to stop, and whether it has stopped.
fn stopped(operation: &Operation, stopping: &Stopping, more: &str) -> String {
    let why = match &stopping.why {
        Why::Canceled(reason) => format!("{CANCELED}: {reason}"),
        Why::Deadline => {
            let limit = since(operation.created, operation.deadline).as_secs();
            format!("timed out: it has not ended within {limit} s")
        }
    };
    let answer = match &stopping.answer {
        Some(Ok(())) => "the plugin was told to stop, and has not said that it did".to_owned(),
        Some(Err(error)) => format!("the plugin could not stop it and may go on: {error}"),
        None => "the plugin did not answer when told to stop, and may go on".to_owned(),
    };
    let dash = if more.is_empty() { "" } else { ": " };
    format!("{why}; {answer}{dash}{more}")
}

/// When to ask next: often at first, then less and less often.
fn poll_at(operation: &Operation, longest: Duration, now: Timestamp) -> Timestamp {
    let pause = match (&operation.trouble, &operation.stopping) {
        (Some(trouble), _) => {
            AFTER_FAILURE.saturating_mul(1 << trouble.count.saturating_sub(1).min(16))
        }
        // It should end at any moment.
        (None, Some(_)) => SOON,
        (None, None) => {
            let age = since(operation.created, now);
            SOON + age.saturating_sub(FRESH) / 10
        }
    };
    let next = after(now, pause.min(longest.max(SOON)));
    let last = match &operation.stopping {
        Some(stopping) => after(stopping.since, operation.kind.policy().stopping),
        None => operation.deadline,
    };
    next.min(last).max(now)
}

#[cfg(test)]
mod tests;
