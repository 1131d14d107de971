//! Role bindings: ServiceAccounts move with their namespaces.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::edit;
use crate::json::elements_mut;

/// Maps the namespaces of the subjects of bindings of one kind, `rolebindings` or
/// `clusterrolebindings`.
pub(super) struct Bindings(pub(super) &'static str);

fn change(binding: &mut Value, mapping: &BTreeMap<String, String>) -> bool {
    let mut changed = false;
    for subject in elements_mut(binding, "/subjects") {
        let Some(namespace) = subject.get_mut("namespace") else { continue };
        if let Some(target) = namespace.as_str().and_then(|name| mapping.get(name)) {
            *namespace = target.as_str().into();
            changed = true;
        }
    }
    changed
}

#[async_trait]
impl RestoreItemAction for Bindings {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources([self.0]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let mapping = &restore.spec.namespace_mapping;
        if mapping.is_empty() {
            return Ok(RestoreOutput::unchanged(item));
        }
        edit(item, |binding| Ok(change(binding, mapping)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn subjects_move_with_their_namespaces() {
        let mapping = [("a", "b"), ("b", "c")].map(|(from, to)| (from.to_owned(), to.to_owned()));
        let mapping = BTreeMap::from(mapping);
        let binding = |namespaces: &[&str]| {
            let subject =
                |namespace: &&str| json!({"kind": "ServiceAccount", "namespace": namespace});
            json!({"subjects": namespaces.iter().map(subject).collect::<Vec<_>>()})
        };
        changes(
            |object| change(object, &mapping),
            [
                ("no subjects", json!({"roleRef": {"name": "a"}}), None),
                ("not mapped", binding(&["x", ""]), None),
                ("a user", json!({"subjects": [{"kind": "User", "name": "a"}]}), None),
                ("mapped once each", binding(&["a", "x", "b"]), Some(binding(&["b", "x", "c"]))),
            ],
        );
    }
}
