//! What is to be deleted, or what must not lose its record.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{Backup, BackupPhase, BackupStatus, annotation};
use bowline_plugin::SnapshotId;
use bowline_store::file::{
    BackupVolumeInfo, Method, OperationPhase, Outcome, Snapshot, SnapshotPhase, VolumeOperation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Holdings;
use super::csi::{self, Content};

/// How many of the things that would be left are named.
const NAMED: usize = 5;

/// What is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether the files in the bucket are those of this backup.
    pub files: Files,
    /// The snapshots of plugins to delete, each once.
    pub snapshots: Vec<Doomed>,
    /// The snapshots of CSI drivers to delete, each once.
    pub csi: Vec<Content>,
}

/// Whose files are in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// Those of this backup.
    Own,
    /// Those of another one with its name, which stay.
    OfAnother,
}

/// A snapshot that is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    /// The VolumeSnapshotLocation that it was taken at.
    pub location: String,
    /// What its plugin calls it.
    pub id: SnapshotId,
    /// The PersistentVolume that it is of.
    pub volume: String,
    /// Whether nobody has said that the work on it is over.
    pub is_under_way: bool,
}

/// What is to be deleted of a backup, or all that would be left without a record.
pub fn plan(backup: &Backup, holdings: &Holdings) -> Result<Plan, Vec<String>> {
    let whose = holdings.record.as_ref().map(|record| whose(backup, record));
    if holdings.is_of_another || whose == Some(Files::OfAnother) {
        return Ok(Plan { files: Files::OfAnother, snapshots: Vec::new(), csi: Vec::new() });
    }
    let mut reasons = Vec::new();
    let snapshots = snapshots(holdings, &mut reasons);
    copies_of_files(holdings).tell(&mut reasons);
    moved_data(backup, holdings).tell(&mut reasons);
    let csi = csi_snapshots(backup, holdings, &mut reasons);
    unknown_methods(holdings).tell(&mut reasons);
    if !is_being_deleted(backup, holdings) {
        lost_snapshots(holdings, &snapshots).tell(&mut reasons);
    }
    if reasons.is_empty() { Ok(Plan { files: Files::Own, snapshots, csi }) } else { Err(reasons) }
}

/// Whose files those of a record are.
///
/// A Backup that was taken in from the bucket has another uid than its record, and an annotation says which one
/// that has. If Velero took it in, or an older server, there is none; then everything must agree that a run
/// writes but once. When it began does not suffice: the same Schedule in two clusters begins in the same second.
fn whose(backup: &Backup, record: &Backup) -> Files {
    let uid = record.metadata.uid.as_deref().unwrap_or_default();
    let noted = backup.metadata.annotations.as_ref();
    let noted = noted.and_then(|annotations| annotations.get(annotation::RECORD_UID));
    let is_own = match noted {
        _ if backup.metadata.uid.as_deref() == Some(uid) => true,
        Some(noted) => noted == uid,
        None => has_run_as(backup, record),
    };
    if is_own { Files::Own } else { Files::OfAnother }
}

/// Whether two say the same of their run. Times are compared to the second, since Velero cuts them.
fn has_run_as(backup: &Backup, record: &Backup) -> bool {
    let status = |backup: &Backup| backup.status.clone().unwrap_or_default();
    let (ours, theirs) = (status(backup), status(record));
    let times = |status: &BackupStatus| {
        let second = |time: &Time| time.0.as_second();
        let ended = status.completion_timestamp.as_ref().map(second);
        Some((status.start_timestamp.as_ref().map(second)?, ended))
    };
    // A deletion that was broken off may have written it to one of them.
    let is_going = [&ours, &theirs].iter().any(|one| one.phase == Some(BackupPhase::Deleting));
    times(&ours).is_some()
        && times(&ours) == times(&theirs)
        && (is_going || ours.phase == theirs.phase)
}

