use bowline_engine::operation::{Kind, State};
use bowline_plugin::{Class, OperationId, ResourceIdentifier};

use super::*;

mod page;

const NOW: i64 = 1_000;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Operation for the item `item`, started at a second.
fn operation(plugin: &str, item: &str, created: i64, state: State) -> Operation {
    let item = ResourceIdentifier { name: item.to_owned(), ..ResourceIdentifier::default() };
    let id = OperationId::new("op").unwrap();
    let hour = Duration::from_hours(1);
    let started =
        Operation::started(Kind::ItemBackup, name(plugin), item, id, second(created), hour);
    Operation { state, ..started }
}

fn failed() -> State {
    State::Failed("for this test".into())
}

/// Lines of one metric, without its name and in order.
fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
    let text = metrics.render(second(NOW)).unwrap();
    let is_of = |rest: &str| rest.starts_with(['{', ' ']);
    let rest = |line: &str| line.strip_prefix(metric).filter(|rest| is_of(rest)).map(str::to_owned);
    let mut lines: Vec<_> = text.lines().filter_map(rest).collect();
    lines.sort();
    lines
}

const OPERATIONS: &str = "bowline_operations";
const ENDED: &str = "bowline_operations_ended_total";
const OLDEST: &str = "bowline_operation_oldest_age_seconds";

#[test]
fn snapshot_operations_have_their_own_kinds() {
    let metrics = Metrics::new();
    let of = |kind, state| Operation { kind, ..operation("a/b", "pv", 900, state) };
    metrics.set_operations(
        "1",
        &[
            of(Kind::SnapshotCreation, State::Completed),
            of(Kind::SnapshotUpload, State::InProgress),
        ],
    );
    let upload = r#"{kind="snapshot-upload",plugin="a/b",state="InProgress"} 1"#;
    assert_eq!(lines(&metrics, OPERATIONS), [upload]);
    let creation = r#"{kind="snapshot-creation",plugin="a/b",state="Completed"} 1"#;
    assert_eq!(lines(&metrics, ENDED), [creation]);
    metrics.set_operations("1", &[of(Kind::SnapshotUpload, failed())]);
    let upload = r#"{kind="snapshot-upload",plugin="a/b",state="Failed"} 1"#;
    assert_eq!(lines(&metrics, ENDED), [creation, upload]);
    // As `docs/metrics.md` lists them.
    let documented = include_str!("../../../../docs/metrics.md");
    for kind in [Kind::ItemBackup, Kind::ItemRestore, Kind::SnapshotCreation, Kind::SnapshotUpload]
    {
        let word = format!("`{}`", kind.as_str());
        assert!(documented.contains(&word), "no {word}");
    }
}

#[test]
fn running_operations_are_summed_over_runs_and_drop_to_zero() {
    let metrics = Metrics::new();
    let under_way = |item| operation("a/b", item, 900, State::InProgress);
    metrics.set_operations(
        "1",
        &[under_way("x"), under_way("y"), operation("a/b", "z", 990, State::New)],
    );
    metrics.set_operations("2", &[under_way("x"), operation("c/d", "x", 950, State::InProgress)]);
    let ab = r#"{kind="item-backup",plugin="a/b",state="InProgress"}"#;
    let new = r#"{kind="item-backup",plugin="a/b",state="New"}"#;
    let cd = r#"{kind="item-backup",plugin="c/d",state="InProgress"}"#;
    let rows = |values: [i64; 3]| {
        [ab, new, cd].iter().zip(values).map(|(row, value)| format!("{row} {value}")).collect()
    };
    let expect = |values| {
        let expected: Vec<String> = rows(values);
        assert_eq!(lines(&metrics, OPERATIONS), expected);
    };
    expect([3, 1, 1]);
    // New operations of a run replace its previous ones.
    metrics.set_operations("1", &[under_way("x")]);
    expect([2, 0, 1]);
    metrics.remove_run("2");
    expect([1, 0, 0]);
    metrics.remove_run("1");
    metrics.remove_run("1");
    expect([0, 0, 0]);
}

