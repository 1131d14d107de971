//! One item: looked at, shown to the actions, stored.
//!
//! What actions add to an item is visited when the item is stored, and what they add to that when that is.
//! Items may add one another in chains as long as the cluster is large, so that they wait in a list, by
//! name, and neither on the stack nor as objects. A failure is an error on the item, which is then not
//! stored; nothing else stops.
//!
//! An item that is shown to an action that may begin an operation is [noted](super::note) before and
//! after, unless it is in a block that is.

mod act;
mod sink;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use futures::future::{BoxFuture, join};
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::archive::{Archive, Entry};
use super::filter::Verdict;
use super::{Context, credentials, csi, note, snapshot};
use crate::item::Object;
pub(super) use act::without_name;
use act::{Acted, AdditionalItem, act};
pub(super) use sink::Sink;
use sink::Way;

/// How many items that were kept back are visited at a time.
const AT_ONCE: usize = 8;

/// How an item came in.
#[derive(Debug, Default)]
pub(super) struct How {
    /// Whether it is stored even where the filters leave it out.
    pub(super) is_wanted: bool,
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
    dropped: Vec<ResourceIdentifier>,
}

/// Backs up an item and what its actions add to it.
pub(super) fn visit<'a>(
    context: &'a Context,
    object: Object,
    how: How,
    sink: &'a Sink<'a>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let mut visit = Visit::default();
        let visiting = visit_one(context, object, how, sink, &mut visit);
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
        if context.is_over() || (context.has_stopped() && sink.is_archive()) {
            break;
        }
        let Some((object, how)) = act::read_additional(context, &next, sink).await else {
            continue;
        };
        let visiting = visit_one(context, object, how, sink, &mut visit);
        let visited = AssertUnwindSafe(visiting).catch_unwind().await;
        outcome = outcome.and(visited);
    }
    for id in visit.dropped {
        context.seen.release(&id);
    }
    if let Err(broken) = outcome {
        resume_unwind(broken);
    }
}

async fn visit_one(
    context: &Context,
    object: Object,
    how: How,
    sink: &Sink<'_>,
    visit: &mut Visit,
) {
    let id = object.id();
    if let Some(reason) = why_not(context, &object, how.is_wanted) {
        tracing::debug!(item = %id, "left out: {reason}");
        return;
    }
    if sink.keeps_back(&id) {
        sink.keep_back(object, how);
        return;
    }
    if context.is_over() {
        return;
    }
    let Some(is_new_claim) = arrive(context, &object, &id, &how) else { return };
    let how = How { is_new_claim, ..how };
    match &sink.way {
        Way::Archive(archive)
            if context.may_begin_operations(&object)
                || may_be_snapshotted(context, &object)
                || is_new_claim =>
        {
            visit_alone(context, object, how, archive).await;
        }
        Way::Noted(noted) if is_new_claim => {
            // An action has brought a claim in that nobody expected in this block.
            let planned = csi::prepare_one(context, &object).await;
            let is_noted = note::also(context, noted, csi::intents(&planned)).await;
            let planned = csi::if_noted(planned, is_noted);
            let tried = csi::take(context, planned, sink).await;
            csi::finish(context, tried, sink).await;
            work_on(context, object, how, sink, visit).await;
        }
        Way::Noted(noted) if may_be_snapshotted(context, &object) => {
            // An action has brought a volume in that nobody expected in this block.
            let planned = snapshot::prepare(context, [&object]).await;
            let is_noted = note::also(context, noted, snapshot::intents(&planned)).await;
            let planned = snapshot::if_noted(planned, is_noted);
            let working = work_on(context, object, how, sink, visit);
            join(working, snapshot::take(context, planned, sink)).await;
        }
        _ => work_on(context, object, how, sink, visit).await,
    }
}

/// Backs up an item that is a block of its own. Items that are added to it are of that block, so that this
/// is never one within another.
fn visit_alone<'a>(
    context: &'a Context,
    object: Object,
    how: How,
    archive: &'a Archive,
) -> BoxFuture<'a, ()> {
    Box::pin(note::alone(context, object, how, archive))
}

/// Whether a volume may have to be snapshotted that no block has seen to.
fn may_be_snapshotted(context: &Context, object: &Object) -> bool {
    object.resource.is_core("persistentvolumes") && context.snapshots.is_unclaimed(&object.name)
}

/// Notes that an item is visited. None if somebody else does that, or has. Otherwise whether it is a claim
/// that may have to be snapshotted, and that no block has seen to.
fn arrive(context: &Context, object: &Object, id: &ResourceIdentifier, how: &How) -> Option<bool> {
    let see = || context.seen.claim(id);
    if !object.resource.is_core("persistentvolumeclaims") {
        return see().then_some(false);
    }
    let Object { namespace, name, .. } = object;
    match context.csi.turn(namespace, name, how.is_of_another_block, see) {
        csi::Turn::Theirs => None,
        csi::Turn::Ours { is_new } => Some(is_new),
    }
}

/// Backs up the items that were kept back.
pub(super) async fn visit_kept_back(context: &Context, sink: &Sink<'_>) {
    let mut visits = Vec::new();
    for (object, how) in sink.let_go() {
        // What is to be stored of it is known now, so that anybody may.
        context.csi.land(&object.namespace, &object.name);
        visits.push(visit(context, object, how, sink));
    }
    futures::stream::iter(visits).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Backs up an item that was claimed, and what its actions add to it.
pub(super) async fn work(context: &Context, object: Object, how: How, sink: &Sink<'_>) {
    let mut visit = Visit::default();
    let working = work_on(context, object, how, sink, &mut visit);
    let worked = AssertUnwindSafe(working).catch_unwind().await;
    visit_added(context, visit, worked, sink).await;
}

/// Backs up an item that was claimed.
async fn work_on(context: &Context, object: Object, how: How, sink: &Sink<'_>, visit: &mut Visit) {
    let id = object.id();
    sink.visited(&id);
    meet(context, &object);
    match act(context, object, &id, sink, &mut visit.added).await {
        Acted::Store(object) => store(context, &object, how.budget, sink).await,
        Acted::Drop => visit.dropped.push(id),
        Acted::Failed => {}
    }
    context.progress.done();
}

/// Notes what is to be known of every item, whatever becomes of it.
pub(super) fn meet(context: &Context, object: &Object) {
    context.progress.find();
    if object.resource.is_namespaced {
        context.namespaces.touch(&object.namespace);
    }
    context.volumes.note(object);
}

/// Why an item is not backed up, if it is not.
fn why_not(context: &Context, object: &Object, is_wanted: bool) -> Option<String> {
    if object.is_being_deleted {
        return Some("it is being deleted".to_owned());
    }
    match credentials::verdict(context, object, is_wanted) {
        Verdict::Include => None,
        Verdict::Skip(reason) => Some(reason.to_string()),
    }
}

async fn store(
    context: &Context,
    object: &Object,
    budget: Option<OwnedSemaphorePermit>,
    sink: &Sink<'_>,
) {
    if let Way::Fresh(fresh) = &sink.way {
        if let Err(error) = fresh.store(object) {
            let text = format!("it cannot be kept in the scratch folder: {error}");
            context.report.error(&object.id(), text);
        }
        return;
    }
    context.inventory.add(object);
    let entry = Entry::new(object, budget);
    match &sink.way {
        Way::Fresh(_) => {}
        Way::Archive(archive) => {
            if archive.append(entry).await.is_err() {
                context.stop();
            }
        }
        Way::Noted(noted) => noted.store(object, entry),
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
