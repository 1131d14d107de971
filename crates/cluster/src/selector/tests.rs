use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: Some(values.iter().map(ToString::to_string).collect()),
    }
}

fn selector(matched: &[(&str, &str)], expressions: &[LabelSelectorRequirement]) -> LabelSelector {
    LabelSelector {
        match_labels: Some(labels(matched)),
        match_expressions: Some(expressions.to_vec()),
    }
}

/// Labels written as `a=b c=`.
fn written(text: &str) -> BTreeMap<String, String> {
    let pairs: Vec<_> = text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    labels(&pairs)
}

#[test]
fn every_operator_decides_as_kubernetes_does() {
    for (text, yes, no) in [
        ("", &["", "a=b"][..], &[][..]),
        ("  ", &[""], &[]),
        ("a=b", &["a=b"], &["", "a=c"]),
        ("a==b", &["a=b"], &["a="]),
        ("a = b", &["a=b"], &[""]),
        ("a=", &["a="], &["", "a=b"]),
        ("a!=b", &["", "a=c"], &["a=b"]),
        ("a in (b,c)", &["a=b", "a=c"], &["", "a=d"]),
        ("a in(b)", &["a=b"], &[""]),
        ("a in (b,,c)", &["a=", "a=c"], &["", "a=d"]),
        ("a in ()", &["a="], &["", "a=b"]),
        ("a notin (b,c)", &["", "a=d"], &["a=b", "a=c"]),
        ("a", &["a=", "a=x"], &["", "b="]),
        ("!a", &["", "b="], &["a="]),
        ("a>3", &["a=4"], &["", "a=3", "a=x"]),
        ("a<3", &["a=2"], &["", "a=3", "a=x"]),
        ("in in (in)", &["in=in"], &[""]),
        ("x.io/a=b,c,!d", &["x.io/a=b c="], &["x.io/a=b", "c=", "x.io/a=b c= d="]),
    ] {
        let selector = Selector::parse(text).unwrap();
        for set in yes {
            assert!(selector.matches(&written(set)), "{text} must select {set:?}");
        }
        for set in no {
            assert!(!selector.matches(&written(set)), "{text} must not select {set:?}");
        }
    }
}

#[test]
fn a_selector_of_a_resource_is_written_for_the_api_server() {
    for (selector, text) in [
        (LabelSelector::default(), ""),
        (selector(&[], &[]), ""),
        (selector(&[("b", "2"), ("a", "1")], &[]), "a=1,b=2"),
        (selector(&[("a", "")], &[]), "a="),
        (selector(&[], &[expression("a", "In", &["y", "x", "y"])]), "a in (x,y)"),
        (selector(&[], &[expression("a", "In", &["x"])]), "a=x"),
        (selector(&[], &[expression("a", "NotIn", &["x", "y"])]), "a notin (x,y)"),
        (selector(&[], &[expression("a", "NotIn", &["x"])]), "a!=x"),
        (selector(&[], &[expression("a", "Exists", &[])]), "a"),
        (selector(&[], &[expression("a", "DoesNotExist", &[])]), "!a"),
        (selector(&[("k8s.io/b", "1")], &[expression("a", "Exists", &[])]), "a,k8s.io/b=1"),
    ] {
        let compiled = Selector::new(&selector).unwrap();
        assert_eq!(compiled.to_string(), text);
        assert_eq!(compiled.is_everything(), text.is_empty());
        assert_eq!(Selector::parse(text), Ok(compiled), "{text}");
    }
}

#[test]
fn labels_and_expressions_must_all_hold() {
    let selector = selector(&[("app", "db")], &[expression("tier", "NotIn", &["test"])]);
    let compiled = Selector::new(&selector).unwrap();
    for (set, expected) in [
        (&[("app", "db")][..], true),
        (&[("app", "db"), ("tier", "prod")], true),
        (&[("app", "db"), ("tier", "test")], false),
        (&[("tier", "prod")], false),
    ] {
        assert_eq!(compiled.matches(&labels(set)), expected, "{set:?}");
    }
}

