//! Notes what must not be forgotten: before a block is touched, and when all of it is over.
//!
//! A block is noted if it has pods with hooks, or items that are shown to actions that may begin
//! operations. What is stored of it goes to the bucket before its end is noted, so that a later
//! process takes the block over as it is ([`replay`]) and nothing of it is done twice.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::Snapshot;
use bytes::Bytes;
use futures::future::join;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::archive::{Archive, Entry};
use super::hook::Tally;
use super::item::{self, How, Sink};
use super::volume::Snapshotted;
use super::{Context, Recovery, csi, snapshot};
use crate::item::Object;
use crate::journal::{Begun, Ended, Intent, Kept, Pod, Record, Recovered, Told, digest};
use crate::operation::{Operation, record};
use crate::point::{self, Point, Verdict};
use crate::report::{About, Message, Report};
use crate::resource::GroupResource;

/// How large what is kept of a block may be. A larger one is not kept, and done again if need be.
const LARGEST: u64 = 256 << 20;

/// The pause before the bucket is asked again for what was kept; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What comes of a block, until it is noted.
pub(super) struct Noted {
    block: u64,
    /// Pods that may be frozen while it goes on.
    pods: Vec<Pod>,
    /// Whether its beginning is in the journal.
    pub(super) is_in_journal: bool,
    pub(super) report: Report,
    pub(super) tally: Tally,
    /// Pods that may be frozen still when the block is over.
    pub(super) frozen: Vec<Pod>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    visited: Vec<ResourceIdentifier>,
    operations: Vec<Operation>,
    snapshotted: Vec<(String, Snapshotted)>,
    stored: Vec<(Object, Entry)>,
    /// The snapshots that plugins are asked for.
    asked: Vec<Intent>,
    /// Those of them that nobody waits for any more, and that may yet come.
    in_flight: Vec<Intent>,
}

impl Noted {
    pub(super) fn has_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    pub(super) fn in_flight(&self, intent: Intent) {
        self.lock().in_flight.push(intent);
    }

    pub(super) fn visited(&self, id: &ResourceIdentifier) {
        self.lock().visited.push(id.clone());
    }

    pub(super) fn begun(&self, operation: Operation) {
        self.lock().operations.push(operation);
    }

    pub(super) fn snapshotted(&self, volume: &str, outcome: Snapshotted) {
        self.lock().snapshotted.push((volume.to_owned(), outcome));
    }

