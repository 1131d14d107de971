//! Replay of blocks that an earlier process has finished, and reports of those that it has not.

use std::time::Duration;

use bowline_plugin::ResourceIdentifier;
use jiff::Timestamp;

use super::stored_block::load_block;
use crate::backup::archive::{Archive, Entry};
use crate::backup::volume::SnapshotOutcome;
use crate::backup::{Context, Recovery, csi, item, snapshot};
use crate::journal::{BlockEnded, Intent, JournaledMessage, RecoveredRun};
use crate::operation::{Operation, record};
use crate::report::{Message, Report, ReportSubject};

/// Takes over the blocks that an earlier process has finished, and reports those that it has not.
pub(in crate::backup) async fn replay(context: &Context, recovery: &Recovery, archive: &Archive) {
    let recovered = &recovery.recovered;
    let thaw_errors = recovered.thaw_errors.iter().cloned().map(Message::from);
    context.report.append(thaw_errors, []);
    for ended in &recovered.finished {
        // The next process takes them over. A canceled run must know the operations it has started.
        if context.stop.is_cancelled() && !context.is_aborted() {
            return;
        }
        replay_block(context, ended, archive).await;
    }
    for intent in &recovered.in_flight {
        snapshot::reclaim_before_repeat(context, intent).await;
    }
    for begun in &recovered.unfinished {
        for intent in &begun.intents {
            if intent.snapshot.is_some() {
                continue;
            }
            if intent.csi.is_some() {
                csi::reclaim(context, intent).await;
            } else {
                warn_unfinished(&context.report, intent, "and the plugin is called again");
            }
        }
    }
}

/// Warns about an item that a plugin was processing when the server ended, and the consequence.
fn warn_unfinished(report: &Report, intent: &Intent, consequence: &str) {
    let Intent { plugin, item, .. } = intent;
    let id: ResourceIdentifier = item.clone().into();
    let text = format!(
        "the server stopped while plugin {plugin} processed this item, {consequence}; results of \
         the first call may be left over"
    );
    report.warn(&id, text);
}

/// Reports what is known of a run that is not resumed: the messages of its blocks, and the work that plugins may have
/// started in unfinished ones.
pub(in crate::backup) fn report_not_resumed(report: &Report, recovered: &RecoveredRun) {
    let message = |journaled: &JournaledMessage| Message::from(journaled.clone());
    for ended in &recovered.finished {
        report.append(ended.errors.iter().map(message), ended.warnings.iter().map(message));
    }
    let intents = recovered.unfinished.iter().flat_map(|started| &started.intents);
    let is_of_item = |intent: &&Intent| intent.snapshot.is_none() && intent.csi.is_none();
    for intent in intents.filter(is_of_item) {
        warn_unfinished(report, intent, "and the backup is not resumed");
    }
    snapshot::warn_all_leftovers(report, recovered);
}

async fn replay_block(context: &Context, ended: &BlockEnded, archive: &Archive) {
    let message = |journaled: &JournaledMessage| Message::from(journaled.clone());
    context.report.append(ended.errors.iter().map(message), ended.warnings.iter().map(message));
    context.hook_tally.add_counts((ended.hooks_attempted, ended.hooks_failed));
    context.hook_tally.add_windows(ended.freeze_windows.clone());
    for snapshot in &ended.snapshots {
        let outcome = SnapshotOutcome::PluginSnapshot(Box::new(snapshot.clone()));
        context.record_replayed_volume(&snapshot.spec.persistent_volume_name, outcome);
    }
    for record in &ended.csi_snapshots {
        context.csi.mark_handled(&record.namespace, &record.claim);
        context.record_replayed_volume(
            &record.volume,
            SnapshotOutcome::CsiSnapshot(Box::new(record.clone())),
        );
    }
    if !ended.csi_snapshots.is_empty() {
        csi::load_classes(context).await;
    }
    for (volume, reason) in &ended.lacking_volumes {
        context.record_replayed_volume(volume, SnapshotOutcome::Unsupported(reason.clone()));
    }
    for volume in &ended.unmatched_volumes {
        context.record_replayed_volume(volume, SnapshotOutcome::Unmatched);
    }
    for id in &ended.visited {
        context.visited.mark_visited(&id.clone().into());
    }
    let timeout = context.request.item_operation_timeout();
    for operation in operations_of(ended, timeout, context.started) {
        match operation {
            Ok(operation) => context.record_operation(operation),
            Err(error) => context.report.error(ReportSubject::Run, error.to_string()),
        }
    }
    if context.is_aborted() {
        return;
    }
    match load_block(context, ended).await {
        Ok(objects) => {
            for object in objects {
                item::record_found(context, &object);
                context.inventory.add(&object);
                context.progress.count_done();
                if archive.append(Entry::new(&object, None)).await.is_err() {
                    context.mark_archive_failed();
                }
            }
        }
        Err(error) => {
            let text = format!(
                "items that an earlier attempt had saved are lost and not in the backup: {error}"
            );
            context.report.error(ReportSubject::Run, text);
        }
    }
}

/// The operations started in a block.
pub(in crate::backup) fn operations_of(
    ended: &BlockEnded,
    timeout: Duration,
    started_at: Timestamp,
) -> impl Iterator<Item = Result<Operation, record::InvalidRecord>> {
    let of_items = ended.backup_operations.iter().cloned();
    let of_volumes = ended.volume_operations.iter().cloned();
    let of_items = of_items.map(move |one| record::from_backup(one, timeout, started_at));
    of_items.chain(of_volumes.map(move |one| record::from_volume(one, timeout, started_at)))
}
