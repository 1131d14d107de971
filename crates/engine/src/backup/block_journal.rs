//! Journal entries of blocks: before a block is touched, and when it has ended.
//!
//! A block is recorded if it has pods with hooks, or items for actions that may start operations. Its stored items go
//! to the bucket before its end is recorded, so that a later process takes the block over as it is ([`replay()`]) and
//! repeats nothing of it.

mod replay;
mod stored_block;

use std::sync::atomic::Ordering;

use bowline_plugin::{ResourceIdentifier, SnapshotId};
use bowline_store::file::{BackupOperation, Snapshot};
use parking_lot::Mutex;

use super::archive::{Archive, Entry};
use super::hook::Tally;
use super::item::{self, ItemOrigin, Sink, VisitResults};
use super::snapshot_plan::{SnapshotPlan, UnplannedSnapshot};
use super::volume::SnapshotOutcome;
use super::{Context, csi, snapshot};
use crate::failpoint::{self, Failpoint, FailpointAction};
use crate::item::Object;
use crate::journal::{
    AbandonedOperations, BlockEnded, BlockStarted, Intent, JournalEntry, JournaledMessage, Pod,
};
use crate::operation::{Operation, record};
use crate::report::{Message, Report, ReportSubject};
pub(super) use replay::{operations_of, replay, report_not_resumed};
use stored_block::store_block;

/// Results of a block, until they are written to the journal.
pub(super) struct JournaledBlock {
    block: u64,
    /// Pods that may be frozen during the block.
    pods: Vec<Pod>,
    /// True if the start of the block is in the journal.
    is_in_journal: bool,
    start_intents: IntentsInJournal,
    report: Report,
    tally: Tally,
    /// Pods that may still be frozen when the block has ended.
    pub(super) frozen: Vec<Pod>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    visited: Vec<ResourceIdentifier>,
    operations: Vec<Operation>,
    snapshotted: Vec<(String, SnapshotOutcome)>,
    stored: Vec<(Object, Entry)>,
    /// The snapshots requested from plugins.
    requested: Vec<Intent>,
    /// Those of them that the run gave up on and that may still appear.
    in_flight: Vec<Intent>,
}

/// Proof that intents for snapshots are in the journal. Only the functions of this module that write them make one, so
/// that a snapshot which needs it cannot be requested before.
#[derive(Default)]
pub(super) struct IntentsInJournal(Vec<Intent>);

impl IntentsInJournal {
    fn of(intents: &[Intent]) -> Self {
        let is_of_snapshot = |one: &&Intent| one.snapshot.is_some() || one.csi.is_some();
        Self(intents.iter().filter(is_of_snapshot).cloned().collect())
    }

    /// True if an intent is in the journal.
    pub(super) fn include(&self, intent: &Intent) -> bool {
        self.0.contains(intent)
    }
}

impl JournaledBlock {
    /// Proof of the intents that were written at the start of the block.
    pub(super) fn start_intents(&self) -> &IntentsInJournal {
        &self.start_intents
    }

    pub(super) fn store(&self, object: &Object, entry: Entry) {
        self.inner.lock().stored.push((object.clone(), entry));
    }
}

/// The results wait in the block until its end is in the journal.
impl VisitResults for JournaledBlock {
    fn report(&self) -> &Report {
        &self.report
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn freezes_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    fn record_visited(&self, id: &ResourceIdentifier) {
        self.inner.lock().visited.push(id.clone());
    }

    fn record_snapshot(&self, volume: &str, outcome: SnapshotOutcome) {
        self.inner.lock().snapshotted.push((volume.to_owned(), outcome));
    }

    fn record_in_flight(&self, intent: Intent) {
        self.inner.lock().in_flight.push(intent);
    }

    fn record_operation(&self, operation: Operation) {
        self.inner.lock().operations.push(operation);
    }
}

/// Intents of plugins for items.
pub(super) fn intents<'a>(
    context: &Context,
    objects: impl IntoIterator<Item = &'a Object>,
) -> Vec<Intent> {
    let mut intents = Vec::new();
    for object in objects {
        for action in context.backup_item_actions.iter().filter(|action| action.begins_operations) {
            if action.selects(object) {
                let (plugin, item) = (action.name.to_string(), object.id().into());
                intents.push(Intent { plugin, item, ..Intent::default() });
            }
        }
    }
    intents
}

