//! Installed CSI drivers.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_api::label;
use futures::StreamExt as _;
use serde_json::Value;

use super::{Cluster, Error, Query, Result};
use crate::resource::{GroupResource, Resource, Resources};

/// Installed drivers: those that a node knows, and those whose CSIDriver object was not created by
/// a restore. A restore brings back the CSIDriver object, but not the driver.
pub async fn installed(cluster: &dyn Cluster, resources: &Resources) -> Result<BTreeSet<String>> {
    let kind = |plural: &str| resources.find(&GroupResource::new("storage.k8s.io", plural));
    let mut names = BTreeSet::new();
    for node in list_all(cluster, kind("csinodes")).await? {
        let drivers = node.pointer("/spec/drivers").and_then(Value::as_array);
        let registered = drivers.into_iter().flatten().filter_map(|one| one.get("name")?.as_str());
        names.extend(registered.map(str::to_owned));
    }
    for driver in list_all(cluster, kind("csidrivers")).await? {
        let labels = driver.pointer("/metadata/labels");
        let is_restored = labels.is_some_and(|labels| labels.get(label::RESTORE_NAME).is_some());
        let name = driver.pointer("/metadata/name").and_then(Value::as_str);
        names.extend(name.filter(|_| !is_restored).map(str::to_owned));
    }
    Ok(names)
}

/// All objects of a kind; none if it is not served. Unreadable objects are skipped.
async fn list_all(cluster: &dyn Cluster, resource: Option<&Arc<Resource>>) -> Result<Vec<Value>> {
    let Some(resource) = resource else { return Ok(Vec::new()) };
    let mut list = cluster.list(resource, Query::default());
    let mut all = Vec::new();
    while let Some(found) = list.next().await {
        match found {
            Ok(object) => all.extend(object.item.parse::<Value>()),
            Err(Error::Object(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
