//! The names of what is in the archive, for `-resource-list.json.gz`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use bowline_store::file::ResourceList;

use crate::item::Object;
use crate::resource::GroupResource;

/// The names of stored items, compactly: one text for all names of a kind in a namespace.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    names: Mutex<BTreeMap<Group, Names>>,
}

/// `apps/v1/Deployment`, and a namespace.
type Group = (String, String);

#[derive(Debug)]
struct Names {
    resource: GroupResource,
    text: String,
    count: usize,
}

/// What no name contains.
const SEPARATOR: char = '\n';

impl Inventory {
    /// Notes an item.
    pub(super) fn add(&self, object: &Object) {
        let kind = format!("{}/{}", object.resource.api_version(), object.resource.kind);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let group = names.entry((kind, object.namespace.clone())).or_insert_with(|| Names {
            resource: object.resource.id.clone(),
            text: String::new(),
            count: 0,
        });
        group.text.push_str(&object.name);
        group.text.push(SEPARATOR);
        group.count += 1;
    }

    /// How many items there are.
    pub(super) fn count(&self) -> usize {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.values().map(|group| group.count).sum()
    }

    /// The resources that there are items of.
    pub(super) fn resources(&self) -> Vec<GroupResource> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let resources: BTreeSet<&GroupResource> =
            names.values().map(|group| &group.resource).collect();
        resources.into_iter().cloned().collect()
    }

    /// The file.
    pub(super) fn into_list(self) -> ResourceList {
        let names = self.names.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut list: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ((kind, namespace), group) in names {
            let full = |name: &str| match namespace.as_str() {
                "" => name.to_owned(),
                namespace => format!("{namespace}/{name}"),
            };
            let of_kind = list.entry(kind).or_default();
            of_kind.extend(group.text.split_terminator(SEPARATOR).map(full));
        }
        for of_kind in list.values_mut() {
            of_kind.sort_unstable();
        }
        ResourceList(list)
    }
}
