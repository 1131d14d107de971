//! One item: filtered, passed to the actions, stored.
//!
//! Additional items of an item are visited when the item is stored, and theirs in turn when they are. Items may add
//! one another in chains as long as the cluster is large, so they wait in a list, by name, and neither on the stack
//! nor as objects. A failure is an error on the item, which is then not stored; nothing else stops.
//!
//! An item for an action that may start an operation is [recorded in the journal](super::block_journal) before and
//! after, unless it is in a block that is.
//!
//! # States of a visit
//! ```text
//!   item and its origin
//!     │
//!     ├─ excluded by a filter, being deleted, or visited by another ─────▶ Skip
//!     ├─ a claim whose CSI snapshot its block is taking ─────────────────▶ Defer ── after the thaw: from the top
//!     │
//!     │  marked as visited
//!     ├─ into the archive, but it may begin an operation or a snapshot ──▶ OwnBlock ──────┐
//!     ├─ into a block that did not plan its snapshot ────────────────────▶ LateSnapshot ──┤ journal, snapshot
//!     │                                                                                   │
//!     └─ anything else ──────────────────────────────────────────────────▶ BackUp ◀───────┘
//!                                                                            │ actions
//!                        ┌────────────────────────┬──────────────────────────┤
//!                        ▼                        ▼                          ▼
//!                     Failed                   Exclude                     Store ── Sink, then additional items
//! ```

mod actions;
mod sink;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};

use bowline_plugin::ResourceIdentifier;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::archive::Archive;
use super::block_journal::JournaledBlock;
use super::filter::{FilterVerdict, SkipReason};
use super::snapshot_plan::{SnapshotPlan, UnplannedSnapshot};
use super::{Context, block_journal, csi};
use crate::item::Object;
pub(super) use actions::invalid_name_message;
use actions::{ActionOutcome, AdditionalItem, run_actions};
use sink::Destination;
pub(super) use sink::{Sink, VisitResults};

/// Number of deferred items visited concurrently.
const MAX_CONCURRENT_VISITS: usize = 8;

/// Origin of an item.
#[derive(Debug, Default)]
pub(super) struct ItemOrigin {
    pub(super) inclusion: Inclusion,
    pub(super) source: ItemSource,
}

/// Whether the filters of the request decide about an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Inclusion {
    /// The filters decide.
    #[default]
    Filtered,
    /// The item is stored even where the filters exclude it.
    Required,
}

/// Where an item was found.
#[derive(Debug)]
pub(super) enum ItemSource {
    /// In a list, or in the block that is being backed up; with its share of the in-flight budget.
    Collected(Option<OwnedSemaphorePermit>),
    /// Read for an action, so that it may be an item of another block.
    ReadForAction,
}

impl Default for ItemSource {
    fn default() -> Self {
        Self::Collected(None)
    }
}

impl ItemOrigin {
    /// Origin of a listed item.
    pub(super) fn collected(budget: Option<OwnedSemaphorePermit>) -> Self {
        Self { source: ItemSource::Collected(budget), ..Self::default() }
    }

    /// Origin of an item that is stored whatever the filters say.
    pub(super) fn required() -> Self {
        Self { inclusion: Inclusion::Required, ..Self::default() }
    }
}

/// Next state of a visited item; see the drawing above.
enum VisitState<'a> {
    /// Not backed up by this visit.
    Skip,
    /// Visited again after the thaw, when its snapshot is known.
    Defer,
    /// Backed up as a block of its own, because the journal must name it.
    OwnBlock { archive: &'a Archive, snapshot: UnplannedSnapshot },
    /// Backed up in its block, with a snapshot that the block did not expect.
    LateSnapshot { block: &'a JournaledBlock, snapshot: UnplannedSnapshot },
    /// Backed up.
    BackUp,
}

/// The rest of a visit.
#[derive(Default)]
struct Visit {
    /// Additional items so far. The last one is next.
    added: Vec<AdditionalItem>,
    /// Items that actions have excluded. They may come in by another way, but not by this one again: two items that
    /// add one another and are both excluded would never end.
    excluded: Vec<ResourceIdentifier>,
}

/// Backs up an item and its additional items.
pub(super) fn visit<'a>(
    context: &'a Context,
    object: Object,
    origin: ItemOrigin,
    sink: &'a Sink<'a>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let mut visit = Visit::default();
        let visiting = visit_one(context, object, origin, sink, &mut visit);
        let visited = AssertUnwindSafe(visiting).catch_unwind().await;
        visit_added(context, visit, visited, sink).await;
    })
}

