//! What must be backed up together with a claim.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    Encoded, Item, ItemBlockAction, ResourceIdentifier, ResourceSelector, Result,
};

use super::claim::{Claim, Metadata};
use super::lazy::Lazies;
use super::pod::Pod;
use super::{Reader, id};
use crate::cluster::Query;

/// Says that the volume of a bound claim belongs to it, the running pods that mount it, and the
/// claims of its volume group.
pub(super) struct ClaimBlock {
    reader: Reader,
    /// The namespaces that the run is limited to. Then pods are listed in each of them that has
    /// claims, else in all at once.
    only: HashSet<String>,
    /// The label that names the group of a claim; empty if there are no groups.
    group_label: String,
    mounts: Lazies<String, Mounts>,
    groups: Lazies<(String, String), Vec<String>>,
}

/// The names of running pods, by the namespace and the name of the claim that they mount.
type Mounts = HashMap<String, HashMap<String, Vec<Box<str>>>>;

impl ClaimBlock {
    pub(super) fn new(reader: Reader, namespaces: Vec<String>, group_label: &str) -> Self {
        Self {
            reader,
            only: namespaces.into_iter().collect(),
            group_label: group_label.to_owned(),
            mounts: Lazies::default(),
            groups: Lazies::default(),
        }
    }

    async fn pods(&self, of: &Metadata) -> Result<Vec<ResourceIdentifier>> {
        let only = match (self.only.is_empty(), self.only.contains(&of.namespace)) {
            (true, _) => None,
            (false, true) => Some(of.namespace.clone()),
            // The run takes no pods from there.
            (false, false) => return Ok(Vec::new()),
        };
        let mounts = self.mounts.of(only.clone().unwrap_or_default());
        let mounts = mounts.get(self.list_mounts(only)).await?;
        let pods = mounts.get(&of.namespace).and_then(|claims| claims.get(&of.name));
        Ok(pods.into_iter().flatten().map(|pod| id("", "pods", &of.namespace, pod)).collect())
    }

    async fn list_mounts(&self, namespace: Option<String>) -> Result<Mounts> {
        let mut mounts = Mounts::new();
        let query = Query { namespace, ..Query::default() };
        let see = |object: &crate::Object| {
            let pod: Pod = serde_json::from_slice(object.item.json())?;
            if !pod.is_running() {
                return Ok(());
            }
            for claim in pod.claims() {
                // Most pods mount nothing, so an entry is made only now.
                let claims = mounts.entry(object.namespace.clone()).or_default();
                let pods = claims.entry(claim.to_owned()).or_default();
                if pods.last().is_none_or(|last| **last != *object.name) {
                    pods.push(object.name.as_str().into());
                }
            }
            Ok(())
        };
        self.reader.each("", "pods", query, see).await?;
        Ok(mounts)
    }

    /// The other claims of the same volume group.
    async fn companions(&self, of: &Metadata) -> Result<Vec<ResourceIdentifier>> {
        let labels = of.labels.as_ref();
        let group = labels.and_then(|labels| labels.get(&self.group_label));
        let Some(group) = group.filter(|group| !group.is_empty()) else { return Ok(Vec::new()) };
        let claims = self.groups.of((of.namespace.clone(), group.clone()));
        let claims = claims.get(self.list_group(&of.namespace, group)).await?;
        let others = claims.iter().filter(|name| **name != of.name);
        Ok(others.map(|name| id("", "persistentvolumeclaims", &of.namespace, name)).collect())
    }

    async fn list_group(&self, namespace: &str, group: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let query = Query {
            namespace: Some(namespace.to_owned()),
            // Both come from a claim that has this label, so neither can break the selector.
            label_selector: format!("{}={group}", self.group_label),
            ..Query::default()
        };
        let see = |object: &crate::Object| {
            names.push(object.name.clone());
            Ok(())
        };
        self.reader.each("", "persistentvolumeclaims", query, see).await?;
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
        related.extend(self.pods(&claim.metadata).await?);
        related.extend(self.companions(&claim.metadata).await?);
        Ok(related)
    }
}
