//! From the user's patterns of namespaces to the namespaces of the cluster.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::label;

use super::Scope;
use crate::glob::{Glob, Globs};

/// Label that Argo CD puts on the namespaces that it manages.
const MANAGED_BY_ARGO_CD: &str = "argocd.argoproj.io/managed-by";

/// A namespace of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// True if its phase is Active.
    pub is_active: bool,
}

/// The namespaces of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpandedNamespaces {
    /// Namespaces to include, without the excluded ones.
    pub scope: Scope,
    /// True if the patterns match every namespace of the cluster, and none is excluded. Then they select nothing, as
    /// in Velero 1.18 (pkg/util/collections/includes_excludes.go, `IncludeEverything`), and cluster-scoped kinds are
    /// included.
    pub is_of_all: bool,
    /// Patterns of namespaces to exclude.
    pub excluded: Vec<Glob>,
    /// Errors for requested namespaces that cannot be included; for namespaces given by name, in Velero's words.
    pub errors: Vec<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// The names of namespaces with the exclude label.
pub fn excluded_by_label(live: &[Namespace]) -> impl Iterator<Item = &str> {
    let is_excluded = |namespace: &&Namespace| {
        namespace.labels.get(label::EXCLUDE_FROM_BACKUP).is_some_and(|value| value == "true")
    };
    live.iter().filter(is_excluded).map(|namespace| namespace.name.as_str())
}

/// Resolves the patterns of a user.
///
/// `*`, or nothing, is all namespaces and stays so: objects are then listed once for all. Any other pattern is
/// replaced by the namespaces that it matches now; if there is none, nothing is included. That is an error if no
/// namespace remains at all, as it is for one given by name, and otherwise a warning.
pub fn expand(included: &[Glob], excluded: &[Glob], live: &[Namespace]) -> ExpandedNamespaces {
    let labelled = excluded_by_label(live).map(Glob::literal);
    let mut patterns = excluded.to_vec();
    for glob in labelled {
        if !patterns.contains(&glob) {
            patterns.push(glob);
        }
    }
    let excluded_globs: Globs = patterns.iter().cloned().collect();

    let mut expanded = ExpandedNamespaces { excluded: patterns, ..ExpandedNamespaces::default() };
    if !included.is_empty() && !included.iter().any(Glob::is_everything) {
        let names = included_names(included, live, &mut expanded);
        let names: Vec<String> = names
            .into_iter()
            .filter(|name| !excluded_globs.matches(name))
            .map(str::to_owned)
            .collect();
        expanded.is_of_all = expanded.excluded.is_empty()
            && !live.is_empty()
            && live.iter().all(|namespace| names.contains(&namespace.name));
        report_unmatched(included, live, names.is_empty(), &mut expanded);
        expanded.scope = Scope::Only(names);
    }
    expanded.warnings.extend(argo_cd_warning(&expanded.scope, &excluded_globs, live));
    expanded
}

fn included_names<'a>(
    included: &[Glob],
    live: &'a [Namespace],
    expanded: &mut ExpandedNamespaces,
) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for glob in included {
        let found: Vec<_> = live.iter().filter(|namespace| glob.matches(&namespace.name)).collect();
        names.extend(found.iter().map(|namespace| namespace.name.as_str()));
        // Velero accepts an empty name: it stands for no namespace.
        if !glob.is_literal() || glob.as_str().is_empty() {
            continue;
        }
        match found.as_slice() {
            [] => expanded.errors.push(format!(
                "fail to get the namespace {glob} specified in backup.Spec.IncludedNamespaces"
            )),
            [namespace, ..] if !namespace.is_active => expanded.warnings.push(format!(
                "namespace {glob} is not active: only those of its objects that still exist are \
                 backed up"
            )),
            _ => {}
        }
    }
    names
}

/// Reports patterns that match no namespace.
fn report_unmatched(
    included: &[Glob],
    live: &[Namespace],
    is_nothing_left: bool,
    expanded: &mut ExpandedNamespaces,
) {
    let fits_none = |glob: &&Glob| {
        !glob.is_literal() && !live.iter().any(|namespace| glob.matches(&namespace.name))
    };
    let mut unmatched = included.iter().filter(fits_none).peekable();
    let has_unmatched = unmatched.peek().is_some();
    let messages = if is_nothing_left { &mut expanded.errors } else { &mut expanded.warnings };
    messages.extend(unmatched.map(|glob| {
        format!("the pattern {glob} in includedNamespaces matches no namespace of the cluster")
    }));
    if is_nothing_left && !has_unmatched && expanded.errors.is_empty() {
        let text =
            "no namespace to back up: all namespaces that includedNamespaces matches are excluded";
        expanded.warnings.push(text.to_owned());
    }
}

/// The warning in Velero's words, with the list in Go's notation.
fn argo_cd_warning(scope: &Scope, excluded_globs: &Globs, live: &[Namespace]) -> Option<String> {
    let is_managed = |namespace: &&Namespace| {
        namespace.labels.get(MANAGED_BY_ARGO_CD).is_some_and(|value| !value.is_empty())
            && !excluded_globs.matches(&namespace.name)
            && match scope {
                Scope::All => true,
                Scope::Only(names) => names.contains(&namespace.name),
            }
    };
    let managed: Vec<_> =
        live.iter().filter(is_managed).map(|namespace| namespace.name.as_str()).collect();
    (!managed.is_empty()).then(|| {
        format!(
            "backup operation may encounter complications and potentially produce undesirable \
             results due to the inclusion of namespaces [{}] managed by ArgoCD in the backup.",
            managed.join(" ")
        )
    })
}
