use std::sync::Arc;

use super::*;

const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";

fn resources() -> Resources {
    let resource = |plural: &str, group: &str, short: &str, is_namespaced| Resource {
        id: GroupResource::new(group, plural),
        version: "v1".into(),
        kind: plural.trim_end_matches('s').into(),
        singular: plural.trim_end_matches('s').into(),
        short_names: vec![short.into()],
        is_namespaced,
        verbs: Vec::new(),
    };
    Resources::new([
        resource("pods", "", "po", true),
        resource("secrets", "", "sec", true),
        resource("persistentvolumeclaims", "", "pvc", true),
        resource("persistentvolumes", "", "pv", false),
        resource("namespaces", "", "ns", false),
        resource("deployments", "apps", "deploy", true),
        resource("storageclasses", "storage.k8s.io", "sc", false),
        resource("clusterroles", "rbac.authorization.k8s.io", "cr", false),
        resource("customresourcedefinitions", "apiextensions.k8s.io", "crd", false),
        resource("volumesnapshots", "snapshot.storage.k8s.io", "vs", true),
        resource("volumesnapshotcontents", "snapshot.storage.k8s.io", "vsc", false),
        resource("widgets", "example.io", "wi", true),
    ])
}

fn find(name: &str) -> Arc<Resource> {
    Arc::clone(resources().resolve(name).unwrap_or_else(|| panic!("{name} is not known")))
}

fn globs(names: &[&str]) -> Vec<Glob> {
    names.iter().map(|name| Glob::new(name).unwrap()).collect()
}

fn lists(included: &[&str], excluded: &[&str]) -> Lists {
    Lists { included: globs(included), excluded: globs(excluded) }
}

fn only(names: &[&str]) -> Scope {
    Scope::Only(names.iter().map(ToString::to_string).collect())
}

fn old(included: &[&str], excluded: &[&str], cluster_resources: Option<bool>) -> Kinds {
    Kinds::Old { lists: lists(included, excluded), cluster_resources }
}

fn new(cluster: Lists, namespaced: Lists) -> Kinds {
    Kinds::New { spec: ScopedLists { cluster, namespaced }, policy: ScopedLists::default() }
}