/// Whether a deletion has begun before. Then files that name data may be gone, and their data is.
fn is_being_deleted(backup: &Backup, holdings: &Holdings) -> bool {
    let phase = |backup: &Backup| backup.status.as_ref().and_then(|status| status.phase.clone());
    let all = [Some(backup), holdings.record.as_ref()];
    all.into_iter().flatten().any(|one| phase(one) == Some(BackupPhase::Deleting))
}

fn snapshots(holdings: &Holdings, reasons: &mut Vec<String>) -> Vec<Doomed> {
    let mut found: BTreeMap<(&str, &str), Doomed> = BTreeMap::new();
    let mut add = |location, id, volume: &str, is_under_way| {
        // One without an id was never taken.
        let Some(doomed) = SnapshotId::new(id) else { return };
        if str::is_empty(location) {
            reasons.push(format!("the snapshot {id} names no location, so nobody can delete it"));
            return;
        }
        let known = found.entry((location, id)).or_insert_with(|| Doomed {
            location: location.to_owned(),
            id: doomed,
            volume: volume.to_owned(),
            is_under_way: false,
        });
        known.is_under_way |= is_under_way;
    };
    for Snapshot { spec, status, .. } in &holdings.snapshots {
        let is_over =
            matches!(status.phase, Some(SnapshotPhase::Completed | SnapshotPhase::Failed));
        let (id, volume) = (&status.provider_snapshot_id, &spec.persistent_volume_name);
        add(&spec.location, id, volume, !is_over);
    }
    for operation in &holdings.operations {
        let VolumeOperation { location, snapshot_id, volume, status, .. } = operation;
        let is_over = status.phase.as_ref().is_some_and(OperationPhase::is_terminal);
        add(location, snapshot_id, volume, !is_over);
    }
    let unfinished: BTreeSet<&str> = holdings
        .volume_plugin_backups
        .iter()
        .filter_map(|report| report.status.as_ref())
        .filter(|status| !status.phase.as_ref().is_some_and(VolumePluginPhase::is_terminal))
        .map(|status| status.snapshot_id.as_str())
        .collect();
    let mut doomed: Vec<Doomed> = found.into_values().collect();
    for doomed in &mut doomed {
        doomed.is_under_way |= unfinished.contains(doomed.id.as_str());
    }
    doomed
}

/// Things of one kind that would be left, by what they are known by.
struct Left {
    what: &'static str,
    names: BTreeMap<String, String>,
}

impl Left {
    fn new(what: &'static str) -> Self {
        Self { what, names: BTreeMap::new() }
    }

    /// Adds one, under what it is known by if it is known by anything.
    fn add(&mut self, handle: &str, name: String) {
        let key = if handle.is_empty() { name.clone() } else { handle.to_owned() };
        self.names.entry(key).or_insert(name);
    }

    fn tell(&self, reasons: &mut Vec<String>) {
        let Self { what, names } = self;
        if names.is_empty() {
            return;
        }
        let first: Vec<&str> = names.values().take(NAMED).map(String::as_str).collect();
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let first = first.join(", ");
        reasons.push(format!(
            "this version cannot delete {what}, and with the backup their record would be lost: \
             {first}{more}"
        ));
    }
}

fn volumes(holdings: &Holdings) -> impl Iterator<Item = &BackupVolumeInfo> {
    holdings.volumes.iter().flatten().filter(|volume| !volume.skipped)
}

/// What users call a volume.
fn name(volume: &BackupVolumeInfo) -> String {
    let BackupVolumeInfo { pvc_namespace, pvc_name, pv_name, .. } = volume;
    match pvc_name.as_str() {
        "" => pv_name.clone(),
        claim => format!("{pvc_namespace}/{claim}"),
    }
}

/// Whether there is something behind a volume's handle.
pub(super) fn is_there(volume: &BackupVolumeInfo, handle: &str) -> bool {
    !handle.is_empty() || volume.result == Some(Outcome::Succeeded)
}

