//! Snapshots that nobody wants any more: of a backup that was cancelled, or of a block that is done
//! again.

use bowline_plugin::{Name, ResourceIdentifier, SnapshotId, VolumeId};
use bowline_store::file::Snapshot;
use futures::StreamExt as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

use super::zone;
use crate::backup::Context;
use crate::journal::{Intent, Record, Recovered, SnapshotIntent};
use crate::point::{self, Point};
use crate::report::Report;
use crate::snapshotter::{self, Snapshotters, volume_id};

/// How many snapshots are deleted at a time.
const AT_ONCE: usize = 8;
/// How long a plugin may take for one.
const LIMIT: Duration = Duration::from_mins(1);

/// Tells of a snapshot that may be there without a record.
pub(super) fn tell(report: &Report, id: &ResourceIdentifier, plugin: &Name, request: &str) {
    let text = format!(
        "a snapshot that {plugin} has taken of it, if it has, may be left over: look for the tag \
         {}={request}",
        bowline_api::annotation::REQUEST_ID
    );
    report.warning(id, text);
}

/// Tells of all snapshots that were asked for when a server ended, of a run that does not go on.
pub(in crate::backup) fn tell_all(report: &Report, recovered: &Recovered) {
    for intent in &recovered.in_flight {
        if let (Some(wanted), Ok(plugin)) = (&intent.snapshot, intent.plugin.parse()) {
            tell(report, &intent.item.clone().into(), &plugin, &wanted.request);
        }
    }
}

/// Deletes snapshots of a backup that is not to be. Those that could not be deleted stay in the list,
/// and are told.
pub async fn discard(
    snapshotters: &dyn Snapshotters,
    snapshots: Vec<Snapshot>,
    report: &Report,
) -> Vec<Snapshot> {
    let each = snapshots.into_iter().map(|snapshot| async move {
        match delete(snapshotters, &snapshot).await {
            Ok(()) => None,
            Err(reason) => {
                let (id, of) = (&snapshot.status.provider_snapshot_id, &snapshot.spec);
                let text = format!("the snapshot {id} could not be deleted, and is kept: {reason}");
                report.error(&volume_id(&of.persistent_volume_name), text);
                Some(snapshot)
            }
        }
    });
    let left: Vec<_> = futures::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
    left.into_iter().flatten().collect()
}

async fn delete(snapshotters: &dyn Snapshotters, snapshot: &Snapshot) -> Result<(), String> {
    // One that was not taken.
    let Some(id) = SnapshotId::new(&snapshot.status.provider_snapshot_id) else { return Ok(()) };
    let opened = snapshotters.open(&snapshot.spec.location).await;
    let snapshotter = opened.map_err(|error| error.to_string())?;
    snapshotter::delete(&snapshotter, &id, LIMIT).await
}

/// What became of a snapshot that was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// It is deleted.
    Deleted,
    /// A backup has it: only the journal did not say so. It is kept.
    Recorded,
    /// Its plugin is of version 1, which cannot be asked for it.
    Unknowable,
}

/// Sees to a snapshot that was asked for when the server ended, so that nobody knows what came of it, and
/// notes that. If nothing can be learnt, that is told, and not noted: a process that is killed takes its warnings
/// with it, and the next one must tell it again.
pub(in crate::backup) async fn reclaim_before(context: &Context, intent: &Intent) {
    let Some(wanted) = &intent.snapshot else { return };
    let id: ResourceIdentifier = intent.item.clone().into();
    let request = &context.request;
    let labels = request.backup.metadata.labels.as_ref();
    let snapshotters = &*context.snapshots.port;
    // The block is done again, and nothing of its first time is in any record.
    let reclaimed = reclaim(snapshotters, request.name.as_str(), labels, intent, &[]).await;
    match &reclaimed {
        Ok(Reclaim::Deleted | Reclaim::Recorded) => {}
        Ok(Reclaim::Unknowable) => tell_intent(&context.report, &id, intent, wanted),
        Err(reason) => {
            tracing::warn!(volume = id.name, "an old snapshot is not cleaned up: {reason}");
            tell_intent(&context.report, &id, intent, wanted);
        }
    }
    if matches!(reclaimed, Ok(Reclaim::Deleted | Reclaim::Recorded)) {
        let record = Record::Reclaimed { request: wanted.request.clone() };
        if let Err(error) = context.journal.append(&record).await {
            tracing::warn!("{error}; if the server ends now, the snapshot is asked for once more");
        }
    }
}

fn tell_intent(report: &Report, id: &ResourceIdentifier, intent: &Intent, wanted: &SnapshotIntent) {
    if let Ok(plugin) = intent.plugin.parse() {
        tell(report, id, &plugin, &wanted.request);
    }
}

/// Deletes a snapshot that may have been taken though nobody has heard of it. A plugin of version 2 finds it
/// by the tag of its request: asked for the same once more it answers with the same, which is deleted, unless it is
/// among those that the files of the backup name: a journal that could not be written lacks what they have.
pub async fn reclaim(
    snapshotters: &dyn Snapshotters,
    backup: &str,
    labels: Option<&BTreeMap<String, String>>,
    intent: &Intent,
    recorded: &[Snapshot],
) -> Result<Reclaim, String> {
    let wanted = intent.snapshot.as_ref().ok_or("it is no snapshot")?;
    let opened = snapshotters.open(&wanted.location).await;
    let snapshotter = opened.map_err(|error| error.to_string())?;
    if !snapshotter.is_v2 {
        return Ok(Reclaim::Unknowable);
    }
    let volume = VolumeId::new(&wanted.volume).ok_or("its volume has no id")?;
    let tags = zone::tags(labels, backup, &intent.item.name, &wanted.request);
    point::pass(Point::Reclaim);
    let asked = timeout(LIMIT, snapshotter.calls.create_snapshot(&volume, &wanted.zone, &tags));
    let asked = asked.await.map_err(|_| "the plugin does not answer".to_owned())?;
    let snapshot = asked.map_err(|error| error.to_string())?;
    if recorded.iter().any(|one| one.status.provider_snapshot_id == snapshot.as_str()) {
        return Ok(Reclaim::Recorded);
    }
    snapshotter::delete(&snapshotter, &snapshot, LIMIT).await?;
    point::pass(Point::SnapshotReclaimed);
    Ok(Reclaim::Deleted)
}