fn filter(kinds: Kinds, namespaces: Scope, excluded_namespaces: &[&str]) -> Filter {
    let excluded_namespaces = globs(excluded_namespaces);
    let spec = Spec { namespaces, excluded_namespaces, kinds, ..Spec::default() };
    Filter::new(&spec, &resources())
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const INCLUDE: FilterVerdict = FilterVerdict::Include;

/// Checks which kinds are collected, and which are refused even as additional items.
#[track_caller]
fn check(filter: &Filter, rows: &[(&str, FilterVerdict, FilterVerdict)]) {
    for (name, kind, item) in rows {
        let resource = find(name);
        let namespace = if resource.is_namespaced { "shop" } else { "" };
        assert_eq!(filter.kind(&resource), *kind, "kind {name}");
        let got = filter.item(&resource, namespace, "x", &BTreeMap::new());
        assert_eq!(got, *item, "item of {name}");
    }
}

fn skip(reason: SkipReason) -> FilterVerdict {
    FilterVerdict::Skip(reason)
}

use SkipReason::{
    ExcludeLabel, KindExcluded, KindNotIncluded, NamespaceExcluded, NamespaceNotActive,
    NamespaceNotIncluded, NoClusterResources, NotSelected, PartOfCluster, SnapshotObject,
};

#[test]
fn a_backup_without_filters_takes_the_whole_cluster() {
    for filter in [
        filter(Kinds::default(), Scope::All, &[]),
        filter(new(lists(&[], &[]), lists(&["*"], &[])), Scope::All, &[]),
        // Entries that Velero itself adds to a spec are not a filter.
        filter(
            new(
                lists(&[], &["volumesnapshotcontents.snapshot.storage.k8s.io"]),
                lists(&[], &["volumesnapshots.snapshot.storage.k8s.io"]),
            ),
            Scope::All,
            &[],
        ),
    ] {
        check(
            &filter,
            &[
                ("pods", INCLUDE, INCLUDE),
                ("clusterroles", INCLUDE, INCLUDE),
                (CRDS, INCLUDE, INCLUDE),
                ("namespaces", INCLUDE, INCLUDE),
            ],
        );
        assert_eq!(filter.crd_rule(), CrdRule::Collected);
        assert!(filter.warnings().is_empty());
    }
}

#[test]
fn excluding_namespaces_is_no_selection_of_namespaces() {
    for kinds in [Kinds::default(), old(&[], &["secrets"], None)] {
        let filter = filter(kinds, Scope::All, &["kube-*"]);
        check(
            &filter,
            &[("clusterroles", INCLUDE, INCLUDE), ("persistentvolumes", INCLUDE, INCLUDE)],
        );
        assert_eq!(filter.namespaces(), Scope::All);
    }
}

#[test]
fn selected_namespaces_exclude_cluster_scoped_kinds_except_additional_items() {
    for kinds in [Kinds::default(), old(&["*"], &[], None)] {
        let filter = filter(kinds, only(&["shop"]), &[]);
        check(
            &filter,
            &[
                ("pods", INCLUDE, INCLUDE),
                ("clusterroles", skip(PartOfCluster), INCLUDE),
                ("persistentvolumes", skip(PartOfCluster), INCLUDE),
                ("namespaces", INCLUDE, INCLUDE),
            ],
        );
        assert_eq!(filter.crd_rule(), CrdRule::OfStored);
        assert_eq!(filter.namespaces(), only(&["shop"]));
    }
}

#[test]
fn objects_of_the_snapshot_api_are_never_collected() {
    let everything = new(lists(&["*"], &[]), lists(&["*"], &[]));
    let named = new(lists(&["vsc"], &[]), lists(&["vs"], &[]));
    for kinds in [Kinds::default(), old(&["vs", "vsc"], &[], Some(true)), everything, named] {
        check(
            &filter(kinds, Scope::All, &[]),
            &[
                ("vs", skip(SnapshotObject), skip(SnapshotObject)),
                ("vsc", skip(SnapshotObject), skip(SnapshotObject)),
            ],
        );
    }
}

#[test]
fn list_whose_names_are_all_ignored_includes_nothing() {
    // Velero would include everything.
    let snapshots = filter(new(lists(&[], &[]), lists(&["vs"], &[])), Scope::All, &[]);
    check(&snapshots, &[("pods", skip(KindNotIncluded), skip(KindNotIncluded))]);
    let wrong_scope = filter(new(lists(&[], &[]), lists(&["clusterroles"], &[])), Scope::All, &[]);
    check(&wrong_scope, &[("pods", skip(KindNotIncluded), skip(KindNotIncluded))]);
    let unknown = filter(old(&["nothing.like.it"], &[], None), Scope::All, &[]);
    check(&unknown, &[("pods", skip(KindNotIncluded), skip(KindNotIncluded))]);
}

#[test]
fn old_lists_hold_for_kinds_of_both_scopes() {
    let filter = filter(old(&["pods", "deploy", "pv"], &[], None), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("deployments", INCLUDE, INCLUDE),
            ("secrets", skip(KindNotIncluded), skip(KindNotIncluded)),
            ("persistentvolumes", INCLUDE, INCLUDE),
            // Without includeClusterResources only kinds in the lists are included.
            ("storageclasses", skip(KindNotIncluded), skip(KindNotIncluded)),
            ("namespaces", skip(KindNotIncluded), INCLUDE),
        ],
    );
    assert_eq!(filter.crd_rule(), CrdRule::Excluded);
}

#[test]
fn old_excludes_win_over_old_includes() {
    let filter =
        filter(old(&["*"], &["sec", "*.rbac.authorization.k8s.io"], None), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("secrets", skip(KindExcluded), skip(KindExcluded)),
            ("clusterroles", skip(KindExcluded), skip(KindExcluded)),
            ("storageclasses", INCLUDE, INCLUDE),
        ],
    );
}

