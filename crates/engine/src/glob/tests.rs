use proptest::prelude::*;

use super::*;

#[test]
fn patterns_match_as_those_of_velero() {
    for (pattern, yes, no) in [
        ("", &[""][..], &["a"][..]),
        ("web", &["web"], &["", "we", "web2", "a-web", "Web"]),
        ("*", &["", "a", "a.b/c"], &[]),
        ("**", &["", "a.b"], &[]),
        ("app-*", &["app-", "app-1", "app-a.b"], &["app", "my-app-1"]),
        ("*.apps", &["deployments.apps", ".apps"], &["apps", "deployments.apps.x"]),
        ("*a*b", &["ab", "xaxb", "abab"], &["a", "ba", "abc"]),
        ("ns?", &["ns1", "nsa", "nsé"], &["ns", "ns10"]),
        ("ns[123]", &["ns1", "ns3"], &["ns4", "ns", "ns12"]),
        ("ns[a-c]", &["nsa", "nsc"], &["nsd", "ns-", "ns"]),
        ("ns[!a-c]", &["nsd", "ns-"], &["nsa", "ns"]),
        ("ns[!ab]", &["nsc"], &["nsa", "nsb", "ns"]),
        // In a list `-` is an ordinary character, also between two others.
        ("[ab-c]", &["a", "-", "c"], &["d"]),
        ("[!!a]", &["b"], &["!", "a"]),
        (r"[\]a]", &["]", "a"], &["\\"]),
        ("{pods,secrets}", &["pods", "secrets"], &["", "pods,secrets", "pod"]),
        ("{a*,b}.x", &["a.x", "aa.x", "b.x"], &["bb.x", "x"]),
        ("a{b,{c,d}e,}f", &["abf", "acef", "adef", "af"], &["abcf", "acf", "aef"]),
        (r"\*", &["*"], &["a", ""]),
        (r"a\{b", &["a{b"], &["ab"]),
        ("a]b}c,d", &["a]b}c,d"], &["a"]),
    ] {
        let glob = Glob::new(pattern).unwrap();
        for text in yes {
            assert!(glob.matches(text), "{pattern} must match {text}");
        }
        for text in no {
            assert!(!glob.matches(text), "{pattern} must not match {text}");
        }
    }
}

#[test]
fn invalid_patterns_are_refused_with_a_reason() {
    for (pattern, words) in [
        ("[a", "has a `[` without its `]`"),
        ("[", "has a `[` without its `]`"),
        ("[a-", "has a `[` without its `]`"),
        ("[a-]", "has a `[` without its `]`"),
        ("x[]", "has an empty `[]`"),
        ("x[!]", "has an empty `[]`"),
        ("[c-a]", "ends before it begins"),
        ("[a-c0]", "mixes ranges and characters"),
        ("{a,b", "has a `{` without its `}`"),
        ("a{b,{c}", "has a `{` without its `}`"),
        ("*\\", "ends with a `\\`"),
        (&"*".repeat(1025), "a pattern of 1025 characters is too long"),
    ] {
        let error = Glob::new(pattern).unwrap_err().to_string();
        assert!(error.contains(words), "{pattern}: {error}");
    }
}

#[test]
fn no_pattern_is_slow() {
    // A backtracking matcher would practically never end.
    let pattern = format!("{}b", "*a".repeat(200));
    let nested = format!("{}{}b", "{a,".repeat(100), "a}".repeat(100));
    let text = "a".repeat(2000);
    assert!(!Glob::new(&pattern).unwrap().matches(&text));
    assert!(!Glob::new(&nested).unwrap().matches(&text));
}

#[test]
fn every_pattern_of_the_maximum_length_compiles() {
    let nested = format!("{}{}", "{a,b".repeat(200), "}".repeat(200));
    let braces = format!("{}{}", "{".repeat(512), "}".repeat(512));
    assert!(Glob::new(&nested).unwrap().matches("bba"));
    assert!(Glob::new(&braces).unwrap().matches(""));
    assert!(Glob::new(&"?".repeat(1024)).unwrap().matches(&"é".repeat(1024)));
    assert!(Glob::new(&"[!a]".repeat(256)).unwrap().matches(&"é".repeat(256)));
}

#[test]
fn characters_with_a_meaning_in_regular_expressions_mean_themselves() {
    for text in [r".+^$|()-&~#", "a\nb", " x"] {
        let lists: Vec<_> = text.chars().map(|character| format!("[{character}&&-~^]")).collect();
        let listed = lists.concat();
        assert!(Glob::new(&format!("{text}*")).unwrap().matches(text), "{text}");
        assert!(Glob::new(&listed).unwrap().matches(text), "{listed}");
    }
    assert!(Glob::new("a*b").unwrap().matches("a\nb"));
    assert!(!Glob::new("a.c*").unwrap().matches("abc"));
}

#[test]
fn a_literal_is_never_a_pattern() {
    assert!(Glob::literal("a*").matches("a*"));
    assert!(!Glob::literal("a*").matches("ab"));
    assert_ne!(Glob::literal("a*"), Glob::new("a*").unwrap());
}

