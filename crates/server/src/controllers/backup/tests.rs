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
fn late_failure_keeps_the_counts() {
    let end = status().failed("no luck".to_owned());
    assert_eq!(end.phase, Some(BackupPhase::Failed));
    assert_eq!((end.errors, end.warnings), (4, 2));
    assert_eq!(end.progress, status().progress);
    assert_eq!(end.hook_status, status().hook_status);
    assert!(end.completion_timestamp.is_some());
    let end = end.failed("nor then".to_owned());
    assert_eq!((end.errors, end.failure_reason.as_str()), (4, "no luck; nor then"));
}

#[test]
fn canceled_backup_counts_the_errors_of_its_results() {
    let end = canceled_status_with_results(&status());
    assert_eq!((end.phase, end.errors, end.warnings), (Some(BackupPhase::Failed), 3, 2));
    assert!(end.failure_reason.starts_with("canceled: "), "{}", end.failure_reason);
}

#[test]
fn start_is_retried_for_a_limited_time() {
    assert!(has_time_to_retry(Staleness::Changing(Duration::ZERO)));
    assert!(has_time_to_retry(Staleness::Unchanged(Duration::from_mins(4))));
    assert!(!has_time_to_retry(Staleness::Unchanged(Duration::from_mins(5))));
}
