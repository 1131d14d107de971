//! The index of an archive, and the temporary file with its items.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bowline_plugin::{Item, ResourceIdentifier};

use super::error::{ArchiveBreak, Defect, ReadError};
use crate::item::{InvalidObject, Object};
use crate::resource::{GroupResource, Resource};

/// Contents of an archive.
#[derive(Debug)]
pub struct Contents {
    pub(super) spool: File,
    /// Version of the archive format; empty if not specified.
    pub format_version: String,
    pub(super) kinds: BTreeMap<GroupResource, Kind>,
    /// Nesting depth of deeply nested items.
    pub(super) deep_items: HashMap<ResourceIdentifier, usize>,
    /// Refused entries with reasons, and defects of the archive as a whole.
    pub refusals: Vec<Defect>,
    /// Defects of the archive, of parts or of the whole. Empty if it is complete and every item is what a backup
    /// writes. Includes the refusals, except those of entries that are not items, and the defects of items that are
    /// still in the index, since reading them detects the defect again.
    pub damage: Vec<Defect>,
    /// Number of items that are missing or unreadable, as far as known.
    pub lost: usize,
    /// Where and why reading stopped, if the archive did not end properly. Also the last of the refusals.
    pub broken: Option<ArchiveBreak>,
}

/// The items of one resource.
#[derive(Debug, Default)]
pub struct Kind {
    /// The version that the API server preferred when the backup was taken, if known.
    pub preferred: Option<String>,
    pub(super) items: ItemIndex,
    /// Items in other versions than the preferred one.
    pub(super) others: BTreeMap<String, ItemIndex>,
}

/// Where items are in the spool, by namespace and name. There may be millions, so the index of all kinds together has
/// each namespace once, and names take no more than their length.
#[derive(Debug, Default)]
pub(super) struct ItemIndex(BTreeMap<(Arc<str>, Box<str>), Extent>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: usize,
}

impl ItemIndex {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Extent> {
        self.0.get(&(namespace.into(), name.into())).copied()
    }

    pub(super) fn insert(&mut self, namespace: Arc<str>, name: &str, extent: Extent) {
        self.0.insert((namespace, name.into()), extent);
    }
}

impl Kind {
    /// Namespaces and names, sorted.
    pub fn items(&self) -> impl Iterator<Item = (&str, &str)> {
        self.items.0.keys().map(|(namespace, name)| (&**namespace, &**name))
    }

    /// All versions in which items are stored.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.preferred.iter().chain(self.others.keys()).map(String::as_str)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.0.len()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.0.is_empty()
    }
}

impl Contents {
    /// The resources that have items, sorted by name.
    pub fn kinds(&self) -> impl Iterator<Item = (&GroupResource, &Kind)> {
        self.kinds.iter()
    }

    /// The items of one resource.
    pub fn kind(&self, resource: &GroupResource) -> Option<&Kind> {
        self.kinds.get(resource)
    }

    /// True if the archive contains an item.
    pub fn has(&self, id: &ResourceIdentifier) -> bool {
        self.extent(id).is_some()
    }

    /// Size of an item in bytes; 0 if it is missing.
    pub fn size(&self, id: &ResourceIdentifier) -> usize {
        self.extent(id).map_or(0, |extent| extent.length)
    }

    fn extent(&self, id: &ResourceIdentifier) -> Option<Extent> {
        let resource = GroupResource::new(&id.group, &id.resource);
        self.kinds.get(&resource)?.items.get(&id.namespace, &id.name)
    }

    /// Nesting depth of an item's values; 0 if it is not unusual.
    pub fn levels(&self, id: &ResourceIdentifier) -> usize {
        self.deep_items.get(id).copied().unwrap_or(0)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.kinds.values().map(Kind::len).sum()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Namespaces that contain items.
    pub fn namespaces(&self) -> Vec<&str> {
        let all = self.kinds.values().flat_map(Kind::items).map(|(namespace, _)| namespace);
        let mut namespaces: Vec<&str> = all.filter(|namespace| !namespace.is_empty()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces
    }

    /// Reads an item in one of its stored versions; without `version`, in the preferred one.
    pub fn read(
        &self,
        resource: &GroupResource,
        version: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<Item, ReadError> {
        let kind = self.kinds.get(resource).ok_or(ReadError::Missing)?;
        let other = version.and_then(|version| kind.others.get(version));
        let extent = match other {
            Some(items) => items.get(namespace, name),
            None => kind.items.get(namespace, name),
        };
        let extent = extent.ok_or(ReadError::Missing)?;
        let mut json = vec![0; extent.length];
        self.spool.read_exact_at(&mut json, extent.offset)?;
        Ok(Item::from_json(json).map_err(InvalidObject::Item)?)
    }

    /// Stand-in for a resource that the cluster does not serve, derived from one of its items.
    pub fn resource(&self, id: &GroupResource, namespace: &str, name: &str) -> Option<Resource> {
        let item = self.read(id, None, namespace, name).ok()?;
        let Type { kind, api_version } = Type::of(&item).ok()?;
        let version = api_version.rsplit_once('/').map_or(&*api_version, |(_, version)| version);
        Some(Resource {
            id: id.clone(),
            version: version.to_owned(),
            singular: kind.to_ascii_lowercase(),
            kind,
            short_names: Vec::new(),
            is_namespaced: !namespace.is_empty(),
            verbs: Vec::new(),
        })
    }

    /// Reads an item and verifies that it is the one that its path names.
    pub fn object(
        &self,
        resource: &Arc<Resource>,
        version: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<Object, ReadError> {
        let item = self.read(&resource.id, version, namespace, name)?;
        let object = Object::new(resource, item)?;
        if object.namespace != namespace || object.name != name {
            let actual = format!("{}/{}", object.namespace, object.name);
            return Err(ReadError::Mismatch(actual));
        }
        // Filters use the directory, writes use the object's own type, so both must agree.
        match Type::of(&object.item)? {
            Type { kind, api_version }
                if kind == resource.kind && group_of(&api_version) == resource.id.group =>
            {
                Ok(object)
            }
            Type { kind, api_version } => {
                Err(ReadError::Mismatch(format!("a {kind} of {api_version:?}")))
            }
        }
    }
}

/// Type that an object declares.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Type {
    kind: String,
    api_version: String,
}

impl Type {
    fn of(item: &Item) -> Result<Self, InvalidObject> {
        item.parse().map_err(InvalidObject::Item)
    }
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