    pub(super) fn store(&self, object: &Object, entry: Entry) {
        self.lock().stored.push((object.clone(), entry));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What plugins are going to be asked for items.
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

/// Notes that a block is about to be touched. An error means that it must not be: without a note a pod
/// could stay frozen. Where no pod is, a backup without a note is better than none, and it is told.
pub(super) async fn begin(
    context: &Context,
    pods: Vec<Pod>,
    intents: Vec<Intent>,
) -> Result<Noted, crate::journal::Error> {
    let block = context.blocks.fetch_add(1, Ordering::Relaxed);
    let (report, tally, frozen) = Default::default();
    let mut is_in_journal = true;
    let asked = of_snapshots(&intents);
    if point::verdict(Point::NoteBegun) == Verdict::Go {
        let begun = Begun { block, pods: pods.clone(), intents };
        match context.journal.append(&Record::Begun(begun)).await {
            Ok(()) => {}
            Err(error) if !pods.is_empty() => return Err(error),
            Err(error) => {
                is_in_journal = false;
                if !context.is_without_notes.swap(true, Ordering::Relaxed) {
                    let text = format!(
                        "{error}; items are backed up all the same, and if the server ends now, \
                         plugins are shown them again"
                    );
                    context.report.warning(About::Run, text);
                }
            }
        }
    }
    point::pass(Point::Begun);
    let inner = Mutex::new(Inner { asked, ..Inner::default() });
    Ok(Noted { block, pods, is_in_journal, report, tally, frozen, inner })
}

/// Those that ask for a snapshot.
fn of_snapshots(intents: &[Intent]) -> Vec<Intent> {
    intents.iter().filter(|intent| intent.snapshot.is_some()).cloned().collect()
}

/// Notes that more is asked of plugins in a block than was known before. Returns whether it is noted.
pub(super) async fn also(context: &Context, noted: &Noted, intents: Vec<Intent>) -> bool {
    if intents.is_empty() || !noted.is_in_journal {
        return noted.is_in_journal;
    }
    noted.lock().asked.extend(of_snapshots(&intents));
    let record = Record::Also { block: noted.block, intents };
    let written = context.journal.append(&record).await;
    if let Err(error) = &written {
        tracing::warn!("{error}");
    }
    written.is_ok()
}

/// Notes what came of a block, and hands it on.
pub(super) async fn end(context: &Context, noted: Noted, is_whole: bool, archive: &Archive) {
    let Noted { block, pods, is_in_journal, report, tally, frozen, inner } = noted;
    let Inner { visited, mut operations, mut snapshotted, stored, asked, mut in_flight } =
        inner.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !is_whole && !context.cancel.is_cancelled() {
        // The next server takes them anew, and nobody would know of these.
        let (mut taken, mut by_csi) = (Vec::new(), Vec::new());
        for (_, outcome) in snapshotted.drain(..) {
            match outcome {
                Snapshotted::Tried(snapshot) => taken.push(*snapshot),
                Snapshotted::Csi(record) => by_csi.push(*record),
                Snapshotted::NotTried | Snapshotted::Unmatched | Snapshotted::Lacking(_) => {}
            }
        }
        csi::undo(context, &by_csi).await;
        let left = snapshot::discard(context.snapshots.port(), taken, &report).await;
        let is_left =
            |volume: &str| left.iter().any(|one| one.spec.persistent_volume_name == volume);
        in_flight.extend(asked.iter().filter(|intent| is_left(&intent.item.name)).cloned());
        operations.retain(|one| !one.kind.is_of_volume() && !csi::is_of_csi(one));
        let of = |left: Snapshot| {
            (left.spec.persistent_volume_name.clone(), Snapshotted::Tried(Box::new(left)))
        };
        snapshotted.extend(left.into_iter().map(of));
    }
    let (errors, warnings) = report.messages();
    if !frozen.is_empty() {
        context.leaves_frozen.store(true, Ordering::Relaxed);
    }
    // Of a block that is taken anew, the requests of this time are settled but for these. Those of a whole one are
    // not before its end is noted.
    if is_in_journal && !is_whole && !asked.is_empty() {
        note(context, &Record::InFlight { block, intents: std::mem::take(&mut in_flight) }).await;
    }
    let kept = if is_whole && is_in_journal { keep(context, block, &stored).await } else { None };
    let mut is_end_noted = false;
    if let Some(kept) = kept {
        let (hooks_attempted, hooks_failed) = tally.counts();
        let told = |message: &Message| Told::from(message.clone());
        let run = context.request.of();
        let ended = Ended {
            block,
            visited: visited.into_iter().map(Into::into).collect(),
            kept,
            backup_operations: operations
                .iter()
                .filter(|one| !one.kind.is_of_volume())
                .map(|one| record::of_backup(one, run))
                .collect(),
            volume_operations: operations.iter().filter_map(record::of_volume).collect(),
            snapshots: snapshotted.iter().filter_map(|(_, outcome)| tried(outcome)).collect(),
            csi_snapshots: snapshotted.iter().filter_map(|(_, one)| by_csi(one)).collect(),
            lacking_volumes: snapshotted.iter().filter_map(lacking).collect(),
            unmatched_volumes: snapshotted
                .iter()
                .filter(|(_, outcome)| *outcome == Snapshotted::Unmatched)
                .map(|(volume, _)| volume.clone())
                .collect(),
            freeze_windows: tally.windows(),
            in_flight,
            frozen: frozen.clone(),
            errors: errors.iter().map(told).collect(),
            warnings: warnings.iter().map(told).collect(),
            hooks_attempted,
            hooks_failed,
            ..Ended::default()
        };
        if point::verdict(Point::NoteEnded) == Verdict::Go {
            is_end_noted = note(context, &Record::Ended(Box::new(ended))).await;
        }
        point::pass(Point::Ended);
    }
    // The block is done again if need be, but no post-hook that has run.
    if is_in_journal && !is_end_noted {
        note_thawed(context, block, &pods, &frozen).await;
    }
    context.report.take_over(errors, warnings);
    context.hook_tally.take_over(tally.counts());
    context.hook_tally.add_windows(tally.windows());
    for operation in operations {
        context.begun(operation);
    }
    for (volume, outcome) in snapshotted {
        context.volumes.note_snapshotted(&volume, outcome);
    }
    for (_, entry) in stored {
        if archive.append(entry).await.is_err() {
            context.stop();
        }
    }
}

/// The snapshot that a plugin was asked for.
fn tried(outcome: &Snapshotted) -> Option<Snapshot> {
    match outcome {
        Snapshotted::Tried(snapshot) => Some((**snapshot).clone()),
        _ => None,
    }
}

/// The snapshot that a CSI driver was asked for.
fn by_csi(outcome: &Snapshotted) -> Option<csi::Record> {
    match outcome {
        Snapshotted::Csi(record) => Some((**record).clone()),
        _ => None,
    }
}

/// A volume that nobody was asked to snapshot, and why.
fn lacking((volume, outcome): &(String, Snapshotted)) -> Option<(String, String)> {
    match outcome {
        Snapshotted::Lacking(reason) => Some((volume.clone(), reason.clone())),
        _ => None,
    }
}

/// Notes something whose loss would only mean that more is done again. Returns whether it is noted.
async fn note(context: &Context, record: &Record) -> bool {
    let noted = context.journal.append(record).await;
    if let Err(error) = &noted {
        tracing::warn!("{error}; if the server ends now, more is done again than need be");
    }
    noted.is_ok()
}

/// Notes which pods of a block are thawed whose end is not noted.
async fn note_thawed(context: &Context, block: u64, pods: &[Pod], frozen: &[Pod]) {
    if pods.is_empty() {
        return;
    }
    if frozen.is_empty() {
        note(context, &Record::Thawed { block, errors: Vec::new() }).await;
        return;
    }
    for Pod { uid, .. } in pods {
        let left = frozen.iter().find(|left| left.uid == *uid);
        let ran = left.map(|left| left.ran.clone()).unwrap_or_default();
        if left.is_none() || !ran.is_empty() {
            let (pod, is_thawed, errors) = (uid.clone(), left.is_none(), Vec::new());
            note(context, &Record::PostHooks { block, pod, ran, is_thawed, errors }).await;
        }
    }
}

/// Backs up an item that is a block of its own.
pub(super) async fn alone(context: &Context, object: Object, how: How, archive: &Archive) {
    let id = object.id();
    let by_csi =
        if how.is_new_claim { csi::prepare_one(context, &object).await } else { Vec::new() };
    let planned = snapshot::prepare(context, [&object]).await;
    let mut all = intents(context, [&object]);
    all.extend(snapshot::intents(&planned));
    all.extend(csi::intents(&by_csi));
    match begin(context, Vec::new(), all).await {
        Ok(noted) => {
            let planned = snapshot::if_noted(planned, noted.is_in_journal);
            let by_csi = csi::if_noted(by_csi, noted.is_in_journal);
            let sink = Sink::noted(noted);
            let tried = csi::take(context, by_csi, &sink).await;
            csi::finish(context, tried, &sink).await;
            let taken = snapshot::take(context, planned, &sink);
            join(item::work(context, object, how, &sink), taken).await;
            if let Some(noted) = sink.into_noted() {
                end(context, noted, !context.is_over(), archive).await;
            }
        }
        Err(error) => context.report.error(&id, format!("it is not backed up: {error}")),
    }
}

/// An item as it is kept in the bucket.
#[derive(Serialize)]
struct Line<'a> {
    group: &'a str,
    resource: &'a str,
    item: &'a RawValue,
}

#[derive(Deserialize)]
struct OwnedLine {
    group: String,
    resource: String,
    item: Box<RawValue>,
}

/// Puts what is stored of a block into the bucket. None if that cannot be done; some nothing if there
/// is nothing.
async fn keep(context: &Context, block: u64, stored: &[(Object, Entry)]) -> Option<Option<Kept>> {
    if stored.is_empty() {
        return Some(None);
    }
    let packed = match pack(stored.iter().map(|(object, _)| object)) {
        Ok(packed) => packed,
        Err(error) => {
            tracing::warn!("a block cannot be kept in case the server ends: {error}");
            return None;
        }
    };
    if packed.len() as u64 > LARGEST {
        tracing::warn!("a block is too large to be kept in case the server ends");
        return None;
    }
    let sha256 = digest(&packed);
    point::pass(Point::Keep);
    let Context { store, request, .. } = context;
    match store.put_scratch(&request.uid, block, packed).await {
        Ok(()) => {
            point::pass(Point::Kept);
            Some(Some(Kept { number: block, sha256 }))
        }
        Err(error) => {
            let error = bowline_plugin::one_line(&error);
            tracing::warn!("a block cannot be kept in case the server ends: {error}");
            None
        }
    }
}

fn pack<'a>(objects: impl Iterator<Item = &'a Object>) -> serde_json::Result<Bytes> {
    let mut packed = Vec::new();
    for object in objects {
        let GroupResource { group, resource } = &object.resource.id;
        let item = serde_json::from_slice(object.item.json())?;
        serde_json::to_writer(&mut packed, &Line { group, resource, item })?;
        packed.push(b'\n');
    }
    Ok(packed.into())
}

