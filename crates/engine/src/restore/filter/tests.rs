use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::json;

use super::*;
use crate::cluster::fake::usual_resources;

fn globs(patterns: &[&str]) -> Vec<Glob> {
    patterns.iter().map(|pattern| Glob::new(pattern).unwrap()).collect()
}

fn lists(included: &[&str], excluded: &[&str]) -> Lists {
    Lists { included: globs(included), excluded: globs(excluded) }
}

fn kind(name: &str) -> GroupResource {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource::new(group, resource)
}

fn filter(spec: &Spec) -> Filter {
    Filter::new(spec, &Resources::new(usual_resources()))
}

fn skip(reason: Reason) -> RestoreVerdict {
    RestoreVerdict::Skip(reason)
}

const YES: RestoreVerdict = RestoreVerdict::Restore;

#[test]
fn kinds_are_found_by_any_name_and_excludes_win() {
    for (included, excluded, name, expected) in [
        (&[][..], &[][..], "pods", YES),
        (&["*"], &[], "widgets.example.io", YES),
        (&["po"], &[], "pods", YES),
        (&["deploy"], &[], "deployments.apps", YES),
        (&["po"], &[], "secrets", skip(Reason::KindNotIncluded)),
        (&["*.apps"], &[], "deployments.apps", YES),
        (&["widgets.example.io"], &[], "widgets.example.io", YES),
        (&[], &["pod"], "pods", skip(Reason::KindExcluded)),
        (&["*"], &["secrets"], "secrets", skip(Reason::KindExcluded)),
        (&["pods"], &["*.io"], "volumesnapshotcontents.snapshot.storage.k8s.io", YES),
        (&["*"], &["*.velero.io"], "datauploads.velero.io", skip(Reason::KindExcluded)),
        // A user may exclude kinds that a backup never collects on its own.
        (
            &[],
            &["volumesnapshots.snapshot.storage.k8s.io"],
            "volumesnapshots.snapshot.storage.k8s.io",
            skip(Reason::KindExcluded),
        ),
    ] {
        let spec = Spec { kinds: lists(included, excluded), ..Spec::default() };
        assert_eq!(filter(&spec).kind(&kind(name)), expected, "{included:?} {excluded:?} {name}");
    }
}

#[test]
fn namespace_and_scope_of_an_item_decide() {
    let namespaces = |included: &[&str], excluded: &[&str], cluster_resources| Spec {
        namespaces: lists(included, excluded),
        cluster_resources,
        ..Spec::default()
    };
    let all = || namespaces(&[], &[], None);
    let some = |cluster_resources| namespaces(&["team-*"], &["team-x"], cluster_resources);
    let no_cluster = || namespaces(&[], &[], Some(false));
    let contents = "volumesnapshotcontents.snapshot.storage.k8s.io";
    for (spec, name, namespace, expected) in [
        (all(), "pods", "web", YES),
        (all(), "clusterroles.rbac.authorization.k8s.io", "", YES),
        (all(), "namespaces", "", YES),
        (namespaces(&["*"], &[], None), "persistentvolumes", "", YES),
        (some(None), "pods", "team-a", YES),
        (some(None), "pods", "web", skip(Reason::NamespaceNotIncluded)),
        (some(None), "pods", "team-x", skip(Reason::NamespaceExcluded)),
        (some(None), "persistentvolumes", "", skip(Reason::SomeNamespaces)),
        (some(Some(true)), "persistentvolumes", "", YES),
        (some(Some(true)), "namespaces", "", skip(Reason::NamespaceNotIncluded)),
        (some(None), "datauploads.velero.io", "velero", skip(Reason::NamespaceNotIncluded)),
        (some(None), contents, "", skip(Reason::SomeNamespaces)),
        // As Velero documents for restores: an exclude suffices.
        (namespaces(&[], &["x"], None), "persistentvolumes", "", skip(Reason::SomeNamespaces)),
        (namespaces(&[], &["x"], Some(true)), "persistentvolumes", "", YES),
        (no_cluster(), "persistentvolumes", "", skip(Reason::NoClusterResources)),
        (no_cluster(), contents, "", skip(Reason::NoClusterResources)),
        (no_cluster(), "pods", "web", YES),
    ] {
        let verdict = filter(&spec).location(&kind(name), namespace, "thing");
        assert_eq!(verdict, expected, "{spec:?} {name} {namespace}");
    }
    let one = filter(&some(Some(true)));
    assert_eq!(one.location(&kind("namespaces"), "", "team-a"), YES);
}

