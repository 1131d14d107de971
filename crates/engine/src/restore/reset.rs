//! Turns an object of a backup into one that can be created.
//!
//! Pure functions on the JSON of an object. They remove the fields that belong to the object's former existence, as
//! Velero's `resetMetadataAndStatus` does. `managedFields` stay until the actions have seen the object: the action for
//! Services uses them to recognise the ports that a user chose, and plugins may use them as well. Then
//! [`remove_managed_fields`] removes them, and returns them if they are to be written back.

#[cfg(test)]
mod tests;
mod volume_policy;

use std::collections::BTreeMap;

use bowline_api::{annotation, label};
use serde_json::{Map, Value};

pub(super) use volume_policy::in_brackets;
pub use volume_policy::{
    MissingData, SaveMethod, SavedData, VolumeDecision, VolumeOptions, decide_volume,
};

/// Metadata fields that are not restored. Labels, annotations and finalizers are.
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

/// Annotations that the volume controller sets on bound claims and volumes. Once they are removed, it binds them
/// again.
const BINDING_ANNOTATIONS: [&str; 2] =
    ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"];

/// An object without metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object has no `metadata`")]
pub struct NoMetadata;

/// Removes server-side metadata and the status. Returns the status, which may be needed later.
pub fn reset_metadata_and_status(object: &mut Value) -> Result<Option<Value>, NoMetadata> {
    let metadata = metadata(object)?;
    for field in RESET_METADATA_FIELDS {
        metadata.remove(field);
    }
    Ok(object.as_object_mut().and_then(|fields| fields.remove("status")))
}

/// Removes the annotation by which an action requires that its additional items are included. Only an annotation that
/// the action itself has set counts: the one in the archive is not trusted. Returns true if it was set.
pub(super) fn remove_must_include(object: &mut Value) -> bool {
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let mark = annotations.and_then(|all| all.remove(annotation::MUST_INCLUDE_ON_RESTORE));
    mark.is_some_and(|value| value == "true")
}

/// Removes `managedFields`, which the API server generates anew. Returns them if they are to be written back, that
/// is if the object was written by server-side apply: otherwise its appliers would no longer own the fields that
/// they set, and could no longer remove them.
pub fn remove_managed_fields(object: &mut Value) -> Option<Value> {
    let entries = metadata(object).ok()?.remove("managedFields")?;
    let is_applied = |entry: &Value| {
        let subresource = entry.get("subresource").and_then(Value::as_str).unwrap_or_default();
        entry["operation"] == "Apply" && subresource.is_empty()
    };
    entries.as_array()?.iter().any(is_applied).then_some(entries)
}

/// Moves an object into its target namespace. A cluster-scoped object stays cluster-scoped.
pub fn set_namespace(object: &mut Value, target: &str) -> Result<(), NoMetadata> {
    let metadata = metadata(object)?;
    if !target.is_empty() {
        metadata.insert("namespace".to_owned(), target.into());
    }
    Ok(())
}

/// The labels that name the origin of an object, as valid label values.
pub fn restore_labels(backup: &str, restore: &str) -> [(&'static str, String); 2] {
    [
        (label::BACKUP_NAME, label::value(backup).into_owned()),
        (label::RESTORE_NAME, label::value(restore).into_owned()),
    ]
}

/// Labels an object with its backup and restore.
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

/// Volume that a claim is bound to after the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimBinding<'a> {
    /// The same volume as before.
    Same,
    /// A new volume, provisioned by the storage class.
    Provisioned,
    /// The same volume as before, under another name.
    Renamed(&'a str),
}

/// Resets a bound claim, so that it can be bound again. Unbound claims stay unchanged.
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

/// Resets a volume, so that its former claim can bind it again, in the target namespace of that claim.
pub fn unbind_volume(volume: &mut Value, mapping: &BTreeMap<String, String>) {
    if let Some(namespace) = volume.pointer_mut("/spec/claimRef/namespace") {
        let target = namespace.as_str().and_then(|namespace| mapping.get(namespace));
        if let Some(target) = target {
            *namespace = target.as_str().into();
        }
    }
    unbind(volume);
}

/// Renames a volume, and records its former name.
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

/// Removes the traces of the binding of claim and volume.
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
