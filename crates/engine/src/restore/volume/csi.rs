//! Claims that are created from CSI snapshots.
//!
//! The actions have already rewritten them (see [`csi`]). This module ensures that their source exists, and tracks
//! what becomes of them.

use bowline_api::{annotation, label};
use bowline_plugin::{OperationId, ResourceIdentifier};
use bowline_store::file::{CsiSnapshotInfo, Method, RestoreVolumeInfo};
use jiff::Timestamp;
use serde_json::Value;

use super::super::Context;
use super::super::action::CSI_PVC_ACTION;
use super::super::action::csi::{self, CONTENTS, SNAPSHOT_GROUP, SNAPSHOTS};
use super::error::{ClaimError, MissingSource};
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::json::{annotation as annotated, text};
use crate::operation::{Kind, Operation};
use crate::resource::GroupResource;

/// Source of an item, as named in the backup.
struct ItemSource {
    id: ResourceIdentifier,
    kind: &'static str,
}

/// Ensures that the source of an item exists: a claim whose snapshot could not be restored would wait forever. No-op
/// in a dry run.
pub(in crate::restore) fn require_source(
    context: &Context,
    id: &ResourceIdentifier,
    backed_up: &Object,
    value: &mut Value,
) -> Result<(), ClaimError> {
    if context.volume_creator.is_none() {
        return Ok(());
    }
    let is_claim = backed_up.resource.is_core("persistentvolumeclaims");
    let is_snapshot = id.group == SNAPSHOT_GROUP && id.resource == SNAPSHOTS;
    let source = match backed_up.item.parse::<Value>() {
        Ok(claim) if is_claim => source_of_claim(context, id, &claim, value),
        Ok(snapshot) if is_snapshot => source_of_snapshot(&snapshot),
        _ => None,
    };
    let Some(ItemSource { id: source_id, kind }) = source else { return Ok(()) };
    if context.reserved_items.is_in_cluster(&source_id) {
        return Ok(());
    }
    let missing = MissingSource { kind, name: source_id.name };
    if !is_claim {
        return Err(ClaimError::NoContent(missing));
    }
    if !context.request.volumes.allow_empty {
        return Err(ClaimError::NoSnapshot(missing));
    }
    context.report.warn(id, format!("the claim is created empty: {missing}"));
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("dataSource");
    }
    Ok(())
}

fn source_of_claim(
    context: &Context,
    id: &ResourceIdentifier,
    backed_up: &Value,
    value: &Value,
) -> Option<ItemSource> {
    let snapshot = snapshot_of(context, &id.namespace, backed_up, value)?;
    Some(ItemSource { id: csi::object(SNAPSHOTS, &id.namespace, snapshot), kind: "VolumeSnapshot" })
}

fn source_of_snapshot(backed_up: &Value) -> Option<ItemSource> {
    let content = text(backed_up, "/status/boundVolumeSnapshotContentName");
    let id = csi::object(CONTENTS, "", content);
    (!content.is_empty()).then_some(ItemSource { id, kind: "VolumeSnapshotContent" })
}

/// The VolumeSnapshot of the backup that a claim is created from, unless the claim was changed to another source.
fn snapshot_of<'a>(
    context: &Context,
    namespace: &str,
    backed_up: &'a Value,
    value: &Value,
) -> Option<&'a str> {
    let snapshot = annotated(backed_up, label::VOLUME_SNAPSHOT_NAME)?;
    let source = csi::data_source(value)?;
    let name = csi::name_in_restore(context.request.uid.as_str(), namespace, snapshot);
    (source == name).then_some(snapshot)
}

/// Tracks a claim in the cluster until it has its volume, if that is provisioned immediately. A volume that is
/// provisioned when a pod first uses it is not waited for: that may never happen.
///
/// There is no journal entry: a process that resumes the run finds the claim and starts here again.
pub(in crate::restore) async fn track_claim(
    context: &Context,
    id: &ResourceIdentifier,
    created: &Object,
) {
    let kind = GroupResource::new("", "persistentvolumeclaims");
    let backed_up = context.contents.read(&kind, None, &id.namespace, &id.name);
    let backed_up = backed_up.ok().and_then(|item| item.parse::<Value>().ok());
    let (Some(backed_up), Ok(claim)) = (backed_up, created.item.parse::<Value>()) else { return };
    let Some(snapshot) = snapshot_of(context, &id.namespace, &backed_up, &claim) else { return };
    let Ok(source) = context.csi.source(&id.namespace, snapshot) else { return };
    let vsc_name = csi::name_in_restore(context.request.uid.as_str(), &id.namespace, snapshot);
    context.volume_outcomes.record_claim(RestoreVolumeInfo {
        pvc_namespace: created.namespace.clone(),
        pvc_name: created.name.clone(),
        pv_name: text(&claim, "/spec/volumeName").to_owned(),
        restore_method: Some(Method::CsiSnapshot),
        csi_snapshot_info: Some(CsiSnapshotInfo {
            snapshot_handle: source.handle,
            size: source.size.and_then(|size| i64::try_from(size).ok()).unwrap_or_default(),
            driver: source.driver,
            vsc_name,
            ..CsiSnapshotInfo::default()
        }),
        ..RestoreVolumeInfo::default()
    });
    match context.csi.capabilities().storage_classes().await {
        Ok(classes) => {
            let name = text(&claim, "/spec/storageClassName");
            if classes.iter().any(|class| class.name == name && class.waits_for_consumer) {
                tracing::info!(item = %id, "the volume is created when a pod first uses the claim");
                return;
            }
        }
        Err(error) => {
            let text = format!("the binding mode of the StorageClass is not known: {error}");
            context.report.warn(id, text);
            return;
        }
    }
    let uid = text(&claim, "/metadata/uid");
    let operation = format!("{}/{}/{uid}", created.namespace, created.name);
    let (Ok(plugin), Some(operation)) = (CSI_PVC_ACTION.parse(), OperationId::new(&operation))
    else {
        return;
    };
    let (now, timeout) = (Timestamp::now(), context.request.timeouts.item_operation);
    context.record_operation(Operation::started(
        Kind::ItemRestore,
        plugin,
        id.clone(),
        operation,
        now,
        timeout,
    ));
    failpoint::hit(Failpoint::ClaimWatched);
}

/// True if a claim of the backup refers to a CSI snapshot; and true if it refers to a data upload.
pub(super) fn claim_data_kinds(context: &Context, namespace: &str, name: &str) -> (bool, bool) {
    let claims = GroupResource::new("", "persistentvolumeclaims");
    let claim = context.contents.read(&claims, None, namespace, name).ok();
    let Some(claim) = claim.and_then(|item| item.parse::<Value>().ok()) else {
        return (false, false);
    };
    let has = |key| annotated(&claim, key).is_some_and(|value| !value.is_empty());
    if context.csi.is_data_moved() {
        return (false, has(annotation::DATA_UPLOAD_NAME));
    }
    (has(label::VOLUME_SNAPSHOT_NAME), false)
}
