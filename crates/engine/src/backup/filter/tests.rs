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

const YES: Verdict = Verdict::Include;

/// Which of some kinds are collected, and which are refused even as additional items.
#[track_caller]
fn check(filter: &Filter, rows: &[(&str, Verdict, Verdict)]) {
    for (name, kind, item) in rows {
        let resource = find(name);
        let namespace = if resource.is_namespaced { "shop" } else { "" };
        assert_eq!(filter.kind(&resource), *kind, "kind {name}");
        let got = filter.item(&resource, namespace, "x", &BTreeMap::new());
        assert_eq!(got, *item, "item of {name}");
    }
}

fn no(reason: Reason) -> Verdict {
    Verdict::Skip(reason)
}

use Reason::{
    ExcludeLabel, KindExcluded, KindNotIncluded, NamespaceExcluded, NamespaceNotActive,
    NamespaceNotIncluded, NoClusterResources, NotSelected, PartOfCluster, SnapshotObject,
};

#[test]
fn a_backup_without_filters_takes_the_whole_cluster() {
    for filter in [
        filter(Kinds::default(), Scope::All, &[]),
        filter(new(lists(&[], &[]), lists(&["*"], &[])), Scope::All, &[]),
        // What Velero writes into a spec by itself is no filter.
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
                ("pods", YES, YES),
                ("clusterroles", YES, YES),
                (CRDS, YES, YES),
                ("namespaces", YES, YES),
            ],
        );
        assert_eq!(filter.wants_crds(), CrdRule::Collected);
        assert!(filter.warnings().is_empty());
    }
}

#[test]
fn excluding_namespaces_is_no_selection_of_namespaces() {
    for kinds in [Kinds::default(), old(&[], &["secrets"], None)] {
        let filter = filter(kinds, Scope::All, &["kube-*"]);
        check(&filter, &[("clusterroles", YES, YES), ("persistentvolumes", YES, YES)]);
        assert_eq!(filter.namespaces(), Scope::All);
    }
}

#[test]
fn selecting_namespaces_leaves_out_cluster_scoped_kinds_but_not_what_comes_with_an_item() {
    for kinds in [Kinds::default(), old(&["*"], &[], None)] {
        let filter = filter(kinds, only(&["shop"]), &[]);
        check(
            &filter,
            &[
                ("pods", YES, YES),
                ("clusterroles", no(PartOfCluster), YES),
                ("persistentvolumes", no(PartOfCluster), YES),
                ("namespaces", YES, YES),
            ],
        );
        assert_eq!(filter.wants_crds(), CrdRule::OfStored);
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
                ("vs", no(SnapshotObject), no(SnapshotObject)),
                ("vsc", no(SnapshotObject), no(SnapshotObject)),
            ],
        );
    }
}

#[test]
fn a_list_of_which_nothing_is_left_includes_nothing() {
    // Velero would take everything.
    let snapshots = filter(new(lists(&[], &[]), lists(&["vs"], &[])), Scope::All, &[]);
    check(&snapshots, &[("pods", no(KindNotIncluded), no(KindNotIncluded))]);
    let wrong_scope = filter(new(lists(&[], &[]), lists(&["clusterroles"], &[])), Scope::All, &[]);
    check(&wrong_scope, &[("pods", no(KindNotIncluded), no(KindNotIncluded))]);
    let unknown = filter(old(&["nothing.like.it"], &[], None), Scope::All, &[]);
    check(&unknown, &[("pods", no(KindNotIncluded), no(KindNotIncluded))]);
}

#[test]
fn old_lists_hold_for_kinds_of_both_scopes() {
    let filter = filter(old(&["pods", "deploy", "pv"], &[], None), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", YES, YES),
            ("deployments", YES, YES),
            ("secrets", no(KindNotIncluded), no(KindNotIncluded)),
            ("persistentvolumes", YES, YES),
            // Unset, includeClusterResources takes only what is in the lists.
            ("storageclasses", no(KindNotIncluded), no(KindNotIncluded)),
            ("namespaces", no(KindNotIncluded), YES),
        ],
    );
    assert_eq!(filter.wants_crds(), CrdRule::Excluded);
}

#[test]
fn old_excludes_win_over_old_includes() {
    let filter =
        filter(old(&["*"], &["sec", "*.rbac.authorization.k8s.io"], None), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", YES, YES),
            ("secrets", no(KindExcluded), no(KindExcluded)),
            ("clusterroles", no(KindExcluded), no(KindExcluded)),
            ("storageclasses", YES, YES),
        ],
    );
}

