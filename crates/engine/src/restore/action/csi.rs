//! The actions for what CSI drivers took snapshots of.
//!
//! A claim is made from a VolumeSnapshot, that one from a VolumeSnapshotContent, and that one from the
//! handle of the snapshot in the words of its driver. Snapshot and content are static and get a name
//! that only this restore has, so that many restores of one backup do not meet. They are kept when they
//! go (`Retain`): what a restore makes never takes the snapshot with it.
//!
//! | file | action | sees |
//! |---|---|---|
//! | `claim` | `velero.io/csi-pvc-restorer` | claims |
//! | `class` | `velero.io/csi-volumesnapshotclass-restorer` | VolumeSnapshotClasses |
//! | `content` | `velero.io/csi-volumesnapshotcontent-restorer` | VolumeSnapshotContents |
//! | `snapshot`, `group` | `velero.io/csi-volumesnapshot-restorer` | VolumeSnapshots |
//!
//! `source` is what the archive says of a snapshot, `capabilities` what the cluster must have for it.
//! They look things up, but write nothing that a restore would not show as an item, except for the stub
//! of a group, which a dry run leaves out.

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
use crate::journal::digest;
use crate::report::Report;
use crate::resource::{GroupResource, Resources};
use crate::restore::download::BackupVolumes;
use crate::restore::modifier::Modifiers;
use crate::restore::request::Request;
use crate::restore::reset::VolumeOptions;
use crate::restore::unpack::Contents;
pub(in crate::restore) use claim::data_source;
use cluster_capabilities::ClusterCapabilities;
pub(in crate::restore) use source::SnapshotSource;

/// The action that follows claims until they have their volumes.
pub const CSI_PVC_ACTION: &str = "velero.io/csi-pvc-restorer";

/// What the snapshot controllers note on contents while they work on them.
const IN_PROGRESS_ANNOTATIONS: [&str; 2] = [BEING_CREATED, BEING_DELETED];

/// What the actions know of one restore.
pub(in crate::restore) struct CsiRestoreContext {
    contents: Arc<Contents>,
    volumes: Arc<BackupVolumes>,
    report: Arc<Report>,
    volume_options: VolumeOptions,
    /// What is changed after the actions.
    modifiers: Option<Modifiers>,
    /// Whether the backup copied the data of its snapshots into a store.
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

    /// The same, of which nothing is to be written.
    #[must_use]
    pub(in crate::restore) fn dry_run(self) -> Self {
        Self { is_dry_run: true, ..self }
    }

    /// What an object becomes by modifiers, which come after the actions. A rule that fails is told there.
    fn modified(&self, kind: &GroupResource, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(modifiers) = &self.modifiers {
            modifiers.apply(kind, &mut object);
        }
        object
    }

    /// What the cluster has.
    pub(in crate::restore) fn capabilities(&self) -> &ClusterCapabilities {
        &self.capabilities
    }

    /// Whether the backup copied the data of its snapshots into a store.
    pub(in crate::restore) fn is_data_moved(&self) -> bool {
        self.is_data_moved
    }

    /// What the archive says of a VolumeSnapshot.
    pub(in crate::restore) fn source(
        &self,
        namespace: &str,
        snapshot: &str,
    ) -> Result<SnapshotSource, String> {
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

    /// The driver of a VolumeSnapshotContent, as it will be.
    fn driver(&self, content: &Value) -> String {
        let content = self.modified(&kind(CONTENTS), content);
        super::json::text(&content, "/spec/driver").to_owned()
    }
}

/// The actions, in Velero's order. They come after those of version 1.
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

/// What a VolumeSnapshot of the backup, or its content, is called in this restore. Contents live in no
/// namespace, so that the one of the VolumeSnapshot counts, which it does not in Velero.
pub(in crate::restore) fn name_in_restore(
    restore: &str,
    namespace: &str,
    snapshot: &str,
) -> String {
    digest(format!("{restore}/{namespace}/{snapshot}").as_bytes())
}

#[cfg(test)]
pub(in crate::restore) mod tests;
