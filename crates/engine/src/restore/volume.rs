//! PersistentVolumes and claims: created unchanged, provisioned anew, created from a snapshot, or skipped.
//!
//! | file | purpose |
//! |---|---|
//! | `pv_name_state` | determines whether a volume can keep its name, and waits for a terminating one |
//! | `csi` | ensures that a claim from a CSI snapshot has that snapshot, and tracks the claim |
//! | `claim_tracker` | watches which claims have their volumes |
//! | `creation` | has a plugin create a volume from a snapshot, without losing track of any |
//! | `volume_progress` | port through which the progress is published |
//! | `error` | why a volume or a claim is not restored |

mod claim_tracker;
mod creation;
mod csi;
mod error;
mod pv_name_state;
mod volume_progress;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use bowline_plugin::{ResourceIdentifier, VolumeId};
use bowline_store::file::{Method, NativeSnapshotInfo, RestoreVolumeInfo, Snapshot, SnapshotPhase};
use parking_lot::Mutex;
use serde_json::Value;

use super::Context;
use super::item::SkipReason;
use super::item_journal::EarlierVolume;
use super::reset::{self, ClaimBinding, SavedData, VolumeDecision};
use crate::json::text;
use crate::leftover::LEFT_OVER;
use crate::resource::GroupResource;
pub use claim_tracker::ClaimTracker;
pub(super) use creation::VolumeCreator;
use creation::{CreatedVolume, VolumeRequest};
pub(super) use csi::{require_source, track_claim};
use error::MissingVolume;
pub(super) use error::{ALLOW_EMPTY_HINT, BlockingVolume, ClaimError, VolumeError};
use pv_name_state::{PvNameError, PvNameState};
pub use volume_progress::{
    ByteProgress, NoReporter, ProgressReportError, UnitProgress, VolumeCreation,
    VolumeCreationResult, VolumeProgressReporter,
};

/// Outcomes of the volumes that are restored from snapshots.
#[derive(Debug, Default)]
pub(super) struct VolumeOutcomes {
    /// By PersistentVolume name in the backup: the current name, or why the volume is missing.
    names: Mutex<HashMap<String, Result<String, MissingVolume>>>,
    /// Volumes in the cluster, by their names there or by their claims.
    infos: Mutex<BTreeMap<String, RestoreVolumeInfo>>,
}

impl VolumeOutcomes {
    /// Records the current name of a PersistentVolume, or why it is missing.
    fn record(&self, name: &str, outcome: Result<String, MissingVolume>) {
        self.names.lock().insert(name.to_owned(), outcome);
    }

    fn outcome_of(&self, name: &str) -> Option<Result<String, MissingVolume>> {
        self.names.lock().get(name).cloned()
    }

    /// True if the outcome of a volume is known.
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.names.lock().contains_key(name)
    }

    /// Records that a volume is in the cluster under this name.
    pub(super) fn record_restored(&self, name: &str, volume: RestoredVolume) {
        let info = RestoreVolumeInfo { pv_name: name.to_owned(), ..volume.info };
        self.infos.lock().insert(name.to_owned(), info);
    }

    /// Records that a claim whose volume comes from a CSI snapshot is in the cluster.
    fn record_claim(&self, info: RestoreVolumeInfo) {
        let key = format!("{}/{}", info.pvc_namespace, info.pvc_name);
        self.infos.lock().insert(key, info);
    }

    /// Volume information of the restore.
    pub(super) fn infos(self) -> Vec<RestoreVolumeInfo> {
        let infos = self.infos.into_inner();
        infos.into_values().collect()
    }
}

/// Treatment of a PersistentVolume.
pub(super) enum PreparedVolume {
    /// Create this object.
    Create(Value),
    /// Create this object, with its data from a snapshot.
    FromSnapshot(Value, Box<RestoredVolume>),
    /// Skip the volume, for this reason.
    Skip(SkipReason),
    /// Another volume must be deleted first. Only in a dry run, which does not wait.
    Wait(BlockingVolume),
}

/// A volume that is restored from a snapshot.
#[derive(Debug)]
pub(super) struct RestoredVolume {
    /// The source in a sentence: the volume that was created, or would be.
    pub(super) description: String,
    /// True if nothing refers to the volume yet, so that it becomes a leftover if nothing ever does.
    pub(super) is_new: bool,
    info: RestoreVolumeInfo,
}

