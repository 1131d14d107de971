use bowline_api::condition::is_true;
use bowline_api::{BackupPhase, RestorePhase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run(standing: Standing<'_>, cancel: Cancel) -> Run<'_> {
    Run { standing, cancel, message: "why" }
}

/// `type=status (reason)` of each.
fn said(conditions: &[Condition]) -> Vec<String> {
    let words = |condition: &Condition| {
        format!("{}={} ({})", condition.type_, condition.status, condition.reason)
    };
    conditions.iter().map(words).collect()
}

const RUNNING: Standing<'_> = Standing::Running("InProgress");

#[test]
fn conditions_follow_from_where_a_run_stands_and_whether_it_is_wanted() {
    for (standing, cancel, expected) in [
        (Standing::Running("New"), Cancel::No, &["Completed=Unknown (New)"][..]),
        (RUNNING, Cancel::No, &["Completed=Unknown (InProgress)"]),
        (Standing::Ended(End::Completed), Cancel::No, &["Completed=True (Completed)"]),
        (Standing::Ended(End::PartiallyFailed), Cancel::No, &["Completed=False (PartiallyFailed)"]),
        (Standing::Ended(End::Failed), Cancel::No, &["Completed=False (Failed)"]),
        (
            Standing::Ended(End::FailedValidation),
            Cancel::No,
            &["Completed=False (FailedValidation)"],
        ),
        (RUNNING, Cancel::Asked, &["Completed=Unknown (InProgress)", "Canceling=True (Asked)"]),
        (RUNNING, Cancel::Done, &["Completed=Unknown (InProgress)", "Canceling=True (Asked)"]),
        (
            Standing::Ended(End::Failed),
            Cancel::Done,
            &["Completed=False (Failed)", "Canceling=False (Ended)", "Canceled=True (Asked)"],
        ),
        // It failed, but not because it was asked to stop.
        (
            Standing::Ended(End::Failed),
            Cancel::Asked,
            &["Completed=False (Failed)", "Canceling=False (Ended)", "Canceled=False (Ended)"],
        ),
        (
            Standing::Ended(End::Completed),
            Cancel::Asked,
            &["Completed=True (Completed)", "Canceling=False (Ended)", "Canceled=False (Ended)"],
        ),
        // Whoever says so is wrong: a run that was stopped is not complete.
        (
            Standing::Ended(End::Completed),
            Cancel::Done,
            &["Completed=True (Completed)", "Canceling=False (Ended)", "Canceled=False (Ended)"],
        ),
        (Standing::Leaving, Cancel::Asked, &[]),
    ] {
        let conditions = next(&[], run(standing, cancel), second(1));
        assert_eq!(said(&conditions), expected, "{standing:?} {cancel:?}");
    }
}

#[test]
fn backups_and_restores_are_alike() {
    for text in RestorePhase::KNOWN {
        let (backup, restore) = (BackupPhase::from(*text), RestorePhase::from(*text));
        let of = |standing| next(&[], run(standing, Cancel::Asked), second(1));
        assert_eq!(of(Some(&backup).into()), of(Some(&restore).into()), "{text}");
    }
}

#[test]
fn the_time_changes_only_with_the_status() {
    let mut conditions = Vec::new();
    for (now, standing, cancel, completed, canceling) in [
        (1, Standing::Running("New"), Cancel::No, 1, None),
        (2, RUNNING, Cancel::No, 1, None),
        (3, RUNNING, Cancel::Asked, 1, Some(3)),
        (4, Standing::Running("Finalizing"), Cancel::Asked, 1, Some(3)),
        (5, Standing::Ended(End::Failed), Cancel::Done, 5, Some(5)),
        (6, Standing::Ended(End::Failed), Cancel::Done, 5, Some(5)),
    ] {
        conditions = next(&conditions, run(standing, cancel), second(now));
        let since = |type_: &str| {
            let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
            Some(condition.last_transition_time.0)
        };
        assert_eq!(since(COMPLETED), Some(second(completed)), "at {now}");
        assert_eq!(since(CANCELING), canceling.map(second), "at {now}");
    }
}

#[test]
fn nothing_changes_if_there_is_nothing_new_or_the_backup_is_being_deleted() {
    for (standing, cancel) in
        [(RUNNING, Cancel::Asked), (Standing::Ended(End::Failed), Cancel::Done)]
    {
        let before = next(&[], run(standing, cancel), second(1));
        assert_eq!(next(&before, run(standing, cancel), second(2)), before);
        assert_eq!(next(&before, run(Standing::Leaving, Cancel::No), second(2)), before);
    }
}

#[test]
fn conditions_of_others_stay_where_they_are() {
    let other = |type_: &str| Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: "Theirs".to_owned(),
        message: "theirs".to_owned(),
        last_transition_time: Time(second(0)),
        observed_generation: Some(7),
    };
    let mut before = vec![other("First")];
    before.extend(next(&[], run(RUNNING, Cancel::No), second(1)));
    before.push(other("Last"));
    let after = next(&before, run(Standing::Ended(End::Completed), Cancel::Asked), second(2));
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    let types: Vec<_> = after.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["First", "Completed", "Last", "Canceling", "Canceled"]);
    assert!(is_true(&after, COMPLETED) && !is_true(&after, CANCELED));
}

#[test]
fn what_is_no_longer_asked_for_does_not_stay_true() {
    let before = next(&[], run(RUNNING, Cancel::Asked), second(1));
    let after = next(&before, run(RUNNING, Cancel::No), second(2));
    assert_eq!(said(&after), ["Completed=Unknown (InProgress)", "Canceling=False (NotAsked)"]);
}

#[test]
fn messages_are_cut_between_characters_and_times_are_to_the_second() {
    let message = "ä".repeat(MESSAGE_MAX);
    let standing = Standing::Ended(End::Failed);
    let now = Timestamp::from_millisecond(1_234).unwrap();
    let run = Run { standing, cancel: Cancel::No, message: &message };
    let [condition] = <[Condition; 1]>::try_from(next(&[], run, now)).unwrap();
    assert!(condition.message.len() <= MESSAGE_MAX && condition.message.ends_with("ä…"));
    assert_eq!(condition.last_transition_time, Time(second(1)));
    let short = Run { message: "2 errors", ..run };
    assert_eq!(next(&[], short, now)[0].message, "2 errors");
}
