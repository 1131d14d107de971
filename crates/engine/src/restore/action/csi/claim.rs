//! Claims whose data is in CSI snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Restore, annotation, label};
use bowline_plugin::{
    Code, Encoded, Error, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use bowline_store::file::{BackupVolumeInfo, Method, Outcome};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::lookup::action_error;
use super::super::{id, read, target_namespace, write};
use super::cluster_capabilities::StorageClass;
use super::{
    CsiRestoreContext, SNAPSHOT_GROUP, SNAPSHOTS, SnapshotSource, SnapshotSourceError, kind,
    name_in_restore, object,
};
use crate::json::{annotation as annotated, map, text};
use crate::quantity;
use crate::report::error_text;
use crate::resource::GroupResource;
use crate::restore::volume::ALLOW_EMPTY_HINT;

/// Makes a claim use its VolumeSnapshot, which is restored before it, as its data source.
///
/// If the claim does not name its snapshot, Velero silently creates it without data; if the cluster lacks a
/// requirement, Velero creates one that waits forever. Here these are errors.
pub(super) struct CsiPvcAction(Arc<CsiRestoreContext>);

impl CsiPvcAction {
    pub(super) fn new(csi: &Arc<CsiRestoreContext>) -> Self {
        Self(Arc::clone(csi))
    }
}

/// Treatment of a claim.
#[derive(Debug)]
enum ClaimDecision<'a> {
    /// The action does not apply.
    Unchanged,
    /// The claim is created empty, for this reason.
    Empty(MissingClaimData),
    /// The claim is created from this VolumeSnapshot.
    FromSnapshot(&'a str),
    /// The data cannot be restored, for this reason.
    DataUnavailable(MissingClaimData),
}

/// Why a claim does not get its data.
#[derive(Debug, thiserror::Error)]
enum MissingClaimData {
    #[error("restorePVs is false")]
    NotRequested,
    #[error("the data of the claim is not in the backup: its snapshot failed")]
    SaveFailed,
    #[error(
        "the data of the claim is in CSI snapshot{} and cannot be restored: {obstacle}",
        spaced(handle)
    )]
    Snapshot {
        /// The driver's handle of the snapshot; empty if unknown.
        handle: String,
        obstacle: SnapshotObstacle,
    },
}

/// What prevents a claim from being created from its snapshot.
#[derive(Debug, thiserror::Error)]
enum SnapshotObstacle {
    #[error("the claim does not name its VolumeSnapshot")]
    Unnamed,
    #[error("{}", error_text(.0))]
    Source(SnapshotSourceError),
    #[error(
        "the cluster does not serve VolumeSnapshots ({SNAPSHOT_GROUP}): install the snapshot controller and its \
         CRDs"
    )]
    SnapshotsNotServed,
    #[error("the claim has an empty storageClassName, so no volume is provisioned")]
    NoStorageClass,
    #[error("the cluster has no storage class {0:?}")]
    StorageClassMissing(String),
    #[error("the claim names no storage class, and the cluster has no default one")]
    NoDefaultStorageClass,
    #[error("storage class {class} uses {provisioner}, but the snapshot is of driver {driver}")]
    OtherDriver { class: String, provisioner: String, driver: String },
    #[error("CSI driver {0} is not installed: no CSINode and no CSIDriver lists it")]
    DriverMissing(String),
}

fn spaced(handle: &str) -> String {
    if handle.is_empty() { String::new() } else { format!(" {handle}") }
}

/// The backup's information about a claim.
#[derive(Clone, Copy, Debug, Default)]
struct BackedUpClaim<'a> {
    /// The VolumeSnapshot that the claim names.
    snapshot: Option<&'a str>,
    /// Information about its volume.
    info: Option<&'a BackupVolumeInfo>,
    /// True if the backup moved the data of its snapshots to object storage.
    is_data_moved: bool,
    /// True if volumes are to be restored.
    restore_pvs: bool,
}

fn decide_claim<'a>(claim: &BackedUpClaim<'a>) -> ClaimDecision<'a> {
    let info = claim.info.filter(|info| !info.skipped);
    let is_data_moved = claim.info.map_or(claim.is_data_moved, |info| info.snapshot_data_moved);
    let is_csi = info.is_some_and(|info| info.backup_method == Some(Method::CsiSnapshot));
    // Data saved by another method is not handled here, whatever the annotations of the claim say.
    if is_data_moved || (claim.info.is_some() && !is_csi) {
        return ClaimDecision::Unchanged;
    }
    let snapshot = claim.snapshot.filter(|name| !name.is_empty());
    if snapshot.is_none() && !is_csi {
        return ClaimDecision::Unchanged;
    }
    if !claim.restore_pvs {
        return ClaimDecision::Empty(MissingClaimData::NotRequested);
    }
    if info.is_some_and(|info| info.result == Some(Outcome::Failed)) {
        return ClaimDecision::DataUnavailable(MissingClaimData::SaveFailed);
    }
    snapshot.map_or_else(
        || {
            let csi = info.and_then(|info| info.csi_snapshot_info.as_ref());
            let handle = csi.map(|csi| csi.snapshot_handle.clone()).unwrap_or_default();
            let obstacle = SnapshotObstacle::Unnamed;
            ClaimDecision::DataUnavailable(MissingClaimData::Snapshot { handle, obstacle })
        },
        ClaimDecision::FromSnapshot,
    )
}

