//! Pods, which the original cluster has scheduled.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde_json::Value;

use super::{id, read, write};
use crate::json::{elements_mut, remove, remove_elements, text};

/// Removes the values that the cluster assigned to a pod: its node, its priority, and the volume with the token of its
/// ServiceAccount, which is injected anew. Adds its PriorityClass.
pub(super) struct Pod;

fn change(pod: &mut Value) -> bool {
    let mut changed = remove(pod, "/spec", &["nodeName", "priority"]);
    // Older clusters mount tokens from a generated Secret.
    let token = format!("{}-token-", text(pod, "/spec/serviceAccountName"));
    let is_token = |named: &Value| text(named, "/name").starts_with(&token);
    changed |= remove_elements(pod, "/spec", "volumes", is_token);
    for containers in ["/spec/containers", "/spec/initContainers"] {
        for container in elements_mut(pod, containers) {
            changed |= remove_elements(container, "", "volumeMounts", is_token);
        }
    }
    changed
}

fn priority_class(pod: &Value) -> Option<ResourceIdentifier> {
    let name = text(pod, "/spec/priorityClassName");
    (!name.is_empty()).then(|| id("scheduling.k8s.io", "priorityclasses", "", name))
}

#[async_trait]
impl RestoreItemAction for Pod {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        let mut pod: Value = read(item)?;
        let mut output = RestoreOutput::unchanged(item);
        if change(&mut pod) {
            output.item = write(&pod)?;
        }
        output.additional_items.extend(priority_class(&pod));
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{changes, execute};
    use super::*;
    use serde_json::json;

    #[test]
    fn node_priority_and_token_volume_are_removed() {
        let mounts = |names: &[&str]| -> Value {
            json!({"volumeMounts": names.iter().map(|name| json!({"name": name})).collect::<Value>()})
        };
        changes(
            change,
            [
                ("nothing to remove", json!({"spec": {"volumes": [{"name": "a-token-1"}]}}), None),
                (
                    "node and priority",
                    json!({"spec": {"nodeName": "n", "priority": 0, "priorityClassName": "c"}}),
                    Some(json!({"spec": {"priorityClassName": "c"}})),
                ),
                (
                    "tokens",
                    json!({"spec": {
                        "serviceAccountName": "app",
                        "volumes": [{"name": "app-token-1"}, {"name": "data"}, {"name": "app-tokens"}],
                        "containers": [mounts(&["data", "app-token-1"]), mounts(&["data"])],
                        "initContainers": [mounts(&["app-token-1"])],
                    }}),
                    Some(json!({"spec": {
                        "serviceAccountName": "app",
                        "volumes": [{"name": "data"}, {"name": "app-tokens"}],
                        "containers": [mounts(&["data"]), mounts(&["data"])],
                        "initContainers": [{}],
                    }})),
                ),
                (
                    "the only volume",
                    json!({"spec": {"serviceAccountName": "a", "volumes": [{"name": "a-token-1"}]}}),
                    Some(json!({"spec": {"serviceAccountName": "a"}})),
                ),
            ],
        );
    }

    #[tokio::test]
    async fn priority_class_is_an_additional_item() {
        for (name, expected) in
            [("high", vec!["priorityclasses.scheduling.k8s.io/high"]), ("", vec![])]
        {
            let item = json!({"kind": "Pod", "spec": {"priorityClassName": name, "priority": 7}});
            let output = execute(&Pod, &item, &Restore::default()).await.unwrap();
            let added: Vec<_> = output.additional_items.iter().map(ToString::to_string).collect();
            assert_eq!(added, expected);
        }
    }
}
