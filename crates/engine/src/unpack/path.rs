//! Parses the paths of archive entries.

use crate::resource::GroupResource;

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArchiveEntry {
    /// `metadata/version`
    FormatVersion,
    /// An item.
    Item(ItemPath),
}

/// The item of an entry, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemPath {
    pub(super) resource: GroupResource,
    pub(super) version: VersionFolder,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The version directory of an entry, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VersionFolder {
    None,
    Preferred(String),
    Other(String),
}

const PREFERRED: &str = "-preferredversion";

/// Kubernetes' limit for the name of an object or a group.
const MAX_NAME_LENGTH: usize = 253;
/// Kubernetes' limit for namespaces, versions and the plural of a kind.
const MAX_LABEL_LENGTH: usize = 63;

/// Why an entry is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadPath {
    /// The entry may have been an item, but its path is invalid.
    Invalid(&'static str),
    /// The path is unknown. Later versions may write more entries than today's.
    Unknown(&'static str),
}

/// Parses a path.
pub(super) fn parse(path: &str) -> Result<ArchiveEntry, BadPath> {
    use BadPath::{Invalid, Unknown};
    // Some tar writers prefix every path.
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.starts_with('/') {
        return Err(Invalid("the path is absolute"));
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains('\0')) {
        return Err(Invalid("the path is not normalized"));
    }
    match parts.as_slice() {
        ["metadata", "version"] => Ok(ArchiveEntry::FormatVersion),
        ["metadata", ..] => Err(Unknown("unknown metadata file")),
        ["resources", resource, rest @ ..] => item(resource, rest),
        _ => Err(Unknown("unknown directory")),
    }
}

fn item(resource: &str, rest: &[&str]) -> Result<ArchiveEntry, BadPath> {
    use BadPath::{Invalid, Unknown};
    let (version, rest) = match rest {
        ["cluster" | "namespaces", ..] => (VersionFolder::None, rest),
        [version, rest @ ..] => (
            match version.strip_suffix(PREFERRED) {
                Some(version) => VersionFolder::Preferred(version.to_owned()),
                None => VersionFolder::Other((*version).to_owned()),
            },
            rest,
        ),
        [] => return Err(Invalid("the path names no item")),
    };
    let (namespace, file) = match rest {
        ["cluster", file] => ("", file),
        ["namespaces", namespace, file] => (*namespace, file),
        _ => return Err(Invalid("the path names no item")),
    };
    let name = file.strip_suffix(".json").ok_or(Invalid("the file is not a JSON file"))?;
    if name.is_empty() {
        return Err(Invalid("the path names no item"));
    }
    if name.len() > MAX_NAME_LENGTH
        || namespace.len() > MAX_LABEL_LENGTH
        || resource.len() > MAX_LABEL_LENGTH + 1 + MAX_NAME_LENGTH
        || matches!(&version, VersionFolder::Preferred(one) | VersionFolder::Other(one)
            if one.len() > MAX_LABEL_LENGTH)
    {
        return Err(Unknown("a name in the path is too long"));
    }
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    Ok(ArchiveEntry::Item(ItemPath {
        resource: GroupResource::new(group, resource),
        version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}
