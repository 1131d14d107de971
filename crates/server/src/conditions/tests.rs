use bowline_api::condition::is_true;
use bowline_api::{BackupPhase, RestorePhase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run_summary(state: RunState<'_>, cancel: CancelState) -> RunSummary<'_> {
    RunSummary { state, cancel, message: "why" }
}

/// `type=status (reason)` of each condition.
fn condition_texts(conditions: &[Condition]) -> Vec<String> {
    let words = |condition: &Condition| {
        format!("{}={} ({})", condition.type_, condition.status, condition.reason)
    };
    conditions.iter().map(words).collect()
}

const RUNNING: RunState<'_> = RunState::Running("InProgress");

#[test]
fn conditions_follow_from_phase_and_cancel_state() {
    for (state, cancel, expected) in [
        (RunState::Running("New"), CancelState::NotRequested, &["Completed=Unknown (New)"][..]),
        (RUNNING, CancelState::NotRequested, &["Completed=Unknown (InProgress)"]),
        (
            RunState::Ended(TerminalPhase::Completed),
            CancelState::NotRequested,
            &["Completed=True (Completed)"],
        ),
        (
            RunState::Ended(TerminalPhase::PartiallyFailed),
            CancelState::NotRequested,
            &["Completed=False (PartiallyFailed)"],
        ),
        (
            RunState::Ended(TerminalPhase::Failed),
            CancelState::NotRequested,
            &["Completed=False (Failed)"],
        ),
        (
            RunState::Ended(TerminalPhase::FailedValidation),
            CancelState::NotRequested,
            &["Completed=False (FailedValidation)"],
        ),
        (
            RUNNING,
            CancelState::Requested,
            &["Completed=Unknown (InProgress)", "Canceling=True (CancelRequested)"],
        ),
        (
            RUNNING,
            CancelState::Effective,
            &["Completed=Unknown (InProgress)", "Canceling=True (CancelRequested)"],
        ),
        (
            RunState::Ended(TerminalPhase::Failed),
            CancelState::Effective,
            &[
                "Completed=False (Failed)",
                "Canceling=False (RunEnded)",
                "Canceled=True (CancelRequested)",
            ],
        ),
        // Failed, but not because of the cancellation.
        (
            RunState::Ended(TerminalPhase::Failed),
            CancelState::Requested,
            &[
                "Completed=False (Failed)",
                "Canceling=False (RunEnded)",
                "Canceled=False (RunEnded)",
            ],
        ),
        (
            RunState::Ended(TerminalPhase::Completed),
            CancelState::Requested,
            &[
                "Completed=True (Completed)",
                "Canceling=False (RunEnded)",
                "Canceled=False (RunEnded)",
            ],
        ),
        // Contradictory input: a run that was stopped is not complete.
        (
            RunState::Ended(TerminalPhase::Completed),
            CancelState::Effective,
            &[
                "Completed=True (Completed)",
                "Canceling=False (RunEnded)",
                "Canceled=False (RunEnded)",
            ],
        ),
        (RunState::Deleting, CancelState::Requested, &[]),
    ] {
        let conditions = update(&[], run_summary(state, cancel), second(1));
        assert_eq!(condition_texts(&conditions), expected, "{state:?} {cancel:?}");
    }
}

#[test]
fn backup_and_restore_phases_give_the_same_conditions() {
    for text in RestorePhase::KNOWN {
        let (backup, restore) = (BackupPhase::from(*text), RestorePhase::from(*text));
        let of = |state| update(&[], run_summary(state, CancelState::Requested), second(1));
        assert_eq!(of(Some(&backup).into()), of(Some(&restore).into()), "{text}");
    }
}

#[test]
fn transition_time_changes_only_with_the_status() {
    let mut conditions = Vec::new();
    for (now, state, cancel, completed, canceling) in [
        (1, RunState::Running("New"), CancelState::NotRequested, 1, None),
        (2, RUNNING, CancelState::NotRequested, 1, None),
        (3, RUNNING, CancelState::Requested, 1, Some(3)),
        (4, RunState::Running("Finalizing"), CancelState::Requested, 1, Some(3)),
        (5, RunState::Ended(TerminalPhase::Failed), CancelState::Effective, 5, Some(5)),
        (6, RunState::Ended(TerminalPhase::Failed), CancelState::Effective, 5, Some(5)),
    ] {
        conditions = update(&conditions, run_summary(state, cancel), second(now));
        let since = |type_: &str| {
            let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
            Some(condition.last_transition_time.0)
        };
        assert_eq!(since(COMPLETED), Some(second(completed)), "at {now}");
        assert_eq!(since(CANCELING), canceling.map(second), "at {now}");
    }
}

#[test]
fn conditions_are_unchanged_when_nothing_is_new_or_the_backup_is_being_deleted() {
    for (state, cancel) in [
        (RUNNING, CancelState::Requested),
        (RunState::Ended(TerminalPhase::Failed), CancelState::Effective),
    ] {
        let before = update(&[], run_summary(state, cancel), second(1));
        assert_eq!(update(&before, run_summary(state, cancel), second(2)), before);
        assert_eq!(
            update(&before, run_summary(RunState::Deleting, CancelState::NotRequested), second(2)),
            before
        );
    }
}

#[test]
fn foreign_conditions_keep_their_place() {
    let other = |type_: &str| Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: "Theirs".to_owned(),
        message: "theirs".to_owned(),
        last_transition_time: Time(second(0)),
        observed_generation: Some(7),
    };
    let mut before = vec![other("First")];
    before.extend(update(&[], run_summary(RUNNING, CancelState::NotRequested), second(1)));
    before.push(other("Last"));
    let after = update(
        &before,
        run_summary(RunState::Ended(TerminalPhase::Completed), CancelState::Requested),
        second(2),
    );
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    let types: Vec<_> = after.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["First", "Completed", "Last", "Canceling", "Canceled"]);
    assert!(is_true(&after, COMPLETED) && !is_true(&after, CANCELED));
}

#[test]
fn withdrawn_cancel_clears_its_condition() {
    let before = update(&[], run_summary(RUNNING, CancelState::Requested), second(1));
    let after = update(&before, run_summary(RUNNING, CancelState::NotRequested), second(2));
    assert_eq!(
        condition_texts(&after),
        ["Completed=Unknown (InProgress)", "Canceling=False (CancelNotRequested)"]
    );
}

#[test]
fn messages_are_cut_between_characters_and_times_are_to_the_second() {
    let message = "ä".repeat(MESSAGE_MAX);
    let state = RunState::Ended(TerminalPhase::Failed);
    let now = Timestamp::from_millisecond(1_234).unwrap();
    let run = RunSummary { state, cancel: CancelState::NotRequested, message: &message };
    let [condition] = <[Condition; 1]>::try_from(update(&[], run, now)).unwrap();
    assert!(condition.message.len() <= MESSAGE_MAX && condition.message.ends_with("ä…"));
    assert_eq!(condition.last_transition_time, Time(second(1)));
    let short = RunSummary { message: "2 errors", ..run };
    assert_eq!(update(&[], short, now)[0].message, "2 errors");
}
