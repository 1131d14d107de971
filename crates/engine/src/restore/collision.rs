//! Which item of the backup an object comes from, where its place does not tell.
//!
//! Items of two namespaces that are mapped into one may have the same name, and an action or a modifier
//! may give an item the name of another. Only one of them finds its place free. So that the others are
//! not taken for it, in the same run or after a restart, such an object notes which item it was. All
//! others note nothing.

use std::collections::BTreeMap;

use bowline_plugin::ResourceIdentifier;
use serde_json::{Map, Value};

/// The annotation that notes the item.
const RESTORED_FROM: &str = "bowline.io/restored-from";

/// Namespaces that more than one namespace of the backup is restored into.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceCollisions {
    /// Those of the backup, by the one that they share.
    sources: BTreeMap<String, Vec<String>>,
}

impl NamespaceCollisions {
    /// Finds them among the namespaces of a backup.
    pub(super) fn new(mapping: &BTreeMap<String, String>, names: &[&str]) -> Self {
        let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in names {
            let target = mapping.get(*name).map_or(*name, String::as_str);
            sources.entry(target.to_owned()).or_default().push((*name).to_owned());
        }
        sources.retain(|_, sources| sources.len() > 1);
        Self { sources }
    }

    /// The namespaces of the backup that are restored into one, if they are several.
    pub(super) fn sources(&self, target: &str) -> impl Iterator<Item = &str> {
        self.sources.get(target).into_iter().flatten().map(String::as_str)
    }

    /// Whether an item of another namespace goes to the same place, if such a one is restored.
    pub(super) fn has_conflicting_item(
        &self,
        id: &ResourceIdentifier,
        target: &str,
        is_restored: impl Fn(&ResourceIdentifier) -> bool,
    ) -> bool {
        let sources = self.sources.get(target).into_iter().flatten();
        let others = sources.filter(|namespace| **namespace != id.namespace);
        others
            .map(|namespace| ResourceIdentifier { namespace: namespace.clone(), ..id.clone() })
            .any(|other| is_restored(&other))
    }
}

/// Notes on an object which item it was, or takes away what another restore has noted.
pub(super) fn set_origin(object: &mut Value, item: Option<&ResourceIdentifier>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match (item, metadata.get_mut("annotations").and_then(Value::as_object_mut)) {
        (None, None) => {}
        (None, Some(annotations)) => {
            annotations.remove(RESTORED_FROM);
        }
        (Some(item), Some(annotations)) => {
            annotations.insert(RESTORED_FROM.to_owned(), item.to_string().into());
        }
        (Some(item), None) => {
            let annotations = Map::from_iter([(RESTORED_FROM.to_owned(), item.to_string().into())]);
            metadata.insert("annotations".to_owned(), annotations.into());
        }
    }
}

/// Which item an object says that it was.
pub(super) fn origin_item(object: &Value) -> Option<&str> {
    object.pointer("/metadata/annotations")?.get(RESTORED_FROM)?.as_str()
}

/// Lets a merge patch make an object note the same item as another.
pub(super) fn copy_origin_to_patch(patch: &mut Value, from: &Value) {
    patch["metadata"]["annotations"][RESTORED_FROM] = origin_item(from).into();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(namespace: &str, name: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn namespace_collides_if_several_are_restored_into_it() {
        let names = ["a", "b", "c"];
        for (mapping, expected) in [
            (&[][..], &[][..]),
            (&[("a", "x")], &[]),
            (&[("a", "b"), ("b", "a")], &[]),
            (&[("a", "x"), ("missing", "x")], &[]),
            (&[("a", "b")], &[("b", "a b")]),
            (&[("a", "x"), ("b", "x")], &[("x", "a b")]),
            (&[("a", "c"), ("b", "c")], &[("c", "a b c")]),
        ] {
            let mapping: BTreeMap<String, String> =
                mapping.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
            let collisions = NamespaceCollisions::new(&mapping, &names);
            let found: Vec<(&str, String)> =
                collisions.sources.iter().map(|(to, from)| (to.as_str(), from.join(" "))).collect();
            let expected: Vec<(&str, String)> =
                expected.iter().map(|(to, from)| (*to, from.to_string())).collect();
            assert_eq!(found, expected, "{mapping:?}");
        }
    }

    #[test]
    fn conflicting_item_has_the_same_name_in_another_restored_namespace() {
        let mapping = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let collisions = NamespaceCollisions::new(&mapping, &["a", "b", "c"]);
        let restored = [item("a", "x"), item("b", "x"), item("b", "y"), item("c", "x")];
        let has_conflict = |namespace: &str, name: &str, target: &str| {
            collisions.has_conflicting_item(&item(namespace, name), target, |other| {
                restored.contains(other)
            })
        };
        assert!(has_conflict("a", "x", "b") && has_conflict("b", "x", "b"));
        assert!(!has_conflict("b", "y", "b"), "nothing else is called so");
        assert!(!has_conflict("c", "x", "c"), "its namespace is its own");
        assert!(
            !collisions.has_conflicting_item(&item("a", "x"), "b", |_| false),
            "the other is left out"
        );
    }

    #[test]
    fn origin_annotation_is_set_and_a_stale_one_removed() {
        let mut object = json!({"metadata": {"name": "x"}});
        set_origin(&mut object, None);
        assert_eq!(object, json!({"metadata": {"name": "x"}}));
        for namespace in ["a", "b"] {
            set_origin(&mut object, Some(&item(namespace, "x")));
            assert_eq!(origin_item(&object), Some(&*format!("configmaps/{namespace}/x")));
        }
        set_origin(&mut object, None);
        assert_eq!((origin_item(&object), &object["metadata"]["annotations"]), (None, &json!({})));
    }

    #[test]
    fn patch_copies_the_origin_annotation() {
        let mut annotated = json!({"metadata": {}});
        set_origin(&mut annotated, Some(&item("a", "x")));
        for (desired, expected) in [(annotated, json!("configmaps/a/x")), (json!({}), Value::Null)]
        {
            let mut patch = json!({"data": {"k": "v"}});
            copy_origin_to_patch(&mut patch, &desired);
            let annotations = json!({RESTORED_FROM: expected});
            assert_eq!(
                patch,
                json!({"data": {"k": "v"}, "metadata": {"annotations": annotations}})
            );
        }
    }
}
