//! Hooks that are init containers.
//!
//! Annotations of a pod or the Restore define them. Annotations take precedence: hooks of the Restore are then
//! ignored.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_api::annotation::hook::{INIT_COMMAND, INIT_IMAGE, INIT_NAME};
use bowline_api::restore::{RestoreHooks, RestoreResourceHooks};
use bowline_plugin::{
    Code, Encoded, Error, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{read, target_namespace, write};
use crate::glob::Globs;
use crate::json::{map, text};
use crate::selector::Selector;

/// Adds the init containers of hooks to pods, before the pod's own, but after the one that waits for its volumes.
pub(super) struct InitRestoreHook {
    hooks: Result<Vec<Hook>>,
}

/// The init container that waits until the volumes of a pod are restored.
const RESTORE_WAIT: &str = "restore-wait";

/// Name prefix of an init container whose hook does not name it.
const GENERATED_NAME_PREFIX: &str = "velero-restore-init-";

/// Init containers with their pod selection.
struct Hook {
    included_namespaces: Globs,
    excluded_namespaces: Globs,
    labels: Selector,
    containers: Vec<Value>,
}

/// The required fields of a pod.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Hook {
    /// Hooks apply to pods, whatever resources they name, as in Velero.
    fn new(hook: &RestoreResourceHooks) -> Result<Self> {
        let init = hook.post_hooks.iter().filter_map(|hook| hook.init.as_ref());
        let containers: Vec<_> = init.flat_map(|init| &init.init_containers).cloned().collect();
        if !containers.iter().all(is_complete) {
            return Err(invalid(
                &"invalid InitContainer in restore hook, it doesn't have Command, Name or Image \
                 field",
            ));
        }
        let labels = hook.label_selector.as_ref().map(Selector::new).transpose();
        Ok(Self {
            included_namespaces: Globs::new(&hook.included_namespaces)
                .map_err(|error| invalid(&error))?,
            excluded_namespaces: Globs::new(&hook.excluded_namespaces)
                .map_err(|error| invalid(&error))?,
            labels: labels.map_err(|error| invalid(&error))?.unwrap_or_default(),
            containers,
        })
    }

    fn is_for(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let included = &self.included_namespaces;
        !self.excluded_namespaces.matches(namespace)
            && (included.is_empty() || included.matches(namespace))
            && self.labels.matches(labels)
    }
}

fn is_complete(container: &Value) -> bool {
    let has_command = container["command"].as_array().is_some_and(|command| !command.is_empty());
    has_command && !text(container, "/name").is_empty() && !text(container, "/image").is_empty()
}

fn invalid(reason: &impl ToString) -> Error {
    Error::new(Code::InvalidArgument, reason.to_string())
}

/// The init container that a pod's annotations define.
fn from_annotations(pod: &Pod, uid: &str) -> Result<Option<Value>> {
    let annotations = pod.metadata.annotations.as_ref();
    let get = |key| annotations.and_then(|all| all.get(key)).filter(|value| !value.is_empty());
    let Some(image) = get(INIT_IMAGE) else { return Ok(None) };
    let Some(command) = get(INIT_COMMAND) else {
        return Err(invalid(&format!(
            "annotation {INIT_IMAGE} requests an init container without a command; add \
             {INIT_COMMAND}, which may be `[]` for the default command of the image"
        )));
    };
    let name = get(INIT_NAME).cloned().unwrap_or_else(|| generated_name(pod, uid));
    let mut container = json!({"name": name, "image": image});
    let command = parse_command(command)?;
    if !command.is_empty() {
        container["command"] = command.into();
    }
    Ok(Some(container))
}

/// Program and arguments as a JSON list, or the program alone. An invalid list would be a program that no image has,
/// and a pod that never starts.
fn parse_command(text: &str) -> Result<Vec<String>> {
    if !text.starts_with('[') {
        return Ok(vec![text.to_owned()]);
    }
    // The message omits the text, which may contain a password.
    serde_json::from_str(text).map_err(|_| {
        invalid(&format!(
            "annotation {INIT_COMMAND} begins with `[` but is not a JSON list of strings"
        ))
    })
}

/// The same name in each restore of the same pod. In Velero it is random.
fn generated_name(pod: &Pod, uid: &str) -> String {
    let Metadata { namespace, name, .. } = &pod.metadata;
    let hash = Sha256::digest(format!("{uid}/{namespace}/{name}"));
    format!("{GENERATED_NAME_PREFIX}{}", hex::encode(&hash[..4]))
}

/// The init containers to add. `namespace` is the target namespace of the pod, `uid` its uid in the backup.
fn init_containers_for(
    pod: &Pod,
    uid: &str,
    namespace: &str,
    hooks: &Result<Vec<Hook>>,
) -> Result<Vec<Value>> {
    if let Some(container) = from_annotations(pod, uid)? {
        return Ok(vec![container]);
    }
    let hooks = hooks.as_ref().map_err(Clone::clone)?;
    let no_labels = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&no_labels);
    let applicable = hooks.iter().filter(|hook| hook.is_for(namespace, labels));
    Ok(applicable.flat_map(|hook| &hook.containers).cloned().collect())
}

fn change(pod: &mut Value, hooks: Vec<Value>) -> bool {
    let Some(spec) = map(pod, "/spec").filter(|_| !hooks.is_empty()) else { return false };
    let mut all = match spec.remove("initContainers") {
        Some(Value::Array(own)) => own,
        _ => Vec::new(),
    };
    let has_restore_wait = all.first().is_some_and(|first| text(first, "/name") == RESTORE_WAIT);
    let mut own = all.split_off(usize::from(has_restore_wait));
    own.retain(|container| !hooks.iter().any(|hook| is_same_hook(container, hook)));
    all.extend(hooks);
    all.extend(own);
    spec.insert("initContainers".to_owned(), all.into());
    true
}

/// True if an earlier restore added an init container for the same hook. The pod has been backed up with it since, and
/// two of the same name would be refused. Its image may have changed in the meantime.
fn is_same_hook(container: &Value, hook: &Value) -> bool {
    let (own, new) = (text(container, "/name"), text(hook, "/name"));
    let are_generated =
        own.starts_with(GENERATED_NAME_PREFIX) && new.starts_with(GENERATED_NAME_PREFIX);
    (own == new || are_generated) && container["command"] == hook["command"]
}

impl InitRestoreHook {
    pub(super) fn new(hooks: &RestoreHooks) -> Self {
        let has_init =
            |hook: &&RestoreResourceHooks| hook.post_hooks.iter().any(|hook| hook.init.is_some());
        let compile = |hook: &RestoreResourceHooks| {
            let context = format!("restore hook {:?}", hook.name);
            Hook::new(hook).map_err(|error| error.context(context))
        };
        Self { hooks: hooks.resources.iter().filter(has_init).map(compile).collect() }
    }
}

#[async_trait]
impl RestoreItemAction for InitRestoreHook {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["pods"]))
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let pod: Pod = read(item)?;
        // The item to restore no longer has its uid.
        let backed_up: Pod = read(item_from_backup)?;
        let namespace = target_namespace(&restore.spec, &pod.metadata.namespace);
        let hooks = init_containers_for(&pod, &backed_up.metadata.uid, namespace, &self.hooks)?;
        let mut output = RestoreOutput::unchanged(item);
        if !hooks.is_empty() {
            let mut pod: Value = read(item)?;
            if change(&mut pod, hooks) {
                output.item = write(&pod)?;
            }
        }
        Ok(output)
    }
}