/// Takes over the blocks that an earlier process has finished, and tells of those that it has not.
pub(super) async fn replay(context: &Context, recovery: &Recovery, archive: &Archive) {
    let recovered = &recovery.recovered;
    let thawed = recovered.thaw_errors.iter().cloned().map(Message::from);
    context.report.take_over(thawed, []);
    for ended in &recovered.finished {
        // The next process takes them over. One that was cancelled must know what it has begun.
        if context.stop.is_cancelled() && !context.is_over() {
            return;
        }
        replay_block(context, ended, archive).await;
    }
    for intent in &recovered.in_flight {
        snapshot::reclaim_before(context, intent).await;
    }
    for begun in &recovered.unfinished {
        for intent in &begun.intents {
            if intent.snapshot.is_some() {
                continue;
            }
            if intent.csi.is_some() {
                csi::reclaim(context, intent).await;
            } else {
                tell_begun(&context.report, intent, "and the plugin is shown it again");
            }
        }
    }
}

/// Tells of an item that a plugin had when the server ended, and what becomes of it.
fn tell_begun(report: &Report, intent: &Intent, then: &str) {
    let Intent { plugin, item, .. } = intent;
    let id: ResourceIdentifier = item.clone().into();
    let text = format!(
        "the server ended while the plugin {plugin} had this item, {then}: what it had begun, if \
         anything, may be left over"
    );
    report.warning(&id, text);
}

