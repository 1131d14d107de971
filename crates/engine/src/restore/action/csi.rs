//! Actions for CSI snapshots.
//!
//! A claim is created from a VolumeSnapshot, which is bound to a VolumeSnapshotContent, which contains the driver's
//! handle of the snapshot. VolumeSnapshot and content are static, and their names are unique to the restore, so that
//! several restores of one backup do not collide. Their deletion policy is `Retain`: deleting objects of a restore
//! never deletes the snapshot.
//!
//! | file | action | resources |
//! |---|---|---|
//! | `claim` | `velero.io/csi-pvc-restorer` | claims |
//! | `class` | `velero.io/csi-volumesnapshotclass-restorer` | VolumeSnapshotClasses |
//! | `content` | `velero.io/csi-volumesnapshotcontent-restorer` | VolumeSnapshotContents |
//! | `snapshot`, `group` | `velero.io/csi-volumesnapshot-restorer` | VolumeSnapshots |
//!
//! `source` reads the archive's information about a snapshot, `cluster_capabilities` the requirements on the cluster.
//! The actions perform lookups, but write nothing that a restore would not show as an item, except for the stub of a
//! group, which a dry run omits.

mod claim;
mod class;
mod cluster_capabilities;
mod content;
mod group;
mod snapshot;
mod source;

use std::sync::Arc;

use bowline_plugin::RestoreItemAction;
use serde_json::Value;

use super::named;
use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::csi::{BEING_CREATED, BEING_DELETED};
pub(in crate::restore) use crate::csi::{
    CLASSES, CONTENTS, GROUP as SNAPSHOT_GROUP, GROUP_CONTENTS,
    GROUP_SNAPSHOT_API_GROUP as GROUP_GROUP, SNAPSHOTS, id as object, resource as kind,
};
use crate::download::BackupVolumes;
use crate::journal::digest;
use crate::report::Report;
use crate::resource::{GroupResource, Resources};
use crate::restore::modifier::Modifiers;
use crate::restore::request::Request;
use crate::restore::reset::VolumeOptions;
use crate::unpack::Contents;
pub(in crate::restore) use claim::data_source;
use cluster_capabilities::ClusterCapabilities;
pub(in crate::restore) use source::{SnapshotSource, SnapshotSourceError};

/// The action that tracks claims until they have their volumes.
pub const CSI_PVC_ACTION: &str = "velero.io/csi-pvc-restorer";

/// Annotations that the snapshot controllers set on contents in progress.
const IN_PROGRESS_ANNOTATIONS: [&str; 2] = [BEING_CREATED, BEING_DELETED];

/// Shared state of the CSI actions of one restore.
pub(in crate::restore) struct CsiRestoreContext {
    contents: Arc<Contents>,
    volumes: Arc<BackupVolumes>,
    report: Arc<Report>,
    volume_options: VolumeOptions,
    /// Modifiers, which are applied after the actions.
    modifiers: Option<Modifiers>,
    /// True if the backup moved the data of its snapshots to object storage.
    is_data_moved: bool,
    is_dry_run: bool,
    capabilities: ClusterCapabilities,
}

impl CsiRestoreContext {
    pub(in crate::restore) fn new(
        cluster: &Arc<dyn Cluster>,
        resources: &Arc<Resources>,
        contents: &Arc<Contents>,
        volumes: &Arc<BackupVolumes>,
        request: &Request,
        report: &Arc<Report>,
    ) -> Self {
        Self {
            contents: Arc::clone(contents),
            volumes: Arc::clone(volumes),
            report: Arc::clone(report),
            volume_options: request.volumes,
            modifiers: request.modifiers.clone(),
            is_data_moved: request.backup.spec.snapshot_move_data == Some(true),
            is_dry_run: false,
            capabilities: ClusterCapabilities::new(cluster, resources),
        }
    }

    /// The same context for a dry run, which writes nothing.
    #[must_use]
    pub(in crate::restore) fn dry_run(self) -> Self {
        Self { is_dry_run: true, ..self }
    }

    /// An object with the modifiers applied, which come after the actions. A failing rule is reported there, not here.
    fn modified(&self, kind: &GroupResource, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(modifiers) = &self.modifiers {
            modifiers.apply(kind, &mut object);
        }
        object
    }

    /// Capabilities of the cluster.
    pub(in crate::restore) fn capabilities(&self) -> &ClusterCapabilities {
        &self.capabilities
    }

    /// True if the backup moved the data of its snapshots to object storage.
    pub(in crate::restore) fn is_data_moved(&self) -> bool {
        self.is_data_moved
    }

    /// The archive's information about a VolumeSnapshot.
    pub(in crate::restore) fn source(
        &self,
        namespace: &str,
        snapshot: &str,
    ) -> Result<SnapshotSource, SnapshotSourceError> {
        let mut source = SnapshotSource::find(&self.contents, namespace, snapshot)?;
        let content = self.contents.read(&kind(CONTENTS), None, "", &source.content);
        if let Some(content) = content.ok().and_then(|item| item.parse().ok()) {
            let driver = self.driver(&content);
            if !driver.is_empty() {
                source.driver = driver;
            }
        }
        Ok(source)
    }

    /// The driver of a VolumeSnapshotContent after the modifiers.
    fn driver(&self, content: &Value) -> String {
        let content = self.modified(&kind(CONTENTS), content);
        crate::json::text(&content, "/spec/driver").to_owned()
    }
}

/// The actions, in Velero's order. They run after those of version 1.
pub(in crate::restore) fn actions(
    csi: &Arc<CsiRestoreContext>,
) -> Vec<NamedAction<dyn RestoreItemAction>> {
    let actions: [(&str, Arc<dyn RestoreItemAction>); 4] = [
        (CSI_PVC_ACTION, Arc::new(claim::CsiPvcAction::new(csi))),
        ("velero.io/csi-volumesnapshot-restorer", Arc::new(snapshot::CsiSnapshotAction::new(csi))),
        ("velero.io/csi-volumesnapshotclass-restorer", Arc::new(class::CsiSnapshotClassAction)),
        (
            "velero.io/csi-volumesnapshotcontent-restorer",
            Arc::new(content::CsiSnapshotContentAction::new(csi)),
        ),
    ];
    actions.into_iter().filter_map(named).collect()
}

/// Name of a VolumeSnapshot of the backup, or of its content, in this restore. Contents are cluster-scoped, so the
/// name includes the namespace of the VolumeSnapshot, which it does not in Velero.
pub(in crate::restore) fn name_in_restore(
    restore: &str,
    namespace: &str,
    snapshot: &str,
) -> String {
    digest(format!("{restore}/{namespace}/{snapshot}").as_bytes())
}

#[cfg(test)]
pub(in crate::restore) mod tests;
