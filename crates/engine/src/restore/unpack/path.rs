//! What the path of an entry means.

use crate::resource::GroupResource;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArchiveEntry {
    /// `metadata/version`
    FormatVersion,
    /// An item.
    Item(ItemPath),
}

/// Which item an entry holds, and in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemPath {
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
const MAX_NAME_LENGTH: usize = 253;
/// What it allows for namespaces, versions and the plural of a kind.
const MAX_LABEL_LENGTH: usize = 63;

/// Why the path of an entry is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadPath {
    /// It may have been an item, and is none.
    Invalid(&'static str),
    /// It is none of those that are known here. Later versions may write more than today's.
    Unknown(&'static str),
}

/// Reads a path, or says what is wrong with it.
pub(super) fn parse(path: &str) -> Result<ArchiveEntry, BadPath> {
    use BadPath::{Invalid, Unknown};
    // Some writers of tar files lead every path in.
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.starts_with('/') {
        return Err(Invalid("it is an absolute path"));
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains('\0')) {
        return Err(Invalid("it is no plain path"));
    }
    match parts.as_slice() {
        ["metadata", "version"] => Ok(ArchiveEntry::FormatVersion),
        ["metadata", ..] => Err(Unknown("it is of no use here")),
        ["resources", resource, rest @ ..] => item(resource, rest),
        _ => Err(Unknown("it is in no folder that a backup has")),
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
        [] => return Err(Invalid("it names no item")),
    };
    let (namespace, file) = match rest {
        ["cluster", file] => ("", file),
        ["namespaces", namespace, file] => (*namespace, file),
        _ => return Err(Invalid("it names no item")),
    };
    let name = file.strip_suffix(".json").ok_or(Invalid("it is no JSON file"))?;
    if name.is_empty() {
        return Err(Invalid("it names no item"));
    }
    if name.len() > MAX_NAME_LENGTH
        || namespace.len() > MAX_LABEL_LENGTH
        || resource.len() > MAX_LABEL_LENGTH + 1 + MAX_NAME_LENGTH
        || matches!(&version, VersionFolder::Preferred(one) | VersionFolder::Other(one)
            if one.len() > MAX_LABEL_LENGTH)
    {
        return Err(Unknown("a name in it is too long"));
    }
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    Ok(ArchiveEntry::Item(ItemPath {
        resource: GroupResource::new(group, resource),
        version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}
