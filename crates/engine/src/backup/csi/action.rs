//! The item actions for CSI, under the names of Velero's.
//!
//! | name | items | effect |
//! |---|---|---|
//! | `velero.io/csi-pvc-backupper` | claims | annotates a claim with its VolumeSnapshot, and adds that |
//! | `velero.io/csi-volumesnapshot-backupper` | VolumeSnapshots | adds the annotations that a restore needs; adds content and class; starts the operation that waits until the snapshot is ready to use |
//! | `velero.io/csi-volumesnapshotcontent-backupper` | contents | adds the Secret for deleting the snapshot |
//! | `velero.io/csi-volumesnapshotclass-backupper` | classes | adds the Secret for listing snapshots |
//!
//! The snapshots already exist when these actions run: they are taken for a whole block, between its hooks. The
//! actions therefore only look up the outcome, and send no requests.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Backup, BackupPhase, annotation, label};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Code, Encoded, Error, InvalidItem, Item, OperationId,
    ResourceIdentifier, ResourceSelector, Result,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CompletedSnapshots, CsiSnapshotRecord};
use crate::action::NamedAction;
use crate::csi::object::{self, CLASSES, CONTENTS, Metadata, SNAPSHOTS, Snapshot};
use crate::csi::record::BACKUPPER;
use crate::quantity;

/// The actions, given the snapshots of the run.
pub(in crate::backup) fn built_in(
    completed: &Arc<CompletedSnapshots>,
) -> Vec<NamedAction<dyn BackupItemAction>> {
    let action_for = |sees| Arc::new(Action { kind: sees, completed: Arc::clone(completed) });
    [
        ("velero.io/csi-pvc-backupper", action_for(ActionKind::Claims)),
        (BACKUPPER, action_for(ActionKind::Snapshots)),
        ("velero.io/csi-volumesnapshotcontent-backupper", action_for(ActionKind::Contents)),
        ("velero.io/csi-volumesnapshotclass-backupper", action_for(ActionKind::Classes)),
    ]
    .into_iter()
    // No action is lost: a test checks that these names are valid.
    .filter_map(|(name, action)| Some(NamedAction::new(name.parse().ok()?, action as _)))
    .collect()
}

struct Action {
    kind: ActionKind,
    completed: Arc<CompletedSnapshots>,
}

#[derive(Clone, Copy)]
enum ActionKind {
    Claims,
    Snapshots,
    Contents,
    Classes,
}

#[async_trait]
impl BackupItemAction for Action {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let plural = match self.kind {
            ActionKind::Claims => "persistentvolumeclaims".to_owned(),
            ActionKind::Snapshots => object::resource(SNAPSHOTS).to_string(),
            ActionKind::Contents => object::resource(CONTENTS).to_string(),
            ActionKind::Classes => object::resource(CLASSES).to_string(),
        };
        Ok(ResourceSelector::resources([plural.as_str()]))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
        let is_finalizing =
            matches!(phase, Some(BackupPhase::Finalizing | BackupPhase::FinalizingPartiallyFailed));
        let output = match self.kind {
            ActionKind::Claims | ActionKind::Contents if is_finalizing => {
                Ok(BackupOutput::unchanged(item))
            }
            ActionKind::Claims => self.claim_output(item, backup),
            ActionKind::Snapshots if is_finalizing => finalized_snapshot_output(item),
            ActionKind::Snapshots => self.snapshot_output(item),
            ActionKind::Contents => with_secret(
                item,
                annotation::SNAPSHOTTER_SECRET_NAME,
                annotation::SNAPSHOTTER_SECRET_NAMESPACE,
            ),
            ActionKind::Classes => with_secret(
                item,
                annotation::SNAPSHOTTER_LIST_SECRET_NAME,
                annotation::SNAPSHOTTER_LIST_SECRET_NAMESPACE,
            ),
        };
        output.map_err(|error| {
            Error::new(Code::Internal, format!("the item cannot be read: {error}"))
        })
    }
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    metadata: Metadata,
}

