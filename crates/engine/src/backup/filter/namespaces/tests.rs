use super::*;

fn globs(names: &[&str]) -> Vec<Glob> {
    names.iter().map(|name| Glob::new(name).unwrap()).collect()
}

fn only(names: &[&str]) -> Scope {
    Scope::Only(names.iter().map(ToString::to_string).collect())
}

fn namespace(name: &str, pairs: &[(&str, &str)]) -> Namespace {
    let is_active = name != "gone";
    let labels = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Namespace { name: name.into(), labels, is_active }
}

fn live() -> Vec<Namespace> {
    vec![
        namespace("app-a", &[("argocd.argoproj.io/managed-by", "argo")]),
        namespace("app-b", &[("argocd.argoproj.io/managed-by", "")]),
        namespace("gone", &[]),
        namespace("hidden", &[("velero.io/exclude-from-backup", "true")]),
        namespace("seen", &[("velero.io/exclude-from-backup", "false")]),
    ]
}

#[test]
fn namespace_patterns_expand_to_existing_namespaces() {
    for (included, excluded, expected) in [
        (&[][..], &[][..], Scope::All),
        (&["*"], &[], Scope::All),
        (&["*"], &["app-*"], Scope::All),
        (&["app-*"], &[], only(&["app-a", "app-b"])),
        (&["app-?", "seen"], &[], only(&["app-a", "app-b", "seen"])),
        (&["app-[b-z]"], &[], only(&["app-b"])),
        (&["app-*"], &["app-a"], only(&["app-b"])),
        (&["app-*"], &["*-a"], only(&["app-b"])),
        (&["app-a"], &["app-*"], only(&[])),
        // A pattern without a match selects nothing, not everything.
        (&["x-*"], &[], only(&[])),
        (&["gone"], &[], only(&["gone"])),
        (&["missing", "seen"], &[], only(&["seen"])),
        (&[""], &[], only(&[])),
        // The label excludes as the list does.
        (&["*"], &[], Scope::All),
        (&["h*", "s*"], &[], only(&["seen"])),
    ] {
        let expanded = expand(&globs(included), &globs(excluded), &live());
        assert_eq!(expanded.scope, expected, "{included:?} without {excluded:?}");
        let all_excluded: Vec<_> = expanded.excluded.iter().map(Glob::as_str).collect();
        assert_eq!(all_excluded, [excluded, &["hidden"]].concat(), "{included:?}");
    }
}

#[test]
fn missing_named_namespace_is_an_error() {
    let ExpandedNamespaces { errors, warnings, .. } =
        expand(&globs(&["missing", "", "seen", "gone"]), &[], &live());
    assert_eq!(
        errors,
        ["fail to get the namespace missing specified in backup.Spec.IncludedNamespaces"]
    );
    assert_eq!(
        warnings,
        ["namespace gone is not active: only those of its objects that still exist are backed \
             up"]
    );
}

#[test]
fn a_pattern_that_matches_no_namespace_is_a_warning_and_an_error_where_none_is_left() {
    let unmatched = |glob: &str| {
        format!("the pattern {glob} in includedNamespaces matches no namespace of the cluster")
    };
    for (included, excluded, errors, warnings) in [
        (&["x-*"][..], &[][..], vec![unmatched("x-*")], vec![]),
        (&["x-*", "y-?"], &[], vec![unmatched("x-*"), unmatched("y-?")], vec![]),
        (&["x-*", "seen"], &[], vec![], vec![unmatched("x-*")]),
        (&["x-*", "app-*"], &["app-*"], vec![unmatched("x-*")], vec![]),
        (&["app-*"], &[], vec![], vec![]),
        (&["*"], &[], vec![], vec![]),
        (
            &["app-*"],
            &["app-*"],
            vec![],
            vec![
                "no namespace to back up: all namespaces that includedNamespaces matches are \
                 excluded"
                    .to_owned(),
            ],
        ),
    ] {
        let mut live = live();
        for namespace in &mut live {
            namespace.labels.clear();
        }
        let expanded = expand(&globs(included), &globs(excluded), &live);
        assert_eq!(expanded.errors, errors, "{included:?} without {excluded:?}");
        assert_eq!(expanded.warnings, warnings, "{included:?} without {excluded:?}");
    }
}

#[test]
fn a_list_of_all_namespaces_is_no_selection_unless_one_is_excluded() {
    let live = [namespace("a", &[]), namespace("b", &[])];
    let hidden =
        [namespace("a", &[]), namespace("b", &[("velero.io/exclude-from-backup", "true")])];
    for (included, excluded, live, expected) in [
        (&["a", "b"][..], &[][..], &live, true),
        (&["?"], &[], &live, true),
        (&["a"], &[], &live, false),
        (&["a", "b"], &["c"], &live, false),
        (&["a", "b"], &[], &hidden, false),
    ] {
        let expanded = expand(&globs(included), &globs(excluded), live);
        assert_eq!(expanded.is_of_all, expected, "{included:?} without {excluded:?}");
    }
}

#[test]
fn namespaces_that_argo_cd_manages_are_a_warning_if_they_are_taken() {
    for (included, excluded, is_warned) in [
        (&[][..], &[][..], true),
        (&["app-*"], &[], true),
        (&["seen"], &[], false),
        (&[], &["app-a"], false),
    ] {
        let expanded = expand(&globs(included), &globs(excluded), &live());
        let warning = "backup operation may encounter complications and potentially produce \
                       undesirable results due to the inclusion of namespaces [app-a] managed by \
                       ArgoCD in the backup.";
        let expected: &[&str] = if is_warned { &[warning] } else { &[] };
        assert_eq!(expanded.warnings, expected, "{included:?} without {excluded:?}");
    }
}