#[test]
fn a_selector_of_a_resource_that_cannot_hold_is_refused() {
    let long = "x".repeat(64);
    for (selector, words) in [
        (selector(&[("", "x")], &[]), "\"\" is not a label key"),
        (selector(&[("a b", "x")], &[]), "is not a label key"),
        (selector(&[("-a", "x")], &[]), "is not a label key"),
        (selector(&[("/a", "x")], &[]), "is not a label key"),
        (selector(&[("A.io/a", "x")], &[]), "is not a label key"),
        (selector(&[("a/b/c", "x")], &[]), "is not a label key"),
        (selector(&[(&long, "x")], &[]), "is not a label key"),
        (selector(&[("a", "b c")], &[]), "\"b c\" for a is not a label value"),
        (selector(&[("a", "b-")], &[]), "is not a label value"),
        (selector(&[("a", &long)], &[]), "is not a label value"),
        (selector(&[], &[expression("a", "In", &["("])]), "is not a label value"),
        (selector(&[], &[expression("a", "In", &[])]), "In needs values for a"),
        (selector(&[], &[expression("a", "NotIn", &[])]), "NotIn needs values for a"),
        (selector(&[], &[expression("a", "Exists", &["x"])]), "Exists takes no values for a"),
        (
            selector(&[], &[expression("a", "DoesNotExist", &["x"])]),
            "DoesNotExist takes no values for a",
        ),
        (selector(&[], &[expression("a", "in", &["x"])]), "\"in\" is not an operator for a"),
        (selector(&[], &[expression("a", "Gt", &["1"])]), "\"Gt\" is not an operator for a"),
    ] {
        let error = Selector::new(&selector).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_text_that_is_no_selector_says_where_it_breaks() {
    for (text, words) in [
        ("a,", "has its end where a key or `!` was expected"),
        (",a", "has `,` where a key or `!` was expected"),
        ("a,,b", "has `,` where a key or `!` was expected"),
        ("a b", "has `b` where an operator was expected"),
        ("a=b c", "has `c` where a `,` or the end was expected"),
        ("!a=b", "has `=` where a `,` or the end was expected"),
        ("!", "has its end where a key was expected"),
        ("a in x", "has `x` where a `(` was expected"),
        ("a in (x", "has its end where a `,` or `)` was expected"),
        ("a in (x y)", "has `y` where a `,` or `)` was expected"),
        ("a in (=)", "has `=` where a value, `,` or `)` was expected"),
        ("a=(", "has `(` where a value was expected"),
        ("a>b", "a cannot be compared with \"b\""),
        ("a>-1", "a cannot be compared with \"-1\""),
        ("a>99999999999999999999", "expected a whole number"),
        ("a<", "a cannot be compared with \"\""),
        ("a=b/c", "\"b/c\" for a is not a label value"),
        ("ä", "\"ä\" is not a label key"),
    ] {
        let error = Selector::parse(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let name = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?";
    let key = prop_oneof![
        3 => name.prop_map(|name| name),
        1 => ("[a-z0-9]{1,4}(\\.[a-z]{1,3})?", name).prop_map(|(prefix, name)| format!("{prefix}/{name}")),
        1 => prop::sample::select(vec!["in".to_owned(), "notin".to_owned()]),
    ];
    let values = || {
        let value = prop_oneof![4 => name.prop_map(|name| name), 1 => Just(String::new())];
        prop::collection::btree_set(value, 1..4)
    };
    let test = prop_oneof![
        values().prop_map(Test::In),
        values().prop_map(Test::NotIn),
        Just(Test::Exists),
        Just(Test::DoesNotExist),
        (0..=i64::MAX).prop_map(Test::GreaterThan),
        (0..=i64::MAX).prop_map(Test::LessThan),
    ];
    (key, test).prop_map(|(key, test)| Requirement { key, test })
}

proptest! {
    #[test]
    fn written_selectors_are_read_back_unchanged(all in prop::collection::vec(requirement(), 0..5)) {
        let selector = Selector::from_requirements(all);
        prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
    }

    #[test]
    fn no_text_makes_parsing_panic(text in "[a!=<>,() in]{0,20}|.{0,20}") {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
        }
    }
}