fn copies_of_files(holdings: &Holdings) -> Left {
    let mut left = Left::new("copies of volumes' files (PodVolumeBackups)");
    for copy in &holdings.pod_volume_backups {
        let handle = copy.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        if !handle.is_empty() {
            left.add(handle, copy.metadata.name.clone().unwrap_or_default());
        }
    }
    for volume in volumes(holdings).filter(|v| v.backup_method == Some(Method::PodVolumeBackup)) {
        let handle = volume.pvb_info.as_ref().map_or("", |info| info.snapshot_handle.as_str());
        if is_there(volume, handle) {
            left.add(handle, name(volume));
        }
    }
    left
}

fn moved_data(backup: &Backup, holdings: &Holdings) -> Left {
    let mut left = Left::new("data of snapshots that was moved into a repository (DataUploads)");
    for upload in &holdings.data_uploads {
        let handle = upload.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        if !handle.is_empty() {
            left.add(handle, upload.metadata.name.clone().unwrap_or_default());
        }
    }
    for volume in volumes(holdings).filter(|volume| volume.snapshot_data_moved) {
        let info = volume.snapshot_data_movement_info.as_ref();
        let handle = info.map_or("", |info| info.snapshot_handle.as_str());
        if is_there(volume, handle) {
            left.add(handle, name(volume));
        }
    }
    let status = backup.status.clone().unwrap_or_default();
    let has_moved =
        backup.spec.snapshot_move_data == Some(true) && status.backup_item_operations_completed > 0;
    // Older than the file that would say so.
    if holdings.volumes.is_none() && has_moved && !is_being_deleted(backup, holdings) {
        left.add("", "it does not say which".to_owned());
    }
    left
}

/// The CSI snapshots to delete. Those that are known too little of speak against it.
fn csi_snapshots(backup: &Backup, holdings: &Holdings, reasons: &mut Vec<String>) -> Vec<Content> {
    let mut left = Left::new("CSI snapshots of which it is not said what their driver calls them");
    let (found, unknown) = csi::contents(holdings, name);
    for volume in unknown {
        left.add("", volume);
    }
    let mut undecided = Left::new("CSI snapshots of which it is not said whether it took them");
    // Where a deletion was broken off, what would say so may be gone, and the snapshots before it.
    if !is_being_deleted(backup, holdings) {
        for content in csi::undecided(holdings, &found) {
            undecided.add("", content);
        }
    }
    undecided.tell(reasons);
    let status = backup.status.clone().unwrap_or_default();
    let is_moved = backup.spec.snapshot_move_data == Some(true);
    let counted = usize::try_from(status.csi_volume_snapshots_completed).unwrap_or_default();
    let missing = counted.saturating_sub(found.len());
    // Older than the file that would name them.
    let is_old = holdings.volumes.is_none() && !is_moved && !is_being_deleted(backup, holdings);
    if is_old && missing > 0 {
        left.add("", format!("{missing} of them"));
    }
    left.tell(reasons);
    found
}

fn unknown_methods(holdings: &Holdings) -> Left {
    let mut left = Left::new("volumes that were saved in ways that it does not know");
    for volume in volumes(holdings) {
        if let Some(Method::Other(method)) = &volume.backup_method {
            left.add("", format!("{} ({method})", name(volume)));
        }
    }
    left
}

/// Snapshots of plugins that no file says how to delete.
fn lost_snapshots(holdings: &Holdings, known: &[Doomed]) -> Left {
    let mut left = Left::new("snapshots of which it is not said where they were taken");
    for volume in volumes(holdings).filter(|v| v.backup_method == Some(Method::NativeSnapshot)) {
        let info = volume.native_snapshot_info.as_ref();
        let handle = info.map_or("", |info| info.snapshot_handle.as_str());
        if !handle.is_empty() && !known.iter().any(|doomed| doomed.id.as_str() == handle) {
            left.add(handle, format!("{} ({handle})", name(volume)));
        }
    }
    left
}

#[cfg(test)]
mod tests;