/// Backs up additional items, and theirs in turn. If an action has failed at an item, the items that were added
/// before are still backed up.
async fn visit_added(
    context: &Context,
    mut visit: Visit,
    mut outcome: std::thread::Result<()>,
    sink: &Sink<'_>,
) {
    while let Some(next) = visit.added.pop() {
        // Items that go straight into the archive are lost when the run stops, so there is no point in waiting for
        // them.
        if context.is_aborted() || (context.has_stopped() && sink.is_archive()) {
            break;
        }
        let Some((object, origin)) = actions::read_additional(context, &next, sink).await else {
            continue;
        };
        let visiting = visit_one(context, object, origin, sink, &mut visit);
        let visited = AssertUnwindSafe(visiting).catch_unwind().await;
        outcome = outcome.and(visited);
    }
    for id in visit.excluded {
        context.visited.unmark(&id);
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

async fn visit_one(
    context: &Context,
    object: Object,
    origin: ItemOrigin,
    sink: &Sink<'_>,
    visit: &mut Visit,
) {
    match begin_visit(context, &object, &origin, sink) {
        VisitState::Skip => {}
        VisitState::Defer => sink.defer(object, origin),
        VisitState::OwnBlock { archive, snapshot } => {
            box_own_block(context, object, origin, snapshot, archive).await;
        }
        VisitState::LateSnapshot { block, snapshot } => {
            let plan = SnapshotPlan::prepare_item(context, &object, snapshot).await;
            let proof = block_journal::append_intents(context, block, plan.intents()).await;
            let backing_up = back_up_item(context, object, origin, sink, visit);
            plan.with_proof(&proof).create_around(context, sink, backing_up).await;
        }
        VisitState::BackUp => back_up_item(context, object, origin, sink, visit).await,
    }
}

/// Decides on a visit. An item that is to be backed up is marked as visited.
fn begin_visit<'a>(
    context: &Context,
    object: &Object,
    origin: &ItemOrigin,
    sink: &'a Sink<'_>,
) -> VisitState<'a> {
    let id = object.id();
    if let Some(reason) = skip_reason(context, object, origin.inclusion) {
        tracing::debug!(item = %id, "not backed up: {reason}");
        return VisitState::Skip;
    }
    if sink.defers(&id) {
        return VisitState::Defer;
    }
    if context.is_aborted() {
        return VisitState::Skip;
    }
    let Some(snapshot) = mark_visited(context, object, &id, &origin.source) else {
        return VisitState::Skip;
    };
    let has_snapshot = snapshot != UnplannedSnapshot::None;
    match &sink.destination {
        Destination::Archive(archive) if has_snapshot || context.may_begin_operations(object) => {
            VisitState::OwnBlock { archive, snapshot }
        }
        // An action has added a claim or a volume that was not expected in this block.
        Destination::Block(block) if has_snapshot => VisitState::LateSnapshot { block, snapshot },
        _ => VisitState::BackUp,
    }
}

/// Backs up an item that is a block of its own. Its additional items belong to that block, so blocks are never
/// nested.
fn box_own_block<'a>(
    context: &'a Context,
    object: Object,
    origin: ItemOrigin,
    snapshot: UnplannedSnapshot,
    archive: &'a Archive,
) -> BoxFuture<'a, ()> {
    Box::pin(block_journal::back_up_own_block(context, object, origin, snapshot, archive))
}

