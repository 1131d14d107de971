//! Pods: adds their claims and their PriorityClass.

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, ItemBlockAction, ResourceIdentifier,
    ResourceSelector, Result,
};
use serde::Deserialize;

use super::{id, unreadable_item_error};

/// Adds the claims and the PriorityClass of a pod to the backup and to its item block.
pub(super) struct PodAction;

/// Parsed fields of a pod.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    priority_class_name: Option<String>,
    volumes: Option<Vec<Volume>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<ClaimSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

impl Pod {
    /// True if the pod runs and is not being deleted.
    pub(super) fn is_running(&self) -> bool {
        self.status.phase.as_deref() == Some("Running")
            && self.metadata.deletion_timestamp.is_none()
    }

    /// Names of the claims among its volumes.
    pub(super) fn claims(&self) -> impl Iterator<Item = &str> {
        let volumes = self.spec.volumes.iter().flatten();
        volumes
            .filter_map(|volume| volume.persistent_volume_claim.as_ref())
            .map(|source| source.claim_name.as_str())
            .filter(|name| !name.is_empty())
    }

    fn related(&self) -> Vec<ResourceIdentifier> {
        let class = self.spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
        let class = class.map(|name| id("scheduling.k8s.io", "priorityclasses", "", name));
        let claim = |name| id("", "persistentvolumeclaims", &self.metadata.namespace, name);
        class.into_iter().chain(self.claims().map(claim)).collect()
    }
}

fn related(item: &Item) -> Result<Vec<ResourceIdentifier>> {
    let pod: Pod =
        serde_json::from_slice(item.json()).map_err(|error| unreadable_item_error(&error))?;
    Ok(pod.related())
}

#[async_trait]
impl BackupItemAction for PodAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods"]))
    }

    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
        Ok(BackupOutput { additional_items: related(item)?, ..BackupOutput::unchanged(item) })
    }
}

#[async_trait]
impl ItemBlockAction for PodAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods"]))
    }

    async fn get_related_items(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        related(item)
    }
}
