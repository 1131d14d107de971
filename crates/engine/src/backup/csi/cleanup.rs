//! Deletes snapshots that no operation waits for, when all items are in the archive.
//!
//! The operation that a VolumeSnapshot starts when it is stored follows its snapshot. Where an action has excluded
//! the claim or the VolumeSnapshot, or has failed at it, there is no operation, and nothing in the backup refers to
//! the snapshot. The same holds for leftovers of failed snapshots that could not be deleted at once. Both are deleted
//! here, at the driver too, and failures are reported.

use crate::backup::BackupOutcome;
use crate::cluster::Cluster;
use crate::operation::record::RunRef;
use crate::resource::Resources;

use super::retention::{self, DiscardResult, SnapshotApi, Target};
use super::{CsiSnapshotRecord, is_csi_operation};

const NOT_REFERENCED: &str = "no item in the backup references it";
const API_NOT_SERVED: &str = "the cluster no longer serves VolumeSnapshots";

/// Deletes the snapshots of a backup that no operation waits for.
pub(in crate::backup) async fn discard_unreferenced(
    cluster: &dyn Cluster,
    resources: &Resources,
    backup: RunRef<'_>,
    outcome: &mut BackupOutcome,
) {
    let BackupOutcome { csi_snapshots, operations, report, volumes, .. } = outcome;
    let is_referenced = |record: &CsiSnapshotRecord| {
        let mut csi_operations = operations.iter().filter(|one| is_csi_operation(one));
        csi_operations.any(|operation| operation.id.as_str() == record.operation)
    };
    let is_unreferenced =
        |record: &CsiSnapshotRecord| record.failure.is_some() || !is_referenced(record);
    let targets: Vec<Target> = csi_snapshots
        .iter()
        .filter(|one| is_unreferenced(one))
        .filter_map(CsiSnapshotRecord::target)
        .collect();
    if targets.is_empty() {
        return;
    }
    let DiscardResult { undeleted, not_found } = if let Some(api) =
        SnapshotApi::new(cluster, resources, backup)
    {
        retention::discard(&api, &targets).await
    } else {
        let not_served = |target: &Target| (target.clone(), API_NOT_SERVED.to_owned());
        DiscardResult { undeleted: Vec::new(), not_found: targets.iter().map(not_served).collect() }
    };
    let find = |all: &[(Target, String)], target: &Target| {
        let found = all.iter().find(|(one, _)| one == target);
        found.map(|(_, reason)| reason.clone())
    };
    for record in csi_snapshots.iter_mut() {
        let Some(target) = record.target().filter(|target| targets.contains(target)) else {
            continue;
        };
        let id = record.claim_id();
        if record.failure.is_none() {
            let text = format!("snapshot {} is deleted: {NOT_REFERENCED}", record.handle);
            report.warn(&id, text);
            record.failure = Some(NOT_REFERENCED.to_owned());
        }
        match (find(&undeleted, &target), find(&not_found, &target)) {
            (Some(reason), _) => {
                let text = format!("{target} could not be deleted and is left over: {reason}");
                report.error(&id, text);
            }
            // The driver may still have the snapshot, and nothing else refers to it.
            (None, Some(missing)) if !record.handle.is_empty() => {
                let text = format!(
                    "snapshot {} could not be deleted: {missing}; the snapshot may remain in \
                     storage",
                    record.handle
                );
                report.warn(&id, text);
            }
            (None, _) => record.clear_names(),
        }
        let infos = volumes.iter_mut().filter(|info| info.pv_name == record.volume);
        for info in infos.filter(|info| info.csi_snapshot_info.is_some()) {
            *info = record.info(std::mem::take(info));
        }
    }
}
