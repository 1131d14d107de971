//! Snapshots that nobody waits for, when all items are in the archive.
//!
//! A snapshot is followed by the operation that its VolumeSnapshot began when that was stored. Where an
//! action has left out the claim or the VolumeSnapshot, or has failed at it, there is none, and nothing in
//! the backup leads to the snapshot. The same holds for what a claim left whose snapshot failed, if it
//! could not be taken away at once. Both are deleted here, at the driver too, and what cannot be is told.

use crate::backup::Taken;
use crate::cluster::Cluster;
use crate::operation::record::Of;
use crate::resource::Resources;

use super::leave::{self, Discarded, Reach, Target};
use super::{Record, is_of_csi};

const UNFOLLOWED: &str = "nothing in the backup leads to it";
const UNSERVED: &str = "the cluster does not serve VolumeSnapshots any more";

/// Takes away the snapshots of a backup that nobody waits for.
pub(in crate::backup) async fn clear_up(
    cluster: &dyn Cluster,
    resources: &Resources,
    backup: Of<'_>,
    taken: &mut Taken,
) {
    let Taken { csi_snapshots, operations, report, volumes, .. } = taken;
    let is_followed = |record: &Record| {
        let mut own = operations.iter().filter(|one| is_of_csi(one));
        own.any(|operation| operation.id.as_str() == record.operation)
    };
    let is_left = |record: &Record| record.failure.is_some() || !is_followed(record);
    let targets: Vec<Target> =
        csi_snapshots.iter().filter(|one| is_left(one)).filter_map(Record::target).collect();
    if targets.is_empty() {
        return;
    }
    let Discarded { left, unseen } = if let Some(reach) = Reach::new(cluster, resources, backup) {
        leave::discard(&reach, &targets).await
    } else {
        let unserved = |target: &Target| (target.clone(), UNSERVED.to_owned());
        Discarded { left: Vec::new(), unseen: targets.iter().map(unserved).collect() }
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
            let text = format!("its snapshot {} is not kept: {UNFOLLOWED}", record.handle);
            report.warning(&id, text);
            record.failure = Some(UNFOLLOWED.to_owned());
        }
        match (find(&left, &target), find(&unseen, &target)) {
            (Some(reason), _) => {
                let text = format!("{target} could not be deleted, and is left over: {reason}");
                report.error(&id, text);
            }
            // The driver may have it all the same, and nothing else leads to it.
            (None, Some(missing)) if !record.handle.is_empty() => {
                let text = format!(
                    "there was nothing by which its snapshot {} could be deleted: {missing}; if the \
                     driver still has it, that is left over",
                    record.handle
                );
                report.warning(&id, text);
            }
            (None, _) => record.forget(),
        }
        let infos = volumes.iter_mut().filter(|info| info.pv_name == record.volume);
        for info in infos.filter(|info| info.csi_snapshot_info.is_some()) {
            *info = record.info(std::mem::take(info));
        }
    }
}
