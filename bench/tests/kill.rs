//! Kills a real server more than a hundred times, and checks that nothing is lost, duplicated or left frozen. Sabotaged
//! runs then prove that the check can fail.

#![allow(
    clippy::unwrap_used,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

use std::process::Command;

use bowline_engine::failpoint::Failpoint;
use bowline_testbed::{node, test_deadline};
use parking_lot::Mutex;
use serde_json::Value;

/// Each of them has the machine to itself.
static EXCLUSIVE_RUN: Mutex<()> = Mutex::new(());

/// Kills a server. Returns whether nothing was found, and the figures.
fn run_kill_test(arguments: &[&str]) -> (bool, Value) {
    let _alone = EXCLUSIVE_RUN.lock();
    test_deadline();
    let file = std::env::temp_dir().join(format!("bowline-kill-{}.json", std::process::id()));
    let status = Command::new(env!("CARGO_BIN_EXE_kill"))
        .args(arguments)
        .arg("--json")
        .arg(&file)
        .status()
        .unwrap();
    let figures = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    (status.success(), figures)
}

fn figure(figures: &Value, name: &str) -> usize {
    figures[name].as_u64().unwrap().try_into().unwrap()
}

fn total(figures: &Value) -> usize {
    let names = ["lost", "doubled", "frozen", "unfinished"];
    names.iter().map(|name| figure(figures, name)).sum()
}

/// True if a finding has this text.
fn has_finding(figures: &Value, text: &str) -> bool {
    let findings = figures["findings"].as_array().unwrap();
    findings.iter().any(|finding| finding.as_str().unwrap().contains(text))
}

#[test]
fn over_a_hundred_kills_lose_and_repeat_nothing_and_leave_no_pod_frozen() {
    // Without a node the rest is still worth it.
    let can_freeze = node::require_for_test("the part of the kill test in which pods are frozen");
    let (is_clean, figures) = run_kill_test(&["--kills", "110"]);
    assert!(is_clean && total(&figures) == 0, "{figures:#}");
    assert!(figure(&figures, "kills") >= 110, "{figures:#}");
    // Random kills take the turn of a point now and then, and a point may be over sooner than thought.
    let all = Failpoint::ALL.len() - if can_freeze { 0 } else { 6 };
    assert!(figure(&figures, "points") >= all * 9 / 10, "{figures:#}");
    assert!(figure(&figures, "random_kills") > 0, "{figures:#}");
    assert!(figure(&figures, "deletions") > 0, "{figures:#}");
}

#[test]
fn sabotaged_journal_of_started_work_is_detected() {
    let (is_clean, figures) = run_kill_test(&["--kills", "5", "--sabotage", "journal-block-start"]);
    assert!(!is_clean && figure(&figures, "lost") > 0, "{figures:#}");
    assert!(has_finding(&figures, ": the snapshot snap-"), "{figures:#}");
    assert!(has_finding(&figures, ": the CSI snapshot snapshot-"), "{figures:#}");
    assert!(has_finding(&figures, "was snapshotted again in silence"), "{figures:#}");
    assert!(has_finding(&figures, ": the volume vol-snap-"), "{figures:#}");
}

#[test]
fn sabotaged_journal_of_finished_work_is_detected() {
    let (is_clean, figures) = run_kill_test(&["--kills", "4", "--sabotage", "journal-block-end"]);
    assert!(!is_clean && figure(&figures, "doubled") > 0, "{figures:#}");
    assert!(
        has_finding(&figures, "was snapshotted again though its snapshot was recorded"),
        "{figures:#}"
    );
    assert!(
        has_finding(&figures, "has another CSI snapshot though one was recorded"),
        "{figures:#}"
    );
}