#[test]
fn include_cluster_resources_true_takes_them_also_with_selected_namespaces() {
    let all = filter(old(&[], &["storageclasses"], Some(true)), only(&["shop"]), &[]);
    check(
        &all,
        &[
            ("clusterroles", INCLUDE, INCLUDE),
            ("storageclasses", skip(KindExcluded), skip(KindExcluded)),
            ("namespaces", INCLUDE, INCLUDE),
        ],
    );
    assert_eq!(all.crd_rule(), CrdRule::Collected);
    // With a list, kinds are collected only if they are in it, and may still be additional items if not.
    let some = filter(old(&["pods"], &[], Some(true)), only(&["shop"]), &[]);
    check(
        &some,
        &[
            ("clusterroles", skip(KindNotIncluded), INCLUDE),
            ("secrets", skip(KindNotIncluded), skip(KindNotIncluded)),
        ],
    );
    assert_eq!(some.crd_rule(), CrdRule::OfStored);
}

#[test]
fn include_cluster_resources_false_excludes_them_even_as_additional_items() {
    let filter = filter(old(&["*"], &[], Some(false)), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("persistentvolumes", skip(NoClusterResources), skip(NoClusterResources)),
            // Namespaces are not collected, but may come as items that must be included.
            ("namespaces", skip(NoClusterResources), INCLUDE),
        ],
    );
    assert_eq!(filter.crd_rule(), CrdRule::Excluded);
}

#[test]
fn new_lists_of_namespaced_kinds() {
    let some =
        filter(new(lists(&[], &[]), lists(&["po", "*.apps"], &["secrets"])), Scope::All, &[]);
    check(
        &some,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("deployments", INCLUDE, INCLUDE),
            ("secrets", skip(KindExcluded), skip(KindExcluded)),
            ("widgets", skip(KindNotIncluded), skip(KindNotIncluded)),
            // The backup is no longer one of the whole cluster.
            ("clusterroles", skip(PartOfCluster), INCLUDE),
            ("namespaces", INCLUDE, INCLUDE),
        ],
    );
    assert_eq!(some.crd_rule(), CrdRule::OfStored);
    let none = filter(new(lists(&[], &[]), lists(&[], &["*"])), Scope::All, &[]);
    check(&none, &[("pods", skip(KindExcluded), skip(KindExcluded))]);
}

#[test]
fn new_lists_of_cluster_scoped_kinds() {
    let some = filter(new(lists(&["sc", "crd"], &[]), lists(&[], &[])), only(&["shop"]), &[]);
    check(
        &some,
        &[
            ("storageclasses", INCLUDE, INCLUDE),
            ("clusterroles", skip(KindNotIncluded), INCLUDE),
            ("namespaces", INCLUDE, INCLUDE),
            ("pods", INCLUDE, INCLUDE),
        ],
    );
    assert_eq!(some.crd_rule(), CrdRule::Collected);

    let all = filter(new(lists(&["*"], &["cr"]), lists(&[], &[])), only(&["shop"]), &[]);
    check(
        &all,
        &[
            ("storageclasses", INCLUDE, INCLUDE),
            ("clusterroles", skip(KindExcluded), skip(KindExcluded)),
        ],
    );

    // An exclusion says that not all are wanted, but not which are.
    let excluded = filter(new(lists(&[], &["cr"]), lists(&[], &[])), Scope::All, &[]);
    check(
        &excluded,
        &[
            ("storageclasses", skip(KindNotIncluded), INCLUDE),
            ("clusterroles", skip(KindExcluded), skip(KindExcluded)),
            ("namespaces", INCLUDE, INCLUDE),
        ],
    );

    let none = filter(new(lists(&[], &["*"]), lists(&[], &[])), Scope::All, &[]);
    check(
        &none,
        &[
            ("persistentvolumes", skip(KindExcluded), skip(KindExcluded)),
            ("namespaces", skip(KindExcluded), INCLUDE),
        ],
    );
    assert_eq!(none.crd_rule(), CrdRule::Excluded);
}

#[test]
fn names_of_the_wrong_scope_are_ignored_with_a_warning() {
    let kinds = new(lists(&["sc", "pods"], &[]), lists(&[], &["clusterroles", "secrets"]));
    let filter = filter(kinds, Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("storageclasses", INCLUDE, INCLUDE),
            ("clusterroles", skip(KindNotIncluded), INCLUDE),
            ("secrets", skip(KindExcluded), skip(KindExcluded)),
        ],
    );
    assert_eq!(
        filter.warnings(),
        [
            "pods is namespace-scoped and is ignored in a list of cluster-scoped resources",
            "clusterroles is cluster-scoped and is ignored in a list of namespace-scoped resources",
        ]
    );
}

