//! Applies objects written as JSON to a cluster.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind, TypeMeta};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::Instant;

use crate::Error;

/// Field manager of everything that the test bed applies.
pub const FIELD_MANAGER: &str = "bowline-testbed";

/// Longest wait until a kind is served whose definition has just been applied.
const KIND_TIMEOUT: Duration = Duration::from_secs(30);

/// Applies one object of any kind that the cluster serves, and returns it as stored.
///
/// Waits for a kind that is not served yet, since its definition may just have been applied.
pub async fn apply(client: &Client, object: Value) -> Result<DynamicObject, Error> {
    let describe = || {
        let field = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
        format!("apply {} {}", field("/kind"), field("/metadata/name"))
    };
    let description = describe();
    let mut object: DynamicObject = serde_json::from_value(object)
        .map_err(kube::Error::SerdeError)
        .map_err(Error::api(&description))?;
    let kind = object
        .types
        .as_ref()
        .and_then(|types: &TypeMeta| GroupVersionKind::try_from(types).ok())
        .unwrap_or_else(|| GroupVersionKind::gvk("", "v1", ""));
    let deadline = Instant::now() + KIND_TIMEOUT;
    let (resource, capabilities) = loop {
        match pinned_kind(client, &kind).await {
            Ok(found) => break found,
            Err(error) if Instant::now() >= deadline => {
                return Err(Error::api(&description)(error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    object.metadata.managed_fields = None;
    let api: Api<DynamicObject> = match (capabilities.scope, &object.metadata.namespace) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        (Scope::Namespaced, None) => Api::default_namespaced_with(client.clone(), &resource),
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(&object)).await.map_err(Error::api(&description))
}
