//! Built-in RestoreItemActions.
//!
//! These are Velero's built-in actions, under the same names and in the same order. They implement the same trait
//! as plugins do. The actions for file system backups and for the data mover are missing; those for CSI are in
//! `csi`.
//!
//! | name | resources | effect |
//! |---|---|---|
//! | `velero.io/add-pvc-from-pod` | pods | adds their claims |
//! | `velero.io/admission-webhook-configuration` | webhook configurations | fixes `sideEffects` that `v1` refuses |
//! | `velero.io/apiservice` | APIServices that the API server created | skips them |
//! | `velero.io/change-image-name` | kinds with containers | renames images, according to a ConfigMap |
//! | `velero.io/change-storage-class` | claims, volumes, StatefulSets | changes their class, according to a ConfigMap |
//! | `velero.io/cluster-role-bindings`, `velero.io/role-bindings` | bindings | maps the namespaces of their subjects |
//! | `velero.io/crd-preserve-fields` | CustomResourceDefinitions | makes the schema preserve unknown fields |
//! | `velero.io/init-restore-hook` | pods | adds the init containers of hooks |
//! | `velero.io/job` | Jobs | removes the labels of the old controller |
//! | `velero.io/pod` | pods | removes node, priority and token volumes; adds the PriorityClass |
//! | `velero.io/pvc` | claims | removes the traces of binding; adds the volume |
//! | `velero.io/secret` | Secrets | skips or empties tokens of ServiceAccounts |
//! | `velero.io/service` | Services | removes addresses and ports that were allocated automatically |
//! | `velero.io/service-account` | ServiceAccounts | removes references to generated tokens |
//!
//! # Guarantees
//! - **Each action decides in a pure function** on the JSON of an item, and an item that it does not change keeps
//!   its bytes. Velero decodes items into Go types and loses the fields that those types lack.
//! - **No item breaks an action.** A field of a wrong type is left to the API server.
//! - **Lookups happen once per restore**, when they are first needed; Velero queries the API server again for
//!   every item. Most actions look nothing up: see [`is_pure`].

mod add_pvc_from_pod;
mod admission_webhook_configuration;
mod api_service;
mod bindings;
mod change_image_name;
mod change_storage_class;
mod crd_preserve_fields;
pub(crate) mod csi;
mod init_restore_hook;
mod job;
mod lookup;
mod pod;
mod pvc;
mod secret;
mod service;
mod service_account;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bowline_api::{Restore, RestoreSpec};
use bowline_plugin::{
    Code, Error, Item, Name, ResourceIdentifier, RestoreItemAction, RestoreOutput, Result,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::resource::Resources;
pub use csi::CSI_PVC_ACTION;
use lookup::Lookup;

/// The actions for one restore, in Velero's order. `namespace` is the server's, which holds the ConfigMaps of
/// actions.
pub fn restore_item_actions(
    cluster: &Arc<dyn Cluster>,
    resources: &Arc<Resources>,
    namespace: &str,
    restore: &Restore,
) -> Vec<NamedAction<dyn RestoreItemAction>> {
    let lookup = Arc::new(Lookup::new(cluster, resources, namespace));
    let lookup_actions: [(&str, Arc<dyn RestoreItemAction>); 3] = [
        (CHANGE_IMAGE_NAME, Arc::new(change_image_name::ChangeImageName::new(&lookup))),
        (CHANGE_STORAGE_CLASS, Arc::new(change_storage_class::ChangeStorageClass::new(&lookup))),
        (SECRET, Arc::new(secret::Secret::new(&lookup))),
    ];
    let mut actions = pure_restore_item_actions(restore);
    actions.extend(lookup_actions.into_iter().filter_map(named));
    actions.sort_by(|one, other| one.name.cmp(&other.name));
    actions
}

/// The actions that need no cluster, for a dry run.
pub fn pure_restore_item_actions(restore: &Restore) -> Vec<NamedAction<dyn RestoreItemAction>> {
    let init_restore_hook = init_restore_hook::InitRestoreHook::new(&restore.spec.hooks);
    let actions: [(&str, Arc<dyn RestoreItemAction>); 12] = [
        ("velero.io/add-pvc-from-pod", Arc::new(add_pvc_from_pod::AddPvcFromPod)),
        (
            "velero.io/admission-webhook-configuration",
            Arc::new(admission_webhook_configuration::AdmissionWebhookConfiguration),
        ),
        ("velero.io/apiservice", Arc::new(api_service::ApiService)),
        ("velero.io/cluster-role-bindings", Arc::new(bindings::Bindings("clusterrolebindings"))),
        ("velero.io/crd-preserve-fields", Arc::new(crd_preserve_fields::CrdPreserveFields)),
        ("velero.io/init-restore-hook", Arc::new(init_restore_hook)),
        ("velero.io/job", Arc::new(job::Job)),
        ("velero.io/pod", Arc::new(pod::Pod)),
        ("velero.io/pvc", Arc::new(pvc::Pvc)),
        ("velero.io/role-bindings", Arc::new(bindings::Bindings("rolebindings"))),
        ("velero.io/service", Arc::new(service::Service)),
        ("velero.io/service-account", Arc::new(service_account::ServiceAccount)),
    ];
    actions.into_iter().filter_map(named).collect()
}

/// True if an action is built in and needs no cluster.
pub fn is_pure(name: &Name) -> bool {
    let actions = pure_restore_item_actions(&Restore::default());
    actions.iter().any(|action| action.name == *name)
}

const CHANGE_IMAGE_NAME: &str = "velero.io/change-image-name";
const CHANGE_STORAGE_CLASS: &str = "velero.io/change-storage-class";
const SECRET: &str = "velero.io/secret";

/// Drops no action: a test verifies that these names are valid.
fn named(
    (name, plugin): (&str, Arc<dyn RestoreItemAction>),
) -> Option<NamedAction<dyn RestoreItemAction>> {
    name.parse().ok().map(|name| NamedAction::new(name, plugin))
}

/// Passes an item to `change`, which returns true if it changed something, and writes it back only then.
fn edit(item: &Item, change: impl FnOnce(&mut Value) -> Result<bool>) -> Result<RestoreOutput> {
    let mut object: Value = read(item)?;
    let mut output = RestoreOutput::unchanged(item);
    if change(&mut object)? {
        output.item = write(&object)?;
    }
    Ok(output)
}

fn read<T: DeserializeOwned>(item: &Item) -> Result<T> {
    item.parse().map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}

fn write(object: &Value) -> Result<Item> {
    Item::from_object(object).map_err(|error| Error::new(Code::Internal, error.to_string()))
}

/// Target namespace for the objects of a namespace of the backup.
fn target_namespace<'a>(restore: &'a RestoreSpec, namespace: &'a str) -> &'a str {
    restore.namespace_mapping.get(namespace).map_or(namespace, String::as_str)
}

fn id(group: &str, resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