#[test]
fn ended_operation_is_counted_once() {
    let metrics = Metrics::new();
    let running = operation("a/b", "x", 1, State::InProgress);
    metrics.set_operations("1", std::slice::from_ref(&running));
    assert!(lines(&metrics, ENDED).is_empty());
    let ended = Operation { state: State::Completed, ..running.clone() };
    // If a plugin reuses one id, another item is another operation.
    let other = operation("a/b", "y", 1, failed());
    let completed = r#"{kind="item-backup",plugin="a/b",state="Completed"}"#;
    let failed = r#"{kind="item-backup",plugin="a/b",state="Failed"}"#;
    for _ in 0..3 {
        metrics.set_operations("1", &[ended.clone(), other.clone()]);
        metrics.set_operations("1", &[other.clone(), ended.clone()]);
        assert_eq!(lines(&metrics, ENDED), [format!("{completed} 1"), format!("{failed} 1")]);
    }
    // The same id in another run is another operation.
    metrics.set_operations("2", &[ended]);
    assert_eq!(lines(&metrics, ENDED), [format!("{completed} 2"), format!("{failed} 1")]);
}

#[test]
fn adopted_ended_operations_are_not_counted_again() {
    let metrics = Metrics::new();
    let ended = operation("a/b", "x", 1, State::Completed);
    let running = operation("a/b", "y", 1, State::InProgress);
    metrics.adopt_operations("1", &[ended.clone(), running.clone()]);
    assert!(lines(&metrics, ENDED).is_empty());
    assert_eq!(lines(&metrics, OPERATIONS).len(), 1);
    metrics.set_operations("1", &[ended, Operation { state: State::Completed, ..running }]);
    let one = r#"{kind="item-backup",plugin="a/b",state="Completed"} 1"#;
    assert_eq!(lines(&metrics, ENDED), [one]);
}

#[test]
fn oldest_operation_age_grows_with_time() {
    let metrics = Metrics::new();
    metrics.set_operations(
        "1",
        &[
            operation("a/b", "x", NOW - 20, State::New),
            operation("a/b", "y", NOW - 90, State::InProgress),
            operation("a/b", "z", NOW - 500, State::Completed),
        ],
    );
    metrics.set_operations("2", &[operation("a/b", "x", NOW - 30, State::InProgress)]);
    let row = r#"{kind="item-backup",plugin="a/b"}"#;
    assert_eq!(lines(&metrics, OLDEST), [format!("{row} 90.0")]);
    assert!(metrics.render(second(NOW + 5)).unwrap().contains(&format!("{OLDEST}{row} 95.0")));
    metrics.remove_run("1");
    assert_eq!(lines(&metrics, OLDEST), [format!("{row} 30.0")]);
    metrics.remove_run("2");
    assert_eq!(lines(&metrics, OLDEST), [format!("{row} 0.0")]);
    // The clock was set back.
    metrics.set_operations("3", &[operation("a/b", "x", NOW + 60, State::New)]);
    assert_eq!(lines(&metrics, OLDEST), [format!("{row} 0.0")]);
}