#[test]
fn additional_items_pass_fewer_filters() {
    let spec = |cluster_resources| Spec {
        namespaces: lists(&["a"], &[]),
        kinds: lists(&[], &["secrets"]),
        cluster_resources,
        ..Spec::default()
    };
    for (cluster_resources, name, namespace, must, expected) in [
        (None, "persistentvolumes", "", false, YES),
        (Some(false), "persistentvolumes", "", false, skip(Reason::NoClusterResources)),
        (Some(false), "persistentvolumes", "", true, YES),
        (None, "secrets", "a", false, skip(Reason::KindExcluded)),
        (None, "secrets", "a", true, YES),
        (None, "pods", "b", false, skip(Reason::NamespaceNotIncluded)),
        (None, "pods", "b", true, YES),
        (None, "datauploads.velero.io", "b", false, skip(Reason::KindExcluded)),
        (None, "deletebackuprequests.velero.io", "a", true, skip(Reason::KindExcluded)),
        (None, "namespaces", "", false, skip(Reason::NamespaceNotIncluded)),
    ] {
        let filter = filter(&spec(cluster_resources));
        let verdict = filter.additional(&kind(name), namespace, "thing", must);
        assert_eq!(verdict, expected, "{cluster_resources:?} {name} {namespace} {must}");
    }
}

#[test]
fn one_of_several_selectors_is_enough() {
    let selector = |key: &str, value: &str| {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let labels = LabelSelector { match_labels: Some(labels), ..LabelSelector::default() };
        Selector::new(&labels).unwrap()
    };
    let either = vec![selector("app", "web"), selector("tier", "db")];
    for (selectors, label, name, expected) in [
        (vec![], ("app", "x"), "pods", YES),
        (vec![selector("app", "web")], ("app", "web"), "pods", YES),
        (vec![selector("app", "web")], ("app", "x"), "pods", skip(Reason::NotSelected)),
        (either.clone(), ("tier", "db"), "pods", YES),
        (either.clone(), ("tier", "x"), "pods", skip(Reason::NotSelected)),
        (either, ("tier", "x"), "volumesnapshotcontents.snapshot.storage.k8s.io", YES),
    ] {
        let labels = BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]);
        let spec = Spec { selectors, ..Spec::default() };
        assert_eq!(filter(&spec).labels(&kind(name), &labels), expected, "{spec:?} {label:?}");
    }
}

#[test]
fn status_is_restored_by_list_or_annotation() {
    for (status, own, expected) in [
        (None, None, false),
        (None, Some("true"), true),
        (None, Some(" True "), true),
        (None, Some("maybe"), false),
        (Some(Lists::default()), None, true),
        (Some(Lists::default()), Some("false"), false),
        (Some(lists(&["deploy"], &[])), None, true),
        (Some(lists(&["pods"], &[])), None, false),
        (Some(lists(&["*"], &["deployments.apps"])), None, false),
    ] {
        let annotation = own.map(|own| (annotation::RESTORE_STATUS.to_owned(), own.to_owned()));
        let annotations = annotation.into_iter().collect();
        let spec = Spec { status, ..Spec::default() };
        let restores = filter(&spec).restores_status(&kind("deployments.apps"), &annotations);
        assert_eq!(restores, expected, "{spec:?} {own:?}");
    }
}

#[test]
fn completed_pods_and_jobs_are_skipped() {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "abc"}}});
    for (name, object, expected) in [
        ("pods", json!({"status": {"phase": "Running"}}), YES),
        ("pods", json!({"status": {"phase": "Succeeded"}}), skip(Reason::Completed)),
        ("pods", json!({"status": {"phase": "Failed"}}), skip(Reason::Completed)),
        ("pods", json!({"status": {"phase": 7}}), YES),
        ("pods", json!({}), YES),
        ("pods", mirror.clone(), skip(Reason::MirrorPod)),
        ("services", mirror, YES),
        ("jobs.batch", json!({"status": {"completionTime": "x"}}), skip(Reason::Completed)),
        ("jobs.batch", json!({"status": {"active": 1}}), YES),
        ("jobs.example.io", json!({"status": {"completionTime": "x"}}), YES),
    ] {
        assert_eq!(check_content(&kind(name), &object), expected, "{name} {object}");
    }
}
