//! From an object of a backup to one that can be created.
//!
//! Pure functions on the JSON of an object. They take away what belonged to the object's former
//! life, as Velero's `resetMetadataAndStatus` does. `managedFields` stay until the actions have seen the
//! object: by them the action for Services knows which ports somebody chose, and plugins may ask them as
//! well. Then [`remove_managed_fields`] takes them away, and says whether they are to be written back.

#[cfg(test)]
mod tests;
mod volume_policy;

use std::collections::BTreeMap;

use bowline_api::{annotation, label};
use serde_json::{Map, Value};

pub use volume_policy::{SavedData, VolumeDecision, VolumeOptions, decide_volume};

/// What of an object's metadata is not brought back. Labels, annotations and finalizers are.
const RESET_METADATA_FIELDS: [&str; 9] = [
    "generateName",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
];

/// What the volume controller notes on claims and volumes that it has bound. Without it, it binds
/// them again.
const BINDING_ANNOTATIONS: [&str; 2] =
    ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"];

/// An object that lacks what every object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object has no `metadata`")]
pub struct NoMetadata;

/// Takes away an object's former life. Returns its status, which may be wanted later.
pub fn reset_metadata_and_status(object: &mut Value) -> Result<Option<Value>, NoMetadata> {
    let metadata = metadata(object)?;
    for field in RESET_METADATA_FIELDS {
        metadata.remove(field);
    }
    Ok(object.as_object_mut().and_then(|fields| fields.remove("status")))
}

/// Takes away the mark by which an action says that what it adds is restored whatever the filters say. It
/// counts only if the action has set it: what the archive says is not believed. Returns whether it was set.
pub(super) fn remove_must_include(object: &mut Value) -> bool {
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let mark = annotations.and_then(|all| all.remove(annotation::MUST_INCLUDE_ON_RESTORE));
    mark.is_some_and(|value| value == "true")
}

/// Takes `managedFields` away from an object, which the API server makes anew. Returns them if they are to
/// be written back: if somebody has applied the object on the server's side, who else would no longer own
/// what they have set, and could no longer remove it.
pub fn remove_managed_fields(object: &mut Value) -> Option<Value> {
    let entries = metadata(object).ok()?.remove("managedFields")?;
    let is_applied = |entry: &Value| {
        let subresource = entry.get("subresource").and_then(Value::as_str).unwrap_or_default();
        entry["operation"] == "Apply" && subresource.is_empty()
    };
    entries.as_array()?.iter().any(is_applied).then_some(entries)
}

/// Puts an object into the namespace that it is restored to. One that lives in none stays so.
pub fn set_namespace(object: &mut Value, target: &str) -> Result<(), NoMetadata> {
    let metadata = metadata(object)?;
    if !target.is_empty() {
        metadata.insert("namespace".to_owned(), target.into());
    }
    Ok(())
}

/// The labels that tell from where an object came, ready to be set.
pub fn restore_labels(backup: &str, restore: &str) -> [(&'static str, String); 2] {
    [
        (label::BACKUP_NAME, label::value(backup).into_owned()),
        (label::RESTORE_NAME, label::value(restore).into_owned()),
    ]
}

/// Labels an object with the backup and the restore that it comes from.
pub fn set_restore_labels(
    object: &mut Value,
    backup: &str,
    restore: &str,
) -> Result<(), NoMetadata> {
    let metadata = metadata(object)?;
    let labels = metadata.entry("labels").or_insert(Value::Null);
    if !labels.is_object() {
        *labels = Value::Object(Map::new());
    }
    for (key, value) in restore_labels(backup, restore) {
        labels[key] = value.into();
    }
    Ok(())
}

/// What a claim is bound to after the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimBinding<'a> {
    /// The volume that it was bound to.
    Same,
    /// A new one, which its storage class makes.
    Provisioned,
    /// The one that it was bound to, under another name.
    Renamed(&'a str),
}

/// Frees a claim that was bound, so that it can be bound again. Others stay as they are.
pub fn rebind_claim(claim: &mut Value, volume: ClaimBinding<'_>) {
    let is_bound = claim_volume(claim).is_some();
    if !is_bound {
        return;
    }
    unbind(claim);
    let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) else { return };
    match volume {
        ClaimBinding::Same => {}
        ClaimBinding::Provisioned => {
            spec.remove("volumeName");
        }
        ClaimBinding::Renamed(name) => {
            spec.insert("volumeName".to_owned(), name.into());
        }
    }
}

/// The volume that a claim was bound to.
pub fn claim_volume(claim: &Value) -> Option<&str> {
    let name = claim.pointer("/spec/volumeName")?.as_str()?;
    Some(name).filter(|name| !name.is_empty())
}

/// Frees a volume, so that the claim it belonged to can take it again, in the namespace where that
/// claim is now.
pub fn unbind_volume(volume: &mut Value, mapping: &BTreeMap<String, String>) {
    if let Some(namespace) = volume.pointer_mut("/spec/claimRef/namespace") {
        let target = namespace.as_str().and_then(|namespace| mapping.get(namespace));
        if let Some(target) = target {
            *namespace = target.as_str().into();
        }
    }
    unbind(volume);
}

/// Gives a volume another name, and notes the one that it had.
pub fn rename_volume(volume: &mut Value, name: &str) -> Result<(), NoMetadata> {
    let metadata = metadata(volume)?;
    let old = metadata.insert("name".to_owned(), name.into());
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    annotations[annotation::ORIGINAL_PV_NAME] = old.unwrap_or_default();
    Ok(())
}

/// Takes away what says that claim and volume are bound to each other.
fn unbind(object: &mut Value) {
    if let Some(claim) = object.pointer_mut("/spec/claimRef").and_then(Value::as_object_mut) {
        claim.remove("uid");
        claim.remove("resourceVersion");
    }
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        for key in BINDING_ANNOTATIONS {
            annotations.remove(key);
        }
    }
}

fn metadata(object: &mut Value) -> Result<&mut Map<String, Value>, NoMetadata> {
    object.get_mut("metadata").and_then(Value::as_object_mut).ok_or(NoMetadata)
}
