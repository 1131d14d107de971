//! What `status.conditions` of a Backup or Restore say, so that `kubectl wait
//! --for=condition=Completed` works, and a run that was cancelled can be told from one that failed.
//!
//! | type | `True` | `False` | `Unknown` |
//! |---|---|---|---|
//! | `Completed` | it is `Completed` | it has ended in another way | it waits or runs |
//! | `Canceling` | it was asked to stop | it is over | |
//! | `Canceled` | it stopped because it was asked to | it ended by itself before it could be stopped | |
//!
//! The last two are there once somebody has asked.

use bowline_api::condition::{CANCELED, CANCELING, COMPLETED};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::controllers::CANCELED_PREFIX;
use crate::patch::truncate_to_second;
use crate::run_state::{RunState, TerminalPhase};

/// The longest message, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Whether a run is wanted no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CancelState {
    /// Nobody has asked.
    #[default]
    NotRequested,
    /// Somebody has asked.
    Requested,
    /// Somebody has asked, and that is why it ended.
    Effective,
}

impl CancelState {
    /// What is true of a run with such a reason of failure, or none, that somebody has asked to stop or not.
    pub(crate) fn of(failure_reason: &str, is_cancel_requested: bool) -> Self {
        if failure_reason.starts_with(CANCELED_PREFIX) {
            Self::Effective
        } else if is_cancel_requested {
            Self::Requested
        } else {
            Self::NotRequested
        }
    }
}

/// A run, as far as conditions tell of it.
#[derive(Clone, Copy, Debug)]
pub struct RunSummary<'a> {
    /// Where it stands: [from](RunState::from) its phase.
    pub state: RunState<'a>,
    /// Whether it is wanted no longer.
    pub cancel: CancelState,
    /// More about how it ended, for people; empty if there is nothing to say.
    pub message: &'a str,
}

/// The conditions of a run that had some before.
///
/// # Guarantees
/// - `lastTransitionTime` changes only with the status of a condition.
/// - Conditions of other types stay, and all stay in their places: the list is written as a whole.
/// - Nothing changes if there is nothing new, so that the list need not be written.
pub fn update(before: &[Condition], run: RunSummary<'_>, now: Timestamp) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    let Some(completed) = completed_condition(run) else { return conditions };
    let values = [
        (COMPLETED, Some(completed)),
        (CANCELING, canceling_condition(run)),
        (CANCELED, canceled_condition(run)),
    ];
    for (type_, value) in values {
        let is_there = before.iter().any(|condition| condition.type_ == type_);
        // What was said once must not stay true by not being said again.
        let value = value.or_else(|| is_there.then(|| ConditionValue::when_false("NotAsked", "")));
        if let Some(value) = value {
            set_condition(&mut conditions, type_, &value, now);
        }
    }
    conditions
}

/// What there is to say of one type.
struct ConditionValue<'a> {
    status: &'static str,
    reason: &'a str,
    message: &'a str,
}

impl<'a> ConditionValue<'a> {
    fn when_true(reason: &'a str, message: &'a str) -> Self {
        Self { status: "True", reason, message }
    }

    fn when_false(reason: &'a str, message: &'a str) -> Self {
        Self { status: "False", reason, message }
    }
}

/// None if how the run ended stays as it is, because what it left is being deleted.
fn completed_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match run.state {
        RunState::Ended(end @ TerminalPhase::Completed) => {
            Some(ConditionValue::when_true(end.as_str(), run.message))
        }
        RunState::Ended(end) => Some(ConditionValue::when_false(end.as_str(), run.message)),
        RunState::Running(reason) => {
            Some(ConditionValue { status: "Unknown", reason, message: "it is not over" })
        }
        RunState::Deleting => None,
    }
}

fn canceling_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match (run.cancel, run.state) {
        (CancelState::NotRequested, _) => None,
        (_, RunState::Running(_)) => Some(ConditionValue::when_true(
            "Asked",
            "it was asked to stop, and so were its operations",
        )),
        _ => Some(ConditionValue::when_false("Ended", "it is over")),
    }
}

fn canceled_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match (run.cancel, run.state) {
        (CancelState::Effective, RunState::Ended(TerminalPhase::Failed)) => {
            Some(ConditionValue::when_true("Asked", "it stopped because it was asked to"))
        }
        (CancelState::Requested | CancelState::Effective, RunState::Ended(_)) => Some(
            ConditionValue::when_false("Ended", "it ended by itself before it could be stopped"),
        ),
        // It may become true; until then there is nothing to say.
        _ => None,
    }
}

fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    value: &ConditionValue<'_>,
    now: Timestamp,
) {
    let existing = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = match &existing {
        Some(existing) if existing.status == value.status => existing.last_transition_time.clone(),
        _ => truncate_to_second(now),
    };
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.status.to_owned(),
        reason: value.reason.to_owned(),
        message: truncated_message(value.message),
        last_transition_time: since,
        // Each write of the status makes a new generation, since it is no subresource.
        observed_generation: None,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

fn truncated_message(text: &str) -> String {
    if text.len() <= MESSAGE_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MESSAGE_MAX - '…'.len_utf8())])
}

#[cfg(test)]
mod tests;