/// Decides on the treatment of a PersistentVolume, and restores its data.
pub(super) async fn prepare_volume(
    context: &Context,
    id: &ResourceIdentifier,
    mut value: Value,
    is_selected: bool,
) -> Result<PreparedVolume, Arc<VolumeError>> {
    match decide(context, &id.name, &value) {
        VolumeDecision::AsIs => {
            if !is_selected && let Some(source) = node_path(&value) {
                let name_state = pv_name_state::check_pv_name(context, &id.name).await;
                if name_state.map_err(VolumeError::Name)? == PvNameState::Free {
                    return Err(Arc::new(VolumeError::NodePath(source)));
                }
            }
            let holder = pv_name_state::current_claim(context, &value).await;
            if let Some(claim) = holder.map_err(VolumeError::Name)? {
                context.volume_outcomes.record(&id.name, Err(MissingVolume::OtherClaim { claim }));
            }
            reset::unbind_volume(&mut value, &context.request.namespace_mapping);
            Ok(PreparedVolume::Create(value))
        }
        VolumeDecision::Reprovision(reason) => Ok(PreparedVolume::Skip(SkipReason::NoData(reason))),
        VolumeDecision::FromClaim { snapshot } => {
            Ok(PreparedVolume::Skip(SkipReason::FromClaim { snapshot }))
        }
        VolumeDecision::DataUnavailable(reason) => {
            Err(Arc::new(VolumeError::DataUnavailable(reason)))
        }
        VolumeDecision::FromSnapshot(snapshot) => {
            let prepared = restore_from_snapshot(context, id, value, snapshot).await;
            let prepared = prepared.map_err(Arc::new);
            let name = match &prepared {
                Ok(PreparedVolume::Create(value) | PreparedVolume::FromSnapshot(value, _)) => {
                    Ok(name_of(value).to_owned())
                }
                // A dry run continues as if the volume were gone.
                Ok(PreparedVolume::Skip(_) | PreparedVolume::Wait(_)) => Ok(id.name.clone()),
                Err(error) => Err(MissingVolume::NotRestored(Arc::clone(error))),
            };
            context.volume_outcomes.record(&id.name, name);
            prepared
        }
    }
}

/// Restores a volume from its snapshot, unless it exists.
async fn restore_from_snapshot(
    context: &Context,
    id: &ResourceIdentifier,
    mut value: Value,
    snapshot: &Snapshot,
) -> Result<PreparedVolume, VolumeError> {
    let earlier = context.item_journal.as_ref().and_then(|journal| journal.earlier_volume(id));
    let (target, created) = match earlier {
        Some(EarlierVolume { name, volume }) => (name, volume),
        None => (target_name(context, id, &value).await?, None),
    };
    let Some(creator) = &context.volume_creator else {
        let name_state = pv_name_state::check_pv_name(context, &target).await?;
        return plan_volume(context, value, snapshot, &target, name_state);
    };
    let name_state = pv_name_state::wait_for_pv_name(context, &target).await?;
    reset::unbind_volume(&mut value, &context.request.namespace_mapping);
    match name_state {
        PvNameState::Free => {
            let request = VolumeRequest::new(context, creator, id, snapshot, &target)?;
            let created_volume = Box::pin(request.create_and_attach(value, created)).await?;
            let description =
                describe_volume(snapshot, &created_volume.volume, &created_volume.plugin);
            tracing::info!(item = %id, "{description} is restored");
            let CreatedVolume { mut value, .. } = created_volume;
            apply_name(&mut value, &id.name, &target)?;
            let info = info(&value, snapshot);
            Ok(PreparedVolume::FromSnapshot(
                value,
                Box::new(RestoredVolume { description, is_new: true, info }),
            ))
        }
        PvNameState::CreatedByThisRestore => {
            apply_name(&mut value, &id.name, &target)?;
            let description =
                "the volume, which was created before the server restarted,".to_owned();
            let info = info(&value, snapshot);
            Ok(PreparedVolume::FromSnapshot(
                value,
                Box::new(RestoredVolume { description, is_new: false, info }),
            ))
        }
        PvNameState::InUse | PvNameState::Terminating(_) => {
            tracing::info!(item = %id, "the PersistentVolume is in use; its data is not changed");
            if let Some(volume) = created {
                let text = format!(
                    "volume {volume}, which was created before the server restarted, is \
                     {LEFT_OVER}: another PersistentVolume has its name now"
                );
                context.report.warn(id, text);
            }
            apply_name(&mut value, &id.name, &target)?;
            Ok(PreparedVolume::Create(value))
        }
    }
}

