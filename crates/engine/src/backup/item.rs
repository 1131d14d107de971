//! One item: filtered, passed to the actions, stored.
//!
//! Additional items of an item are visited when the item is stored, and theirs in turn when they are. Items may add
//! one another in chains as long as the cluster is large, so they wait in a list, by name, and neither on the stack
//! nor as objects. A failure is an error on the item, which is then not stored; nothing else stops.
//!
//! An item for an action that may start an operation is [recorded in the journal](super::block_journal) before and
//! after, unless it is in a block that is.

mod actions;
mod sink;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::archive::{Archive, Entry};
use super::filter::FilterVerdict;
use super::snapshot_plan::SnapshotPlan;
use super::{Context, block_journal, credentials, csi};
use crate::item::Object;
pub(super) use actions::invalid_name_message;
use actions::{ActionOutcome, AdditionalItem, run_actions};
use sink::Destination;
pub(super) use sink::Sink;

/// Number of deferred items visited concurrently.
const MAX_CONCURRENT_VISITS: usize = 8;

/// Origin of an item.
#[derive(Debug, Default)]
pub(super) struct VisitContext {
    /// True if the item is stored even where the filters exclude it.
    pub(super) must_include: bool,
    /// Its share of the in-flight budget.
    pub(super) budget: Option<OwnedSemaphorePermit>,
    /// True if it was read for an action, so that it may be an item of another block.
    pub(super) is_of_another_block: bool,
    /// True if it is a claim whose snapshot no block has handled yet.
    pub(super) is_new_claim: bool,
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
    visit_context: VisitContext,
    sink: &'a Sink<'a>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let mut visit = Visit::default();
        let visiting = visit_one(context, object, visit_context, sink, &mut visit);
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
        let Some((object, visit_context)) = actions::read_additional(context, &next, sink).await
        else {
            continue;
        };
        let visiting = visit_one(context, object, visit_context, sink, &mut visit);
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
    visit_context: VisitContext,
    sink: &Sink<'_>,
    visit: &mut Visit,
) {
    let id = object.id();
    if let Some(reason) = skip_reason(context, &object, visit_context.must_include) {
        tracing::debug!(item = %id, "left out: {reason}");
        return;
    }
    if sink.defers(&id) {
        sink.defer(object, visit_context);
        return;
    }
    if context.is_aborted() {
        return;
    }
    let Some(is_new_claim) = begin_visit(context, &object, &id, &visit_context) else { return };
    let visit_context = VisitContext { is_new_claim, ..visit_context };
    match &sink.destination {
        Destination::Archive(archive)
            if context.may_begin_operations(&object)
                || may_be_snapshotted(context, &object)
                || is_new_claim =>
        {
            visit_as_own_block(context, object, visit_context, archive).await;
        }
        Destination::Block(block) if is_new_claim || may_be_snapshotted(context, &object) => {
            // An action has added a claim or a volume that was not expected in this block.
            let plan = SnapshotPlan::prepare_item(context, &object, is_new_claim).await;
            let is_journaled = block_journal::append_intents(context, block, plan.intents()).await;
            let backing_up = back_up_item(context, object, visit_context, sink, visit);
            plan.journaled(is_journaled).create_around(context, sink, backing_up).await;
        }
        _ => back_up_item(context, object, visit_context, sink, visit).await,
    }
}

/// Backs up an item that is a block of its own. Its additional items belong to that block, so blocks are never
/// nested.
fn visit_as_own_block<'a>(
    context: &'a Context,
    object: Object,
    visit_context: VisitContext,
    archive: &'a Archive,
) -> BoxFuture<'a, ()> {
    Box::pin(block_journal::back_up_single(context, object, visit_context, archive))
}

/// True if an object is a volume that may have to be snapshotted and that no block has handled.
fn may_be_snapshotted(context: &Context, object: &Object) -> bool {
    object.resource.is_core("persistentvolumes") && context.snapshots.is_unclaimed(&object.name)
}

/// Marks an item as visited. None if another visit does that, or has. Otherwise true if it is a claim that may have
/// to be snapshotted, and that no block has handled.
fn begin_visit(
    context: &Context,
    object: &Object,
    id: &ResourceIdentifier,
    visit_context: &VisitContext,
) -> Option<bool> {
    let mark_visited = || context.visited.mark_visited(id);
    if !object.resource.is_core("persistentvolumeclaims") {
        return mark_visited().then_some(false);
    }
    let Object { namespace, name, .. } = object;
    match context.csi.claim_visit(namespace, name, visit_context.is_of_another_block, mark_visited)
    {
        csi::ClaimVisit::Skip => None,
        csi::ClaimVisit::Proceed { is_new } => Some(is_new),
    }
}

/// Backs up the deferred items.
pub(super) async fn visit_deferred(context: &Context, sink: &Sink<'_>) {
    let mut visits = Vec::new();
    for (object, visit_context) in sink.take_deferred() {
        // The content to store is known now, so any visitor may store the item.
        context.csi.finish_snapshot(&object.namespace, &object.name);
        visits.push(visit(context, object, visit_context, sink));
    }
    futures::stream::iter(visits).buffer_unordered(MAX_CONCURRENT_VISITS).collect::<()>().await;
}

/// Backs up an item marked as visited, and its additional items.
pub(super) async fn back_up_claimed(
    context: &Context,
    object: Object,
    visit_context: VisitContext,
    sink: &Sink<'_>,
) {
    let mut visit = Visit::default();
    let working = back_up_item(context, object, visit_context, sink, &mut visit);
    let worked = AssertUnwindSafe(working).catch_unwind().await;
    visit_added(context, visit, worked, sink).await;
}

/// Backs up an item marked as visited.
async fn back_up_item(
    context: &Context,
    object: Object,
    visit_context: VisitContext,
    sink: &Sink<'_>,
    visit: &mut Visit,
) {
    let id = object.id();
    sink.record_visited(&id);
    record_found(context, &object);
    match run_actions(context, object, &id, sink, &mut visit.added).await {
        ActionOutcome::Store(object) => store(context, &object, visit_context.budget, sink).await,
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

/// Reason why an item is not backed up, if any.
fn skip_reason(context: &Context, object: &Object, must_include: bool) -> Option<String> {
    if object.is_being_deleted {
        return Some("it is being deleted".to_owned());
    }
    match credentials::verdict(context, object, must_include) {
        FilterVerdict::Include => None,
        FilterVerdict::Skip(reason) => Some(reason.to_string()),
    }
}

async fn store(
    context: &Context,
    object: &Object,
    budget: Option<OwnedSemaphorePermit>,
    sink: &Sink<'_>,
) {
    if let Destination::Replacement(fresh) = &sink.destination {
        if let Err(error) = fresh.store(object) {
            let text = format!("it cannot be kept in the scratch folder: {error}");
            context.report.error(&object.id(), text);
        }
        return;
    }
    context.inventory.add(object);
    let entry = Entry::new(object, budget);
    match &sink.destination {
        Destination::Replacement(_) => {}
        Destination::Archive(archive) => {
            if archive.append(entry).await.is_err() {
                context.mark_archive_failed();
            }
        }
        Destination::Block(block) => block.store(object, entry),
    }
}

/// The namespaces in which items were found.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    touched: Mutex<BTreeSet<String>>,
}

impl Namespaces {
    fn touch(&self, namespace: &str) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if !touched.contains(namespace) {
            touched.insert(namespace.to_owned());
        }
    }

    /// All of them.
    pub(super) fn touched(&self) -> BTreeSet<String> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if an item was found in a namespace.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }
}