/// Tells what is known of a run that does not go on: what was told of its blocks, and what plugins may
/// have begun in those that are not finished.
pub(super) fn tell_left(report: &Report, recovered: &Recovered) {
    let message = |told: &Told| Message::from(told.clone());
    for ended in &recovered.finished {
        report.take_over(ended.errors.iter().map(message), ended.warnings.iter().map(message));
    }
    let intents = recovered.unfinished.iter().flat_map(|begun| &begun.intents);
    let is_of_item = |intent: &&Intent| intent.snapshot.is_none() && intent.csi.is_none();
    for intent in intents.filter(is_of_item) {
        tell_begun(report, intent, "and the run does not go on");
    }
    snapshot::tell_all(report, recovered);
}

async fn replay_block(context: &Context, ended: &Ended, archive: &Archive) {
    let message = |told: &Told| Message::from(told.clone());
    context.report.take_over(ended.errors.iter().map(message), ended.warnings.iter().map(message));
    context.hook_tally.take_over((ended.hooks_attempted, ended.hooks_failed));
    context.hook_tally.add_windows(ended.freeze_windows.clone());
    for snapshot in &ended.snapshots {
        let outcome = Snapshotted::Tried(Box::new(snapshot.clone()));
        context.replayed(&snapshot.spec.persistent_volume_name, outcome);
    }
    for record in &ended.csi_snapshots {
        context.csi.claim(&record.namespace, &record.claim);
        context.replayed(&record.volume, Snapshotted::Csi(Box::new(record.clone())));
    }
    if !ended.csi_snapshots.is_empty() {
        csi::recall(context).await;
    }
    for (volume, reason) in &ended.lacking_volumes {
        context.replayed(volume, Snapshotted::Lacking(reason.clone()));
    }
    for volume in &ended.unmatched_volumes {
        context.replayed(volume, Snapshotted::Unmatched);
    }
    for id in &ended.visited {
        context.seen.claim(&id.clone().into());
    }
    let timeout = context.request.item_operation_timeout();
    for operation in begun_in(ended, timeout, context.started) {
        match operation {
            Ok(operation) => context.begun(operation),
            Err(error) => context.report.error(About::Run, error.to_string()),
        }
    }
    if context.is_over() {
        return;
    }
    match unpack(context, ended).await {
        Ok(objects) => {
            for object in objects {
                item::meet(context, &object);
                context.inventory.add(&object);
                context.progress.done();
                if archive.append(Entry::new(&object, None)).await.is_err() {
                    context.stop();
                }
            }
        }
        Err(error) => {
            let text = format!(
                "what an earlier attempt kept of some items is lost, so that they are not in the \
                 backup: {error}"
            );
            context.report.error(About::Run, text);
        }
    }
}

