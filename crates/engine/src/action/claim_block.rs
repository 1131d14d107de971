//! Item block of a PersistentVolumeClaim.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    Encoded, Item, ItemBlockAction, ResourceIdentifier, ResourceSelector, Result,
};

use super::claim::{Claim, Metadata};
use super::lazy::LazyMap;
use super::mounts::Mounts;
use super::{Reader, id};
use crate::cluster::Query;

/// Adds to the block of a bound claim its volume, the running pods that mount it, and the claims of
/// its volume group.
pub(super) struct ClaimBlock {
    reader: Reader,
    mounts: Arc<Mounts>,
    /// Label with the volume group of a claim; empty if there are no groups.
    group_label: String,
    groups: LazyMap<(String, String), Vec<String>>,
}

impl ClaimBlock {
    pub(super) fn new(reader: Reader, mounts: Arc<Mounts>, group_label: &str) -> Self {
        let group_label = group_label.to_owned();
        Self { reader, mounts, group_label, groups: LazyMap::default() }
    }

    async fn running_pods(&self, of: &Metadata) -> Result<Vec<ResourceIdentifier>> {
        let pods = self.mounts.of_claim(&of.namespace, &of.name).await?;
        let running = pods.iter().filter(|pod| pod.is_running);
        Ok(running.map(|pod| id("", "pods", &of.namespace, pod.facts.name())).collect())
    }

    /// Other claims of the same volume group.
    async fn group_members(&self, of: &Metadata) -> Result<Vec<ResourceIdentifier>> {
        let labels = of.labels.as_ref();
        let group = labels.and_then(|labels| labels.get(&self.group_label));
        let Some(group) = group.filter(|group| !group.is_empty()) else { return Ok(Vec::new()) };
        let claims = self.groups.entry((of.namespace.clone(), group.clone()));
        let claims = claims.get(self.list_group(&of.namespace, group)).await?;
        let others = claims.iter().filter(|name| **name != of.name);
        Ok(others.map(|name| id("", "persistentvolumeclaims", &of.namespace, name)).collect())
    }

    async fn list_group(&self, namespace: &str, group: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let query = Query {
            namespace: Some(namespace.to_owned()),
            // Both come from a claim with this label, so neither can break the selector.
            label_selector: format!("{}={group}", self.group_label),
            ..Query::default()
        };
        let collect_name = |object: &crate::Object| {
            names.push(object.name.clone());
            Ok(())
        };
        self.reader.for_each_object("", "persistentvolumeclaims", query, collect_name).await?;
        Ok(names)
    }
}

#[async_trait]
impl ItemBlockAction for ClaimBlock {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn get_related_items(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        let claim = Claim::read(item)?;
        let Some(volume) = claim.volume() else { return Ok(Vec::new()) };
        let mut related = vec![volume];
        related.extend(self.running_pods(&claim.metadata).await?);
        related.extend(self.group_members(&claim.metadata).await?);
        Ok(related)
    }
}