/// Features of the cluster that a claim from a snapshot needs.
struct ClusterSupport<'a> {
    serves_snapshots: bool,
    drivers: &'a BTreeSet<String>,
    classes: &'a [StorageClass],
}

/// The requirement that the cluster lacks, if any.
fn missing_requirement(
    claim: &Value,
    source: &SnapshotSource,
    support: &ClusterSupport<'_>,
) -> Option<SnapshotObstacle> {
    let driver = &source.driver;
    if !support.serves_snapshots {
        return Some(SnapshotObstacle::SnapshotsNotServed);
    }
    let class = match storage_class_name(claim) {
        Some("") => return Some(SnapshotObstacle::NoStorageClass),
        Some(name) => match support.classes.iter().find(|class| class.name == name) {
            Some(class) => class,
            None => return Some(SnapshotObstacle::StorageClassMissing(name.to_owned())),
        },
        None => match support.classes.iter().find(|class| class.is_default) {
            Some(class) => class,
            None => return Some(SnapshotObstacle::NoDefaultStorageClass),
        },
    };
    let StorageClass { name, provisioner, .. } = class;
    if !driver.is_empty() && provisioner != driver {
        return Some(SnapshotObstacle::OtherDriver {
            class: name.clone(),
            provisioner: provisioner.clone(),
            driver: driver.clone(),
        });
    }
    (!support.drivers.contains(provisioner))
        .then(|| SnapshotObstacle::DriverMissing(provisioner.clone()))
}

/// The storage class that a claim requests; `None` if it accepts any.
fn storage_class_name(claim: &Value) -> Option<&str> {
    let old = annotated(claim, "volume.beta.kubernetes.io/storage-class");
    old.or_else(|| claim.pointer("/spec/storageClassName")?.as_str())
}

/// Sets a VolumeSnapshot as the data source of a claim.
fn change(claim: &mut Value, snapshot: &str, size: Option<u64>) {
    clear(claim);
    let Some(spec) = map(claim, "/spec") else { return };
    spec.insert(
        "dataSource".to_owned(),
        json!({"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": snapshot}),
    );
    // No driver creates a volume that is smaller than its snapshot.
    let requested = claim.pointer_mut("/spec/resources/requests/storage");
    if let (Some(requested), Some(size)) = (requested, size)
        && quantity::bytes(requested.as_str().unwrap_or_default()).is_ok_and(|bytes| bytes < size)
    {
        *requested = size.to_string().into();
    }
}

/// Removes the data source of a claim.
fn clear(claim: &mut Value) {
    if let Some(spec) = map(claim, "/spec") {
        for field in ["volumeName", "dataSource", "dataSourceRef"] {
            spec.remove(field);
        }
    }
}

impl CsiPvcAction {
    /// True if the claim exists. Then it stays unchanged, and nothing is created for it. A claim that this restore
    /// created before a restart is processed again: its messages were lost.
    async fn claim_exists(&self, claim: &Value, restore: &Restore) -> Result<bool> {
        let capabilities = self.0.capabilities();
        let kind = GroupResource::new("", "persistentvolumeclaims");
        let Some(claims) = capabilities.resource(&kind).await? else { return Ok(false) };
        let namespace = target_namespace(&restore.spec, text(claim, "/metadata/namespace"));
        let name = text(claim, "/metadata/name");
        let found = capabilities.cluster.get(&claims, namespace, name).await;
        let found =
            found.map_err(|error| action_error(&error, "cannot check whether the claim exists"))?;
        let found = found.and_then(|found| found.item.parse::<Value>().ok());
        Ok(found.is_some_and(|found| !is_created_by(&found, restore)))
    }

    /// The source of a claim, or the missing requirement.
    async fn source(&self, claim: &Value, snapshot: &str) -> Result<SnapshotSource, SourceError> {
        let CsiRestoreContext { contents, capabilities, is_dry_run, .. } = &*self.0;
        let namespace = text(claim, "/metadata/namespace");
        let source = self.0.source(namespace, snapshot);
        let source = source.map_err(|error| {
            let obstacle = SnapshotObstacle::Source(error);
            MissingClaimData::Snapshot { handle: String::new(), obstacle }
        })?;
        // The class after the modifiers counts.
        let claim = &self.0.modified(&GroupResource::new("", "persistentvolumeclaims"), claim);
        let mut classes = capabilities.storage_classes().await?.to_vec();
        let mut serves_snapshots = capabilities.serves_snapshots().await?;
        if *is_dry_run {
            // The restore creates the definition.
            let definition = format!("{SNAPSHOTS}.{SNAPSHOT_GROUP}");
            let of = ("apiextensions.k8s.io", "customresourcedefinitions");
            serves_snapshots |= contents.has(&id(of.0, of.1, "", &definition));
            if let Some(name) = storage_class_name(claim)
                && classes.iter().all(|class| class.name != name)
                && contents.has(&id("storage.k8s.io", "storageclasses", "", name))
            {
                classes.push(StorageClass {
                    name: name.to_owned(),
                    provisioner: source.driver.clone(),
                    is_default: false,
                    waits_for_consumer: false,
                });
            }
        }
        let drivers = capabilities.drivers().await?;
        let support = ClusterSupport { serves_snapshots, drivers, classes: &classes };
        match missing_requirement(claim, &source, &support) {
            Some(obstacle) => {
                Err(MissingClaimData::Snapshot { handle: source.handle, obstacle }.into())
            }
            None => Ok(source),
        }
    }

