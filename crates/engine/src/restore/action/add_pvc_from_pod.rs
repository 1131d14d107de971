//! Restores the claims of a pod before the pod.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde::Deserialize;

use super::{id, read};

/// Adds the claims of a pod.
pub(super) struct AddPvcFromPod;

/// The required fields of a pod.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    volumes: Option<Vec<Volume>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<Claim>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    claim_name: String,
}

fn claims(pod: &Pod) -> Vec<ResourceIdentifier> {
    let volumes = pod.spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .filter(|claim| !claim.claim_name.is_empty())
        .map(|claim| id("", "persistentvolumeclaims", &pod.metadata.namespace, &claim.claim_name))
        .collect()
}

#[async_trait]
impl RestoreItemAction for AddPvcFromPod {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        Ok(RestoreOutput {
            additional_items: claims(&read(item)?),
            ..RestoreOutput::unchanged(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_of_pod_volumes_are_additional_items() {
        for (volumes, expected) in [
            (json!(null), vec![]),
            (json!([]), vec![]),
            (json!([{"name": "a", "emptyDir": {}}]), vec![]),
            (json!([{"name": "a", "persistentVolumeClaim": {"claimName": ""}}]), vec![]),
            (
                json!([
                    {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "b", "configMap": {"name": "data"}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "logs"}},
                ]),
                vec!["persistentvolumeclaims/shop/data", "persistentvolumeclaims/shop/logs"],
            ),
        ] {
            let pod = json!({"metadata": {"namespace": "shop"}, "spec": {"volumes": volumes}});
            let claims = claims(&serde_json::from_value(pod).unwrap());
            let claims: Vec<_> = claims.iter().map(ToString::to_string).collect();
            assert_eq!(claims, expected, "{volumes}");
        }
    }
}
