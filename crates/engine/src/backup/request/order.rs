//! Order of objects in a backup.

use std::collections::BTreeMap;

/// Parses `orderedResources`: by the plural of a resource, names separated by commas.
pub(super) fn read(
    ordered: &BTreeMap<String, String>,
    errors: &mut Vec<String>,
) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for (resource, names) in ordered {
        let names = names.trim();
        if names.is_empty() {
            continue;
        }
        let invalid_order =
            |reason: &str| format!("invalid OrderedResources '{resource}={names}': {reason}");
        if !is_plural(resource) {
            errors
                .push(invalid_order("the key must be the plural of a resource, without its group"));
            continue;
        }
        let names: Vec<_> = names.split(',').map(str::trim).collect();
        if names.iter().any(|name| !is_name(name)) {
            errors.push(invalid_order(
                "expected comma-separated names: NAMESPACE/NAME, or NAME for cluster-scoped \
                 resources",
            ));
            continue;
        }
        all.insert(resource.clone(), names.into_iter().map(str::to_owned).collect());
    }
    all
}

fn is_plural(resource: &str) -> bool {
    !resource.is_empty() && resource.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// True if a text can be the name of an object, with or without its namespace. Names of some kinds, such as
/// ClusterRoles, may contain almost anything.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
    match name.split_once('/') {
        None => is_part(name),
        Some((namespace, name)) => is_part(namespace) && is_part(name) && !name.contains('/'),
    }
}