#[test]
fn a_policy_counts_where_the_spec_says_nothing() {
    let with_policy = |spec: ScopedLists, policy: ScopedLists| {
        filter(Kinds::New { spec, policy }, Scope::All, &[])
    };
    let policy = || ScopedLists {
        cluster: lists(&["sc"], &["cr"]),
        namespaced: lists(&["pods", "secrets"], &["deploy"]),
    };
    let alone = with_policy(ScopedLists::default(), policy());
    check(
        &alone,
        &[
            ("pods", INCLUDE, INCLUDE),
            ("deployments", skip(KindExcluded), skip(KindExcluded)),
            ("widgets", skip(KindNotIncluded), skip(KindNotIncluded)),
            ("storageclasses", INCLUDE, INCLUDE),
            ("clusterroles", skip(KindExcluded), skip(KindExcluded)),
            ("persistentvolumes", skip(KindNotIncluded), INCLUDE),
        ],
    );
    let overruled = with_policy(
        ScopedLists { cluster: lists(&["cr"], &[]), namespaced: lists(&["deploy"], &["secrets"]) },
        policy(),
    );
    check(
        &overruled,
        &[
            ("deployments", INCLUDE, INCLUDE),
            ("secrets", skip(KindExcluded), skip(KindExcluded)),
            ("pods", INCLUDE, INCLUDE),
            ("clusterroles", INCLUDE, INCLUDE),
            ("storageclasses", INCLUDE, INCLUDE),
        ],
    );
    let everything = with_policy(
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&["*"], &[]) },
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&[], &["secrets"]) },
    );
    check(&everything, &[("secrets", INCLUDE, INCLUDE)]);
    // A kind that the spec excludes cannot become the only included one by the policy.
    let contradicted = with_policy(
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&[], &["secrets"]) },
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&["secrets"], &[]) },
    );
    check(
        &contradicted,
        &[("pods", INCLUDE, INCLUDE), ("secrets", skip(KindExcluded), skip(KindExcluded))],
    );
}

#[test]
fn an_object_may_exclude_itself() {
    let filter = filter(Kinds::default(), Scope::All, &[]);
    for (value, expected) in [("true", skip(ExcludeLabel)), ("false", INCLUDE), ("", INCLUDE)] {
        let labels = labels(&[("velero.io/exclude-from-backup", value)]);
        for name in ["pods", "persistentvolumes", "namespaces"] {
            let resource = find(name);
            let namespace = if resource.is_namespaced { "shop" } else { "" };
            assert_eq!(filter.item(&resource, namespace, "x", &labels), expected, "{name} {value}");
        }
    }
}

#[test]
fn objects_are_in_a_namespace_that_is_included() {
    let all = filter(Kinds::default(), Scope::All, &["kube-*", "dev"]);
    let some = filter(Kinds::default(), only(&["shop", "dev"]), &["dev"]);
    let none = filter(Kinds::default(), only(&[]), &[]);
    for (filter, namespace, expected) in [
        (&all, "shop", INCLUDE),
        (&all, "kube-system", skip(NamespaceExcluded)),
        (&all, "dev", skip(NamespaceExcluded)),
        (&some, "shop", INCLUDE),
        (&some, "dev", skip(NamespaceExcluded)),
        (&some, "other", skip(NamespaceNotIncluded)),
        (&none, "shop", skip(NamespaceNotIncluded)),
    ] {
        assert_eq!(filter.includes_namespace(namespace), expected, "{namespace}");
        let pods = find("pods");
        assert_eq!(filter.item(&pods, namespace, "x", &BTreeMap::new()), expected, "{namespace}");
    }
}

#[test]
fn namespace_object_of_an_excluded_namespace_is_never_included() {
    let filter = filter(Kinds::default(), only(&["shop"]), &["kube-*"]);
    let namespaces = find("namespaces");
    for (name, expected) in [
        ("kube-system", skip(NamespaceExcluded)),
        ("shop", INCLUDE),
        // A namespace that is not included may have been selected by its labels.
        ("other", INCLUDE),
    ] {
        assert_eq!(filter.item(&namespaces, "", name, &BTreeMap::new()), expected, "{name}");
    }
}