/// Records that a block is about to be touched. On an error it must not be: without an entry a pod could stay frozen.
/// Where no pod is involved, a backup without an entry is better than none, and the failure is reported.
pub(super) async fn begin_block(
    context: &Context,
    pods: Vec<Pod>,
    intents: Vec<Intent>,
) -> Result<JournaledBlock, crate::journal::Error> {
    let block = context.next_block_number.fetch_add(1, Ordering::Relaxed);
    let (report, tally, frozen) = Default::default();
    let mut is_in_journal = true;
    let mut start_intents = IntentsInJournal::of(&intents);
    let requested = snapshot_intents(&intents);
    if failpoint::should_skip(Failpoint::JournalBlockStart) == FailpointAction::Continue {
        let started = BlockStarted { block, pods: pods.clone(), intents };
        match context.journal.append(&JournalEntry::BlockStarted(started)).await {
            Ok(()) => {}
            Err(error) if !pods.is_empty() => return Err(error),
            Err(error) => {
                (is_in_journal, start_intents) = (false, IntentsInJournal::default());
                if !context.journal_unavailable.swap(true, Ordering::Relaxed) {
                    let text = format!(
                        "{error}; the backup continues; after a restart, plugins may process these \
                         items again"
                    );
                    context.report.warn(ReportSubject::Run, text);
                }
            }
        }
    }
    failpoint::hit(Failpoint::BlockStartJournaled);
    let inner = Mutex::new(Inner { requested, ..Inner::default() });
    Ok(JournaledBlock { block, pods, is_in_journal, start_intents, report, tally, frozen, inner })
}

/// The intents for snapshots.
fn snapshot_intents(intents: &[Intent]) -> Vec<Intent> {
    intents.iter().filter(|intent| intent.snapshot.is_some()).cloned().collect()
}

/// Records more intents of plugins in a block than were known before. The proof names none that could not be written.
pub(super) async fn append_intents(
    context: &Context,
    journaled: &JournaledBlock,
    intents: Vec<Intent>,
) -> IntentsInJournal {
    if intents.is_empty() || !journaled.is_in_journal {
        return IntentsInJournal::default();
    }
    let proof = IntentsInJournal::of(&intents);
    journaled.inner.lock().requested.extend(snapshot_intents(&intents));
    let entry = JournalEntry::MoreIntents { block: journaled.block, intents };
    match context.journal.append(&entry).await {
        Ok(()) => proof,
        Err(error) => {
            tracing::warn!("{error}");
            IntentsInJournal::default()
        }
    }
}

/// Deletes the snapshots of an incomplete block: the next server takes them anew and would not know of these. Those
/// that could not be deleted stay in flight, because they stay in the list.
async fn discard_snapshots(context: &Context, inner: &mut Inner, report: &Report) {
    let (mut plugin_snapshots, mut csi_snapshots) = (Vec::new(), Vec::new());
    for (_, outcome) in inner.snapshotted.drain(..) {
        match outcome {
            SnapshotOutcome::PluginSnapshot(snapshot) => plugin_snapshots.push(*snapshot),
            SnapshotOutcome::CsiSnapshot(record) => csi_snapshots.push(*record),
            SnapshotOutcome::NotAttempted
            | SnapshotOutcome::Unmatched
            | SnapshotOutcome::Unsupported(_) => {}
        }
    }
    csi::discard_block_snapshots(context, &csi_snapshots).await;
    let leftovers = snapshot::discard(context.snapshots.port(), plugin_snapshots, report).await;
    inner.operations.retain(|one| !one.kind.is_of_volume() && !csi::is_csi_operation(one));
    let to_snapshotted = |snapshot: Snapshot| {
        let volume = snapshot.spec.persistent_volume_name.clone();
        (volume, SnapshotOutcome::PluginSnapshot(Box::new(snapshot)))
    };
    inner.snapshotted.extend(leftovers.into_iter().map(to_snapshotted));
}

