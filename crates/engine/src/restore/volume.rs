//! Volumes and claims: which are created as they were, which anew, which from a snapshot, and which not
//! at all.
//!
//! | file | what it does |
//! |---|---|
//! | `standing` | finds out whether a volume can have its name, and waits for one that is on its way out |
//! | `csi` | sees that a claim from a CSI snapshot has that snapshot, and follows the claim |
//! | `claims` | knows from a watch which claims have their volumes |
//! | `make` | has a plugin make a volume from a snapshot, so that none is forgotten |
//! | `witness` | the port to whoever shows how that goes |

mod claims;
mod csi;
mod make;
mod standing;
mod witness;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_plugin::{ResourceIdentifier, VolumeId};
use bowline_store::file::{Method, NativeSnapshotInfo, RestoreVolumeInfo, Snapshot, SnapshotPhase};
use serde_json::Value;

use super::Context;
use super::note::Before;
use super::reset::{self, Fate, Saved, Volume};
use crate::resource::GroupResource;
pub use claims::Claims;
pub(super) use csi::{follow, require};
pub(super) use make::Maker;
use make::{Filled, Order};
use standing::Standing;
pub use witness::{Bytes, End, Making, NoWitness, Units, Witness};

/// What became of the volumes that are restored from snapshots.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// By the name of the PersistentVolume in the backup: what it is called now, or why it is not there.
    names: Mutex<HashMap<String, Result<String, String>>>,
    /// Those that are in the cluster, by their names there, or by their claims.
    infos: Mutex<BTreeMap<String, RestoreVolumeInfo>>,
}

impl Outcomes {
    /// Notes what a PersistentVolume is called now, or why it is not there.
    fn note(&self, name: &str, outcome: Result<String, String>) {
        lock(&self.names).insert(name.to_owned(), outcome);
    }

    fn of(&self, name: &str) -> Option<Result<String, String>> {
        lock(&self.names).get(name).cloned()
    }

    /// Whether it is known what became of a volume.
    pub(super) fn has(&self, name: &str) -> bool {
        lock(&self.names).contains_key(name)
    }

    /// Notes that a volume is in the cluster, under this name.
    pub(super) fn restored(&self, name: &str, brought: Brought) {
        let info = RestoreVolumeInfo { pv_name: name.to_owned(), ..brought.info };
        lock(&self.infos).insert(name.to_owned(), info);
    }

    /// Notes that a claim is in the cluster that gets its volume from a CSI snapshot.
    fn claimed(&self, info: RestoreVolumeInfo) {
        let key = format!("{}/{}", info.pvc_namespace, info.pvc_name);
        lock(&self.infos).insert(key, info);
    }

