//! Deletion of plugin snapshots.

use std::collections::{BTreeMap, BTreeSet};

use bowline_plugin::{Code, SnapshotId};
use futures::FutureExt as _;
use tokio::time::timeout;

use super::objection::{Objection, Objections, OpenFailure, RemainingData};
use super::{Deadlines, DeletableSnapshot, DeletionJob, Stopped, report_error, run_deletions};
use crate::report::Report;
use crate::snapshotter::{self, Snapshotter, Snapshotters};

/// Maximum number of concurrent deletions.
const MAX_CONCURRENT_DELETIONS: usize = 8;

/// The snapshotters that a plan needs, by location.
#[derive(Debug, Default)]
pub struct OpenSnapshotters(BTreeMap<String, Snapshotter>);

/// Opens the snapshotters of all snapshots, or returns which snapshots would remain and why.
pub async fn open_snapshotters(
    snapshotters: &dyn Snapshotters,
    snapshots: &[DeletableSnapshot],
    deadlines: &Deadlines,
) -> Result<OpenSnapshotters, Objections> {
    let locations: BTreeSet<&str> =
        snapshots.iter().map(|snapshot| snapshot.location.as_str()).collect();
    let (mut opened, mut objections) = (BTreeMap::new(), Vec::new());
    for location in locations {
        let reason = match timeout(deadlines.open, snapshotters.open(location)).await {
            Ok(Ok(snapshotter)) => {
                opened.insert(location.to_owned(), snapshotter);
                continue;
            }
            Ok(Err(error)) => OpenFailure::Open(error),
            Err(_) => OpenFailure::Timeout(deadlines.open),
        };
        let of_location = |snapshot: &&DeletableSnapshot| snapshot.location == location;
        let ids = snapshots.iter().filter(of_location).map(|snapshot| snapshot.id.as_str());
        objections.push(Objection::Snapshotter {
            location: location.to_owned(),
            reason,
            snapshots: RemainingData::new(ids),
        });
    }
    if objections.is_empty() { Ok(OpenSnapshotters(opened)) } else { Err(Objections(objections)) }
}

/// Deletes the snapshots of a backup concurrently. A failure is reported and does not prevent the other
/// deletions.
pub(super) async fn delete(job: &DeletionJob<'_>, report: &Report) -> Result<(), Stopped> {
    let deletions =
        job.plan.snapshots.iter().map(|snapshot| delete_one(job, snapshot, report).boxed());
    // Collected, since a closure over borrowed values must not live across an await point.
    run_deletions(deletions.collect(), MAX_CONCURRENT_DELETIONS).await
}

async fn delete_one(
    job: &DeletionJob<'_>,
    snapshot: &DeletableSnapshot,
    report: &Report,
) -> Result<(), Stopped> {
    if job.stop.is_cancelled() {
        return Err(Stopped);
    }
    let DeletableSnapshot { location, id, volume, is_in_progress } = snapshot;
    let Some(snapshotter) = job.snapshotters.0.get(location) else {
        report_error(
            report,
            format!("error deleting snapshot {id}: its location {location} is not open"),
        );
        return Ok(());
    };
    if *is_in_progress {
        cancel(snapshotter, id, &job.deadlines).await;
    }
    tracing::info!(snapshot = %id, volume, location, "deleting a snapshot");
    let deleted = tokio::select! {
        deleted = snapshotter::delete(snapshotter, id, job.deadlines.delete) => deleted,
        // The plugin may continue. The next server repeats the call.
        () = job.stop.cancelled() => return Err(Stopped),
    };
    if let Err(error) = deleted {
        report_error(report, format!("error deleting snapshot {id}: {error}"));
    }
    Ok(())
}

/// Cancels the work on a snapshot. The snapshot is deleted even if that fails.
async fn cancel(snapshotter: &Snapshotter, id: &SnapshotId, deadlines: &Deadlines) {
    let reason = match timeout(deadlines.cancel, snapshotter.calls.cancel(id)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) if error.code() == Code::Unimplemented => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", deadlines.cancel.as_secs()),
    };
    tracing::warn!(snapshot = %id, "cancellation failed: {reason}");
}