/// The request for one of these snapshots, with the snapshot's ID. `None` if it is for none of them.
fn answered_intent(intent: &Intent, snapshots: &[Snapshot]) -> Option<Intent> {
    let is_requested = |one: &&Snapshot| one.spec.persistent_volume_name == intent.item.name;
    let snapshot = snapshots.iter().find(is_requested)?;
    let id = SnapshotId::new(&snapshot.status.provider_snapshot_id)?;
    let mut answered = intent.clone();
    answered.snapshot.as_mut()?.created = Some(id.to_string());
    Some(answered)
}

/// Records the outcome of a block, and passes it on.
pub(super) async fn end_block(
    context: &Context,
    journaled: JournaledBlock,
    is_complete: bool,
    archive: &Archive,
) {
    let JournaledBlock { block, pods, is_in_journal, report, tally, frozen, inner, .. } = journaled;
    let mut inner = inner.into_inner();
    if !is_complete && !context.cancel.is_cancelled() {
        discard_snapshots(context, &mut inner, &report).await;
    }
    let Inner { visited, operations, snapshotted, stored, requested, in_flight } = inner;
    let (errors, warnings) = report.messages();
    if !frozen.is_empty() {
        context.may_leave_frozen.store(true, Ordering::Relaxed);
    }
    let stored_block = if is_complete && is_in_journal {
        store_block(context, block, &stored).await
    } else {
        None
    };
    let snapshots: Vec<_> =
        snapshotted.iter().filter_map(|(_, outcome)| plugin_snapshot(outcome)).collect();
    let answered = requested.iter().filter_map(|intent| answered_intent(intent, &snapshots));
    let created: Vec<_> = in_flight.iter().cloned().chain(answered).collect();
    let mut is_end_journaled = false;
    if let Some(stored_block) = stored_block {
        let (hooks_attempted, hooks_failed) = tally.counts();
        let to_journaled = |message: &Message| JournaledMessage::from(message.clone());
        let run = context.request.run_ref();
        let ended = BlockEnded {
            block,
            visited: visited.into_iter().map(Into::into).collect(),
            stored: stored_block,
            backup_operations: operations_on_items(&operations, run),
            volume_operations: operations.iter().filter_map(record::of_volume).collect(),
            snapshots,
            csi_snapshots: snapshotted.iter().filter_map(|(_, one)| csi_snapshot(one)).collect(),
            lacking_volumes: snapshotted.iter().filter_map(unsupported_volume).collect(),
            unmatched_volumes: snapshotted
                .iter()
                .filter(|(_, outcome)| *outcome == SnapshotOutcome::Unmatched)
                .map(|(volume, _)| volume.clone())
                .collect(),
            freeze_windows: tally.windows(),
            in_flight,
            frozen: frozen.clone(),
            errors: errors.iter().map(to_journaled).collect(),
            warnings: warnings.iter().map(to_journaled).collect(),
            hooks_attempted,
            hooks_failed,
            ..BlockEnded::default()
        };
        if failpoint::should_skip(Failpoint::JournalBlockEnd) == FailpointAction::Continue {
            is_end_journaled =
                journal_best_effort(context, &JournalEntry::BlockEnded(Box::new(ended))).await;
        }
        failpoint::hit(Failpoint::BlockEndJournaled);
    }
    // The block is repeated if necessary, but not the post-hooks that have run.
    if is_in_journal && !is_end_journaled {
        journal_thawed(context, block, &pods, &frozen).await;
    }
    // A later attempt repeats the block: it takes its snapshots anew, and calls its actions again. The requests of this
    // attempt are settled, except for those whose snapshots exist or may still appear, and for the operations that were
    // started: only this entry knows of them, also if the run is canceled.
    if is_in_journal && !is_end_journaled {
        let backup_operations = operations_on_items(&operations, context.request.run_ref());
        if !requested.is_empty() || !backup_operations.is_empty() {
            let operations =
                AbandonedOperations { backup_operations, ..AbandonedOperations::default() };
            let entry = JournalEntry::InFlight { block, intents: created, operations };
            journal_best_effort(context, &entry).await;
        }
    }
    context.report.append(errors, warnings);
    context.hook_tally.add_counts(tally.counts());
    context.hook_tally.add_windows(tally.windows());
    for operation in operations {
        context.record_operation(operation);
    }
    for (volume, outcome) in snapshotted {
        context.volumes.record_snapshot(&volume, outcome);
    }
    for (_, entry) in stored {
        if archive.append(entry).await.is_err() {
            context.mark_archive_failed();
        }
    }
}

