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
use crate::end::{End, Standing};
use crate::patch::to_the_second;

/// The longest message, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Whether a run is wanted no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cancel {
    /// Nobody has asked.
    #[default]
    No,
    /// Somebody has asked.
    Asked,
    /// Somebody has asked, and that is why it ended.
    Done,
}

impl Cancel {
    /// What is true of a run with such a reason of failure, or none, that somebody has asked to stop or not.
    pub(crate) fn of(failure_reason: &str, is_asked: bool) -> Self {
        if failure_reason.starts_with(CANCELED_PREFIX) {
            Self::Done
        } else if is_asked {
            Self::Asked
        } else {
            Self::No
        }
    }
}

/// A run, as far as conditions tell of it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Where it stands: [from](Standing::from) its phase.
    pub standing: Standing<'a>,
    /// Whether it is wanted no longer.
    pub cancel: Cancel,
    /// More about how it ended, for people; empty if there is nothing to say.
    pub message: &'a str,
}

/// The conditions of a run that had some before.
///
/// # Guarantees
/// - `lastTransitionTime` changes only with the status of a condition.
/// - Conditions of other types stay, and all stay in their places: the list is written as a whole.
/// - Nothing changes if there is nothing new, so that the list need not be written.
pub fn next(before: &[Condition], run: Run<'_>, now: Timestamp) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    let Some(completed) = completed(run) else { return conditions };
    let verdicts =
        [(COMPLETED, Some(completed)), (CANCELING, canceling(run)), (CANCELED, canceled(run))];
    for (type_, verdict) in verdicts {
        let is_there = before.iter().any(|condition| condition.type_ == type_);
        // What was said once must not stay true by not being said again.
        let verdict = verdict.or_else(|| is_there.then(|| Verdict::no("NotAsked", "")));
        if let Some(verdict) = verdict {
            set(&mut conditions, type_, &verdict, now);
        }
    }
    conditions
}

/// What there is to say of one type.
struct Verdict<'a> {
    status: &'static str,
    reason: &'a str,
    message: &'a str,
}

impl<'a> Verdict<'a> {
    fn yes(reason: &'a str, message: &'a str) -> Self {
        Self { status: "True", reason, message }
    }

    fn no(reason: &'a str, message: &'a str) -> Self {
        Self { status: "False", reason, message }
    }
}

/// None if how the run ended stays as it is, because what it left is being deleted.
fn completed(run: Run<'_>) -> Option<Verdict<'_>> {
    match run.standing {
        Standing::Ended(end @ End::Completed) => Some(Verdict::yes(end.as_str(), run.message)),
        Standing::Ended(end) => Some(Verdict::no(end.as_str(), run.message)),
        Standing::Running(reason) => {
            Some(Verdict { status: "Unknown", reason, message: "it is not over" })
        }
        Standing::Leaving => None,
    }
}

fn canceling(run: Run<'_>) -> Option<Verdict<'_>> {
    match (run.cancel, run.standing) {
        (Cancel::No, _) => None,
        (_, Standing::Running(_)) => {
            Some(Verdict::yes("Asked", "it was asked to stop, and so were its operations"))
        }
        _ => Some(Verdict::no("Ended", "it is over")),
    }
}

fn canceled(run: Run<'_>) -> Option<Verdict<'_>> {
    match (run.cancel, run.standing) {
        (Cancel::Done, Standing::Ended(End::Failed)) => {
            Some(Verdict::yes("Asked", "it stopped because it was asked to"))
        }
        (Cancel::Asked | Cancel::Done, Standing::Ended(_)) => {
            Some(Verdict::no("Ended", "it ended by itself before it could be stopped"))
        }
        // It may become true; until then there is nothing to say.
        _ => None,
    }
}

fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: &Verdict<'_>, now: Timestamp) {
    let said = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = match &said {
        Some(said) if said.status == verdict.status => said.last_transition_time.clone(),
        _ => to_the_second(now),
    };
    let condition = Condition {
        type_: type_.to_owned(),
        status: verdict.status.to_owned(),
        reason: verdict.reason.to_owned(),
        message: shortened(verdict.message),
        last_transition_time: since,
        // Each write of the status makes a new generation, since it is no subresource.
        observed_generation: None,
    };
    match said {
        Some(said) => *said = condition,
        None => conditions.push(condition),
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= MESSAGE_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MESSAGE_MAX - '…'.len_utf8())])
}

#[cfg(test)]
mod tests;
