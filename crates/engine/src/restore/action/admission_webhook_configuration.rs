//! Webhook configurations that were written for `v1beta1`.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::edit;
use crate::json::{elements_mut, text};

/// Replaces side effects that `v1` refuses, such as `Unknown`, by `None`. Clusters that served both versions kept
/// them.
pub(super) struct AdmissionWebhookConfiguration;

fn change(configuration: &mut Value) -> bool {
    if text(configuration, "/apiVersion") != "admissionregistration.k8s.io/v1" {
        return false;
    }
    let mut changed = false;
    for webhook in elements_mut(configuration, "/webhooks").filter_map(Value::as_object_mut) {
        let side_effects = webhook.get("sideEffects").and_then(Value::as_str);
        if !matches!(side_effects, Some("None" | "NoneOnDryRun")) {
            webhook.insert("sideEffects".to_owned(), "None".into());
            changed = true;
        }
    }
    changed
}

#[async_trait]
impl RestoreItemAction for AdmissionWebhookConfiguration {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources([
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        ]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        edit(item, |configuration| Ok(change(configuration)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn side_effects_that_v1_refuses_become_none() {
        let v1 = |webhooks: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "webhooks": webhooks});
        let v1beta1 = json!({
            "apiVersion": "admissionregistration.k8s.io/v1beta1",
            "webhooks": [{"name": "a", "sideEffects": "Unknown"}],
        });
        changes(
            change,
            [
                (
                    "allowed",
                    v1(json!([{"sideEffects": "None"}, {"sideEffects": "NoneOnDryRun"}])),
                    None,
                ),
                ("another version", v1beta1, None),
                ("no webhooks", json!({"apiVersion": "admissionregistration.k8s.io/v1"}), None),
                (
                    "refused, or not said",
                    v1(json!([
                        {"name": "a", "sideEffects": "Unknown"},
                        {"name": "b", "sideEffects": "Some"},
                        {"name": "c", "sideEffects": "NoneOnDryRun"},
                        {"name": "d"},
                    ])),
                    Some(v1(json!([
                        {"name": "a", "sideEffects": "None"},
                        {"name": "b", "sideEffects": "None"},
                        {"name": "c", "sideEffects": "NoneOnDryRun"},
                        {"name": "d", "sideEffects": "None"},
                    ]))),
                ),
            ],
        );
    }
}
