//! Volumes that have another storage class in the target cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::lookup::{CachedLookup, Lookup, cached_or_read};
use super::{CHANGE_STORAGE_CLASS, read, write};
use crate::json::{elements_mut, text};

/// Changes the class of claims and volumes according to a ConfigMap, to classes that exist.
pub(super) struct ChangeStorageClass {
    lookup: Arc<Lookup>,
    mapping: CachedLookup<Mapping>,
}

/// New class by old class.
type Mapping = BTreeMap<String, Target>;

#[derive(Default)]
struct Target {
    class: String,
    exists: CachedLookup<()>,
}

fn mapping(config: BTreeMap<String, String>) -> Mapping {
    let target = |class| Target { class, ..Target::default() };
    config.into_iter().map(|(old, new)| (old, target(new))).collect()
}

/// Replaces every mapped class in the object, and returns the new ones.
fn change<'a>(object: &mut Value, mapping: &'a Mapping) -> Vec<&'a Target> {
    if text(object, "/kind") == "StatefulSet" {
        let templates = elements_mut(object, "/spec/volumeClaimTemplates");
        templates.filter_map(|template| change_one(template, mapping)).collect()
    } else {
        change_one(object, mapping).into_iter().collect()
    }
}

fn change_one<'a>(object: &mut Value, mapping: &'a Mapping) -> Option<&'a Target> {
    let class = object.pointer_mut("/spec/storageClassName")?;
    // An empty name means that no class is wanted.
    let target = class.as_str().filter(|name| !name.is_empty()).and_then(|old| mapping.get(old))?;
    *class = target.class.as_str().into();
    Some(target)
}

impl ChangeStorageClass {
    pub(super) fn new(lookup: &Arc<Lookup>) -> Self {
        Self { lookup: Arc::clone(lookup), mapping: CachedLookup::new() }
    }
}

#[async_trait]
impl RestoreItemAction for ChangeStorageClass {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources([
            "persistentvolumeclaims",
            "persistentvolumes",
            "statefulsets",
        ]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        let config = async { Ok(mapping(self.lookup.config(CHANGE_STORAGE_CLASS).await?)) };
        let mapping = cached_or_read(&self.mapping, config).await?;
        let mut output = RestoreOutput::unchanged(item);
        if mapping.is_empty() {
            return Ok(output);
        }
        let mut object: Value = read(item)?;
        let targets = change(&mut object, mapping);
        for Target { class, exists } in &targets {
            cached_or_read(exists, self.lookup.require_storage_class(class)).await?;
        }
        if !targets.is_empty() {
            output.item = write(&object)?;
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{changes, execute, lookup_in, plugin_config};
    use super::*;
    use crate::cluster::Fake;
    use serde_json::json;

    fn of_class(kind: &str, class: &str) -> Value {
        json!({"kind": kind, "spec": {"storageClassName": class}})
    }

    #[test]
    fn classes_are_changed_wherever_a_kind_names_them() {
        let config = [("a", "b"), ("b", "c"), ("", "d")];
        let config = config.map(|(old, new)| (old.to_owned(), new.to_owned()));
        let mapping = mapping(BTreeMap::from(config));
        let set = |classes: &[&str]| {
            let template = |class: &&str| json!({"spec": {"storageClassName": class}});
            let templates: Vec<_> = classes.iter().map(template).collect();
            json!({"kind": "StatefulSet", "spec": {"volumeClaimTemplates": templates}})
        };
        let classless =
            json!({"kind": "StatefulSet", "spec": {"volumeClaimTemplates": [{"spec": {}}]}});
        let claim = |class| of_class("PersistentVolumeClaim", class);
        changes(
            |object| !change(object, &mapping).is_empty(),
            [
                ("a claim, once", claim("a"), Some(claim("b"))),
                (
                    "a volume",
                    of_class("PersistentVolume", "b"),
                    Some(of_class("PersistentVolume", "c")),
                ),
                ("a class that is not mapped", claim("x"), None),
                ("no class on purpose", claim(""), None),
                ("the default class", json!({"kind": "PersistentVolumeClaim", "spec": {}}), None),
                ("templates", set(&["a", "x", "b"]), Some(set(&["b", "x", "c"]))),
                ("templates that are not mapped", set(&["x"]), None),
                ("templates without a class", classless, None),
                ("no templates", json!({"kind": "StatefulSet", "spec": {}}), None),
                ("not its class but a field of that name", of_class("StatefulSet", "a"), None),
            ],
        );
    }

    fn class(name: &str) -> Value {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}})
    }

    #[tokio::test]
    async fn the_mapping_and_each_class_are_read_once() {
        let config =
            plugin_config("m", CHANGE_STORAGE_CLASS, &json!({"slow": "fast", "x": "gone"}));
        let (fake, lookup) = lookup_in(Fake::usual().with(config).with(class("fast")));
        let action = ChangeStorageClass::new(&lookup);
        for _ in 0..3 {
            let claim = of_class("PersistentVolumeClaim", "slow");
            let output = execute(&action, &claim, &Restore::default()).await.unwrap();
            let changed: Value = output.item.parse().unwrap();
            assert_eq!(changed, of_class("PersistentVolumeClaim", "fast"));

            let claim = of_class("PersistentVolumeClaim", "x");
            let error = execute(&action, &claim, &Restore::default()).await.unwrap_err();
            assert_eq!(
                error.message(),
                "the cluster has no storage class \"gone\": create it first"
            );
        }
        assert_eq!(fake.lists().len(), 1);
        let gets: Vec<_> = fake.gets().iter().map(ToString::to_string).collect();
        assert_eq!(
            gets,
            ["storageclasses.storage.k8s.io/fast", "storageclasses.storage.k8s.io/gone"]
        );
    }

    #[tokio::test]
    async fn mapping_to_an_empty_class_is_an_error() {
        let config = plugin_config("m", CHANGE_STORAGE_CLASS, &json!({"slow": ""}));
        let (fake, lookup) = lookup_in(Fake::usual().with(config));
        let action = ChangeStorageClass::new(&lookup);
        let claim = of_class("PersistentVolumeClaim", "slow");
        let error = execute(&action, &claim, &Restore::default()).await.unwrap_err();
        assert_eq!(error.message(), "the cluster has no storage class \"\": create it first");
        assert!(fake.gets().is_empty());
    }
}
