//! Names of the archive's items, for `-resource-list.json.gz`.

use std::collections::{BTreeMap, BTreeSet};

use bowline_store::BackupFile;
use bowline_store::file::BackupContent;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use crate::item::Object;
use crate::resource::GroupResource;

/// Names of stored items, in compact form: one string for all names of a kind in a namespace. It is serialized
/// directly; a list of all names would be the largest thing in memory.
#[derive(Debug, Default)]
pub struct Inventory {
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

/// A character that no name contains.
const SEPARATOR: char = '\n';

impl Inventory {
    /// Records an item.
    pub(super) fn add(&self, object: &Object) {
        let kind = format!("{}/{}", object.resource.api_version(), object.resource.kind);
        let mut names = self.names.lock();
        let group = names.entry((kind, object.namespace.clone())).or_insert_with(|| Names {
            resource: object.resource.id.clone(),
            text: String::new(),
            count: 0,
        });
        group.text.push_str(&object.name);
        group.text.push(SEPARATOR);
        group.count += 1;
    }

    /// Number of items.
    pub fn count(&self) -> usize {
        let names = self.names.lock();
        names.values().map(|group| group.count).sum()
    }

    /// The resources of the items.
    pub(super) fn resources(&self) -> Vec<GroupResource> {
        let names = self.names.lock();
        let resources: BTreeSet<&GroupResource> =
            names.values().map(|group| &group.resource).collect();
        resources.into_iter().cloned().collect()
    }
}

impl BackupContent for Inventory {
    const FILE: BackupFile = BackupFile::ResourceList;
}

/// The format of [`bowline_store::file::ResourceList`], which is the type that reads it.
impl Serialize for Inventory {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let names = self.names.lock();
        let mut kinds: BTreeMap<&str, Vec<(&str, &Names)>> = BTreeMap::new();
        for ((kind, namespace), group) in names.iter() {
            kinds.entry(kind).or_default().push((namespace, group));
        }
        to.collect_map(kinds.into_iter().map(|(kind, groups)| (kind, KindNames(groups))))
    }
}

/// The names of one kind, by namespace.
struct KindNames<'a>(Vec<(&'a str, &'a Names)>);

impl Serialize for KindNames<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut groups = self.0.clone();
        // The order of whole names: that of `a/` and `a-b/`, not that of `a` and `a-b`.
        groups.sort_unstable_by(|(a, _), (b, _)| {
            a.bytes().chain(Some(b'/')).cmp(b.bytes().chain(Some(b'/')))
        });
        to.collect_seq(groups.into_iter().flat_map(|(namespace, group)| {
            let mut names: Vec<&str> = group.text.split_terminator(SEPARATOR).collect();
            names.sort_unstable();
            names.into_iter().map(move |name| QualifiedName { namespace, name })
        }))
    }
}

/// `ns/name`, or `name` where there is no namespace.
struct QualifiedName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Serialize for QualifiedName<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.namespace {
            "" => to.serialize_str(self.name),
            namespace => to.collect_str(&format_args!("{namespace}/{}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_store::file::ResourceList;

    use super::*;
    use crate::cluster::fake::Fake;

    #[test]
    fn the_file_lists_whole_names_in_order() {
        let resources = Fake::usual().resources();
        let inventory = Inventory::default();
        let add = |resource: &str, namespace: &str, name: &str| {
            let resource = resources.core(resource).unwrap();
            let metadata = serde_json::json!({"namespace": namespace, "name": name});
            let json = serde_json::json!({
                "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata
            });
            inventory.add(&Object::from_json(resource, json.to_string().into()).unwrap());
        };
        add("pods", "a", "y");
        add("pods", "a-b", "z");
        add("pods", "a", "x");
        add("namespaces", "", "a");
        let written = serde_json::to_string(&inventory).unwrap();
        let expected = r#"{"v1/Namespace":["a"],"v1/Pod":["a-b/z","a/x","a/y"]}"#;
        assert_eq!(written, expected);
        assert!(serde_json::from_str::<ResourceList>(&written).is_ok());
        assert_eq!(inventory.count(), 4);
        assert_eq!(serde_json::to_string(&Inventory::default()).unwrap(), "{}");
    }
}
