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
fn patterns_of_namespaces_stand_for_those_that_there_are() {
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
        // Nothing found is nothing, and not everything.
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
fn a_namespace_that_is_named_and_not_there_is_an_error() {
    let Expanded { errors, warnings, .. } =
        expand(&globs(&["missing", "x-*", "", "seen", "gone"]), &[], &live());
    assert_eq!(
        errors,
        ["fail to get the namespace missing specified in backup.Spec.IncludedNamespaces"]
    );
    assert_eq!(
        warnings,
        [
            "the namespace gone is not active: of its objects only those that are still there can be \
          taken"
        ]
    );
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
