use super::*;

fn key(plugin: &str, item: &str) -> Key {
    Key { plugin: plugin.into(), item: item.into() }
}

fn executed(item: &str, operation: &str) -> Executed {
    let operation = Some(operation.to_owned()).filter(|id| !id.is_empty());
    Executed { key: key("p", item), operation }
}

fn operation(item: &str, id: &str) -> Operation {
    Operation { key: key("p", item), id: id.into(), is_completed: true }
}

fn run(shown: &[(&str, &str)], known: &[(&str, &str)], leftovers: &[&str]) -> Run {
    Run {
        name: "r".into(),
        phase: "Completed".into(),
        executed: shown.iter().map(|(item, id)| executed(item, id)).collect(),
        operations: known.iter().map(|(item, id)| operation(item, id)).collect(),
        leftovers: leftovers.iter().map(|item| key("p", item)).collect(),
        ..Run::default()
    }
}

#[test]
fn an_operation_is_lost_if_neither_the_bucket_nor_a_warning_knows_it() {
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
        assert_eq!(lost(&run).len(), expected, "{run:?}");
    }
}

#[test]
fn an_item_is_doubled_if_it_is_shown_again_without_a_warning() {
    let cases = [
        (run(&[("a", "1"), ("b", "1")], &[], &[]), 0),
        (run(&[("a", "1"), ("a", "2")], &[], &[]), 1),
        (run(&[("a", "1"), ("a", "2")], &[], &["a"]), 0),
        (run(&[("a", "1"), ("a", "2"), ("a", "3")], &[], &["a"]), 1),
        // One that was never shown, though it was about to be.
        (run(&[("a", "1")], &[], &["a", "a"]), 0),
    ];
    for (run, expected) in cases {
        assert_eq!(doubled(&run).len(), expected, "{run:?}");
    }
    let mut two = run(&[("a", "1"), ("a", "2")], &[], &[]);
    two.executed[1].key.plugin = "other".into();
    assert_eq!(doubled(&two), Vec::<String>::new());
}

#[test]
fn what_was_recorded_is_doubled_even_with_a_warning() {
    let mut again = run(&[("a", "1"), ("a", "2")], &[], &["a"]);
    again.recorded = Some(2);
    assert_eq!(doubled(&again).len(), 0);
    again.recorded = Some(1);
    assert_eq!(doubled(&again).len(), 1);
}

#[test]
fn a_pod_is_frozen_unless_every_freeze_was_followed_by_a_thaw() {
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
        assert_eq!(frozen([("p", lines.as_slice())]).len(), expected, "{lines:?}");
    }
}

#[test]
fn a_run_is_finished_if_it_and_its_operations_are_completed_and_nothing_is_missing() {
    let fine = run(&[], &[("a", "1")], &[]);
    assert_eq!(unfinished(&fine), Vec::<String>::new());
    let mut open = fine.clone();
    open.operations[0].is_completed = false;
    let missing = Run { missing: vec!["pods/a".into()], ..fine.clone() };
    let failed = Run { phase: "Failed".into(), reason: "no luck".into(), ..fine };
    for (run, expected) in [
        (open, "r has 1 operations that are not completed"),
        (missing, "r lacks pods/a"),
        (failed, "r is Failed no luck"),
    ] {
        assert_eq!(unfinished(&run), [expected]);
    }
}
