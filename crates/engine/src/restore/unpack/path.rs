//! What the path of an entry means.

use crate::resource::GroupResource;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// `metadata/version`
    FormatVersion,
    /// An item.
    Item(Place),
}

/// Which item an entry holds, and in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) resource: GroupResource,
    pub(super) version: VersionFolder,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The folder of a version, if the entry is in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VersionFolder {
    None,
    Preferred(String),
    Other(String),
}

const PREFERRED: &str = "-preferredversion";

/// What Kubernetes allows for the name of an object or of a group.
const LONGEST_NAME: usize = 253;
/// What it allows for namespaces, versions and the plural of a kind.
const LONGEST_LABEL: usize = 63;

/// Why the path of an entry is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadPath {
    /// It may have been an item, and is none.
    Wrong(&'static str),
    /// It is none of those that are known here. Later versions may write more than today's.
    Foreign(&'static str),
}

/// Reads a path, or says what is wrong with it.
pub(super) fn parse(path: &str) -> Result<Entry, BadPath> {
    use BadPath::{Foreign, Wrong};
    // Some writers of tar files lead every path in.
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.starts_with('/') {
        return Err(Wrong("it is an absolute path"));
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains('\0')) {
        return Err(Wrong("it is no plain path"));
    }
    match parts.as_slice() {
        ["metadata", "version"] => Ok(Entry::FormatVersion),
        ["metadata", ..] => Err(Foreign("it is of no use here")),
        ["resources", resource, rest @ ..] => item(resource, rest),
        _ => Err(Foreign("it is in no folder that a backup has")),
    }
}

fn item(resource: &str, rest: &[&str]) -> Result<Entry, BadPath> {
    use BadPath::{Foreign, Wrong};
    let (version, rest) = match rest {
        ["cluster" | "namespaces", ..] => (VersionFolder::None, rest),
        [version, rest @ ..] => (
            match version.strip_suffix(PREFERRED) {
                Some(version) => VersionFolder::Preferred(version.to_owned()),
                None => VersionFolder::Other((*version).to_owned()),
            },
            rest,
        ),
        [] => return Err(Wrong("it names no item")),
    };
    let (namespace, file) = match rest {
        ["cluster", file] => ("", file),
        ["namespaces", namespace, file] => (*namespace, file),
        _ => return Err(Wrong("it names no item")),
    };
    let name = file.strip_suffix(".json").ok_or(Wrong("it is no JSON file"))?;
    if name.is_empty() {
        return Err(Wrong("it names no item"));
    }
    if name.len() > LONGEST_NAME
        || namespace.len() > LONGEST_LABEL
        || resource.len() > LONGEST_LABEL + 1 + LONGEST_NAME
        || matches!(&version, VersionFolder::Preferred(one) | VersionFolder::Other(one)
            if one.len() > LONGEST_LABEL)
    {
        return Err(Foreign("a name in it is too long"));
    }
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    Ok(Entry::Item(Place {
        resource: GroupResource::new(group, resource),
        version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}