#[test]
fn plugin_calls_runs_and_freeze_windows_are_exported() {
    let metrics = Metrics::new();
    let took = Duration::from_millis(30);
    metrics.observe_plugin_call(&name("a/b"), Method::Execute, CallOutcome::Ok, took);
    metrics.observe_plugin_call(
        &name("a/b"),
        Method::Execute,
        CallOutcome::Ok,
        Duration::from_hours(1),
    );
    let transient = CallOutcome::Failed(Class::Transient);
    metrics.observe_plugin_call(&name("a/b"), Method::Progress, transient, took);
    metrics.run_ended(RunKind::Backup, TerminalPhase::Completed);
    metrics.run_ended(RunKind::Restore, TerminalPhase::PartiallyFailed);
    metrics.observe_freeze(Duration::from_secs(3));
    let text = metrics.render(second(NOW)).unwrap();
    let ok = r#"plugin="a/b",method="Execute",outcome="ok""#;
    for line in [
        "# TYPE bowline_plugin_call_duration_seconds histogram",
        &format!(r#"bowline_plugin_call_duration_seconds_bucket{{le="0.025",{ok}}} 0"#),
        &format!(r#"bowline_plugin_call_duration_seconds_bucket{{le="0.05",{ok}}} 1"#),
        &format!(r#"bowline_plugin_call_duration_seconds_bucket{{le="600.0",{ok}}} 1"#),
        &format!(r#"bowline_plugin_call_duration_seconds_bucket{{le="+Inf",{ok}}} 2"#),
        r#"bowline_plugin_call_duration_seconds_count{plugin="a/b",method="Progress",outcome="transient"} 1"#,
        "# TYPE bowline_runs_ended counter",
        r#"bowline_runs_ended_total{kind="backup",phase="Completed"} 1"#,
        r#"bowline_runs_ended_total{kind="restore",phase="PartiallyFailed"} 1"#,
        // Including outcomes that have not occurred, so that the first one shows as an increase.
        r#"bowline_runs_ended_total{kind="backup",phase="Failed"} 0"#,
        r#"bowline_freeze_window_seconds_bucket{le="2.5"} 0"#,
        r#"bowline_freeze_window_seconds_bucket{le="5.0"} 1"#,
        "bowline_freeze_window_seconds_sum 3.0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in {text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn plugin_name_is_escaped_in_metrics() {
    let metrics = Metrics::new();
    let plugin = "a/b\"} 1\nbowline_lies 7";
    metrics.set_operations("1", &[operation(plugin, "x", NOW, State::New)]);
    metrics.observe_plugin_call(&name(plugin), Method::Execute, CallOutcome::Ok, Duration::ZERO);
    let text = metrics.render(second(NOW)).unwrap();
    assert!(text.lines().all(|line| !line.starts_with("bowline_lies")), "{text}");
    assert!(text.contains(r#"plugin="a/b\"} 1\nbowline_lies 7""#), "{text}");
}

#[test]
fn plugins_beyond_the_limit_share_one_label() {
    let metrics = Metrics::new();
    let operations: Vec<_> = (0..1_000)
        .map(|number| operation(&format!("a/{number}"), "x", NOW, State::InProgress))
        .collect();
    metrics.set_operations("1", &operations);
    let lines = lines(&metrics, OPERATIONS);
    assert_eq!(lines.len(), 65);
    let rest = r#"{kind="item-backup",plugin="other",state="InProgress"} 936"#;
    assert!(lines.iter().any(|line| line == rest), "{lines:?}");
}

#[test]
fn deletions_are_counted_per_schedule_under_velero_names() {
    let metrics = Metrics::new();
    metrics.count_deletion("", Deletion::Attempt);
    metrics.count_deletion("", Deletion::Success);
    metrics.count_deletion("nightly", Deletion::Attempt);
    metrics.count_deletion("nightly", Deletion::Attempt);
    metrics.count_deletion("nightly", Deletion::Failure);
    let attempts = [r#"{schedule=""} 1"#, r#"{schedule="nightly"} 2"#];
    assert_eq!(lines(&metrics, "velero_backup_deletion_attempt_total"), attempts);
    let success = lines(&metrics, "velero_backup_deletion_success_total");
    assert_eq!(success, [r#"{schedule=""} 1"#]);
    let failure = lines(&metrics, "velero_backup_deletion_failure_total");
    assert_eq!(failure, [r#"{schedule=""} 0"#, r#"{schedule="nightly"} 1"#]);
    let text = metrics.render(second(NOW)).unwrap();
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
}