#[test]
fn include_cluster_resources_true_takes_them_also_with_selected_namespaces() {
    let all = filter(old(&[], &["storageclasses"], Some(true)), only(&["shop"]), &[]);
    check(
        &all,
        &[
            ("clusterroles", YES, YES),
            ("storageclasses", no(KindExcluded), no(KindExcluded)),
            ("namespaces", YES, YES),
        ],
    );
    assert_eq!(all.wants_crds(), CrdRule::Collected);
    // With a list they are collected only if they are in it, and may come with others if not.
    let some = filter(old(&["pods"], &[], Some(true)), only(&["shop"]), &[]);
    check(
        &some,
        &[
            ("clusterroles", no(KindNotIncluded), YES),
            ("secrets", no(KindNotIncluded), no(KindNotIncluded)),
        ],
    );
    assert_eq!(some.wants_crds(), CrdRule::OfStored);
}

#[test]
fn include_cluster_resources_false_takes_none_not_even_with_an_item() {
    let filter = filter(old(&["*"], &[], Some(false)), Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", YES, YES),
            ("persistentvolumes", no(NoClusterResources), no(NoClusterResources)),
            // Namespaces are not collected, but what must come may.
            ("namespaces", no(NoClusterResources), YES),
        ],
    );
    assert_eq!(filter.wants_crds(), CrdRule::Excluded);
}

#[test]
fn new_lists_of_namespaced_kinds() {
    let some =
        filter(new(lists(&[], &[]), lists(&["po", "*.apps"], &["secrets"])), Scope::All, &[]);
    check(
        &some,
        &[
            ("pods", YES, YES),
            ("deployments", YES, YES),
            ("secrets", no(KindExcluded), no(KindExcluded)),
            ("widgets", no(KindNotIncluded), no(KindNotIncluded)),
            // It is no backup of the whole cluster any more.
            ("clusterroles", no(PartOfCluster), YES),
            ("namespaces", YES, YES),
        ],
    );
    assert_eq!(some.wants_crds(), CrdRule::OfStored);
    let none = filter(new(lists(&[], &[]), lists(&[], &["*"])), Scope::All, &[]);
    check(&none, &[("pods", no(KindExcluded), no(KindExcluded))]);
}

#[test]
fn new_lists_of_cluster_scoped_kinds() {
    let some = filter(new(lists(&["sc", "crd"], &[]), lists(&[], &[])), only(&["shop"]), &[]);
    check(
        &some,
        &[
            ("storageclasses", YES, YES),
            ("clusterroles", no(KindNotIncluded), YES),
            ("namespaces", YES, YES),
            ("pods", YES, YES),
        ],
    );
    assert_eq!(some.wants_crds(), CrdRule::Collected);

    let all = filter(new(lists(&["*"], &["cr"]), lists(&[], &[])), only(&["shop"]), &[]);
    check(
        &all,
        &[("storageclasses", YES, YES), ("clusterroles", no(KindExcluded), no(KindExcluded))],
    );

    // To exclude some says that not all are wanted, and not which are.
    let excluded = filter(new(lists(&[], &["cr"]), lists(&[], &[])), Scope::All, &[]);
    check(
        &excluded,
        &[
            ("storageclasses", no(KindNotIncluded), YES),
            ("clusterroles", no(KindExcluded), no(KindExcluded)),
            ("namespaces", YES, YES),
        ],
    );

    let none = filter(new(lists(&[], &["*"]), lists(&[], &[])), Scope::All, &[]);
    check(
        &none,
        &[
            ("persistentvolumes", no(KindExcluded), no(KindExcluded)),
            ("namespaces", no(KindExcluded), YES),
        ],
    );
    assert_eq!(none.wants_crds(), CrdRule::Excluded);
}

#[test]
fn names_of_the_wrong_scope_are_dropped_and_told() {
    let kinds = new(lists(&["sc", "pods"], &[]), lists(&[], &["clusterroles", "secrets"]));
    let filter = filter(kinds, Scope::All, &[]);
    check(
        &filter,
        &[
            ("pods", YES, YES),
            ("storageclasses", YES, YES),
            ("clusterroles", no(KindNotIncluded), YES),
            ("secrets", no(KindExcluded), no(KindExcluded)),
        ],
    );
    assert_eq!(
        filter.warnings(),
        [
            "pods is namespace-scoped: it is ignored in a list of cluster-scoped resources",
            "clusterroles is cluster-scoped: it is ignored in a list of namespace-scoped resources",
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
            ("pods", YES, YES),
            ("deployments", no(KindExcluded), no(KindExcluded)),
            ("widgets", no(KindNotIncluded), no(KindNotIncluded)),
            ("storageclasses", YES, YES),
            ("clusterroles", no(KindExcluded), no(KindExcluded)),
            ("persistentvolumes", no(KindNotIncluded), YES),
        ],
    );
    let overruled = with_policy(
        ScopedLists { cluster: lists(&["cr"], &[]), namespaced: lists(&["deploy"], &["secrets"]) },
        policy(),
    );
    check(
        &overruled,
        &[
            ("deployments", YES, YES),
            ("secrets", no(KindExcluded), no(KindExcluded)),
            ("pods", YES, YES),
            ("clusterroles", YES, YES),
            ("storageclasses", YES, YES),
        ],
    );
    let everything = with_policy(
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&["*"], &[]) },
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&[], &["secrets"]) },
    );
    check(&everything, &[("secrets", YES, YES)]);
    // What the spec excludes, the policy cannot make the only thing to take.
    let contradicted = with_policy(
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&[], &["secrets"]) },
        ScopedLists { cluster: lists(&[], &[]), namespaced: lists(&["secrets"], &[]) },
    );
    check(&contradicted, &[("pods", YES, YES), ("secrets", no(KindExcluded), no(KindExcluded))]);
}

