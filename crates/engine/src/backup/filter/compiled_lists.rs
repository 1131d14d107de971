//! Lists of names to include and to exclude.

use crate::glob::{Glob, Globs};
use crate::resource::Resources;

use super::{FilterVerdict, NEVER_COLLECTED, SkipReason};
use crate::filter_lists::Lists;

/// Compiled [`Lists`] of kinds, with their names resolved.
#[derive(Debug)]
pub struct CompiledLists {
    /// None if no list was given.
    included: Option<Globs>,
    excluded: Globs,
}

impl CompiledLists {
    /// Compiles lists of kinds of any scope.
    pub fn of_kinds(lists: &Lists, resources: &Resources) -> Self {
        let resolved = |glob: &Glob| match resources.resolve(glob.as_str()) {
            Some(resource) => Glob::literal(resource.id.to_string()),
            None => glob.clone(),
        };
        let included = lists.included.iter().map(resolved).collect();
        Self {
            included: (!lists.included.is_empty()).then_some(included),
            excluded: user_excludes(lists.excluded.iter().map(resolved)),
        }
    }

    /// Compiles lists of kinds of one scope. Names of the other scope are ignored, with a warning.
    pub(super) fn of_scope(
        lists: &Lists,
        resources: &Resources,
        is_namespaced: bool,
        warnings: &mut Vec<String>,
    ) -> Self {
        let mut resolve = |glob| resolve(glob, resources, is_namespaced, warnings);
        let included = lists.included.iter().filter_map(&mut resolve).collect();
        Self {
            included: (!lists.included.is_empty()).then_some(included),
            excluded: user_excludes(lists.excluded.iter().filter_map(resolve)),
        }
    }

    /// Adds the lists of a resource policy, for kinds that these lists do not mention.
    pub(super) fn add_policy(
        &mut self,
        policy: &Lists,
        resources: &Resources,
        is_namespaced: bool,
        warnings: &mut Vec<String>,
    ) {
        let mut resolve = |glob| resolve(glob, resources, is_namespaced, warnings);
        for glob in policy.excluded.iter().filter_map(&mut resolve) {
            if !self.mentions(&glob) {
                self.excluded.insert(glob);
            }
        }
        for glob in policy.included.iter().filter_map(resolve) {
            if !self.mentions(&glob) {
                self.included.get_or_insert_default().insert(glob);
            }
        }
    }

    /// Verdict on a kind.
    pub fn verdict(&self, name: &str) -> FilterVerdict {
        match &self.included {
            _ if self.excluded.matches(name) => FilterVerdict::Skip(SkipReason::KindExcluded),
            Some(included) if !included.matches(name) => {
                FilterVerdict::Skip(SkipReason::KindNotIncluded)
            }
            _ => FilterVerdict::Include,
        }
    }

    /// True if a kind is explicitly excluded.
    pub(super) fn excludes(&self, name: &str) -> bool {
        self.excluded.matches(name)
    }

    /// True if a kind is explicitly included, and not only because no list was given.
    pub(super) fn includes_explicitly(&self, name: &str) -> bool {
        self.included.as_ref().is_some_and(|included| included.matches(name))
    }

    /// True if no list was given at all.
    pub(super) fn is_unset(&self) -> bool {
        self.included.is_none() && self.excluded.is_empty()
    }

    /// True if every kind is included.
    pub(super) fn is_everything(&self) -> bool {
        self.excluded.is_empty() && self.included.as_ref().is_none_or(Globs::is_everything)
    }

    fn mentions(&self, glob: &Glob) -> bool {
        self.includes_explicitly(glob.as_str()) || self.excludes(glob.as_str())
    }
}

/// Excludes, without those that hold for every backup. Velero writes them into the spec of a backup, where they must
/// not count as the user's.
fn user_excludes(excluded: impl Iterator<Item = Glob>) -> Globs {
    excluded.filter(|glob| !NEVER_COLLECTED.contains(&glob.as_str())).collect()
}

fn resolve(
    glob: &Glob,
    resources: &Resources,
    is_namespaced: bool,
    warnings: &mut Vec<String>,
) -> Option<Glob> {
    let Some(resource) = resources.resolve(glob.as_str()) else { return Some(glob.clone()) };
    if resource.is_namespaced == is_namespaced {
        return Some(Glob::literal(resource.id.to_string()));
    }
    let (scope, other) = if is_namespaced {
        ("namespace-scoped", "cluster-scoped")
    } else {
        ("cluster-scoped", "namespace-scoped")
    };
    warnings.push(format!("{glob} is {other} and is ignored in a list of {scope} resources"));
    None
}
