//! Outcome of a snapshot, for the journal and for the volume info file.

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::{BackupVolumeInfo, CsiSnapshotInfo, Method, Outcome};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::object;
use super::target::{Leftovers, Target};
use crate::operation::{Operation, State};

/// The name of the action that starts the operations.
pub const BACKUPPER: &str = "velero.io/csi-volumesnapshot-backupper";

/// Namespace and name of a VolumeSnapshot.
pub(crate) type SnapshotKey = (String, String);

/// Outcome of a snapshot that was requested from a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSnapshotRecord {
    /// The PersistentVolume.
    pub volume: String,
    /// The namespace of the claim, and of its VolumeSnapshot.
    pub namespace: String,
    /// The claim.
    pub claim: String,
    /// The VolumeSnapshot.
    pub name: String,
    /// Its VolumeSnapshotClass.
    pub class: String,
    /// The driver.
    pub driver: String,
    /// Its VolumeSnapshotContent.
    pub content: String,
    /// The driver's handle of the snapshot.
    pub handle: String,
    /// The driver's handle of the group that it was taken in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group_handle: String,
    /// The deletion policy of its content.
    pub deletion_policy: String,
    /// Size of the volume that a restore needs, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// Point in time of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// True if it was ready to use at once.
    pub is_ready: bool,
    /// The operation that waits until it is ready to use.
    pub operation: String,
    /// Reason for the failure, if there is no snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The VolumeGroupSnapshot that was created for it, failed, and could not be deleted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub left_group: String,
}

impl CsiSnapshotRecord {
    /// The volume info of its volume.
    pub(crate) fn info(&self, info: BackupVolumeInfo) -> BackupVolumeInfo {
        BackupVolumeInfo {
            backup_method: Some(Method::CsiSnapshot),
            preserve_local_snapshot: true,
            start_timestamp: self.created.map(Time),
            result: self.failure.as_ref().map(|_| Outcome::Failed),
            csi_snapshot_info: Some(CsiSnapshotInfo {
                snapshot_handle: self.handle.clone(),
                size: self.restore_size.unwrap_or_default(),
                driver: self.driver.clone(),
                vsc_name: self.content.clone(),
                operation_id: self.operation.clone(),
                ready_to_use: Some(self.is_ready),
                volume_group_snapshot_handle: self.group_handle.clone(),
                ..CsiSnapshotInfo::default()
            }),
            ..info
        }
    }

    /// Sets the ID of the operation that waits for it.
    pub(crate) fn name_operation(&mut self) {
        let now = object::rfc3339(Timestamp::now());
        self.operation = format!("{}/{}/{now}", self.namespace, self.name);
    }

    /// The object that may exist in the cluster. After a failure this is only an object that could not be deleted.
    pub(crate) fn target(&self) -> Option<Target> {
        let (name, is_group) = match (self.name.as_str(), self.left_group.as_str()) {
            ("", "") => return None,
            ("", group) => (group, true),
            (name, _) => (name, false),
        };
        Some(Target { namespace: self.namespace.clone(), name: name.to_owned(), is_group })
    }

    /// Clears the names of deleted objects.
    pub(crate) fn clear_names(&mut self) {
        let Self { name, content, operation, handle, group_handle, left_group, .. } = self;
        for gone in [name, content, operation, handle, group_handle, left_group] {
            gone.clear();
        }
    }

    pub(crate) fn key(&self) -> SnapshotKey {
        (self.namespace.clone(), self.name.clone())
    }

    pub(crate) fn claim_id(&self) -> ResourceIdentifier {
        claim_id(&self.namespace, &self.claim)
    }
}

fn claim_id(namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "persistentvolumeclaims".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// True if an operation waits for the snapshot of a CSI driver.
pub fn is_csi_operation(operation: &Operation) -> bool {
    operation.plugin.as_str() == BACKUPPER
}

/// Updates the records of volumes when all operations have ended.
pub fn apply_operation_results(operations: &[Operation], infos: &mut [BackupVolumeInfo]) {
    for info in infos {
        let Some(csi) = &mut info.csi_snapshot_info else { continue };
        let of = |one: &&Operation| is_csi_operation(one) && one.id.as_str() == csi.operation_id;
        let Some(operation) = operations.iter().find(of) else { continue };
        let is_complete = operation.state == State::Completed;
        info.result = Some(if is_complete { Outcome::Succeeded } else { Outcome::Failed });
        info.completion_timestamp = operation.progress.updated.map(Time);
        csi.ready_to_use = Some(is_complete);
        if csi.size == 0 {
            csi.size = operation.progress.total;
        }
    }
}

/// Removes the handles of deleted snapshots from the records of volumes: those of `discarded` of which nothing may be
/// in `leftovers`.
pub fn clear_discarded_handles(
    discarded: &[Target],
    leftovers: &Leftovers,
    infos: &mut [BackupVolumeInfo],
) {
    for info in infos {
        let Some(csi) = &mut info.csi_snapshot_info else { continue };
        let mut parts = csi.operation_id.split('/');
        let (namespace, name) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let matches_target = |one: &Target| one.namespace == namespace && one.name == name;
        if discarded.iter().any(matches_target) && !leftovers.may_include(namespace, name) {
            csi.snapshot_handle.clear();
            csi.volume_group_snapshot_handle.clear();
        }
    }
}
