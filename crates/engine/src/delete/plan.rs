//! Plan of a deletion, or the objections to it: data that would remain without a record.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{Backup, BackupPhase, BackupStatus, annotation};
use bowline_plugin::SnapshotId;
use bowline_store::file::{
    BackupVolumeInfo, Method, OperationPhase, Outcome, Snapshot, SnapshotPhase, VolumeOperation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::BackupInventory;
use super::csi::{self, DeletableCsiSnapshot};
use super::objection::{Objection, Objections, RemainingData, UnsupportedData};

/// Plan of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionPlan {
    /// Ownership of the files in the bucket.
    pub files: FileOwnership,
    /// Plugin snapshots to delete, without duplicates.
    pub snapshots: Vec<DeletableSnapshot>,
    /// CSI snapshots to delete, without duplicates.
    pub csi: Vec<DeletableCsiSnapshot>,
}

/// Ownership of the files in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOwnership {
    /// The files belong to this backup.
    Own,
    /// The files belong to another backup of the same name, and stay.
    OfAnother,
}

/// A plugin snapshot to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletableSnapshot {
    /// The VolumeSnapshotLocation where it was taken.
    pub location: String,
    /// The plugin's id of the snapshot.
    pub id: SnapshotId,
    /// The PersistentVolume that it was taken of.
    pub volume: String,
    /// True if there is no record that the work on it has ended.
    pub is_in_progress: bool,
}

/// Plans the deletion of a backup, or returns everything that would remain without a record.
pub fn plan_deletion(
    backup: &Backup,
    inventory: &BackupInventory,
) -> Result<DeletionPlan, Objections> {
    let ownership = inventory.record.as_ref().map(|record| file_ownership(backup, record));
    if inventory.belongs_to_another || ownership == Some(FileOwnership::OfAnother) {
        return Ok(DeletionPlan {
            files: FileOwnership::OfAnother,
            snapshots: Vec::new(),
            csi: Vec::new(),
        });
    }
    let mut objections = Vec::new();
    let snapshots = deletable_snapshots(inventory, &mut objections);
    undeletable_file_copies(inventory).add_objection(&mut objections);
    undeletable_moved_data(backup, inventory).add_objection(&mut objections);
    let csi = csi_snapshots(backup, inventory, &mut objections);
    unknown_methods(inventory).add_objection(&mut objections);
    if !is_being_deleted(backup, inventory) {
        lost_snapshots(inventory, &snapshots).add_objection(&mut objections);
    }
    if objections.is_empty() {
        Ok(DeletionPlan { files: FileOwnership::Own, snapshots, csi })
    } else {
        Err(Objections(objections))
    }
}

/// Ownership of the files of a record.
///
/// A Backup that was synced from the bucket has a different uid from its record, and an annotation contains the uid of
/// the record. If Velero or an older server synced it, there is none; then everything that a run writes only once must
/// match. The start time is not sufficient: the same Schedule in two clusters starts in the same second.
fn file_ownership(backup: &Backup, record: &Backup) -> FileOwnership {
    let uid = record.metadata.uid.as_deref().unwrap_or_default();
    let record_uid = backup.metadata.annotations.as_ref();
    let record_uid = record_uid.and_then(|annotations| annotations.get(annotation::RECORD_UID));
    let is_own = match record_uid {
        _ if backup.metadata.uid.as_deref() == Some(uid) => true,
        Some(record_uid) => record_uid == uid,
        None => is_same_run(backup, record),
    };
    if is_own { FileOwnership::Own } else { FileOwnership::OfAnother }
}

/// True if both describe the same run. Times are compared to the second, since Velero truncates them.
fn is_same_run(backup: &Backup, record: &Backup) -> bool {
    let status = |backup: &Backup| backup.status.clone().unwrap_or_default();
    let (backup_status, record_status) = (status(backup), status(record));
    let times = |status: &BackupStatus| {
        let second = |time: &Time| time.0.as_second();
        let ended = status.completion_timestamp.as_ref().map(second);
        Some((status.start_timestamp.as_ref().map(second)?, ended))
    };
    // An interrupted deletion may have written it to one of them.
    let is_deleting =
        [&backup_status, &record_status].iter().any(|one| one.phase == Some(BackupPhase::Deleting));
    times(&backup_status).is_some()
        && times(&backup_status) == times(&record_status)
        && (is_deleting || backup_status.phase == record_status.phase)
}

