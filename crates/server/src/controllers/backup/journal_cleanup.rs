//! Backups that are not resumed, and whose snapshots and operations only the journal knows: their Backups were deleted
//! while no server was running, or the bucket does not have their files.

use std::time::Duration;

use bowline_api::{Backup, annotation};
use bowline_engine::backup::{BackupOutcome, snapshot};
use bowline_engine::journal::{Intent, RecoveredRun, SnapshotIntent};
use bowline_engine::operation::record::RunRef;
use bowline_engine::report::Report;
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::csi;
use super::items::stop_operations;
use super::leftovers::{delete_plugin_snapshots, snapshot_description};
use super::volumes::SnapshotResources;
use crate::server::Context;

/// Names of objects that a backup has created, according to its journal. Changes nothing.
pub(in crate::controllers) fn created_objects(recovered: &RecoveredRun) -> Vec<String> {
    let outcome = outcome_from_journal(recovered, Duration::ZERO);
    let by_csi = outcome.csi_targets().into_iter().map(|target| target.to_string());
    outcome.snapshots.iter().filter_map(snapshot_description).chain(by_csi).collect()
}

/// Cancels the operations in a journal, and deletes nothing. May be repeated.
pub(in crate::controllers) async fn cancel_operations(
    context: &Context,
    backup: &Backup,
    recovered: &RecoveredRun,
) {
    let timeout = context.options.default_item_operation_timeout;
    let mut operations = outcome_from_journal(recovered, timeout).operations;
    let plugins = context.host.run();
    stop_operations(context, &plugins, backup, &mut operations).await;
    plugins.shut_down().await;
}

/// Cancels the operations in a journal, and deletes the snapshots. Returns the names of those that remain. May be
/// repeated.
pub(in crate::controllers) async fn delete_created(
    context: &Context,
    backup: &Backup,
    recovered: &RecoveredRun,
) -> Vec<String> {
    let (name, uid) = (backup.name_any(), backup.uid().unwrap_or_default());
    let mut outcome =
        outcome_from_journal(recovered, context.options.default_item_operation_timeout);
    let plugins = context.host.run();
    stop_operations(context, &plugins, backup, &mut outcome.operations).await;
    plugins.shut_down().await;
    SnapshotResources::new(context, backup).show(&outcome.operations).await;
    context.metrics.remove_run(&uid);
    let by_csi = outcome.csi_targets();
    let report = Report::default();
    let snapshots = delete_plugin_snapshots(context, outcome.snapshots, &report).await;
    let run_ref = RunRef { name: &name, uid: &uid };
    let by_csi = csi::delete_csi_snapshots(context, run_ref, &by_csi, &report).await;
    for message in report.messages().0 {
        tracing::warn!("{}", message.text);
    }
    let by_csi = by_csi.iter().map(ToString::to_string);
    snapshots.iter().filter_map(snapshot_description).chain(by_csi).collect()
}

fn outcome_from_journal(recovered: &RecoveredRun, timeout: Duration) -> BackupOutcome {
    BackupOutcome::not_resumed(String::new(), recovered, timeout, Timestamp::now())
}

/// Deletes a snapshot that was in flight, unless the files of the backup name it: its plugin finds it by its tag. A
/// plugin of version 1 cannot be asked, which is logged.
pub(in crate::controllers) async fn reclaim_one(
    context: &Context,
    backup: &Backup,
    intent: &Intent,
    recorded: &[Snapshot],
) -> Result<(), snapshot::ReclaimError> {
    let labels = backup.metadata.labels.as_ref();
    let name = backup.name_any();
    match snapshot::reclaim(&*context.snapshotters, &name, labels, intent, recorded).await? {
        snapshot::ReclaimOutcome::Recorded => {
            tracing::info!("{} is in the backup and is kept", in_flight_description(intent));
        }
        snapshot::ReclaimOutcome::Deleted => {
            tracing::info!("deleted {}, if it existed", in_flight_description(intent));
        }
        snapshot::ReclaimOutcome::Unsupported => {
            log_unclear(intent, "v1 plugins cannot search for snapshots");
        }
    }
    Ok(())
}

/// Description of a snapshot that was in flight, for an operator who has to look for it.
pub(in crate::controllers) fn in_flight_description(intent: &Intent) -> String {
    let SnapshotIntent { location, request, created, .. } =
        intent.snapshot.clone().unwrap_or_default();
    let snapshot = created.map(|id| format!(" {id}")).unwrap_or_default();
    let volume = &intent.item.name;
    let tag = annotation::REQUEST_ID;
    format!("snapshot{snapshot} of volume {volume} at {location} with the tag {tag}={request}")
}

/// Logs a snapshot whose state cannot be determined.
pub(in crate::controllers) fn log_unclear(intent: &Intent, reason: &str) {
    tracing::error!("{} may be left over: {reason}", in_flight_description(intent));
}

#[cfg(test)]
mod tests {
    use bowline_engine::backup::csi::CsiSnapshotRecord;
    use bowline_engine::journal::{BlockEnded, BlockStarted, CsiIntent, Intent};

    use super::*;

    #[test]
    fn all_journaled_snapshots_are_named() {
        let snapshot = |id: &str| {
            let mut snapshot = Snapshot::default();
            snapshot.spec.persistent_volume_name = "pv-1".to_owned();
            snapshot.spec.location = "east".to_owned();
            id.clone_into(&mut snapshot.status.provider_snapshot_id);
            snapshot
        };
        let text = str::to_owned;
        let by_csi = CsiSnapshotRecord {
            namespace: text("shop"),
            name: text("vs-1"),
            ..CsiSnapshotRecord::default()
        };
        let finished = BlockEnded {
            snapshots: vec![snapshot("snap-1"), snapshot("")],
            csi_snapshots: vec![by_csi],
            ..BlockEnded::default()
        };
        let csi = CsiIntent { namespace: text("shop"), name: text("vs-2"), is_group: false };
        let intent = Intent { csi: Some(csi), ..Intent::default() };
        let recovered = RecoveredRun {
            finished: vec![finished],
            unfinished: vec![BlockStarted { intents: vec![intent], ..BlockStarted::default() }],
            ..RecoveredRun::default()
        };
        assert_eq!(
            created_objects(&recovered),
            [
                "snapshot snap-1 of volume pv-1 at east",
                "the VolumeSnapshot shop/vs-1",
                "the VolumeSnapshot shop/vs-2",
            ]
        );
        assert!(created_objects(&RecoveredRun::default()).is_empty());
    }
}
