//! Built-in item actions.
//!
//! These are Velero's built-in actions, under the same names. They implement the same traits as
//! plugins do.
//!
//! | as | name | items | effect |
//! |---|---|---|---|
//! | [`BackupItemAction`] | `velero.io/pod` | pods | adds their claims and their PriorityClass |
//! | | `velero.io/pv` | claims | adds the volume; removes fields that tie a claim to its old binding |
//! | | `velero.io/service-account` | ServiceAccounts | adds their ClusterRoleBindings and ClusterRoles |
//! | [`ItemBlockAction`] | `velero.io/pod` | pods | the same relations |
//! | | `velero.io/pvc` | claims | the volume, running pods that mount it, claims of its volume group |
//! | | `velero.io/service-account` | ServiceAccounts | the same relations |
//!
//! `velero.io/crd-remap-version` is not here. It stores definitions in version `v1beta1` where they
//! could not be restored in `v1`, and no cluster since Kubernetes 1.22 serves `v1beta1`.
//!
//! # Cost
//! Relations that need cluster-wide lists (pods that mount a claim, bindings that name a
//! ServiceAccount) are listed on first use, once for all items of a run, and kept as names. Both
//! actions for ServiceAccounts share the same bindings.

mod claim;
mod claim_block;
mod lazy;
mod mounts;
mod pod;
mod service_account;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bowline_plugin::{
    BackupItemAction, Code, Error, ItemBlockAction, Name, ResourceIdentifier, Result,
};
use futures::StreamExt as _;

use crate::cluster::{self, Cluster, Query};
use crate::item::Object;
use crate::resource::{GroupResource, Resource, Resources};
pub(crate) use mounts::Mounts;

/// Action with its name.
pub struct NamedAction<T: ?Sized> {
    /// Name of the action.
    pub name: Name,
    /// Implementation of the action.
    pub plugin: Arc<T>,
    /// True if the action may start operations, so that its execution must be journaled before.
    pub begins_operations: bool,
}

impl<T: ?Sized> NamedAction<T> {
    /// Action that starts no operations.
    pub fn new(name: Name, plugin: Arc<T>) -> Self {
        Self { name, plugin, begins_operations: false }
    }

    /// Action that may start operations.
    pub fn asynchronous(name: Name, plugin: Arc<T>) -> Self {
        Self { name, plugin, begins_operations: true }
    }
}

impl<T: ?Sized> Clone for NamedAction<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), plugin: Arc::clone(&self.plugin), ..*self }
    }
}

/// Built-in actions, in Velero's order.
pub struct BuiltIn {
    /// Actions that run in the backup of items.
    pub backup_item_actions: Vec<NamedAction<dyn BackupItemAction>>,
    /// Actions that group items into blocks.
    pub item_block_actions: Vec<NamedAction<dyn ItemBlockAction>>,
    /// Pods that mount claims, shared with these actions.
    pub(crate) mounts: Arc<Mounts>,
}

/// Actions of one run. `namespaces` are those that the run is limited to; `None` means no limit.
pub fn built_in(
    cluster: &Arc<dyn Cluster>,
    resources: &Arc<Resources>,
    namespaces: Vec<String>,
    volume_group_label_key: &str,
) -> BuiltIn {
    let reader = Reader::new(cluster, resources);
    let mounts = Arc::new(Mounts::new(reader.clone(), namespaces));
    let (claim_mounts, label) = (Arc::clone(&mounts), volume_group_label_key);
    let claims = claim_block::ClaimBlock::new(reader.clone(), claim_mounts, label);
    let service_account = Arc::new(service_account::ServiceAccount::new(reader));
    BuiltIn {
        backup_item_actions: named_actions([
            ("velero.io/pod", Arc::new(pod::PodAction) as Arc<dyn BackupItemAction>),
            ("velero.io/pv", Arc::new(claim::ClaimAction)),
            ("velero.io/service-account", Arc::clone(&service_account) as _),
        ]),
        item_block_actions: named_actions([
            ("velero.io/pod", Arc::new(pod::PodAction) as Arc<dyn ItemBlockAction>),
            ("velero.io/pvc", Arc::new(claims)),
            ("velero.io/service-account", service_account),
        ]),
        mounts,
    }
}

fn named_actions<T: ?Sized, const N: usize>(actions: [(&str, Arc<T>); N]) -> Vec<NamedAction<T>> {
    // No action is lost: a test checks that these names are valid.
    let named =
        |(name, plugin): (&str, _)| name.parse().ok().map(|name| NamedAction::new(name, plugin));
    actions.into_iter().filter_map(named).collect()
}

/// Reads lists of the cluster on behalf of the actions.
#[derive(Clone)]
struct Reader {
    cluster: Arc<dyn Cluster>,
    resources: Arc<Resources>,
}

impl Reader {
    fn new(cluster: &Arc<dyn Cluster>, resources: &Arc<Resources>) -> Self {
        Self { cluster: Arc::clone(cluster), resources: Arc::clone(resources) }
    }

    /// Calls a function for each object of a list, and keeps none. A resource that is not served
    /// has no objects.
    async fn for_each_object(
        &self,
        group: &str,
        resource: &str,
        query: Query,
        mut visit: impl FnMut(&Object) -> serde_json::Result<()> + Send,
    ) -> Result<()> {
        let id = GroupResource::new(group, resource);
        let Some(resource) = self.resources.find(&id) else { return Ok(()) };
        let mut objects = self.cluster.list(resource, query);
        while let Some(object) = objects.next().await {
            let visited = match object {
                Ok(object) => visit(&object).map_err(|error| (object.name, error.to_string())),
                // Unreadable objects are reported by item collection.
                Err(cluster::Error::Object(error)) => Err((String::new(), error.to_string())),
                Err(error) => return Err(list_error(resource, &error)),
            };
            if let Err((name, error)) = visited {
                tracing::warn!("cannot find the objects that belong to {id} {name:?}: {error}");
            }
        }
        Ok(())
    }
}

/// Error of an action whose list failed.
fn list_error(resource: &Resource, error: &cluster::Error) -> Error {
    use cluster::Error::{Refused, Timeout, Unreachable};
    let code = match error {
        Unreachable(_) | Timeout(_) | Refused { code: 429 | 500.., .. } => Code::Unavailable,
        Refused { code: 401 | 403, .. } => Code::PermissionDenied,
        _ => Code::Unknown,
    };
    Error::new(code, error.to_string()).context(format_args!("cannot list {}", resource.id))
}

fn id(group: &str, resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// Error of an action that cannot parse its item.
fn unreadable_item_error(error: &serde_json::Error) -> Error {
    Error::new(Code::InvalidArgument, format!("the item cannot be read: {error}"))
}
