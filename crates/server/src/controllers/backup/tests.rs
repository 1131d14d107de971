use bowline_api::backup::BackupProgress;
use bowline_api::hook::HookStatus;

use super::*;

pub(super) fn status() -> BackupStatus {
    BackupStatus {
        phase: Some(BackupPhase::FinalizingPartiallyFailed),
        errors: 3,
        warnings: 2,
        progress: Some(BackupProgress { total_items: 7, ..BackupProgress::default() }),
        hook_status: Some(HookStatus { hooks_attempted: 4, ..HookStatus::default() }),
        ..BackupStatus::default()
    }
}

#[test]
fn a_failure_at_the_end_keeps_what_the_run_has_counted() {
    let end = failed(&status(), "no luck".to_owned());
    assert_eq!(end.phase, Some(BackupPhase::Failed));
    assert_eq!((end.errors, end.warnings), (4, 2));
    assert_eq!(end.progress, status().progress);
    assert_eq!(end.hook_status, status().hook_status);
    assert!(end.completion_timestamp.is_some());
    let end = failed(&end, "nor then".to_owned());
    assert_eq!((end.errors, end.failure_reason.as_str()), (4, "no luck; nor then"));
}

#[test]
fn a_cancelled_backup_has_as_many_errors_as_its_results() {
    let end = canceled_with_results(&status());
    assert_eq!((end.phase, end.errors, end.warnings), (Some(BackupPhase::Failed), 3, 2));
    assert!(end.failure_reason.starts_with(CANCELED_PREFIX), "{}", end.failure_reason);
}

#[test]
fn what_others_wait_for_is_not_tried_for_ever() {
    assert!(has_time(Life::Moves(Duration::ZERO)));
    assert!(has_time(Life::Still(Duration::from_mins(4))));
    assert!(!has_time(Life::Still(Duration::from_mins(5))));
}
