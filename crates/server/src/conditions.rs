//! `status.conditions` of a Backup or Restore, so that `kubectl wait --for=condition=Completed`
//! works, and a canceled run can be distinguished from a failed one.
//!
//! | type | `True` | `False` | `Unknown` |
//! |---|---|---|---|
//! | `Completed` | phase `Completed` | any other terminal phase | waiting or running |
//! | `Canceling` | cancellation requested | run has ended | |
//! | `Canceled` | stopped by the cancellation | ended before it could be stopped | |
//!
//! The last two exist once a cancellation was requested.

use bowline_api::condition::{CANCELED, CANCELING, COMPLETED};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::patch::truncate_to_second;
use crate::run_state::{FailureReason, RunState, TerminalPhase};

/// Maximum length of a message, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Cancellation of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CancelState {
    /// Not requested.
    #[default]
    NotRequested,
    /// Requested.
    Requested,
    /// Requested, and the reason why the run ended.
    Effective,
}

impl CancelState {
    /// State that follows from the failure reason of a run, and from a request.
    pub(crate) fn of(failure_reason: &str, is_cancel_requested: bool) -> Self {
        if FailureReason::from(failure_reason).is_canceled() {
            Self::Effective
        } else if is_cancel_requested {
            Self::Requested
        } else {
            Self::NotRequested
        }
    }
}

/// Properties of a run that its conditions depend on.
#[derive(Clone, Copy, Debug)]
pub struct RunSummary<'a> {
    /// State of the run, [from](RunState::from) its phase.
    pub state: RunState<'a>,
    /// Cancellation of the run.
    pub cancel: CancelState,
    /// Details of the outcome, for people; empty for none.
    pub message: &'a str,
}

/// Updates the conditions of a run.
///
/// # Guarantees
/// - `lastTransitionTime` changes only with the status of a condition.
/// - Conditions of other types stay, and all keep their positions: the list is written as a whole.
/// - Without news the list is unchanged, so that it need not be written.
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
        // An existing condition must not stay true only because it is not set again.
        let value = value
            .or_else(|| is_there.then(|| ConditionValue::when_false("CancelNotRequested", "")));
        if let Some(value) = value {
            set_condition(&mut conditions, type_, &value, now);
        }
    }
    conditions
}

/// Values of one condition type.
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

/// `None` if the condition keeps its value, because the run is being deleted after its end.
fn completed_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match run.state {
        RunState::Ended(end @ TerminalPhase::Completed) => {
            Some(ConditionValue::when_true(end.as_str(), run.message))
        }
        RunState::Ended(end) => Some(ConditionValue::when_false(end.as_str(), run.message)),
        RunState::Running(reason) => {
            Some(ConditionValue { status: "Unknown", reason, message: "run in progress" })
        }
        RunState::Deleting => None,
    }
}

fn canceling_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match (run.cancel, run.state) {
        (CancelState::NotRequested, _) => None,
        (_, RunState::Running(_)) => Some(ConditionValue::when_true(
            "CancelRequested",
            "cancellation requested; operations are being canceled",
        )),
        _ => Some(ConditionValue::when_false("RunEnded", "run ended")),
    }
}

fn canceled_condition(run: RunSummary<'_>) -> Option<ConditionValue<'_>> {
    match (run.cancel, run.state) {
        (CancelState::Effective, RunState::Ended(TerminalPhase::Failed)) => {
            Some(ConditionValue::when_true("CancelRequested", "run canceled on request"))
        }
        (CancelState::Requested | CancelState::Effective, RunState::Ended(_)) => {
            Some(ConditionValue::when_false("RunEnded", "run ended before it could be canceled"))
        }
        // The condition may become true; until then it is omitted.
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
        // The status is no subresource, so each write of it creates a new generation.
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
