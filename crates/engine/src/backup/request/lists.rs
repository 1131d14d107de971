//! The lists of a spec, validated as Velero does.

use std::collections::BTreeSet;

use bowline_api::BackupSpec;

use crate::backup::filter::{Kinds, Lists, ScopedLists};
use crate::glob::{Glob, check_namespace};

/// Kubernetes' limit on the name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// Parses the filters on kinds, in the form that the spec uses.
pub(super) fn kinds(spec: &BackupSpec, errors: &mut Vec<String>) -> Kinds {
    let new = [
        &spec.included_cluster_scoped_resources,
        &spec.excluded_cluster_scoped_resources,
        &spec.included_namespace_scoped_resources,
        &spec.excluded_namespace_scoped_resources,
    ];
    let is_old = spec.include_cluster_resources.is_some()
        || !spec.included_resources.is_empty()
        || !spec.excluded_resources.is_empty();
    if is_old && new.iter().any(|list| !list.is_empty()) {
        errors.push(
            "include-resources, exclude-resources and include-cluster-resources are old filter \
             parameters.\ninclude-cluster-scoped-resources, exclude-cluster-scoped-resources, \
             include-namespace-scoped-resources and exclude-namespace-scoped-resources are new \
             filter parameters.\nThey cannot be used together"
                .to_owned(),
        );
    }
    if is_old {
        let problems = contradictions(&spec.included_resources, &spec.excluded_resources);
        let lists = lists(
            "Invalid included/excluded resource lists",
            (&spec.included_resources, &spec.excluded_resources),
            problems,
            errors,
        );
        return Kinds::Old { lists, cluster_resources: spec.include_cluster_resources };
    }
    let mut scoped = |scope: &str, included: &[String], excluded: &[String]| {
        let prefix = format!("Invalid {scope} included/excluded resource lists");
        let problems = scoped_contradictions(included, excluded);
        lists(&prefix, (included, excluded), problems, errors)
    };
    let [included_cluster, excluded_cluster, included_namespaced, excluded_namespaced] = new;
    let spec = ScopedLists {
        cluster: scoped("cluster-scoped", included_cluster, excluded_cluster),
        namespaced: scoped("namespace-scoped", included_namespaced, excluded_namespaced),
    };
    Kinds::New { spec, policy: ScopedLists::default() }
}

/// Parses the included and excluded namespaces.
pub(super) fn namespaces(spec: &BackupSpec, errors: &mut Vec<String>) -> (Vec<Glob>, Vec<Glob>) {
    let (included, excluded) = (&spec.included_namespaces, &spec.excluded_namespaces);
    let mut problems = contradictions(included, excluded);
    for list in [included, excluded] {
        problems.extend(sorted(list).into_iter().flat_map(namespace_problems));
    }
    let prefix = "Invalid included/excluded namespace lists";
    let Lists { included, excluded } = lists(prefix, (included, excluded), problems, errors);
    (included, excluded)
}

/// Compiles a pair of lists, unless they are invalid.
fn lists(
    prefix: &str,
    (included, excluded): (&[String], &[String]),
    mut problems: Vec<String>,
    errors: &mut Vec<String>,
) -> Lists {
    let mut compile = |list: &[String]| {
        let mut globs = Vec::new();
        for pattern in list {
            match Glob::new(pattern) {
                Ok(glob) => globs.push(glob),
                Err(error) => problems.push(error.to_string()),
            }
        }
        globs
    };
    let lists = Lists { included: compile(included), excluded: compile(excluded) };
    errors.extend(problems.into_iter().map(|wrong| format!("{prefix}: {wrong}")));
    lists
}

const STAR_AMONG_INCLUDES: &str =
    "includes list must either contain '*' only, or a non-empty list of items";

fn contradictions(included: &[String], excluded: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if has_star_among_others(included) {
        problems.push(STAR_AMONG_INCLUDES.to_owned());
    }
    if has_star(excluded) {
        problems.push("excludes list cannot contain '*'".to_owned());
    }
    problems.extend(in_both(included, excluded));
    problems
}

/// All kinds of one scope may be excluded.
fn scoped_contradictions(included: &[String], excluded: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if has_star_among_others(included) {
        problems.push(STAR_AMONG_INCLUDES.to_owned());
    }
    if has_star_among_others(excluded) {
        problems.push(
            "excludes list must either contain '*' only, or a non-empty list of items".to_owned(),
        );
    }
    if !included.is_empty() && has_star(excluded) {
        problems.push("when exclude is '*', include cannot have value".to_owned());
    }
    problems.extend(in_both(included, excluded));
    problems
}

fn has_star(list: &[String]) -> bool {
    list.iter().any(|item| item == "*")
}

fn has_star_among_others(list: &[String]) -> bool {
    has_star(list) && list.iter().any(|item| item != "*")
}

fn in_both(included: &[String], excluded: &[String]) -> Vec<String> {
    let words = "excludes list cannot contain an item in the includes list";
    let both = sorted(excluded).into_iter().filter(|item| included.iter().any(|own| own == item));
    both.map(|item| format!("{words}: {item}")).collect()
}

fn sorted(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}

/// Reasons why a text is neither a namespace nor a pattern of namespaces.
fn namespace_problems(name: &str) -> Vec<String> {
    // Velero accepts an empty name: it stands for no namespace.
    if name.is_empty() {
        return Vec::new();
    }
    if let Err(error) = check_namespace(name) {
        return vec![error.to_string()];
    }
    let mut problems = Vec::new();
    // A wildcard counts as a valid character.
    let plain = name.replace(['*', '?', '[', ']'], "x");
    let is_inside = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if !plain.bytes().all(is_inside) || plain.starts_with('-') || plain.ends_with('-') {
        problems.push(format!(
            "invalid namespace {name:?}: a lowercase RFC 1123 label must consist of lower case \
             alphanumeric characters or '-', and must start and end with an alphanumeric character"
        ));
    }
    if plain.len() > LONGEST_NAMESPACE {
        problems.push(format!(
            "invalid namespace {name:?}: must be no more than {LONGEST_NAMESPACE} characters"
        ));
    }
    problems
}
