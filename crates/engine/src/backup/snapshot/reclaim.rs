//! Leftover snapshots: of a backup that was canceled, or of a block that is repeated.

use bowline_plugin::{ResourceIdentifier, SnapshotId, VolumeId};
use bowline_store::file::Snapshot;
use bowline_store::sabotage::{self, Sabotage};
use futures::StreamExt as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

use super::zone;
use crate::backup::Context;
use crate::failpoint::{self, Failpoint};
use crate::journal::{Intent, JournalEntry, RecoveredRun, SnapshotIntent};
use crate::leftover::LEFT_OVER;
use crate::report::Report;
use crate::snapshotter::{self, DeleteError, OpenError, Snapshotter, Snapshotters, volume_id};

/// Number of snapshots deleted concurrently.
const MAX_CONCURRENT_DELETIONS: usize = 8;
/// Time a plugin may take for one snapshot.
const PLUGIN_TIMEOUT: Duration = Duration::from_mins(1);

/// The attempt at the backup that requested a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    /// This one.
    ThisAttempt,
    /// One that ended with its server.
    EarlierAttempt,
}

/// Warns about a snapshot that may exist without a record.
pub(super) fn warn_leftover(report: &Report, intent: &Intent, origin: RequestOrigin) {
    let Intent { plugin, item, snapshot: Some(snapshot_intent), .. } = intent else { return };
    let (tag, request) = (bowline_api::annotation::REQUEST_ID, &snapshot_intent.request);
    let text = match (&snapshot_intent.created, origin) {
        (Some(snapshot), RequestOrigin::EarlierAttempt) => format!(
            "snapshot {snapshot}, which {plugin} created in an earlier attempt, may be \
             {LEFT_OVER}; its tag is {tag}={request}"
        ),
        (None, RequestOrigin::EarlierAttempt) => format!(
            "a snapshot of {plugin} from an earlier attempt may be {LEFT_OVER}; if it exists, \
             its tag is {tag}={request}"
        ),
        (Some(snapshot), RequestOrigin::ThisAttempt) => {
            format!(
                "snapshot {snapshot} of {plugin} may be {LEFT_OVER}; its tag is {tag}={request}"
            )
        }
        (None, RequestOrigin::ThisAttempt) => format!(
            "a snapshot of {plugin} may be {LEFT_OVER}; if it exists, its tag is {tag}={request}"
        ),
    };
    report.warn(&ResourceIdentifier::from(item.clone()), text);
}

/// Warns about all snapshots that were requested when a server ended, of a run that is not resumed.
pub(in crate::backup) fn warn_all_leftovers(report: &Report, recovered: &RecoveredRun) {
    for intent in &recovered.in_flight {
        warn_leftover(report, intent, RequestOrigin::EarlierAttempt);
    }
}

/// Deletes the snapshots of a backup that is discarded. Those that could not be deleted stay in the list and are
/// reported.
pub async fn discard(
    snapshotters: &dyn Snapshotters,
    snapshots: Vec<Snapshot>,
    report: &Report,
) -> Vec<Snapshot> {
    let each = snapshots.into_iter().map(|snapshot| async move {
        match delete(snapshotters, &snapshot).await {
            Ok(()) => None,
            Err(error) => {
                let (id, spec) = (&snapshot.status.provider_snapshot_id, &snapshot.spec);
                let text = format!("snapshot {id} could not be deleted and is kept: {error}");
                report.error(&volume_id(&spec.persistent_volume_name), text);
                Some(snapshot)
            }
        }
    });
    let undeleted: Vec<_> =
        futures::stream::iter(each).buffer_unordered(MAX_CONCURRENT_DELETIONS).collect().await;
    undeleted.into_iter().flatten().collect()
}

async fn delete(snapshotters: &dyn Snapshotters, snapshot: &Snapshot) -> Result<(), DiscardError> {
    // This snapshot was not taken.
    let Some(id) = SnapshotId::new(&snapshot.status.provider_snapshot_id) else { return Ok(()) };
    let snapshotter = snapshotters.open(&snapshot.spec.location).await?;
    Ok(snapshotter::delete(&snapshotter, &id, PLUGIN_TIMEOUT).await?)
}

/// Failure to delete the snapshot of a backup that is discarded.
#[derive(Debug, thiserror::Error)]
enum DiscardError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Delete(#[from] DeleteError),
}

/// Outcome for a snapshot that was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimOutcome {
    /// The snapshot is deleted.
    Deleted,
    /// A backup has the snapshot: only the journal did not say so. The snapshot is kept.
    Recorded,
    /// The ID is unknown, and the plugin is of version 1, which cannot be asked for it.
    Unsupported,
}