/// Records of the operations that were started on items. Those on snapshots end with the snapshots.
fn operations_on_items(operations: &[Operation], run: record::RunRef<'_>) -> Vec<BackupOperation> {
    let on_items = operations.iter().filter(|one| !one.kind.is_of_volume());
    on_items.map(|one| record::of_backup(one, run)).collect()
}

/// The snapshot requested from a plugin.
fn plugin_snapshot(outcome: &SnapshotOutcome) -> Option<Snapshot> {
    match outcome {
        SnapshotOutcome::PluginSnapshot(snapshot) => Some((**snapshot).clone()),
        _ => None,
    }
}

/// The snapshot requested from a CSI driver.
fn csi_snapshot(outcome: &SnapshotOutcome) -> Option<csi::CsiSnapshotRecord> {
    match outcome {
        SnapshotOutcome::CsiSnapshot(record) => Some((**record).clone()),
        _ => None,
    }
}

/// A volume for which no snapshot was requested, and the reason.
fn unsupported_volume((volume, outcome): &(String, SnapshotOutcome)) -> Option<(String, String)> {
    match outcome {
        SnapshotOutcome::Unsupported(reason) => Some((volume.clone(), reason.clone())),
        _ => None,
    }
}

/// Writes an entry whose loss would only mean that more is repeated. Returns true if it is in the journal.
async fn journal_best_effort(context: &Context, record: &JournalEntry) -> bool {
    let written = context.journal.append(record).await;
    if let Err(error) = &written {
        tracing::warn!("{error}; if the server restarts now, some work is repeated");
    }
    written.is_ok()
}

/// Records which pods are thawed of a block whose end is not in the journal.
async fn journal_thawed(context: &Context, block: u64, pods: &[Pod], frozen: &[Pod]) {
    if pods.is_empty() {
        return;
    }
    if frozen.is_empty() {
        journal_best_effort(context, &JournalEntry::Thawed { block, errors: Vec::new() }).await;
        return;
    }
    for Pod { uid, .. } in pods {
        let frozen_pod = frozen.iter().find(|frozen_pod| frozen_pod.uid == *uid);
        let ran = frozen_pod.map(|still_frozen| still_frozen.ran.clone()).unwrap_or_default();
        if frozen_pod.is_none() || !ran.is_empty() {
            let (pod, is_thawed, errors) = (uid.clone(), frozen_pod.is_none(), Vec::new());
            journal_best_effort(
                context,
                &JournalEntry::PostHooks { block, pod, ran, is_thawed, errors },
            )
            .await;
        }
    }
}

/// Backs up an item that is a block of its own.
pub(super) async fn back_up_own_block(
    context: &Context,
    object: Object,
    origin: ItemOrigin,
    snapshot: UnplannedSnapshot,
    archive: &Archive,
) {
    let id = object.id();
    let plan = SnapshotPlan::prepare_item(context, &object, snapshot).await;
    let mut all = intents(context, [&object]);
    all.extend(plan.intents());
    match begin_block(context, Vec::new(), all).await {
        Ok(journaled) => {
            let plan = plan.with_proof(journaled.start_intents());
            let sink = Sink::for_block(journaled);
            let backing_up = item::back_up_reserved(context, object, origin, &sink);
            Box::pin(plan.create_around(context, &sink, backing_up)).await;
            if let Some(journaled) = sink.into_block() {
                end_block(context, journaled, !context.is_aborted(), archive).await;
            }
        }
        Err(error) => context.report.error(&id, format!("the item is not backed up: {error}")),
    }
}
