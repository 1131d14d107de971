use super::*;

fn key(plugin: &str, item: &str) -> ActionOnItem {
    ActionOnItem { plugin: plugin.into(), item: item.into() }
}

fn executed(item: &str, operation: &str) -> ExecutedAction {
    let operation = Some(operation.to_owned()).filter(|id| !id.is_empty());
    ExecutedAction { key: key("p", item), operation }
}

fn operation(item: &str, id: &str) -> Operation {
    Operation { key: key("p", item), id: id.into(), is_completed: true }
}

fn run(shown: &[(&str, &str)], known: &[(&str, &str)], leftovers: &[&str]) -> RunEvidence {
    RunEvidence {
        name: "r".into(),
        phase: "Completed".into(),
        executed: shown.iter().map(|(item, id)| executed(item, id)).collect(),
        operations: known.iter().map(|(item, id)| operation(item, id)).collect(),
        leftover_warnings: leftovers.iter().map(|item| key("p", item)).collect(),
        ..RunEvidence::default()
    }
}

#[test]
fn operation_is_lost_if_no_file_or_warning_names_it() {
    let cases = [
        (run(&[("a", "1")], &[("a", "1")], &[]), 0),
        (run(&[("a", "")], &[], &[]), 0),
        (run(&[("a", "1")], &[], &[]), 1),
        (run(&[("a", "1")], &[], &["a"]), 0),
        (run(&[("a", "1")], &[], &["b"]), 1),
        // The same id, and another item.
        (run(&[("a", "1")], &[("b", "1")], &[]), 1),
        (run(&[("a", "1"), ("a", "2")], &[("a", "2")], &["a"]), 0),
        (run(&[("a", "1"), ("a", "2"), ("a", "3")], &[("a", "3")], &["a"]), 1),
    ];
    for (run, expected) in cases {
        assert_eq!(lost_resources(&run).len(), expected, "{run:?}");
    }
}

#[test]
fn item_executed_again_without_a_warning_is_repeated_work() {
    let cases = [
        (run(&[("a", "1"), ("b", "1")], &[], &[]), 0),
        (run(&[("a", "1"), ("a", "2")], &[], &[]), 1),
        (run(&[("a", "1"), ("a", "2")], &[], &["a"]), 0),
        (run(&[("a", "1"), ("a", "2"), ("a", "3")], &[], &["a"]), 1),
        // Announced, but never passed to the action.
        (run(&[("a", "1")], &[], &["a", "a"]), 0),
    ];
    for (run, expected) in cases {
        assert_eq!(repeated_work(&run).len(), expected, "{run:?}");
    }
    let mut two = run(&[("a", "1"), ("a", "2")], &[], &[]);
    two.executed[1].key.plugin = "other".into();
    assert_eq!(repeated_work(&two), Vec::<String>::new());
}

#[test]
fn recorded_item_executed_again_is_repeated_work_despite_a_warning() {
    let mut again = run(&[("a", "1"), ("a", "2")], &[], &["a"]);
    again.executed_when_recorded = Some(2);
    assert_eq!(repeated_work(&again).len(), 0);
    again.executed_when_recorded = Some(1);
    assert_eq!(repeated_work(&again).len(), 1);
}

#[test]
fn pod_is_frozen_unless_every_freeze_was_thawed() {
    let cases: [(&[&str], usize); 7] = [
        (&[], 0),
        (&["freeze", "thaw"], 0),
        (&["freeze", "thaw", "thaw"], 0),
        (&["freeze"], 1),
        (&["freeze", "thaw", "freeze"], 1),
        (&["freeze", "freeze", "thaw"], 1),
        (&["thaw", "freeze"], 1),
    ];
    for (lines, expected) in cases {
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        assert_eq!(frozen_pods([("p", lines.as_slice())]).len(), expected, "{lines:?}");
    }
}

#[test]
fn run_is_finished_if_completed_with_its_operations_and_nothing_missing() {
    let complete = run(&[], &[("a", "1")], &[]);
    assert_eq!(unfinished_reasons(&complete), Vec::<String>::new());
    let mut open = complete.clone();
    open.operations[0].is_completed = false;
    let missing = RunEvidence { missing: vec!["pods/a".into()], ..complete.clone() };
    let failed = RunEvidence { phase: "Failed".into(), reason: "no luck".into(), ..complete };
    for (run, expected) in [
        (open, "r has 1 operations that are not completed"),
        (missing, "r lacks pods/a"),
        (failed, "r is Failed no luck"),
    ] {
        assert_eq!(unfinished_reasons(&run), [expected]);
    }
}
