//! Jobs, which are linked to their pods by a uid.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::edit;
use crate::json::remove_entries;

/// Removes the labels with the uid of the original Job. The restored one has a new uid, and gets labels with it.
pub(super) struct Job;

/// The older and the newer label; Kubernetes sets both.
const CONTROLLER_UID: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

fn change(job: &mut Value) -> bool {
    let selector = remove_entries(job, "/spec/selector", "matchLabels", &CONTROLLER_UID);
    let template = remove_entries(job, "/spec/template/metadata", "labels", &CONTROLLER_UID);
    selector || template
}

#[async_trait]
impl RestoreItemAction for Job {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["jobs"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        edit(item, |job| Ok(change(job)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_with_the_old_uid_are_removed() {
        let job = |selector: Value, template: Value| {
            let labels = json!({"controller-uid": "own labels stay"});
            json!({
                "metadata": {"labels": labels},
                "spec": {"selector": selector, "template": {"metadata": template}},
            })
        };
        let (old, new) = ("controller-uid", "batch.kubernetes.io/controller-uid");
        changes(
            change,
            [
                ("no selector", json!({"spec": {"template": {"metadata": {}}}}), None),
                ("none of them", job(json!({"matchLabels": {"a": "b"}}), json!({})), None),
                (
                    "both in both places",
                    job(
                        json!({"matchLabels": {old: "1", new: "1"}}),
                        json!({"labels": {old: "1", new: "1", "job-name": "a"}}),
                    ),
                    Some(job(json!({}), json!({"labels": {"job-name": "a"}}))),
                ),
                (
                    "in the template only",
                    job(json!({"matchLabels": {"a": "b"}}), json!({"labels": {new: "1"}})),
                    Some(job(json!({"matchLabels": {"a": "b"}}), json!({}))),
                ),
            ],
        );
    }
}