/// True if a deletion has started before. Then files that name data may be gone, and their data is.
fn is_being_deleted(backup: &Backup, inventory: &BackupInventory) -> bool {
    let phase = |backup: &Backup| backup.status.as_ref().and_then(|status| status.phase.clone());
    let all = [Some(backup), inventory.record.as_ref()];
    all.into_iter().flatten().any(|one| phase(one) == Some(BackupPhase::Deleting))
}

fn deletable_snapshots(
    inventory: &BackupInventory,
    objections: &mut Vec<Objection>,
) -> Vec<DeletableSnapshot> {
    let mut found: BTreeMap<(&str, &str), DeletableSnapshot> = BTreeMap::new();
    let mut add = |location, id, volume: &str, is_in_progress| {
        // A snapshot without an id was never taken.
        let Some(snapshot_id) = SnapshotId::new(id) else { return };
        if str::is_empty(location) {
            objections.push(Objection::NoLocation(snapshot_id));
            return;
        }
        let known = found.entry((location, id)).or_insert_with(|| DeletableSnapshot {
            location: location.to_owned(),
            id: snapshot_id,
            volume: volume.to_owned(),
            is_in_progress: false,
        });
        known.is_in_progress |= is_in_progress;
    };
    for Snapshot { spec, status, .. } in &inventory.snapshots {
        let has_ended =
            matches!(status.phase, Some(SnapshotPhase::Completed | SnapshotPhase::Failed));
        let (id, volume) = (&status.provider_snapshot_id, &spec.persistent_volume_name);
        add(&spec.location, id, volume, !has_ended);
    }
    for operation in &inventory.operations {
        let VolumeOperation { location, snapshot_id, volume, status, .. } = operation;
        let has_ended = status.phase.as_ref().is_some_and(OperationPhase::is_terminal);
        add(location, snapshot_id, volume, !has_ended);
    }
    let unfinished: BTreeSet<&str> = inventory
        .volume_plugin_backups
        .iter()
        .filter_map(|report| report.status.as_ref())
        .filter(|status| !status.phase.as_ref().is_some_and(VolumePluginPhase::is_terminal))
        .map(|status| status.snapshot_id.as_str())
        .collect();
    let mut deletable: Vec<DeletableSnapshot> = found.into_values().collect();
    for snapshot in &mut deletable {
        snapshot.is_in_progress |= unfinished.contains(snapshot.id.as_str());
    }
    deletable
}

/// Remaining objects of one kind, by handle.
struct Undeletable {
    data: UnsupportedData,
    names: BTreeMap<String, String>,
}

impl Undeletable {
    fn new(data: UnsupportedData) -> Self {
        Self { data, names: BTreeMap::new() }
    }

    /// Adds an object, under its handle if it has one.
    fn add(&mut self, handle: &str, name: String) {
        let key = if handle.is_empty() { name.clone() } else { handle.to_owned() };
        self.names.entry(key).or_insert(name);
    }

    fn add_objection(self, objections: &mut Vec<Objection>) {
        let Self { data, names } = self;
        if !names.is_empty() {
            let names = RemainingData::new(names.into_values());
            objections.push(Objection::Unsupported { data, names });
        }
    }
}

fn volumes(inventory: &BackupInventory) -> impl Iterator<Item = &BackupVolumeInfo> {
    inventory.volumes.iter().flatten().filter(|volume| !volume.skipped)
}

/// Display name of a volume.
fn name(volume: &BackupVolumeInfo) -> String {
    let BackupVolumeInfo { pvc_namespace, pvc_name, pv_name, .. } = volume;
    match pvc_name.as_str() {
        "" => pv_name.clone(),
        claim => format!("{pvc_namespace}/{claim}"),
    }
}

/// True if a volume's handle refers to data.
pub(super) fn has_data(volume: &BackupVolumeInfo, handle: &str) -> bool {
    !handle.is_empty() || volume.result == Some(Outcome::Succeeded)
}