#[test]
fn an_object_may_exclude_itself() {
    let filter = filter(Kinds::default(), Scope::All, &[]);
    for (value, expected) in [("true", no(ExcludeLabel)), ("false", YES), ("", YES)] {
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
        (&all, "shop", YES),
        (&all, "kube-system", no(NamespaceExcluded)),
        (&all, "dev", no(NamespaceExcluded)),
        (&some, "shop", YES),
        (&some, "dev", no(NamespaceExcluded)),
        (&some, "other", no(NamespaceNotIncluded)),
        (&none, "shop", no(NamespaceNotIncluded)),
    ] {
        assert_eq!(filter.includes_namespace(namespace), expected, "{namespace}");
        let pods = find("pods");
        assert_eq!(filter.item(&pods, namespace, "x", &BTreeMap::new()), expected, "{namespace}");
    }
}

#[test]
fn the_object_of_an_excluded_namespace_is_not_taken_however_it_comes() {
    let filter = filter(Kinds::default(), only(&["shop"]), &["kube-*"]);
    let namespaces = find("namespaces");
    for (name, expected) in [
        ("kube-system", no(NamespaceExcluded)),
        ("shop", YES),
        // One that is not included may have been selected by its labels.
        ("other", YES),
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
        (all(), "shop", "", true, vec![], YES),
        (all(), "shop", "", false, vec![], no(NamespaceNotActive)),
        (all(), "shop", "b", false, app(), no(NamespaceNotActive)),
        // Labels choose.
        (all(), "shop", "b", true, app(), YES),
        (all(), "shop", "c", true, app(), no(NotSelected)),
        // Names choose as well.
        (some(), "shop", "", true, vec![], YES),
        (some(), "shop", "c", true, app(), YES),
        (some(), "other", "", true, vec![], no(NamespaceNotIncluded)),
        (some(), "other", "c", true, app(), no(NamespaceNotIncluded)),
        // One of both is enough, unless it is excluded.
        (some(), "other", "a", true, app(), YES),
        (some(), "dev", "a", true, app(), no(NamespaceExcluded)),
        (filter_excluding("dev"), "dev", "", true, vec![], no(NamespaceExcluded)),
        (filter_excluding("dev"), "shop", "c", true, app(), no(NotSelected)),
        // An empty selector selects everything.
        (all(), "shop", "c", true, vec![Selector::default()], YES),
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
fn reasons_are_told_in_words() {
    for (reason, words) in [
        (ExcludeLabel, "it has the label velero.io/exclude-from-backup=true"),
        (NamespaceExcluded, "its namespace is excluded"),
        (NoClusterResources, "it is cluster-scoped, and includeClusterResources is false"),
    ] {
        assert_eq!(reason.to_string(), words);
    }
}

#[test]
fn namespaces_that_are_all_that_there_are_are_no_selection() {
    for kinds in [Kinds::default(), old(&[], &["secrets"], None)] {
        for (is_of_all_namespaces, verdict) in [(true, YES), (false, no(PartOfCluster))] {
            let spec = Spec {
                namespaces: only(&["shop"]),
                is_of_all_namespaces,
                kinds: kinds.clone(),
                ..Spec::default()
            };
            let filter = Filter::new(&spec, &resources());
            assert_eq!(filter.kind(&find("clusterroles")), verdict);
            // One that comes up meanwhile was not asked for.
            let young = filter.item(&find("pods"), "young", "x", &BTreeMap::new());
            assert_eq!(young, no(NamespaceNotIncluded));
        }
    }
}

#[test]
fn credentials_are_left_out_even_where_an_action_insists_and_nothing_else_is() {
    let secrets = ["keys".to_owned()].into();
    let credentials = Credentials { namespace: "velero".into(), secrets };
    let filter = Filter::new(&Spec { credentials, ..Spec::default() }, &resources());
    for (kind, namespace, name, verdict) in [
        ("secrets", "velero", "keys", no(Reason::Credentials)),
        ("secrets", "velero", "other", YES),
        ("secrets", "shop", "keys", YES),
        ("pods", "velero", "keys", YES),
    ] {
        let kind = find(kind);
        assert_eq!(filter.item(&kind, namespace, name, &BTreeMap::new()), verdict);
        assert_eq!(filter.insisted(&kind, namespace, name), verdict);
    }
    let labels = labels(&[("velero.io/exclude-from-backup", "true")]);
    let labelled = filter.item(&find("secrets"), "velero", "keys", &labels);
    assert_eq!(labelled, no(ExcludeLabel), "the user has said so, and need not be told");
}
