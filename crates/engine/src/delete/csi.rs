//! Deletion of CSI snapshots.
//!
//! Only the controllers of a driver can delete its snapshots, and they do so when a VolumeSnapshotContent is deleted.
//! The content from the backup is rarely still in the cluster, so a new one is created for the purpose. The members
//! of a group are deleted together, through a VolumeGroupSnapshotContent: drivers refuse to delete a single member.
//!
//! 1. Leftovers of the content and the VolumeSnapshot from the backup are deleted, and the snapshot is retained; those
//!    of a group before its members, which the controller does not release earlier.
//! 2. A static content with the handle of the snapshot is created. Its name is derived from the handle, so that a
//!    server that resumes the deletion finds it. The content has the finalizer of the controllers from the start, so
//!    that it cannot be removed before they have done their work.
//! 3. Its status must contain the handle: otherwise the controllers would release the content and retain the snapshot.
//!    They write the status themselves, from the driver's answer; if that is an error, Bowline does.
//! 4. The content is deleted with the policy `Delete`, and the server waits until it is really gone. The snapshotter
//!    removes the handle from the status when the driver has deleted the snapshot. A content that disappeared in any
//!    other way proves nothing, and the whole procedure is repeated, up to a few times.
//!
//! Velero creates a content under a random name, waits two seconds, and assumes success.
//!
//! Objects that a restore created from the same snapshot stay, as in Velero: they do not belong to this backup.

mod content_watch;
mod deletion;
mod deletion_unit;
mod error;
mod plan;
mod secrets;

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_plugin::error_chain;
use futures::FutureExt as _;

use super::objection::{Objection, Objections, RemainingData};
use super::{DeletionJob, Stopped, report_error, run_deletions};
use crate::cluster::{self, Cluster, drivers};
use crate::csi::{CONTENTS, GROUP_CONTENTS, GROUPS, SNAPSHOTS, group_resource, resource};
use crate::report::Report;
use crate::resource::{Resource, Resources};
use deletion::Deletion;
use deletion_unit::{ContentKind, DeletionUnit, units};
pub use plan::DeletableCsiSnapshot;
pub(super) use plan::{
    are_bound, held_csi_snapshots, is_created_by, may_hold_csi_snapshots, parse_content,
    snapshot_of, undecided_contents,
};
use secrets::SecretClasses;

/// Maximum number of concurrent deletions.
const MAX_CONCURRENT_DELETIONS: usize = 16;

/// Resources that the cluster must serve.
struct CsiResources {
    contents: Arc<Resource>,
    group_contents: Option<Arc<Resource>>,
    groups: Option<Arc<Resource>>,
    snapshots: Option<Arc<Resource>>,
    events: Option<Arc<Resource>>,
}

async fn discover(cluster: &dyn Cluster) -> cluster::Result<Resources> {
    let served = crate::csi::discover(cluster).await?.resources.into_iter();
    Ok(Resources::new(served.filter(|served| !served.id.resource.contains('/'))))
}

impl CsiResources {
    fn of(resources: &Resources) -> Option<Self> {
        Some(Self {
            contents: Arc::clone(resources.find(&resource(CONTENTS))?),
            group_contents: resources.find(&group_resource(GROUP_CONTENTS)).cloned(),
            groups: resources.find(&group_resource(GROUPS)).cloned(),
            snapshots: resources.find(&resource(SNAPSHOTS)).cloned(),
            events: resources.core("events").cloned(),
        })
    }

    fn content_resource(&self, content_kind: ContentKind) -> Option<&Arc<Resource>> {
        match content_kind {
            ContentKind::Snapshot => Some(&self.contents),
            ContentKind::Group => self.group_contents.as_ref(),
        }
    }
}

/// Checks that the cluster can delete CSI snapshots, or returns all that would remain, and why. Sets in each snapshot
/// the Secret of this cluster that its deletion uses.
pub async fn check_csi_ready(
    cluster: &dyn Cluster,
    snapshots: &mut [DeletableCsiSnapshot],
) -> Result<(), Objections> {
    if snapshots.is_empty() {
        return Ok(());
    }
    let lookup = async {
        let resources = discover(cluster).await?;
        let drivers = drivers::installed(cluster, &resources).await?;
        let classes = SecretClasses::read(cluster, &resources).await?;
        Ok::<_, cluster::Error>((CsiResources::of(&resources), drivers, classes))
    };
    let (kinds, drivers, classes) =
        lookup.await.map_err(|error| Objections(vec![Objection::CsiUnknown(error)]))?;
    let Some(kinds) = kinds else {
        return Err(Objections(vec![Objection::NoContents(handles(snapshots, |_| true))]));
    };
    let needed_drivers: BTreeSet<&str> =
        snapshots.iter().map(|content| content.driver.as_str()).collect();
    let missing = needed_drivers.into_iter().filter(|driver| !drivers.contains(*driver));
    let mut objections: Vec<Objection> = missing
        .map(|driver| Objection::NoDriver {
            driver: driver.to_owned(),
            snapshots: handles(snapshots, |one| one.driver == driver),
        })
        .collect();
    let is_member = |one: &DeletableCsiSnapshot| !one.group.is_empty();
    if snapshots.iter().any(is_member) && kinds.group_contents.is_none() {
        objections.push(Objection::NoGroupContents(handles(snapshots, is_member)));
    }
    objections.extend(classes.resolve_secrets(snapshots));
    if objections.is_empty() { Ok(()) } else { Err(Objections(objections)) }
}

/// The handles of some of the snapshots.
fn handles(
    snapshots: &[DeletableCsiSnapshot],
    is_remaining: impl Fn(&DeletableCsiSnapshot) -> bool,
) -> RemainingData {
    let remaining = snapshots.iter().filter(|one| is_remaining(one));
    RemainingData::new(remaining.map(|one| one.handle.as_str()))
}

/// Deletes the CSI snapshots of a backup concurrently. A failure is reported and does not prevent the other
/// deletions.
pub(super) async fn delete(job: &DeletionJob<'_>, report: &Report) -> Result<(), Stopped> {
    if job.plan.csi.is_empty() {
        return Ok(());
    }
    let kinds = match discover(job.cluster).await {
        Ok(resources) => CsiResources::of(&resources),
        Err(error) => {
            report_error(report, format!("error deleting CSI snapshots: {}", error_chain(&error)));
            return Ok(());
        }
    };
    let Some(kinds) = kinds else {
        report_error(
            report,
            "error deleting CSI snapshots: the cluster does not serve their contents".to_owned(),
        );
        return Ok(());
    };
    let units = units(&job.plan.csi);
    let deletions = units.iter().map(|unit| delete_one(job, &kinds, unit, report).boxed());
    // Collected, since a closure over borrowed values must not live across an await point.
    run_deletions(deletions.collect(), MAX_CONCURRENT_DELETIONS).await
}

async fn delete_one(
    job: &DeletionJob<'_>,
    kinds: &CsiResources,
    unit: &DeletionUnit<'_>,
    report: &Report,
) -> Result<(), Stopped> {
    if job.stop.is_cancelled() {
        return Err(Stopped);
    }
    let description = unit.description();
    tracing::info!(driver = unit.driver, "deleting {description}");
    let deletion = Deletion { job, kinds, unit };
    let deleted = tokio::select! {
        deleted = deletion.run() => deleted,
        // The controllers continue. The next server finds their progress.
        () = job.stop.cancelled() => return Err(Stopped),
    };
    if let Err(error) = deleted {
        report_error(report, format!("error deleting {description}: {}", error.text()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
