//! Results of the operations on snapshots, in the files of the backup.

use bowline_api::snapshot_type::SnapshotType;
use bowline_store::file::{BackupVolumeInfo, Outcome, Snapshot, SnapshotPhase};

use crate::operation::{Completion, Kind, Operation, State};
use crate::report::Report;

/// Updates the records of volumes when all operations on them have ended: a snapshot that was not completed, or not
/// uploaded as requested, has failed.
pub fn apply_operation_results(
    operations: &[Operation],
    snapshots: &mut [Snapshot],
    infos: &mut [BackupVolumeInfo],
) {
    let has_failed = |volume: &str| {
        let mut of_volume = operations.iter().filter(|one| one.kind.is_of_volume());
        of_volume.any(|one| one.item.name == volume && one.state != State::Completed)
    };
    for snapshot in snapshots {
        if has_failed(&snapshot.spec.persistent_volume_name) {
            snapshot.status.phase = Some(SnapshotPhase::Failed);
        }
    }
    for info in infos.iter_mut().filter(|info| has_failed(&info.pv_name)) {
        info.result = Some(Outcome::Failed);
        if let Some(native) = &mut info.native_snapshot_info {
            "Failed".clone_into(&mut native.phase);
        }
    }
}

/// Removes the IDs of deleted snapshots from the records of volumes; `undeleted` are the snapshots that still exist.
pub fn clear_discarded_ids(undeleted: &[Snapshot], infos: &mut [BackupVolumeInfo]) {
    for info in infos {
        let is_undeleted =
            undeleted.iter().any(|one| one.spec.persistent_volume_name == info.pv_name);
        if let Some(native) = info.native_snapshot_info.as_mut().filter(|_| !is_undeleted) {
            native.snapshot_handle.clear();
        }
    }
}

/// Reports warnings about operations on volumes, besides their failures.
pub fn warn_not_uploaded(operations: &[Operation], report: &Report) {
    for operation in operations.iter().filter(|one| one.kind == Kind::SnapshotUpload) {
        let snapshot_type = operation.volume.as_ref().map(|volume| volume.snapshot_type);
        if snapshot_type == Some(SnapshotType::Cloud)
            && operation.completion == Completion::NothingToUpload
        {
            let Operation { id, plugin, item, .. } = operation;
            let text =
                format!("snapshot {id} is not uploaded: plugin {plugin} has no upload stage");
            report.warn(item, text);
        }
    }
}