/// The plan for a volume in a dry run.
fn plan_volume(
    context: &Context,
    mut value: Value,
    snapshot: &Snapshot,
    target: &str,
    name_state: PvNameState,
) -> Result<PreparedVolume, VolumeError> {
    let name = name_of(&value).to_owned();
    reset::unbind_volume(&mut value, &context.request.namespace_mapping);
    apply_name(&mut value, &name, target)?;
    Ok(match name_state {
        PvNameState::Free => {
            let (id, location) = (&snapshot.status.provider_snapshot_id, &snapshot.spec.location);
            let description = format!(
                "the volume would be created from snapshot {id} by the plugin of \
                 VolumeSnapshotLocation {location}"
            );
            let info = info(&value, snapshot);
            PreparedVolume::FromSnapshot(
                value,
                Box::new(RestoredVolume { description, is_new: false, info }),
            )
        }
        PvNameState::Terminating(reason) => PreparedVolume::Wait(BlockingVolume(reason)),
        PvNameState::CreatedByThisRestore | PvNameState::InUse => PreparedVolume::Create(value),
    })
}

/// Target name of a PersistentVolume.
async fn target_name(
    context: &Context,
    id: &ResourceIdentifier,
    value: &Value,
) -> Result<String, PvNameError> {
    if !pv_name_state::is_mapped(value, &context.request.namespace_mapping) {
        return Ok(id.name.clone());
    }
    Ok(match pv_name_state::check_pv_name(context, &id.name).await? {
        PvNameState::Free | PvNameState::CreatedByThisRestore => id.name.clone(),
        PvNameState::InUse | PvNameState::Terminating(_) => {
            pv_name_state::clone_name(context.request.uid.as_str(), &id.name)
        }
    })
}

/// Renames a PersistentVolume if it needs a new name. A plugin may have given it another one already.
fn apply_name(value: &mut Value, name: &str, target: &str) -> Result<(), VolumeError> {
    let chosen = match name_of(value) {
        "" => return Err(VolumeError::NoName),
        own if own == name => target.to_owned(),
        own => own.to_owned(),
    };
    if chosen != name {
        value["metadata"]["name"] = name.into();
        reset::rename_volume(value, &chosen)?;
    }
    Ok(())
}

/// Type of a volume that is a directory of a node: access to it is a step towards control of the node.
fn node_path(volume: &Value) -> Option<&'static str> {
    let spec = volume.get("spec")?;
    ["hostPath", "local"]
        .into_iter()
        .find(|source| spec.get(source).is_some_and(|of| !of.is_null()))
}

fn name_of(value: &Value) -> &str {
    text(value, "/metadata/name")
}

fn describe_volume(snapshot: &Snapshot, volume: &VolumeId, plugin: &str) -> String {
    let id = &snapshot.status.provider_snapshot_id;
    format!("volume {volume}, which plugin {plugin} created from snapshot {id},")
}

fn info(value: &Value, snapshot: &Snapshot) -> RestoreVolumeInfo {
    let claim = |field: &str| {
        let text = value.pointer("/spec/claimRef").and_then(|claim| claim.get(field)?.as_str());
        text.unwrap_or_default().to_owned()
    };
    let Snapshot { spec, status, .. } = snapshot;
    let phase = match &status.phase {
        Some(SnapshotPhase::Completed) => "Completed",
        _ => "",
    };
    RestoreVolumeInfo {
        pvc_name: claim("name"),
        pvc_namespace: claim("namespace"),
        restore_method: Some(Method::NativeSnapshot),
        native_snapshot_info: Some(NativeSnapshotInfo {
            snapshot_handle: status.provider_snapshot_id.clone(),
            volume_type: spec.volume_type.clone(),
            volume_az: spec.volume_az.clone(),
            iops: spec.volume_iops.unwrap_or_default().to_string(),
            phase: phase.to_owned(),
            ..NativeSnapshotInfo::default()
        }),
        ..RestoreVolumeInfo::default()
    }
}