fn undeletable_file_copies(inventory: &BackupInventory) -> Undeletable {
    let mut undeletable = Undeletable::new(UnsupportedData::FileCopies);
    for copy in &inventory.pod_volume_backups {
        let handle = copy.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        if !handle.is_empty() {
            undeletable.add(handle, copy.metadata.name.clone().unwrap_or_default());
        }
    }
    for volume in volumes(inventory).filter(|v| v.backup_method == Some(Method::PodVolumeBackup)) {
        let handle = volume.pvb_info.as_ref().map_or("", |info| info.snapshot_handle.as_str());
        if has_data(volume, handle) {
            undeletable.add(handle, name(volume));
        }
    }
    undeletable
}

fn undeletable_moved_data(backup: &Backup, inventory: &BackupInventory) -> Undeletable {
    let mut undeletable = Undeletable::new(UnsupportedData::MovedData);
    for upload in &inventory.data_uploads {
        let handle = upload.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        if !handle.is_empty() {
            undeletable.add(handle, upload.metadata.name.clone().unwrap_or_default());
        }
    }
    for volume in volumes(inventory).filter(|volume| volume.snapshot_data_moved) {
        let info = volume.snapshot_data_movement_info.as_ref();
        let handle = info.map_or("", |info| info.snapshot_handle.as_str());
        if has_data(volume, handle) {
            undeletable.add(handle, name(volume));
        }
    }
    let status = backup.status.clone().unwrap_or_default();
    let has_moved =
        backup.spec.snapshot_move_data == Some(true) && status.backup_item_operations_completed > 0;
    // The backup is older than the file that would contain this information.
    if inventory.volumes.is_none() && has_moved && !is_being_deleted(backup, inventory) {
        undeletable.add("", "unknown names".to_owned());
    }
    undeletable
}

/// CSI snapshots to delete. Those with insufficient information are objections to the deletion.
fn csi_snapshots(
    backup: &Backup,
    inventory: &BackupInventory,
    objections: &mut Vec<Objection>,
) -> Vec<DeletableCsiSnapshot> {
    let mut undeletable = Undeletable::new(UnsupportedData::CsiWithoutHandle);
    let (found, unknown) = csi::held_csi_snapshots(inventory, name);
    for volume in unknown {
        undeletable.add("", volume);
    }
    let mut undecided = Undeletable::new(UnsupportedData::CsiOfUnknownOrigin);
    // After an interrupted deletion the files with this information may be gone, and the snapshots were deleted first.
    if !is_being_deleted(backup, inventory) {
        for content in csi::undecided_contents(inventory, &found) {
            undecided.add("", content);
        }
    }
    undecided.add_objection(objections);
    let status = backup.status.clone().unwrap_or_default();
    let is_moved = backup.spec.snapshot_move_data == Some(true);
    let counted = usize::try_from(status.csi_volume_snapshots_completed).unwrap_or_default();
    let missing = counted.saturating_sub(found.len());
    // The backup is older than the file that would name them.
    let is_old = inventory.volumes.is_none() && !is_moved && !is_being_deleted(backup, inventory);
    if is_old && missing > 0 {
        undeletable.add("", format!("{missing} of them"));
    }
    undeletable.add_objection(objections);
    found
}

fn unknown_methods(inventory: &BackupInventory) -> Undeletable {
    let mut undeletable = Undeletable::new(UnsupportedData::UnknownMethod);
    for volume in volumes(inventory) {
        if let Some(Method::Other(method)) = &volume.backup_method {
            undeletable.add("", format!("{} ({method})", name(volume)));
        }
    }
    undeletable
}

/// Plugin snapshots for which no file contains the information needed to delete them.
fn lost_snapshots(inventory: &BackupInventory, known: &[DeletableSnapshot]) -> Undeletable {
    let mut undeletable = Undeletable::new(UnsupportedData::SnapshotsWithoutLocation);
    for volume in volumes(inventory).filter(|v| v.backup_method == Some(Method::NativeSnapshot)) {
        let info = volume.native_snapshot_info.as_ref();
        let handle = info.map_or("", |info| info.snapshot_handle.as_str());
        if !handle.is_empty() && !known.iter().any(|snapshot| snapshot.id.as_str() == handle) {
            undeletable.add(handle, format!("{} ({handle})", name(volume)));
        }
    }
    undeletable
}

#[cfg(test)]
mod tests;