    /// Handles a claim whose data cannot be restored.
    fn create_empty_or_fail(&self, claim: &mut Value, reason: &MissingClaimData) -> Result<()> {
        if !self.0.volume_options.allow_empty {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("{reason}; {ALLOW_EMPTY_HINT}"),
            ));
        }
        self.create_empty(claim, reason);
        Ok(())
    }

    /// Creates the claim empty, with a warning: an empty volume must never go unreported.
    fn create_empty(&self, claim: &mut Value, reason: &MissingClaimData) {
        let (namespace, name) = (text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
        let id = id("", "persistentvolumeclaims", namespace, name);
        self.0.report.warn(&id, format!("the claim is created empty: {reason}"));
        clear(claim);
    }
}

/// True if this restore created a claim.
fn is_created_by(found: &Value, restore: &Restore) -> bool {
    let name = label::value(restore.metadata.name.as_deref().unwrap_or_default());
    let labels = found.pointer("/metadata/labels");
    let of = labels.and_then(|labels| labels.get(label::RESTORE_NAME)?.as_str());
    let created = text(found, "/metadata/creationTimestamp").parse::<Timestamp>().ok();
    let started_at = restore.status.as_ref().and_then(|status| status.start_timestamp.as_ref());
    // Creation timestamps have a resolution of one second.
    of == Some(&*name)
        && created
            .zip(started_at)
            .is_some_and(|(at, started)| at.as_second() >= started.0.as_second())
}

/// Why a claim is not created from its snapshot.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error(transparent)]
    DataUnavailable(#[from] MissingClaimData),
    /// A lookup failed, so the answer is unknown.
    #[error(transparent)]
    Lookup(#[from] Error),
}

#[async_trait]
impl RestoreItemAction for CsiPvcAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let (mut claim, backed_up): (Value, Value) = (read(item)?, read(item_from_backup)?);
        let volume = text(&backed_up, "/spec/volumeName");
        let mut infos = self.0.volumes.infos.iter();
        let backed_up_claim = BackedUpClaim {
            snapshot: annotated(&backed_up, label::VOLUME_SNAPSHOT_NAME),
            info: infos.find(|info| info.pv_name == volume && !volume.is_empty()),
            is_data_moved: self.0.is_data_moved,
            restore_pvs: self.0.volume_options.restore_pvs,
        };
        let decision = decide_claim(&backed_up_claim);
        let mut output = RestoreOutput::unchanged(item);
        if matches!(decision, ClaimDecision::Unchanged)
            || self.claim_exists(&claim, restore).await?
        {
            return Ok(output);
        }
        match decision {
            ClaimDecision::Unchanged => {}
            ClaimDecision::Empty(reason) => self.create_empty(&mut claim, &reason),
            ClaimDecision::DataUnavailable(reason) => {
                self.create_empty_or_fail(&mut claim, &reason)?;
            }
            ClaimDecision::FromSnapshot(snapshot) => match self.source(&claim, snapshot).await {
                Err(SourceError::Lookup(error)) => return Err(error),
                Err(SourceError::DataUnavailable(reason)) => {
                    self.create_empty_or_fail(&mut claim, &reason)?;
                }
                Ok(source) => {
                    let uid = restore.metadata.uid.as_deref().unwrap_or_default();
                    let namespace = text(&backed_up, "/metadata/namespace");
                    let name = name_in_restore(uid, namespace, snapshot);
                    change(&mut claim, &name, source.size);
                    must_include(&mut claim);
                    output.additional_items.push(object(SNAPSHOTS, namespace, snapshot));
                }
            },
        }
        output.item = write(&claim)?;
        Ok(output)
    }
}

/// Requires that the additional items of an item are included, whatever the filters say.
pub(super) fn must_include(object: &mut Value) {
    let Some(metadata) = map(object, "/metadata") else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[annotation::MUST_INCLUDE_ON_RESTORE] = "true".into();
}

/// The VolumeSnapshot in the cluster that a claim is created from.
pub(in crate::restore) fn data_source(claim: &Value) -> Option<&str> {
    let source = claim.pointer("/spec/dataSource")?;
    let is_snapshot = text(source, "/kind") == "VolumeSnapshot"
        && text(source, "/apiGroup") == kind(SNAPSHOTS).group;
    is_snapshot.then(|| text(source, "/name"))
}

#[cfg(test)]
mod tests;