/// Prepares a claim for creation. Fails if its data cannot be restored.
pub(super) fn reset_claim(
    context: &Context,
    id: &ResourceIdentifier,
    claim: &mut Value,
) -> Result<(), ClaimError> {
    let Some(name) = reset::claim_volume(claim).map(str::to_owned) else { return Ok(()) };
    let kind = GroupResource::new("", "persistentvolumes");
    let stored = context.contents.read(&kind, None, "", &name).ok();
    let Some(volume) = stored.and_then(|item| item.parse::<Value>().ok()) else {
        reset::rebind_claim(claim, ClaimBinding::Same);
        return Ok(());
    };
    // An excluded volume either is in the cluster or is brought by other means: as in Velero, the claim keeps
    // it.
    if !context.served_api().filter.additional(&kind, "", &name, false).is_restore() {
        reset::rebind_claim(claim, ClaimBinding::Same);
        return Ok(());
    }
    let warn_empty = |reason: &dyn fmt::Display| {
        let text = format!("the claim is created empty: volume {name} is not restored: {reason}");
        context.report.warn(id, text);
    };
    match decide(context, &name, &volume) {
        // The volume existed before; otherwise it would have been created from its snapshot by now.
        VolumeDecision::FromClaim { .. } => {
            reset::rebind_claim(claim, ClaimBinding::Provisioned);
        }
        VolumeDecision::Reprovision(reason) => {
            // An empty volume must never go unreported.
            warn_empty(&reason);
            reset::rebind_claim(claim, ClaimBinding::Provisioned);
        }
        VolumeDecision::DataUnavailable(reason) => {
            return Err(ClaimError::DataUnavailable { volume: name, reason });
        }
        VolumeDecision::AsIs | VolumeDecision::FromSnapshot(_) => {
            match context.volume_outcomes.outcome_of(&name) {
                Some(Ok(current_name)) if current_name != name => {
                    reset::rebind_claim(claim, ClaimBinding::Renamed(&current_name));
                }
                // Without its volume, which was not requested, the claim waits for one of that name.
                Some(Ok(_)) | None => reset::rebind_claim(claim, ClaimBinding::Same),
                Some(Err(reason)) if context.request.volumes.allow_empty => {
                    warn_empty(&reason);
                    reset::rebind_claim(claim, ClaimBinding::Provisioned);
                }
                Some(Err(reason)) => {
                    return Err(ClaimError::NoVolume { volume: name, reason });
                }
            }
        }
    }
    Ok(())
}

/// True if a claim of the backup is to be restored with data, according to the backup: it was bound and is not to
/// be created empty.
pub(super) fn has_data(context: &Context, id: &ResourceIdentifier) -> bool {
    let read = |kind: &str, namespace: &str, name: &str| {
        let item = context.contents.read(&GroupResource::new("", kind), None, namespace, name);
        item.ok()?.parse::<Value>().ok()
    };
    let claim = read("persistentvolumeclaims", &id.namespace, &id.name);
    let Some(name) = claim.as_ref().and_then(reset::claim_volume) else {
        let (has_csi_snapshot, has_data_upload) =
            csi::claim_data_kinds(context, &id.namespace, &id.name);
        return has_csi_snapshot || has_data_upload;
    };
    let volume = read("persistentvolumes", "", name);
    volume.is_none_or(|volume| {
        !matches!(decide(context, name, &volume), VolumeDecision::Reprovision(_))
    })
}

fn decide<'a>(context: &'a Context, name: &str, volume: &Value) -> VolumeDecision<'a> {
    let backup_volumes = &context.volumes;
    let namespace = text(volume, "/spec/claimRef/namespace");
    let claim = text(volume, "/spec/claimRef/name");
    let info = backup_volumes.infos.iter().find(|info| info.pv_name == name);
    // In an old backup only the claim has this information.
    let (has_csi_snapshot, has_data_upload) = if info.is_none() {
        csi::claim_data_kinds(context, namespace, claim)
    } else {
        (false, false)
    };
    let saved = SavedData {
        info,
        snapshot: snapshot_of(&backup_volumes.snapshots, name),
        has_pod_volume_backup: backup_volumes.pod_volume_backups.iter().any(|copy| {
            let annotations = copy.metadata.annotations.as_ref();
            let of = annotations.and_then(|a| a.get(bowline_api::annotation::PVC_NAME));
            let pod = copy.spec.pod.namespace.as_deref().unwrap_or_default();
            of.is_some_and(|of| of == claim) && pod == namespace
        }),
        has_csi_snapshot,
        has_data_upload,
    };
    reset::decide_volume(volume, saved, context.request.volumes)
}

/// The snapshot of a volume. A complete one takes precedence.
fn snapshot_of<'a>(snapshots: &'a [Snapshot], name: &str) -> Option<&'a Snapshot> {
    let of_volume =
        || snapshots.iter().filter(|snapshot| snapshot.spec.persistent_volume_name == name);
    let is_complete =
        |snapshot: &&Snapshot| snapshot.status.phase == Some(SnapshotPhase::Completed);
    of_volume().find(is_complete).or_else(|| of_volume().next())
}