    /// What the restore says of volumes.
    pub(super) fn infos(self) -> Vec<RestoreVolumeInfo> {
        let infos = self.infos.into_inner().unwrap_or_else(PoisonError::into_inner);
        infos.into_values().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be done with a PersistentVolume.
pub(super) enum Shape {
    /// It is to be created like this.
    Create(Value),
    /// The same, with its data from a snapshot.
    Bring(Value, Box<Brought>),
    /// It is not, and why.
    Skip(String),
    /// Another must go first, and what is waited for. Only in a dry run, which does not wait.
    Wait(String),
}

/// A volume that comes from a snapshot.
#[derive(Debug)]
pub(super) struct Brought {
    /// From what, in a sentence: what was made for it, or what would be.
    pub(super) told: String,
    /// Whether nothing points to it yet, so that it is left over if nothing ever does.
    pub(super) is_new: bool,
    info: RestoreVolumeInfo,
}

/// Finds out what is to be done with a PersistentVolume, and has its data brought back.
pub(super) async fn shape(
    context: &Context,
    id: &ResourceIdentifier,
    mut value: Value,
    is_chosen: bool,
) -> Result<Shape, String> {
    match fate(context, &id.name, &value) {
        Fate::AsIs => {
            if !is_chosen && let Some(source) = node_path(&value) {
                let standing = standing::look(context, &id.name).await?;
                if standing == Standing::Free {
                    return Err(format!(
                        "a volume of the type {source} is a folder of a node, so it is not created just \
                         because a claim names it; to have it created, restore with \
                         `--include-cluster-resources` or name persistentvolumes in --include-resources"
                    ));
                }
            }
            if let Some(holder) = standing::holder(context, &value).await? {
                let reason = format!(
                    "it belongs to the claim {holder}, and the backup has no copy of its data that \
                     another claim could get"
                );
                context.volume_outcomes.note(&id.name, Err(reason));
            }
            reset::volume(&mut value, &context.request.namespace_mapping);
            Ok(Shape::Create(value))
        }
        Fate::Reprovision(reason) | Fate::FromClaim(reason) => Ok(Shape::Skip(reason)),
        Fate::Lacking(reason) => Err(format!("{reason}; {WAY_OUT}")),
        Fate::FromSnapshot(snapshot) => {
            let shaped = bring(context, id, value, snapshot).await;
            let name = match &shaped {
                Ok(Shape::Create(value) | Shape::Bring(value, _)) => Ok(name_of(value).to_owned()),
                // A dry run goes on as if it were gone.
                Ok(Shape::Skip(_) | Shape::Wait(_)) => Ok(id.name.clone()),
                Err(reason) => Err(reason.clone()),
            };
            context.volume_outcomes.note(&id.name, name);
            shaped
        }
    }
}

/// Brings a volume back from its snapshot, unless it is there.
async fn bring(
    context: &Context,
    id: &ResourceIdentifier,
    mut value: Value,
    snapshot: &Snapshot,
) -> Result<Shape, String> {
    let before = context.notes.as_ref().and_then(|notes| notes.volume_before(id));
    let (target, made) = match before {
        Some(Before { name, volume }) => (name, volume),
        None => (target(context, id, &value).await?, None),
    };
    let Some(maker) = &context.maker else {
        let standing = standing::look(context, &target).await?;
        return plan(context, value, snapshot, &target, standing);
    };
    let standing = standing::settle(context, &target).await?;
    reset::volume(&mut value, &context.request.namespace_mapping);
    match standing {
        Standing::Free => {
            let order = Order::new(context, maker, id, snapshot, &target)?;
            let filled = Box::pin(order.fill(value, made)).await?;
            let told = told(snapshot, &filled.volume, &filled.plugin);
            tracing::info!(item = %id, "{told} is brought back");
            let Filled { mut value, .. } = filled;
            rename(&mut value, &id.name, &target)?;
            let info = info(&value, snapshot);
            Ok(Shape::Bring(value, Box::new(Brought { told, is_new: true, info })))
        }
        Standing::Ours => {
            rename(&mut value, &id.name, &target)?;
            let told = "what was made before the server was started again".to_owned();
            let info = info(&value, snapshot);
            Ok(Shape::Bring(value, Box::new(Brought { told, is_new: false, info })))
        }
        Standing::Taken | Standing::Going(_) => {
            tracing::info!(item = %id, "it is in use, so that its data is left as it is");
            if let Some(volume) = made {
                let text = format!(
                    "the volume {volume}, which was made for it before the server was started \
                     again, is left over: another has taken its place"
                );
                context.report.warning(id, text);
            }
            rename(&mut value, &id.name, &target)?;
            Ok(Shape::Create(value))
        }
    }
}

/// What a dry run says of a volume.
fn plan(
    context: &Context,
    mut value: Value,
    snapshot: &Snapshot,
    target: &str,
    standing: Standing,
) -> Result<Shape, String> {
    let name = name_of(&value).to_owned();
    reset::volume(&mut value, &context.request.namespace_mapping);
    rename(&mut value, &name, target)?;
    Ok(match standing {
        Standing::Free => {
            let (id, location) = (&snapshot.status.provider_snapshot_id, &snapshot.spec.location);
            let told = format!(
                "it would be made from the snapshot {id} by the plugin of the \
                 VolumeSnapshotLocation {location}"
            );
            let info = info(&value, snapshot);
            Shape::Bring(value, Box::new(Brought { told, is_new: false, info }))
        }
        Standing::Going(why) => Shape::Wait(format!(
            "the one that is in the cluster must go first, and the restore would wait for that: {why}"
        )),
        Standing::Ours | Standing::Taken => Shape::Create(value),
    })
}

/// What a PersistentVolume is to be called.
async fn target(
    context: &Context,
    id: &ResourceIdentifier,
    value: &Value,
) -> Result<String, String> {
    if !standing::is_mapped(value, &context.request.namespace_mapping) {
        return Ok(id.name.clone());
    }
    Ok(match standing::look(context, &id.name).await? {
        Standing::Free | Standing::Ours => id.name.clone(),
        Standing::Taken | Standing::Going(_) => {
            standing::clone_name(context.request.uid.as_str(), &id.name)
        }
    })
}

/// Gives a PersistentVolume its new name, if it gets one. A plugin may have given it another already.
fn rename(value: &mut Value, name: &str, target: &str) -> Result<(), String> {
    let chosen = match name_of(value) {
        "" => return Err("the plugin returned a PersistentVolume without a name".to_owned()),
        own if own == name => target.to_owned(),
        own => own.to_owned(),
    };
    if chosen != name {
        value["metadata"]["name"] = name.into();
        reset::rename_volume(value, &chosen).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The type of a volume that is a folder of a node: whoever may use it is on the way to be the node's ruler.
fn node_path(volume: &Value) -> Option<&'static str> {
    let spec = volume.get("spec")?;
    ["hostPath", "local"]
        .into_iter()
        .find(|source| spec.get(source).is_some_and(|of| !of.is_null()))
}

fn name_of(value: &Value) -> &str {
    value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

fn told(snapshot: &Snapshot, volume: &VolumeId, plugin: &str) -> String {
    let id = &snapshot.status.provider_snapshot_id;
    format!("the volume {volume}, which the plugin {plugin} made from the snapshot {id},")
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

/// Makes a claim ready to be created. One whose data cannot be brought back is not.
pub(super) fn reset_claim(
    context: &Context,
    id: &ResourceIdentifier,
    claim: &mut Value,
) -> Result<(), String> {
    let Some(name) = reset::claim_volume(claim).map(str::to_owned) else { return Ok(()) };
    let kind = GroupResource::new("", "persistentvolumes");
    let stored = context.contents.read(&kind, None, "", &name).ok();
    let Some(volume) = stored.and_then(|item| item.parse::<Value>().ok()) else {
        reset::claim(claim, Volume::Same);
        return Ok(());
    };
    // A volume that is left out is one that is in the cluster, or that somebody else brings: as in Velero, the
    // claim keeps it.
    if !context.world().filter.additional(&kind, "", &name, false).is_restore() {
        reset::claim(claim, Volume::Same);
        return Ok(());
    }
    let lacking = |reason: &str| format!("its volume {name} is not restored: {reason}");
    match fate(context, &name, &volume) {
        // It was there before, or it would be made from its snapshot by now.
        Fate::FromClaim(_) => reset::claim(claim, Volume::Provisioned),
        Fate::Reprovision(reason) => {
            // Nobody is to find an empty volume without having been told.
            context.report.warning(id, format!("it is created empty: {}", lacking(&reason)));
            reset::claim(claim, Volume::Provisioned);
        }
        Fate::Lacking(reason) => return Err(format!("{}; {WAY_OUT}", lacking(&reason))),
        Fate::AsIs | Fate::FromSnapshot(_) => match context.volume_outcomes.of(&name) {
            Some(Ok(now)) if now != name => reset::claim(claim, Volume::Renamed(&now)),
            // Without its volume, which was not asked for, it waits for one of that name.
            Some(Ok(_)) | None => reset::claim(claim, Volume::Same),
            Some(Err(reason)) if context.request.volumes.allow_empty => {
                let text = format!("it is created empty: {}", lacking(&reason));
                context.report.warning(id, text);
                reset::claim(claim, Volume::Provisioned);
            }
            Some(Err(reason)) => return Err(format!("{}; {WAY_OUT}", lacking(&reason))),
        },
    }
    Ok(())
}

/// Whether a claim of the backup is to come back with data, as far as the backup tells: it was bound,
/// and is not to come up empty.
pub(super) fn has_data(context: &Context, id: &ResourceIdentifier) -> bool {
    let read = |kind: &str, namespace: &str, name: &str| {
        let item = context.contents.read(&GroupResource::new("", kind), None, namespace, name);
        item.ok()?.parse::<Value>().ok()
    };
    let claim = read("persistentvolumeclaims", &id.namespace, &id.name);
    let Some(name) = claim.as_ref().and_then(reset::claim_volume) else {
        let (has_csi_snapshot, has_data_upload) = csi::of_claim(context, &id.namespace, &id.name);
        return has_csi_snapshot || has_data_upload;
    };
    let volume = read("persistentvolumes", "", name);
    volume.is_none_or(|volume| !matches!(fate(context, name, &volume), Fate::Reprovision(_)))
}

pub(super) const WAY_OUT: &str = "to have it created empty, restore with `--allow-empty-volumes`";

fn fate<'a>(context: &'a Context, name: &str, volume: &Value) -> Fate<'a> {
    let known = &context.volumes;
    let claim = |pointer: &str| volume.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, claim) = (claim("/spec/claimRef/namespace"), claim("/spec/claimRef/name"));
    let info = known.infos.iter().find(|info| info.pv_name == name);
    // Of an old backup only the claim knows.
    let (has_csi_snapshot, has_data_upload) =
        if info.is_none() { csi::of_claim(context, namespace, claim) } else { (false, false) };
    let saved = Saved {
        info,
        snapshot: snapshot_of(&known.snapshots, name),
        has_pod_volume_backup: known.pod_volume_backups.iter().any(|copy| {
            let annotations = copy.metadata.annotations.as_ref();
            let of = annotations.and_then(|a| a.get(bowline_api::annotation::PVC_NAME));
            let pod = copy.spec.pod.namespace.as_deref().unwrap_or_default();
            of.is_some_and(|of| of == claim) && pod == namespace
        }),
        has_csi_snapshot,
        has_data_upload,
    };
    reset::fate(volume, saved, context.request.volumes)
}

/// The snapshot of a volume. One that is complete comes before others.
fn snapshot_of<'a>(snapshots: &'a [Snapshot], name: &str) -> Option<&'a Snapshot> {
    let of_it = || snapshots.iter().filter(|taken| taken.spec.persistent_volume_name == name);
    let is_complete = |taken: &&Snapshot| taken.status.phase == Some(SnapshotPhase::Completed);
    of_it().find(is_complete).or_else(|| of_it().next())
}