/// The operations that were begun in a block.
pub(super) fn begun_in(
    ended: &Ended,
    timeout: Duration,
    began: Timestamp,
) -> impl Iterator<Item = Result<Operation, record::Invalid>> {
    let of_items = ended.backup_operations.iter().cloned();
    let of_volumes = ended.volume_operations.iter().cloned();
    let of_items = of_items.map(move |one| record::from_backup(one, timeout, began));
    of_items.chain(of_volumes.map(move |one| record::from_volume(one, timeout, began)))
}

/// What was kept of a block.
async fn unpack(context: &Context, ended: &Ended) -> Result<Vec<Object>, String> {
    let Some(kept) = &ended.kept else { return Ok(Vec::new()) };
    let Context { store, request, .. } = context;
    let mut pause = FIRST_PAUSE;
    let read = loop {
        match store.scratch(&request.uid, kept.number, LARGEST).await {
            Err(error) if error.is_retryable() && pause < LONGEST_PAUSE => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            read => break read,
        }
    };
    let packed = match read {
        Ok(Some(packed)) => packed,
        Ok(None) => return Err(format!("object {} is not in the bucket", kept.number)),
        Err(error) => return Err(bowline_plugin::one_line(&error)),
    };
    if digest(&packed) != kept.sha256 {
        return Err(format!("object {} in the bucket is not what was put there", kept.number));
    }
    let mut objects = Vec::new();
    for line in serde_json::Deserializer::from_slice(&packed).into_iter::<OwnedLine>() {
        let OwnedLine { group, resource, item } = line.map_err(|error| error.to_string())?;
        let id = GroupResource { group, resource };
        let resource = context.resources.find(&id);
        let resource = resource.ok_or_else(|| format!("{id} is not served any more"))?;
        let json = Bytes::from(Box::<str>::from(item).into_string());
        objects.push(Object::from_json(resource, json).map_err(|error| error.to_string())?);
    }
    Ok(objects)
}