#[test]
fn one_of_several_patterns_is_enough_and_none_match_nothing() {
    let globs = Globs::new(["a", "b*", "c"]).unwrap();
    for (text, expected) in [("a", true), ("bb", true), ("c", true), ("ab", false), ("", false)] {
        assert_eq!(globs.matches(text), expected, "{text}");
    }
    assert!(!globs.is_empty());
    assert!(!globs.is_everything());
    assert!(Globs::new(["a", "*"]).unwrap().is_everything());
    assert!(Globs::new(["a", "[*"]).is_err());
    assert!(Globs::default().is_empty());
    assert!(!Globs::default().matches(""));
}

#[test]
fn patterns_for_namespaces_may_have_less_in_them() {
    use InvalidNamespacePattern::{Asterisks, Characters, EmptyBrackets, Unclosed, Unopened};
    for (pattern, expected) in [
        ("web", Ok(())),
        ("*", Ok(())),
        ("*-prod?", Ok(())),
        ("a[bc]d[e-f]", Ok(())),
        ("a|b", Err(Characters)),
        ("(a", Err(Characters)),
        ("a)", Err(Characters)),
        ("[!a]", Err(Characters)),
        ("{a", Err(Characters)),
        ("a}", Err(Characters)),
        ("a,b", Err(Characters)),
        ("a**", Err(Asterisks)),
        ("a[]", Err(EmptyBrackets)),
        ("a[b", Err(Unclosed)),
        ("a]", Err(Unopened)),
        ("[a]]", Err(Unopened)),
    ] {
        assert_eq!(check_namespace(pattern), expected, "{pattern}");
    }
}

/// Part of a pattern, for a reference matcher that tries everything.
#[derive(Clone, Debug)]
enum Piece {
    Char(char),
    One,
    Many,
    List(bool, Vec<char>),
    Range(bool, char, char),
    Either(Vec<Vec<Piece>>),
}

fn write(pieces: &[Piece]) -> String {
    let not = |negated: &bool| if *negated { "!" } else { "" };
    let piece = |piece: &Piece| match piece {
        Piece::Char(character) => character.to_string(),
        Piece::One => "?".to_owned(),
        Piece::Many => "*".to_owned(),
        Piece::List(negated, list) => {
            format!("[{}{}]", not(negated), list.iter().collect::<String>())
        }
        Piece::Range(negated, low, high) => format!("[{}{low}-{high}]", not(negated)),
        Piece::Either(all) => {
            format!("{{{}}}", all.iter().map(|one| write(one)).collect::<Vec<_>>().join(","))
        }
    };
    pieces.iter().map(piece).collect()
}

/// Possible rests of a text after the pieces.
fn rests<'a>(pieces: &[Piece], text: &'a [char]) -> Vec<&'a [char]> {
    let Some((piece, others)) = pieces.split_first() else { return vec![text] };
    let one = |fits: &dyn Fn(char) -> bool| match text.split_first() {
        Some((first, rest)) if fits(*first) => vec![rest],
        _ => vec![],
    };
    let after: Vec<&[char]> = match piece {
        Piece::Char(own) => one(&|character| character == *own),
        Piece::One => one(&|_| true),
        Piece::Many => (0..=text.len()).map(|start| &text[start..]).collect(),
        Piece::List(negated, list) => one(&|character| list.contains(&character) != *negated),
        Piece::Range(negated, low, high) => {
            one(&|character| (*low <= character && character <= *high) != *negated)
        }
        Piece::Either(all) => all.iter().flat_map(|each| rests(each, text)).collect(),
    };
    after.into_iter().flat_map(|rest| rests(others, rest)).collect()
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let letter = || prop::sample::select(vec!['a', 'b', 'c']);
    let leaf = prop_oneof![
        4 => letter().prop_map(Piece::Char),
        1 => Just(Piece::One),
        2 => Just(Piece::Many),
        1 => (any::<bool>(), prop::collection::vec(letter(), 1..3))
            .prop_map(|(negated, list)| Piece::List(negated, list)),
        1 => (any::<bool>(), letter(), letter())
            .prop_map(|(negated, a, b)| Piece::Range(negated, a.min(b), a.max(b))),
    ];
    let piece = leaf.prop_recursive(2, 6, 3, |inner| {
        prop::collection::vec(prop::collection::vec(inner, 0..3), 1..3).prop_map(Piece::Either)
    });
    prop::collection::vec(piece, 0..5)
}

proptest! {
    #[test]
    fn matching_agrees_with_trying_everything(pieces in pieces(), text in "[abcd]{0,7}") {
        let glob = Glob::new(&write(&pieces)).unwrap();
        let characters: Vec<char> = text.chars().collect();
        let expected = rests(&pieces, &characters).iter().any(|rest| rest.is_empty());
        prop_assert_eq!(glob.matches(&text), expected, "{} on {:?}", glob, text);
    }

    #[test]
    fn no_text_makes_compiling_or_matching_panic(pattern in any::<String>(), text in any::<String>()) {
        if let Ok(glob) = Glob::new(&pattern) {
            glob.matches(&text);
        }
    }
}
