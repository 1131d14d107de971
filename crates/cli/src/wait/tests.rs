use bowline_api::backup::{BackupProgress, BackupStatus};
use bowline_api::{Backup, BackupPhase, Restore, RestorePhase};
use serde_json::json;

use super::progress_messages::ProgressMessage;
use super::*;
use crate::volume_progress::VolumeTotals;

fn backup(phase: Option<BackupPhase>, done: i64, total: i64) -> Backup {
    let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
    let progress =
        BackupProgress { total_items: total, items_backed_up: done, ..Default::default() };
    backup.status =
        Some(BackupStatus { phase, progress: Some(progress), ..BackupStatus::default() });
    backup
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn phase_change_is_reported_once_and_progress_periodically() {
    let mut messages = ProgressMessages::default();
    let running = |done| backup(Some(BackupPhase::InProgress), done, 9);
    let state = |text: &str| vec![ProgressMessage::State(text.to_owned())];
    for (at, observed, expected) in [
        (0, backup(None, 0, 0), state("New")),
        (1, backup(Some(BackupPhase::New), 0, 0), vec![]),
        (2, running(1), state("InProgress")),
        (3, running(2), vec![]),
        (7, running(3), vec![ProgressMessage::Progress(3, 9)]),
        (8, running(4), vec![]),
        (12, running(4), vec![ProgressMessage::Progress(4, 9)]),
        (30, running(4), vec![]),
        (31, backup(Some(BackupPhase::Completed), 9, 9), state("Completed")),
    ] {
        assert_eq!(messages.observe(&observed, &[], seconds(at)), expected, "at {at} s");
    }
}

#[test]
fn volume_progress_is_reported_periodically() {
    let mut messages = ProgressMessages::default();
    let waiting = backup(Some(BackupPhase::WaitingForPluginOperations), 0, 0);
    messages.observe(&waiting, &[], seconds(1));
    let volumes = |done: i64| {
        let progress = json!({"bytesDone": done, "totalBytes": 1024});
        vec![volume_progress::tests::backup(
            "pv",
            &json!({"phase": "InProgress", "progress": progress}),
        )]
    };
    for (at, done, is_reported) in
        [(3, 1, false), (5, 2, true), (7, 3, false), (10, 3, true), (20, 3, false)]
    {
        let observed = volumes(done);
        let expected =
            is_reported.then(|| ProgressMessage::Volumes(VolumeTotals::from_volumes(&observed)));
        let reported = messages.observe(&waiting, &observed, seconds(at));
        assert_eq!(reported, expected.into_iter().collect::<Vec<_>>(), "at {at} s");
    }
}

#[test]
fn no_server_hint_is_given_once() {
    let mut messages = ProgressMessages::default();
    let new = backup(None, 0, 0);
    assert!(!messages.observe(&new, &[], seconds(9)).contains(&ProgressMessage::NoServer));
    assert!(messages.observe(&new, &[], seconds(10)).contains(&ProgressMessage::NoServer));
    assert_eq!(messages.observe(&new, &[], seconds(60)), []);
    let queued = backup(Some(BackupPhase::Queued), 0, 0);
    let mut messages = ProgressMessages::default();
    assert!(!messages.observe(&queued, &[], seconds(60)).contains(&ProgressMessage::NoServer));
}

#[test]
fn no_server_hint_for_unnoticed_cancel_is_given_once() {
    let running = || backup(Some(BackupPhase::InProgress), 1, 9);
    let mut messages = ProgressMessages::new(WaitReason::Cancel);
    assert!(!messages.observe(&running(), &[], seconds(9)).contains(&ProgressMessage::NoServer));
    assert!(messages.observe(&running(), &[], seconds(10)).contains(&ProgressMessage::NoServer));
    assert!(!messages.observe(&running(), &[], seconds(60)).contains(&ProgressMessage::NoServer));
    // A server that has seen the cancellation reports it.
    let mut canceling = running();
    let condition = json!({
        "type": "Canceling", "status": "True", "reason": "r", "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    if let Some(status) = &mut canceling.status {
        status.conditions = vec![serde_json::from_value(condition).unwrap()];
    }
    let mut messages = ProgressMessages::new(WaitReason::Cancel);
    assert!(!messages.observe(&canceling, &[], seconds(60)).contains(&ProgressMessage::NoServer));
    // A run without a cancel request is not expected to be cancelled.
    let mut messages = ProgressMessages::new(WaitReason::Result);
    assert!(!messages.observe(&running(), &[], seconds(60)).contains(&ProgressMessage::NoServer));
}

fn restore(status: &serde_json::Value) -> Restore {
    let restore = json!({"metadata": {"name": "r"}, "spec": {}, "status": status});
    serde_json::from_value(restore).unwrap()
}

#[test]
fn only_a_completed_run_is_a_success() {
    for phase in BackupPhase::KNOWN.iter().chain(RestorePhase::KNOWN) {
        let backup = backup(Some(BackupPhase::from(*phase)), 0, 0);
        let restore = restore(&json!({"phase": phase}));
        let expected = if *phase == "Completed" { Exit::Success } else { Exit::Failed };
        assert_eq!(exit_code(&backup), expected, "{phase}");
        assert_eq!(exit_code(&restore), expected, "{phase}");
    }
}

#[test]
fn restore_outcome_is_reported_like_a_backup_outcome() {
    let ended = restore(&json!({
        "phase": "PartiallyFailed", "errors": 1, "startTimestamp": "2026-01-02T03:04:05Z",
        "completionTimestamp": "2026-01-02T03:04:07Z",
        "progress": {"totalItems": 9, "itemsRestored": 8},
    }));
    let line = "restore `r` PartiallyFailed in 2 s (8/9 items, 1 error, 0 warnings)";
    assert_eq!(outcome_lines(&ended), [line]);
}

#[test]
fn outcome_is_reported_with_counts_and_reasons() {
    let mut ended = backup(Some(BackupPhase::PartiallyFailed), 8, 9);
    if let Some(status) = &mut ended.status {
        status.errors = 1;
        status.warnings = 2;
        status.failure_reason = "the disk\u{7} is full".to_owned();
        status.start_timestamp =
            Some(serde_json::from_value("2026-01-02T03:04:05Z".into()).unwrap());
        status.completion_timestamp =
            Some(serde_json::from_value("2026-01-02T03:05:17Z".into()).unwrap());
    }
    assert_eq!(
        outcome_lines(&ended),
        [
            "backup `b` PartiallyFailed in 72 s (8/9 items, 1 error, 2 warnings)",
            "reason: the disk\u{fffd} is full",
        ]
    );
    let mut refused = backup(Some(BackupPhase::FailedValidation), 0, 0);
    if let Some(status) = &mut refused.status {
        status.validation_errors = vec!["no location".to_owned()];
    }
    assert_eq!(
        outcome_lines(&refused),
        ["backup `b` FailedValidation", "validation error: no location"]
    );
}