#[test]
fn namespace_objects_are_kept_for_their_own_sake() {
    let all = || filter(Kinds::default(), Scope::All, &[]);
    let some = || filter(Kinds::default(), only(&["shop"]), &["dev"]);
    let app = || vec![Selector::parse("app=a").unwrap(), Selector::parse("app=b").unwrap()];
    for (filter, name, label, is_active, selectors, expected) in [
        (all(), "shop", "", true, vec![], INCLUDE),
        (all(), "shop", "", false, vec![], skip(NamespaceNotActive)),
        (all(), "shop", "b", false, app(), skip(NamespaceNotActive)),
        // Selection by labels.
        (all(), "shop", "b", true, app(), INCLUDE),
        (all(), "shop", "c", true, app(), skip(NotSelected)),
        // Selection by names.
        (some(), "shop", "", true, vec![], INCLUDE),
        (some(), "shop", "c", true, app(), INCLUDE),
        (some(), "other", "", true, vec![], skip(NamespaceNotIncluded)),
        (some(), "other", "c", true, app(), skip(NamespaceNotIncluded)),
        // One of both suffices, unless it is excluded.
        (some(), "other", "a", true, app(), INCLUDE),
        (some(), "dev", "a", true, app(), skip(NamespaceExcluded)),
        (filter_excluding("dev"), "dev", "", true, vec![], skip(NamespaceExcluded)),
        (filter_excluding("dev"), "shop", "c", true, app(), skip(NotSelected)),
        // An empty selector selects everything.
        (all(), "shop", "c", true, vec![Selector::default()], INCLUDE),
    ] {
        let labels = labels(&[("app", label)]);
        let got = filter.keeps_namespace_object(name, &labels, is_active, &selectors);
        assert_eq!(got, expected, "{name} app={label} {is_active} {selectors:?}");
    }
}

fn filter_excluding(namespace: &str) -> Filter {
    filter(Kinds::default(), Scope::All, &[namespace])
}

#[test]
fn skip_reasons_are_readable() {
    for (reason, words) in [
        (ExcludeLabel, "the label velero.io/exclude-from-backup=true is set"),
        (NamespaceExcluded, "the namespace is excluded"),
        (NoClusterResources, "the object is cluster-scoped, and includeClusterResources is false"),
    ] {
        assert_eq!(reason.to_string(), words);
    }
}

#[test]
fn naming_all_namespaces_is_not_a_selection() {
    for kinds in [Kinds::default(), old(&[], &["secrets"], None)] {
        for (is_of_all_namespaces, verdict) in [(true, INCLUDE), (false, skip(PartOfCluster))] {
            let spec = Spec {
                namespaces: only(&["shop"]),
                is_of_all_namespaces,
                kinds: kinds.clone(),
                ..Spec::default()
            };
            let filter = Filter::new(&spec, &resources());
            assert_eq!(filter.kind(&find("clusterroles")), verdict);
            // A namespace created meanwhile was not selected.
            let young = filter.item(&find("pods"), "young", "x", &BTreeMap::new());
            assert_eq!(young, skip(NamespaceNotIncluded));
        }
    }
}

#[test]
fn credentials_are_excluded_even_when_an_action_requires_them() {
    let secrets = ["keys".to_owned()].into();
    let credentials = Credentials { namespace: "velero".into(), secrets };
    let filter = Filter::new(&Spec { credentials, ..Spec::default() }, &resources());
    for (kind, namespace, name, verdict) in [
        ("secrets", "velero", "keys", skip(SkipReason::Credentials)),
        ("secrets", "velero", "other", INCLUDE),
        ("secrets", "shop", "keys", INCLUDE),
        ("pods", "velero", "keys", INCLUDE),
    ] {
        let kind = find(kind);
        assert_eq!(filter.item(&kind, namespace, name, &BTreeMap::new()), verdict);
        assert_eq!(filter.must_include_verdict(&kind, namespace, name), verdict);
    }
    let labels = labels(&[("velero.io/exclude-from-backup", "true")]);
    let labelled = filter.item(&find("secrets"), "velero", "keys", &labels);
    assert_eq!(labelled, skip(ExcludeLabel), "the user has said so, and need not be told");
}
