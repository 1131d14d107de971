//! Records the item of the backup that an object comes from, where its name is ambiguous.
//!
//! Items of two namespaces that are mapped to one may have the same name, and an action or a modifier may give an
//! item the name of another. Only one of them can be created. An annotation on such an object records its item, so
//! that it is not mistaken for the others, in the same run or after a restart. Other objects have no such annotation.

use std::collections::BTreeMap;

use bowline_plugin::ResourceIdentifier;
use serde_json::{Map, Value};

use crate::json::annotation;

/// The annotation that records the item.
const RESTORED_FROM: &str = "bowline.io/restored-from";

/// Target namespaces that more than one namespace of the backup is mapped to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceCollisions {
    /// Namespaces of the backup, by their common target.
    sources: BTreeMap<String, Vec<String>>,
}

impl NamespaceCollisions {
    /// Finds the collisions among the namespaces of a backup.
    pub(super) fn new(mapping: &BTreeMap<String, String>, names: &[&str]) -> Self {
        let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in names {
            let target = mapping.get(*name).map_or(*name, String::as_str);
            sources.entry(target.to_owned()).or_default().push((*name).to_owned());
        }
        sources.retain(|_, sources| sources.len() > 1);
        Self { sources }
    }

    /// The namespaces of the backup that are mapped to a target, if there are several.
    pub(super) fn sources(&self, target: &str) -> impl Iterator<Item = &str> {
        self.sources.get(target).into_iter().flatten().map(String::as_str)
    }

    /// True if an item of another namespace has the same target, provided that it is restored.
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

/// Records the item of an object, or removes the annotation of another restore.
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

/// The item that an object was created from, according to its annotation.
pub(super) fn origin_item(object: &Value) -> Option<&str> {
    annotation(object, RESTORED_FROM)
}

/// Extends a merge patch so that it copies the recorded item of another object.
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