/// Failure to reclaim a snapshot that was in flight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReclaimError {
    /// The request was not for a snapshot.
    #[error("the journal entry is not about a snapshot")]
    NoSnapshot,
    /// The request has no volume.
    #[error("the volume has no id")]
    NoVolume,
    /// The snapshotter could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The plugin has not answered in time.
    #[error("the plugin does not answer")]
    NoAnswer,
    /// The plugin returned an error when it was asked for the snapshot.
    #[error(transparent)]
    Plugin(#[from] bowline_plugin::Error),
    /// The snapshot was found, and could not be deleted.
    #[error(transparent)]
    Delete(#[from] DeleteError),
}

/// Reclaims a snapshot that was requested when the server ended and whose outcome is unknown, and writes the result
/// to the journal. If nothing can be determined, this is reported but not written: a process that is killed loses its
/// warnings, and the next one must report it again.
pub(in crate::backup) async fn reclaim_before_repeat(context: &Context, intent: &Intent) {
    let Some(snapshot_intent) = &intent.snapshot else { return };
    let request = &context.request;
    let labels = request.backup.metadata.labels.as_ref();
    let snapshotters = &*context.snapshots.port;
    // The block is repeated, and no record contains anything from its first attempt.
    let reclaimed = reclaim(snapshotters, request.name.as_str(), labels, intent, &[]).await;
    match &reclaimed {
        Ok(ReclaimOutcome::Deleted | ReclaimOutcome::Recorded) => {}
        Ok(ReclaimOutcome::Unsupported) => {
            warn_leftover(&context.report, intent, RequestOrigin::EarlierAttempt);
        }
        Err(error) => {
            let volume = &intent.item.name;
            tracing::warn!(volume, "cannot delete a snapshot of an earlier attempt: {error}");
            warn_leftover(&context.report, intent, RequestOrigin::EarlierAttempt);
        }
    }
    if matches!(reclaimed, Ok(ReclaimOutcome::Deleted | ReclaimOutcome::Recorded)) {
        let record = JournalEntry::Reclaimed { request: snapshot_intent.request.clone() };
        if let Err(error) = context.journal.append(&record).await {
            tracing::warn!("{error}; the next server searches for the snapshot again");
        }
    }
}

/// Deletes a snapshot that was created in an earlier attempt, or may have been without a known answer. A plugin of
/// version 2 finds the latter by the tag of its request: it answers a repeated request with the same snapshot. The
/// snapshot is deleted, unless the files of the backup name it: a journal that could not be written lacks entries that
/// the files have.
pub async fn reclaim(
    snapshotters: &dyn Snapshotters,
    backup: &str,
    labels: Option<&BTreeMap<String, String>>,
    intent: &Intent,
    recorded: &[Snapshot],
) -> Result<ReclaimOutcome, ReclaimError> {
    let snapshot_intent = intent.snapshot.as_ref().ok_or(ReclaimError::NoSnapshot)?;
    if sabotage::is_active(Sabotage::ReclaimSkipped) {
        return Ok(ReclaimOutcome::Deleted);
    }
    let snapshotter = snapshotters.open(&snapshot_intent.location).await?;
    let created = snapshot_intent.created.as_ref().and_then(SnapshotId::new);
    let snapshot = match created {
        Some(snapshot) => snapshot,
        None if !snapshotter.is_v2 => return Ok(ReclaimOutcome::Unsupported),
        None => find_snapshot(&snapshotter, backup, labels, intent, snapshot_intent).await?,
    };
    if recorded.iter().any(|one| one.status.provider_snapshot_id == snapshot.as_str()) {
        return Ok(ReclaimOutcome::Recorded);
    }
    snapshotter::delete(&snapshotter, &snapshot, PLUGIN_TIMEOUT).await?;
    failpoint::hit(Failpoint::SnapshotReclaimed);
    Ok(ReclaimOutcome::Deleted)
}

/// Asks a plugin of version 2 for the snapshot of a request.
async fn find_snapshot(
    snapshotter: &Snapshotter,
    backup: &str,
    labels: Option<&BTreeMap<String, String>>,
    intent: &Intent,
    snapshot_intent: &SnapshotIntent,
) -> Result<SnapshotId, ReclaimError> {
    let volume = VolumeId::new(&snapshot_intent.volume).ok_or(ReclaimError::NoVolume)?;
    let tags = zone::tags(labels, backup, &intent.item.name, &snapshot_intent.request);
    failpoint::hit(Failpoint::Reclaim);
    let answer = timeout(
        PLUGIN_TIMEOUT,
        snapshotter.calls.create_snapshot(&volume, &snapshot_intent.zone, &tags),
    );
    Ok(answer.await.map_err(|_| ReclaimError::NoAnswer)??)
}
