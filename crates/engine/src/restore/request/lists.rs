//! Include and exclude lists of a spec, validated as in Velero.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::RestoreSpec;

use super::invalid::{FilterLists, InvalidLists, ValidationError};
use crate::glob::{Glob, check_namespace};
use crate::restore::filter::{Lists, NEVER_RESTORED};

/// Kubernetes' limit for the name of a namespace.
const MAX_NAMESPACE_LENGTH: usize = 63;

/// Parses the lists of kinds, and adds those that are never restored to the spec, where users can see them.
pub(super) fn kinds(spec: &mut RestoreSpec, errors: &mut Vec<ValidationError>) -> Lists {
    let has = |list: &[String], name: &str| list.iter().any(|other| other == name);
    for name in NEVER_RESTORED {
        if !has(&spec.excluded_resources, name) {
            spec.excluded_resources.push(name.to_owned());
        }
    }
    for name in NEVER_RESTORED.into_iter().filter(|name| has(&spec.included_resources, name)) {
        errors.push(ValidationError::NotRestorable(name));
    }
    let lists = (spec.included_resources.as_slice(), spec.excluded_resources.as_slice());
    compile(FilterLists::Resources, lists, errors)
}

/// Parses the lists of namespaces.
pub(super) fn namespaces(spec: &RestoreSpec, errors: &mut Vec<ValidationError>) -> Lists {
    let lists = (spec.included_namespaces.as_slice(), spec.excluded_namespaces.as_slice());
    let glob = |pattern: &str| {
        // As in Velero, a list of alternatives is a valid pattern here, though not for backups.
        if !pattern.contains('{') {
            check_namespace(pattern)?;
        }
        Ok(Glob::new(pattern)?)
    };
    compile_with(FilterLists::Namespaces, lists, glob, errors)
}

/// Compiles a pair of lists of kinds.
pub(super) fn compile(
    name: FilterLists,
    lists: (&[String], &[String]),
    errors: &mut Vec<ValidationError>,
) -> Lists {
    compile_with(name, lists, |pattern| Ok(Glob::new(pattern)?), errors)
}

fn compile_with(
    name: FilterLists,
    (included, excluded): (&[String], &[String]),
    glob: impl Fn(&str) -> Result<Glob, InvalidLists>,
    errors: &mut Vec<ValidationError>,
) -> Lists {
    let mut problems = contradictions(included, excluded);
    let mut globs = |list: &[String]| {
        let compiled = list.iter().map(|pattern| glob(pattern));
        compiled.filter_map(|glob| glob.map_err(|error| problems.push(error)).ok()).collect()
    };
    let lists = Lists { included: globs(included), excluded: globs(excluded) };
    let invalid = |source| ValidationError::Lists { lists: name, source };
    errors.extend(problems.into_iter().map(invalid));
    lists
}

/// Checks that the targets of the mapping are valid namespaces.
pub(super) fn check_mapping(mapping: &BTreeMap<String, String>, errors: &mut Vec<ValidationError>) {
    for (from, to) in mapping {
        let is_inside = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name = to.bytes().all(is_inside)
            && !to.is_empty()
            && !to.starts_with('-')
            && !to.ends_with('-')
            && to.len() <= MAX_NAMESPACE_LENGTH;
        if !is_name {
            let (from, to) = (from.clone(), to.clone());
            errors.push(ValidationError::NamespaceMapping { from, to });
        }
    }
}

fn contradictions(included: &[String], excluded: &[String]) -> Vec<InvalidLists> {
    let (includes, excludes) = (sorted(included), sorted(excluded));
    let mut problems = Vec::new();
    if includes.len() > 1 && includes.contains("*") {
        problems.push(InvalidLists::EverythingAmongOthers);
    }
    if excludes.contains("*") {
        problems.push(InvalidLists::ExcludesEverything);
    }
    let contradiction = |item: &&str| InvalidLists::Contradiction((*item).to_owned());
    problems.extend(includes.intersection(&excludes).map(contradiction));
    problems
}

fn sorted(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}
