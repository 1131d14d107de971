//! CustomResourceDefinitions that were written for `v1beta1`.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::edit;
use crate::json::{elements_mut, map, remove, text};

/// Moves `preserveUnknownFields: true`, which `v1` refuses in new definitions, into their schemas.
pub(super) struct CrdPreserveFields;

fn change(definition: &mut Value) -> bool {
    let preserves = definition.pointer("/spec/preserveUnknownFields").and_then(Value::as_bool);
    let is_v1 = text(definition, "/apiVersion") == "apiextensions.k8s.io/v1";
    if !is_v1 || preserves != Some(true) {
        return false;
    }
    for version in elements_mut(definition, "/spec/versions") {
        if let Some(schema) = map(version, "/schema/openAPIV3Schema") {
            schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
        }
    }
    remove(definition, "/spec", &["preserveUnknownFields"])
}

#[async_trait]
impl RestoreItemAction for CrdPreserveFields {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["customresourcedefinition.apiextensions.k8s.io"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        edit(item, |definition| Ok(change(definition)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_kept_by_the_schemas() {
        let definition = |version: &str, spec: Value| json!({"apiVersion": format!("apiextensions.k8s.io/{version}"), "spec": spec});
        let versions = json!([
            {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}},
            {"name": "v2", "schema": {}},
            {"name": "v3"},
        ]);
        let preserving = json!({"preserveUnknownFields": true, "versions": versions});
        let moved = json!({"versions": [
            {"name": "v1", "schema": {"openAPIV3Schema": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
            }}},
            {"name": "v2", "schema": {}},
            {"name": "v3"},
        ]});
        let pruning = json!({"preserveUnknownFields": false, "versions": versions});
        changes(
            change,
            [
                ("not said", definition("v1", json!({"versions": versions})), None),
                ("pruned", definition("v1", pruning), None),
                ("an older version", definition("v1beta1", preserving.clone()), None),
                ("preserved", definition("v1", preserving), Some(definition("v1", moved))),
            ],
        );
    }
}
