//! One item: looked at, shown to the actions, stored.
//!
//! What actions add to an item is visited when the item is stored, and what they add to that when that is.
//! Items may add one another in chains as long as the cluster is large, so that they wait in a list, by
//! name, and neither on the stack nor as objects. A failure is an error on the item, which is then not
//! stored; nothing else stops.
//!
//! An item that is shown to an action that may begin an operation is [noted](super::note) before and
//! after, unless it is in a block that is.

mod actions;
mod sink;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use futures::future::{BoxFuture, join};
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::archive::{Archive, Entry};
use super::filter::FilterVerdict;
use super::{Context, block_journal, credentials, csi, snapshot};
use crate::item::Object;
pub(super) use actions::invalid_name_message;
use actions::{ActionOutcome, AdditionalItem, run_actions};
use sink::Destination;
pub(super) use sink::Sink;

/// How many items that were kept back are visited at a time.
const MAX_CONCURRENT_VISITS: usize = 8;

/// How an item came in.
#[derive(Debug, Default)]
pub(super) struct VisitContext {
    /// Whether it is stored even where the filters leave it out.
    pub(super) must_include: bool,
    /// Its part of what may be in flight.
    pub(super) budget: Option<OwnedSemaphorePermit>,
    /// Whether it was read for an action, so that it may be an item of another block.
    pub(super) is_of_another_block: bool,
    /// Whether it is a claim whose snapshot nobody has seen to yet.
    pub(super) is_new_claim: bool,
}

/// What is left to do of a visit.
#[derive(Default)]
struct Visit {
    /// What actions have added so far. The last one is next.
    added: Vec<AdditionalItem>,
    /// What actions have left out. It may come in by another way, but not by this one again: two items that
    /// add one another and are both left out would never end.
    excluded: Vec<ResourceIdentifier>,
}

/// Backs up an item and what its actions add to it.
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

/// Backs up what actions have added, and what they add to that. If an action has broken off at an item, what was
/// added to the item before is backed up all the same.
async fn visit_added(
    context: &Context,
    mut visit: Visit,
    mut outcome: std::thread::Result<()>,
    sink: &Sink<'_>,
) {
    while let Some(next) = visit.added.pop() {
        // What goes straight into the archive is lost when the run stops, so that nobody waits for it.
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
        Destination::Block(block) if is_new_claim => {
            // An action has brought a claim in that nobody expected in this block.
            let csi_planned = csi::prepare_one(context, &object).await;
            let is_journaled =
                block_journal::append_intents(context, block, csi::intents(&csi_planned)).await;
            let csi_planned = csi::fail_unless_journaled(csi_planned, is_journaled);
            let attempts = csi::create_snapshots(context, csi_planned, sink).await;
            csi::finish(context, attempts, sink).await;
            back_up_item(context, object, visit_context, sink, visit).await;
        }
        Destination::Block(block) if may_be_snapshotted(context, &object) => {
            // An action has brought a volume in that nobody expected in this block.
            let planned = snapshot::prepare(context, [&object]).await;
            let is_journaled =
                block_journal::append_intents(context, block, snapshot::intents(&planned)).await;
            let planned = snapshot::fail_unless_journaled(planned, is_journaled);
            let working = back_up_item(context, object, visit_context, sink, visit);
            join(working, snapshot::create_snapshots(context, planned, sink)).await;
        }
        _ => back_up_item(context, object, visit_context, sink, visit).await,
    }
}

/// Backs up an item that is a block of its own. Items that are added to it are of that block, so that this
/// is never one within another.
fn visit_as_own_block<'a>(
    context: &'a Context,
    object: Object,
    visit_context: VisitContext,
    archive: &'a Archive,
) -> BoxFuture<'a, ()> {
    Box::pin(block_journal::back_up_single(context, object, visit_context, archive))
}

/// Whether a volume may have to be snapshotted that no block has seen to.
fn may_be_snapshotted(context: &Context, object: &Object) -> bool {
    object.resource.is_core("persistentvolumes") && context.snapshots.is_unclaimed(&object.name)
}

/// Notes that an item is visited. None if somebody else does that, or has. Otherwise whether it is a claim
/// that may have to be snapshotted, and that no block has seen to.
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

/// Backs up the items that were kept back.
pub(super) async fn visit_deferred(context: &Context, sink: &Sink<'_>) {
    let mut visits = Vec::new();
    for (object, visit_context) in sink.take_deferred() {
        // What is to be stored of it is known now, so that anybody may.
        context.csi.finish_snapshot(&object.namespace, &object.name);
        visits.push(visit(context, object, visit_context, sink));
    }
    futures::stream::iter(visits).buffer_unordered(MAX_CONCURRENT_VISITS).collect::<()>().await;
}

/// Backs up an item that was claimed, and what its actions add to it.
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

/// Backs up an item that was claimed.
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

/// Notes what is to be known of every item, whatever becomes of it.
pub(super) fn record_found(context: &Context, object: &Object) {
    context.progress.count_found();
    if object.resource.is_namespaced {
        context.namespaces.touch(&object.namespace);
    }
    context.volumes.record(object);
}

/// Why an item is not backed up, if it is not.
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

/// The namespaces that something was found in.
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

    /// Whether something was found in a namespace.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }
}