impl Action {
    fn claim_output(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> std::result::Result<BackupOutput, InvalidItem> {
        let mut output = BackupOutput::unchanged(item);
        let Metadata { namespace, name, .. } = item.parse::<Envelope>()?.metadata;
        let Some(record) = self.completed.of_claim(&namespace, &name) else { return Ok(output) };
        let backup = backup.metadata.name.as_deref().unwrap_or_default();
        let mut claim: Value = item.parse()?;
        // The name of a group's snapshot is longer than a label can be; the annotation is what counts.
        put(&mut claim, "labels", label::VOLUME_SNAPSHOT_NAME, &label::value(&record.name));
        put(&mut claim, "labels", label::BACKUP_NAME, &label::value(backup));
        put(&mut claim, "annotations", label::VOLUME_SNAPSHOT_NAME, &record.name);
        put(&mut claim, "annotations", annotation::MUST_INCLUDE_ON_BACKUP, "true");
        raise_request(&mut claim, record.restore_size);
        output.item = Item::from_object(&claim)?;
        output.additional_items = vec![object::id(SNAPSHOTS, &record.namespace, &record.name)];
        Ok(output)
    }

    fn snapshot_output(&self, item: &Item) -> std::result::Result<BackupOutput, InvalidItem> {
        let mut output = BackupOutput::unchanged(item);
        let Metadata { namespace, name, .. } = item.parse::<Envelope>()?.metadata;
        // A VolumeSnapshot that this run did not create is stored as it is, and left alone. Velero would delete it.
        let Some(record) = self.completed.of_snapshot(&namespace, &name) else { return Ok(output) };
        let mut snapshot: Value = item.parse()?;
        for (key, value) in object::annotations(&record) {
            put(&mut snapshot, "annotations", &key, &value);
        }
        put(&mut snapshot, "annotations", annotation::MUST_INCLUDE_ON_BACKUP, "true");
        let CsiSnapshotRecord { class, content, operation, .. } = record;
        output.item = Item::from_object(&snapshot)?;
        let content = object::id(CONTENTS, "", &content);
        if !class.is_empty() {
            output.additional_items.push(object::id(CLASSES, "", &class));
        }
        output.additional_items.push(content.clone());
        output.operation = OperationId::new(&operation);
        output.post_operation_items = vec![object::id(SNAPSHOTS, &namespace, &name), content];
        Ok(output)
    }
}

/// A VolumeSnapshot as it is when its operation has ended. One that lacks facts that a restore needs does not replace
/// one that has them.
fn finalized_snapshot_output(item: &Item) -> std::result::Result<BackupOutput, InvalidItem> {
    let mut output = BackupOutput::unchanged(item);
    let annotations = Snapshot::read(item)?.metadata.annotations.unwrap_or_default();
    if !annotations.contains_key(annotation::VOLUME_SNAPSHOT_HANDLE) {
        let mut snapshot: Value = item.parse()?;
        put(&mut snapshot, "annotations", annotation::SKIP_FROM_BACKUP, "true");
        output.item = Item::from_object(&snapshot)?;
    }
    Ok(output)
}

/// An object with the Secret that its annotations name.
fn with_secret(
    item: &Item,
    name: &str,
    namespace: &str,
) -> std::result::Result<BackupOutput, InvalidItem> {
    let mut output = BackupOutput::unchanged(item);
    let annotations = item.parse::<Envelope>()?.metadata.annotations.unwrap_or_default();
    let (Some(name), Some(namespace)) = (annotations.get(name), annotations.get(namespace)) else {
        return Ok(output);
    };
    output.additional_items.push(ResourceIdentifier {
        group: String::new(),
        resource: "secrets".to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
    });
    let mut object: Value = item.parse()?;
    put(&mut object, "annotations", annotation::MUST_INCLUDE_ON_BACKUP, "true");
    output.item = Item::from_object(&object)?;
    Ok(output)
}

/// Sets an entry in a map of the metadata, which may be absent.
fn put(object: &mut Value, map: &str, key: &str, value: &str) {
    let entries = &mut object["metadata"][map];
    if !entries.is_object() {
        *entries = json!({});
    }
    entries[key] = value.into();
}

/// Raises the requested size: a driver may have created a larger volume than was requested, and a new one for its
/// snapshot must be as large.
fn raise_request(claim: &mut Value, restore_size: Option<i64>) {
    let Some(size) = restore_size else { return };
    let requested = claim.pointer("/spec/resources/requests/storage").and_then(Value::as_str);
    let is_enough = requested
        .and_then(|asked| quantity::bytes(asked).ok())
        .is_some_and(|asked| asked >= u64::try_from(size).unwrap_or_default());
    if is_enough {
        return;
    }
    for path in ["/spec/resources", "/spec/resources/requests"] {
        let (parent, key) = path.rsplit_once('/').unwrap_or_default();
        if let Some(parent) = claim.pointer_mut(parent)
            && !parent[key].is_object()
        {
            parent[key] = json!({});
        }
    }
    if let Some(requests) = claim.pointer_mut("/spec/resources/requests") {
        requests["storage"] = object::quantity(size).into();
    }
}

#[cfg(test)]
mod tests;
