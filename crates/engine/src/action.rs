//! The item actions that are built in.
//!
//! They are the ones that Velero has built in, under the same names, and implement the same traits
//! as plugins do.
//!
//! | as | name | sees | does |
//! |---|---|---|---|
//! | [`BackupItemAction`] | `velero.io/pod` | pods | adds their claims and their PriorityClass |
//! | | `velero.io/pv` | claims | adds the volume; removes what ties a bound claim to its past |
//! | | `velero.io/service-account` | ServiceAccounts | adds the ClusterRoleBindings that name them, and their ClusterRoles |
//! | [`ItemBlockAction`] | `velero.io/pod` | pods | the same relations |
//! | | `velero.io/pvc` | claims | the volume, running pods that mount it, claims of the same volume group |
//! | | `velero.io/service-account` | ServiceAccounts | the same relations |
//!
//! `velero.io/crd-remap-version` is not here. It stores definitions in version `v1beta1` where they
//! could not be restored in `v1`, and no cluster since Kubernetes 1.22 serves `v1beta1`.
//!
//! # Cost
//! What needs a look at the whole cluster (which pods mount a claim, which bindings name a
//! ServiceAccount) is listed when it is first asked for, once for all items of a run, and kept as
//! names. Both actions for ServiceAccounts look at the same bindings.

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

/// An action and its name.
pub struct NamedAction<T: ?Sized> {
    /// What it is called.
    pub name: Name,
    /// The action.
    pub plugin: Arc<T>,
    /// Whether it may begin operations, so that showing it an item must be noted before.
    pub begins_operations: bool,
}

impl<T: ?Sized> NamedAction<T> {
    /// An action that begins no operations.
    pub fn new(name: Name, plugin: Arc<T>) -> Self {
        Self { name, plugin, begins_operations: false }
    }

    /// An action that may begin operations.
    pub fn asynchronous(name: Name, plugin: Arc<T>) -> Self {
        Self { name, plugin, begins_operations: true }
    }
}

impl<T: ?Sized> Clone for NamedAction<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), plugin: Arc::clone(&self.plugin), ..*self }
    }
}

/// The actions that are built in, in Velero's order.
pub struct BuiltIn {
    /// Those that take part in the backup of items.
    pub backup_item_actions: Vec<NamedAction<dyn BackupItemAction>>,
    /// Those that say what belongs together.
    pub item_block_actions: Vec<NamedAction<dyn ItemBlockAction>>,
    /// The pods that mount claims, as these know them.
    pub(crate) mounts: Arc<Mounts>,
}

/// The actions of one run. `namespaces` are those that it is limited to; none means that it is not.
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
    // None is lost: that these names are valid is tested.
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

    /// Shows each object of a list, and keeps none. A resource that is not served has no objects.
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
                // An object that cannot be read is told where objects are collected.
                Err(cluster::Error::Object(error)) => Err((String::new(), error.to_string())),
                Err(error) => return Err(list_error(resource, &error)),
            };
            if let Err((name, error)) = visited {
                tracing::warn!("cannot tell what belongs to one of {id} {name:?}: {error}");
            }
        }
        Ok(())
    }
}

/// The error of an action that needed a list and did not get it.
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

/// The error of an action that cannot read its item.
fn unreadable_item_error(error: &serde_json::Error) -> Error {
    Error::new(Code::InvalidArgument, format!("the item cannot be read: {error}"))
}
