//! Snapshots of plugins.

use std::collections::{BTreeMap, BTreeSet};

use bowline_plugin::{Code, SnapshotId};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::time::timeout;

use super::{Deadlines, Doomed, Job, Stopped, note};
use crate::report::Report;
use crate::snapshotter::{self, Snapshotter, Snapshotters};

/// How many snapshots are deleted at a time.
const AT_ONCE: usize = 8;
/// How many snapshots are named that would be left.
const NAMED: usize = 5;

/// The snapshotters that a plan needs, by location.
#[derive(Debug, Default)]
pub struct Opened(BTreeMap<String, Snapshotter>);

/// Opens the snapshotters of all snapshots, or says which of these would be left and why.
pub async fn open(
    snapshotters: &dyn Snapshotters,
    doomed: &[Doomed],
    deadlines: &Deadlines,
) -> Result<Opened, Vec<String>> {
    let locations: BTreeSet<&str> = doomed.iter().map(|doomed| doomed.location.as_str()).collect();
    let (mut opened, mut reasons) = (BTreeMap::new(), Vec::new());
    for location in locations {
        let why_not = match timeout(deadlines.open, snapshotters.open(location)).await {
            Ok(Ok(snapshotter)) => {
                opened.insert(location.to_owned(), snapshotter);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it has not answered within {} s", deadlines.open.as_secs()),
        };
        let of_location = |doomed: &&Doomed| doomed.location == location;
        let ids: Vec<&SnapshotId> =
            doomed.iter().filter(of_location).map(|doomed| &doomed.id).collect();
        reasons.push(format!(
            "error getting volume snapshotter for location {location:?}: {why_not}; its snapshots \
             would be left: {}",
            some(&ids)
        ));
    }
    if reasons.is_empty() { Ok(Opened(opened)) } else { Err(reasons) }
}

/// The first few of many ids, and how many more there are.
fn some(ids: &[&SnapshotId]) -> String {
    let first: Vec<&str> = ids.iter().take(NAMED).map(|id| id.as_str()).collect();
    let first = first.join(", ");
    match ids.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Deletes the snapshots of a backup, several at a time. What fails is told, and does not keep the
/// others.
pub(super) async fn delete(job: &Job<'_>, report: &Report) -> Result<(), Stopped> {
    let deletions = job.plan.snapshots.iter().map(|doomed| delete_one(job, doomed, report).boxed());
    // Collected, since a closure over borrowed values must not live across a wait.
    let deletions: Vec<BoxFuture<'_, Result<(), Stopped>>> = deletions.collect();
    let ended: Vec<_> = stream::iter(deletions).buffer_unordered(AT_ONCE).collect().await;
    ended.into_iter().collect()
}

async fn delete_one(job: &Job<'_>, doomed: &Doomed, report: &Report) -> Result<(), Stopped> {
    if job.stop.is_cancelled() {
        return Err(Stopped);
    }
    let Doomed { location, id, volume, is_under_way } = doomed;
    let Some(snapshotter) = job.snapshotters.0.get(location) else {
        note(report, format!("error deleting snapshot {id}: its location {location} is not open"));
        return Ok(());
    };
    if *is_under_way {
        cancel(snapshotter, id, &job.deadlines).await;
    }
    tracing::info!(snapshot = %id, volume, location, "deleting a snapshot");
    let deleted = tokio::select! {
        deleted = snapshotter::delete(snapshotter, id, job.deadlines.delete) => deleted,
        // It may go on at the plugin's. The next server asks again.
        () = job.stop.cancelled() => return Err(Stopped),
    };
    if let Err(error) = deleted {
        note(report, format!("error deleting snapshot {id}: {error}"));
    }
    Ok(())
}

/// Asks the work on a snapshot to stop. It is deleted all the same if it does not.
async fn cancel(snapshotter: &Snapshotter, id: &SnapshotId, deadlines: &Deadlines) {
    let why_not = match timeout(deadlines.cancel, snapshotter.calls.cancel(id)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) if error.code() == Code::Unimplemented => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", deadlines.cancel.as_secs()),
    };
    tracing::warn!(snapshot = %id, "could not be asked to stop: {why_not}");
}
