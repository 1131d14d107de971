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

/// Reads a path, or says what is wrong with it.
pub(super) fn parse(path: &str) -> Result<Entry, &'static str> {
    // Some writers of tar files lead every path in.
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.starts_with('/') {
        return Err("it is an absolute path");
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains('\0')) {
        return Err("it is no plain path");
    }
    match parts.as_slice() {
        ["metadata", "version"] => Ok(Entry::FormatVersion),
        ["metadata", ..] => Err("it is of no use here"),
        ["resources", resource, rest @ ..] => item(resource, rest),
        _ => Err("it is in no folder that a backup has"),
    }
}

fn item(resource: &str, rest: &[&str]) -> Result<Entry, &'static str> {
    let (version, rest) = match rest {
        ["cluster" | "namespaces", ..] => (VersionFolder::None, rest),
        [version, rest @ ..] => (
            match version.strip_suffix(PREFERRED) {
                Some(version) => VersionFolder::Preferred(version.to_owned()),
                None => VersionFolder::Other((*version).to_owned()),
            },
            rest,
        ),
        [] => return Err("it names no item"),
    };
    let (namespace, file) = match rest {
        ["cluster", file] => ("", file),
        ["namespaces", namespace, file] => (*namespace, file),
        _ => return Err("it names no item"),
    };
    let name = file.strip_suffix(".json").ok_or("it is no JSON file")?;
    if name.is_empty() {
        return Err("it names no item");
    }
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    Ok(Entry::Item(Place {
        resource: GroupResource::new(group, resource),
        version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}
