//! Destination of stored items and of their results.
//!
//! ```text
//!   destination    stored items                        results
//!   Archive        into the archive at once            into the run at once
//!   Block          aside, until the block has ended    aside, until the block has ended
//!                     └── end_block: journal ──▶ archive and run
//!   Replacement    aside, in the scratch folder        into the run at once; operations are errors
//! ```
//!
//! [`Sink::store`] knows where items go, and [`VisitResults`] where results go.

use std::collections::{HashMap, HashSet};

use bowline_plugin::ResourceIdentifier;
use parking_lot::Mutex;

use super::{ItemOrigin, ItemSource};
use crate::backup::Context;
use crate::backup::archive::{Archive, Entry};
use crate::backup::block_journal::JournaledBlock;
use crate::backup::hook::Tally;
use crate::backup::replace::ReplacementItems;
use crate::backup::volume::SnapshotOutcome;
use crate::item::Object;
use crate::journal::Intent;
use crate::operation::Operation;
use crate::report::Report;

/// Destination of stored items and of their results.
pub(in crate::backup) struct Sink<'a> {
    pub(super) destination: Destination<'a>,
    /// The items of the same block that are still to be visited. They have been read, so the cluster is not asked for
    /// them while an application is frozen.
    members: Mutex<HashMap<ResourceIdentifier, Object>>,
    deferred: Mutex<DeferredItems>,
}

/// Items that are visited after the thaw, since what is to be stored of them is known only then.
#[derive(Default)]
struct DeferredItems {
    ids: HashSet<ResourceIdentifier>,
    waiting: Vec<(Object, ItemOrigin)>,
}

/// Destination of stored items.
pub(super) enum Destination<'a> {
    /// Into the archive at once.
    Archive(&'a Archive),
    /// Aside, with all results of the block, until those are in the journal. An application must not wait for an
    /// upload.
    Block(Box<JournaledBlock>),
    /// Aside, to replace items in the archive.
    Replacement(ReplacementItems<'a>),
}

impl<'a> Sink<'a> {
    /// Sink into the archive at once.
    pub(in crate::backup) fn archive(archive: &'a Archive) -> Self {
        Self::new(Destination::Archive(archive))
    }

    /// Sink that collects a block.
    pub(in crate::backup) fn for_block(block: JournaledBlock) -> Self {
        Self::new(Destination::Block(Box::new(block)))
    }

    /// Sink that collects items to replace in the archive.
    pub(in crate::backup) fn for_replacement(fresh: ReplacementItems<'a>) -> Self {
        Self::new(Destination::Replacement(fresh))
    }

    fn new(destination: Destination<'a>) -> Self {
        Self { destination, members: Mutex::default(), deferred: Mutex::default() }
    }

    /// True if items go into the archive at once.
    pub(super) fn is_archive(&self) -> bool {
        matches!(self.destination, Destination::Archive(_))
    }

    /// The items to replace in the archive.
    pub(in crate::backup) fn into_replacement(self) -> Option<ReplacementItems<'a>> {
        match self.destination {
            Destination::Replacement(fresh) => Some(fresh),
            Destination::Archive(_) | Destination::Block(_) => None,
        }
    }

    /// The sink, with the items of a block.
    #[must_use]
    pub(in crate::backup) fn with_members(self, block: Vec<Object>) -> Self {
        let members = block.into_iter().map(|object| (object.id(), object)).collect();
        Self { members: Mutex::new(members), ..self }
    }

    /// The sink, with items to defer.
    #[must_use]
    pub(in crate::backup) fn with_deferred(self, ids: HashSet<ResourceIdentifier>) -> Self {
        Self { deferred: Mutex::new(DeferredItems { ids, waiting: Vec::new() }), ..self }
    }

    /// True if an item is deferred, or will be.
    pub(super) fn defers(&self, id: &ResourceIdentifier) -> bool {
        self.deferred.lock().ids.contains(id)
    }

    pub(super) fn defer(&self, object: Object, origin: ItemOrigin) {
        let mut deferred = self.deferred.lock();
        let id = object.id();
        if deferred.waiting.iter().all(|(waiting, _)| waiting.id() != id) {
            deferred.waiting.push((object, origin));
        }
    }

    /// Removes and returns the deferred items.
    pub(super) fn take_deferred(&self) -> Vec<(Object, ItemOrigin)> {
        let mut deferred = self.deferred.lock();
        std::mem::take(&mut *deferred).waiting
    }

    /// Adds an item that has been read, for later visits.
    pub(in crate::backup) fn add_member(&self, object: Object) {
        let mut members = self.members.lock();
        members.insert(object.id(), object);
    }

    /// Removes and returns an item of the block, if it is still there.
    pub(in crate::backup) fn take_member(&self, id: &ResourceIdentifier) -> Option<Object> {
        self.members.lock().remove(id)
    }

    /// The collected block, if any.
    pub(in crate::backup) fn into_block(self) -> Option<JournaledBlock> {
        match self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => None,
            Destination::Block(block) => Some(*block),
        }
    }

    /// The results of the items that are stored here.
    pub(in crate::backup) fn results<'b>(&'b self, context: &'b Context) -> &'b dyn VisitResults {
        match &self.destination {
            Destination::Archive(_) => context,
            Destination::Block(block) => &**block,
            Destination::Replacement(fresh) => fresh,
        }
    }

    /// The report for this destination.
    pub(in crate::backup) fn report<'b>(&'b self, context: &'b Context) -> &'b Report {
        self.results(context).report()
    }

    /// Stores an item.
    pub(super) async fn store(&self, context: &Context, object: &Object, source: ItemSource) {
        let budget = match source {
            ItemSource::Collected(budget) => budget,
            ItemSource::ReadForAction => None,
        };
        match &self.destination {
            Destination::Archive(archive) => {
                context.inventory.add(object);
                if archive.append(Entry::new(object, budget)).await.is_err() {
                    context.mark_archive_failed();
                }
            }
            Destination::Block(block) => {
                context.inventory.add(object);
                block.store(object, Entry::new(object, budget));
            }
            Destination::Replacement(fresh) => {
                if let Err(error) = fresh.store(object) {
                    let text =
                        format!("the item cannot be written to the scratch directory: {error}");
                    context.report.error(&object.id(), text);
                }
            }
        }
    }
}

/// Results of visits, besides the stored items.
pub(in crate::backup) trait VisitResults: Sync {
    /// The report.
    fn report(&self) -> &Report;

    /// The tally of hooks.
    fn tally(&self) -> &Tally;

    /// True if pods are frozen until everything is done.
    fn freezes_pods(&self) -> bool {
        false
    }

    /// Records an item that was visited, stored or not.
    fn record_visited(&self, _id: &ResourceIdentifier) {}

    /// Records the outcome of a volume selected for a snapshot.
    fn record_snapshot(&self, volume: &str, outcome: SnapshotOutcome);

    /// Records a snapshot requested from a plugin that the run gave up on and that may still appear.
    fn record_in_flight(&self, _intent: Intent) {}

    /// Records an operation that was started.
    fn record_operation(&self, operation: Operation);
}

/// The results of the run, at once.
impl VisitResults for Context {
    fn report(&self) -> &Report {
        &self.report
    }

    fn tally(&self) -> &Tally {
        &self.hook_tally
    }

    fn record_snapshot(&self, volume: &str, outcome: SnapshotOutcome) {
        self.volumes.record_snapshot(volume, outcome);
    }

    fn record_operation(&self, operation: Operation) {
        Self::record_operation(self, operation);
    }
}