/// Marks an item as visited, and returns its snapshot that no block has planned. None if another visit marks the
/// item, or has.
fn mark_visited(
    context: &Context,
    object: &Object,
    id: &ResourceIdentifier,
    source: &ItemSource,
) -> Option<UnplannedSnapshot> {
    let mark_visited = || context.visited.mark_visited(id);
    let Object { resource, namespace, name, .. } = object;
    if resource.is_core("persistentvolumeclaims") {
        let is_of_another_block = matches!(source, ItemSource::ReadForAction);
        return match context.csi.reserve_pvc_visit(
            namespace,
            name,
            is_of_another_block,
            mark_visited,
        ) {
            csi::PvcVisit::Skip => None,
            csi::PvcVisit::Planned => Some(UnplannedSnapshot::None),
            csi::PvcVisit::Unplanned => Some(UnplannedSnapshot::OfClaim),
        };
    }
    let is_unplanned_volume =
        || resource.is_core("persistentvolumes") && context.snapshots.is_unreserved(name);
    mark_visited().then(|| {
        if is_unplanned_volume() { UnplannedSnapshot::OfVolume } else { UnplannedSnapshot::None }
    })
}

/// Backs up the deferred items.
pub(super) async fn visit_deferred(context: &Context, sink: &Sink<'_>) {
    let mut visits = Vec::new();
    for (object, origin) in sink.take_deferred() {
        // The content to store is known now, so any visitor may store the item.
        context.csi.finish_snapshot(&object.namespace, &object.name);
        visits.push(visit(context, object, origin, sink));
    }
    futures::stream::iter(visits).buffer_unordered(MAX_CONCURRENT_VISITS).collect::<()>().await;
}

/// Backs up an item marked as visited, and its additional items.
pub(super) async fn back_up_reserved(
    context: &Context,
    object: Object,
    origin: ItemOrigin,
    sink: &Sink<'_>,
) {
    let mut visit = Visit::default();
    let working = back_up_item(context, object, origin, sink, &mut visit);
    let worked = AssertUnwindSafe(working).catch_unwind().await;
    visit_added(context, visit, worked, sink).await;
}

/// Backs up an item marked as visited.
async fn back_up_item(
    context: &Context,
    object: Object,
    origin: ItemOrigin,
    sink: &Sink<'_>,
    visit: &mut Visit,
) {
    let id = object.id();
    sink.results(context).record_visited(&id);
    record_found(context, &object);
    match run_actions(context, object, &id, sink, &mut visit.added).await {
        ActionOutcome::Store(object) => sink.store(context, &object, origin.source).await,
        ActionOutcome::Exclude => visit.excluded.push(id),
        ActionOutcome::Failed => {}
    }
    context.progress.count_done();
}

/// Records the facts needed about every item, stored or not.
pub(super) fn record_found(context: &Context, object: &Object) {
    context.progress.count_found();
    if object.resource.is_namespaced {
        context.namespaces.touch(&object.namespace);
    }
    context.volumes.record(object);
}

/// Verdict on an item, by the filters or, if an action insists on it, in spite of them. Excluded credentials are
/// recorded.
pub(super) fn judge_item(
    context: &Context,
    object: &Object,
    inclusion: Inclusion,
) -> FilterVerdict {
    let Object { resource, namespace, name, labels, .. } = object;
    let verdict = if inclusion == Inclusion::Required {
        context.filter.must_include_verdict(resource, namespace, name)
    } else {
        context.filter.item(resource, namespace, name, labels)
    };
    if verdict == FilterVerdict::Skip(SkipReason::Credentials) {
        context.credentials.record(namespace, name);
    }
    verdict
}

/// Reason why an item is not backed up, if any.
fn skip_reason(context: &Context, object: &Object, inclusion: Inclusion) -> Option<String> {
    if object.is_being_deleted {
        return Some("the object is being deleted".to_owned());
    }
    match judge_item(context, object, inclusion) {
        FilterVerdict::Include => None,
        FilterVerdict::Skip(reason) => Some(reason.to_string()),
    }
}

/// The namespaces in which items were found.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    touched: Mutex<BTreeSet<String>>,
}

impl Namespaces {
    fn touch(&self, namespace: &str) {
        let mut touched = self.touched.lock();
        if !touched.contains(namespace) {
            touched.insert(namespace.to_owned());
        }
    }

    /// All of them.
    pub(super) fn touched(&self) -> BTreeSet<String> {
        self.touched.lock().clone()
    }

    /// True if an item was found in a namespace.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.touched.lock().contains(namespace)
    }
}
